/* SPDX-License-Identifier: Apache-2.0
 *
 * link.c - the lane "cuda": its two halves, and the regions that one grants the
 * other (cuda_lane.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_lane.h"
#include "host/adopted.h"
#include "memory/cuda/driver.h"

static const char *const link_kinds[] = {link_kind, NULL};

/* ---- Being told ---------------------------------------------------------- */

static int link_heard_board(struct lane *lane, const struct word *word,
                            int fd) {
  int status =
      fd < 0 ? PERIGEE_PROTOCOL : board_adopt(lane, word->id, word->length, fd);
  if (fd >= 0 && status < 0)
    adopted_close(fd);
  return status;
}

static int link_heard(struct lane *lane, const void *bytes, uint32_t length,
                      int fd) {
  struct word word = {0};
  if (length == sizeof word && !lane->over)
    memcpy(&word, bytes, sizeof word);
  if (word.word == BOARD)
    return link_heard_board(lane, &word, fd);
  if (word.word == MEMORY)
    return imported_learn(lane, &word, &fd, fd >= 0);
  if (fd >= 0)
    adopted_close(fd);
  else if (word.word == OPENED || word.word == REFUSED)
    return exported_heard(lane, &word);
  else if (word.word == GONE || word.word == ASK)
    return imported_heard(lane, &word);
  return PERIGEE_PROTOCOL;
}

static int link_heard_pair(struct lane *lane, const void *bytes,
                           uint32_t length, const int fds[2]) {
  struct word word = {0};
  if (length == sizeof word && !lane->over)
    memcpy(&word, bytes, sizeof word);
  if (word.word == MEMORY)
    return imported_learn(lane, &word, fds, 2);
  adopted_close(fds[0]);
  adopted_close(fds[1]);
  return PERIGEE_PROTOCOL;
}

/* ---- Regions ------------------------------------------------------------- */

static int link_export(struct lane *lane, const struct grant *grant,
                       struct region_key *key) {
  uint32_t id;
  if (grant->slot >= LINK_REGIONS)
    return PERIGEE_UNSUPPORTED;
  int status = exported_tell(lane, grant->area, &id);
  if (status < 0)
    return status;
  atomic_store_explicit(&lane->own->regions[grant->slot], grant->generation,
                        memory_order_release);
  memcpy(key->bytes, &id, sizeof id);
  key->length = sizeof id;
  key->fd_count = 0;
  return PERIGEE_OK;
}

static void link_revoke(struct lane *lane, uint32_t slot) {
  if (lane->own && slot < LINK_REGIONS)
    atomic_store_explicit(&lane->own->regions[slot], 0, memory_order_release);
}

/* The driver keeps the memory for who is inside, or its kind waits for that. */
static bool link_inside(struct lane *lane, uint32_t slot) {
  (void)lane, (void)slot;
  return false;
}

int link_attach(struct lane *lane, struct window *window,
                const struct region_key *key) {
  struct reach at = {0};
  if (key->length != sizeof at.id || key->fd_count != 0 ||
      window->slot >= LINK_REGIONS)
    return PERIGEE_PROTOCOL;
  memcpy(&at.id, key->bytes, sizeof at.id);
  const struct imported *m = imported_of(lane, at.id);
  at.serial = m ? (uint32_t)m->serial : 0;
  memcpy(window->own, &at, sizeof at);
  return imported_for(lane, window) ? PERIGEE_OK : PERIGEE_PROTOCOL;
}

static const struct transport_access link_access = {
    .export = link_export,
    .revoke = link_revoke,
    .inside = link_inside,
    .attach = link_attach,
    .forget = exported_forget,
};

/* ---- The lane ------------------------------------------------------------ */

int link_begin(const struct lane_options *options, struct lane **out,
               struct offer *offer, char reason[REASON]) {
  struct lane *lane = calloc(1, sizeof *lane);
  if (!lane) {
    snprintf(reason, REASON, "no memory for it");
    return PERIGEE_NO_MEMORY;
  }
  lane_by(lane, &transport_cuda);
  lane->options = *options;
  lane->own_file = lane->peer_file = -1;
  offer->length = offer->fd_count = 0;
  *out = lane;
  return PERIGEE_OK;
}

int link_join(struct lane *lane, const struct offer *offer,
              char reason[REASON]) {
  (void)lane;
  for (uint32_t i = 0; i < offer->fd_count; i++)
    adopted_close(offer->fds[i]);
  if (offer->length == 0 && offer->fd_count == 0)
    return PERIGEE_OK;
  snprintf(reason, REASON, "the peer's half is not of this kind");
  return PERIGEE_PROTOCOL;
}

/* Copies that are under way cannot be called back; each is bounded. A copier
 * that does not find its generation (acquire) because of a store here (release)
 * finds `over`, which was stored before. The lane may stay for long, and the
 * driver keeps the peer's memory until it is left. */
void link_cut(struct lane *lane) {
  lane->over = true;
  if (lane->own)
    atomic_store_explicit(&lane->own->over, 1, memory_order_relaxed);
  for (uint32_t slot = 0; lane->own && slot < LINK_REGIONS; slot++)
    link_revoke(lane, slot);
  link_drain(lane);
  if (lane->ticket_count == 0)
    imported_close_all(lane);
}

void link_close(struct lane *lane) {
  link_drain(lane);
  imported_close_all(lane);
  board_leave(lane);
  board_drop(lane);
  free(lane->batch);
  free(lane->spare);
  free(lane->spare_list);
  free(lane);
}

/* No kind of memory is asked for anything any more, the boards are not here, and
 * descriptors of memory were closed as the child began (host/forked.h). */
void link_forked(struct lane *lane) {
  if (lane->own_file >= 0)
    close(lane->own_file);
  if (lane->peer_file >= 0)
    close(lane->peer_file);
  lane->own_file = lane->peer_file = -1;
  lane->own = NULL;
  lane->peer = NULL;
  lane->over = lane->forked = true;
}

/* Nobody has to be woken, and nothing is done unless an operation asks. */
bool link_rests(struct lane *lane) {
  return lane->owed == 0;
}

const char *link_trouble(const struct lane *lane) {
  return lane->why;
}

/* From the first byte on: the driver has no least. */
static const struct transport_additional link_additional = {
    .memories = link_kinds,
    .least = 1,
    .could = cuda_driver_could,
    .note = "access \"r\" of shared memory binds honest peers only",
    .distant = &transport_cuda_distant};

const struct perigee_transport transport_cuda = {
    .name = "cuda",
    .socket = SOCKET_UNIX,
    .payloads = &link_payloads,
    .access = &link_access,
    .jobs = &link_jobs,
    .additional = &link_additional,
    .open = link_begin,
    .join = link_join,
    .close = link_close,
    .heard = link_heard,
    .heard_pair = link_heard_pair,
    .rests = link_rests,
    .trouble = link_trouble,
    .cut = link_cut,
    .forked = link_forked,
};
