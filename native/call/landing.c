/* SPDX-License-Identifier: Apache-2.0
 *
 * landing.c - brings a slice to the place that its receiver named, and gives the
 * program a request that is complete.
 */
#include "core/lock.h"
#include "core/pool.h"
#include "served.h"

/* ---- Landing ------------------------------------------------------------ */

/* Starts bringing the slice to its place. */
int serve_fetch(struct operation *op, const struct payload *into) {
  struct record_rest *rest = &op->rest;
  int status;
  if (rest->bulk) {
    status = incoming_bulk(op, IN_SLICE, &rest->source, rest->length,
                           op->peer_operation, op->peer_generation, into,
                           &op->slice_block);
  } else if (!into) {
    status = 1; /* the pooled block has it already */
  } else {
    status =
        incoming_bytes(op, IN_SLICE, op->slice_block, rest->length, into, NULL);
  }
  if (status < 0)
    return status;
  /* Other sessions can see a region before the write has ended. */
  if (op->record == RECORD_WRITE && op->parts[IN_SLICE])
    op->parts[IN_SLICE]->fetch.careful = true;
  step(op, LAND);
  operation_move(op);
  op->class->step(op);
  return PERIGEE_OK;
}

/* There was no memory for the slice; the program may name another place. */
static void unpool(struct operation *op) {
  op->flags &= ~(uint32_t)PERIGEE_POOLED;
  if (!op->rest.bulk)
    return;
  pool_give(op->engine, op->slice_block);
  op->slice_block = NULL;
}

int perigee_land(struct perigee_engine *engine, int served,
                 const struct perigee_slice *slice) {
  ENTER(engine);
  struct payload into;
  int status = PERIGEE_OK;
  struct operation *op = served_find(engine, served, &status);
  if (!op)
    return status;
  if (op->state != LANDING)
    return fail(engine, PERIGEE_INVALID, "call %d waits for no landing",
                served);
  bool named = slice && slice->region;
  if (named && (status = slice_payload(engine, slice, &into)) < 0)
    return status;
  if (named && into.total < op->rest.length)
    return fail(engine, PERIGEE_TOO_LARGE,
                "a slice of %llu bytes does not fit into a landing of %llu",
                (unsigned long long)op->rest.length,
                (unsigned long long)into.total);
  if (named) {
    operation_ref(op, slice->region);
  } else {
    op->flags |= PERIGEE_POOLED;
  }
  status = serve_fetch(op, named ? &into : NULL);
  if (status < 0 && named)
    operation_unref(op); /* the program may try again, with another slice */
  else if (status < 0)
    unpool(op);
  return status;
}

void served_request(struct operation *op) {
  if (UNLIKELY(op->flags & PERIGEE_HELD))
    served_hold_back(op);
  else
    served_let_on(op);
  op->session->counters.served++;
  op->session->counters.bytes_received += op->length + op->slice;
  operation_event(op, PERIGEE_EVENT_REQUEST);
}

/* Returns true if the part has arrived and the call is still live. For a call
 * that is not live it waits for nothing. */
bool served_pulled(struct operation *op, int place) {
  int state = part_step(op, place);
  if (state >= 0 && served_wanted(op) && part_live(op, place))
    return state > 0;
  op->status = state < 0 ? state : PERIGEE_CANCELLED;
  if (op->receiver) {
    message_lost(op);
    operation_unqueue(op);
    served_give_up(op);
    return false;
  }
  op->unseen = true;
  served_refuse(op, op->status);
  return false;
}

/* All bytes have arrived at their place. */
void served_landed(struct operation *op) {
  step(op, PULLED);
  list_remove(&op->queue);
  parts_end(op);
  if (op->record == RECORD_SEND) {
    message_done(op);
    serve_answer(op, PERIGEE_OK);
  } else if (op->record == RECORD_WRITE) {
    operation_unref(op);
    serve_answer(op, PERIGEE_OK);
  } else {
    op->landed = false;
    operation_unref(op);
    served_request(op);
  }
}
