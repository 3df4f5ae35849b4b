/* SPDX-License-Identifier: Apache-2.0
 *
 * worlds.h - runs simulated worlds: those of the first seeds, the same in each
 * run, and fresh ones of each day. They run in child processes, as many at once
 * as there are cores, so that one that dies or hangs is told with its seed, and
 * the others go on.
 *
 * PERIGEE_SEED=n runs that one alone, here, and tells all that happens in it.
 * PERIGEE_SEEDS=n-m runs these.
 */
#ifndef WORLDS_H
#define WORLDS_H

#include <stdbool.h>
#include <stdint.h>

/* Runs the world of a seed; exits with 1, and says why, if a property does not
 * hold. */
typedef void world_run(uint64_t seed);

/* Runs the worlds of a run, and returns how many of them fail. */
int worlds_run(world_run *run);
/* Does any of these fail, rather than die? Says nothing. */
bool worlds_fail(world_run *run, uint64_t first, uint64_t last);
/* Returns the seed of the world that is to be run alone, or 0. */
uint64_t worlds_alone(void);

/* Random numbers that a state determines. */
uint64_t dice_next(uint64_t *state);
uint64_t dice_below(uint64_t *state, uint64_t n);
bool dice_happens(uint64_t *state, double chance);

#endif
