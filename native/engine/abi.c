/* SPDX-License-Identifier: Apache-2.0
 *
 * abi.c - sizes and offsets that the specs compare with LuaJIT's view of
 * perigee.h. */
#include <string.h>

#include "perigee.h"

#define ENTRY(type)                                                            \
  { #type, sizeof(struct type) }

static const struct {
  const char *name;
  uint64_t size;
} sizes[] = {
    ENTRY(perigee_options),  ENTRY(perigee_event),
    ENTRY(perigee_slice),    ENTRY(perigee_session_info),
    ENTRY(perigee_counters), ENTRY(perigee_transfer),
    ENTRY(perigee_message),  ENTRY(perigee_loan),
    ENTRY(perigee_device),   ENTRY(perigee_gid),
    ENTRY(perigee_share),    ENTRY(perigee_shares),
    ENTRY(perigee_trace),    ENTRY(perigee_fact),
};

int perigee_abi(void) {
  return PERIGEE_ABI;
}

uint64_t perigee_sizeof(const char *structure) {
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (strcmp(sizes[i].name, structure) == 0)
      return sizes[i].size;
  return 0;
}
