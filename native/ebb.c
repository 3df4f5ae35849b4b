/* SPDX-License-Identifier: Apache-2.0
 *
 * ebb.c - what a flood leaves behind goes back to the system, in small steps on
 * a timer that runs only while there is something to look at:
 *
 *   the pool       half of the free blocks that nobody took since the last look
 *   operations     the end of their table, where none is in use: low ones are
 *                  handed out first (operation.c)
 *   malloc's       what it keeps of sessions, once few more of them end
 *
 * So what is in use by turns stays, and a second after a flood little is left.
 */
#include <malloc.h>
#include <sys/mman.h>

#include "core.h"

/* Blocks and operations of a step; ended sessions that are worth a look at all
 * that malloc has, and so many between two looks that it had better wait. */
enum { BLOCKS = 512, OPERATIONS = 4096, MANY = 64, RUSH = 32, PAGE = 4096 };
static const int64_t EVERY = 200 * 1000000, SOON = 10 * 1000000; /* ns */

static bool pool_ebbs(struct perigee_engine *engine) {
  struct blocks *pool = &engine->pool;
  uint64_t keep = pool->warm - pool->low / 2;
  bool more = pool->low > POOL_LOW && pool_shrink(engine, keep, BLOCKS);
  pool->low = pool->warm;
  return more;
}

/* Its number starts again where it was: no reply to an older one fits it. */
static bool retire(struct perigee_engine *engine) {
  struct operation *op = &engine->table[engine->table_used - 1];
  if (op->kind || op->session)
    return false;
  list_remove(&op->queue);
  engine->generations[--engine->table_used] = op->generation;
  return true;
}

static bool table_ebbs(struct perigee_engine *engine) {
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

static void heap_ebbs(struct perigee_engine *engine) {
  struct ebb *e = &engine->ebb;
  if (e->ended >= MANY && e->ended - e->seen < RUSH) {
    malloc_trim(0);
    e->ended = 0;
  }
  e->seen = e->ended;
}

static void set(struct perigee_engine *engine, int64_t pause) {
  timers_add(&engine->timers, &engine->ebb.timer, engine->now + pause);
}

void ebb_begin(struct perigee_engine *engine) {
  if (engine->ebb.timer.next)
    return;
  engine->pool.low = engine->pool.warm;
  set(engine, EVERY);
}

void ebb_ended(struct perigee_engine *engine) {
  if (++engine->ebb.ended >= MANY)
    ebb_begin(engine);
}

void ebb_due(struct perigee_engine *engine) {
  bool more = pool_ebbs(engine);
  more |= table_ebbs(engine);
  heap_ebbs(engine);
  if (more)
    set(engine, SOON);
  else if (engine->pool.warm > POOL_LOW || engine->ebb.ended >= MANY ||
           engine->table_used > OPERATIONS_LOW)
    set(engine, EVERY);
}
