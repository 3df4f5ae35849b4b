/* SPDX-License-Identifier: Apache-2.0
 *
 * common.c - what all that knows an engine uses of it: its time and randomness
 * and the sentence of what failed last (engine.h), and which thread owns it
 * (lock.h).
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

#include "base/status.h"
#include "engine.h"
#include "lock.h"
#include "stats_file.h"

/* ---- Time and randomness ------------------------------------------------- */

int64_t engine_default_clock(void *context) {
  struct timespec t;
  (void)context;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int engine_default_random(void *context, void *bytes, uint64_t length) {
  (void)context;
  return getrandom(bytes, length, 0) == (ssize_t)length ? PERIGEE_OK
                                                        : PERIGEE_SYSTEM;
}

bool engine_alive(const struct perigee_engine *engine) {
  return *(volatile const uint8_t *)engine->alive != 0;
}

const uint8_t *perigee_alive(const struct perigee_engine *engine) {
  return engine->alive;
}

int64_t engine_clock(struct perigee_engine *engine) {
  engine->away = false;
  engine->now = engine->options.clock(engine->options.context);
  stats_looked(engine);
  return engine->now;
}

static int64_t thread_time(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

void engine_begin_pieces(struct perigee_engine *engine) {
  struct budget *b = &engine->budget;
  if (b->looks > 0)
    budget_begin_own(b, thread_time(), engine->counters->polls);
}

bool engine_overdue(struct perigee_engine *engine, uint64_t bytes) {
  struct budget *b = &engine->budget;
  if (!budget_counts(b, bytes))
    return false;
  if (UNLIKELY(b->looks > 0))
    budget_look(b, thread_time(), engine->counters->polls);
  return budget_is_over(b, engine_clock(engine));
}

void engine_spend(struct perigee_engine *engine, uint64_t bytes) {
  uint64_t *left = &engine->budget.left;
  *left -= bytes < *left ? bytes : *left;
  if (engine_overdue(engine, bytes))
    *left = 0;
}

int64_t perigee_now(const struct perigee_engine *engine) {
  return engine->options.clock(engine->options.context);
}

uint64_t engine_random(struct perigee_engine *engine) {
  uint64_t value = 0;
  engine->options.random(engine->options.context, &value, sizeof value);
  return value;
}

/* ---- A status and its sentence ------------------------------------------- */

static bool fail_is_told(const struct perigee_engine *engine) {
  return engine && !engine_is_aside(engine);
}

int fail(struct perigee_engine *engine, int status, const char *format, ...) {
  va_list list;
  bool told = fail_is_told(engine);
  char *to = told ? engine->detail : detail_here();
  size_t room = told ? sizeof engine->detail : DETAIL;
  va_start(list, format);
  vsnprintf(to, room, format, list);
  va_end(list);
  return status;
}

int fail_missing(struct perigee_engine *engine, const char *what) {
  return fail(engine, PERIGEE_INVALID, "there is no %s: it is NULL", what);
}

const char *fail_detail(const struct perigee_engine *engine) {
  return fail_is_told(engine) ? engine->detail : detail_here();
}

const char *perigee_detail(const struct perigee_engine *engine) {
  return engine ? engine->detail : detail_here();
}

/* ---- Which thread owns it ------------------------------------------------ */

void lock_wait(struct lock *lock) {
  if (pthread_mutex_trylock(&lock->mutex) == 0)
    return;
  atomic_store(&lock->wanted, true);
  pthread_mutex_lock(&lock->mutex);
  atomic_store(&lock->wanted, false);
}

bool lock_take(struct perigee_engine *engine, enum entry entry) {
  struct lock *lock = engine->lock;
  if (!engine_alive(engine)) {
    engine->shared = false;
    return false;
  }
  lock_wait(lock);
  if (!engine_is_aside(
          engine)) /* the program reads this field without the lock */
    engine->shared = false;
  lock->polling = entry == ENTRY_POLL;
  lock->entered(lock, entry);
  return true;
}

void lock_give(struct perigee_engine *engine) {
  if (!engine_is_aside(engine))
    engine->shared = true;
  pthread_mutex_unlock(&engine->lock->mutex);
}

#ifdef PERIGEE_DEBUG

/* Its address tells a thread from all others. */
static __thread char thread_here;

/* Relaxed: it orders nothing, so that ThreadSanitizer still sees what is wrong. */
struct perigee_engine *alone_begin(const struct perigee_engine *of) {
  struct perigee_engine *engine = (struct perigee_engine *)(uintptr_t)of;
  const char *nobody = NULL;
  if (engine->thread || !engine_alive(engine))
    return NULL;
  if (!atomic_compare_exchange_strong_explicit(
          &engine->user, &nobody, &thread_here, memory_order_relaxed,
          memory_order_relaxed) &&
      nobody != &thread_here) {
    fprintf(stderr, "perigee: two threads use one engine at the same time\n");
    abort();
  }
  engine->uses++;
  return engine;
}

void alone_end(struct perigee_engine **of) {
  struct perigee_engine *engine = *of;
  if (engine && --engine->uses == 0)
    atomic_store_explicit(&engine->user, NULL, memory_order_relaxed);
}

#endif

int lock_open(struct lock *lock) {
  pthread_mutexattr_t recursive;
  if (pthread_mutexattr_init(&recursive) != 0)
    return PERIGEE_NO_MEMORY;
  pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
  int error = pthread_mutex_init(&lock->mutex, &recursive);
  pthread_mutexattr_destroy(&recursive);
  return error == 0 ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}
