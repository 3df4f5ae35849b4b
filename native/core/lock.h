/* SPDX-License-Identifier: Apache-2.0
 *
 * lock.h - who has an engine. Without a thread of its own (options.progress)
 * that is the program, always, and all there is here is one branch at the
 * beginning of each public function. With one the two take turns by a lock:
 * every public function that touches an engine begins with ENTER or LOOK, or,
 * where each instruction counts, with SHARED, and has the engine until it
 * returns; perigee_wait has it even while it sleeps (progress.h).
 */
#ifndef LOCK_H
#define LOCK_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine.h"

enum entry {
  ENTRY_LOOK, /* changes nothing that the thread has to know of, */
  ENTRY_WORK, /* may give it something to do, */
  ENTRY_POLL  /* and ends the life of what events point to */
};

/* Of an engine with a thread. */
struct lock {
  pthread_mutex_t mutex; /* of the engine, and of what follows; recursive */
  bool polling; /* the program has it, and ends the life of what it was shown */
  bool waiting; /* the program is in perigee_wait: it has the engine, locked or
                   not */
  /* The thread's: the program has come, and has the lock. */
  void (*entered)(struct lock *lock, enum entry entry);
  /* The program waits for it. Last: it is written without the lock, and GCC reads
   * flags that stand beside each other as one word. */
  atomic_bool wanted;
};

int lock_open(struct lock *lock);
/* Takes it, before the thread does if both want it. */
void lock_wait(struct lock *lock);
/* By the program: takes the engine; false: it belongs to the parent process. */
bool lock_take(struct perigee_engine *engine, enum entry entry);
void lock_give(struct perigee_engine *engine);

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

#define ENTRY(engine, kind)                                                    \
  struct perigee_engine *entered __attribute__((cleanup(entry_end), unused)) = \
      entry_begin(engine, kind)
#define LOOK(engine) ENTRY(engine, ENTRY_LOOK)
#define ENTER(engine) ENTRY(engine, ENTRY_WORK)

/* For functions of which each instruction counts: the body of one beside them
 * that takes the engine and calls them. "of" names the engine. */
#define SHARED(engine) UNLIKELY((engine)->shared)
#define BESIDE __attribute__((noinline, cold)) static int
#define WITHIN(of, kind, call)                                                 \
  struct perigee_engine *entered = (of);                                       \
  bool taken = lock_take(entered, kind);                                       \
  int result = (call);                                                         \
  if (taken)                                                                   \
    lock_give(entered);                                                        \
  return result

#endif
