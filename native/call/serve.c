/* SPDX-License-Identifier: Apache-2.0
 *
 * serve.c - takes in the records of the peer's operations, and steps those
 * operations until they can be answered. served.c has the table of their states.
 */
#include <stdlib.h>
#include <string.h>

#include "core/lock.h"
#include "core/pool.h"
#include "served.h"

static void step_replied(struct operation *op) {
  int head = part_step(op, OUT_HEAD);
  int status = head < 0 ? head : part_step(op, OUT_SLICE);
  if (status >= 0 && served_wanted(op))
    return;
  op->status = status < 0 ? status : PERIGEE_OK;
  op->engine->progress++;
  list_remove(&op->queue);
  step(op, RELEASED);
  served_tell(op);
}

static void serve_step(struct operation *op) {
  if (op->quiet_wait) {
    op->engine->copying = true;
    list_remove(&op->queue);
    if (op->state == FETCHING)
      served_give_up(op);
    else if (served_receiver_released(op))
      served_tell(op);
  } else if (op->state == STALLED) {
    serve_head_stalled(op);
  } else if (op->state == HEADING) {
    serve_head_pulled(op);
  } else if (op->state == FETCHING) {
    if (served_pulled(op, IN_SLICE))
      served_landed(op);
  } else if (op->state == REPLIED) {
    step_replied(op);
  }
}

static void stop(struct operation *op, int status) {
  (void)status;
  serve_lost(op);
}

static const struct operation_class served_class = {.name =
                                                        "request of the peer",
                                                    .kind = OP_SERVED,
                                                    .step = serve_step,
                                                    .late = serve_head_late,
                                                    .stop = stop,
                                                    .publish = served_publish,
                                                    .keeps = served_keeps,
                                                    .given = served_given};

/* ---- Records ------------------------------------------------------------- */

/* Copies an inline slice out of the ring, before its landing is known. */
static int keep_slice(struct operation *op, const struct record *r) {
  op->rest.length = r->slice_length;
  op->rest.bulk = r->flags & RECORD_SLICE_BULK;
  op->rest.present = r->flags & RECORD_SLICE;
  if (op->rest.bulk)
    op->rest.source = r->slice_source;
  if (!op->rest.present || op->rest.bulk || r->slice_length == 0)
    return PERIGEE_OK;
  op->slice_block = pool_take(op->session, r->slice_length);
  if (!op->slice_block)
    return PERIGEE_NO_MEMORY;
  memcpy(op->slice_block, r->slice, r->slice_length);
  return PERIGEE_OK;
}

/* Returns 1 for a request that must not be served again. Lanes deliver each
 * record once and in order, unless faults are injected. With faults, operation
 * numbers that were seen, or older ones, are dropped. */
static int seen_before(struct perigee_session *session,
                       const struct record *r) {
  enum { NUMBERS = 1 << 16 };
  if (!session->inbox.seen)
    session->inbox.seen = calloc(NUMBERS, sizeof *session->inbox.seen);
  if (!session->inbox.seen)
    return PERIGEE_NO_MEMORY;
  uint32_t *last = &session->inbox.seen[r->operation];
  if (*last && (int32_t)(r->generation - *last) <= 0)
    return 1;
  *last = r->generation;
  return 0;
}

/* Reads the clock: the time that the program spent since its last poll must not
 * count against a call that has just arrived. */
static int64_t deadline_of(struct perigee_engine *engine,
                           const struct record *r) {
  if (r->remaining == RECORD_NO_LIMIT)
    return -1;
  int64_t now = UNLIKELY(engine->away) ? engine_clock(engine) : engine->now;
  return now + (int64_t)r->remaining * 1000;
}

int serve_record(struct perigee_session *session, const struct record *r) {
  if (r->kind == RECORD_IMM)
    return immediate_arrived(session, r->code);
  if (r->kind == RECORD_REPLY)
    return PERIGEE_PROTOCOL;
  if (session->engine->faults) {
    int seen = seen_before(session, r);
    if (seen != 0)
      return seen < 0 ? seen : PERIGEE_OK;
  }
  if (session->socket.hangup) /* the peer will not read an answer */
    return PERIGEE_OK;
  struct operation *op = operation_take(session, &served_class);
  if (!op)
    return PERIGEE_NO_MEMORY;
  operation_count(op);
  op->record = r->kind;
  op->peer_operation = r->operation;
  op->peer_generation = r->generation;
  op->method = r->method;
  op->code = r->code;
  op->region = NULL;
  op->receiver = NULL;
  op->deadline = deadline_of(session->engine, r);
  step(op, ARRIVE);
  int status = keep_slice(op, r);
  if (r->kind == RECORD_REQUEST)
    session->drain.read++;
  if (status < 0)
    serve_answer(op, status);
  else if (r->kind == RECORD_REQUEST)
    serve_head(op, r);
  else if (r->kind == RECORD_SEND)
    message_arrived(op);
  else
    served_access(op, r);
  return PERIGEE_OK;
}
