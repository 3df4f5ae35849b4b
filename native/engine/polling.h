/* SPDX-License-Identifier: Apache-2.0
 *
 * polling.h - what an engine does in a poll, and before a sleep (poll.c).
 */
#ifndef POLLING_H
#define POLLING_H

#include "core/engine.h"

/* keep: what earlier polls handed out stays valid. */
int engine_poll(struct perigee_engine *engine, struct perigee_event *events,
                int capacity, bool keep);
/* A poll by the engine's thread: events wait for the program, and what the
 * program was handed stays valid. Returns whether anything happened. */
bool engine_progress(struct perigee_engine *engine);

/* Asks peers to wake this side from here on. */
void engine_arm(struct perigee_engine *engine);
/* The program polls again. */
void engine_disarm(struct perigee_engine *engine);
/* Returns for how long the engine may sleep, at most timeout. */
int64_t engine_nap(struct perigee_engine *engine, int64_t timeout);

#endif
