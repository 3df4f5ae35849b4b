/* SPDX-License-Identifier: Apache-2.0
 *
 * words.c - what the halves of a lane tell each other, and their boards
 * (cuda_lane.h).
 */
#include <string.h>

#include "cuda_lane.h"

const char link_kind[] = "cuda";

bool link_is_for(const struct memory_context *memory) {
  return strcmp(memory->kind->name, link_kind) == 0 && memory->kind->sharing;
}

/* ---- Words --------------------------------------------------------------- */

int link_say(struct lane *lane, uint32_t what, uint32_t id, uint64_t serial) {
  struct word word = {.word = what, .id = id, .serial = serial};
  return lane->over ? PERIGEE_OK : link_hand(lane, &word, -1);
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

void board_drop(struct lane *lane) {
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
int board_adopt(struct lane *lane, uint32_t operations, int fd) {
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

void board_leave(struct lane *lane) {
  if (!lane->peer)
    return;
  memory_host_kind.sharing->leave(
      &memory_host, (uint8_t *)(uintptr_t)lane->peer, lane->peer_length, NULL);
  share_back(lane->options.share, SHARE_MAPPED, lane->peer_length);
  lane->peer = NULL;
}
