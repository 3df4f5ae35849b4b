/* SPDX-License-Identifier: Apache-2.0
 *
 * victim.h - who serves whatever comes and wants everything of its peer: calls,
 * loans, messages, transfers, lookups, all the time.
 */
#ifndef VICTIM_H
#define VICTIM_H

#include "support.h"

enum { SIZE = 4 * MIB, SESSIONS = 4096, OPERATIONS = 65536 };

struct victim {
  struct pair p; /* the friend is side 0, the victim side 1 */
  struct perigee_region *exported, *own;
  struct perigee_remote *bait[SESSIONS]; /* by the session's id */
  uint8_t pending[OPERATIONS];
  bool looks[OPERATIONS]; /* it is a look-up */
  int looked[SESSIONS];   /* and so many there were */
  int open[SESSIONS];     /* operations, by the session's id */
  bool over[SESSIONS];
  int lost, protocol, met;
  int friends; /* calls of the friend that were answered */
};

/* Does what an event of the victim's engine asks for, and more. */
void victim_handle(struct victim *v, const struct perigee_event *e);

#endif
