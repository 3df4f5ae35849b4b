/* SPDX-License-Identifier: Apache-2.0
 *
 * call.c - own operations that send one record and get one back: calls,
 * messages, and one-sided access that the region's owner does for this side.
 * call_begin.c begins them; here are their states, their replies and their end.
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

#include "core/lanes.h"
#include "core/lock.h"
#include "core/spans.h"
#include "core/stats_file.h"
#include "operation/loan.h"
#include "outcome.h"
#include "own.h"

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

/* ---- Ending ------------------------------------------------------------- */

/* May the request's loan be given back? It may once the peer has answered, and
 * if payloads are pushed, as the peer then never sees it. */
static bool call_peer_is_done(const struct operation *op) {
  return op->replied || (op->lent && lane_payloads(op->session->lane)->pushes);
}

void call_let_go(struct operation *op) {
  struct lane *lane = op->session->lane;
  if (op->lent)
    lane_table(lane)->loans->unloan(lane, &op->loan, op->replied);
  op->lent = false;
}

void call_unmark(struct operation *op) {
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
  /* The peer may sleep over a reply that was not read, or over the request. */
  bool early = op->status != PERIGEE_OK && !op->replied;
  if (t->ended && (op->by_reference || op->status != PERIGEE_OK || sent))
    t->ended(session->lane, op->index, op->generation);
  if (op->by_reference || (early && !t->ended))
    session_wake(session);
}

/* Frees it, and tells the transfer that it belongs to. */
static void call_tell_transfer(struct operation *op) {
  struct operation *parent = op->parent;
  int status = op->status;
  call_advance(op, GIVEN);
  operation_free(op);
  parent->class->child(parent, status);
}

/* Tells its batch. A call that has failed has an event of its own, before the batch's,
 * unless the whole batch was stopped. */
static void call_tell_batch(struct operation *op) {
  struct operation *batch = op->parent;
  int status = op->status;
  batch_note(batch, op->nth, status, status == PERIGEE_OK ? op->slice : 0);
  if (status != PERIGEE_OK && !operation_has_ended(batch)) {
    operation_event(op, op->class->event);
  } else {
    stats_count_own(op);
    call_advance(op, GIVEN);
    operation_free(op);
  }
  batch->class->child(batch, status);
}

static void call_count_end(struct operation *op) {
  struct perigee_counters *c = op->session->counters;
  c->failures += op->status != PERIGEE_OK;
  if (op->kind != OP_CALL)
    return;
  c->replies++;
  op->session->drain.calls--;
  stats_time(op);
}

/* Queues its event, or tells what it belongs to. */
static void call_tell(struct operation *op) {
  operation_unref(op);
  if (op->parent && op->kind != OP_CALL) {
    call_tell_transfer(op);
    return;
  }
  call_count_end(op);
  if (op->parent)
    call_tell_batch(op);
  else
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

/* Clears its mark, without a word to the peer. */
static inline void call_unmark_short(struct operation *op) {
  struct perigee_session *session = op->session;
  if (op->marked && session && session->lane)
    lane_payloads(session->lane)->mark(session->lane, op->index, 0);
}

/* What the event does not wait for. */
static void call_given(struct operation *op) {
  if ((op->rare | (uint32_t)op->status) == 0) {
    call_unmark_short(op);
    call_advance_from(op, ENDED, GIVEN);
    operation_free_short(op);
    return;
  }
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

/* Is it a call that ends well, and has nothing to end but the use of its memory
 * and its timer? */
static inline bool call_ends_short(const struct operation *op) {
  return (op->rare | (uint32_t)op->status) == 0 && op->kind == OP_CALL &&
         !(op->flags & (PERIGEE_HELD | PERIGEE_SLICE));
}

/* As call_tell_batch(), of such a call. */
static __attribute__((noinline)) void call_leave_batch(struct operation *op) {
  struct operation *batch = op->parent;
  batch_note(batch, op->nth, PERIGEE_OK, op->slice);
  stats_count_own(op);
  call_unmark_short(op);
  call_advance_from(op, ENDED, GIVEN);
  operation_free_short(op);
  batch->class->child(batch, PERIGEE_OK);
}

/* Ends such a call: as call_finish(). */
static inline void call_end_short(struct operation *op) {
  struct perigee_session *session = op->session;
  session->counters->bytes_received += op->length + op->slice;
  session->counters->replies++;
  session->drain.calls--;
  operation_unref_regions(op);
  stats_time(op);
  operation_untime(op);
  if (UNLIKELY(op->nth != 0))
    call_leave_batch(op);
  else
    operation_ready(op, PERIGEE_EVENT_REPLY);
}

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

/* Ends by a reply that cannot be taken, though it may refer to the peer. */
static void call_refuse(struct operation *op, const struct record *r,
                        int status) {
  op->by_reference |= r->flags & (RECORD_HEAD_BULK | RECORD_SLICE_BULK);
  call_end(op, status);
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
    call_advance_from(op, SENT, REPLY);
    if (slice >= 0 && LIKELY(call_ends_short(op)))
      call_end_short(op);
    else if (slice < 0)
      call_refuse(op, r, slice);
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

const struct operation_class call_class =
    CALL_CLASS(OP_CALL, "call", PERIGEE_EVENT_REPLY, call_counted);
static const struct operation_class asked_class = {.name = "call",
                                                   .kind = OP_CALL,
                                                   .event = PERIGEE_EVENT_REPLY,
                                                   .step = call_step,
                                                   .late = operation_late,
                                                   .stop = call_stop,
                                                   .given = call_asked_given};
const struct operation_class call_spanned_class = {.name = "call",
                                                   .kind = OP_CALL,
                                                   .event = PERIGEE_EVENT_REPLY,
                                                   .step = call_spanned_step,
                                                   .late = operation_late,
                                                   .stop = call_stop,
                                                   .given = call_asked_given,
                                                   .publish =
                                                       call_publish_waiting};
const struct operation_class read_class =
    CALL_CLASS(OP_READ, "read", PERIGEE_EVENT_DONE, call_given);
const struct operation_class write_class =
    CALL_CLASS(OP_WRITE, "write", PERIGEE_EVENT_DONE, call_given);
const struct operation_class send_class =
    CALL_CLASS(OP_SEND, "send", PERIGEE_EVENT_DONE, call_given);
