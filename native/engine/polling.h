/* SPDX-License-Identifier: Apache-2.0
 *
 * polling.h - what an engine does in a poll, and before a sleep (poll.c); its
 * own thread (progress.c); and descriptors that the program watches
 * (watched.c).
 */
#ifndef POLLING_H
#define POLLING_H

#include <stdbool.h>

#include "base/machine.h"
#include "core/engine.h"
#include "core/lock.h"

/* keep: what earlier polls handed out stays valid. */
int engine_poll(struct perigee_engine *engine, struct perigee_event *events,
                int capacity, bool keep);
/* While engine->keeps_events is set, polls give no events (and get none to
 * fill): events wait in the engine's lists. engine_give gives that of one
 * operation which has one. engine_end_given ends the life of what earlier polls
 * handed out, as a poll that does not keep it. */
void engine_give(struct perigee_engine *engine, struct operation *op,
                 struct perigee_event *event);
void engine_end_given(struct perigee_engine *engine);
/* Gives events that earlier polls have found, and looks for no more; returns
 * their number. What was handed out before stays valid. */
int engine_give_ready(struct perigee_engine *engine,
                      struct perigee_event *events, int capacity);
/* Keeps the event that a wait has found, for the joins that follow. Functions
 * that submit an operation and join it ask this first: a join that fails for it
 * leaves the operation under way, whose number they alone know. NO_MEMORY. */
int engine_keep_found(struct perigee_engine *engine);
/* A poll by the engine's thread: events wait for the program, and what the
 * program was handed stays valid. Returns whether anything happened. */
bool engine_progress(struct perigee_engine *engine);

/* Starts the timers of operations that began since the clock was read, in their
 * order, except that an entry which was used twice meanwhile keeps its place. */
void engine_start_timers(struct perigee_engine *engine);
/* Asks peers to wake this side from here on. */
void engine_arm(struct perigee_engine *engine);
/* The program polls again. */
void engine_disarm(struct perigee_engine *engine);
/* Returns for how long the engine may sleep, at most timeout. */
int64_t engine_nap(struct perigee_engine *engine, int64_t timeout);

/* ---- The engine's own thread --------------------------------------------- */

/* options.progress. progress.c describes it. */
struct progress;

/* open starts the thread, as the last step of opening an engine; close ends it,
 * as the first step of closing. */
int progress_open(struct perigee_engine *engine);
void progress_close(struct perigee_engine *engine);

/* Between wait and back the program waits for events, and the thread rests. */
void progress_wait(struct perigee_engine *engine);
void progress_back(struct perigee_engine *engine);
/* The program sleeps by the engine's descriptor: from here on that becomes
 * readable when the thread finds an event. */
void progress_promise(struct perigee_engine *engine);
int progress_fd(const struct perigee_engine *engine);

/* ---- Descriptors that the program watches -------------------------------- */

/* perigee_watch. watched.c has their state machine. */
extern const struct machine watched_machine;

/* Called before each look at epoll: watches again what the program was told of,
 * if this poll is the program's and ends the life of what it was shown. */
void watched_rearm(struct perigee_engine *engine);
/* Gives READY to the current poll as far as there is room. True: there are
 * more. */
bool watched_give(struct perigee_engine *engine);
void watched_close(struct perigee_engine *engine);

#endif
