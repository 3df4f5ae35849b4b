/* SPDX-License-Identifier: Apache-2.0
 *
 * words.c - what the halves of a lane tell each other, and their boards
 * (cuda_lane.h).
 */
#include <string.h>
#include <unistd.h>

#include "cuda_lane.h"
#include "host/adopted.h"

const char link_kind[] = "cuda";

bool link_is_for(const struct memory_context *memory) {
  return strcmp(memory->kind->name, link_kind) == 0 && memory->kind->sharing;
}

/* ---- Words --------------------------------------------------------------- */

int link_say(struct lane *lane, uint32_t what, uint32_t id, uint64_t serial) {
  struct word word = {.word = what,
                      .id = id,
                      .serial = serial,
                      .access = what == OPENED ? TAKES_LISTS : 0};
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

uint8_t *board_lists(const struct lane *lane) {
  return (uint8_t *)lane->own + board_length(lane->options.operations);
}

/* Reading where it is mapped would make pages that the peer has left out. */
bool board_read_lists(const struct lane *lane, uint64_t at, uint64_t bytes,
                      void *to) {
  uint64_t from = board_length(lane->peer_operations) + at;
  return lane->peer && bytes <= lane->peer_lists &&
         at <= lane->peer_lists - bytes &&
         pread(lane->peer_file, to, bytes, (off_t)from) == (ssize_t)bytes;
}

static int board_make(struct lane *lane, struct memory_key *key) {
  const struct perigee_memory *host = &memory_host_kind;
  uint8_t *at = NULL;
  uint64_t length = board_length(lane->options.operations) + LINK_LISTS;
  int status = blocks_open(&lane->lists, LINK_LISTS, LINK_LISTS);
  if (status == PERIGEE_OK)
    status = host->allocate(&memory_host, length, true, &at, &lane->own_handle);
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
  blocks_close(&lane->lists);
  lane->own = NULL;
  lane->own_file = -1;
}

int link_board(struct lane *lane) {
  struct memory_key key;
  struct word word = {
      .word = BOARD, .id = lane->options.operations, .length = LINK_LISTS};
  if (lane->own)
    return PERIGEE_OK;
  int status = board_make(lane, &key);
  if (status == PERIGEE_OK)
    status = link_hand(lane, &word, key.fds[0]);
  if (status < 0)
    board_drop(lane);
  return status;
}

static int board_map(struct lane *lane, uint64_t length, int fd) {
  const struct memory_key key = {.fd_count = 1, .fds = {fd}};
  uint8_t *at;
  void *none;
  int status = memory_host_kind.sharing->adopt(&memory_host, &key, length,
                                               PERIGEE_READ, &at, &none);
  if (status < 0)
    return status;
  lane->peer = (const struct board *)(const void *)at;
  lane->peer_length = length;
  return PERIGEE_OK;
}

/* The peer writes there what it likes; only words are read. */
int board_adopt(struct lane *lane, uint32_t operations, uint64_t lists,
                int fd) {
  struct share *share = lane->options.share;
  uint64_t length = board_length(operations) + lists;
  if (lane->peer || operations > 65536 || lists > LINK_LISTS)
    return PERIGEE_PROTOCOL;
  if (!share_take(share, SHARE_DESCRIPTORS, 1))
    return PERIGEE_NO_MEMORY;
  int status = PERIGEE_NO_MEMORY;
  if (!share_take(share, SHARE_MAPPED, length))
    goto descriptor;
  status = board_map(lane, length, fd);
  if (status < 0)
    goto mapped;
  lane->peer_operations = operations;
  lane->peer_lists = lists;
  lane->peer_file = fd;
  return PERIGEE_OK;
mapped:
  share_back(share, SHARE_MAPPED, length);
descriptor:
  share_back(share, SHARE_DESCRIPTORS, 1);
  return status;
}

void board_leave(struct lane *lane) {
  if (lane->peer_file >= 0) {
    adopted_close(lane->peer_file);
    share_back(lane->options.share, SHARE_DESCRIPTORS, 1);
  }
  lane->peer_file = -1;
  if (!lane->peer)
    return;
  memory_host_kind.sharing->leave(
      &memory_host, (uint8_t *)(uintptr_t)lane->peer, lane->peer_length, NULL);
  share_back(lane->options.share, SHARE_MAPPED, lane->peer_length);
  lane->peer = NULL;
}
