/* SPDX-License-Identifier: Apache-2.0
 *
 * parts.c - the payloads of an operation: from the slice of a local region that
 * a program names to a payload; parts, which do not travel in the operation's
 * record (exposing them, bringing the peer's, and the end of both); and
 * bringing what came in a record, or beside it, to the memory where it belongs.
 */
#include <string.h>

#include "base/typed.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "core/pool.h"
#include "loan.h"

/* ---- Slices ------------------------------------------------------------- */

/* What is not one piece of an open region that the CPU may touch. */
static __attribute__((noinline)) int
slice_payload_apart(struct perigee_engine *engine,
                    const struct perigee_slice *slice, struct payload *p) {
  struct perigee_region *region = slice->region;
  if (slice_is_list(slice))
    return fail(engine, PERIGEE_INVALID, "a list of slices may not stand here");
  if (region->closed)
    return fail(engine, PERIGEE_STALE, "the local region was closed");
  if (!region_valid(region))
    return fail(engine, PERIGEE_STALE, "%s", REGION_INVALID);
  if (!shape_fits(region->length, slice->offset, slice->length, slice->count,
                  slice->stride) ||
      shape_total(slice->length, slice->count) == UINT64_MAX)
    return fail(engine, PERIGEE_RANGE,
                "a slice lies outside of its region of %llu bytes",
                (unsigned long long)region->length);
  *p = (struct payload){.memory = region->memory,
                        .area = &region->area,
                        .base = region->pointer + slice->offset,
                        .block = slice->length,
                        .count = slice->count,
                        .stride = slice->stride,
                        .total = slice->length * slice->count};
  if (p->count > 1 && p->stride == p->block) { /* is contiguous */
    p->block = p->stride = p->total;
    p->count = 1;
  }
  return PERIGEE_OK;
}

int slice_payload(struct perigee_engine *engine,
                  const struct perigee_slice *slice, struct payload *p) {
  struct perigee_region *region = slice->region;
  if (UNLIKELY(!region))
    return fail_missing(engine, "region of a slice");
  if (!region_has(region, slice))
    return slice_payload_apart(engine, slice, p);
  slice_piece(slice, p);
  return PERIGEE_OK;
}

int message_payload(struct operation *op, const struct perigee_slice *slice,
                    bool written, struct payload *p) {
  if (!slice_is_list(slice))
    return slice_payload(op->engine, slice, p);
  int status = spread_keep(op, slice, written);
  if (status == PERIGEE_OK)
    *p = spread_of(op, written)->payload;
  return status;
}

/* ---- Parts -------------------------------------------------------------- */

void part_put(struct operation *op, int place, struct part *part) {
  op->parts[place] = part;
  op->has_parts = op->has_more = true;
}

/* Counts blocks taken for an exposure. Own requests leave room for replies. */
static int part_count_blocks(struct operation *op,
                             const struct exposure *exposure) {
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
static void part_mark(const struct operation *op, const struct part *part,
                      uint32_t generation) {
  if (part->lane == 0)
    return;
  struct lane *lane = session_lane(op->session, part->lane);
  lane_payloads(lane)->mark(lane, op->index, generation);
}

/* Takes back the mark of a part that could not be exposed, unless the lane
 * exposes another one of the operation. */
static void part_unmark(const struct operation *op, const struct part *failed) {
  for (int i = 0; i <= OUT_SLICE; i++)
    if (op->parts[i] && op->parts[i]->lane == failed->lane)
      return;
  part_mark(op, failed, 0);
}

static int part_expose_by(struct operation *op, int place, struct part *part,
                          uint32_t number, const struct payload *from) {
  struct lane *lane = session_lane(op->session, number);
  part->lane = (uint8_t)number;
  part_mark(op, part, op->generation);
  part_begin(part, from);
  part->exposure.operation = op->index;
  part->exposure.part = place == OUT_SLICE;
  part->exposure.generation = op->generation;
  int status =
      lane_payloads(lane)->expose(lane, &part->exposure, &part->payload);
  if (status == PERIGEE_OK &&
      (status = part_count_blocks(op, &part->exposure)) < 0)
    lane_payloads(lane)->conceal(lane, &part->exposure);
  if (status < 0)
    part_unmark(op, part);
  return status;
}

int part_expose(struct operation *op, int place, const struct payload *from,
                struct source *source) {
  struct part *part = part_take(op->engine);
  if (!part)
    return PERIGEE_NO_MEMORY;
  uint32_t number = lanes_for(op->session, from);
  int status = part_expose_by(op, place, part, number, from);
  if (number > 0 && status == PERIGEE_UNSUPPORTED)
    status = part_expose_by(op, place, part, 0, from);
  if (status < 0) {
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
    part_mark(op, part, 0);
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

/* Parts that a lost lane brings are lost. A part that it exposed ends by the
 * peer's answer, as the peer may have all of it. */
static int part_lost(const struct operation *op, const struct part *part,
                     int place) {
  const char *why;
  if (part->lane == 0)
    return PERIGEE_OK;
  int status = lanes_status(op->session, part->lane, &why);
  return place <= OUT_SLICE || status == PERIGEE_OK
             ? status
             : fail(op->engine, status, "%s", why);
}

static int64_t part_step_once(struct operation *op, struct part *part,
                              int place) {
  struct lane *lane = session_lane(op->session, part->lane);
  int lost = part_lost(op, part, place);
  if (place <= OUT_SLICE)
    return lost < 0 ? 0 : lane_payloads(lane)->feed(lane, &part->exposure);
  if (part->fetching)
    return lost < 0 ? lost : lane_payloads(lane)->fetch(lane, &part->fetch);
  return payload_put(&part->payload, part->bytes + part->payload.done,
                     part->payload.total - part->payload.done);
}

static bool part_is_complete(const struct part *part, int place) {
  if (place <= OUT_SLICE)
    return !part->exposure.payload || part->payload.done == part->payload.total;
  return part->fetching ? part->fetch.done == part->fetch.total
                        : part->payload.done == part->payload.total;
}

/* Returns what goes on that wakes nobody (enum soon): what an additional lane
 * does by itself, and copies. */
static uint8_t part_soon(const struct operation *op, const struct part *part,
                         int place) {
  uint8_t soon = 0;
  if (payload_waits(&part->payload))
    soon = part->payload.copies->again ? SOON_LOOK : SOON_COPIES;
  if (part->lane && !part_is_complete(part, place))
    soon |= lanes_soon(op->session, part->lane);
  return soon;
}

int part_step(struct operation *op, int place) {
  struct part *part = op->parts[place];
  struct perigee_engine *engine = op->engine;
  uint64_t moved = 0;
  int64_t n = 1;
  while (part && !part_is_complete(part, place) && n > 0 &&
         engine->budget.left > 0) {
    n = part_step_once(op, part, place);
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
  if (part)
    engine->poll_soon |= part_soon(op, part, place);
  if (n < 0)
    return (int)n;
  return !part || part_is_complete(part, place);
}

void parts_feed(struct operation *op) {
  for (int place = 0; place <= OUT_SLICE; place++) {
    struct part *part = op->parts[place];
    if (!part || !part->exposure.at_once || part_is_complete(part, place))
      continue;
    part_step_once(op, part, place);
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

/* ---- Typed payloads ----------------------------------------------------- */

/* Fails with a sentence that says which limit the payload exceeds. */
static int incoming_too_much(struct perigee_engine *engine, uint64_t length,
                             const struct typed_costs *costs) {
  if (costs->values > TYPED_VALUES)
    return fail(engine, PERIGEE_TOO_LARGE,
                "%d values are more than the %d that a call or a reply takes",
                costs->values, TYPED_VALUES);
  if (costs->memory > typed_memory(length))
    return fail(engine, PERIGEE_TOO_LARGE,
                "%llu bytes of typed values would take %llu bytes of memory, "
                "more than %d times as much and %d",
                (unsigned long long)length, (unsigned long long)costs->memory,
                TYPED_FACTOR, TYPED_SLACK);
  return fail(engine, PERIGEE_TOO_LARGE,
              "number keys of a table that collide: LuaJIT would pass %llu "
              "others to place them, more than 1.5 for each of %llu bytes and "
              "%d",
              (unsigned long long)costs->steps, (unsigned long long)length,
              TYPED_STEPS);
}

static int incoming_verdict(struct perigee_engine *engine, uint64_t length,
                            int status, const struct typed_costs *costs) {
  if (status == PERIGEE_TOO_LARGE)
    return incoming_too_much(engine, length, costs);
  return status < 0 ? status : PERIGEE_OK;
}

int incoming_typed(struct perigee_engine *engine, const void *data,
                   uint64_t length) {
  struct typed_costs costs;
  if (!data && length > 0)
    return fail_missing(engine, "head of a message");
  int status = typed_scan(data, length, &costs);
  return incoming_verdict(engine, length, status, &costs);
}

int outgoing_typed(struct perigee_engine *engine, const void *data,
                   uint64_t length) {
  int status = incoming_typed(engine, data, length);
  if (status != PERIGEE_PROTOCOL)
    return status;
  return fail(engine, status,
              "the head of a message, of %llu bytes, is no typed data that "
              "Perigee sends (perigee_typed_scan)",
              (unsigned long long)length);
}

/* Scans a portion. A byte takes up to 10 ns, as much as copying SCAN_WEIGHT. */
static void incoming_scan_some(struct operation *op) {
  enum { SCAN_WEIGHT = 64 };
  struct perigee_engine *engine = op->engine;
  uint64_t n = typed_scan_step(op->scan, engine->budget.left / SCAN_WEIGHT);
  engine_spend(engine, n * SCAN_WEIGHT);
  engine->progress += n;
}

static __attribute__((noinline)) int incoming_scan_long(struct operation *op) {
  if (!op->scan && !(op->scan = typed_scan_begin(op->pointer, op->length)))
    return PERIGEE_NO_MEMORY;
  op->has_more = true;
  hot_use(op->session);
  incoming_scan_some(op);
  if (!typed_scan_over(op->scan))
    return 0;
  struct typed_costs costs;
  int status = typed_scan_end(op->scan, &costs);
  op->scan = NULL;
  op->scanned = true;
  status = incoming_verdict(op->engine, op->length, status, &costs);
  return status < 0 ? status : 1;
}

int incoming_scan(struct operation *op) {
  if (op->scanned || op->length == 0)
    return 1;
  if (op->length > SCANNED_AT_ONCE)
    return incoming_scan_long(op);
  op->scanned = true;
  int status = incoming_typed(op->engine, op->pointer, op->length);
  return status < 0 ? status : 1;
}

/* ---- From a record to memory -------------------------------------------- */

/* Uses the payload that was named, or takes a pooled block. */
static int incoming_destination(struct operation *op, uint64_t length,
                                const struct payload *into, uint8_t **block,
                                struct payload *out) {
  if (into) {
    if (into->total < length)
      return fail(op->engine, PERIGEE_TOO_LARGE,
                  "%llu bytes came for a place of %llu",
                  (unsigned long long)length, (unsigned long long)into->total);
    *out = *into;
    return PERIGEE_OK;
  }
  *block = pool_take(op->session, length);
  if (!*block)
    return fail(op->engine, PERIGEE_NO_MEMORY,
                "no pooled block of %llu bytes for this peer (option pool)",
                (unsigned long long)length);
  payload_bytes(out, *block, length);
  out->area = &op->engine->pool_area;
  return PERIGEE_OK;
}

/* Memory that copies asynchronously gets the bytes from a block, which stays
 * until the copy is done. */
static int incoming_put_later(struct operation *op, int place,
                              const uint8_t *bytes, uint64_t length,
                              const struct payload *to) {
  struct part *part = part_take(op->engine);
  if (!part)
    return PERIGEE_NO_MEMORY;
  uint8_t *copy = pool_take(op->session, length);
  if (!copy) {
    part_give(op->engine, part);
    return PERIGEE_NO_MEMORY;
  }
  copy_any(copy, bytes, length);
  part_begin(part, to);
  part->payload.total = length;
  part->bytes = copy;
  part_put(op, place, part);
  return 0;
}

int incoming_bytes(struct operation *op, int place, const uint8_t *bytes,
                   uint64_t length, const struct payload *into,
                   uint8_t **block) {
  struct payload to = {.memory = &memory_host};
  int status = incoming_destination(op, length, into, block, &to);
  if (status < 0)
    return status;
  if (length > 0 && !to.memory->direct)
    return incoming_put_later(op, place, bytes, length, &to);
  payload_put(&to, bytes, length);
  return 1;
}

int incoming_bulk(struct operation *op, int place, const struct source *source,
                  uint64_t length, uint16_t peer, uint32_t generation,
                  const struct payload *into, uint8_t **block) {
  struct payload to = {.memory = &memory_host};
  uint32_t lane = source_lane(source);
  const char *why = "";
  int status = lane ? lanes_status(op->session, lane, &why) : PERIGEE_OK;
  if (status < 0)
    return fail(op->engine, status, "%s", why);
  status = incoming_destination(op, length, into, block, &to);
  if (status < 0)
    return status;
  struct part *part = part_take(op->engine);
  if (!part)
    return PERIGEE_NO_MEMORY;
  lanes_count(op->session, lane, true, length);
  part->lane = (uint8_t)lane;
  part_begin(part, &to);
  part->fetching = true;
  part->fetch = (struct fetch){.source = source_bare(*source),
                               .into = &part->payload,
                               .operation = peer,
                               .part = place == IN_SLICE,
                               .generation = generation,
                               .total = length};
  part_put(op, place, part);
  return 0;
}
