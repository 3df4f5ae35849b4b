/* SPDX-License-Identifier: Apache-2.0
 *
 * serve.c - operations of the peer: calls, which the program answers, and
 * one-sided access and messages, which the core answers.
 *
 *   state      event     becomes
 *   free       arrive    arrived    a record, decoded
 *   arrived    stall     stalled    no block is free for it or for its reply
 *   stalled    pulled    arrived    a block is free, or never will be
 *   arrived    pull      heading    the head has to be pulled, or is long and
 *                                   typed and is scanned in portions
 *   heading    pulled    arrived    it is complete and sound, or never will be
 *   arrived    serve     serving    REQUEST is given, or the core serves it
 *   arrived    ask       landing    LANDING is given
 *   landing    land      fetching   a place was named
 *   arrived    land      fetching   as above, by the core (WRITE, SEND)
 *   fetching   pulled    serving    all bytes have come, or never will
 *   serving    answer    free       the reply is in the ring, whole
 *   serving    wait      waiting    no room in the ring
 *   serving    refer     replied    the reply refers to this side's memory
 *   waiting    answer    told       it is in the ring now
 *   waiting    refer     replied
 *   replied    released  told       the caller's mark is gone
 *   told       given     free       SENT was polled
 *   landing    serve     serving    refused: only the answer is left
 *   heading, arrived, stalled, landing, fetching
 *              lost      gone       ABANDONED, if asked
 *   gone       given     free
 *   waiting, replied     lost       told       SENT with a status
 *   serving    lost      serving    the program still has to answer
 *
 * A reply is always sent, even to a call that has ended, as it releases the
 * request's loan.
 *
 * The program may take long to decode a request that is HELD. Until the program
 * has started it (perigee_started), the ring behind it is not read, as while a
 * request arrives.
 */
#include <stdlib.h>
#include <string.h>

#include "core/lock.h"
#include "core/pool.h"
#include "served.h"
#include "trace.h"

const struct machine served_machine = {
    .name = "served",
    .taken = MACHINE_STEPS,
    .states = {"free", "arrived", "stalled", "heading", "landing", "fetching",
               "serving", "waiting", "replied", "told", "gone"},
    .events = {"arrive", "stall", "pull", "pulled", "serve", "ask", "land",
               "answer", "wait", "refer", "released", "given", "lost"},
    .next = {
        [FREE] = {[ARRIVE] = TO(ARRIVED)},
        [ARRIVED] = {[STALL] = TO(STALLED),
                     [PULL] = TO(HEADING),
                     [SERVE] = TO(SERVING),
                     [ASK] = TO(LANDING),
                     [LAND] = TO(FETCHING),
                     [LOST] = TO(GONE)},
        [STALLED] = {[PULLED] = TO(ARRIVED), [LOST] = TO(GONE)},
        [HEADING] = {[PULLED] = TO(ARRIVED), [LOST] = TO(GONE)},
        [LANDING] =
            {[LAND] = TO(FETCHING), [SERVE] = TO(SERVING), [LOST] = TO(GONE)},
        [FETCHING] = {[PULLED] = TO(SERVING), [LOST] = TO(GONE)},
        [SERVING] = {[ANSWER] = TO(FREE),
                     [WAIT] = TO(WAITING),
                     [REFER] = TO(REPLIED),
                     [LOST] = TO(SERVING)},
        [WAITING] =
            {[ANSWER] = TO(TOLD), [REFER] = TO(REPLIED), [LOST] = TO(TOLD)},
        [REPLIED] = {[RELEASED] = TO(TOLD), [LOST] = TO(TOLD)},
        [TOLD] = {[GIVEN] = TO(FREE)},
        [GONE] = {[GIVEN] = TO(FREE)},
    }};

bool served_wanted(struct operation *op) {
  struct lane *lane = op->session ? op->session->lane : NULL;
  return lane && open_lane(op) &&
         lane_payloads(lane)->live(lane, op->peer_operation,
                                   op->peer_generation);
}

/* ---- Arriving ----------------------------------------------------------- */

/* Stops reading the request ring, so that requests reach the program in the
 * order in which they were submitted. */
void served_hold_back(struct operation *op) {
  op->session->inbox.arriving = op;
}

void served_let_on(struct operation *op) {
  if (op->session && op->session->inbox.arriving == op)
    op->session->inbox.arriving = NULL;
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

/* Pulls a head into a block; a raw head may be read in place instead. */
static int pull_head(struct operation *op, struct source source) {
  struct payload into;
  bool typed = op->flags & PERIGEE_TYPED;
  if (!typed && !op->head_lent)
    return 1;
  if (!typed)
    payload_bytes(&into, op->pointer, op->length);
  int status =
      incoming_bulk(op, IN_HEAD, &source, op->length, op->peer_operation,
                    op->peer_generation, typed ? NULL : &into, &op->block);
  if (typed)
    op->pointer = op->block;
  return status;
}

/* Checks the request against this side's limits. */
static int check_request(struct operation *op, const struct record *r) {
  const struct perigee_options *o = &op->engine->options;
  bool typed = r->flags & RECORD_TYPED;
  uint64_t limit = typed && o->typed < o->message ? o->typed : o->message;
  if (r->head_length > limit || r->slice_length > o->message)
    return fail(op->engine, PERIGEE_TOO_LARGE,
                "a request of %llu bytes and a slice of %llu: the limits are "
                "%llu (option %s) and %llu",
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
  room_await(op);
  return PERIGEE_OK;
}

static void serve_request(struct operation *op, const struct record *r) {
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

/* Copies an inline slice out of the ring, before its landing is known. */
static int keep_slice(struct operation *op, const struct record *r) {
  op->rest = (struct record_rest){.source = r->slice_source,
                                  .length = r->slice_length,
                                  .bulk = r->flags & RECORD_SLICE_BULK,
                                  .present = r->flags & RECORD_SLICE};
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
  if (status < 0)
    serve_answer(op, status);
  else if (r->kind == RECORD_REQUEST)
    serve_request(op, r);
  else if (r->kind == RECORD_SEND)
    message_arrived(op);
  else
    served_access(op, r);
  return PERIGEE_OK;
}

/* ---- Steps -------------------------------------------------------------- */

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

static void unstall(struct operation *op, int status) {
  room_waited(op);
  list_remove(&op->queue);
  step(op, PULLED);
  take_in(op, status);
}

static void step_stalled(struct operation *op) {
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

static void late(struct operation *op) {
  fail(op->engine, PERIGEE_NO_MEMORY,
       "there was no block for a call in time (option pool)");
  unstall(op, PERIGEE_NO_MEMORY);
}

void serve_step(struct operation *op) {
  if (op->quiet_wait) {
    op->engine->copying = true;
    list_remove(&op->queue);
    if (op->state == FETCHING)
      served_give_up(op);
    else if (served_receiver_released(op))
      served_tell(op);
  } else if (op->state == STALLED) {
    step_stalled(op);
  } else if (op->state == HEADING) {
    int status = served_pulled(op, IN_HEAD) ? sound(op) : 0;
    if (status == 0)
      return;
    step(op, PULLED);
    list_remove(&op->queue);
    parts_end(op);
    headed(op, status);
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

const struct operation_class served_class = {.name = "request of the peer",
                                             .kind = OP_SERVED,
                                             .step = serve_step,
                                             .late = late,
                                             .stop = stop,
                                             .given = served_given};

void perigee_started(struct perigee_engine *engine, int served) {
  ENTER(engine);
  struct operation *op = operation_find(engine, served);
  if (op && op->kind == OP_SERVED && op->state == SERVING)
    served_let_on(op);
}

bool perigee_served_cancelled(const struct perigee_engine *engine, int served) {
  LOOK(engine);
  struct operation *op =
      operation_find((struct perigee_engine *)(uintptr_t)engine, served);
  return !op || op->kind != OP_SERVED || !engine_alive(engine) ||
         !served_wanted(op);
}

int64_t perigee_served_remaining(const struct perigee_engine *engine,
                                 int served) {
  LOOK(engine);
  struct operation *op =
      operation_find((struct perigee_engine *)(uintptr_t)engine, served);
  if (!op || op->kind != OP_SERVED)
    return 0;
  if (op->deadline < 0)
    return -1;
  int64_t left = op->deadline - perigee_now(engine);
  return left < 0 ? 0 : left;
}
