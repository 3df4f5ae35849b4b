/* SPDX-License-Identifier: Apache-2.0
 *
 * incoming.c - brings the parts of a record to the memory where they belong.
 */
#include <string.h>

#include "base/typed.h"
#include "core/hot.h"
#include "core/lane_list.h"
#include "core/pool.h"
#include "operations.h"

/* Fails with a sentence that says which limit the payload exceeds. */
static int too_much(struct perigee_engine *engine, uint64_t length,
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

static int verdict(struct perigee_engine *engine, uint64_t length, int status,
                   const struct typed_costs *costs) {
  if (status == PERIGEE_TOO_LARGE)
    return too_much(engine, length, costs);
  return status < 0 ? status : PERIGEE_OK;
}

int incoming_typed(struct perigee_engine *engine, const void *data,
                   uint64_t length) {
  struct typed_costs costs;
  if (!data && length > 0)
    return fail_missing(engine, "head of a message");
  int status = typed_scan(data, length, &costs);
  return verdict(engine, length, status, &costs);
}

/* Scans a portion. A byte takes up to 10 ns, as much as copying SCAN_WEIGHT. */
static void scan_some(struct operation *op) {
  enum { SCAN_WEIGHT = 64 };
  struct perigee_engine *engine = op->engine;
  uint64_t n = typed_scan_step(op->scan, engine->budget.left / SCAN_WEIGHT);
  engine_spend(engine, n * SCAN_WEIGHT);
  engine->progress += n;
}

static __attribute__((noinline)) int scan_long(struct operation *op) {
  if (!op->scan && !(op->scan = typed_scan_begin(op->pointer, op->length)))
    return PERIGEE_NO_MEMORY;
  hot_use(op->session);
  scan_some(op);
  if (!typed_scan_over(op->scan))
    return 0;
  struct typed_costs costs;
  int status = typed_scan_end(op->scan, &costs);
  op->scan = NULL;
  op->scanned = true;
  status = verdict(op->engine, op->length, status, &costs);
  return status < 0 ? status : 1;
}

int incoming_scan(struct operation *op) {
  if (op->scanned || op->length == 0)
    return 1;
  if (op->length > SCANNED_AT_ONCE)
    return scan_long(op);
  op->scanned = true;
  int status = incoming_typed(op->engine, op->pointer, op->length);
  return status < 0 ? status : 1;
}

void incoming_scan_end(struct operation *op) {
  if (op->scan)
    typed_scan_end(op->scan, NULL);
  op->scan = NULL;
}

/* Uses the payload that was named, or takes a pooled block. */
static int destination(struct operation *op, uint64_t length,
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
static int put_later(struct operation *op, int place, const uint8_t *bytes,
                     uint64_t length, const struct payload *to) {
  struct part *part = part_take(op->engine);
  if (!part)
    return PERIGEE_NO_MEMORY;
  uint8_t *copy = pool_take(op->session, length);
  if (!copy) {
    part_give(op->engine, part);
    return PERIGEE_NO_MEMORY;
  }
  memcpy(copy, bytes, length);
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
  int status = destination(op, length, into, block, &to);
  if (status < 0)
    return status;
  if (length > 0 && !to.memory->direct)
    return put_later(op, place, bytes, length, &to);
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
  status = destination(op, length, into, block, &to);
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
