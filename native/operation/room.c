/* SPDX-License-Identifier: Apache-2.0
 *
 * room.c - blocks of the lane that callers read in place: which of them have
 * been released, and which operations wait for one.
 *
 * A reply that was lent stays until its caller's mark is gone. Looking at a
 * mark takes its cache line away from the caller, so the marks are looked at
 *
 *   after a reply    if more than a little is outstanding: the oldest first,
 *                    until a few were found that are still in use
 *   for a block      if none is free: all marks of the session
 *   at each tick     some of each session, and all before a sleep
 *
 * so the blocks in use are those of calls in progress, and a few more.
 *
 * A request that needs a block while none is free is not refused. It waits, and
 * the session's later requests wait behind it, until the caller's time is
 * nearly over, or for ROOM_LONGEST.
 *
 * Two sides that call each other must not wait for each other in this way. An
 * own request ends when the peer has answered, so no reply may wait for own
 * requests:
 *
 *   own requests have an account of their own (SHARE_LENT) and at most half of
 *   the blocks; they use nothing of what replies count for, and leave replies
 *   as many blocks;
 *   if own requests are placed so that no block of the wanted size can be had,
 *   and nothing else of the session has a block, the request does not wait.
 *
 * A block that is waited for then belongs either to a request that has all that
 * it needs, until the program has replied (the blocks for its head and its
 * reply are taken together or not at all, so a request that waits has none), or
 * to a reply, until the caller has read it. Callers read replies whatever waits
 * in the ring of requests. So there is always an owner that can go on, and
 * after the last of them nobody waits.
 */
#include "loan.h"
#include "operations.h"

/* The default timeout of calls; for requests without a deadline. */
static const int64_t ROOM_LONGEST = INT64_C(30) * 1000000000;
enum { MISSES = 2, LOOKS_A_TICK = 32, LITTLE = 256 << 10, ALL = 1 << 30 };

/* ---- Replies that are outstanding ---------------------------------------- */

void room_keep_reply(struct operation *op) {
  struct perigee_session *s = op->session;
  list_append(&s->replies.waiting, &op->queue);
  if (!s->replies.lender.next)
    list_append(&s->engine->lenders, &s->replies.lender);
}

/* Looks at each reply once, until so many are still in use (misses) or so
 * many were looked at; returns how many looks are left. Those in use go to
 * the end. */
static int look(struct perigee_session *s, int misses, int looks) {
  struct node *n, *head = &s->replies.waiting, *last = head->previous;
  while (misses > 0 && looks > 0 && (n = list_pop(head))) {
    struct operation *op = CONTAINER(n, struct operation, queue);
    list_append(head, n);
    op->class->step(op);
    misses -= head->previous == n; /* it stays */
    looks--;
    if (n == last)
      break;
  }
  return looks;
}

void room_look(struct perigee_session *s) {
  if (s->replies.untaken_bytes > LITTLE)
    look(s, MISSES, ALL);
}

void room_sweep(struct perigee_engine *engine, bool all) {
  struct node *n, *head = &engine->lenders, *last = head->previous;
  for (int looks = all ? ALL : LOOKS_A_TICK; looks > 0;) {
    if (!(n = list_pop(head)))
      return;
    struct perigee_session *s =
        CONTAINER(n, struct perigee_session, replies.lender);
    looks = look(s, ALL, looks);
    if (!list_empty(&s->replies.waiting))
      list_append(head, n);
    if (n == last)
      return;
  }
}

int room_lend(struct perigee_session *s, uint64_t length, uint8_t **pointer,
              struct source *source) {
  struct lane *lane = s->lane;
  int status = lane_table(lane)->loans->loan(lane, length, pointer, source);
  if (status != PERIGEE_AGAIN || list_empty(&s->replies.waiting))
    return status;
  look(s, ALL, ALL);
  return lane_table(lane)->loans->loan(lane, length, pointer, source);
}

/* ---- Own requests -------------------------------------------------------- */

bool room_stages(const struct operation *op, uint64_t bytes) {
  const struct perigee_options *o = &op->engine->options;
  uint64_t lent = op->session->account.share->used[SHARE_LENT];
  return lent == op->exposed || lent + bytes <= shares_half(o);
}

/* A peer that has nothing lent may get all that is free. */
static bool may_lend(const struct share *s, uint64_t bytes) {
  uint64_t lent = s->all->engine.used[SHARE_LENT];
  return share_may(s, SHARE_LENT, bytes) ||
         (s->parent->used[SHARE_LENT] == 0 &&
          lent + bytes <= s->all->quota[SHARE_LENT].limit);
}

int room_lends(struct perigee_session *s, uint64_t length) {
  uint64_t half = shares_half(&s->engine->options);
  if (length > half || blocks_whole(length) > half)
    return fail(s->engine, PERIGEE_TOO_LARGE,
                "a request of %llu bytes cannot be lent: its block would take "
                "more than half of the pool (option pool)",
                (unsigned long long)length);
  if (share_may(s->account.share, SHARE_KEPT, 1) &&
      may_lend(s->account.share, blocks_whole(length)))
    return PERIGEE_OK;
  s->account.share->all->refused++;
  return fail(s->engine, PERIGEE_NO_MEMORY,
              "the peer has not let go of what it was lent before (option "
              "pool)");
}

/* ---- Room for a request, taken ahead ------------------------------------- */

static bool may_keep_reply(struct perigee_session *s, uint64_t length) {
  if (share_may(s->account.share, SHARE_EXPOSED, length))
    return true;
  look(s, ALL, ALL);
  return share_may(s->account.share, SHARE_EXPOSED, length);
}

/* Will a block become free? If only own requests have any, perhaps not: the
 * peer might have to wait for us before it answers them. */
static bool comes_back(const struct perigee_session *s) {
  const uint64_t *used = s->account.share->used;
  return used[SHARE_LENT] == 0 || used[SHARE_EXPOSED] > 0;
}

/* Takes both blocks or none; a length of 0 needs no block. */
static int take(struct operation *op, uint64_t head, uint64_t reply) {
  struct perigee_session *s = op->session;
  struct room room = {0};
  uint8_t *block = NULL;
  struct source source;
  int status = PERIGEE_OK;
  if (!may_keep_reply(s, head + reply))
    return PERIGEE_AGAIN;
  if (head > 0)
    status = room_lend(s, head, &block, &source);
  if (status == PERIGEE_OK && reply > 0)
    status = loan_room(s, reply, &room);
  if (status < 0 && block)
    lane_table(s->lane)->loans->unloan(s->lane, &source);
  if (status < 0)
    return status == PERIGEE_AGAIN && !comes_back(s) ? PERIGEE_NO_MEMORY
                                                     : status;
  if (block) {
    op->pointer = block;
    op->head_loan = source;
    op->head_lent = true;
  }
  op->room = room;
  op->roomy = reply > 0;
  op->reserved = head + reply;
  operation_expose(op, op->reserved);
  return PERIGEE_OK;
}

static uint64_t whole(uint64_t length) {
  return length > 0 ? blocks_whole(length) : 0;
}

/* Could both be had if nothing else had a block? */
static bool ever(const struct operation *op, uint64_t head, uint64_t reply) {
  uint64_t pool = op->engine->options.pool;
  return head <= pool && reply <= pool && whole(head) + whole(reply) <= pool &&
         head + reply <= share_most(op->session->account.share, SHARE_EXPOSED);
}

/* As take; returns AGAIN only if waiting makes sense. */
static int take_ever(struct operation *op, uint64_t head, uint64_t reply) {
  if (head + reply == 0)
    return PERIGEE_OK;
  int status = take(op, head, reply);
  bool never = status == PERIGEE_AGAIN && !ever(op, head, reply);
  return never ? PERIGEE_NO_MEMORY : status;
}

const uint8_t *room_view(struct operation *op, const struct source *source) {
  struct lane *lane = op->session->lane;
  room_unview(op);
  const uint8_t *at = lane_table(lane)->loans->view(lane, source);
  op->viewed = at != NULL;
  op->view = at;
  op->view_length = source->block;
  return at;
}

void room_unview(struct operation *op) {
  struct lane *lane = op->session ? op->session->lane : NULL;
  if (op->viewed && lane && lane_table(lane)->loans->unview)
    lane_table(lane)->loans->unview(lane, op->view, op->view_length);
  op->viewed = false;
}

static bool lacks(struct lane *lane, const struct source *source) {
  const struct transport_loans *loans = lane_table(lane)->loans;
  return loans->lacks && loans->lacks(lane, source);
}

/* A raw head that cannot be read in place is pulled into a block, to which the
 * reply may refer. */
static uint64_t head_block(struct operation *op, const struct source *source) {
  struct lane *lane = op->session->lane;
  if (!op->bulky || op->flags & PERIGEE_TYPED)
    return 0;
  op->pointer = room_view(op, source);
  if (op->pointer || lacks(lane, source))
    return 0;
  return op->length > 0 ? op->length : 1;
}

static uint64_t reply_block(const struct operation *op) {
  bool none = op->flags & PERIGEE_TYPED || op->value <= op->session->peer.eager;
  return none ? 0 : op->value;
}

/* If the block for a reply could never be had, the request is served anyway:
 * the program finds out if it asks for the loan. */
int room_take(struct operation *op, const struct source *source) {
  uint64_t head = head_block(op, source), reply = reply_block(op);
  int status = take_ever(op, head, reply);
  if (status < 0 && status != PERIGEE_AGAIN && reply > 0)
    status = take_ever(op, head, 0);
  if (status == PERIGEE_OK || status == PERIGEE_AGAIN)
    return status == PERIGEE_OK ? 1 : status;
  return fail(op->engine, status, "no block for a request of %llu bytes",
              (unsigned long long)op->length);
}

/* Gives unused room back. The reply is counted by itself. */
void room_give(struct operation *op) {
  struct lane *lane = op->session ? op->session->lane : NULL;
  if (op->roomy && lane)
    lane_table(lane)->loans->unloan(lane, &op->room.source);
  op->roomy = false;
  operation_unexpose(op, op->reserved);
  op->reserved = 0;
}

/* ---- Waiting for it ------------------------------------------------------ */

/* Waits for seven eighths of the caller's time; the rest is for the refusal. */
void room_await(struct operation *op) {
  int64_t now = engine_clock(op->engine), until = op->deadline;
  until = until < 0 ? now + ROOM_LONGEST : until - (until - now) / 8;
  timers_add(&op->engine->timers, &op->timer, until);
  operation_move(op);
}

void room_waited(struct operation *op) {
  timers_remove(&op->engine->timers, &op->timer);
}
