/* SPDX-License-Identifier: Apache-2.0
 *
 * polling.h - polls and waits of an engine.
 */
#ifndef POLLING_H
#define POLLING_H

#include "core/engine.h"

/* ---- poll.c -------------------------------------------------------------- */
/* keep: what earlier polls handed out stays valid. */
int engine_poll(struct perigee_engine *engine, struct perigee_event *events,
                int capacity, bool keep);
/* A poll by the engine's thread: events wait for the program, and what the
 * program was handed stays valid. Returns whether anything happened. */
bool engine_progress(struct perigee_engine *engine);

/* ---- wait.c -------------------------------------------------------------- */
/* Asks peers to wake this side from here on. */
void engine_arm(struct perigee_engine *engine);
/* Returns for how long the engine may sleep, at most timeout. */
int64_t engine_nap(struct perigee_engine *engine, int64_t timeout);

/* ---- schedule.c: which sessions a poll looks at -------------------------- */
void schedule_poll(struct perigee_engine *engine);
/* Arms the lanes of all sessions but the parked ones, which are armed
 * already. */
void schedule_arm(struct perigee_engine *engine);
void schedule_disarm(struct perigee_engine *engine);

#endif
