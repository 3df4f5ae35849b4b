/* SPDX-License-Identifier: Apache-2.0
 *
 * call.c - own operations that send one record and get one back: calls,
 * messages, and one-sided access that the region's owner does for this side.
 *
 *   state      event     becomes
 *   free       submit    queued     counted, marked live, timed
 *   queued     publish   sent       the record is in the peer's ring
 *   queued     stop      ended      timeout, cancel, session lost
 *   sent       reply     ended      all of it was in the record
 *   sent       bulk      fetching   some of it has to be pulled
 *   sent       ask       asked      REPLY_LANDING is given, or a pooled block
 *                                   is taken at once
 *   sent       stop      ended
 *   asked      land      fetching   a place was named
 *   asked      stop      ended
 *   fetching   ask       asked      the head is complete, as above
 *   fetching   fetched   ended
 *   fetching   stop      ended
 *   ended      given     free       its event was polled, and a poll followed
 *   ended      lend      orphaned   as given, but the peer may still read the
 *                                   loan that the request was
 *   orphaned   let_go    free       the late reply came, or the session is gone
 *
 * A record is published before this side keeps the message. The operation waits
 * in the session's backlog if there is no room in the ring. A request that the
 * program fills in place (loan.h) is a stage, if it is short, of which commit
 * copies into the ring; a long one is a block that the peer reads. The reply is
 * brought to where the caller wants it. A caller that asked for it (PERIGEE_ASKS)
 * says so only now, and may take its time, as timeouts, cancels and the session's
 * end reach the operation as ever. Its head lies in a block of the operation, and
 * the peer keeps a long slice, until then.
 *
 * An operation that ends while asynchronous copies of its memory are in
 * progress has quiet_wait set, and its event comes when the copies are done.
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
#include "outcome.h"

enum call_state { FREE, QUEUED, SENT, ASKED, FETCHING, ENDED, ORPHANED };
enum call_event {
  SUBMIT,
  PUBLISH,
  STOP,
  REPLY,
  BULK,
  ASK,
  LAND,
  FETCHED,
  GIVEN,
  LEND,
  LET_GO
};

const struct machine call_machine = {
    .name = "call",
    .taken = MACHINE_STEPS,
    .states = {"free", "queued", "sent", "asked", "fetching", "ended",
               "orphaned"},
    .events = {"submit", "publish", "stop", "reply", "bulk", "ask", "land",
               "fetched", "given", "lend", "let_go"},
    .next = {
        [FREE] = {[SUBMIT] = TO(QUEUED)},
        [QUEUED] = {[PUBLISH] = TO(SENT), [STOP] = TO(ENDED)},
        [SENT] = {[REPLY] = TO(ENDED),
                  [BULK] = TO(FETCHING),
                  [ASK] = TO(ASKED),
                  [STOP] = TO(ENDED)},
        [ASKED] = {[LAND] = TO(FETCHING), [STOP] = TO(ENDED)},
        [FETCHING] =
            {[ASK] = TO(ASKED), [FETCHED] = TO(ENDED), [STOP] = TO(ENDED)},
        [ENDED] = {[GIVEN] = TO(FREE), [LEND] = TO(ORPHANED)},
        [ORPHANED] = {[LET_GO] = TO(FREE)},
    }};

static void call_advance(struct operation *op, enum call_event event) {
  machine_step(&call_machine, &op->state, event);
}

/* ---- Ending ------------------------------------------------------------- */

/* May the request's loan be given back? It may once the peer has answered, and
 * if payloads are pushed, as the peer then never sees it. */
static bool call_peer_is_done(const struct operation *op) {
  return op->replied || (op->lent && lane_payloads(op->session->lane)->pushes);
}

/* Gives the request's loan back: the peer does not read it any more. */
static void call_let_go(struct operation *op) {
  struct lane *lane = op->session->lane;
  if (op->lent)
    lane_table(lane)->loans->unloan(lane, &op->loan);
  op->lent = false;
}

static void call_unmark(struct operation *op) {
  struct perigee_session *session = op->session;
  if (!op->marked || !session || !session->lane)
    return;
  op->marked = false;
  lane_payloads(session->lane)->mark(session->lane, op->index, 0);
  const struct transport_payloads *t = lane_payloads(session->lane);
  if (session->state != PERIGEE_SESSION_OPEN || op->state == QUEUED)
    return;
  /* Tells the peer of the end if it waits for that to free what its reply
   * refers to, still serves the request, or has not received all that was
   * sent. */
  bool sent = t->pushes && op->has_parts;
  if (t->ended && (op->by_reference || op->status != PERIGEE_OK || sent))
    t->ended(session->lane, op->index, op->generation);
  if (op->by_reference)
    session_wake(session);
}

/* Queues its event, or tells the transfer that it belongs to. */
static inline __attribute__((always_inline)) void
call_tell(struct operation *op) {
  operation_unref(op);
  if (op->parent) {
    struct operation *parent = op->parent;
    int status = op->status;
    call_advance(op, GIVEN);
    operation_free(op);
    parent->class->child(parent, status);
    return;
  }
  struct perigee_counters *c = op->session->counters;
  c->failures += op->status != PERIGEE_OK;
  if (op->kind == OP_CALL) {
    c->replies++;
    op->session->drain.calls--;
    stats_time(op);
  }
  operation_event(op, op->class->event);
}

/* May its mark stay until its event has been polled (given)? The mark of a
 * reply which is read in place must. The peer looks at no mark again once it
 * has answered a request that was all in its record by a reply that was,
 * too. */
static bool call_mark_lingers(const struct operation *op, int status) {
  bool alone = !op->by_reference && !op->has_parts && !op->lent && !op->parent;
  return status == PERIGEE_OK && (op->in_place || alone);
}

/* Tells what can be done for a reply that has come and has no place here. */
static void call_say_no_place(struct operation *op, int status) {
  static const char full[] =
      "the pool has no room for the reply (option pool): name another place "
      "for its bytes (into)";
  static const char narrow[] =
      "the reply is longer than the place that was named for it (into)";
  bool large = status == PERIGEE_TOO_LARGE && op->message.into.region;
  const char *text = status == PERIGEE_NO_MEMORY ? full : large ? narrow : NULL;
  if (!text || !op->replied || op->status != PERIGEE_OK)
    return;
  op->pointer = (const uint8_t *)text;
  op->length = strlen(text);
}

/* Ends a call in a state that can end; its event follows. */
static void call_end(struct operation *op, int status) {
  if (status != PERIGEE_OK) {
    op->slice = op->length = 0;
    op->pointer = NULL;
    op->flags = 0;
    call_say_no_place(op, status);
    op->status = status;
    if (op->kind == OP_CALL)
      op->value = (uint64_t)outcome_due(op);
  }
  if (!call_mark_lingers(op, status))
    call_unmark(op);
  if (op->replied && (!op->in_place || op->loan.block >= LOAN_WARM))
    call_let_go(op);
  op->quiet_wait = !parts_end(op);
  if (op->quiet_wait) {
    operation_unqueue(op);
    operation_untime(op);
    operation_move(op);
  } else {
    call_tell(op);
  }
}

void call_stop(struct operation *op, int status) {
  if (op->state == ENDED || op->quiet_wait)
    return;
  if (op->state == ORPHANED) {
    if (op->session->state == PERIGEE_SESSION_OPEN)
      return; /* the program knows of the end, but the peer may still read */
    call_advance(op, LET_GO);
    operation_free(op);
    return;
  }
  if (op->state == QUEUED) { /* the request was never sent */
    call_let_go(op);
    call_unmark(op);
  }
  call_advance(op, STOP);
  call_end(op, status);
}

bool call_pending(const struct operation *op) {
  return op->quiet_wait || (op->state != ENDED && op->state != ORPHANED);
}

bool call_asks(const struct operation *op) {
  return op->state == ASKED;
}

bool call_beyond(const struct operation *op, uint64_t sent) {
  return op->state == QUEUED || (op->state == SENT && op->ordinal > sent);
}

/* What the event does not wait for. */
static void call_given(struct operation *op) {
  call_unmark(op);
  if (call_peer_is_done(op))
    call_let_go(op);
  if (op->lent && op->session->state == PERIGEE_SESSION_OPEN) {
    call_advance(op, LEND);
    operation_count(op); /* for the peer, which keeps it from being free */
    return;
  }
  call_advance(op, GIVEN);
  operation_free(op);
}

/* The same for a call, which counts. */
static void call_counted(struct operation *op) {
  stats_count_own(op);
  call_given(op);
}

/* ---- Publishing --------------------------------------------------------- */

static uint32_t call_remaining(const struct operation *op) {
  if (op->timeout < 0)
    return RECORD_NO_LIMIT;
  int64_t left = op->timeout;
  if (!op->fresh.next)
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
    return status == PERIGEE_AGAIN ? 0 : status;
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
    return 0;
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
  return 1;
}

static int call_publish_bytes(struct operation *op,
                              const struct perigee_message *m,
                              const uint8_t *bytes, uint64_t length) {
  struct record r = {.kind = RECORD_REQUEST,
                     .flags = (m->flags & PERIGEE_TYPED ? RECORD_TYPED : 0) |
                              (m->code ? RECORD_CODE : 0) |
                              (m->capacity ? RECORD_CAPACITY : 0),
                     .method = m->method,
                     .operation = op->index,
                     .generation = op->generation,
                     .code = m->code,
                     .capacity = m->capacity,
                     .remaining = call_remaining(op),
                     .head_length = length};
  if (!outgoing_bytes(op->session, RING_REQUEST, &r, bytes))
    return 0;
  op->ordinal = ++op->session->drain.sent;
  stats_sent(op, length);
  call_advance(op, PUBLISH);
  return 1;
}

/* Publishes the operation's record. The message may be the program's still.
 * Returns 1 if it was published, 0 without room in the ring or without a block,
 * or a status. */
static inline __attribute__((always_inline)) int
call_publish(struct operation *op, const struct perigee_message *m) {
  const uint8_t *bytes = NULL;
  uint64_t length;
  if (op->record == RECORD_REQUEST && !op->traced)
    bytes = outgoing_short(op, m, &length);
  return bytes ? call_publish_bytes(op, m, bytes, length)
               : call_publish_planned(op, m);
}

/* Publishes a record that waited for room. */
static bool call_publish_waiting(struct operation *op) {
  int status = call_publish(op, &op->message);
  if (status == 0)
    return false;
  pool_give(op->engine, op->block); /* the copy of a stage, while it waited */
  op->block = NULL;
  if (status < 0)
    call_stop(op, status);
  return true;
}

/* ---- Landings of replies ------------------------------------------------- */

static const struct operation_class asked_class;
static void call_fetch(struct operation *op);
static void call_land_pooled(struct operation *op);

/* The head of the reply is there, and the rest has a length: the program says
 * where it goes, unless it waits for the reply alone. */
static void call_ask(struct operation *op) {
  call_advance(op, ASK);
  span_landing(op);
  if (op->message.flags & PERIGEE_ASKS) {
    if (!span_has(op))
      op->class = &asked_class;
    op->flags |= OPERATION_ASKS;
    op->value = (uint64_t)outcome_due(op);
    operation_ask(op, PERIGEE_EVENT_REPLY_LANDING);
  } else {
    call_land_pooled(op);
  }
}

/* The program was told where it is asked, and has polled since. That ends
 * nothing. */
static void call_asked_given(struct operation *op) {
  if (op->state != ASKED)
    call_counted(op);
}

/* Makes the payload of a landing. A list's uses its regions. */
static int call_place(struct operation *op, const struct perigee_slice *slice,
                      struct spread **spread, struct payload *into) {
  if (!slice_is_list(slice))
    return slice_payload(op->engine, slice, into);
  int status = spread_make(op->engine, slice, true, spread);
  if (status == PERIGEE_OK)
    *into = (*spread)->payload;
  return status;
}

/* The memory is in use only if the landing is accepted: the program may try
 * again, and names another one then. */
static int call_land(struct operation *op, const struct perigee_slice *slice) {
  struct spread *spread = NULL;
  struct payload into;
  bool named = slice && slice->region;
  int status = named ? call_place(op, slice, &spread, &into) : PERIGEE_OK;
  if (status == PERIGEE_OK)
    status = outcome_land(op, named ? &into : NULL);
  if (status < 0 && spread)
    spread_free(spread);
  if (status < 0)
    return status;
  if (spread)
    spread_give(op, spread);
  else if (named)
    operation_ref(op, slice->region);
  operation_unqueue(op);
  call_advance(op, LAND);
  operation_move(op);
  budget_forget_own(&op->engine->budget);
  call_fetch(op);
  return PERIGEE_OK;
}

static void call_land_pooled(struct operation *op) {
  int status = call_land(op, NULL);
  if (status < 0)
    call_stop(op, status);
}

bool call_join(struct operation *op) {
  if (op->event == PERIGEE_EVENT_NONE && !call_pending(op))
    return false;
  if (UNLIKELY(op->message.flags & PERIGEE_ASKS)) {
    op->message.flags &= (uint16_t)~PERIGEE_ASKS;
    if (op->state == ASKED)
      call_land_pooled(op);
  }
  return true;
}

int perigee_land_reply(struct perigee_engine *engine, int operation,
                       const struct perigee_slice *slice) {
  ENTER(engine);
  struct operation *op = operation_find(engine, operation);
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  if (!op || op->kind != OP_CALL)
    return fail(engine, PERIGEE_INVALID, "operation %d is no call of this side",
                operation);
  if (op->state == ENDED && op->status < 0)
    return fail(engine, op->status, "call %d has ended (%s)", operation,
                perigee_status_text(op->status));
  if (op->state != ASKED)
    return fail(engine, PERIGEE_INVALID, "call %d waits for no landing",
                operation);
  return call_land(op, slice);
}

/* ---- The reply ---------------------------------------------------------- */

static void call_finish(struct operation *op) {
  if (op->slice_block)
    op->flags |= PERIGEE_POOLED;
  if (op->flags & PERIGEE_HELD)
    op->value = (uint64_t)outcome_due(op);
  if (op->kind == OP_CALL)
    op->session->counters->bytes_received += op->length + op->slice;
  call_end(op, PERIGEE_OK);
}

/* A reply to a call that has already ended for its caller: the loan that the
 * request was is free again. */
static void call_late(struct operation *op) {
  op->replied = true;
  if (op->state != ORPHANED)
    return;
  call_let_go(op);
  call_advance(op, LET_GO);
  operation_free(op);
}

void call_reply(struct perigee_session *session, const struct record *r) {
  struct operation *op = operation_find(session->engine, r->operation);
  if (!op || op->session != session || op->generation != r->generation ||
      op->kind > OP_SEND)
    return;
  if (op->state != SENT) {
    call_late(op);
    return;
  }
  op->replied = true;
  op->status = status_of_peer(r->status);
  op->code = r->code;
  int head = outcome_fits(op, r) ? outcome_head(op, r) : PERIGEE_PROTOCOL;
  int slice = head < 0 ? head : outcome_slice(op, r);
  if (slice < 0 || (head == 1 && slice == 1)) {
    call_advance(op, REPLY);
    if (slice < 0)
      call_end(op, slice);
    else
      call_finish(op);
  } else if (op->landed && head > 0) {
    call_ask(op);
  } else {
    call_advance(op, BULK);
    operation_move(op);
  }
}

static void call_fetch(struct operation *op) {
  int status = outcome_step(op);
  if (status == 0)
    return;
  if (status < 0) {
    call_stop(op, status);
    return;
  }
  if (status == OUTCOME_OFFERED) {
    call_ask(op);
    return;
  }
  call_advance(op, FETCHED);
  call_finish(op);
}

static void call_step(struct operation *op) {
  if (op->quiet_wait) {
    op->engine->poll_soon |= SOON_LOOK;
    if (!parts_end(op))
      return;
    op->quiet_wait = false;
    list_remove(&op->queue);
    call_tell(op);
  } else if (op->state == FETCHING) {
    call_fetch(op);
  } else {
    int status = part_step(op, OUT_HEAD);
    if (status >= 0)
      status = part_step(op, OUT_SLICE);
    if (status < 0)
      call_stop(op, status);
  }
}

/* The same for a call with a span, whose landing is noted. */
static void call_spanned_step(struct operation *op) {
  if (op->state == FETCHING)
    span_landing(op);
  call_step(op);
}

/* ---- Classes ------------------------------------------------------------ */

#define CALL_CLASS(kind_, name_, event_, given_)                               \
  {                                                                            \
    .name = (name_), .kind = (kind_), .event = (event_), .step = call_step,    \
    .late = operation_late, .stop = call_stop, .given = (given_),              \
    .publish = call_publish_waiting                                            \
  }

static const struct operation_class call_class =
    CALL_CLASS(OP_CALL, "call", PERIGEE_EVENT_REPLY, call_counted);
static const struct operation_class asked_class = {.name = "call",
                                                   .kind = OP_CALL,
                                                   .event = PERIGEE_EVENT_REPLY,
                                                   .step = call_step,
                                                   .late = operation_late,
                                                   .stop = call_stop,
                                                   .given = call_asked_given};
static const struct operation_class call_spanned_class = {
    .name = "call",
    .kind = OP_CALL,
    .event = PERIGEE_EVENT_REPLY,
    .step = call_spanned_step,
    .late = operation_late,
    .stop = call_stop,
    .given = call_asked_given,
    .publish = call_publish_waiting};
static const struct operation_class read_class =
    CALL_CLASS(OP_READ, "read", PERIGEE_EVENT_DONE, call_given);
static const struct operation_class write_class =
    CALL_CLASS(OP_WRITE, "write", PERIGEE_EVENT_DONE, call_given);
static const struct operation_class send_class =
    CALL_CLASS(OP_SEND, "send", PERIGEE_EVENT_DONE, call_given);

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
static void call_enter(struct operation *op, int64_t timeout) {
  struct lane *lane = op->session->lane;
  call_advance(op, SUBMIT);
  operation_time(op, timeout);
  op->marked = true;
  lane_payloads(lane)->mark(lane, op->index, op->generation);
}

/* Publishes the message, unless others wait for room already: 1, 0 if it has to
 * wait, or a status. */
static inline __attribute__((always_inline)) int
call_try(struct operation *op, const struct perigee_message *m) {
  struct node *backlog = &op->session->operations.backlog[RING_REQUEST];
  return list_empty(backlog) ? call_publish(op, m) : 0;
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
    backlog_add(op, RING_REQUEST);
  return status;
}

/* Ends the submission, with the status of call_try(). */
static inline __attribute__((always_inline)) int
call_submitted(struct operation *op, int status) {
  if (status == 0)
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

/* kept: it uses the memory of `into` already. */
static inline __attribute__((always_inline)) void
call_keep(struct operation *op, const struct perigee_message *message,
          bool whole, bool kept) {
  call_keep_message(op, message, whole);
  if (message->slice.region)
    operation_ref_slice(op, &message->slice);
  if (!kept)
    operation_ref(op, message->into.region);
}

static struct operation *call_take(struct perigee_session *session,
                                   const struct operation_class *class,
                                   int record) {
  struct operation *op = operation_take(session, class);
  if (!op)
    return NULL;
  op->record = (uint8_t)record;
  op->parent = NULL;
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
  call_keep(op, m, status == 0, kept);
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
                  const struct perigee_message *message) {
  int status;
  if (message->trace && (status = trace_check(session, message)) < 0)
    return status;
  struct operation *op = call_take(session, &call_class, RECORD_REQUEST);
  if (!op)
    return PERIGEE_NO_MEMORY;
  status = call_keep_into(op, &message->into);
  if (status < 0) {
    operation_free(op);
    return status;
  }
  return call_begin(op, message, true);
}

static int call_new(struct perigee_session *session,
                    const struct perigee_message *message) {
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
      return call_begin_listed(session, message);
    if ((status = slice_payload(session->engine, s, &into)) < 0)
      return status;
  }
  if (UNLIKELY(message->trace != NULL) &&
      (status = trace_check(session, message)) < 0)
    return status;
  struct operation *op = call_take(session, &call_class, RECORD_REQUEST);
  return op ? call_begin(op, message, false) : PERIGEE_NO_MEMORY;
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
  struct operation *op = call_take(session, &send_class, RECORD_SEND);
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
  struct operation *op = write ? call_take(session, &write_class, RECORD_WRITE)
                               : call_take(session, &read_class, RECORD_READ);
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
  op->parent = parent;
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

/* A stage is reused at once, so a request that waits for room is copied. */
static int call_keep_stage(struct operation *op, const struct loan *loan,
                           uint64_t length) {
  op->block = pool_take(op->session, length);
  if (!op->block)
    return PERIGEE_NO_MEMORY;
  op->message.head = memcpy(op->block, loan->pointer, length);
  return 0;
}

/* The bytes are short, and in a stage, which the operation does not own:
 * nothing else of the message has to be looked at. */
static int call_submit_stage(struct operation *op, const struct loan *loan,
                             uint64_t length) {
  struct node *backlog = &op->session->operations.backlog[RING_REQUEST];
  int status = 0;
  op->message.head = loan->pointer;
  op->message.length = length;
  call_enter(op, op->message.timeout);
  if (list_empty(backlog))
    status = UNLIKELY(op->traced)
                 ? call_publish_planned(op, &op->message)
                 : call_publish_bytes(op, &op->message, loan->pointer, length);
  if (status == 0)
    status = call_keep_stage(op, loan, length);
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
      !(op = call_take(session, &call_class, RECORD_REQUEST))) {
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
  call_keep(op, message, true, true);
  op->message.flags &= PERIGEE_ASKS;
  op->message.slice.region = NULL;
  call_note(op, message);
  status = loan->stage ? call_submit_stage(op, loan, length)
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
