/* SPDX-License-Identifier: Apache-2.0
 *
 * loan.c - blocks of the lane that the peer reads in place: which of them have
 * been released, which operations wait for one, and memory that is lent to the
 * program to be filled (loan.h).
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

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/lanes.h"
#include "core/lock.h"
#include "memory/backing.h"

/* STRAY: unused bytes behind a stage. MARK: bytes of the mark behind a loan. */
enum { STRAY = 1 << 20, MARK = 16 };
/* The default timeout of calls; for requests without a deadline. */
static const int64_t ROOM_LONGEST = INT64_C(30) * 1000000000;
/* Loans from so many bytes on may be room in the ring: of shorter ones the copy
 * takes less than one more line. */
enum { IN_RING = 2 << 10 };
enum { MISSES = 2, LOOKS_A_TICK = 32, LITTLE = 256 << 10, ALL = 1 << 30 };

/* ---- Replies that are outstanding --------------------------------------- */

void room_keep_reply(struct operation *op) {
  struct perigee_session *s = op->session;
  list_append(&s->replies.waiting, &op->queue);
  if (!s->replies.lender.next)
    list_append(&s->engine->lenders, &s->replies.lender);
}

/* Looks at each reply once, until so many are still in use (misses) or so
 * many were looked at; returns how many looks are left. Those in use go to
 * the end. */
static int room_look_at(struct perigee_session *s, int misses, int looks) {
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
    room_look_at(s, MISSES, ALL);
}

void room_sweep(struct perigee_engine *engine, bool all) {
  struct node *n, *head = &engine->lenders, *last = head->previous;
  for (int looks = all ? ALL : LOOKS_A_TICK; looks > 0;) {
    if (!(n = list_pop(head)))
      return;
    struct perigee_session *s =
        CONTAINER(n, struct perigee_session, replies.lender);
    looks = room_look_at(s, ALL, looks);
    if (!list_empty(&s->replies.waiting))
      list_append(head, n);
    if (n == last)
      return;
  }
}

static int room_lend(struct perigee_session *s, uint64_t length,
                     uint8_t **pointer, struct source *source) {
  struct lane *lane = s->lane;
  int status = lane_table(lane)->loans->loan(lane, length, pointer, source);
  if (status != PERIGEE_AGAIN || list_empty(&s->replies.waiting))
    return status;
  room_look_at(s, ALL, ALL);
  return lane_table(lane)->loans->loan(lane, length, pointer, source);
}

/* ---- Own requests ------------------------------------------------------- */

bool room_stages(const struct operation *op, uint64_t bytes) {
  const struct perigee_options *o = &op->engine->options;
  uint64_t lent = op->session->account.share->used[SHARE_LENT];
  return lent == op->exposed || lent + bytes <= shares_half(o);
}

/* A peer that has nothing lent may get all that is free. */
static bool room_may_lend(const struct share *s, uint64_t bytes) {
  uint64_t lent = s->all->engine.used[SHARE_LENT];
  return share_may(s, SHARE_LENT, bytes) ||
         (s->parent->used[SHARE_LENT] == 0 &&
          lent + bytes <= s->all->quota[SHARE_LENT].limit);
}

static int room_lends(struct perigee_session *s, uint64_t length) {
  uint64_t half = shares_half(&s->engine->options);
  if (length > half || blocks_whole(length) > half)
    return fail(s->engine, PERIGEE_TOO_LARGE,
                "a request of %llu bytes cannot be lent: its block would take "
                "more than half of the pool (option pool)",
                (unsigned long long)length);
  if (share_may(s->account.share, SHARE_KEPT, 1) &&
      room_may_lend(s->account.share, blocks_whole(length)))
    return PERIGEE_OK;
  s->account.share->all->refused++;
  return fail(s->engine, PERIGEE_NO_MEMORY,
              "the peer has not let go of what it was lent before (option "
              "pool)");
}

/* ---- Stages ------------------------------------------------------------- */

static uint64_t stage_size(const struct perigee_engine *engine) {
  return engine->options.eager + MARK + STRAY;
}

static struct stage *stage_make(struct perigee_engine *engine) {
  struct stage *stage = malloc(sizeof *stage);
  if (!stage)
    return NULL;
  stage->bytes = guarded_map(stage_size(engine), -1);
  if (stage->bytes)
    return stage;
  free(stage);
  return NULL;
}

static struct stage *stage_take(struct perigee_engine *engine) {
  struct stage *stage = engine->stages;
  if (!stage)
    return stage_make(engine);
  engine->stages = stage->next;
  return stage;
}

static void stage_give(struct perigee_engine *engine, struct stage *stage) {
  stage->next = engine->stages;
  engine->stages = stage;
}

void stages_free(struct perigee_engine *engine) {
  bool here = engine->alive && engine_alive(engine); /* not in a forked child */
  for (struct stage *s = engine->stages, *next; s; s = next) {
    next = s->next;
    if (here)
      guarded_unmap(s->bytes, stage_size(engine));
    free(s);
  }
}

/* ---- Marks -------------------------------------------------------------- */

static void loan_mark(const struct perigee_engine *engine,
                      const struct loan *loan) {
  memcpy(loan->pointer + loan->length, engine->mark, MARK);
}

static inline bool loan_is_whole(const struct perigee_engine *engine,
                                 const struct loan *loan) {
  return !loan->marked ||
         memcmp(loan->pointer + loan->length, engine->mark, MARK) == 0;
}

static bool loan_has_room_behind(uint64_t length) {
  return blocks_whole(length) - length >= MARK;
}

/* ---- Lending ------------------------------------------------------------ */

static int loan_lend_stage(struct perigee_engine *engine, struct loan *loan) {
  loan->stage = stage_take(engine);
  if (!loan->stage)
    return fail(engine, PERIGEE_NO_MEMORY, "no memory to lend");
  loan->pointer = loan->stage->bytes;
  loan->marked = true;
  return PERIGEE_OK;
}

_Static_assert((int)RECORD_LENT <= (int)RING_HEAD, "the longest head fits");

/* A program whose loans are longer than what it fills would take up the ring for
 * nothing. */
static inline bool loan_is_for_ring(const struct loan *loan) {
  return loan->length >= IN_RING && loan->filled >= IN_RING;
}

/* Lends room in the ring, where no record waits for any. */
static __attribute__((noinline)) bool
loan_lend_room(struct perigee_session *session, enum ring ring,
               struct loan *loan) {
  struct lane *lane = session->lane;
  const struct transport_records *records = lane_records(lane);
  uint64_t size = RECORD_LENT + record_padded(loan->length) + MARK;
  if (!records->lend || !list_empty(&session->operations.backlog[ring]))
    return false;
  uint8_t *room = records->lend(lane, ring, size);
  loan->in_ring = loan->marked = room != NULL;
  if (room)
    loan->pointer = room + RECORD_LENT;
  return room != NULL;
}

static int loan_room(struct perigee_session *session, uint64_t capacity,
                     struct room *room) {
  if (capacity > PAYLOAD_MAX)
    return PERIGEE_TOO_LARGE;
  room->marked = loan_has_room_behind(capacity);
  return room_lend(session, capacity + (room->marked ? MARK : 0),
                   &room->pointer, &room->source);
}

static void loan_fill_in(struct loan *loan, const struct room *room) {
  loan->pointer = room->pointer;
  loan->source = room->source;
  loan->source.block = loan->source.stride = loan->length;
}

static const char *loan_why_none(const struct perigee_engine *engine,
                                 uint64_t length) {
  return length > engine->options.pool
             ? "that is more than the pool has (option pool)"
             : "the pool is used up (option pool)";
}

static int loan_lend_block(struct perigee_session *session, struct loan *loan) {
  struct room room;
  int status = loan_room(session, loan->length, &room);
  const char *why = lane_trouble(session);
  if (status < 0)
    return fail(
        session->engine, status == PERIGEE_AGAIN ? PERIGEE_NO_MEMORY : status,
        "no block of %llu bytes to lend: %s", (unsigned long long)loan->length,
        *why ? why : loan_why_none(session->engine, loan->length));
  loan_fill_in(loan, &room);
  loan->marked = room.marked;
  return PERIGEE_OK;
}

/* Lends a block for a request; it counts against SHARE_LENT from here on. */
static int loan_lend_request(struct perigee_session *session,
                             struct loan *loan) {
  int status = room_lends(session, loan->length);
  if (status == PERIGEE_OK)
    status = loan_lend_block(session, loan);
  if (status < 0)
    return status;
  loan->lent = blocks_whole(loan->length);
  share_add(session->account.share, SHARE_LENT, loan->lent);
  return PERIGEE_OK;
}

static int loan_lend(struct perigee_session *session, enum ring ring,
                     struct loan *loan) {
  if (loan->length <= session->peer.eager)
    return UNLIKELY(loan_is_for_ring(loan)) &&
                   loan_lend_room(session, ring, loan)
               ? PERIGEE_OK
               : loan_lend_stage(session->engine, loan);
  return ring == RING_REQUEST ? loan_lend_request(session, loan)
                              : loan_lend_block(session, loan);
}

static int loan_opened(struct perigee_engine *engine, struct loan *loan,
                       struct perigee_loan *out) {
  loan->open = true;
  if (loan->marked)
    loan_mark(engine, loan);
  *out = (struct perigee_loan){loan->pointer, loan->length};
  return PERIGEE_OK;
}

int loan_begin(struct perigee_session *session, enum ring ring,
               uint64_t capacity, struct perigee_loan *out) {
  struct perigee_engine *engine = session->engine;
  struct loan *loan = &session->operations.loans[ring];
  if (loan->open)
    return fail(engine, PERIGEE_INVALID,
                "a loan of this session is open already");
  loan->length = capacity;
  loan->stage = NULL;
  int status = loan_lend(session, ring, loan);
  return status < 0 ? status : loan_opened(engine, loan, out);
}

int loan_begin_in(struct perigee_session *session, uint64_t capacity,
                  const struct room *room, struct perigee_loan *out) {
  struct loan *loan = &session->operations.loans[RING_REPLY];
  if (loan->open)
    return fail(session->engine, PERIGEE_INVALID,
                "a loan of this session is open already");
  loan->length = capacity;
  loan->stage = NULL;
  loan_fill_in(loan, room);
  loan->marked = capacity + MARK <= room->source.block;
  return loan_opened(session->engine, loan, out);
}

static __attribute__((noinline, cold)) int
loan_refuse(struct perigee_session *session, enum ring ring, uint64_t length) {
  const struct loan *loan = &session->operations.loans[ring];
  if (!loan->open || length > loan->length)
    return fail(session->engine, PERIGEE_INVALID,
                "no loan is open, or it is shorter than %llu bytes",
                (unsigned long long)length);
  return loan_abort(session, ring);
}

int loan_check(struct perigee_session *session, enum ring ring,
               uint64_t length) {
  struct loan *loan = &session->operations.loans[ring];
  if (!loan->open || length > loan->length ||
      !loan_is_whole(session->engine, loan))
    return loan_refuse(session, ring, length);
  loan->filled = length;
  return PERIGEE_OK;
}

int loan_leave_ring(struct perigee_session *session, enum ring ring,
                    uint64_t length) {
  struct loan *loan = &session->operations.loans[ring];
  const uint8_t *bytes = loan->pointer;
  int status = loan_lend_stage(session->engine, loan);
  if (status < 0)
    return status;
  copy_any(loan->pointer, bytes, length);
  lane_records(session->lane)->unlend(session->lane, ring);
  loan->in_ring = false;
  return PERIGEE_OK;
}

/* Gives back what is no stage. */
static __attribute__((noinline)) void
loan_close_apart(struct perigee_session *session, enum ring ring) {
  struct loan *loan = &session->operations.loans[ring];
  if (loan->in_ring)
    lane_records(session->lane)->unlend(session->lane, ring);
  if (loan->lent > 0)
    share_give(session->account.share, SHARE_LENT, loan->lent);
  loan->lent = 0;
  loan->in_ring = false;
}

void loan_close(struct perigee_session *session, enum ring ring) {
  struct loan *loan = &session->operations.loans[ring];
  if (loan->stage)
    stage_give(session->engine, loan->stage);
  else
    loan_close_apart(session, ring);
  loan->stage = NULL;
  loan->open = false;
}

int loan_abort(struct perigee_session *session, enum ring ring) {
  struct loan *loan = &session->operations.loans[ring];
  if (!loan->open)
    return PERIGEE_OK;
  bool whole = loan_is_whole(session->engine, loan);
  if (!loan_is_short(loan) && session->lane)
    lane_table(session->lane)
        ->loans->unloan(session->lane, &loan->source, false);
  if (loan->stage && !whole) /* bytes beyond the loan are not kept */
    madvise(loan->stage->bytes, stage_size(session->engine), MADV_DONTNEED);
  loan_close(session, ring);
  return whole ? PERIGEE_OK
               : fail(session->engine, PERIGEE_RANGE,
                      "more was written than the %llu bytes that were lent",
                      (unsigned long long)loan->length);
}

void loans_end(struct perigee_session *session) {
  for (int ring = 0; ring < RINGS; ring++)
    loan_close(session, ring);
}

/* ---- Room for a request, taken ahead ------------------------------------ */

static bool room_may_keep_reply(struct perigee_session *s, uint64_t length) {
  if (share_may(s->account.share, SHARE_EXPOSED, length))
    return true;
  room_look_at(s, ALL, ALL);
  return share_may(s->account.share, SHARE_EXPOSED, length);
}

/* Will a block become free? It perhaps cannot if only own requests have any:
 * the peer might have to wait for us before it answers them. */
static bool room_comes_back(const struct perigee_session *s) {
  const uint64_t *used = s->account.share->used;
  return used[SHARE_LENT] == 0 || used[SHARE_EXPOSED] > 0;
}

/* Takes both blocks or none; a length of 0 needs no block. */
static int room_take_both(struct operation *op, uint64_t head, uint64_t reply) {
  struct perigee_session *s = op->session;
  struct room room = {0};
  uint8_t *block = NULL;
  struct source source;
  int status = PERIGEE_OK;
  if (!room_may_keep_reply(s, head + reply))
    return PERIGEE_AGAIN;
  if (head > 0)
    status = room_lend(s, head, &block, &source);
  if (status == PERIGEE_OK && reply > 0)
    status = loan_room(s, reply, &room);
  if (status < 0 && block)
    lane_table(s->lane)->loans->unloan(s->lane, &source, false);
  if (status < 0)
    return status == PERIGEE_AGAIN && !room_comes_back(s) ? PERIGEE_NO_MEMORY
                                                          : status;
  if (block) {
    op->pointer = block;
    op->head_loan = source;
    op->head_lent = true;
  }
  op->room = room;
  op->roomy = reply > 0;
  op->reserved = head + reply;
  operation_expose(op, op->reserved); /* has_more, too */
  return PERIGEE_OK;
}

static uint64_t room_whole(uint64_t length) {
  return length > 0 ? blocks_whole(length) : 0;
}

/* Could both be had if nothing else had a block? */
static bool room_is_possible(const struct operation *op, uint64_t head,
                             uint64_t reply) {
  uint64_t pool = op->engine->options.pool;
  return head <= pool && reply <= pool &&
         room_whole(head) + room_whole(reply) <= pool &&
         head + reply <= share_most(op->session->account.share, SHARE_EXPOSED);
}

/* As room_take_both(); returns AGAIN only if waiting makes sense. */
static int room_take_possible(struct operation *op, uint64_t head,
                              uint64_t reply) {
  if (head + reply == 0)
    return PERIGEE_OK;
  int status = room_take_both(op, head, reply);
  bool never = status == PERIGEE_AGAIN && !room_is_possible(op, head, reply);
  return never ? PERIGEE_NO_MEMORY : status;
}

const uint8_t *room_view(struct operation *op, const struct source *source,
                         uint16_t operation, uint32_t generation) {
  struct lane *lane = op->session->lane;
  if (op->viewed && lane_table(lane)->loans->arrived)
    return op->view;
  operation_unview(op);
  const uint8_t *at =
      lane_table(lane)->loans->view(lane, source, operation, generation);
  op->viewed = at != NULL;
  op->view = at;
  op->view_length = source->block;
  return at;
}

static bool room_lacks(struct lane *lane, const struct source *source) {
  const struct transport_loans *loans = lane_table(lane)->loans;
  return loans->lacks && loans->lacks(lane, source);
}

/* A raw head that cannot be read in place is pulled into a block, to which the
 * reply may refer. */
static uint64_t room_head_block(struct operation *op,
                                const struct source *source) {
  struct lane *lane = op->session->lane;
  if (!op->bulky || op->flags & PERIGEE_TYPED)
    return 0;
  op->pointer = room_view(op, source, op->peer_operation, op->peer_generation);
  if (op->pointer || room_lacks(lane, source))
    return 0;
  return op->length > 0 ? op->length : 1;
}

static uint64_t room_reply_block(const struct operation *op) {
  bool none = op->flags & PERIGEE_TYPED || op->value <= op->session->peer.eager;
  return none ? 0 : op->value;
}

/* The request is served anyway if the block for its reply could never be had:
 * the program finds out if it asks for the loan. */
int room_take(struct operation *op, const struct source *source) {
  uint64_t head = room_head_block(op, source), reply = room_reply_block(op);
  int status = room_take_possible(op, head, reply);
  if (status < 0 && status != PERIGEE_AGAIN && reply > 0)
    status = room_take_possible(op, head, 0);
  if (status == PERIGEE_OK || status == PERIGEE_AGAIN)
    return status == PERIGEE_OK ? 1 : status;
  return fail(op->engine, status, "no block for a request of %llu bytes",
              (unsigned long long)op->length);
}

/* Gives unused room back. The reply is counted by itself. */
void room_give(struct operation *op) {
  struct lane *lane = op->session ? op->session->lane : NULL;
  if (op->roomy && lane)
    lane_table(lane)->loans->unloan(lane, &op->room.source, false);
  op->roomy = false;
  operation_unexpose(op, op->reserved);
  op->reserved = 0;
}

/* ---- Waiting for it ----------------------------------------------------- */

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
