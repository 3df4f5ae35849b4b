/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.h - an engine's thread of its own (options.progress); progress.c tells
 * what it does.
 */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "core/lock.h"

struct progress;

/* Starts the thread, as the last thing of an opening; ends it, before all else
 * of a closing. */
int progress_open(struct perigee_engine *engine);
void progress_close(struct perigee_engine *engine);

/* From here on, until it is back, the program waits for events by itself. */
void progress_wait(struct perigee_engine *engine);
void progress_back(struct perigee_engine *engine);
/* The program sleeps by the engine's descriptor, which has to tell of events
 * that the thread finds. */
void progress_promise(struct perigee_engine *engine);
int progress_fd(const struct perigee_engine *engine);

#endif
