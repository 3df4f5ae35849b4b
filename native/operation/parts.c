/* SPDX-License-Identifier: Apache-2.0
 *
 * parts.c - payloads of an operation that do not travel in its record: exposing
 * them, bringing the peer's, and the end of both.
 */
#include "core/hot.h"
#include "core/lane_list.h"
#include "core/lanes.h"
#include "core/pool.h"
#include "operations.h"

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
  while (part && !complete(part, place) && n > 0 && engine->budget.left > 0) {
    n = step_once(op, part, place);
    if (n > 0) {
      moved += (uint64_t)n;
      engine_spend(engine, (uint64_t)n);
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

void parts_feed(struct operation *op) {
  for (int place = 0; place <= OUT_SLICE; place++) {
    struct part *part = op->parts[place];
    if (!part || !part->exposure.at_once || complete(part, place))
      continue;
    step_once(op, part, place);
    session_wake(op->session);
  }
}

bool part_live(const struct operation *op, int place) {
  const struct part *part = op->parts[place];
  if (!part || !part->fetching || part->lane == 0)
    return true;
  struct lane *lane = session_lane(op->session, part->lane);
  return lane_payloads(lane)->live(lane, part->fetch.operation,
                                   part->fetch.generation);
}
