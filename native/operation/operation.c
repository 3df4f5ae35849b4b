/* SPDX-License-Identifier: Apache-2.0
 *
 * operation.c - common to all operations: the table, timing, events, parts.
 */
#include <stdlib.h>
#include <string.h>

#include "core/trim.h"
#include "core/hot.h"
#include "core/lane_list.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "core/pool.h"
#include "operations.h"

/* Keeps a sixteenth of the table free for peers, however busy this side is. */
static bool own_room(const struct perigee_engine *engine) {
  return engine_own(engine) < engine->shares.own;
}

static void expired(struct timer *timer) {
  struct operation *op = CONTAINER(timer, struct operation, timer);
  op->class->late(op);
}

void operation_late(struct operation *op) {
  op->engine->counters.timeouts++;
  op->session->counters.timeouts++;
  op->class->stop(op, PERIGEE_TIMEOUT);
}

struct operation *operation_take(struct perigee_session *session,
                                 const struct operation_class *class) {
  struct perigee_engine *engine = session->engine;
  bool may = class->kind == OP_SERVED || own_room(engine);
  struct node *n = may ? list_pop(&engine->free) : NULL;
  struct operation *op;
  if (n) {
    op = CONTAINER(n, struct operation, queue);
  } else if (may && engine->table_used < engine->options.operations) {
    op = &engine->table[engine->table_used];
    op->generation = engine->generations[engine->table_used];
    op->index = (uint16_t)engine->table_used++;
    op->engine = engine;
    op->timer.expired = expired;
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
  memset(&op->kind, 0,
         offsetof(struct operation, message) -
             offsetof(struct operation, kind));
  op->class = class;
  op->kind = class->kind;
  op->timeout = -1;
  op->session = session;
  list_append(&session->operations.all, &op->all);
  hot_use(session);
  engine->live++;
  return op;
}

void operation_time(struct operation *op, int64_t timeout) {
  op->timeout = timeout;
  /* The clock is not read here: the timer starts at the next tick. */
  if (timeout >= 0)
    list_append(&op->engine->fresh, &op->fresh);
}

static void untime(struct operation *op) {
  list_remove(&op->fresh);
  timers_remove(&op->engine->timers, &op->timer);
}

void operation_event(struct operation *op, int kind) {
  operation_unqueue(op);
  op->event = (uint8_t)kind;
  list_append(&op->engine->ready, &op->queue);
  op->engine->ready_count++;
  if (kind != PERIGEE_EVENT_REQUEST && kind != PERIGEE_EVENT_LANDING)
    untime(op);
}

void operation_move(struct operation *op) {
  if (!op->queue.next)
    list_append(&op->engine->moving, &op->queue);
}

void operation_unqueue(struct operation *op) {
  if (op->event && op->queue.next) {
    op->engine->ready_count--;
    if (op->event == PERIGEE_EVENT_LANDING)
      op->landed = false;
  }
  op->event = PERIGEE_EVENT_NONE;
  list_remove(&op->queue);
}

/* A peer's requests are not limited by the own operations that wait for it:
 * otherwise two sides with many of these would wait for each other for ever. */
static enum share_kind counts_as(const struct operation *op) {
  return op->kind == OP_SERVED ? SHARE_OPERATIONS : SHARE_KEPT;
}

void operation_count(struct operation *op) {
  op->counted = op->holds = true;
  share_add(op->session->account.share, counts_as(op), 1);
}

/* For the same reason replies, and room for them, are not limited by own
 * requests that the peer has not answered. */
static enum share_kind exposes_as(const struct operation *op) {
  return op->kind == OP_SERVED ? SHARE_EXPOSED : SHARE_LENT;
}

void operation_expose(struct operation *op, uint64_t bytes) {
  op->exposed += bytes;
  op->holds = true;
  share_add(op->session->account.share, exposes_as(op), bytes);
}

void operation_lends(struct operation *op, uint64_t *bytes) {
  op->exposed += *bytes;
  op->holds = true;
  *bytes = 0;
}

void operation_unexpose(struct operation *op, uint64_t bytes) {
  if (!op->holds || bytes == 0)
    return;
  op->exposed -= bytes;
  share_give(op->session->account.share, exposes_as(op), bytes);
}

void operation_uncount(struct operation *op) {
  struct perigee_session *s = op->session;
  if (!op->holds)
    return;
  op->holds = false;
  if (op->counted)
    share_give(s->account.share, counts_as(op), 1);
  if (op->exposed > 0)
    share_give(s->account.share, exposes_as(op), op->exposed);
  if (op->untaken) {
    s->replies.untaken--;
    s->replies.untaken_bytes -= op->left;
    s->account.share->parent->unread_replies -= op->left;
  }
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

void operation_free(struct operation *op) {
  struct perigee_engine *engine = op->engine;
  operation_uncount(op);
  untime(op);
  operation_unref(op);
  operation_unqueue(op);
  list_remove(&op->all);
  bool kept = UNLIKELY(engine->thread != NULL) && op->class->keeps &&
              op->class->keeps(op);
  if (op->block) {
    incoming_scan_end(op);
    if (!kept) {
      pool_give(engine, op->block);
      op->block = NULL;
    }
  }
  if (op->slice_block)
    pool_give(engine, op->slice_block);
  op->kind = 0;
  engine->live--;
  if (kept)
    return;
  operation_spare(op);
}

struct operation *operation_find(struct perigee_engine *engine, int index) {
  if (index < 0 || (uint32_t)index >= engine->table_used)
    return NULL;
  struct operation *op = &engine->table[index];
  return op->kind ? op : NULL;
}

void perigee_cancel(struct perigee_engine *engine, int index) {
  ENTER(engine);
  struct operation *op = operation_find(engine, index);
  if (op && op->kind != OP_SERVED && engine_alive(engine))
    op->class->stop(op, PERIGEE_CANCELLED);
}

void operation_ref(struct operation *op, struct perigee_region *region) {
  int i = 0;
  if (!region)
    return;
  while (op->region_refs[i])
    i++;
  op->region_refs[i] = region;
  op->has_region_refs = true;
  region->users++;
}

void operation_unref(struct operation *op) {
  if (!op->has_region_refs)
    return;
  op->has_region_refs = false;
  for (int i = 0; i < REGION_REFS; i++)
    if (op->region_refs[i])
      op->region_refs[i]->users--;
  memset(op->region_refs, 0, sizeof op->region_refs);
}

/* ---- Parts -------------------------------------------------------------- */

void part_put(struct operation *op, int place, struct part *part) {
  op->parts[place] = part;
  op->has_parts = true;
}

/* Counts blocks taken for an exposure. Own requests leave room for replies. */
static int count_blocks(struct operation *op, const struct exposure *exposure) {
  uint64_t bytes =
      exposure->footprint > 0 ? blocks_whole(exposure->footprint) : 0;
  if (bytes == 0)
    return PERIGEE_OK;
  if (op->kind != OP_SERVED && !room_stages(op, bytes))
    return PERIGEE_AGAIN;
  operation_expose(op, bytes);
  return PERIGEE_OK;
}

struct source part_source(const struct part *part) {
  return source_of_lane(part->exposure.source, part->lane);
}

/* Additional lanes have marks of what they expose, and of nothing else. */
static void mark(const struct operation *op, const struct part *part,
                 uint32_t generation) {
  if (part->lane == 0)
    return;
  struct lane *lane = session_lane(op->session, part->lane);
  lane_payloads(lane)->mark(lane, op->index, generation);
}

/* Takes the mark back of a part that could not be exposed, unless the lane
 * exposes another one of the operation. */
static void unmark(const struct operation *op, const struct part *failed) {
  for (int i = 0; i <= OUT_SLICE; i++)
    if (op->parts[i] && op->parts[i]->lane == failed->lane)
      return;
  mark(op, failed, 0);
}

int part_expose(struct operation *op, int place, const struct payload *from,
                struct source *source) {
  struct part *part = part_take(op->engine);
  if (!part)
    return PERIGEE_NO_MEMORY;
  part->lane = (uint8_t)lanes_for(op->session, from);
  mark(op, part, op->generation);
  struct lane *lane = session_lane(op->session, part->lane);
  part_begin(part, from);
  part->exposure.operation = op->index;
  part->exposure.part = place == OUT_SLICE;
  part->exposure.generation = op->generation;
  int status =
      lane_payloads(lane)->expose(lane, &part->exposure, &part->payload);
  if (status == PERIGEE_OK && (status = count_blocks(op, &part->exposure)) < 0)
    lane_payloads(lane)->conceal(lane, &part->exposure);
  if (status < 0) {
    unmark(op, part);
    part_give(op->engine, part);
    const char *why = lane_trouble(op->session);
    return status == PERIGEE_NO_MEMORY && *why
               ? fail(op->engine, status, "%s", why)
               : status;
  }
  *source = part_source(part);
  part_put(op, place, part);
  return PERIGEE_OK;
}

static bool part_end(struct operation *op, int place) {
  struct part *part = op->parts[place];
  if (!part)
    return true;
  if (!payload_quiet(&part->payload))
    return false;
  struct lane *lane =
      op->session ? session_lane(op->session, part->lane) : NULL;
  if (lane && part->fetching &&
      !lane_payloads(lane)->fetch_end(lane, &part->fetch))
    return false;
  if (lane && place <= OUT_SLICE) {
    mark(op, part, 0);
    lane_payloads(lane)->conceal(lane, &part->exposure);
  }
  op->parts[place] = NULL;
  pool_give(op->engine, part->bytes);
  part_give(op->engine, part);
  return true;
}

bool parts_end(struct operation *op) {
  bool quiet = true;
  if (!op->has_parts)
    return true;
  for (int i = 0; i < PARTS; i++)
    quiet = part_end(op, i) && quiet;
  op->has_parts = !quiet;
  return quiet;
}

/* Of a lane that is lost: what it brings is lost, and what it exposed ends by
 * the peer's answer, as the peer may have all of it. */
static int step_lost(const struct operation *op, const struct part *part,
                     int place) {
  const char *why;
  if (part->lane == 0)
    return PERIGEE_OK;
  int status = lanes_status(op->session, part->lane, &why);
  return place <= OUT_SLICE || status == PERIGEE_OK
             ? status
             : fail(op->engine, status, "%s", why);
}

static int64_t step_once(struct operation *op, struct part *part, int place) {
  struct lane *lane = session_lane(op->session, part->lane);
  int lost = step_lost(op, part, place);
  if (place <= OUT_SLICE)
    return lost < 0 ? 0 : lane_payloads(lane)->feed(lane, &part->exposure);
  if (part->fetching)
    return lost < 0 ? lost : lane_payloads(lane)->fetch(lane, &part->fetch);
  return payload_put(&part->payload, part->bytes + part->payload.done,
                     part->payload.total - part->payload.done);
}

static bool complete(const struct part *part, int place) {
  if (place <= OUT_SLICE)
    return !part->exposure.payload || part->payload.done == part->payload.total;
  return part->fetching ? part->fetch.done == part->fetch.total
                        : part->payload.done == part->payload.total;
}

int part_step(struct operation *op, int place) {
  struct part *part = op->parts[place];
  struct perigee_engine *engine = op->engine;
  uint64_t moved = 0;
  int64_t n = 1;
  while (part && !complete(part, place) && n > 0 && engine->budget > 0) {
    n = step_once(op, part, place);
    if (n > 0) {
      moved += (uint64_t)n;
      engine->budget -=
          (uint64_t)n < engine->budget ? (uint64_t)n : engine->budget;
      /* A sleeping peer may wait for what was just staged or emptied. */
      if (part->fetching || place <= OUT_SLICE)
        session_wake(op->session);
    }
  }
  engine->progress += moved;
  if (moved > 0)
    hot_use(op->session);
  /* Nobody is woken for what an additional lane does by itself. */
  if (part &&
      (payload_waits(&part->payload) || (part->lane && !complete(part, place))))
    engine->copying = true;
  if (n < 0)
    return (int)n;
  return !part || complete(part, place);
}

bool part_live(const struct operation *op, int place) {
  const struct part *part = op->parts[place];
  if (!part || !part->fetching || part->lane == 0)
    return true;
  struct lane *lane = session_lane(op->session, part->lane);
  return lane_payloads(lane)->live(lane, part->fetch.operation,
                                   part->fetch.generation);
}
