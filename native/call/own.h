/* SPDX-License-Identifier: Apache-2.0
 *
 * own.h - operations of this side that send one record and get one back, for the
 * files that have them: call.c has their states, their replies and their end,
 * call_begin.c begins them; batch.c has many calls as one operation.
 */
#ifndef OWN_H
#define OWN_H

#include "calls.h"

/* ---- call.c ------------------------------------------------------------- */
enum call_state { FREE, QUEUED, SENT, ASKED, FETCHING, ENDED, ORPHANED };
enum call_event {
  SUBMIT,
  PUBLISH,
  STOP,
  REPLY,
  BULK,
  ASK,
  LAND,
  FETCHED,
  GIVEN,
  LEND,
  LET_GO
};

extern const struct operation_class call_class, call_spanned_class, read_class,
    write_class, send_class;

static inline void call_advance(struct operation *op, enum call_event event) {
  machine_step(&call_machine, &op->state, event);
}

/* The same where the state mostly is that one. */
static inline void call_advance_from(struct operation *op,
                                     enum call_state mostly,
                                     enum call_event event) {
  machine_step_mostly(&call_machine, &op->state, mostly, event);
}

/* Gives the request's loan back: the peer does not read it any more. */
void call_let_go(struct operation *op);
/* The peer may no longer take it for live. */
void call_unmark(struct operation *op);

/* ---- call_begin.c ------------------------------------------------------- */
/* Publishes a record that waited for room. */
bool call_publish_waiting(struct operation *op);
/* Begins a call of a batch, its parent; nth: which one, from 1. Returns a number
 * >= 0, or why it was not begun. */
int call_of_batch(struct perigee_session *, const struct perigee_message *,
                  struct operation *parent, uint32_t nth);

/* ---- batch.c ------------------------------------------------------------- */

/* Notes how a call of a batch has ended, with so many bytes that it brought. */
static inline void batch_note(struct operation *batch, uint32_t nth, int status,
                              uint64_t bytes) {
  struct call_batch *b = &batch->batch;
  if (b->answers)
    b->answers[nth - 1] = (struct perigee_answer){status, bytes};
  b->bytes += bytes;
  if (UNLIKELY(status != PERIGEE_OK) && b->status == PERIGEE_OK)
    b->status = status;
}

#endif
