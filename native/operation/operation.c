/* SPDX-License-Identifier: Apache-2.0
 *
 * operation.c - the life of every operation: its entry in the engine's table,
 * its timeout, the lists in which it waits, its event, and what it counts for
 * its peer. The last part ends own operations that get no reply record
 * (transfers, receives, look-ups, connects):
 *
 *   state    event     becomes
 *   free     submit    moving    its class does the work
 *   moving   done      ended
 *   moving   queue     queued    the data is there, the immediate has no room
 *   queued   publish   ended
 *   moving   stop      ended     timeout, cancel, session lost, an item failed
 *   queued   stop      ended
 *   ended    given     free
 *
 * An operation that has ended while something still works for it (`still` of
 * its class) has quiet_wait set, and its event comes when nothing does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/typed.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "core/pool.h"
#include "core/stats_file.h"
#include "operations.h"

enum state { FREE, MOVING, QUEUED, ENDED };
enum event { SUBMIT, DONE, QUEUE, PUBLISH, STOP, GIVEN };

const struct machine operation_machine = {
    .name = "operation",
    .taken = MACHINE_STEPS,
    .states = {"free", "moving", "queued", "ended"},
    .events = {"submit", "done", "queue", "publish", "stop", "given"},
    .next = {
        [FREE] = {[SUBMIT] = TO(MOVING)},
        [MOVING] =
            {[DONE] = TO(ENDED), [QUEUE] = TO(QUEUED), [STOP] = TO(ENDED)},
        [QUEUED] = {[PUBLISH] = TO(ENDED), [STOP] = TO(ENDED)},
        [ENDED] = {[GIVEN] = TO(FREE)},
    }};

/* ---- Its entry, its time and its event ---------------------------------- */

/* Keeps a sixteenth of the table free for peers, however busy this side is. */
static bool operation_own_room(const struct perigee_engine *engine) {
  return engine_own(engine) < engine->shares.own;
}

static void operation_expired(struct timer *timer) {
  struct operation *op = CONTAINER(timer, struct operation, timer);
  op->class->late(op);
}

void operation_late(struct operation *op) {
  op->session->counters->timeouts++;
  op->class->stop(op, PERIGEE_TIMEOUT);
}

enum {
  RARE = offsetof(struct operation, rare),
  REFS = offsetof(struct operation, region_refs),
  MORE = offsetof(struct operation, spreads),
  MORE_END = offsetof(struct operation, head_loan)
};
_Static_assert(offsetof(struct operation, fresh) == 64 && RARE == 2 * 64 &&
                   offsetof(struct operation, length) == 3 * 64 &&
                   offsetof(struct operation, parent) == 4 * 64,
               "each cache line begins with that");

/* Debug builds abort if somebody set a field of MORE without has_more. */
static void operation_check_more(const struct operation *op) {
#ifdef PERIGEE_DEBUG
  for (size_t at = MORE; at < MORE_END; at++)
    if (((const uint8_t *)op)[at] != 0)
      abort();
#else
  (void)op;
#endif
}

static inline void operation_zero(struct operation *op) {
  if (UNLIKELY(op->has_more))
    memset((uint8_t *)op + MORE, 0, MORE_END - MORE);
  operation_check_more(op);
  memset((uint8_t *)op + RARE, 0, REFS - RARE);
}

struct operation *operation_take(struct perigee_session *session,
                                 const struct operation_class *class) {
  struct perigee_engine *engine = session->engine;
  bool may = class->kind == OP_SERVED || operation_own_room(engine);
  struct node *n = may ? list_pop(&engine->free) : NULL;
  struct operation *op;
  if (n) {
    op = CONTAINER(n, struct operation, queue);
  } else if (may && engine->table_used < engine->options.operations) {
    op = &engine->table[engine->table_used];
    op->generation = engine->generations[engine->table_used];
    op->index = (uint16_t)engine->table_used++;
    op->engine = engine;
    op->under_way = stats_under_way(engine, op->index);
    op->timer.expired = operation_expired;
    if (engine->table_used > OPERATIONS_LOW)
      trim_begin(engine);
  } else {
    fail(engine, PERIGEE_NO_MEMORY,
         "all %u operations are in flight; wait for some, or raise the "
         "option operations",
         engine->options.operations);
    return NULL;
  }
  if (++op->generation == 0)
    op->generation = 1;
  operation_zero(op);
  op->class = class;
  op->kind = class->kind;
  op->timeout = -1;
  op->timer.due = 0;
  op->session = session;
  list_append(&session->operations.all, &op->all);
  hot_use(session);
  engine->live++;
  return op;
}

void operation_time(struct operation *op, int64_t timeout) {
  op->timeout = timeout;
  /* The clock is not read here: the timer starts at the next tick. */
  if (timeout < 0 || op->fresh)
    return;
  op->fresh = op->engine->fresh;
  op->engine->fresh = op->index + FRESH;
}

void operation_ask(struct operation *op, int kind) {
  operation_unqueue(op);
  operation_ready(op, kind);
}

void operation_event(struct operation *op, int kind) {
  operation_ask(op, kind);
  operation_untime(op);
}

void operation_move(struct operation *op) {
  op->engine->soon = 0; /* it is waited for from now on */
  if (!op->queue.next)
    list_append(&op->engine->moving, &op->queue);
}

void operation_leave(struct operation *op) {
  if (op->event) {
    op->engine->ready_count--;
    if (op->event == PERIGEE_EVENT_LANDING)
      op->landed = false;
  }
  op->event = PERIGEE_EVENT_NONE;
  list_remove(&op->queue);
}

struct operation *operation_find(struct perigee_engine *engine, int index) {
  if (index < 0 || (uint32_t)index >= engine->table_used)
    return NULL;
  struct operation *op = &engine->table[index];
  return op->kind ? op : NULL;
}

/* ---- Regions and the peer's memory that it uses ------------------------- */

void operation_ref(struct operation *op, struct perigee_region *region) {
  if (!region)
    return;
  if (UNLIKELY(op->region_count == REGION_REFS))
    abort();
  op->region_refs[op->region_count++] = region;
  region->users++;
}

void operation_ref_slice(struct operation *op,
                         const struct perigee_slice *slice) {
  if (!slice_is_list(slice))
    operation_ref(op, slice->region);
}

void operation_unref_all(struct operation *op) {
  operation_unref_regions(op);
  if (UNLIKELY(op->has_more))
    spreads_free(op);
}

void operation_unview(struct operation *op) {
  struct lane *lane = op->session ? op->session->lane : NULL;
  if (op->viewed && lane && lane_table(lane)->loans->unview)
    lane_table(lane)->loans->unview(lane, op->view, op->view_length);
  op->viewed = false;
}

/* ---- What it counts for its peer ---------------------------------------- */

/* A peer's requests are not limited by the own operations that wait for it:
 * otherwise two sides with many of these would wait for each other for ever. */
static enum share_kind operation_counts_as(const struct operation *op) {
  return op->kind == OP_SERVED ? SHARE_OPERATIONS : SHARE_KEPT;
}

void operation_count(struct operation *op) {
  op->counted = op->holds = true;
  share_add(op->session->account.share, operation_counts_as(op), 1);
}

/* For the same reason replies, and room for them, are not limited by own
 * requests that the peer has not answered. */
static enum share_kind operation_exposes_as(const struct operation *op) {
  return op->kind == OP_SERVED ? SHARE_EXPOSED : SHARE_LENT;
}

void operation_expose(struct operation *op, uint64_t bytes) {
  op->exposed += bytes;
  op->holds = op->has_more = true;
  share_add(op->session->account.share, operation_exposes_as(op), bytes);
}

void operation_lends(struct operation *op, uint64_t *bytes) {
  op->exposed += *bytes;
  op->holds = op->has_more = true;
  *bytes = 0;
}

void operation_unexpose(struct operation *op, uint64_t bytes) {
  if (!op->holds || bytes == 0)
    return;
  op->exposed -= bytes;
  share_give(op->session->account.share, operation_exposes_as(op), bytes);
}

void operation_let_count(struct operation *op) {
  struct perigee_session *s = op->session;
  op->holds = false;
  if (op->counted)
    share_give(s->account.share, operation_counts_as(op), 1);
  if (UNLIKELY(op->has_more) && op->exposed > 0)
    share_give(s->account.share, operation_exposes_as(op), op->exposed);
  if (op->untaken) {
    s->replies.untaken--;
    s->replies.untaken_bytes -= op->left;
    s->account.share->parent->unread_replies -= op->left;
  }
}

/* ---- Its end ------------------------------------------------------------ */

static void operation_unscan(struct operation *op) {
  if (op->scan)
    typed_scan_end(op->scan, NULL);
  op->scan = NULL;
}

/* Frees the operation's index, so that the table can shrink after a flood. */
void operation_spare(struct operation *op) {
  struct node *free = &op->engine->free;
  op->session = NULL;
  if (op->index < OPERATIONS_LOW)
    list_prepend(free, &op->queue);
  else
    list_append(free, &op->queue);
}

static inline void operation_is_free(struct operation *op) {
  op->kind = 0;
  op->engine->live--;
  stats_end(op);
}

void operation_free(struct operation *op) {
  struct perigee_engine *engine = op->engine;
  operation_uncount(op);
  operation_untime(op);
  operation_unref(op);
  operation_unqueue(op);
  list_remove(&op->all);
  bool kept = UNLIKELY(engine_copies(engine)) && op->class->keeps &&
              op->class->keeps(op);
  if (UNLIKELY(op->viewed) && !kept)
    operation_unview(op);
  if (op->block) {
    operation_unscan(op);
    if (!kept) {
      pool_give(engine, op->block);
      op->block = NULL;
    }
  }
  if (op->slice_block)
    pool_give(engine, op->slice_block);
  operation_is_free(op);
  if (kept)
    return;
  operation_spare(op);
}

/* Debug builds abort if it is no such operation. */
static void operation_check_short(const struct operation *op) {
#ifdef PERIGEE_DEBUG
  if (op->queue.next || op->timer.next || op->holds || op->region_count ||
      op->has_more || op->has_parts || op->viewed)
    abort();
#else
  (void)op;
#endif
}

void operation_free_short(struct operation *op) {
  operation_check_short(op);
  if (UNLIKELY(op->block || op->slice_block)) {
    operation_free(op);
    return;
  }
  list_remove(&op->all); /* in none: its session was freed */
  operation_is_free(op);
  operation_spare(op);
}

/* ---- Waiting for room in a ring ----------------------------------------- */

/* Keeps the session from being parked: if there is room already (for a refusal
 * that is sent at the next poll), the peer will not report any. */
void backlog_add(struct operation *op, enum ring ring) {
  list_append(&op->session->operations.backlog[ring], &op->queue);
  hot_use(op->session);
}

/* Counted here, once: it is tried again in each poll. */
void backlog_wait(struct operation *op, enum ring ring) {
  op->session->counters->stalls++;
  backlog_add(op, ring);
}

void backlog_flush(struct perigee_session *session, enum ring ring) {
  struct node *backlog = &session->operations.backlog[ring];
  while (!list_empty(backlog)) {
    struct operation *op = CONTAINER(backlog->next, struct operation, queue);
    list_remove(&op->queue);
    if (!op->class->publish(op)) {
      if (!op->queue.next)
        list_prepend(backlog, &op->queue);
      return;
    }
    session->engine->progress++;
  }
}

/* ---- Operations that get no reply record -------------------------------- */

static void operation_advance(struct operation *op, enum event event) {
  machine_step(&operation_machine, &op->state, event);
}

void operation_start(struct operation *op, int64_t timeout) {
  operation_advance(op, SUBMIT);
  operation_time(op, timeout);
  stats_begin(op, op->kind);
}

bool operation_has_ended(const struct operation *op) {
  return op->state == ENDED;
}

static enum still operation_still(struct operation *op) {
  return op->class->still ? op->class->still(op) : STILL_NOTHING;
}

/* Nothing works for it any more: its event can be given. */
static void operation_over(struct operation *op) {
  op->quiet_wait = false;
  if (op->class->over)
    op->class->over(op);
  operation_unref(op);
  if (op->kind != OP_BATCH) /* its calls have counted */
    op->session->counters->failures += op->status != PERIGEE_OK;
  operation_event(op, op->class->event);
}

static void operation_end(struct operation *op, int status) {
  operation_unqueue(op);
  op->status = status;
  if (op->class->recall)
    op->class->recall(op);
  enum still still = operation_still(op);
  op->quiet_wait = still != STILL_NOTHING;
  if (op->quiet_wait)
    operation_untime(op);
  if (still == STILL_NOTHING)
    operation_over(op);
  else if (still == STILL_STEPS)
    operation_move(op);
}

void operation_finish(struct operation *op, int status) {
  if (op->state == ENDED)
    return;
  operation_advance(op, status == PERIGEE_OK ? DONE : STOP);
  operation_end(op, status);
}

void operation_settle(struct operation *op) {
  op->engine->poll_soon |= SOON_LOOK;
  if (operation_still(op) != STILL_NOTHING)
    return;
  operation_unqueue(op);
  operation_over(op);
}

void operation_await_room(struct operation *op) {
  operation_advance(op, QUEUE);
  operation_unqueue(op);
  backlog_wait(op, RING_REQUEST);
}

void operation_published(struct operation *op) {
  operation_advance(op, PUBLISH);
  operation_end(op, PERIGEE_OK);
}

void operation_given(struct operation *op) {
  operation_advance(op, GIVEN);
  operation_free(op);
}

/* ---- For the program ---------------------------------------------------- */

void perigee_cancel(struct perigee_engine *engine, int index) {
  ENTER(engine);
  struct operation *op = operation_find(engine, index);
  if (op && op->kind != OP_SERVED && engine_alive(engine))
    op->class->stop(op, PERIGEE_CANCELLED);
}

int perigee_operation_text(struct perigee_engine *engine, int index, char *text,
                           uint64_t room) {
  ENTER(engine);
  const struct operation *op = operation_find(engine, index);
  const struct perigee_session *s = op ? op->session : NULL;
  if (!op)
    return snprintf(text, room, "there is none");
  return snprintf(
      text, room,
      "a %s in state %d, generation %u, event %d, %s, of session %d in state "
      "%d%s",
      op->class->name, op->state, (unsigned)op->generation, op->event,
      op->queue.next ? "queued" : "in no queue", s ? (int)s->id : 0,
      s ? s->state : 0, op->quiet_wait ? ", which waits for a copy" : "");
}
