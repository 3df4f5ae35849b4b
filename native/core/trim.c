/* SPDX-License-Identifier: Apache-2.0
 *
 * trim.c - what a flood leaves behind goes back to the system, by looks on a timer
 * that runs only while there is something to look at, and in steps that are
 * short (some milliseconds at most), SOON one after the other:
 *
 *   the pool       free blocks that nobody took between two looks, and half of
 *                  those that nobody took since the last
 *   lanes          what they keep for blocks, if none was used between two looks
 *   operations     the end of their table, where none is in use: low ones are
 *                  handed out first (operation.c)
 *   malloc's       what it keeps of sessions, once few more of them end. That is
 *                  one call, however long it takes: so it is made before a
 *                  sleep, when nobody waits, or, if there is none, one look later
 *
 * So what is in use by turns stays, and a second after a flood little is left.
 */
#include <malloc.h>
#include <sys/mman.h>

#include "trim.h"
#include "pool.h"

/* Of a step: blocks, operations, lanes. Ended sessions that are worth a look at
 * all that malloc has, and so many between two looks that it had better wait. */
enum { BLOCKS = 512, OPERATIONS = 4096, LANES = 256, MANY = 64, RUSH = 32 };
enum { PAGE = 4096, BYTES = 8 << 20 };
static const int64_t EVERY = 250 * 1000000, SOON = 5 * 1000000; /* ns */

static bool pool_trims(struct perigee_engine *engine) {
  struct blocks *pool = &engine->pool;
  uint64_t keep = blocks_keep(pool, engine->trim.look);
  return pool->warm > POOL_LOW && pool_shrink(engine, keep, BLOCKS, BYTES);
}

/* Each has each look once, in several steps if it has to be. */
static bool lanes_trim(struct perigee_engine *engine) {
  struct trim *e = &engine->trim;
  for (int n = 0; n < LANES && e->left > 0 && e->count > 0; n++, e->left--) {
    struct perigee_session *s =
        CONTAINER(e->keepers.next, struct perigee_session, keeper);
    bool open = s->state == PERIGEE_SESSION_OPEN;
    enum trim_left left =
        open ? lane_table(s->lane)->kept->trim(s->lane) : TRIM_NOTHING;
    if (left == TRIM_MORE)
      return true;
    list_remove(&s->keeper);
    list_append(&e->keepers, &s->keeper);
    if (left == TRIM_NOTHING)
      trim_forget(s);
  }
  return e->left > 0 && e->count > 0;
}

/* Its number starts again where it was: no reply to an older one fits it. One
 * that has a block still is kept for who may look into that (served_late). */
static bool retire(struct perigee_engine *engine) {
  struct operation *op = &engine->table[engine->table_used - 1];
  if (op->kind || op->session || op->block)
    return false;
  list_remove(&op->queue);
  engine->generations[--engine->table_used] = op->generation;
  return true;
}

static bool table_trims(struct perigee_engine *engine) {
  uint32_t had = engine->table_used, n = 0;
  while (n < OPERATIONS && engine->table_used > OPERATIONS_LOW &&
         retire(engine))
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

static void set(struct perigee_engine *engine, int64_t pause) {
  timers_add(&engine->timers, &engine->trim.timer, engine->now + pause);
}

static void look(struct perigee_engine *engine) {
  engine->trim.look++;
  engine->trim.left = engine->trim.count;
  heap_trims(engine);
}

static void due(struct timer *timer) {
  struct perigee_engine *engine =
      CONTAINER(timer, struct perigee_engine, trim.timer);
  struct trim *e = &engine->trim;
  if (!e->soon)
    look(engine);
  e->soon = pool_trims(engine);
  e->soon |= table_trims(engine);
  e->soon |= lanes_trim(engine);
  if (e->soon)
    set(engine, SOON);
  else if (engine->pool.warm > POOL_LOW || e->ended >= MANY || e->count > 0 ||
           engine->table_used > OPERATIONS_LOW)
    set(engine, EVERY);
}

void trim_begin(struct perigee_engine *engine) {
  if (engine->trim.timer.next)
    return;
  engine->trim.timer.expired = due;
  engine->pool.low = engine->pool.warm;
  engine->trim.soon = false;
  set(engine, EVERY);
}

void trim_keeps(struct perigee_session *s) {
  struct trim *e = &s->engine->trim;
  if (s->keeper.next)
    return;
  list_append(&e->keepers, &s->keeper);
  e->count++;
  trim_begin(s->engine);
}

void trim_forget(struct perigee_session *s) {
  if (!s->keeper.next)
    return;
  list_remove(&s->keeper);
  s->engine->trim.count--;
}

void trim_ended(struct perigee_engine *engine) {
  if (++engine->trim.ended >= MANY)
    trim_begin(engine);
}
