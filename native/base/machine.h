/* SPDX-License-Identifier: Apache-2.0
 *
 * machine.h - state machines as tables. The table that stands at the head of a
 * file is the one that runs. A step that is not in it aborts a debug build;
 * other builds ignore the event and keep the state.
 */
#ifndef MACHINE_H
#define MACHINE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "perigee.h"

enum { MACHINE_STATES = 16, MACHINE_EVENTS = 16 };

/* In a table: the state to go to. Steps that are not named are forbidden. */
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

/* Takes the step that the table has for the state `from`, which *state is. */
static inline void machine_step_from(const struct machine *machine,
                                     uint8_t *state, uint8_t from,
                                     uint8_t event) {
  uint8_t to = machine->next[from][event];
  if (!to) {
    machine_forbidden(machine, from, event);
    return;
  }
#ifdef PERIGEE_DEBUG
  machine_count(machine, from, event);
#endif
  *state = to - 1;
}

static inline void machine_step(const struct machine *machine, uint8_t *state,
                                uint8_t event) {
  machine_step_from(machine, state, *state, event);
}

/* The same where the state mostly is that one: what the table has for it is then
 * known to the compiler, and is not looked up. */
static inline __attribute__((always_inline)) void
machine_step_mostly(const struct machine *machine, uint8_t *state,
                    uint8_t mostly, uint8_t event) {
  if (__builtin_expect(*state == mostly, 1))
    machine_step_from(machine, state, mostly, event);
  else
    machine_step(machine, state, event);
}

/* For the specs: returns the machine "session", "call", "served", "operation",
 * "watched", "streams", "migration", "wireup" or "drain", or NULL. */
PERIGEE_API const struct machine *machine_find(const char *name);
/* For the specs, in debug builds: how often all engines of the process took a
 * step. The counters are relaxed: no other memory access depends on them. */
PERIGEE_API uint64_t machine_taken(const struct machine *machine, uint8_t state,
                                   uint8_t event);

#endif
