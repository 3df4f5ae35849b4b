/* SPDX-License-Identifier: Apache-2.0
 *
 * served.h - what the files share that serve operations of the peer: serve.c
 * (the table, arriving, ending), landing.c, reply.c and access.c.
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

/* The session under it is open. */
static inline bool open_lane(const struct operation *op) {
  return op->session && op->session->state == PERIGEE_SESSION_OPEN;
}

/* Is the caller still there, and waiting? */
bool served_wanted(struct operation *op);
/* After the last step of a phase: events, or the end of the operation. */
void served_tell(struct operation *op);
/* A call that the program may answer now, or NULL and why not. */
struct operation *served_find(struct perigee_engine *engine, int index,
                              int *status);
/* Requests reach the program in the order in which they were submitted: while
 * one of them is still on its way the ring behind it is not read. */
void served_hold_back(struct operation *op);
void served_let_on(struct operation *op);
/* Its bytes are all there: it is the program's. */
void served_request(struct operation *op);
/* Steps a part that comes: true when it is there and still counts. */
bool served_pulled(struct operation *op, int place);
void served_landed(struct operation *op);
/* 1: SENT will follow, 0: over. */
int served_answer(struct operation *op, const struct perigee_message *m);
/* What is pulled will never be there: the caller is told (it lets go of what
 * it lent), and the program if it was asked for a landing. */
void served_refuse(struct operation *op, int status);
void served_access(struct operation *op, const struct record *record);
/* The block that a raw head was pulled into, or that a reply fills. */
void served_unlend(struct operation *op);

/* ---- room.c -------------------------------------------------------------- */
/* Its reply refers to memory of ours, until the caller has let go of it. */
void room_keep_reply(struct operation *op);
/* A reply has just gone: what others have let go of comes back. */
void room_look(struct perigee_session *session);
/* Room for its head, if that has to be pulled into a block (from a source), and
 * for its reply, if that may fill one; given back unless it was used. 1; or
 * PERIGEE_AGAIN, if it is to wait; or a status. */
int room_take(struct operation *op, const struct source *source);
void room_give(struct operation *op);
/* It waits until there is room; it does no more. */
void room_await(struct operation *op);
void room_waited(struct operation *op);

#endif
