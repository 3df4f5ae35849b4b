/* SPDX-License-Identifier: Apache-2.0
 *
 * call.h - shared by call.c (submitting, ending), call_publish.c (the record),
 * call_loans.c (requests filled in place) and outcome.c (the reply).
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
/* Returns the time at which it times out; negative: never. */
int64_t call_due(const struct operation *op);
/* Queues its event, or tells the batch that it belongs to. */
void call_tell(struct operation *op);
/* Gives the request's loan back: the peer does not read it any more. */
void call_let_go(struct operation *op);

/* Submitting. take gives an operation of a class, for a message; NULL: there is
 * none free. enter starts it: it is marked live and timed. publish sends its
 * record, publish_bytes one of these bytes alone: 1, 0 without room, or a
 * status. publish_now sends that of a request whose message is short and was not
 * kept yet; false: it has to be kept and published. submit does both, or queues
 * it, and returns its number. withdraw undoes an operation that neither the peer
 * nor the program knows of, and returns the status. */
extern const struct operation_class call_class;
struct operation *call_take(struct perigee_session *session,
                            const struct operation_class *class, int record,
                            const struct perigee_message *message);
void call_enter(struct operation *op, int64_t timeout);
int call_publish(struct operation *op);
bool call_publish_waiting(struct operation *op);
bool call_publish_now(struct operation *op, const struct perigee_message *m);
int call_publish_bytes(struct operation *op, const struct perigee_message *m,
                       const uint8_t *bytes, uint64_t length);
int call_submit(struct operation *op, int64_t timeout);
int call_withdraw(struct operation *op, int status);
/* A peer would end the session for a request of such a capacity: the error. */
int call_beyond_all(const struct perigee_session *session);
/* The peer takes no more calls (session/drain.c): the error. */
int call_draining(const struct perigee_session *session);

#endif
