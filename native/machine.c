/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

static const struct machine *const machines[] = {
    &session_machine, &call_machine, &served_machine, &transfer_machine};
enum { MACHINES = sizeof machines / sizeof *machines };

const struct machine *machine_find(const char *name) {
  for (int i = 0; i < MACHINES; i++)
    if (strcmp(machines[i]->name, name) == 0)
      return machines[i];
  return NULL;
}

#ifdef PERIGEE_DEBUG
static _Atomic uint64_t taken[MACHINES][MACHINE_STATES][MACHINE_EVENTS];

static int number(const struct machine *machine) {
  int i = 0;
  while (machines[i] != machine)
    i++;
  return i;
}

void machine_count(const struct machine *m, uint8_t state, uint8_t event) {
  atomic_fetch_add_explicit(&taken[number(m)][state][event], 1,
                            memory_order_relaxed);
}

uint64_t machine_taken(const struct machine *m, uint8_t state, uint8_t event) {
  return atomic_load_explicit(&taken[number(m)][state][event],
                              memory_order_relaxed);
}

void machine_forbidden(const struct machine *m, uint8_t state, uint8_t event) {
  fprintf(stderr, "perigee: %s: %s in state %s is forbidden\n", m->name,
          m->events[event], m->states[state]);
  abort();
}
#else
void machine_count(const struct machine *m, uint8_t state, uint8_t event) {
  (void)m, (void)state, (void)event;
}

uint64_t machine_taken(const struct machine *m, uint8_t state, uint8_t event) {
  (void)m, (void)state, (void)event;
  return 0;
}

void machine_forbidden(const struct machine *m, uint8_t state, uint8_t event) {
  (void)m, (void)state, (void)event;
}
#endif
