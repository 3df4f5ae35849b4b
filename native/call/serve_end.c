/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_end.c - how operations of the peer end: what they own is given back, and
 * the program is told. served.c has the table of their states.
 */
#include "core/lock.h"
#include "core/pool.h"
#include "operation/loan.h"
#include "served.h"

/* Ends the reply's payloads, also those that the caller did not want. */
static void unmark(struct operation *op) {
  struct lane *lane = op->session ? op->session->lane : NULL;
  if (op->marked && lane) {
    lane_payloads(lane)->mark(lane, op->index, 0);
    if (lane_payloads(lane)->pushes)
      lane_payloads(lane)->ended(lane, op->index, op->generation);
  }
  op->marked = false;
}

void served_unlend(struct operation *op) {
  if (op->head_lent && op->session && op->session->lane)
    lane_table(op->session->lane)
        ->loans->unloan(op->session->lane, &op->head_loan);
  op->head_lent = false;
}

/* With a polling thread: returns whether the program has replied and not polled
 * since. It may then still read the block of the request's head. */
static bool may_look(const struct operation *op) {
  const struct lock *lock = op->engine->lock;
  return lock && !lock->waiting && !lock->polling && op->bulky && !op->unseen;
}

/* With a progress thread: the program has seen the request, and may still read
 * it. */
static bool shown(const struct operation *op) {
  const struct lock *lock = op->engine->lock;
  bool over = !lock || lock->waiting || lock->polling || op->engine->aside;
  return !over && op->kind == OP_SERVED;
}

/* Frees all but the operation itself; returns false while a copy is under
 * way. */
static bool settle(struct operation *op) {
  unmark(op);
  bool copying = !parts_end(op);
  if (UNLIKELY(copying != op->quiet_wait))
    op->quiet_wait = copying;
  if (UNLIKELY(copying)) {
    list_remove(&op->queue);
    operation_move(op);
    return false;
  }
  if (UNLIKELY(op->head_lent) && !shown(op) && !may_look(op))
    served_unlend(op);
  if (UNLIKELY(op->reserved > 0))
    room_give(op);
  operation_unref(op);
  return true;
}

/* Frees the operation, and the block of its head unless the program may still
 * read it. */
static void gone(struct operation *op) {
  served_let_on(op);
  if (UNLIKELY(op->head_lent) && !shown(op))
    served_unlend(op);
  operation_free(op);
}

/* Does SENT follow? One byte after the other: GCC makes one word of an
 * expression of them, and a load of more than the bytes that were just written
 * waits until these, and all stores before them, are in the cache: the
 * reply's, too, whose line the peer has (a quarter of a busy server's time). */
static bool sends(const struct operation *op) {
  if (op->state != TOLD)
    return false;
  if (op->record != RECORD_REQUEST)
    return false;
  return !op->unseen;
}

void served_tell(struct operation *op) {
  if (!settle(op))
    return;
  if (sends(op) || op->landed) {
    op->flags = 0;
    op->pointer = NULL;
    op->length = 0;
    operation_event(op,
                    op->landed ? PERIGEE_EVENT_ABANDONED : PERIGEE_EVENT_SENT);
  } else if (op->state == FREE) {
    gone(op);
  } else {
    step(op, GIVEN);
    gone(op);
  }
}

bool served_keeps(struct operation *op) {
  if (!shown(op) || (!op->block && !op->head_lent && !op->viewed))
    return false;
  list_append(&op->engine->late, &op->queue);
  return true;
}

void served_late(struct perigee_engine *engine) {
  struct node *n;
  while ((n = list_pop(&engine->late))) {
    struct operation *op = CONTAINER(n, struct operation, queue);
    served_unlend(op);
    operation_unview(op);
    pool_give(engine, op->block);
    op->block = NULL;
    operation_spare(op);
  }
}

bool serve_survives(const struct operation *op) {
  return op->state == SERVING && op->event == PERIGEE_EVENT_NONE;
}

void served_given(struct operation *op) {
  step(op, GIVEN);
  gone(op);
}

/* Releases the receive that the message was matched with, if any, once no copy
 * to its memory is under way. The receive then belongs to another message or to
 * its caller again. Until then it returns false, and a later step asks
 * again. */
bool served_receiver_released(struct operation *op) {
  if (!op->receiver)
    return true;
  op->quiet_wait = !parts_end(op);
  if (op->quiet_wait)
    operation_move(op);
  else
    message_released(op);
  return !op->quiet_wait;
}

/* Ends the message with op->status, before all of it has reached its
 * receive. */
void served_give_up(struct operation *op) {
  if (!served_receiver_released(op))
    return;
  step(op, PULLED);
  serve_answer(op, op->status);
}

/* Called when the session has ended, or the call has before it was served. */
void serve_lost(struct operation *op) {
  if (op->state == TOLD || op->state == GONE || op->quiet_wait)
    return;
  if (op->state == SERVING && op->record != RECORD_REQUEST)
    step(op, WAIT); /* the core answers it, not the program */
  step(op, LOST);
  if (op->state == SERVING)
    return;
  operation_unqueue(op);
  served_let_on(op);
  op->status = PERIGEE_PEER_LOST;
  if (op->receiver)
    message_lost(op);
  if (served_receiver_released(op))
    served_tell(op);
}

void serve_abort(struct operation *op) {
  if (op->state != FETCHING || op->quiet_wait)
    return; /* it is ending already */
  operation_unqueue(op);
  op->status = PERIGEE_CANCELLED;
  served_give_up(op);
}
