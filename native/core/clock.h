/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.h - the engine's time and randomness, which its options may replace;
 * and whether the engine belongs to this process.
 */
#ifndef CLOCK_H
#define CLOCK_H

#include <stdbool.h>
#include <stdint.h>

struct perigee_engine;

/* Reads the clock, in nanoseconds, and keeps the time in engine->now. */
int64_t engine_clock(struct perigee_engine *engine);
/* This poll has copied so many bytes, or done what takes as long: true once
 * that has taken its time. spend also takes them from its budget. */
bool engine_overdue(struct perigee_engine *engine, uint64_t bytes);
void engine_spend(struct perigee_engine *engine, uint64_t bytes);
uint64_t engine_random(struct perigee_engine *engine);
/* False in a child made by fork: the engine belongs to the parent. */
bool engine_alive(const struct perigee_engine *engine);

#endif
