/* SPDX-License-Identifier: Apache-2.0
 *
 * link.c - the lane "cuda": its two halves, their boards, and their words
 * (cuda_lane.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_lane.h"
#include "host/adopted.h"
#include "memory/cuda/driver.h"

const char link_kind[] = "cuda";
static const char *const link_kinds[] = {link_kind, NULL};

/* ---- Words --------------------------------------------------------------- */

void link_say(struct lane *lane, uint32_t what, uint32_t id, uint64_t serial) {
  struct word word = {.word = what, .id = id, .serial = serial};
  if (!lane->over)
    lane->options.tell(lane->options.session, &word, sizeof word);
}

int link_hand(struct lane *lane, const struct word *word, int fd) {
  const char *why = "";
  return lane->options.hand(lane->options.session, word, sizeof *word, fd,
                            &why);
}

/* ---- Boards -------------------------------------------------------------- */

static uint64_t board_length(uint32_t operations) {
  uint64_t length = sizeof(struct board) + (uint64_t)operations * 4;
  return (length + 4095) & ~UINT64_C(4095);
}

static int board_make(struct lane *lane, struct memory_key *key) {
  const struct perigee_memory *host = &memory_host_kind;
  uint8_t *at;
  uint64_t length = board_length(lane->options.operations);
  int status =
      host->allocate(&memory_host, length, true, &at, &lane->own_handle);
  if (status < 0)
    return status;
  status = host->sharing->share(&memory_host, at, length, lane->own_handle,
                                PERIGEE_READ, key);
  if (status < 0) {
    host->release(&memory_host, at, length, lane->own_handle);
    return status;
  }
  lane->own = (struct board *)(void *)at;
  lane->own_length = length;
  lane->own_file = key->fds[0];
  return PERIGEE_OK;
}

static void board_drop(struct lane *lane) {
  if (lane->own)
    memory_host_kind.release(&memory_host, (uint8_t *)lane->own,
                             lane->own_length, lane->own_handle);
  lane->own = NULL;
  lane->own_file = -1;
}

int link_board(struct lane *lane) {
  struct memory_key key;
  struct word word = {.word = BOARD, .id = lane->options.operations};
  if (lane->own)
    return PERIGEE_OK;
  int status = board_make(lane, &key);
  if (status < 0)
    return status;
  status = link_hand(lane, &word, key.fds[0]);
  if (status < 0)
    board_drop(lane);
  return status;
}

/* The peer writes there what it likes; only words are read. */
static int board_adopt(struct lane *lane, uint32_t operations, int fd) {
  const struct memory_key key = {.fd_count = 1, .fds = {fd}};
  uint64_t length = board_length(operations);
  uint8_t *at;
  void *none;
  if (lane->peer || operations > 65536)
    return PERIGEE_PROTOCOL;
  if (!share_take(lane->options.share, SHARE_MAPPED, length))
    return PERIGEE_NO_MEMORY;
  int status = memory_host_kind.sharing->adopt(&memory_host, &key, length,
                                               PERIGEE_READ, &at, &none);
  if (status < 0) {
    share_back(lane->options.share, SHARE_MAPPED, length);
    return status;
  }
  lane->peer = (const struct board *)(const void *)at;
  lane->peer_length = length;
  lane->peer_operations = operations;
  return PERIGEE_OK;
}

static void board_leave(struct lane *lane) {
  if (!lane->peer)
    return;
  memory_host_kind.sharing->leave(
      &memory_host, (uint8_t *)(uintptr_t)lane->peer, lane->peer_length, NULL);
  share_back(lane->options.share, SHARE_MAPPED, lane->peer_length);
  lane->peer = NULL;
}

static int link_heard_board(struct lane *lane, const struct word *word,
                            int fd) {
  int status = fd < 0 ? PERIGEE_PROTOCOL : board_adopt(lane, word->id, fd);
  if (fd >= 0)
    adopted_close(fd);
  return status;
}

static int link_heard(struct lane *lane, const void *bytes, uint32_t length,
                      int fd) {
  struct word word = {0};
  if (length == sizeof word)
    memcpy(&word, bytes, sizeof word);
  if (word.word == BOARD)
    return link_heard_board(lane, &word, fd);
  if (word.word == MEMORY)
    return imported_learn(lane, &word, fd);
  if (fd >= 0)
    adopted_close(fd);
  else if (word.word == OPENED || word.word == REFUSED)
    return exported_heard(lane, &word);
  else if (word.word == GONE || word.word == ASK)
    return imported_heard(lane, &word);
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

/* The driver keeps the memory for who is inside. */
static bool link_inside(struct lane *lane, uint32_t slot) {
  (void)lane, (void)slot;
  return false;
}

static int link_attach(struct lane *lane, struct window *window,
                       const struct region_key *key) {
  uint32_t id;
  if (key->length != sizeof id || key->fd_count != 0 ||
      window->slot >= LINK_REGIONS)
    return PERIGEE_PROTOCOL;
  memcpy(&id, key->bytes, sizeof id);
  if (!imported_of(lane, id))
    return PERIGEE_PROTOCOL;
  memcpy(window->own, &id, sizeof id);
  return PERIGEE_OK;
}

static const struct transport_access link_access = {
    .export = link_export,
    .revoke = link_revoke,
    .inside = link_inside,
    .attach = link_attach,
    .forget = exported_forget,
};

/* ---- The lane ------------------------------------------------------------ */

static int link_open(const struct lane_options *options, struct lane **out,
                     struct offer *offer, char reason[REASON]) {
  struct lane *lane = calloc(1, sizeof *lane);
  if (!lane) {
    snprintf(reason, REASON, "no memory for it");
    return PERIGEE_NO_MEMORY;
  }
  lane_by(lane, &transport_cuda);
  lane->options = *options;
  lane->own_file = -1;
  offer->length = offer->fd_count = 0;
  *out = lane;
  return PERIGEE_OK;
}

static int link_join(struct lane *lane, const struct offer *offer,
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
 * finds `over`, which was stored before. */
static void link_cut(struct lane *lane) {
  lane->over = true;
  if (lane->own)
    atomic_store_explicit(&lane->own->over, 1, memory_order_relaxed);
  for (uint32_t slot = 0; lane->own && slot < LINK_REGIONS; slot++)
    link_revoke(lane, slot);
  link_drain(lane);
}

static void link_close(struct lane *lane) {
  link_drain(lane);
  imported_close_all(lane);
  board_leave(lane);
  board_drop(lane);
  free(lane->batch);
  free(lane);
}

/* No kind of memory is asked for anything any more, and the boards are not
 * here. */
static void link_forked(struct lane *lane) {
  imported_forked(lane);
  if (lane->own_file >= 0)
    close(lane->own_file);
  lane->own_file = -1;
  lane->own = NULL;
  lane->peer = NULL;
  lane->over = lane->forked = true;
}

/* Nobody has to be woken, and nothing is done unless an operation asks. */
static bool link_rests(struct lane *lane) {
  (void)lane;
  return true;
}

static const char *link_trouble(const struct lane *lane) {
  return lane->why;
}

/* From the first byte on: the driver has no least. */
static const struct transport_additional link_additional = {
    .memories = link_kinds, .least = 1, .could = cuda_driver_could};

const struct perigee_transport transport_cuda = {
    .name = "cuda",
    .socket = SOCKET_UNIX,
    .payloads = &link_payloads,
    .access = &link_access,
    .jobs = &link_jobs,
    .additional = &link_additional,
    .open = link_open,
    .join = link_join,
    .close = link_close,
    .heard = link_heard,
    .rests = link_rests,
    .trouble = link_trouble,
    .cut = link_cut,
    .forked = link_forked,
};
