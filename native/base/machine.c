/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef PERIGEE_DEBUG
void machine_count(const struct machine *m, uint8_t state, uint8_t event) {
  atomic_fetch_add_explicit(&m->taken[state][event], 1, memory_order_relaxed);
}

uint64_t machine_taken(const struct machine *m, uint8_t state, uint8_t event) {
  return atomic_load_explicit(&m->taken[state][event], memory_order_relaxed);
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
