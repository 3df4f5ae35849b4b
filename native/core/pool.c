/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.c - an engine's private memory for what arrives: blocks of the pool,
 * scratch memory for the typed heads of one poll, and parts of operations; and
 * giving memory that a flood left behind back to the system.
 *
 * Giving back. A timer runs only while there is something to look at. Steps are
 * short (some milliseconds at most) and follow each other after SOON:
 *
 *   the pool       free blocks that nobody took between two looks, and half of
 *                  those that nobody took since the last look
 *   lanes          what they keep for blocks and in buffers, if that was not
 *                  used between looks
 *   operations     the unused end of their table; low numbers are handed out
 *                  first (operation.c)
 *   malloc's heap  what it keeps of sessions, once only few more of them end.
 *                  The call for that may take any time, so it is made before a
 *                  sleep, or one look later if the engine does not sleep
 *
 * So memory that is used now and then stays, and a second after a flood little
 * is left.
 */
#include "pool.h"

#include <limits.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fabrics.h"
#include "host/adopted.h"
#include "lock.h"

enum { POOL_KEEP = 64 << 20 };

/* A block counts, from when it is promised, by the pages that its content can
 * fill. The rest of the block up to a power of two is address space that is
 * never touched. */
static uint64_t pool_pages(uint64_t length) {
  const uint64_t page = UINT64_C(1) << BLOCKS_SHIFT;
  return length <= page ? 1 : (length + page - 1) >> BLOCKS_SHIFT;
}

uint8_t *pool_take(struct perigee_session *session, uint64_t length) {
  struct perigee_engine *engine = session->engine;
  uint64_t count = pool_pages(length), bytes = count << BLOCKS_SHIFT;
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
  engine->counters->pooled += bytes;
  return engine->pool_memory + offset;
}

/* While more than keep bytes are warm, gives free blocks back to the system: at
 * most so many blocks, and at most so many bytes and one block more. True:
 * there is more to give back. */
static bool pool_shrink(struct perigee_engine *engine, uint64_t keep, int most,
                        uint64_t bytes) {
  uint64_t idle, size = 1, done = 0;
  for (; most > 0 && size > 0 && done < bytes; most--, done += size) {
    size = blocks_idle(&engine->pool, keep, &idle);
    if (size > 0 && fabrics_forget(engine, &engine->pool_area, idle, size))
      adopted_empty(engine->pool_memory + idle, size);
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
  engine->counters->pooled -= bytes;
  pool_shrink(engine, POOL_KEEP, INT_MAX, UINT64_MAX);
  if (engine->pool.warm > POOL_LOW)
    trim_begin(engine);
}

void perigee_pool_free(struct perigee_engine *engine, uint8_t *landed) {
  LOOK(engine);
  if (landed)
    pool_give(engine, landed);
}

uint8_t *scratch_copy(const struct operation *op, const uint8_t *bytes,
                      uint64_t length) {
  struct perigee_engine *engine = op->engine;
  const uint64_t size = engine->options.ring;
  uint64_t need = (length + 7) & ~UINT64_C(7);
  bool later = engine->keeps_events && engine->joined != op;
  if (later || need > size - engine->scratch_used)
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

/* ---- Giving memory back -------------------------------------------------- */

/* BLOCKS, OPERATIONS, LANES, BYTES: the most of one step. MANY: ended sessions
 * after which the heap is trimmed; RUSH: so many between two looks put it
 * off. */
enum { BLOCKS = 512, OPERATIONS = 4096, LANES = 256, MANY = 64, RUSH = 32 };
enum { PAGE = 4096, BYTES = 8 << 20 };
static const int64_t EVERY = 250 * 1000000, SOON = 5 * 1000000; /* ns */

static bool pool_trims(struct perigee_engine *engine) {
  struct blocks *pool = &engine->pool;
  uint64_t keep = blocks_keep(pool, engine->trim.look);
  return pool->warm > POOL_LOW && pool_shrink(engine, keep, BLOCKS, BYTES);
}

/* *given grows by the bytes that go back. */
static enum trim_left lane_trims(struct perigee_session *s, uint64_t *given) {
  if (s->state != PERIGEE_SESSION_OPEN)
    return TRIM_NOTHING;
  const struct transport_kept *kept = lane_table(s->lane)->kept;
  uint64_t had = kept->bytes(s->lane);
  enum trim_left left = kept->trim(s->lane);
  uint64_t has = kept->bytes(s->lane); /* more, if it let go of blocks */
  *given += had > has ? had - has : 0;
  s->counters->kept = has;
  return left;
}

/* Trims each lane once for each look, in several steps if needed. */
static bool lanes_trim(struct perigee_engine *engine) {
  struct trim *e = &engine->trim;
  uint64_t given = 0;
  for (int n = 0; n < LANES && given < BYTES && e->left > 0 && e->count > 0;
       n++, e->left--) {
    struct perigee_session *s =
        CONTAINER(e->keepers.next, struct perigee_session, account.keeper);
    enum trim_left left = lane_trims(s, &given);
    if (left == TRIM_MORE)
      return true;
    list_remove(&s->account.keeper);
    list_append(&e->keepers, &s->account.keeper);
    if (left == TRIM_NOTHING)
      trim_forget(s);
  }
  return e->left > 0 && e->count > 0;
}

/* Removes the last operation of the table. Its generation continues when the
 * entry is made again, so a late reply does not fit it. An operation that still
 * has a block is kept, as the program may read that (served_late). */
static bool table_retire(struct perigee_engine *engine) {
  struct operation *op = &engine->table[engine->table_used - 1];
  if (op->kind || op->session || op->block || op->fresh)
    return false;
  list_remove(&op->queue);
  engine->generations[--engine->table_used] = op->generation;
  return true;
}

static bool table_trims(struct perigee_engine *engine) {
  uint32_t had = engine->table_used, n = 0;
  while (n < OPERATIONS && engine->table_used > OPERATIONS_LOW &&
         table_retire(engine))
    n++;
  const uintptr_t page = PAGE - 1;
  uintptr_t from =
      ((uintptr_t)&engine->table[engine->table_used] + page) & ~page;
  uintptr_t to = ((uintptr_t)&engine->table[had] + page) & ~page;
  if (from < to)
    madvise((void *)from, to - from, MADV_DONTNEED);
  return n == OPERATIONS;
}

static void trim_heap(struct trim *e) {
  malloc_trim(0);
  e->ended = 0;
  e->heap_due = false;
}

static void heap_trims(struct perigee_engine *engine) {
  struct trim *e = &engine->trim;
  bool calm = e->ended >= MANY && e->ended - e->seen < RUSH;
  if (e->heap_due)
    trim_heap(e);
  else
    e->heap_due = calm;
  e->seen = e->ended;
}

void trim_sleeps(struct perigee_engine *engine) {
  if (engine->trim.heap_due)
    trim_heap(&engine->trim);
}

static void trim_set(struct perigee_engine *engine, int64_t pause) {
  timers_add(&engine->timers, &engine->trim.timer, engine->now + pause);
}

static void trim_look(struct perigee_engine *engine) {
  engine->trim.look++;
  engine->trim.left = engine->trim.count;
  heap_trims(engine);
}

static void trim_due(struct timer *timer) {
  struct perigee_engine *engine =
      CONTAINER(timer, struct perigee_engine, trim.timer);
  struct trim *e = &engine->trim;
  if (!e->soon)
    trim_look(engine);
  e->soon = pool_trims(engine);
  e->soon |= table_trims(engine);
  e->soon |= lanes_trim(engine);
  if (e->soon)
    trim_set(engine, SOON);
  else if (engine->pool.warm > POOL_LOW || e->ended >= MANY || e->count > 0 ||
           engine->table_used > OPERATIONS_LOW)
    trim_set(engine, EVERY);
}

void trim_begin(struct perigee_engine *engine) {
  if (engine->trim.timer.next)
    return;
  engine->trim.timer.expired = trim_due;
  engine->pool.low = engine->pool.warm;
  engine->trim.soon = false;
  trim_set(engine, EVERY);
}

void trim_keeps(struct perigee_session *s) {
  struct trim *e = &s->engine->trim;
  if (s->account.keeper.next)
    return;
  list_append(&e->keepers, &s->account.keeper);
  e->count++;
  trim_begin(s->engine);
}

void trim_forget(struct perigee_session *s) {
  if (!s->account.keeper.next)
    return;
  list_remove(&s->account.keeper);
  s->engine->trim.count--;
}

void trim_ended(struct perigee_engine *engine) {
  if (++engine->trim.ended >= MANY)
    trim_begin(engine);
}
