/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.h - what an engine has of the world by its options: time and
 * randomness; and whether it is this process's at all.
 */
#ifndef CLOCK_H
#define CLOCK_H

#include <stdbool.h>
#include <stdint.h>

struct perigee_engine;

/* Reads the clock, and keeps what it says in engine->now. Nanoseconds. */
int64_t engine_clock(struct perigee_engine *engine);
uint64_t engine_random(struct perigee_engine *engine);
/* False in a child process made by fork: the engine is its parent's. */
bool engine_alive(const struct perigee_engine *engine);

#endif
