/* SPDX-License-Identifier: Apache-2.0
 *
 * victim.h - a server that serves whatever comes and keeps asking its peers for
 * everything: calls, loans, messages, transfers and look-ups.
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
  bool looks[OPERATIONS]; /* the operation is a look-up */
  int looked[SESSIONS];   /* look-ups done, by the session's id */
  int open[SESSIONS];     /* open operations, by the session's id */
  bool over[SESSIONS];
  int lost, protocol, met;
  int friends; /* calls of the friend that were answered */
};

/* Does what an event of the victim's engine asks for, and begins more. */
void victim_handle(struct victim *v, const struct perigee_event *e);

#endif
