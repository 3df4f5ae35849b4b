/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_loans.c - blocks that are lent to be filled, from an arena of the lane,
 * and what the lane gives back of its memory.
 */
#include <sys/mman.h>

#include "memory/guarded.h"
#include "tcp.h"

static int arena_open(struct lane *lane) {
  uint64_t length = 2 * lane->options.pool;
  void *p = guarded_map(length, -1);
  if (!p)
    return PERIGEE_NO_MEMORY;
  int status = blocks_open(&lane->blocks, length, lane->options.pool);
  if (status < 0) {
    guarded_unmap(p, length);
    return status;
  }
  lane->arena = p;
  lane->arena_length = length;
  return PERIGEE_OK;
}

int tcp_loan(struct lane *lane, uint64_t length, uint8_t **pointer,
             struct source *source) {
  int status = lane->arena ? PERIGEE_OK : arena_open(lane);
  int64_t offset =
      status < 0 ? status : blocks_take(&lane->blocks, length ? length : 1);
  if (offset < 0)
    return (int)offset;
  lane->options.keeps(lane->options.session);
  *pointer = lane->arena + offset;
  *source = (struct source){.address = (uint64_t)offset,
                            .block = length,
                            .count = 1,
                            .stride = length};
  return PERIGEE_OK;
}

/* The most blocks, and bytes, that one step gives back. */
enum { STEP_BLOCKS = 256, STEP_BYTES = 4 << 20 };

/* Gives one block's pages back: returns its size, or 0 if enough are given. */
static uint64_t give_back(struct lane *lane, uint64_t keep) {
  uint64_t offset, size = blocks_idle(&lane->blocks, keep, &offset);
  if (size > 0)
    madvise(lane->arena + offset, size, MADV_DONTNEED);
  return size;
}

static bool streams_trim(struct lane *lane) {
  bool left = false;
  for (uint32_t i = 0; i < lane->stream_count; i++)
    if (lane->streams[i] && lane->streams[i]->sealed)
      left |= sealed_trim(lane->streams[i]);
  return left;
}

enum trim_left tcp_trim(struct lane *lane) {
  uint64_t keep = blocks_keep(&lane->blocks, *lane->options.look);
  uint64_t size = 1, done = 0;
  for (int n = 0; n < STEP_BLOCKS && size > 0 && done < STEP_BYTES; n++)
    done += size = give_back(lane, keep);
  if (size > 0)
    return TRIM_MORE;
  bool some = lane->blocks.warm + lane->blocks.live > 0;
  return streams_trim(lane) || some ? TRIM_SOME : TRIM_NOTHING;
}

uint64_t tcp_kept(const struct lane *lane) {
  uint64_t kept = lane->blocks.warm;
  for (uint32_t i = 0; i < lane->stream_count; i++)
    if (lane->streams[i] && lane->streams[i]->sealed)
      kept += sealed_kept(lane->streams[i]);
  return kept;
}

void tcp_unloan(struct lane *lane, const struct source *source) {
  blocks_give(&lane->blocks, source->address);
}

/* A loan has no source of its own: it is exposed as any other memory. */
bool tcp_loaned(struct lane *lane, const uint8_t *pointer, uint64_t length,
                struct source *source) {
  (void)lane, (void)pointer, (void)length, (void)source;
  return false;
}

const uint8_t *tcp_view(struct lane *lane, const struct source *source) {
  (void)lane, (void)source;
  return NULL;
}

void tcp_loans_close(struct lane *lane) {
  if (!lane->arena)
    return;
  guarded_unmap(lane->arena, lane->arena_length);
  blocks_close(&lane->blocks);
}
