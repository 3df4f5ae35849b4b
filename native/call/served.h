/* SPDX-License-Identifier: Apache-2.0
 *
 * served.h - operations of the peer, for the files that serve them: served.c
 * has their states, their answers and their end, serve.c takes them in, and
 * messages.c matches messages with receives.
 */
#ifndef SERVED_H
#define SERVED_H

#include "calls.h"

/* ---- served.c ----------------------------------------------------------- */
enum served_state {
  FREE,
  ARRIVED,
  STALLED,
  HEADING,
  LANDING,
  FETCHING,
  SERVING,
  WAITING,
  REPLIED,
  TOLD,
  GONE
};
enum served_event {
  ARRIVE,
  STALL,
  PULL,
  PULLED,
  SERVE,
  ASK,
  LAND,
  ANSWER,
  WAIT,
  REFER,
  RELEASED,
  GIVEN,
  LOST
};

static inline void served_advance(struct operation *op,
                                  enum served_event event) {
  machine_step(&served_machine, &op->state, event);
}

/* The same where the state mostly is that one. */
static inline void served_advance_from(struct operation *op,
                                       enum served_state mostly,
                                       enum served_event event) {
  machine_step_mostly(&served_machine, &op->state, mostly, event);
}

/* Is its session open? */
static inline bool served_open(const struct operation *op) {
  return op->session && op->session->state == PERIGEE_SESSION_OPEN;
}

/* Is the caller still waiting for it? */
bool served_wanted(struct operation *op);
/* Ends a phase: queues the event, or frees the operation. */
void served_tell(struct operation *op);
void served_given(struct operation *op);
bool served_keeps(struct operation *op);
/* Returns a call that the program may answer now, or NULL and the reason. */
struct operation *served_find(struct perigee_engine *engine, int index,
                              int *status);
/* hold_back stops reading the request ring while a request arrives, so that
 * requests reach the program in the order in which they were submitted; let_on
 * goes on. */
void served_hold_back(struct operation *op);
void served_let_on(struct operation *op);

/* ---- served.c: replies --------------------------------------------------- */
/* Answers with a message: 1 if SENT will follow, 0 if the operation has
 * ended. */
int reply_message(struct operation *op, const struct perigee_message *m);
/* Answers a READ, WRITE or SEND with a status, or refuses any request. */
void reply_status(struct operation *op, int status);
/* Its payload will never arrive: tells the caller, which releases its loan, and
 * the program if it was asked for a landing. */
void reply_never(struct operation *op, int status);
/* Publishes a reply that waited for room. */
bool reply_publish_waiting(struct operation *op);

/* ---- serve.c ------------------------------------------------------------ */
/* Brings an operation's bytes to memory of this side; returns a status. */
int serve_fetch(struct operation *op, const struct payload *into);
/* The session has ended, or the call has before it was served. */
void serve_lost(struct operation *op);
/* Its receive ends: no more bytes go there. */
void serve_abort(struct operation *op);
/* Ends the message with op->status, before all of it has reached its
 * receive. */
void serve_give_up(struct operation *op);

/* ---- messages.c --------------------------------------------------------- */
int immediate_arrived(struct perigee_session *s, uint64_t immediate);
/* A message begins: it is matched with a receive, or waits for one. */
void message_arrived(struct operation *served);
/* All of it has reached its receive, which ends. message_next() follows, once
 * the message was answered. */
void message_done(struct operation *served);
/* It will never come whole: its receive is for another one. */
void message_lost(struct operation *served);
/* Ends a message on its way, for a reason that is not its receive's. */
void message_give_up(struct operation *op, int status);
/* Nothing of a message that will never come whole is copied any more. */
void message_released(struct operation *served);
/* A receive's message is over, so those behind it may go on. */
void message_next(struct perigee_session *s);

#endif
