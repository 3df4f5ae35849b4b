/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_head.c - a request's head: checked against this side's limits, read in
 * the ring, copied or pulled, scanned if it is typed, and from there to the
 * program.
 */
#include <string.h>

#include "core/lock.h"
#include "core/pool.h"
#include "operation/loan.h"
#include "served.h"

/* Checks a head: typed data are scanned; raw bytes come without a slice.
 * Returns 1, 0 (continued in a later poll) or a status. */
static int sound(struct operation *op) {
  if (!(op->flags & PERIGEE_TYPED))
    return op->rest.present ? PERIGEE_PROTOCOL : 1;
  return incoming_scan(op);
}

/* The head has arrived; it is sound unless status is negative. Goes on to the
 * slice, or to the program. */
static void headed(struct operation *op, int status) {
  if (status < 0) {
    serve_answer(op, status);
  } else if (op->rest.present) {
    op->landed = true;
    served_hold_back(op);
    step(op, ASK);
    operation_event(op, PERIGEE_EVENT_LANDING);
  } else {
    step(op, SERVE);
    served_request(op);
  }
}

/* A typed head is copied, so that the peer cannot change it while it is
 * scanned; the copy stays while the slice arrives and while it is scanned or
 * decoded. A raw head is read in the ring, unless a thread goes on with the
 * ring. */
static int head_inline(struct operation *op, const struct record *r) {
  op->pointer = r->head;
  if ((!(op->flags & PERIGEE_TYPED) && !op->engine->thread) ||
      r->head_length == 0)
    return 1;
  op->pointer = op->rest.present || op->flags & PERIGEE_HELD ||
                        r->head_length > SCANNED_AT_ONCE
                    ? NULL
                    : scratch_copy(op->engine, r->head, r->head_length);
  if (op->pointer)
    return 1;
  op->pointer = op->block = pool_take(op->session, r->head_length);
  if (!op->block)
    return PERIGEE_NO_MEMORY;
  memcpy(op->block, r->head, r->head_length);
  return 1;
}

/* Pulls a head into a block; a raw head may be read in place instead. Private
 * blocks are for typed ones, and for what the peer lent without being there. */
static int pull_head(struct operation *op, struct source source) {
  struct payload into;
  bool private = op->flags & PERIGEE_TYPED || (!op->pointer && op->length > 0);
  if (!private && !op->head_lent)
    return 1;
  if (!private)
    payload_bytes(&into, op->pointer, op->length);
  int status =
      incoming_bulk(op, IN_HEAD, &source, op->length, op->peer_operation,
                    op->peer_generation, private ? NULL : &into, &op->block);
  if (private)
    op->pointer = op->block;
  return status;
}

/* Checks the request against this side's limits. */
static int check_request(struct operation *op, const struct record *r) {
  const struct perigee_options *o = &op->engine->options;
  if (UNLIKELY(op->session->drain.ours) && r->method != 0)
    return fail(op->engine, PERIGEE_DRAINING, "%s",
                perigee_status_text(PERIGEE_DRAINING));
  bool typed = r->flags & RECORD_TYPED;
  uint64_t limit = typed && o->typed < o->message ? o->typed : o->message;
  if (r->head_length > limit || r->slice_length > o->message)
    return fail(op->engine, PERIGEE_TOO_LARGE,
                "a request of %llu bytes and a slice of %llu: the server's "
                "limits are %llu (its option %s) and %llu",
                (unsigned long long)r->head_length,
                (unsigned long long)r->slice_length, (unsigned long long)limit,
                typed ? "typed" : "message", (unsigned long long)o->message);
  return 1;
}

/* status: 1 if the head is there, 0 while it is pulled, or negative. */
static void take_in(struct operation *op, int status) {
  if (status == 1)
    status = sound(op);
  if (status != 0) {
    headed(op, status);
  } else {
    served_hold_back(op);
    step(op, PULL);
    operation_move(op);
  }
}

/* Waits for room. An inline head is copied out of the ring. */
static int stall(struct operation *op, const struct record *r) {
  if (op->bulky) {
    op->head_loan = r->head_source;
  } else if (r->head_length > 0) {
    op->pointer = op->block = pool_take(op->session, r->head_length);
    if (!op->block)
      return PERIGEE_NO_MEMORY;
    memcpy(op->block, r->head, r->head_length);
  }
  served_hold_back(op);
  step(op, STALL);
  room_await(op);
  return PERIGEE_OK;
}

void serve_head(struct operation *op, const struct record *r) {
  op->bulky = r->flags & RECORD_HEAD_BULK;
  op->length = r->head_length;
  op->flags = (r->flags & RECORD_TYPED ? PERIGEE_TYPED : 0) |
              (r->flags & RECORD_SLICE ? PERIGEE_SLICE : 0);
  if (UNLIKELY(r->trace != NULL))
    trace_arrived(op, r->trace);
  if (UNLIKELY(op->length > op->engine->options.hold) &&
      r->flags & RECORD_TYPED)
    op->flags |= PERIGEE_HELD;
  op->slice = r->slice_length;
  op->value = r->capacity;
  if (UNLIKELY(r->capacity > op->session->peer.eager))
    op->engine->asked += r->capacity;
  int status = check_request(op, r);
  if (UNLIKELY(op->bulky || op->value > op->session->peer.eager) && status == 1)
    status = room_take(op, &r->head_source);
  if (status == 1)
    status = op->bulky ? pull_head(op, r->head_source) : head_inline(op, r);
  if (status == PERIGEE_AGAIN && (status = stall(op, r)) == PERIGEE_OK)
    return;
  take_in(op, status);
}

static void unstall(struct operation *op, int status) {
  room_waited(op);
  list_remove(&op->queue);
  step(op, PULLED);
  take_in(op, status);
}

void serve_head_stalled(struct operation *op) {
  if (!served_wanted(op)) {
    room_waited(op);
    op->unseen = true;
    served_refuse(op, PERIGEE_CANCELLED);
    return;
  }
  /* while stalled, it holds the peer's source */
  struct source source = op->head_loan;
  int status = room_take(op, &source);
  if (status == PERIGEE_AGAIN)
    return;
  if (status == 1 && op->bulky)
    status = pull_head(op, source);
  op->engine->progress++;
  unstall(op, status);
}

void serve_head_late(struct operation *op) {
  fail(op->engine, PERIGEE_NO_MEMORY,
       "there was no block for a call in time (option pool)");
  unstall(op, PERIGEE_NO_MEMORY);
}

void serve_head_pulled(struct operation *op) {
  int status = served_pulled(op, IN_HEAD) ? sound(op) : 0;
  if (status == 0)
    return;
  step(op, PULLED);
  list_remove(&op->queue);
  parts_end(op);
  headed(op, status);
}
