/* SPDX-License-Identifier: Apache-2.0
 *
 * memories.c - memory that the two halves of a lane know of: exported, which
 * the peer was told of, and imported, which the peer has told of (cuda_lane.h
 * has their states). Words about memory that is gone are ignored: the other
 * half may have said them before it heard of that.
 *
 * A word that finds the socket full does not end the session. GONE is said again
 * until it is told. OPENED, REFUSED and ASK are lost: the owner asks later.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_lane.h"
#include "host/adopted.h"

/* ---- Exported ------------------------------------------------------------ */

static bool exported_ready(struct lane *lane) {
  if (!lane->exported)
    lane->exported = calloc(LINK_MEMORIES, sizeof *lane->exported);
  return lane->exported;
}

uint32_t exported_place(const struct lane *lane, const struct area *area) {
  uint32_t place = LINK_MEMORIES;
  for (uint32_t i = 0; i < LINK_MEMORIES; i++)
    if (lane->exported[i].area == area)
      return i;
    else if (place == LINK_MEMORIES && !lane->exported[i].area)
      place = i;
  return place;
}

static int area_key(const struct lane *lane, const struct area *area,
                    struct memory_key *key) {
  const struct memory_sharing *sharing = area->memory->kind->sharing;
  if (!lane->distant)
    return sharing->share(area->memory, area->base, area->length, area->handle,
                          area->rights, key);
  return sharing->share_bytes
             ? sharing->share_bytes(area->memory, area->base, area->handle, key)
             : PERIGEE_UNSUPPORTED;
}

static int key_hand(struct lane *lane, const struct memory_key *key,
                    const struct word *word) {
  const struct lane_options *o = &lane->options;
  const char *why = "";
  if (lane->distant || key->fd_count < 2)
    return key->fd_count == !lane->distant
               ? link_hand(lane, word, lane->distant ? -1 : key->fds[0])
               : PERIGEE_UNSUPPORTED;
  if (o->pairs)
    return o->hand_pair(o->session, word, sizeof *word, key->fds, &why);
  snprintf(lane->why, sizeof lane->why,
           "memory is not opened by the peer: the session lacks the feature "
           "\"pairs\"");
  return PERIGEE_UNSUPPORTED;
}

static int exported_hand(struct lane *lane, const struct area *area,
                         uint32_t id) {
  struct memory_key key;
  int status = area_key(lane, area, &key);
  if (status < 0)
    return status;
  struct word word = {.word = MEMORY,
                      .id = id,
                      .serial = lane->serial + 1,
                      .length = area->length,
                      .access = area->rights,
                      .key_length = key.length};
  memcpy(word.key, key.bytes, key.length);
  return key_hand(lane, &key, &word);
}

int exported_tell(struct lane *lane, struct area *area, uint32_t *id) {
  if (!area->shared)
    return PERIGEE_UNSUPPORTED;
  if (!exported_ready(lane))
    return PERIGEE_NO_MEMORY;
  *id = exported_place(lane, area);
  if (*id == LINK_MEMORIES)
    return PERIGEE_UNSUPPORTED;
  if (lane->exported[*id].area)
    return PERIGEE_OK;
  int status = lane->distant ? PERIGEE_OK : link_board(lane);
  if (status == PERIGEE_OK)
    status = exported_hand(lane, area, *id);
  if (status < 0)
    return status;
  lane->exported[*id] = (struct exported){
      .area = area, .serial = ++lane->serial, .state = EXPORTED_TOLD};
  area->told = true;
  return PERIGEE_OK;
}

/* It is asked after 1, 2, 4, 8 and so on payloads: a peer that has no device
 * yet may get one later. */
bool exported_is_open(struct lane *lane, uint32_t id) {
  struct exported *e = &lane->exported[id];
  if (e->state == EXPORTED_TOLD) {
    uint32_t n = ++e->exposed;
    if (n > 1 && (n & (n - 1)) == 0)
      link_say(lane, ASK, id, e->serial);
  }
  return e->state == EXPORTED_OPENED;
}

bool exported_forget(struct lane *lane, const struct area *area) {
  uint32_t id = lane->exported ? exported_place(lane, area) : LINK_MEMORIES;
  if (id == LINK_MEMORIES || !lane->exported[id].area)
    return true;
  int status = link_say(lane, GONE, id, lane->exported[id].serial);
  if (status < 0 && status != PERIGEE_PEER_LOST)
    return false;
  lane->exported[id] = (struct exported){.state = EXPORTED_FREE};
  return true;
}

int exported_heard(struct lane *lane, const struct word *word) {
  if (!lane->exported || word->id >= LINK_MEMORIES)
    return PERIGEE_PROTOCOL;
  struct exported *e = &lane->exported[word->id];
  if (!e->area || e->serial != word->serial)
    return PERIGEE_OK;
  e->state = word->word == OPENED ? EXPORTED_OPENED : EXPORTED_REFUSED;
  e->lists = word->access & TAKES_LISTS;
  return PERIGEE_OK;
}

/* ---- Imported ------------------------------------------------------------ */

struct imported *imported_of(struct lane *lane, uint32_t id) {
  struct imported *m =
      lane->imported && id < LINK_MEMORIES ? lane->imported[id] : NULL;
  return m && m->state < IMPORTED_GOING ? m : NULL;
}

/* The owner may lie about length and rights; a device that writes what it may only
 * read is lost for the whole process. */
struct imported *imported_for(struct lane *lane, const struct window *window) {
  struct reach at;
  memcpy(&at, window->own, sizeof at);
  struct imported *m = imported_of(lane, at.id);
  bool within = m && (uint32_t)m->serial == at.serial &&
                window->length <= m->length &&
                (window->access & ~m->access & PERIGEE_WRITE) == 0;
  return within ? m : NULL;
}

static void fds_close(const int *fds, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    if (fds[i] >= 0)
      adopted_close(fds[i]);
}

/* Closes it, and gives back what it has of the peer's share. */
static void imported_empty(struct lane *lane, struct imported *m) {
  for (int i = 0; i < LINK_OPENINGS && m->openings[i].by; i++) {
    const struct opening *o = &m->openings[i];
    if (o->pointer && !lane->forked)
      o->by->kind->sharing->leave(o->by, o->pointer, m->length, o->handle);
  }
  m->openings[0].by = NULL;
  if (m->mapped > 0)
    share_back(lane->options.share, SHARE_MAPPED, m->mapped);
  forked_forget(&m->forked);
  fds_close(m->key.fds, m->key.fd_count);
  if (m->counted > 0)
    share_back(lane->options.share, SHARE_DESCRIPTORS, m->counted);
  m->mapped = m->key.fd_count = m->counted = 0;
}

static void imported_leave(struct lane *lane, struct imported *m) {
  imported_empty(lane, m);
  free(m);
}

/* It goes, and no copy is under way. */
static void imported_end(struct lane *lane, struct imported *m) {
  imported_empty(lane, m);
  if (lane->distant)
    distant_closed(lane, m);
  else
    free(m);
}

const struct memory_context *imported_home(const struct lane *lane,
                                           struct imported *m) {
  return contexts_opened(lane->options.memories, link_kind, &m->key,
                         &m->device);
}

/* ns. Opening takes a millisecond, in a poll, and the peer says how often. */
enum { EARLY_PAUSE = 10000000 };

/* At once, if this process uses such devices already. What is not opened now is
 * asked for again, or opened when it is used. */
static bool imported_open_early(struct lane *lane, struct imported *m) {
  const struct memory_context *by = imported_home(lane, m);
  int64_t now = *lane->options.now;
  if (imported_opened(m))
    return true;
  if (!by || now < lane->early_from)
    return false;
  lane->early_from = now + EARLY_PAUSE;
  return imported_open(lane, m, by);
}

static void imported_answer(struct lane *lane, struct imported *m,
                            uint32_t id) {
  if (m->state == IMPORTED_REFUSED)
    link_say(lane, REFUSED, id, m->serial);
  else if (imported_open_early(lane, m))
    link_say(lane, OPENED, id, m->serial);
}

static bool word_is_sound(const struct word *word) {
  return word->id < LINK_MEMORIES && word->key_length <= MEMORY_KEY &&
         word->length > 0 && word->length <= UINT64_C(1) << 40 &&
         word->access & PERIGEE_READ &&
         !(word->access & ~(PERIGEE_READ | PERIGEE_WRITE));
}

/* Memory without a descriptor counts as if it had one. */
static void imported_fill(struct lane *lane, struct imported *m,
                          const struct word *word, const int *fds,
                          uint32_t fd_count) {
  uint8_t counts = fd_count > 1 ? (uint8_t)fd_count : 1;
  bool may = share_take(lane->options.share, SHARE_DESCRIPTORS, counts);
  *m = (struct imported){.serial = word->serial,
                         .id = word->id,
                         .counted = may ? counts : 0,
                         .length = word->length,
                         .access = word->access,
                         .device = DEVICE_UNASKED,
                         .state = may ? IMPORTED_KNOWN : IMPORTED_REFUSED};
  if (!may) {
    fds_close(fds, fd_count);
    return;
  }
  m->key.length = word->key_length;
  memcpy(m->key.bytes, word->key, word->key_length);
  m->key.fd_count = fd_count;
  for (uint32_t i = 0; i < fd_count; i++)
    m->key.fds[i] = fds[i];
  if (fd_count > 0)
    forked_closes(&m->forked, m->key.fds, fd_count);
}

static bool imported_ready(struct lane *lane) {
  if (!lane->imported)
    lane->imported = calloc(LINK_MEMORIES, sizeof *lane->imported);
  return lane->imported;
}

/* Distant memory keeps its number until the owner has heard that it is closed. */
static bool word_is_welcome(const struct lane *lane, const struct word *word,
                            uint32_t fd_count) {
  return (lane->distant ? fd_count == 0 : fd_count > 0 && lane->peer) &&
         word_is_sound(word) && !(lane->imported && lane->imported[word->id]);
}

int imported_learn(struct lane *lane, const struct word *word, const int *fds,
                   uint32_t fd_count) {
  bool sound = word_is_welcome(lane, word, fd_count);
  struct imported *m = sound && imported_ready(lane) ? malloc(sizeof *m) : NULL;
  if (!m) {
    fds_close(fds, fd_count);
    return sound ? PERIGEE_NO_MEMORY : PERIGEE_PROTOCOL;
  }
  imported_fill(lane, m, word, fds, fd_count);
  lane->imported[word->id] = m;
  if (!lane->distant) /* opened when it is used */
    imported_answer(lane, m, word->id);
  return PERIGEE_OK;
}

int imported_heard(struct lane *lane, const struct word *word) {
  struct imported *m = imported_of(lane, word->id);
  if (!m || m->serial != word->serial)
    return PERIGEE_PROTOCOL;
  if (word->word == ASK) {
    imported_answer(lane, m, word->id);
    return PERIGEE_OK;
  }
  if (!lane->distant)
    lane->imported[word->id] = NULL;
  m->state = IMPORTED_GOING;
  if (m->busy == 0)
    imported_end(lane, m);
  return PERIGEE_OK;
}

/* ---- Opening ------------------------------------------------------------- */

/* Without a share it is tried again, as that costs nothing. What the driver
 * refused costs milliseconds each time, and is remembered: *by. */
static void imported_adopt(struct lane *lane, struct imported *m,
                           const struct memory_context *by, struct opening *o) {
  const char *(*why)(const struct memory_context *) = by->kind->why;
  const struct memory_sharing *sharing = by->kind->sharing;
  uint64_t span = sharing->spans ? sharing->spans(&m->key) : m->length;
  if (!share_take(lane->options.share, SHARE_MAPPED, span)) {
    snprintf(lane->why, sizeof lane->why,
             "memory of the peer is not opened: it has its share of what is "
             "mapped (option mapped)");
    return;
  }
  o->by = by;
  int status = sharing->adopt(by, &m->key, m->length, m->access, &o->pointer,
                              &o->handle);
  if (status == PERIGEE_OK) {
    m->mapped += span;
    lane->opened++;
    return;
  }
  share_back(lane->options.share, SHARE_MAPPED, span);
  o->pointer = NULL;
  snprintf(lane->why, sizeof lane->why,
           "memory of the peer cannot be opened: %s", why ? why(by) : "");
}

const struct opening *imported_open(struct lane *lane, struct imported *m,
                                    const struct memory_context *by) {
  int i = 0;
  if (m->state != IMPORTED_KNOWN || !link_is_for(by))
    return NULL;
  while (i < LINK_OPENINGS && m->openings[i].by && m->openings[i].by != by)
    i++;
  if (i == LINK_OPENINGS)
    return NULL;
  struct opening *o = &m->openings[i];
  if (!o->by)
    imported_adopt(lane, m, by, o);
  return o->pointer ? o : NULL;
}

const struct opening *imported_opened(const struct imported *m) {
  for (int i = 0; i < LINK_OPENINGS && m->openings[i].by; i++)
    if (m->openings[i].pointer)
      return &m->openings[i];
  return NULL;
}

void imported_use(struct imported *m) {
  m->busy++;
}

void imported_unuse(struct lane *lane, struct imported *m) {
  if (--m->busy == 0 && m->state == IMPORTED_GOING)
    imported_end(lane, m);
}

void imported_close_all(struct lane *lane) {
  for (uint32_t i = 0; lane->imported && i < LINK_MEMORIES; i++)
    if (lane->imported[i])
      imported_leave(lane, lane->imported[i]);
  free(lane->imported);
  free(lane->exported);
  lane->imported = NULL;
  lane->exported = NULL;
}
