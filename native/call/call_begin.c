/* SPDX-License-Identifier: Apache-2.0
 *
 * call_begin.c - begins the operations of this side that send one record and get
 * one back: checks a message, takes an operation, marks it live, and publishes its
 * record, or has it wait for room. Requests that the program fills in place are
 * the last part. call.c has the states of these operations, and their end.
 */
#include <string.h>

#include "base/stamp.h"
#include "base/typed.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "core/pool.h"
#include "core/spans.h"
#include "core/stats_file.h"
#include "operation/loan.h"
#include "own.h"

/* What became of a request, beside a status. WAITS: for room in the ring, or for
 * a block. REFERS: its memory is read on until the call has ended. WHOLE: all of
 * it is in its record. */
enum { WAITS, REFERS, WHOLE };

/* ---- Publishing --------------------------------------------------------- */

static uint32_t call_remaining(const struct operation *op) {
  if (op->timeout < 0)
    return RECORD_NO_LIMIT;
  int64_t left = op->timeout;
  if (!operation_is_fresh(op))
    left = op->timer.due - op->engine->now;
  if (left < 0)
    left = 0;
  left /= 1000;
  return left >= RECORD_NO_LIMIT ? RECORD_NO_LIMIT : (uint32_t)left;
}

static void call_put_lent_head(struct operation *op, struct outgoing *out) {
  struct record *r = &out->record;
  r->flags |= RECORD_HEAD_BULK;
  r->head_source = op->loan;
  r->head_length = op->loan.block;
}

/* Publishes a request that has a trace context, whether that travels or not. */
static __attribute__((noinline)) bool
call_publish_traced(struct operation *op, struct outgoing *out) {
  const struct record *r = &out->record;
  bool sent = op->traced & TRACE_TRAVELS
                  ? outgoing_traced(op->session, out, &op->trace)
                  : outgoing_publish(op->session, RING_REQUEST, out);
  if (sent)
    span_sent(op, r->head_length + r->slice_length);
  return sent;
}

/* Publishes what is not short, or has a trace context. */
static int call_publish_planned(struct operation *op,
                                const struct perigee_message *m) {
  struct outgoing out;
  out.record = (struct record){.kind = op->record,
                               .method = m->method,
                               .operation = op->index,
                               .generation = op->generation,
                               .remaining = call_remaining(op)};
  struct record *r = &out.record;
  int status = outgoing_plan(op, m, &out);
  if (status < 0)
    return status == PERIGEE_AGAIN ? WAITS : status;
  if (op->lent && !lane_payloads(op->session->lane)->pushes)
    call_put_lent_head(op, &out);
  if (m->capacity) {
    r->flags |= RECORD_CAPACITY;
    r->capacity = m->capacity;
  }
  bool sent = UNLIKELY(op->traced)
                  ? call_publish_traced(op, &out)
                  : outgoing_publish(op->session, RING_REQUEST, &out);
  if (!sent)
    return WAITS;
  if (op->record == RECORD_REQUEST) {
    op->ordinal = ++op->session->drain.sent;
    stats_sent(op, r->head_length + r->slice_length);
  }
  call_advance(op, PUBLISH);
  /* From now on each poll feeds staged payloads. */
  if (op->parts[OUT_HEAD] || op->parts[OUT_SLICE]) {
    parts_feed(op);
    operation_move(op);
  }
  return REFERS;
}

static inline __attribute__((always_inline)) struct record
call_record(const struct operation *op, const struct perigee_message *m,
            uint64_t length) {
  return (struct record){.kind = RECORD_REQUEST,
                         .flags =
                             (m->flags & PERIGEE_TYPED ? RECORD_TYPED : 0) |
                             (m->code ? RECORD_CODE : 0) |
                             (m->capacity ? RECORD_CAPACITY : 0),
                         .method = m->method,
                         .operation = op->index,
                         .generation = op->generation,
                         .code = m->code,
                         .capacity = m->capacity,
                         .remaining = call_remaining(op),
                         .head_length = length};
}

static inline int call_was_published(struct operation *op, uint64_t length) {
  op->ordinal = ++op->session->drain.sent;
  stats_sent(op, length);
  call_advance_from(op, QUEUED, PUBLISH);
  return WHOLE;
}

static inline __attribute__((always_inline)) int
call_publish_bytes(struct operation *op, const struct perigee_message *m,
                   const uint8_t *bytes, uint64_t length) {
  struct record r = call_record(op, m, length);
  return outgoing_bytes(op->session, RING_REQUEST, &r, bytes)
             ? call_was_published(op, length)
             : WAITS;
}

/* Publishes the operation's record. The message may be the program's still.
 * Returns what became of it, or a status. */
static inline __attribute__((always_inline)) int
call_publish(struct operation *op, const struct perigee_message *m) {
  const uint8_t *bytes = NULL;
  uint64_t length;
  if (op->record == RECORD_REQUEST && !op->traced)
    bytes = outgoing_short(op, m, &length);
  return bytes ? call_publish_bytes(op, m, bytes, length)
               : call_publish_planned(op, m);
}

bool call_publish_waiting(struct operation *op) {
  int status = call_publish(op, &op->message);
  if (status == WAITS)
    return false;
  pool_give(op->engine, op->block); /* the copy of a loan, while it waited */
  op->block = NULL;
  if (status < 0)
    call_stop(op, status);
  return true;
}

/* ---- Submitting --------------------------------------------------------- */

/* Undoes an operation that neither the peer nor the program knows of. */
static int call_withdraw(struct operation *op, int status) {
  op->status = status;
  span_lost(op, status);
  op->session->counters->calls -= op->kind == OP_CALL;
  op->session->drain.calls -= op->kind == OP_CALL;
  call_unmark(op);
  call_let_go(op);
  parts_end(op);
  call_advance(op, STOP);
  call_advance(op, GIVEN);
  operation_free(op);
  return status;
}

/* Starts it: it is marked live, and timed. */
static inline __attribute__((always_inline)) void
call_enter(struct operation *op, int64_t timeout) {
  struct lane *lane = op->session->lane;
  call_advance_from(op, FREE, SUBMIT);
  operation_time(op, timeout);
  op->marked = true;
  lane_payloads(lane)->mark(lane, op->index, op->generation);
}

/* Publishes the message, unless others wait for room already: what became of it,
 * or a status. */
static inline __attribute__((always_inline)) int
call_try(struct operation *op, const struct perigee_message *m) {
  struct node *backlog = &op->session->operations.backlog[RING_REQUEST];
  return list_empty(backlog) ? call_publish(op, m) : WAITS;
}

/* It waits for room. The program's list may change meanwhile. Returns 0 or a
 * status. */
static __attribute__((noinline)) int call_wait(struct operation *op) {
  stats_begin(op, op->kind);
  const struct perigee_slice *slice = &op->message.slice;
  int status = slice->region && slice_is_list(slice)
                   ? spread_keep(op, slice, false)
                   : PERIGEE_OK;
  if (status == PERIGEE_OK)
    backlog_wait(op, RING_REQUEST);
  return status;
}

/* Ends the submission, with the status of call_try(). */
static inline __attribute__((always_inline)) int
call_submitted(struct operation *op, int status) {
  if (status == WAITS)
    status = call_wait(op);
  return status < 0 ? call_withdraw(op, status) : op->index;
}

/* Keeps the whole message, which is still to be sent, or what the reply of one
 * that was sent needs: the program has just stored the rest (apart.h). */
static inline __attribute__((always_inline)) void
call_keep_message(struct operation *op, const struct perigee_message *m,
                  bool whole) {
  if (whole) {
    op->message = *m;
    return;
  }
  op->message.method = m->method;
  op->message.flags = m->flags;
  slice_keep(&op->message.into, &m->into);
  op->message.capacity = m->capacity;
}

/* became: what became of the message, or a status. kept: it uses the memory of
 * `into` already. */
static inline __attribute__((always_inline)) void
call_keep(struct operation *op, const struct perigee_message *message,
          int became, bool kept) {
  call_keep_message(op, message, became == WAITS);
  if (message->slice.region && became != WHOLE)
    operation_ref_slice(op, &message->slice);
  if (!kept)
    operation_ref(op, message->into.region);
}

static struct operation *call_take(struct perigee_session *session,
                                   const struct operation_class *class,
                                   int record, struct operation *parent,
                                   uint32_t nth) {
  struct operation *op = operation_take(session, class);
  if (!op)
    return NULL;
  op->record = (uint8_t)record;
  op->parent = parent;
  op->nth = nth;
  return op;
}

/* The message goes to the peer before this side keeps what the reply will need:
 * the peer works meanwhile. Nothing reads the reply before that, as it takes a
 * poll. */
static inline __attribute__((always_inline)) int
call_submit(struct operation *op, const struct perigee_message *m,
            int64_t timeout, bool kept) {
  call_enter(op, timeout);
  int status = call_try(op, m);
  call_keep(op, m, status, kept);
  return call_submitted(op, status);
}

/* A peer would end the session for a request of such a capacity. */
static int call_beyond_all(const struct perigee_session *session) {
  return fail(session->engine, PERIGEE_TOO_LARGE,
              "no reply has as many bytes as this call's capacity");
}

/* The peer takes no more calls (session/drain.c). */
static int call_draining(const struct perigee_session *session) {
  return fail(session->engine, PERIGEE_DRAINING, "%s",
              perigee_status_text(PERIGEE_DRAINING));
}

/* Counts a call that begins. */
static inline __attribute__((always_inline)) void
call_note(struct operation *op, const struct perigee_message *message) {
  struct perigee_session *s = op->session;
  s->counters->calls++;
  s->drain.calls++;
  stats_call(op, message->method);
}

/* The call's message names a trace. */
static void call_trace(struct operation *op,
                       const struct perigee_message *message) {
  trace_keep(op, message);
  if (span_has(op))
    op->class = &call_spanned_class;
}

/* Submits a call that was checked. */
static inline __attribute__((always_inline)) int
call_begin(struct operation *op, const struct perigee_message *message,
           bool kept) {
  if (UNLIKELY(message->trace != NULL))
    call_trace(op, message);
  call_note(op, message);
  return call_submit(op, message, message->timeout, kept);
}

/* Uses the memory of a call's `into`: of a list, the operation keeps the
 * spread. */
static __attribute__((noinline)) int
call_keep_into(struct operation *op, const struct perigee_slice *into) {
  if (slice_is_list(into))
    return spread_keep(op, into, true);
  operation_ref(op, into->region);
  return PERIGEE_OK;
}

/* Begins a call whose `into` is a list. */
static __attribute__((noinline)) int
call_begin_listed(struct perigee_session *session,
                  const struct perigee_message *message,
                  struct operation *parent, uint32_t nth) {
  int status;
  if (message->trace && (status = trace_check(session, message)) < 0)
    return status;
  struct operation *op =
      call_take(session, &call_class, RECORD_REQUEST, parent, nth);
  if (!op)
    return PERIGEE_NO_MEMORY;
  status = call_keep_into(op, &message->into);
  if (status < 0) {
    operation_free(op);
    return status;
  }
  return call_begin(op, message, true);
}

/* Inlined twice, so that nth is a constant (0) in calls of no batch. */
static inline __attribute__((always_inline)) int
call_new_of(struct perigee_session *session,
            const struct perigee_message *message, struct operation *parent,
            uint32_t nth) {
  int status;
  struct payload into;
  if (!session_open_for(session, &status))
    return status;
  if (UNLIKELY(session->drain.theirs) && message->method != 0)
    return call_draining(session);
  if (UNLIKELY(message->capacity > PAYLOAD_MAX))
    return call_beyond_all(session);
  if (typed_is_due(message) &&
      (status =
           outgoing_typed(session->engine, message->head, message->length)) < 0)
    return status;
  const struct perigee_slice *s = &message->into;
  if (s->region && !region_has(s->region, s)) {
    if (slice_is_list(s))
      return call_begin_listed(session, message, parent, nth);
    if ((status = slice_payload(session->engine, s, &into)) < 0)
      return status;
  }
  if (UNLIKELY(message->trace != NULL) &&
      (status = trace_check(session, message)) < 0)
    return status;
  struct operation *op =
      call_take(session, &call_class, RECORD_REQUEST, parent, nth);
  return op ? call_begin(op, message, false) : PERIGEE_NO_MEMORY;
}

static int call_new(struct perigee_session *session,
                    const struct perigee_message *message) {
  return call_new_of(session, message, NULL, 0);
}

int call_of_batch(struct perigee_session *session,
                  const struct perigee_message *message,
                  struct operation *parent, uint32_t nth) {
  return call_new_of(session, message, parent, nth);
}

BESIDE call_new_locked(struct perigee_session *session,
                       const struct perigee_message *message) {
  ENTER(session->engine);
  return call_new(session, message);
}

int perigee_call(struct perigee_session *session,
                 const struct perigee_message *message) {
  STAMP(STAMP_CALLED);
  ALONE(session->engine);
  return SHARED(session->engine) ? call_new_locked(session, message)
                                 : call_new(session, message);
}

int perigee_send(struct perigee_session *session,
                 const struct perigee_slice *slice, int64_t timeout) {
  ENTER(session->engine);
  int status;
  if (!session_open_for(session, &status))
    return status;
  if (!slice || !slice->region)
    return fail_missing(session->engine, "slice to send");
  struct perigee_message message = {.slice = *slice};
  struct operation *op = call_take(session, &send_class, RECORD_SEND, NULL, 0);
  if (!op)
    return PERIGEE_NO_MEMORY;
  session->counters->messages++;
  stats_begin(op, OP_SEND);
  return call_submit(op, &message, timeout, false);
}

/* Submits one item of a batch; the batch keeps the local region alive. */
int call_access(struct perigee_session *session, bool write,
                const struct perigee_transfer *item, struct spread *local,
                struct operation *parent) {
  const struct perigee_slice *remote = &item->remote;
  struct perigee_message message = {.length = sizeof(struct access)};
  struct perigee_slice *own = write ? &message.slice : &message.into;
  *own = local ? perigee_list(&item->local, 1) : item->local;
  struct operation *op =
      write ? call_take(session, &write_class, RECORD_WRITE, parent, 0)
            : call_take(session, &read_class, RECORD_READ, parent, 0);
  if (!op) {
    if (local)
      spread_free(local);
    return PERIGEE_NO_MEMORY;
  }
  if (local)
    spread_give(op, local);
  op->access = (struct access){remote->remote->window.slot,
                               remote->remote->window.generation,
                               remote->offset,
                               remote->length,
                               remote->count,
                               remote->stride};
  message.head = &op->access;
  stats_begin(op, op->kind);
  return call_submit(op, &message, -1, local != NULL);
}

/* ---- Requests that are filled in place ---------------------------------- */

static int call_lend(struct perigee_session *session, uint64_t capacity,
                     struct perigee_loan *loan) {
  int status;
  if (!session_open_for(session, &status))
    return status;
  return loan_begin(session, RING_REQUEST, capacity, loan);
}

BESIDE call_lend_locked(struct perigee_session *session, uint64_t capacity,
                        struct perigee_loan *loan) {
  ENTER(session->engine);
  return call_lend(session, capacity, loan);
}

int perigee_call_begin(struct perigee_session *session, uint64_t capacity,
                       struct perigee_loan *loan) {
  STAMP(STAMP_CALLED);
  return SHARED(session->engine) ? call_lend_locked(session, capacity, loan)
                                 : call_lend(session, capacity, loan);
}

int perigee_call_abort(struct perigee_session *session) {
  ENTER(session->engine);
  if (!engine_alive(session->engine))
    return PERIGEE_OK;
  return loan_abort(session, RING_REQUEST);
}

/* The memory is lent again at once, so a request that waits for room is copied. */
static int call_keep_short(struct operation *op, const struct loan *loan,
                           uint64_t length) {
  op->block = pool_take(op->session, length);
  if (!op->block)
    return PERIGEE_NO_MEMORY;
  op->message.head = memcpy(op->block, loan->pointer, length);
  return WAITS;
}

/* The same where the bytes are in room of the ring, but another record may have come
 * first. */
static __attribute__((noinline)) int call_publish_room(struct operation *op,
                                                       uint64_t length) {
  struct record r = call_record(op, &op->message, length);
  return outgoing_lent(op->session, RING_REQUEST, &r)
             ? call_was_published(op, length)
             : call_publish_bytes(op, &op->message, op->message.head, length);
}

/* In room of the ring, the trace context would lie over the bytes. */
static __attribute__((noinline)) int
call_publish_traced_loan(struct operation *op, const struct loan *loan,
                         uint64_t length) {
  int status = loan->in_ring
                   ? loan_leave_ring(op->session, RING_REQUEST, length)
                   : PERIGEE_OK;
  op->message.head = loan->pointer;
  return status < 0 ? status : call_publish_planned(op, &op->message);
}

static inline int call_publish_loan(struct operation *op,
                                    const struct loan *loan, uint64_t length) {
  if (UNLIKELY(op->traced))
    return call_publish_traced_loan(op, loan, length);
  return UNLIKELY(loan->in_ring)
             ? call_publish_room(op, length)
             : call_publish_bytes(op, &op->message, loan->pointer, length);
}

/* The bytes are short, and in memory that the operation does not own: nothing
 * else of the message has to be looked at. */
static int call_submit_short(struct operation *op, const struct loan *loan,
                             uint64_t length) {
  struct node *backlog = &op->session->operations.backlog[RING_REQUEST];
  int status = WAITS;
  op->message.head = loan->pointer;
  op->message.length = length;
  call_enter(op, op->message.timeout);
  if (list_empty(backlog))
    status = call_publish_loan(op, loan, length);
  if (status == WAITS)
    status = call_keep_short(op, loan, length);
  return call_submitted(op, status);
}

static int call_submit_block(struct operation *op, struct loan *loan,
                             uint64_t length) {
  bool pushes = lane_payloads(op->session->lane)->pushes;
  operation_lends(op, &loan->lent);
  op->message.head = pushes ? loan->pointer : NULL;
  op->message.length = pushes ? length : 0;
  op->loan = loan->source;
  op->loan.block = op->loan.stride = length;
  op->lent = true;
  call_enter(op, op->message.timeout);
  return call_submitted(op, call_try(op, &op->message));
}

/* May the loan be committed so? If not, a status; the loan was given back. */
static int call_check_loan(struct perigee_session *session,
                           const struct perigee_message *message,
                           uint64_t length) {
  int status = loan_check(session, RING_REQUEST, length);
  if (status < 0)
    return status;
  if (UNLIKELY(session->drain.theirs) && message->method != 0)
    status = call_draining(session);
  else if (message->capacity > PAYLOAD_MAX)
    status = call_beyond_all(session);
  else if (UNLIKELY(message->trace != NULL))
    status = trace_check(session, message);
  if (status < 0)
    loan_abort(session, RING_REQUEST);
  return status;
}

static int call_commit(struct perigee_session *session,
                       const struct perigee_message *message, uint64_t length) {
  struct loan *loan = &session->operations.loans[RING_REQUEST];
  struct operation *op = NULL;
  if (!engine_alive(session->engine))
    return PERIGEE_FORKED;
  int status = call_check_loan(session, message, length);
  if (status < 0)
    return status;
  status = PERIGEE_NO_MEMORY;
  if (!session_open_for(session, &status) ||
      !(op = call_take(session, &call_class, RECORD_REQUEST, NULL, 0))) {
    loan_abort(session, RING_REQUEST);
    return status;
  }
  if (UNLIKELY(message->into.region != NULL) &&
      (status = call_keep_into(op, &message->into)) < 0) {
    operation_free(op);
    loan_abort(session, RING_REQUEST);
    return status;
  }
  if (UNLIKELY(message->trace != NULL))
    call_trace(op, message);
  call_keep_message(op, message, true); /* but its slice, which is ignored */
  op->message.flags &= PERIGEE_ASKS;
  op->message.slice.region = NULL;
  call_note(op, message);
  status = loan_is_short(loan) ? call_submit_short(op, loan, length)
                               : call_submit_block(op, loan, length);
  loan_close(session, RING_REQUEST);
  return status;
}

BESIDE call_commit_locked(struct perigee_session *session,
                          const struct perigee_message *message,
                          uint64_t length) {
  ENTER(session->engine);
  return call_commit(session, message, length);
}

int perigee_call_commit(struct perigee_session *session,
                        const struct perigee_message *message,
                        uint64_t length) {
  return SHARED(session->engine) ? call_commit_locked(session, message, length)
                                 : call_commit(session, message, length);
}
