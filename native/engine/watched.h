/* SPDX-License-Identifier: Apache-2.0
 *
 * watched.h - descriptors of the program that an engine watches
 * (perigee_watch). watched.c has their state machine.
 */
#ifndef WATCHED_H
#define WATCHED_H

#include <stdbool.h>

#include "base/machine.h"

struct perigee_engine;

extern const struct machine watched_machine;

/* Called before each look at epoll: watches again what the program was told of,
 * if this poll is the program's and ends the life of what it was shown. */
void watched_rearm(struct perigee_engine *engine);
/* Gives READY to the current poll as far as there is room. True: there are
 * more. */
bool watched_give(struct perigee_engine *engine);
void watched_close(struct perigee_engine *engine);

#endif
