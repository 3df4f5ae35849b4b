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
 *   sent       stop      ended
 *   fetching   fetched   ended
 *   fetching   stop      ended
 *   ended      given     free       its event was polled, and a poll followed
 *   ended      lend      orphaned   as given, but the peer may still read the
 *                                   loan that the request was
 *   orphaned   let_go    free       the late reply came, or the session is gone
 *
 * If an operation ends while asynchronous copies of its memory are in progress,
 * quiet_wait is set and its event comes when they are done.
 */
#include <string.h>

#include "base/stamp.h"
#include "base/typed.h"
#include "call.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "operation/loan.h"

const struct machine call_machine = {
    .name = "call",
    .taken = MACHINE_STEPS,
    .states = {"free", "queued", "sent", "fetching", "ended", "orphaned"},
    .events = {"submit", "publish", "stop", "reply", "bulk", "fetched", "given",
               "lend", "let_go"},
    .next = {
        [FREE] = {[SUBMIT] = TO(QUEUED)},
        [QUEUED] = {[PUBLISH] = TO(SENT), [STOP] = TO(ENDED)},
        [SENT] =
            {[REPLY] = TO(ENDED), [BULK] = TO(FETCHING), [STOP] = TO(ENDED)},
        [FETCHING] = {[FETCHED] = TO(ENDED), [STOP] = TO(ENDED)},
        [ENDED] = {[GIVEN] = TO(FREE), [LEND] = TO(ORPHANED)},
        [ORPHANED] = {[LET_GO] = TO(FREE)},
    }};

/* ---- Ending ------------------------------------------------------------- */

/* May the request's loan be given back? It may once the peer has answered, and
 * if payloads are pushed, as the peer then never sees it. */
static bool peer_is_done(const struct operation *op) {
  return op->replied || (op->lent && lane_payloads(op->session->lane)->pushes);
}

/* Gives the request's loan back: the peer does not read it any more. */
void call_let_go(struct operation *op) {
  struct lane *lane = op->session->lane;
  if (op->lent)
    lane_table(lane)->loans->unloan(lane, &op->loan);
  op->lent = false;
}

static void unmark(struct operation *op) {
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

void call_tell(struct operation *op) {
  operation_unref(op);
  if (op->parent) {
    struct operation *parent = op->parent;
    int status = op->status;
    step(op, GIVEN);
    operation_free(op);
    parent->class->child(parent, status);
    return;
  }
  struct perigee_counters *c = &op->session->counters;
  c->failures += op->status != PERIGEE_OK;
  c->replies += op->kind == OP_CALL;
  operation_event(op, op->class->event);
}

/* May its mark stay until its event has been polled (given)? That of a reply
 * which is read in place must. The peer looks at no mark again once it has
 * answered a request that was all in its record by a reply that was, too. */
static bool lingers(const struct operation *op, int status) {
  bool alone = !op->by_reference && !op->has_parts && !op->lent && !op->parent;
  return status == PERIGEE_OK && (op->in_place || alone);
}

int64_t call_due(const struct operation *op) {
  if (op->timeout < 0)
    return -1;
  return op->fresh.next ? op->engine->now + op->timeout : op->timer.due;
}

/* Says of a reply that came, and has no place here, what can be done. */
static void say_no_place(struct operation *op, int status) {
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

void call_end(struct operation *op, int status) {
  if (status != PERIGEE_OK) {
    op->slice = op->length = 0;
    op->pointer = NULL;
    op->flags = 0;
    say_no_place(op, status);
    op->status = status;
    if (op->kind == OP_CALL)
      op->value = (uint64_t)call_due(op);
  }
  operation_unqueue(op);
  list_remove(&op->fresh);
  timers_remove(&op->engine->timers, &op->timer);
  if (!lingers(op, status))
    unmark(op);
  if (op->replied && (!op->in_place || op->loan.block >= LOAN_WARM))
    call_let_go(op);
  op->quiet_wait = !parts_end(op);
  if (op->quiet_wait)
    operation_move(op);
  else
    call_tell(op);
}

void call_stop(struct operation *op, int status) {
  if (op->state == ENDED || op->quiet_wait)
    return;
  if (op->state == ORPHANED) {
    if (op->session->state == PERIGEE_SESSION_OPEN)
      return; /* the program knows of the end, but the peer may still read */
    step(op, LET_GO);
    operation_free(op);
    return;
  }
  if (op->state == QUEUED) { /* the request was never sent */
    call_let_go(op);
    unmark(op);
  }
  step(op, STOP);
  call_end(op, status);
}

bool call_pending(const struct operation *op) {
  return op->quiet_wait || (op->state != ENDED && op->state != ORPHANED);
}

bool call_beyond(const struct operation *op, uint64_t sent) {
  return op->state == QUEUED || (op->state == SENT && op->ordinal > sent);
}

static void given(struct operation *op) {
  unmark(op);
  if (peer_is_done(op))
    call_let_go(op);
  if (op->lent && op->session->state == PERIGEE_SESSION_OPEN) {
    step(op, LEND);
    operation_count(op); /* for the peer, which keeps it from being free */
    return;
  }
  step(op, GIVEN);
  operation_free(op);
}

#define CALL_CLASS(kind_, name_, event_)                                       \
  {                                                                            \
    .name = (name_), .kind = (kind_), .event = (event_), .step = call_step,    \
    .late = operation_late, .stop = call_stop, .given = given,                 \
    .publish = call_publish_waiting                                            \
  }

const struct operation_class call_class =
    CALL_CLASS(OP_CALL, "call", PERIGEE_EVENT_REPLY);
static const struct operation_class read_class = CALL_CLASS(OP_READ, "read",
                                                            PERIGEE_EVENT_DONE),
                                    write_class = CALL_CLASS(
                                        OP_WRITE, "write", PERIGEE_EVENT_DONE),
                                    send_class = CALL_CLASS(OP_SEND, "send",
                                                            PERIGEE_EVENT_DONE);

/* ---- Submitting --------------------------------------------------------- */

int call_withdraw(struct operation *op, int status) {
  op->session->counters.calls -= op->kind == OP_CALL;
  unmark(op);
  call_let_go(op);
  parts_end(op);
  step(op, STOP);
  step(op, GIVEN);
  operation_free(op);
  return status;
}

void call_enter(struct operation *op, int64_t timeout) {
  struct lane *lane = op->session->lane;
  step(op, SUBMIT);
  operation_time(op, timeout);
  op->marked = true;
  lane_payloads(lane)->mark(lane, op->index, op->generation);
}

/* Publishes it, or queues it. */
static int go(struct operation *op) {
  struct node *backlog = &op->session->operations.backlog[RING_REQUEST];
  int status = list_empty(backlog) ? call_publish(op) : 0;
  if (status == 0)
    backlog_add(op, RING_REQUEST);
  return status < 0 ? call_withdraw(op, status) : op->index;
}

int call_submit(struct operation *op, int64_t timeout) {
  call_enter(op, timeout);
  return go(op);
}

static void keep(struct operation *op, const struct perigee_message *message) {
  op->message = *message;
  if (UNLIKELY(message->trace != NULL))
    trace_keep(op);
  op->parent = NULL;
  operation_ref(op, message->slice.region);
  operation_ref(op, message->into.region);
}

struct operation *call_take(struct perigee_session *session,
                            const struct operation_class *class, int record,
                            const struct perigee_message *message) {
  struct operation *op = operation_take(session, class);
  if (!op)
    return NULL;
  op->record = (uint8_t)record;
  keep(op, message);
  return op;
}

/* What is short goes to the peer before this side keeps what the reply will
 * need: the peer works meanwhile. Nothing reads the reply before that, as it
 * takes a poll. */
static int submit_now(struct operation *op, const struct perigee_message *m) {
  op->record = RECORD_REQUEST;
  call_enter(op, m->timeout);
  bool sent = call_publish_now(op, m);
  keep(op, m);
  return sent ? op->index : go(op);
}

int call_beyond_all(const struct perigee_session *session) {
  return fail(session->engine, PERIGEE_TOO_LARGE,
              "no reply has as many bytes as this call's capacity");
}

int call_draining(const struct perigee_session *session) {
  return fail(session->engine, PERIGEE_DRAINING, "%s",
              perigee_status_text(PERIGEE_DRAINING));
}

BESIDE call_shared(struct perigee_session *session,
                   const struct perigee_message *message) {
  WITHIN(session->engine, ENTRY_WORK, perigee_call(session, message));
}

int perigee_call(struct perigee_session *session,
                 const struct perigee_message *message) {
  STAMP(STAMP_CALLED);
  if (SHARED(session->engine))
    return call_shared(session, message);
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
           incoming_typed(session->engine, message->head, message->length)) < 0)
    return status;
  const struct perigee_slice *s = &message->into;
  if (s->region && !region_has(s->region, s) &&
      (status = slice_payload(session->engine, &message->into, &into)) < 0)
    return status;
  if (UNLIKELY(message->trace != NULL) &&
      (status = trace_check(session, message)) < 0)
    return status;
  struct operation *op = operation_take(session, &call_class);
  if (!op)
    return PERIGEE_NO_MEMORY;
  session->counters.calls++;
  return submit_now(op, message);
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
  struct operation *op = call_take(session, &send_class, RECORD_SEND, &message);
  if (!op)
    return PERIGEE_NO_MEMORY;
  session->counters.messages++;
  return call_submit(op, timeout);
}

/* Submits one item of a batch; the batch keeps the local region alive. */
int call_access(struct perigee_session *session, bool write,
                const struct perigee_transfer *item, struct operation *parent) {
  const struct perigee_slice *remote = &item->remote;
  struct perigee_message message = {.length = sizeof(struct access)};
  if (write)
    message.slice = item->local;
  else
    message.into = item->local;
  struct operation *op =
      write ? call_take(session, &write_class, RECORD_WRITE, &message)
            : call_take(session, &read_class, RECORD_READ, &message);
  if (!op)
    return PERIGEE_NO_MEMORY;
  op->access = (struct access){remote->remote->window.slot,
                               remote->remote->window.generation,
                               remote->offset,
                               remote->length,
                               remote->count,
                               remote->stride};
  op->message.head = &op->access;
  op->parent = parent;
  return call_submit(op, -1);
}
