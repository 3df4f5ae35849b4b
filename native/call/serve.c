/* SPDX-License-Identifier: Apache-2.0
 *
 * serve.c - operations of the peer on this side, from the record to the point
 * where they are answered. served.c has the table of their states.
 *
 *   a call       its head is checked against this side's limits, read in the
 *                ring, copied or pulled, and scanned if it is typed; its slice
 *                is brought to the place that the program names; then the
 *                program gets it
 *   one-sided    access that the owner of a region does for the peer: to
 *                registered memory, to regions that the peer may only write, to
 *                memory that no CPU can touch; slot, generation, rights and
 *                bounds are checked before any byte moves
 *   a message    is brought to the receive that it waits for (messages.c)
 */
#include <stdlib.h>
#include <string.h>

#include "base/apart.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "core/pool.h"
#include "core/spans.h"
#include "core/stats_file.h"
#include "operation/loan.h"
#include "served.h"

static const struct operation_class serve_spanned_class;

/* ---- Early ends --------------------------------------------------------- */

/* Releases the receive that the message was matched with, if any, once no copy
 * to its memory is under way. The receive then belongs to another message or to
 * its caller again. Until then it returns false, and a later step asks
 * again. */
static bool serve_receiver_released(struct operation *op) {
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
void serve_give_up(struct operation *op) {
  if (!serve_receiver_released(op))
    return;
  served_advance(op, PULLED);
  reply_status(op, op->status);
}

/* Called when the session has ended, or the call has before it was served. */
void serve_lost(struct operation *op) {
  if (op->state == TOLD || op->state == GONE || op->quiet_wait)
    return;
  if (op->state == SERVING && op->record != RECORD_REQUEST)
    served_advance(op, WAIT); /* the core answers it, not the program */
  served_advance(op, LOST);
  if (op->state == SERVING)
    return;
  span_lost(op, PERIGEE_PEER_LOST);
  operation_unqueue(op);
  served_let_on(op);
  op->status = PERIGEE_PEER_LOST;
  if (op->receiver)
    message_lost(op);
  if (serve_receiver_released(op))
    served_tell(op);
}

/* The receive that a SEND is on its way to was given up: the SEND lets go of it
 * (message_released) once nothing is copied there any more. */
void serve_abort(struct operation *op) {
  if (op->state != FETCHING || op->quiet_wait)
    return; /* it is ending already */
  operation_unqueue(op);
  op->status = PERIGEE_CANCELLED;
  serve_give_up(op);
}

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
  served_advance(op, LAND);
  operation_move(op);
  budget_forget_own(&op->engine->budget);
  op->class->step(op);
  return PERIGEE_OK;
}

/* There was no memory for the slice; the program may name another place. */
static void serve_unpool(struct operation *op) {
  op->flags &= ~(uint32_t)PERIGEE_POOLED;
  if (!op->rest.bulk)
    return;
  pool_give(op->engine, op->slice_block);
  op->slice_block = NULL;
}

/* Uses the memory of a landing, and makes its payload. */
static int serve_place(struct operation *op, const struct perigee_slice *slice,
                       struct payload *into) {
  int status = message_payload(op, slice, true, into);
  if (status < 0)
    return status;
  operation_ref_slice(op, slice);
  if (into->total >= op->rest.length)
    return PERIGEE_OK;
  return fail(op->engine, PERIGEE_TOO_LARGE,
              "a slice of %llu bytes does not fit into a landing of %llu",
              (unsigned long long)op->rest.length,
              (unsigned long long)into->total);
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
  if (named)
    status = serve_place(op, slice, &into);
  else
    op->flags |= PERIGEE_POOLED;
  if (status == PERIGEE_OK)
    status = serve_fetch(op, named ? &into : NULL);
  if (status < 0 && named)
    operation_unref(op); /* the program may try again, with another slice */
  else if (status < 0)
    serve_unpool(op);
  return status;
}

static void serve_request(struct operation *op) {
  if (UNLIKELY(op->flags & PERIGEE_HELD))
    served_hold_back(op);
  else
    served_let_on(op);
  op->session->counters->served++;
  op->session->counters->bytes_received += op->length + op->slice;
  stats_serve(op);
  operation_ask(op, PERIGEE_EVENT_REQUEST);
  stats_choose(op); /* last, so that nothing has to be kept for after it */
}

/* Returns true if the part has arrived and the call is still live. For a call
 * that is not live it waits for nothing. */
static bool serve_pulled(struct operation *op, int place) {
  int state = part_step(op, place);
  if (state >= 0 && served_wanted(op) && part_live(op, place))
    return state > 0;
  op->status = state < 0 ? state : PERIGEE_CANCELLED;
  if (op->receiver) {
    message_give_up(op, op->status);
    return false;
  }
  op->unseen = true;
  reply_never(op, op->status);
  return false;
}

/* All bytes have arrived at their place. */
static void serve_landed(struct operation *op) {
  served_advance(op, PULLED);
  list_remove(&op->queue);
  parts_end(op);
  if (op->record == RECORD_SEND) {
    struct perigee_session *s = op->session;
    message_done(op);
    reply_status(op, PERIGEE_OK);
    message_next(s);
  } else if (op->record == RECORD_WRITE) {
    operation_unref(op);
    reply_status(op, PERIGEE_OK);
  } else {
    op->landed = false;
    operation_unref(op);
    serve_request(op);
  }
}

/* ---- Access by the owner ------------------------------------------------ */

static int access_payload(struct operation *op, struct access *a,
                          struct payload *p) {
  struct perigee_region *region =
      region_by_slot(op->engine, a->slot, a->generation);
  int right = op->record == RECORD_READ ? PERIGEE_READ : PERIGEE_WRITE;
  if (!region || !region_valid(region))
    return PERIGEE_STALE;
  if (!(region->access & right))
    return PERIGEE_DENIED;
  if (shape_total(a->block, a->count) == UINT64_MAX ||
      !shape_fits(region->length, a->offset, a->block, a->count, a->stride))
    return PERIGEE_RANGE;
  if (a->block == 0 || a->count == 0) { /* no count that means a list */
    a->block = 0;
    a->count = 1;
  }
  op->region = region;
  *p = (struct payload){.memory = region->memory,
                        .area = &region->area,
                        .base = region->pointer + a->offset,
                        .block = a->block,
                        .count = a->count,
                        .stride = a->stride,
                        .total = a->block * a->count};
  return PERIGEE_OK;
}

static void serve_read(struct operation *op, const struct access *a) {
  struct perigee_message m = {
      .slice = {{op->region}, a->offset, a->block, a->count, a->stride}};
  served_advance(op, SERVE);
  operation_ref(op, op->region);
  reply_message(op, &m);
}

static void serve_access(struct operation *op, const struct record *r) {
  struct access a;
  struct payload p;
  if (r->head_length != sizeof a || !r->head) {
    reply_status(op, PERIGEE_PROTOCOL);
    return;
  }
  memcpy(&a, r->head, sizeof a);
  /* A write that ended before it was served must not be done any more. */
  int status =
      served_wanted(op) ? access_payload(op, &a, &p) : PERIGEE_CANCELLED;
  if (status == PERIGEE_OK && op->record == RECORD_WRITE &&
      p.total != op->rest.length)
    status = PERIGEE_RANGE;
  if (status < 0) {
    reply_status(op, status);
  } else if (op->record == RECORD_READ) {
    serve_read(op, &a);
  } else {
    operation_ref(op, op->region);
    status = serve_fetch(op, &p);
    if (status < 0)
      reply_status(op, status);
  }
}

/* ---- Heads of calls ----------------------------------------------------- */

/* Checks a head: typed data are scanned; raw bytes come without a slice.
 * Returns 1, 0 (continued in a later poll) or a status. */
static int serve_head_sound(struct operation *op) {
  if (!(op->flags & PERIGEE_TYPED))
    return op->rest.present ? PERIGEE_PROTOCOL : 1;
  return incoming_scan(op);
}

/* The program never gets the call. */
static __attribute__((noinline)) void serve_refuse(struct operation *op,
                                                   int status) {
  span_lost(op, status);
  reply_status(op, status);
}

/* The head has arrived; it is sound unless status is negative. Goes on to the
 * slice, or to the program. */
static void serve_headed(struct operation *op, int status) {
  if (status < 0) {
    serve_refuse(op, status);
  } else if (op->rest.present) {
    op->landed = true;
    served_hold_back(op);
    served_advance(op, ASK);
    operation_ask(op, PERIGEE_EVENT_LANDING);
  } else {
    served_advance_from(op, ARRIVED, SERVE);
    serve_request(op);
  }
}

/* A typed head is copied, so that the peer cannot change it while it is
 * scanned; the copy stays while the slice arrives and while it is scanned or
 * decoded. A raw head is read in the ring, unless a thread goes on with the
 * ring. */
static int serve_head_inline(struct operation *op, const struct record *r) {
  op->pointer = r->head;
  if ((!(op->flags & PERIGEE_TYPED) && !engine_copies(op->engine)) ||
      r->head_length == 0)
    return 1;
  op->pointer = op->rest.present || op->flags & PERIGEE_HELD ||
                        r->head_length > SCANNED_AT_ONCE
                    ? NULL
                    : scratch_copy(op, r->head, r->head_length);
  if (op->pointer)
    return 1;
  op->pointer = op->block = pool_take(op->session, r->head_length);
  if (!op->block)
    return PERIGEE_NO_MEMORY;
  copy_any(op->block, r->head, r->head_length);
  return 1;
}

/* Pulls a head into a block; a raw head may be read in place instead. Private
 * blocks are for typed ones, and for what the peer lent without being there. */
static int serve_pull_head(struct operation *op, struct source source) {
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
static int serve_check_limits(struct operation *op, const struct record *r) {
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
static void serve_take_head(struct operation *op, int status) {
  if (status == 1)
    status = serve_head_sound(op);
  if (status != 0) {
    serve_headed(op, status);
  } else {
    served_hold_back(op);
    served_advance(op, PULL);
    operation_move(op);
  }
}

/* Waits for room. An inline head is copied out of the ring. */
static int serve_stall(struct operation *op, const struct record *r) {
  if (op->bulky) {
    op->head_loan = r->head_source;
  } else if (r->head_length > 0) {
    op->pointer = op->block = pool_take(op->session, r->head_length);
    if (!op->block)
      return PERIGEE_NO_MEMORY;
    copy_any(op->block, r->head, r->head_length);
  }
  served_hold_back(op);
  served_advance(op, STALL);
  room_await(op);
  return PERIGEE_OK;
}

/* A request with a trace context. */
static void serve_trace(struct operation *op, const struct record *r) {
  trace_arrived(op, r->trace);
  if (span_has(op))
    op->class = &serve_spanned_class;
}

/* Has the program got the call just now? It may be free already. */
static void serve_noted(struct operation *op) {
  if (op->kind == OP_SERVED && span_has(op) && stats_is_served(op)) {
    stats_measure(op);
    span_service(op, op->measured, op->length + op->slice);
  }
}

static void serve_head(struct operation *op, const struct record *r) {
  if (UNLIKELY(r->flags & RECORD_HEAD_BULK))
    op->bulky = true;
  op->length = r->head_length;
  op->flags = (r->flags & RECORD_TYPED ? PERIGEE_TYPED : 0) |
              (r->flags & RECORD_SLICE ? PERIGEE_SLICE : 0);
  if (UNLIKELY(r->trace != NULL))
    serve_trace(op, r);
  if (UNLIKELY(op->length > op->engine->options.hold) &&
      r->flags & RECORD_TYPED)
    op->flags |= PERIGEE_HELD;
  op->slice = r->slice_length;
  op->value = r->capacity;
  if (UNLIKELY(r->capacity > op->session->peer.eager))
    op->engine->asked += r->capacity;
  int status = serve_check_limits(op, r);
  if (UNLIKELY(op->bulky || op->value > op->session->peer.eager) && status == 1)
    status = room_take(op, &r->head_source);
  if (status == 1)
    status = op->bulky ? serve_pull_head(op, r->head_source)
                       : serve_head_inline(op, r);
  if (status == PERIGEE_AGAIN && (status = serve_stall(op, r)) == PERIGEE_OK)
    return;
  serve_take_head(op, status);
  if (UNLIKELY(r->trace != NULL))
    serve_noted(op);
}

static void serve_unstall(struct operation *op, int status) {
  room_waited(op);
  list_remove(&op->queue);
  served_advance(op, PULLED);
  serve_take_head(op, status);
}

static void serve_head_stalled(struct operation *op) {
  if (!served_wanted(op)) {
    room_waited(op);
    op->unseen = true;
    reply_never(op, PERIGEE_CANCELLED);
    return;
  }
  /* while stalled, it holds the peer's source */
  struct source source = op->head_loan;
  int status = room_take(op, &source);
  if (status == PERIGEE_AGAIN)
    return;
  if (status == 1 && op->bulky)
    status = serve_pull_head(op, source);
  op->engine->progress++;
  serve_unstall(op, status);
}

static void serve_head_late(struct operation *op) {
  fail(op->engine, PERIGEE_NO_MEMORY,
       "there was no block for a call in time (option pool)");
  serve_unstall(op, PERIGEE_NO_MEMORY);
}

static void serve_head_pulled(struct operation *op) {
  int status = serve_pulled(op, IN_HEAD) ? serve_head_sound(op) : 0;
  if (status == 0)
    return;
  served_advance(op, PULLED);
  list_remove(&op->queue);
  parts_end(op);
  serve_headed(op, status);
}

/* ---- Steps -------------------------------------------------------------- */

static void serve_replied(struct operation *op) {
  int head = part_step(op, OUT_HEAD);
  int status = head < 0 ? head : part_step(op, OUT_SLICE);
  if (status >= 0 && served_wanted(op))
    return;
  op->status = status < 0 ? status : PERIGEE_OK;
  op->engine->progress++;
  list_remove(&op->queue);
  served_advance(op, RELEASED);
  served_tell(op);
}

static void serve_step(struct operation *op) {
  if (op->quiet_wait) {
    op->engine->poll_soon |= SOON_LOOK;
    list_remove(&op->queue);
    if (op->state == FETCHING)
      serve_give_up(op);
    else if (serve_receiver_released(op))
      served_tell(op);
  } else if (op->state == STALLED) {
    serve_head_stalled(op);
  } else if (op->state == HEADING) {
    serve_head_pulled(op);
  } else if (op->state == FETCHING) {
    if (serve_pulled(op, IN_SLICE))
      serve_landed(op);
  } else if (op->state == REPLIED) {
    serve_replied(op);
  }
}

/* The same for a call with a span. A step may free it. */
static void serve_spanned_step(struct operation *op) {
  bool shown = stats_is_served(op);
  serve_step(op);
  if (!shown)
    serve_noted(op);
}

static void serve_stop(struct operation *op, int status) {
  (void)status;
  serve_lost(op);
}

static const struct operation_class served_class = {
    .name = "request of the peer",
    .kind = OP_SERVED,
    .step = serve_step,
    .late = serve_head_late,
    .stop = serve_stop,
    .publish = reply_publish_waiting,
    .keeps = served_keeps,
    .given = served_given};

static const struct operation_class serve_spanned_class = {
    .name = "request of the peer",
    .kind = OP_SERVED,
    .step = serve_spanned_step,
    .late = serve_head_late,
    .stop = serve_stop,
    .publish = reply_publish_waiting,
    .keeps = served_keeps,
    .given = served_given};

/* ---- Records ------------------------------------------------------------ */

/* Copies an inline slice out of the ring, before its landing is known. */
static int serve_keep_slice(struct operation *op, const struct record *r) {
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
  copy_any(op->slice_block, r->slice, r->slice_length);
  return PERIGEE_OK;
}

/* Returns 1 for a request that must not be served again. Lanes deliver each
 * record once and in order, unless faults are injected. With faults, operation
 * numbers that were seen, or older ones, are dropped. */
static int serve_seen_before(struct perigee_session *session,
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
static int64_t serve_deadline(struct perigee_engine *engine,
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
    int seen = serve_seen_before(session, r);
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
  op->method = (uint16_t)apart(r->method);
  op->code = r->code;
  op->region = NULL;
  op->receiver = NULL;
  op->deadline = serve_deadline(session->engine, r);
  served_advance_from(op, FREE, ARRIVE);
  int status = serve_keep_slice(op, r);
  if (r->kind == RECORD_REQUEST)
    session->drain.read++;
  if (status < 0)
    reply_status(op, status);
  else if (r->kind == RECORD_REQUEST)
    serve_head(op, r);
  else if (r->kind == RECORD_SEND)
    message_arrived(op);
  else
    serve_access(op, r);
  return PERIGEE_OK;
}
