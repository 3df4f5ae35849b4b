/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.h - who has an engine. Without a thread of its own (options.progress)
 * that is the program, always, and all there is here is one branch at the
 * beginning of each public function. With one the two take turns by a lock:
 * every public function that touches an engine begins with ENTER or LOOK, or,
 * where each instruction counts, with SHARED, and has the engine until it
 * returns; perigee_wait has it, by progress_wait and progress_back, even while
 * it sleeps. progress.c tells what the thread does.
 */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "core.h"

struct progress;

/* Starts the thread, as the last thing of an opening; ends it, before all else
 * of a closing. */
int progress_open(struct perigee_engine *engine);
void progress_close(struct perigee_engine *engine);

enum entry {
  ENTRY_LOOK, /* changes nothing that the thread has to know of, */
  ENTRY_STIR, /* may give it something to do, */
  ENTRY_POLL  /* and ends the life of what events point to */
};

/* By the program: takes the engine; false: it belongs to the parent process. */
bool progress_take(struct perigee_engine *engine, enum entry entry);
void progress_give(struct perigee_engine *engine);
/* From here on, until it is back, the program waits for events by itself. */
void progress_wait(struct perigee_engine *engine);
void progress_back(struct perigee_engine *engine);
/* The program sleeps by the engine's descriptor, which has to tell of events
 * that the thread finds. */
void progress_promise(struct perigee_engine *engine);
int progress_fd(const struct perigee_engine *engine);
/* A call that the program answers: it may still look at bytes that it was shown
 * of it. keeps: then it is free later. */
bool progress_shown(const struct operation *op);
bool progress_keeps(struct operation *op);

#define UNLIKELY(what) __builtin_expect((what), 0)

static inline struct perigee_engine *
entry_begin(const struct perigee_engine *of, enum entry entry) {
  struct perigee_engine *engine = (struct perigee_engine *)(uintptr_t)of;
  return UNLIKELY(engine->shared) && progress_take(engine, entry) ? engine
                                                                  : NULL;
}

static inline void entry_end(struct perigee_engine **engine) {
  if (UNLIKELY(*engine != NULL))
    progress_give(*engine);
}

#define ENTRY(engine, kind)                                                    \
  struct perigee_engine *entered __attribute__((cleanup(entry_end), unused)) = \
      entry_begin(engine, kind)
#define LOOK(engine) ENTRY(engine, ENTRY_LOOK)
#define ENTER(engine) ENTRY(engine, ENTRY_STIR)

/* For functions of which each instruction counts: the body of one beside them
 * that takes the engine and calls them. "of" names the engine. */
#define SHARED(engine) UNLIKELY((engine)->shared)
#define BESIDE __attribute__((noinline, cold)) static int
#define WITHIN(of, kind, call)                                                 \
  struct perigee_engine *entered = (of);                                       \
  bool taken = progress_take(entered, kind);                                   \
  int result = (call);                                                         \
  if (taken)                                                                   \
    progress_give(entered);                                                    \
  return result

#endif
