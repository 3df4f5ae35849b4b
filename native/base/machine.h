/* SPDX-License-Identifier: Apache-2.0
 *
 * machine.h - state machines as tables. The table at the head of a file is
 * the one that runs: a step that it does not have aborts a debug build, and
 * in others leaves the state as it is.
 */
#ifndef MACHINE_H
#define MACHINE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "perigee.h"

enum { MACHINE_STATES = 16, MACHINE_EVENTS = 16 };

/* In a table: the state to go to. What is not named is forbidden. */
#define TO(state) ((state) + 1)

/* In a table: how often each step was taken, in debug builds. */
#ifdef PERIGEE_DEBUG
#define MACHINE_STEPS ((_Atomic uint64_t[MACHINE_STATES][MACHINE_EVENTS]){{0}})
#else
#define MACHINE_STEPS NULL
#endif

struct machine {
  const char *name;
  const char *states[MACHINE_STATES], *events[MACHINE_EVENTS];
  uint8_t next[MACHINE_STATES][MACHINE_EVENTS]; /* TO(state), or 0 */
  _Atomic uint64_t (*taken)[MACHINE_EVENTS];    /* MACHINE_STEPS */
};

void machine_forbidden(const struct machine *machine, uint8_t state,
                       uint8_t event);
void machine_count(const struct machine *machine, uint8_t state, uint8_t event);

/* Takes the step. */
static inline void machine_step(const struct machine *machine, uint8_t *state,
                                uint8_t event) {
  uint8_t to = machine->next[*state][event];
  if (!to) {
    machine_forbidden(machine, *state, event);
    return;
  }
#ifdef PERIGEE_DEBUG
  machine_count(machine, *state, event);
#endif
  *state = to - 1;
}

/* For the specs: "session", "call", "served", "transfer" or "watched", else
 * NULL. */
PERIGEE_API const struct machine *machine_find(const char *name);
/* For the specs, in debug builds: how often a step was taken, by all engines
 * of the process (relaxed counters; nothing depends on them). */
PERIGEE_API uint64_t machine_taken(const struct machine *machine, uint8_t state,
                                   uint8_t event);

#endif
