/* SPDX-License-Identifier: Apache-2.0
 *
 * machines.c - finds the state machines by name, for the specs.
 */
#include <string.h>

#include "call/calls.h"
#include "session/migrate.h"
#include "wireup/wireup.h"
#include "watched.h"

static const struct machine *const machines[] = {
    &session_machine,   &call_machine,    &served_machine,
    &operation_machine, &watched_machine, &streams_machine,
    &migration_machine, &wireup_machine,  &drain_machine};

const struct machine *machine_find(const char *name) {
  for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
    if (strcmp(machines[i]->name, name) == 0)
      return machines[i];
  return NULL;
}
