/* SPDX-License-Identifier: Apache-2.0 */
#include "loan.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/lanes.h"
#include "memory/guarded.h"

enum { STRAY = 1 << 20, MARK = 16 };

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

static void mark(const struct perigee_engine *engine, const struct loan *loan) {
  memcpy(loan->pointer + loan->length, engine->mark, MARK);
}

static inline bool is_whole(const struct perigee_engine *engine,
                            const struct loan *loan) {
  return !loan->marked ||
         memcmp(loan->pointer + loan->length, engine->mark, MARK) == 0;
}

static bool has_room_behind(uint64_t length) {
  return blocks_whole(length) - length >= MARK;
}

/* ---- Lending ------------------------------------------------------------ */

static int lend_stage(struct perigee_engine *engine, struct loan *loan) {
  loan->stage = stage_take(engine);
  if (!loan->stage)
    return fail(engine, PERIGEE_NO_MEMORY, "no memory to lend");
  loan->pointer = loan->stage->bytes;
  loan->marked = true;
  return PERIGEE_OK;
}

int loan_room(struct perigee_session *session, uint64_t capacity,
              struct room *room) {
  if (capacity > PAYLOAD_MAX)
    return PERIGEE_TOO_LARGE;
  room->marked = has_room_behind(capacity);
  return room_lend(session, capacity + (room->marked ? MARK : 0),
                   &room->pointer, &room->source);
}

static void fill_in(struct loan *loan, const struct room *room) {
  loan->pointer = room->pointer;
  loan->source = room->source;
  loan->source.block = loan->source.stride = loan->length;
}

static const char *no_block(const struct perigee_engine *engine,
                            uint64_t length) {
  return length > engine->options.pool
             ? "that is more than the pool has (option pool)"
             : "the pool is used up (option pool)";
}

static int lend_block(struct perigee_session *session, struct loan *loan) {
  struct room room;
  int status = loan_room(session, loan->length, &room);
  const char *why = lane_trouble(session);
  if (status < 0)
    return fail(
        session->engine, status == PERIGEE_AGAIN ? PERIGEE_NO_MEMORY : status,
        "no block of %llu bytes to lend: %s", (unsigned long long)loan->length,
        *why ? why : no_block(session->engine, loan->length));
  fill_in(loan, &room);
  loan->marked = room.marked;
  return PERIGEE_OK;
}

/* Lends a block for a request; it counts against SHARE_LENT from here on. */
static int lend_request(struct perigee_session *session, struct loan *loan) {
  int status = room_lends(session, loan->length);
  if (status == PERIGEE_OK)
    status = lend_block(session, loan);
  if (status < 0)
    return status;
  loan->lent = blocks_whole(loan->length);
  share_add(session->account.share, SHARE_LENT, loan->lent);
  return PERIGEE_OK;
}

static int lend(struct perigee_session *session, enum ring ring,
                struct loan *loan) {
  if (loan->length <= session->peer.eager)
    return lend_stage(session->engine, loan);
  return ring == RING_REQUEST ? lend_request(session, loan)
                              : lend_block(session, loan);
}

static int opened(struct perigee_engine *engine, struct loan *loan,
                  struct perigee_loan *out) {
  loan->open = true;
  if (loan->marked)
    mark(engine, loan);
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
  int status = lend(session, ring, loan);
  return status < 0 ? status : opened(engine, loan, out);
}

int loan_begin_in(struct perigee_session *session, uint64_t capacity,
                  const struct room *room, struct perigee_loan *out) {
  struct loan *loan = &session->operations.loans[RING_REPLY];
  if (loan->open)
    return fail(session->engine, PERIGEE_INVALID,
                "a loan of this session is open already");
  loan->length = capacity;
  loan->stage = NULL;
  fill_in(loan, room);
  loan->marked = capacity + MARK <= room->source.block;
  return opened(session->engine, loan, out);
}

static __attribute__((noinline, cold)) int
refuse(struct perigee_session *session, enum ring ring, uint64_t length) {
  const struct loan *loan = &session->operations.loans[ring];
  if (!loan->open || length > loan->length)
    return fail(session->engine, PERIGEE_INVALID,
                "no loan is open, or it is shorter than %llu bytes",
                (unsigned long long)length);
  return loan_abort(session, ring);
}

int loan_check(struct perigee_session *session, enum ring ring,
               uint64_t length) {
  const struct loan *loan = &session->operations.loans[ring];
  if (loan->open && length <= loan->length && is_whole(session->engine, loan))
    return PERIGEE_OK;
  return refuse(session, ring, length);
}

void loan_close(struct perigee_session *session, enum ring ring) {
  struct loan *loan = &session->operations.loans[ring];
  if (loan->stage)
    stage_give(session->engine, loan->stage);
  if (loan->lent > 0)
    share_give(session->account.share, SHARE_LENT, loan->lent);
  loan->lent = 0;
  loan->stage = NULL;
  loan->open = false;
}

int loan_abort(struct perigee_session *session, enum ring ring) {
  struct loan *loan = &session->operations.loans[ring];
  if (!loan->open)
    return PERIGEE_OK;
  bool whole = is_whole(session->engine, loan);
  if (!loan->stage && session->lane)
    lane_table(session->lane)->loans->unloan(session->lane, &loan->source);
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
