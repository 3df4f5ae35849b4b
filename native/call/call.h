/* SPDX-License-Identifier: Apache-2.0
 *
 * call.h - shared by call.c (submitting, ending) and outcome.c (the reply).
 */
#ifndef CALL_H
#define CALL_H

#include "calls.h"

enum call_state { FREE, QUEUED, SENT, FETCHING, ENDED, ORPHANED };
enum call_event {
  SUBMIT,
  PUBLISH,
  STOP,
  REPLY,
  BULK,
  FETCHED,
  GIVEN,
  LEND,
  LET_GO
};

static inline void step(struct operation *op, enum call_event event) {
  machine_step(&call_machine, &op->state, event);
}

/* Ends a call in a state that can end; its event follows. */
void call_end(struct operation *op, int status);
/* Queues its event, or tells the batch that it belongs to. */
void call_tell(struct operation *op);
/* Gives the request's loan back: the peer does not read it any more. */
void call_let_go(struct operation *op);

#endif
