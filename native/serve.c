/* SPDX-License-Identifier: Apache-2.0
 *
 * serve.c - operations of the peer: calls that the program answers, and
 * one-sided access and messages that the core answers by itself.
 *
 *   state      event     becomes
 *   free       arrive    arrived    a record, decoded
 *   arrived    pull      heading    the head has to be pulled
 *   heading    pulled    arrived
 *   arrived    serve     serving    REQUEST is given (or the core works)
 *   arrived    ask       landing    LANDING is given
 *   landing    land      fetching   a place was named
 *   arrived    land      fetching   as above, by the core (WRITE, SEND)
 *   fetching   pulled    serving    all bytes are there
 *   serving    answer    free       the reply is in the ring, whole
 *   serving    wait      waiting    no room in the ring
 *   serving    refer     replied    the reply refers to memory of ours
 *   waiting    answer    told       it is in the ring now
 *   waiting    refer     replied
 *   replied    released  told       the caller's mark is gone
 *   told       given     free       SENT was polled
 *   landing    serve     serving    refused: only the answer is left
 *   heading, arrived, landing, fetching  lost   gone   ABANDONED, if asked
 *   gone       given     free
 *   waiting, replied     lost       told       SENT with a status
 *   serving    lost      serving    the program still has to answer
 *
 * A reply is always sent, even to a call that has ended: it lets go of what
 * the request lent.
 */
#include <string.h>

#include "core.h"

enum state {
  FREE,
  ARRIVED,
  HEADING,
  LANDING,
  FETCHING,
  SERVING,
  WAITING,
  REPLIED,
  TOLD,
  GONE
};
enum event {
  ARRIVE,
  PULL,
  PULLED,
  SERVE,
  ASK,
  LAND,
  ANSWER,
  WAIT,
  REFER,
  RELEASED,
  GIVEN,
  LOST
};

const struct machine served_machine = {
    .name = "served",
    .states = {"free", "arrived", "heading", "landing", "fetching", "serving",
               "waiting", "replied", "told", "gone"},
    .events = {"arrive", "pull", "pulled", "serve", "ask", "land", "answer",
               "wait", "refer", "released", "given", "lost"},
    .next = {
        [FREE] = {[ARRIVE] = TO(ARRIVED)},
        [ARRIVED] = {[PULL] = TO(HEADING),
                     [SERVE] = TO(SERVING),
                     [ASK] = TO(LANDING),
                     [LAND] = TO(FETCHING),
                     [LOST] = TO(GONE)},
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

static void step(struct operation *op, enum event event) {
  machine_step(&served_machine, &op->state, event);
}

static bool open_lane(const struct operation *op) {
  return op->session && op->session->state == PERIGEE_SESSION_OPEN;
}

/* Is the caller still there, and waiting? */
static bool wanted(struct operation *op) {
  struct lane *lane = op->session ? op->session->lane : NULL;
  return open_lane(op) && lane_table(lane)->peer_mark(
                              lane, op->peer_operation) == op->peer_generation;
}

/* ---- Ending ------------------------------------------------------------- */

static void unmark(struct operation *op) {
  if (op->marked && op->session && op->session->lane)
    lane_table(op->session->lane)->mark(op->session->lane, op->index, 0);
  op->marked = false;
}

static void unlend(struct operation *op) {
  if (op->head_lent && op->session && op->session->lane)
    lane_table(op->session->lane)->unloan(op->session->lane, &op->head_loan);
  op->head_lent = false;
}

/* Gives back all but the operation itself; false while a copy is under way. */
static bool settle(struct operation *op) {
  unmark(op);
  op->quiet_wait = !parts_end(op);
  if (op->quiet_wait) {
    list_remove(&op->queue);
    operation_move(op);
    return false;
  }
  unlend(op);
  operation_unhold(op);
  return true;
}

/* Requests reach the program in the order in which they were submitted: while
 * one of them is still on its way the ring behind it is not read. */
static void hold_back(struct operation *op) {
  op->session->arriving = op;
}

static void let_on(struct operation *op) {
  if (op->session && op->session->arriving == op)
    op->session->arriving = NULL;
}

static void gone(struct operation *op) {
  let_on(op);
  if (op->session)
    op->session->serving--;
  operation_free(op);
}

static void tell(struct operation *op) {
  if (!settle(op))
    return;
  if (op->state == TOLD && op->record == RECORD_REQUEST) {
    op->flags = 0;
    op->pointer = NULL;
    op->length = 0;
    operation_event(op, PERIGEE_EVENT_SENT);
  } else if (op->state == GONE && op->landed) {
    op->flags = 0;
    op->pointer = NULL;
    op->length = 0;
    operation_event(op, PERIGEE_EVENT_ABANDONED);
  } else if (op->state == FREE) {
    gone(op);
  } else {
    step(op, GIVEN);
    gone(op);
  }
}

bool serve_survives(const struct operation *op) {
  return op->state == SERVING && op->event == PERIGEE_EVENT_NONE;
}

void serve_given(struct operation *op) {
  step(op, GIVEN);
  gone(op);
}

static void receiver_freed(struct operation *op, int status) {
  if (op->receiver)
    message_done(op, status);
}

/* The session is over, or (before it was served) the call. */
void serve_lost(struct operation *op) {
  if (op->state == TOLD || op->state == GONE || op->quiet_wait)
    return;
  if (op->state == SERVING && op->record != RECORD_REQUEST)
    step(op, WAIT); /* no program will answer it */
  step(op, LOST);
  if (op->state == SERVING)
    return;
  operation_unqueue(op);
  let_on(op);
  op->status = PERIGEE_PEER_LOST;
  receiver_freed(op, PERIGEE_PEER_LOST);
  tell(op);
}

/* ---- Replying ----------------------------------------------------------- */

static bool refers(const struct outgoing *out) {
  return out->record.flags & (RECORD_HEAD_BULK | RECORD_SLICE_BULK);
}

static void take_event(struct operation *op, enum event event) {
  step(op, event);
  if (event == REFER)
    operation_move(op);
}

static int plan(struct operation *op, const struct perigee_message *m,
                struct outgoing *out) {
  struct record *r = &out->record;
  *r = (struct record){.kind = RECORD_REPLY,
                       .method = op->index,
                       .status = m->status,
                       .operation = op->peer_operation,
                       .generation = op->peer_generation,
                       .remaining = op->generation};
  return outgoing_plan(op, m, out);
}

/* What tells the caller, in place of a reply that could not be sent. */
static struct perigee_message refusal(int status) {
  return (struct perigee_message){.status = status};
}

/* 1: published, 0: no room, or a status. The reply's own memory is marked
 * live before the caller can see that it is referred to. */
static int publish(struct operation *op, const struct perigee_message *m) {
  struct outgoing out = {0};
  struct perigee_message none = refusal(PERIGEE_CANCELLED);
  int status = plan(op, wanted(op) ? m : &none, &out);
  if (status < 0) {
    none.status = status;
    out = (struct outgoing){0};
    parts_end(op);
    if (plan(op, &none, &out) < 0)
      return status;
  }
  struct lane *lane = op->session->lane;
  if (refers(&out)) {
    op->marked = true;
    lane_table(lane)->mark(lane, op->index, op->generation);
  }
  if (!outgoing_publish(op->session, RING_REPLY, &out))
    return 0;
  take_event(op, refers(&out) ? REFER : ANSWER);
  return status < 0 ? status : 1;
}

static int after_reply(struct operation *op, int status) {
  bool refer = op->state == REPLIED;
  if (refer)
    return 1;
  tell(op); /* over, unless a copy out of it is still under way */
  return status < 0 ? status : 0;
}

/* A short head is copied: it may lie in the ring that it came by. */
static void keep_reply(struct operation *op, const struct perigee_message *m) {
  op->reply = *m;
  if (m->length == 0 || m->length > op->session->eager)
    return;
  uint8_t *copy = pool_take(op->engine, m->length);
  if (!copy) {
    op->reply = refusal(PERIGEE_NO_MEMORY);
    return;
  }
  memcpy(copy, m->head, m->length);
  pool_give(op->engine, op->block);
  op->reply.head = op->block = copy;
}

/* 1: SENT will follow, 0: over. */
static int answer(struct operation *op, const struct perigee_message *m) {
  struct node *backlog = &op->session->backlog[RING_REPLY];
  int status = list_empty(backlog) ? publish(op, m) : 0;
  if (status != 0)
    return after_reply(op, status);
  keep_reply(op, m);
  step(op, WAIT);
  list_append(backlog, &op->queue);
  return 1;
}

void serve_flush(struct perigee_session *session) {
  struct node *backlog = &session->backlog[RING_REPLY];
  while (!list_empty(backlog)) {
    struct operation *op = CONTAINER(backlog->next, struct operation, queue);
    list_remove(&op->queue);
    if (publish(op, &op->reply) == 0) {
      list_prepend(backlog, &op->queue);
      return;
    }
    session->engine->progress++;
    if (op->state == TOLD)
      tell(op);
  }
}

static struct operation *serving(struct perigee_engine *engine, int index,
                                 int *status) {
  struct operation *op = operation_find(engine, index);
  if (!op || op->kind != OP_SERVED || op->record != RECORD_REQUEST ||
      (op->state != SERVING && op->state != LANDING)) {
    *status =
        fail(engine, PERIGEE_INVALID, "no call %d is being served", index);
    return NULL;
  }
  if (open_lane(op))
    return op;
  *status = fail(engine, PERIGEE_PEER_LOST, "the caller is gone");
  /* Only a call in service outlives its session. */
  if (op->state == SERVING) {
    step(op, ANSWER);
    tell(op);
  }
  return NULL;
}

int perigee_reply(struct perigee_engine *engine, int served,
                  const struct perigee_message *m) {
  int status;
  struct operation *op = serving(engine, served, &status);
  if (!op)
    return status;
  if (op->state == LANDING) { /* refused: nothing is to be waited for */
    op->landed = false;
    let_on(op);
    step(op, SERVE);
  }
  operation_hold(op, m->slice.region);
  return answer(op, m);
}

void serve_answer(struct operation *op, int status) {
  struct perigee_message m = refusal(status);
  let_on(op);
  if (op->state != SERVING)
    step(op, SERVE);
  if (open_lane(op)) {
    answer(op, &m);
    return;
  }
  step(op, ANSWER);
  tell(op);
}

int perigee_reply_begin(struct perigee_engine *engine, int served,
                        uint64_t capacity, struct perigee_loan *loan) {
  int status;
  struct operation *op = serving(engine, served, &status);
  if (!op)
    return status;
  status = loan_begin(op->session, RING_REPLY, capacity, 0, loan);
  op->session->loans[RING_REPLY].served = served;
  return status;
}

void perigee_reply_abort(struct perigee_engine *engine, int served) {
  struct operation *op = operation_find(engine, served);
  if (op && op->session)
    loan_abort(op->session, RING_REPLY);
}

int perigee_reply_commit(struct perigee_engine *engine, int served,
                         uint64_t length) {
  int status;
  struct operation *op = serving(engine, served, &status);
  if (!op)
    return status;
  struct perigee_session *session = op->session;
  struct loan *loan = &session->loans[RING_REPLY];
  struct lane *lane = session->lane;
  if (!loan->open || loan->served != served || length > loan->length)
    return fail(engine, PERIGEE_INVALID, "no such loan is open");
  loan->open = false;
  if (!loan->in_ring) {
    /* The block is the operation's from here on, and the head of a reply that
     * lies in the arena is referred to where it is. A request's head that was
     * pulled into a block of ours has been read by now. */
    unlend(op);
    op->head_lent = true;
    op->head_loan = loan->source;
    struct perigee_message m = {.head = loan->pointer, .length = length};
    return answer(op, &m);
  }
  struct record r = {.kind = RECORD_REPLY,
                     .method = op->index,
                     .operation = op->peer_operation,
                     .generation = op->peer_generation,
                     .remaining = op->generation,
                     .head_length = length};
  uint8_t *head;
  record_encode(&r, loan->record, &head, NULL);
  lane_table(lane)->publish(lane, RING_REPLY, record_size(&r));
  session->counters.bytes_sent += length;
  session_wake(session);
  step(op, ANSWER);
  return after_reply(op, 1);
}

/* ---- One-sided access, by the owner -------------------------------------- */

static int access_payload(struct operation *op, const struct access *a,
                          struct payload *p) {
  struct perigee_region *region =
      region_by_slot(op->engine, a->slot, a->generation);
  int right = op->record == RECORD_READ ? PERIGEE_READ : PERIGEE_WRITE;
  if (!region)
    return PERIGEE_STALE;
  if (!(region->access & right))
    return PERIGEE_DENIED;
  if (shape_total(a->block, a->count) == UINT64_MAX ||
      !shape_fits(region->length, a->offset, a->block, a->count, a->stride))
    return PERIGEE_RANGE;
  op->region = region;
  *p = (struct payload){.memory = region->memory,
                        .base = region->pointer + a->offset,
                        .block = a->block,
                        .count = a->count,
                        .stride = a->stride,
                        .total = a->block * a->count};
  return PERIGEE_OK;
}

static void serve_read(struct operation *op, const struct access *a) {
  struct perigee_message m = {
      .flags = PERIGEE_TYPED,
      .slice = {{op->region}, a->offset, a->block, a->count, a->stride}};
  step(op, SERVE);
  operation_hold(op, op->region);
  answer(op, &m);
}

static void serve_access(struct operation *op, const struct record *r) {
  struct access a;
  struct payload p;
  if (r->head_length != sizeof a || !r->head) {
    serve_answer(op, PERIGEE_PROTOCOL);
    return;
  }
  memcpy(&a, r->head, sizeof a);
  int status = access_payload(op, &a, &p);
  if (status == PERIGEE_OK && op->record == RECORD_WRITE &&
      p.total != op->rest.length)
    status = PERIGEE_RANGE;
  if (status < 0) {
    serve_answer(op, status);
  } else if (op->record == RECORD_READ) {
    serve_read(op, &a);
  } else {
    operation_hold(op, op->region);
    status = serve_fetch(op, &p);
    if (status < 0)
      serve_answer(op, status);
  }
}

/* ---- Arriving ----------------------------------------------------------- */

static void request(struct operation *op) {
  let_on(op);
  op->session->counters.served++;
  op->session->counters.bytes_received += op->length + op->slice;
  operation_event(op, PERIGEE_EVENT_REQUEST);
}

/* The head is there: on to the slice, or to the program. */
static void headed(struct operation *op) {
  if ((op->flags & PERIGEE_TYPED) && op->length > 0 &&
      perigee_typed_scan(op->pointer, op->length) < 0) {
    serve_answer(op, PERIGEE_PROTOCOL);
  } else if (op->rest.present) {
    op->landed = true;
    hold_back(op);
    step(op, ASK);
    operation_event(op, PERIGEE_EVENT_LANDING);
  } else {
    step(op, SERVE);
    request(op);
  }
}

/* What was pulled counts only if the call is still live. */
static bool pulled(struct operation *op, int place) {
  int state = part_step(op, place);
  if (state == 0)
    return false;
  if (state > 0 && wanted(op))
    return true;
  op->status = state < 0 ? state : PERIGEE_CANCELLED;
  if (state < 0 && open_lane(op) && op->state == FETCHING) {
    /* The caller is told why, the program that it is off. */
    struct perigee_message m = refusal(state);
    struct outgoing out = {0};
    parts_end(op);
    if (plan(op, &m, &out) == PERIGEE_OK)
      outgoing_publish(op->session, RING_REPLY, &out);
  }
  serve_lost(op);
  return false;
}

/* A typed head is looked at where the peer cannot change it, and stays for
 * as long as the slice takes. A raw one is seen in place. */
static int head_inline(struct operation *op, const struct record *r) {
  op->pointer = r->head;
  if (!(op->flags & PERIGEE_TYPED) || r->head_length == 0)
    return 1;
  op->pointer = op->rest.present
                    ? NULL
                    : scratch_copy(op->engine, r->head, r->head_length);
  if (op->pointer)
    return 1;
  op->pointer = op->block = pool_take(op->engine, r->head_length);
  if (!op->block)
    return PERIGEE_NO_MEMORY;
  memcpy(op->block, r->head, r->head_length);
  return 1;
}

/* A raw head is pulled into a block that the reply may refer to. */
static int pull_head(struct operation *op, const struct record *r) {
  struct lane *lane = op->session->lane;
  struct payload into;
  uint8_t *block;
  bool typed = op->flags & PERIGEE_TYPED;
  if (typed && r->head_length > op->engine->options.typed)
    return PERIGEE_TOO_LARGE;
  if (!typed) {
    if ((op->pointer = lane_table(lane)->view(lane, &r->head_source)))
      return 1;
    int status =
        lane_table(lane)->loan(lane, r->head_length, &block, &op->head_loan);
    if (status < 0)
      return status;
    op->head_lent = true;
    op->pointer = block;
    payload_bytes(&into, block, r->head_length);
  }
  int status =
      incoming_bulk(op, IN_HEAD, &r->head_source, r->head_length, r->operation,
                    r->generation, typed ? NULL : &into, &op->block);
  if (typed)
    op->pointer = op->block;
  return status;
}

static void serve_request(struct operation *op, const struct record *r) {
  bool bulk = r->flags & RECORD_HEAD_BULK;
  op->length = r->head_length;
  op->flags = (r->flags & RECORD_TYPED ? PERIGEE_TYPED : 0) |
              (r->flags & RECORD_SLICE ? PERIGEE_SLICE : 0);
  op->slice = r->slice_length;
  op->value = r->capacity;
  int status = r->head_length > op->engine->options.message ||
                       r->slice_length > op->engine->options.message
                   ? PERIGEE_TOO_LARGE
               : bulk ? pull_head(op, r)
                      : head_inline(op, r);
  if (status < 0) {
    serve_answer(op, status);
  } else if (status == 1) {
    headed(op);
  } else {
    hold_back(op);
    step(op, PULL);
    operation_move(op);
  }
}

/* An inline slice leaves the ring before anybody has said where it goes. */
static int keep_slice(struct operation *op, const struct record *r) {
  op->rest = (struct record_rest){.source = r->slice_source,
                                  .length = r->slice_length,
                                  .bulk = r->flags & RECORD_SLICE_BULK,
                                  .present = r->flags & RECORD_SLICE};
  if (!op->rest.present || op->rest.bulk || r->slice_length == 0)
    return PERIGEE_OK;
  op->slice_block = pool_take(op->engine, r->slice_length);
  if (!op->slice_block)
    return PERIGEE_NO_MEMORY;
  memcpy(op->slice_block, r->slice, r->slice_length);
  return PERIGEE_OK;
}

int serve_record(struct perigee_session *session, const struct record *r) {
  if (r->kind == RECORD_IMM)
    return immediate_arrived(session, r->code);
  if (r->kind == RECORD_REPLY)
    return PERIGEE_PROTOCOL;
  if (session->hangup) /* nobody waits for an answer any more */
    return PERIGEE_OK;
  struct operation *op = operation_take(session, OP_SERVED);
  if (!op)
    return PERIGEE_NO_MEMORY;
  session->serving++;
  op->record = r->kind;
  op->peer_operation = r->operation;
  op->peer_generation = r->generation;
  op->method = r->method;
  op->code = r->code;
  op->region = NULL;
  op->receiver = NULL;
  op->deadline = r->remaining == RECORD_NO_LIMIT
                     ? -1
                     : session->engine->now + (int64_t)r->remaining * 1000;
  step(op, ARRIVE);
  int status = keep_slice(op, r);
  if (status < 0)
    serve_answer(op, status);
  else if (r->kind == RECORD_REQUEST)
    serve_request(op, r);
  else if (r->kind == RECORD_SEND)
    message_arrived(op);
  else
    serve_access(op, r);
  return PERIGEE_OK;
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
    status = 1; /* it is in a pooled block already */
  } else {
    status =
        incoming_bytes(op, IN_SLICE, op->slice_block, rest->length, into, NULL);
  }
  if (status < 0)
    return status;
  step(op, LAND);
  operation_move(op);
  serve_step(op);
  return PERIGEE_OK;
}

int perigee_land(struct perigee_engine *engine, int served,
                 const struct perigee_slice *slice) {
  struct payload into;
  int status = PERIGEE_OK;
  struct operation *op = serving(engine, served, &status);
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
    operation_hold(op, slice->region);
  } else {
    op->flags |= PERIGEE_POOLED;
  }
  return serve_fetch(op, named ? &into : NULL);
}

/* All bytes are where they belong. */
static void landed(struct operation *op) {
  step(op, PULLED);
  list_remove(&op->queue);
  parts_end(op);
  if (op->record == RECORD_SEND) {
    message_done(op, PERIGEE_OK);
    serve_answer(op, PERIGEE_OK);
  } else if (op->record == RECORD_WRITE) {
    operation_unhold(op);
    serve_answer(op, PERIGEE_OK);
  } else {
    op->landed = false;
    operation_unhold(op);
    if (op->flags & PERIGEE_POOLED) {
      op->value = (uint64_t)(uintptr_t)op->slice_block;
      op->slice_block = NULL;
    }
    request(op);
  }
}

/* ---- Steps -------------------------------------------------------------- */

static void step_replied(struct operation *op) {
  int head = part_step(op, OUT_HEAD);
  int status = head < 0 ? head : part_step(op, OUT_SLICE);
  if (status >= 0 && wanted(op))
    return;
  op->status = status < 0 ? status : PERIGEE_OK;
  op->engine->progress++;
  list_remove(&op->queue);
  step(op, RELEASED);
  tell(op);
}

void serve_step(struct operation *op) {
  if (op->quiet_wait) {
    op->engine->copying = true;
    list_remove(&op->queue);
    tell(op);
  } else if (op->state == HEADING) {
    if (!pulled(op, IN_HEAD))
      return;
    step(op, PULLED);
    list_remove(&op->queue);
    parts_end(op);
    headed(op);
  } else if (op->state == FETCHING) {
    if (pulled(op, IN_SLICE))
      landed(op);
  } else if (op->state == REPLIED) {
    step_replied(op);
  }
}

/* The receive that a message was on its way to was given up. */
void serve_abort(struct operation *op, int status) {
  operation_unqueue(op);
  step(op, PULLED);
  parts_end(op);
  serve_answer(op, status);
}

bool perigee_served_cancelled(const struct perigee_engine *engine, int served) {
  struct operation *op =
      operation_find((struct perigee_engine *)(uintptr_t)engine, served);
  return !op || op->kind != OP_SERVED || !wanted(op);
}

int64_t perigee_served_remaining(const struct perigee_engine *engine,
                                 int served) {
  struct operation *op =
      operation_find((struct perigee_engine *)(uintptr_t)engine, served);
  if (!op || op->kind != OP_SERVED)
    return 0;
  if (op->deadline < 0)
    return -1;
  int64_t left = op->deadline - perigee_now(engine);
  return left < 0 ? 0 : left;
}
