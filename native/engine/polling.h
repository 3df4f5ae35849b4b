/* SPDX-License-Identifier: Apache-2.0
 *
 * polling.h - polls and waits of an engine.
 */
#ifndef POLLING_H
#define POLLING_H

#include "core/engine.h"

/* ---- poll.c --------------------------------------------------------------- */
/* keep: what was handed out before stays valid. */
int engine_poll(struct perigee_engine *engine, struct perigee_event *events,
                int capacity, bool keep);
/* What a poll does, by the engine's thread: events wait for the program, and
 * all that it was handed stays valid. Did anything happen? */
bool engine_progress(struct perigee_engine *engine);

/* ---- wait.c --------------------------------------------------------------- */
/* Peers wake us from here on. */
void engine_arm(struct perigee_engine *engine);
/* How long may be slept, at most timeout? */
int64_t engine_nap(struct perigee_engine *engine, int64_t timeout);

/* ---- schedule.c: of sessions ------------------------------------------------- */
void schedule_poll(struct perigee_engine *engine);
/* The lanes of all that are not parked, which are armed already. */
void schedule_arm(struct perigee_engine *engine);
void schedule_disarm(struct perigee_engine *engine);

#endif
