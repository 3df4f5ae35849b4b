/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.c - an engine's private memory for what arrives: blocks of the pool,
 * scratch for typed heads of one poll, and parts.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "progress.h"

enum { POOL_KEEP = 64 << 20 };

uint8_t *pool_take(struct perigee_engine *engine, uint64_t length) {
  int64_t offset = blocks_take(&engine->pool, length ? length : 1);
  engine->counters.pooled = engine->pool.live;
  return offset < 0 ? NULL : engine->pool_memory + offset;
}

void pool_give(struct perigee_engine *engine, uint8_t *block) {
  if (!block)
    return;
  uint64_t idle, size;
  blocks_give(&engine->pool, (uint64_t)(block - engine->pool_memory));
  while ((size = blocks_idle(&engine->pool, POOL_KEEP, &idle)) > 0)
    if (fabrics_forget(engine, &engine->pool_area, idle, size))
      madvise(engine->pool_memory + idle, size, MADV_DONTNEED);
  engine->counters.pooled = engine->pool.live;
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
