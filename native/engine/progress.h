/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.h - an engine's own thread (options.progress). progress.c describes
 * it.
 */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "core/lock.h"

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

#endif
