/* SPDX-License-Identifier: Apache-2.0
 *
 * reply.c - replies to served operations: by a message, by a loan, by a status
 * alone.
 *
 * A reply is always sent, even to a call that has ended, as it releases the
 * request's loan. Memory of ours to which a reply refers is kept until the
 * caller's mark is gone.
 */
#include <string.h>

#include "base/typed.h"
#include "core/lane_list.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "core/pool.h"
#include "operation/failure.h"
#include "operation/loan.h"
#include "served.h"

/* ---- Replying ----------------------------------------------------------- */

static bool refers(const struct outgoing *out) {
  return out->record.flags & (RECORD_HEAD_BULK | RECORD_SLICE_BULK);
}

static void take_event(struct operation *op, enum served_event event) {
  step(op, event);
  if (event == REFER && op->has_parts) {
    parts_feed(op);
    operation_move(op);
  } else if (event == REFER) {
    room_keep_reply(op);
  }
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

/* The reply that is sent if the real one cannot be. */
static struct perigee_message refusal(const struct operation *op, int status) {
  struct perigee_message m = {.status = status};
  if (op->record == RECORD_REQUEST && status == PERIGEE_NO_MEMORY) {
    const char *why = lane_trouble(op->session);
    m.head = *why ? why : "the peer has no room for it now (option pool)";
    m.length = strlen(m.head);
  } else if (op->record == RECORD_REQUEST && status == PERIGEE_PEER_LOST) {
    m.head = lanes_trouble(op->session);
    m.length = strlen(m.head);
  }
  return m;
}

/* The same, with the sentence that fail() has just noted, as far as it fits
 * into an eager record. */
static struct perigee_message refusal_told(const struct operation *op,
                                           int status) {
  struct perigee_message m = refusal(op, status);
  if (op->record == RECORD_REQUEST && status == PERIGEE_TOO_LARGE) {
    m.head = fail_detail(op->engine);
    m.length = strnlen(m.head, op->session->peer.eager);
  }
  return m;
}

/* Plans the reply, or the refusal. Replies that would have to be exposed are
 * not sent to a caller that has given up; for short ones, looking would cost
 * more than sending. */
static int plan_either(struct operation *op, const struct perigee_message *m,
                       struct outgoing *out) {
  bool large = !op->head_lent &&
               (m->length > op->session->peer.eager || m->slice.region);
  int status = PERIGEE_CANCELLED;
  if (!large || served_wanted(op))
    status = plan(op, m, out);
  if (status >= 0 || status == PERIGEE_AGAIN)
    return status;
  struct perigee_message none = refusal_told(op, status);
  parts_end(op);
  plan(op, &none, out);
  return status;
}

/* Returns 1 if it was published, 0 without room in the ring or without a block,
 * or a status. The reply's memory is marked live before the caller can see a
 * reference to it. */
static int publish(struct operation *op, const struct perigee_message *m) {
  struct outgoing out;
  int status = plan_either(op, m, &out);
  struct lane *lane = op->session->lane;
  if (status == PERIGEE_AGAIN)
    return 0;
  if (refers(&out)) {
    op->marked = true;
    lane_payloads(lane)->mark(lane, op->index, op->generation);
  }
  if (!outgoing_publish(op->session, RING_REPLY, &out))
    return 0;
  take_event(op, refers(&out) ? REFER : ANSWER);
  return status < 0 ? status : 1;
}

void served_refuse(struct operation *op, int status) {
  op->status = status;
  op->reply = refusal(op, status);
  operation_unqueue(op);
  served_let_on(op);
  step(op, PULLED);
  if (op->state != SERVING)
    step(op, SERVE);
  step(op, WAIT);
  backlog_add(op, RING_REPLY);
}

static int after_reply(struct operation *op, int status) {
  served_tell(op); /* ends it, unless a copy of its memory is in progress */
  return status < 0 ? status : 0;
}

/* Keeps a reply that waits. A short head is copied, as it may be in the
 * ring. */
static void keep_reply(struct operation *op, const struct perigee_message *m) {
  op->reply = *m;
  if (m->length == 0 || m->length > op->session->peer.eager || !m->head)
    return;
  uint8_t *copy = pool_take(op->session, m->length);
  if (!copy) {
    op->reply = refusal(op, PERIGEE_NO_MEMORY);
    return;
  }
  memcpy(copy, m->head, m->length);
  pool_give(op->engine, op->block);
  op->reply.head = op->block = copy;
}

/* Bytes that a reply keeps: perhaps the whole block of the request's head. */
static uint64_t reply_bytes(const struct operation *op, uint64_t length) {
  bool block = op->head_lent && op->head_loan.block > length;
  return block ? op->head_loan.block : length;
}

/* Counts a reply that the caller has not read yet. Long ones are counted in
 * bytes: the more there are, the longer the caller's requests wait. */
static int leave(struct operation *op, uint64_t length) {
  struct perigee_session *s = op->session;
  op->untaken = true;
  op->left = length > s->peer.eager ? length : 0;
  s->replies.untaken++;
  s->replies.untaken_bytes += op->left;
  s->account.share->parent->unread_replies += op->left;
  operation_expose(op, reply_bytes(op, op->left));
  room_look(s);
  return 1;
}

/* Learns from replies what a peer's requests may cost; short ones cost
 * nothing. */
static void learn_size(struct perigee_session *s, uint64_t length) {
  uint64_t *size = &s->account.share->parent->reply_size;
  if (length > s->peer.eager && length > *size)
    *size = length;
  else
    *size -= (*size + 7) / 8;
}

static inline bool costs(const struct perigee_session *s, uint64_t length) {
  return UNLIKELY(length > s->peer.eager ||
                  s->account.share->parent->reply_size > 0);
}

/* Returns 1 if it was published, 0 if it waits. */
static int publish_or_wait(struct operation *op,
                           const struct perigee_message *m) {
  struct node *backlog = &op->session->operations.backlog[RING_REPLY];
  int status = list_empty(backlog) ? publish(op, m) : 0;
  if (status != 0)
    return status;
  keep_reply(op, m);
  step(op, WAIT);
  backlog_add(op, RING_REPLY);
  return 0;
}

/* The caller has too many unread replies: it gets a refusal in place of
 * this. */
static int answer_too_much(struct operation *op) {
  struct perigee_message none = refusal(op, PERIGEE_NO_MEMORY);
  op->session->account.share->all->refused++;
  if (publish_or_wait(op, &none) == 0)
    return leave(op, 0);
  after_reply(op, 1);
  return fail(op->engine, PERIGEE_NO_MEMORY,
              "the caller has left too many replies lie (option pool)");
}

/* Returns 1 if SENT will follow, 0 if the operation has ended. */
int served_answer(struct operation *op, const struct perigee_message *m) {
  struct perigee_session *s = op->session;
  uint64_t length = m->length;
  if (UNLIKELY(op->reserved > 0))
    room_give(op);
  if (costs(s, length)) {
    learn_size(s, length);
    if (length > s->peer.eager &&
        !share_may(s->account.share, SHARE_EXPOSED, reply_bytes(op, length)))
      return answer_too_much(op);
  }
  int status = publish_or_wait(op, m);
  if (status == 0 || op->state == REPLIED)
    return leave(op, length);
  return after_reply(op, status);
}

/* It waited for room. */
bool served_publish(struct operation *op) {
  if (publish(op, &op->reply) == 0)
    return false;
  if (op->state == TOLD)
    served_tell(op);
  return true;
}

struct operation *served_find(struct perigee_engine *engine, int index,
                              int *status) {
  struct operation *op = operation_find(engine, index);
  if (!engine_alive(engine)) {
    *status = PERIGEE_FORKED;
    return NULL;
  }
  if (!op || op->kind != OP_SERVED || op->record != RECORD_REQUEST ||
      (op->state != SERVING && op->state != LANDING)) {
    *status =
        fail(engine, PERIGEE_INVALID, "no call %d is being served", index);
    return NULL;
  }
  if (open_lane(op))
    return op;
  *status = fail(engine, PERIGEE_PEER_LOST, "the caller is gone");
  /* Calls in service outlive their session. */
  if (op->state == SERVING) {
    step(op, ANSWER);
    served_tell(op);
  }
  return NULL;
}

static int failure_of(struct perigee_engine *engine,
                      const struct perigee_message *m) {
  uint64_t text;
  if (!m->head)
    return fail_missing(engine, "head of a message");
  int status = failure_split(m->head, m->length, &text);
  if (status < 0)
    return fail(
        engine, status,
        "a failure that is PERIGEE_TYPED is a text, a zero, and at most "
        "%d bytes of typed values",
        FAILURE_MORE);
  return PERIGEE_OK;
}

static bool affordable(struct perigee_engine *engine,
                       const struct perigee_message *m, int *status) {
  *status = PERIGEE_OK;
  if (!typed_is_due(m))
    return true;
  *status = m->status != PERIGEE_OK
                ? failure_of(engine, m)
                : incoming_typed(engine, m->head, m->length);
  return *status >= 0;
}

/* A short head goes into the ring at once; false: no room, or not its turn. */
static bool answer_bytes(struct operation *op, uint8_t flags,
                         const uint8_t *bytes, uint64_t length) {
  struct perigee_session *s = op->session;
  struct record r = {.kind = RECORD_REPLY,
                     .flags = flags,
                     .method = op->index,
                     .operation = op->peer_operation,
                     .generation = op->peer_generation,
                     .remaining = op->generation,
                     .head_length = length};
  if (!list_empty(&s->operations.backlog[RING_REPLY]) ||
      !outgoing_bytes(s, RING_REPLY, &r, bytes))
    return false;
  if (costs(s, length))
    learn_size(s, length);
  step(op, ANSWER);
  return true;
}

static bool answer_short(struct operation *op,
                         const struct perigee_message *m) {
  uint64_t length;
  bool alone = m->status == PERIGEE_OK && !m->code;
  const uint8_t *bytes = alone ? outgoing_short(op, m, &length) : NULL;
  uint8_t flags = m->flags & PERIGEE_TYPED ? RECORD_TYPED : 0;
  return bytes && answer_bytes(op, flags, bytes, length);
}

BESIDE reply_shared(struct perigee_engine *engine, int served,
                    const struct perigee_message *m) {
  WITHIN(engine, ENTRY_WORK, perigee_reply(engine, served, m));
}

int perigee_reply(struct perigee_engine *engine, int served,
                  const struct perigee_message *m) {
  if (SHARED(engine))
    return reply_shared(engine, served, m);
  int status;
  struct operation *op = served_find(engine, served, &status);
  if (!op)
    return status;
  if (op->state == LANDING) { /* the program refused to name a landing */
    op->landed = false;
    served_let_on(op);
    step(op, SERVE);
  }
  if (UNLIKELY(op->flags & PERIGEE_HELD))
    served_let_on(op);
  if (!affordable(engine, m, &status)) {
    struct perigee_message none = refusal_told(op, status);
    return served_answer(op, &none) == 1 ? 1 : status;
  }
  if (answer_short(op, m))
    return after_reply(op, 1);
  operation_ref(op, m->slice.region);
  return served_answer(op, m);
}

void serve_answer(struct operation *op, int status) {
  struct perigee_message m = refusal_told(op, status);
  served_let_on(op);
  op->unseen = true;
  if (op->state != SERVING)
    step(op, SERVE);
  if (open_lane(op)) {
    served_answer(op, &m);
    return;
  }
  step(op, ANSWER);
  served_tell(op);
}

BESIDE reply_begin_shared(struct perigee_engine *engine, int served,
                          uint64_t capacity, struct perigee_loan *loan) {
  WITHIN(engine, ENTRY_WORK,
         perigee_reply_begin(engine, served, capacity, loan));
}

int perigee_reply_begin(struct perigee_engine *engine, int served,
                        uint64_t capacity, struct perigee_loan *loan) {
  if (SHARED(engine))
    return reply_begin_shared(engine, served, capacity, loan);
  int status;
  struct operation *op = served_find(engine, served, &status);
  if (!op)
    return status;
  if (op->roomy && capacity > op->session->peer.eager &&
      capacity <= op->value) {
    status = loan_begin_in(op->session, capacity, &op->room, loan);
    op->roomy = status < 0;
  } else {
    status = loan_begin(op->session, RING_REPLY, capacity, loan);
  }
  if (status == PERIGEE_OK) /* otherwise the open loan may be another call's */
    op->session->operations.loans[RING_REPLY].served = served;
  return status;
}

int perigee_reply_abort(struct perigee_engine *engine, int served) {
  ENTER(engine);
  struct operation *op = operation_find(engine, served);
  if (!op || !op->session || !engine_alive(engine) ||
      op->session->operations.loans[RING_REPLY].served != served)
    return PERIGEE_OK;
  return loan_abort(op->session, RING_REPLY);
}

/* The operation owns the block from here on. A head in the arena is referred to
 * where it is. If the request's head was pulled into a block of ours, the
 * program has read it by now. */
static int answer_block(struct operation *op, const struct loan *loan,
                        uint64_t length) {
  struct perigee_message m = {.head = loan->pointer, .length = length};
  served_unlend(op);
  op->bulky = false;
  op->head_lent = true;
  op->head_loan = loan->source;
  return served_answer(op, &m);
}

static int answer_stage(struct operation *op, const uint8_t *bytes,
                        uint64_t length) {
  if (answer_bytes(op, 0, bytes, length))
    return after_reply(op, 1);
  return served_answer(
      op, &(struct perigee_message){.head = bytes, .length = length});
}

BESIDE reply_commit_shared(struct perigee_engine *engine, int served,
                           uint64_t length) {
  WITHIN(engine, ENTRY_WORK, perigee_reply_commit(engine, served, length));
}

int perigee_reply_commit(struct perigee_engine *engine, int served,
                         uint64_t length) {
  if (SHARED(engine))
    return reply_commit_shared(engine, served, length);
  int status;
  struct operation *op = served_find(engine, served, &status);
  if (!op)
    return status;
  struct perigee_session *session = op->session;
  struct loan *loan = &session->operations.loans[RING_REPLY];
  if (loan->open && loan->served != served)
    return fail(engine, PERIGEE_INVALID, "no such loan is open");
  if ((status = loan_check(session, RING_REPLY, length)) < 0)
    return status;
  status = loan->stage ? answer_stage(op, loan->pointer, length)
                       : answer_block(op, loan, length);
  loan_close(session, RING_REPLY);
  return status;
}
