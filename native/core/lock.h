/* SPDX-License-Identifier: Apache-2.0
 *
 * lock.h - which thread owns an engine. Without a thread of its own
 * (options.progress) that is always the program, and each public function costs
 * one branch. With one, the program and the thread alternate by a lock: every
 * public function that touches an engine begins with ENTER or LOOK or, where
 * each instruction counts, with SHARED, and owns the engine until it returns.
 * perigee_wait owns it even while it sleeps (progress.c).
 */
#ifndef LOCK_H
#define LOCK_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine.h"

enum entry {
  ENTRY_LOOK, /* gives the thread nothing to do */
  ENTRY_WORK, /* may give the thread something to do */
  ENTRY_POLL  /* as WORK, and ends the life of what events point to */
};

/* The lock of an engine with a thread. */
struct lock {
  pthread_mutex_t mutex; /* of the engine and the fields below; recursive */
  bool polling;          /* the program owns it, and polls */
  bool waiting; /* the program is in perigee_wait, and owns the engine with or
                   without the mutex */
  /* Set by the thread; called when the program has come and has the lock. */
  void (*entered)(struct lock *lock, enum entry entry);
  /* The program waits for the lock. It is the last field, as it is written
   * without the lock, and GCC reads adjacent flags as one word. */
  atomic_bool wanted;
};

int lock_open(struct lock *lock);
/* Takes the lock; if the thread wants it too, the program gets it first. */
void lock_wait(struct lock *lock);
/* The program takes the engine. False: it belongs to the parent process. */
bool lock_take(struct perigee_engine *engine, enum entry entry);
void lock_give(struct perigee_engine *engine);

#define LIKELY(what) __builtin_expect((what), 1)
#define UNLIKELY(what) __builtin_expect((what), 0)

static inline struct perigee_engine *
entry_begin(const struct perigee_engine *of, enum entry entry) {
  struct perigee_engine *engine = (struct perigee_engine *)(uintptr_t)of;
  return UNLIKELY(engine->shared) && lock_take(engine, entry) ? engine : NULL;
}

static inline void entry_end(struct perigee_engine **engine) {
  if (UNLIKELY(*engine != NULL))
    lock_give(*engine);
}

/* Debug builds abort if two threads are in an engine at the same time that has
 * no thread of its own. A program may have its threads use it in turn. */
#ifdef PERIGEE_DEBUG
struct perigee_engine *alone_begin(const struct perigee_engine *of);
void alone_end(struct perigee_engine **engine);
#define ALONE(engine)                                                          \
  struct perigee_engine *alone __attribute__((cleanup(alone_end), unused)) =   \
      alone_begin(engine)
#else
#define ALONE(engine) (void)0
#endif

#define ENTRY(engine, kind)                                                    \
  ALONE(engine);                                                               \
  struct perigee_engine *entered __attribute__((cleanup(entry_end), unused)) = \
      entry_begin(engine, kind)
#define LOOK(engine) ENTRY(engine, ENTRY_LOOK)
#define ENTER(engine) ENTRY(engine, ENTRY_WORK)

/* For functions in which each instruction counts: the public one asks SHARED,
 * and if so calls one BESIDE the hot path, which takes the engine. */
#define SHARED(engine) UNLIKELY((engine)->shared)
#define BESIDE __attribute__((noinline, cold)) static int

#endif
