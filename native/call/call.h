/* SPDX-License-Identifier: Apache-2.0
 *
 * call.h - what call.c (submitting, ending) and outcome.c (the reply) share.
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

/* The end of a call in a state that has it: its event follows. */
void call_end(struct operation *op, int status);
/* Gives its event, or tells the batch that it is part of. */
void call_tell(struct operation *op);
/* The peer sees the request's loan no more. */
void call_let_go(struct operation *op);

#endif
