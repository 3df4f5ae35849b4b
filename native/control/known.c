/* SPDX-License-Identifier: Apache-2.0
 *
 * known.c - the records of a control server that has a file of its own, in C
 * and not in Lua's heap (lua/perigee/control/known.lua tells why).
 */
#include "control/control.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

static void copy_parts(struct perigee_known *known,
                       const struct perigee_known_from *from) {
  int32_t at = 0;
  for (int i = 0; i < PERIGEE_KNOWN_PARTS; i++) {
    int32_t length = from->part[i] ? (int32_t)from->length[i] : -1;
    known->at[i] = at;
    known->length[i] = length;
    if (length <= 0)
      continue;
    memcpy(known->bytes + at, from->part[i], (size_t)length);
    at += length;
  }
}

struct perigee_known *perigee_known_new(const struct perigee_known_from *from) {
  size_t all = 0;
  for (int i = 0; i < PERIGEE_KNOWN_PARTS; i++)
    all += from->part[i] ? from->length[i] : 0;
  struct perigee_known *known =
      all <= INT32_MAX ? malloc(sizeof *known + all) : NULL;
  if (!known)
    return NULL;
  memset(known, 0, sizeof *known);
  copy_parts(known, from);
  return known;
}

void perigee_known_free(struct perigee_known *known) {
  free(known);
}

void perigee_known_trim(void) {
  malloc_trim(0);
}
