/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.c - an engine's private memory for what arrives: blocks of the pool,
 * scratch memory for the typed heads of one poll, and parts of operations.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "trim.h"
#include "fabrics.h"
#include "lock.h"
#include "pool.h"

enum { POOL_KEEP = 64 << 20 };

/* A block counts, from when it is promised, by the pages that its content can
 * fill. The rest of the block up to a power of two is address space that is
 * never touched. */
static uint64_t pages(uint64_t length) {
  const uint64_t page = UINT64_C(1) << BLOCKS_SHIFT;
  return length <= page ? 1 : (length + page - 1) >> BLOCKS_SHIFT;
}

uint8_t *pool_take(struct perigee_session *session, uint64_t length) {
  struct perigee_engine *engine = session->engine;
  uint64_t count = pages(length), bytes = count << BLOCKS_SHIFT;
  if (length > engine->options.pool ||
      !share_take(session->account.share, SHARE_POOLED, bytes))
    return NULL;
  int64_t offset = blocks_take(&engine->pool, bytes);
  if (offset < 0) {
    share_give(session->account.share, SHARE_POOLED, bytes);
    return NULL;
  }
  blocks_note(
      &engine->pool, (uint64_t)offset,
      (struct blocks_note){session->account.share->index, (uint32_t)count});
  engine->counters.pooled += bytes;
  return engine->pool_memory + offset;
}

bool pool_shrink(struct perigee_engine *engine, uint64_t keep, int most,
                 uint64_t bytes) {
  uint64_t idle, size = 1, done = 0;
  for (; most > 0 && size > 0 && done < bytes; most--, done += size) {
    size = blocks_idle(&engine->pool, keep, &idle);
    if (size > 0 && fabrics_forget(engine, &engine->pool_area, idle, size))
      madvise(engine->pool_memory + idle, size, MADV_DONTNEED);
  }
  return size > 0;
}

void pool_give(struct perigee_engine *engine, uint8_t *block) {
  if (!block)
    return;
  uint64_t offset = (uint64_t)(block - engine->pool_memory);
  struct blocks_note note = blocks_noted(&engine->pool, offset);
  if (blocks_give(&engine->pool, offset) < 0)
    return;
  uint64_t bytes = (uint64_t)note.pages << BLOCKS_SHIFT;
  shares_unpool(&engine->shares, note.owner, bytes);
  engine->counters.pooled -= bytes;
  pool_shrink(engine, POOL_KEEP, INT_MAX, UINT64_MAX);
  if (engine->pool.warm > POOL_LOW)
    trim_begin(engine);
}

void perigee_pool_free(struct perigee_engine *engine, uint8_t *landed) {
  LOOK(engine);
  if (landed)
    pool_give(engine, landed);
}

uint8_t *scratch_copy(struct perigee_engine *engine, const uint8_t *bytes,
                      uint64_t length) {
  const uint64_t size = engine->options.ring;
  uint64_t need = (length + 7) & ~UINT64_C(7);
  if (engine->aside || need > size - engine->scratch_used)
    return NULL;
  uint8_t *at = engine->scratch + engine->scratch_used;
  memcpy(at, bytes, length);
  engine->scratch_used += need;
  return at;
}

struct part *part_take(struct perigee_engine *engine) {
  struct part *part = engine->parts;
  if (!part)
    return calloc(1, sizeof *part);
  engine->parts = part->free;
  memset(part, 0, sizeof *part);
  return part;
}

void part_give(struct perigee_engine *engine, struct part *part) {
  part->free = engine->parts;
  engine->parts = part;
}
