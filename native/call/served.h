/* SPDX-License-Identifier: Apache-2.0
 *
 * served.h - shared by the files that serve operations of the peer: served.c
 * (the table of states), serve.c (records, steps), serve_head.c, landing.c,
 * reply.c, access.c and serve_end.c.
 */
#ifndef SERVED_H
#define SERVED_H

#include "calls.h"

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

static inline void step(struct operation *op, enum served_event event) {
  machine_step(&served_machine, &op->state, event);
}

/* Is its session open? */
static inline bool open_lane(const struct operation *op) {
  return op->session && op->session->state == PERIGEE_SESSION_OPEN;
}

/* Is the caller still waiting for it? */
bool served_wanted(struct operation *op);
/* Ends a phase: queues the event, or frees the operation. */
void served_tell(struct operation *op);
void served_given(struct operation *op);
bool served_keeps(struct operation *op);
/* Releases the receive that the message was matched with, if any, once no copy
 * to its memory is under way. Until then it returns false, and a later step asks
 * again. give_up ends the message so, with op->status, before all of it has
 * reached its receive. */
bool served_receiver_released(struct operation *op);
void served_give_up(struct operation *op);
/* Returns a call that the program may answer now, or NULL and the reason. */
struct operation *served_find(struct perigee_engine *engine, int index,
                              int *status);
/* hold_back stops reading the request ring while a request arrives, so that
 * requests reach the program in the order in which they were submitted; let_on
 * goes on. */
void served_hold_back(struct operation *op);
void served_let_on(struct operation *op);
/* A request has arrived: begins with its head. The others go on with a head that
 * waits for a block, for which no block came in time, or that is being
 * pulled. */
void serve_head(struct operation *op, const struct record *record);
void serve_head_stalled(struct operation *op);
void serve_head_late(struct operation *op);
void serve_head_pulled(struct operation *op);
/* All its bytes have arrived: gives it to the program. */
void served_request(struct operation *op);
/* Steps a part; true when it has arrived and the call is still live. */
bool served_pulled(struct operation *op, int place);
void served_landed(struct operation *op);
bool served_publish(struct operation *op);
/* Returns 1 if SENT will follow, 0 if the operation has ended. */
int served_answer(struct operation *op, const struct perigee_message *m);
/* Its payload will never arrive: tells the caller, which releases its loan, and
 * the program if it was asked for a landing. */
void served_refuse(struct operation *op, int status);
void served_access(struct operation *op, const struct record *record);
/* Gives back the block of a pulled raw head, or of a reply. */
void served_unlend(struct operation *op);

#endif
