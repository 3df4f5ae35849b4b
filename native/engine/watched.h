/* SPDX-License-Identifier: Apache-2.0
 *
 * watched.h - descriptors of the program's own that an engine watches
 * (perigee_watch). watched.c has their state machine.
 */
#ifndef WATCHED_H
#define WATCHED_H

#include <stdbool.h>

#include "base/machine.h"

struct perigee_engine;

extern const struct machine watched_machine;

/* Before each look at epoll: those that the program was told of are watched
 * again, if this poll is the program's and ends what it was shown. */
void watched_rearm(struct perigee_engine *engine);
/* Gives READY to the poll under way as far as there is room. True: there are
 * more. */
bool watched_give(struct perigee_engine *engine);
void watched_close(struct perigee_engine *engine);

#endif
