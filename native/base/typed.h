/* SPDX-License-Identifier: Apache-2.0
 *
 * typed.h - checks a typed payload and computes what decoding it costs LuaJIT.
 */
#ifndef PERIGEE_TYPED_H
#define PERIGEE_TYPED_H

#include <stdbool.h>
#include <stdint.h>

#include "perigee.h"

/* Tags of items; typed.c has the grammar. A table's tag is TYPED_TABLE and what
 * it has of TYPED_PAIRS and one kind of slots. */
enum {
  TYPED_NIL,
  TYPED_FALSE,
  TYPED_TRUE,
  TYPED_INT = 6,
  TYPED_NUMBER,
  TYPED_TABLE,
  TYPED_TABLE_END = TYPED_TABLE + 6,
  TYPED_INT64 = 16,
  TYPED_UINT64,
  TYPED_STRING = 32
};
enum { TYPED_PAIRS = 1, TYPED_SLOTS = 2, TYPED_SLOTS_FROM_1 = 4 };
/* Tags and counts from here on take two bytes, or five. */
enum { TYPED_TWO = 0xe0, TYPED_FIVE = 0x1fe0 };
/* TYPED_COUNT: LuaJIT's largest table. */
enum { TYPED_DEPTH = 64, TYPED_COUNT = 1 << 26 };

/* memory: bytes of LuaJIT's heap that the values take, as collectgarbage
 * "count" counts them. It is 0 for payloads of up to TYPED_FEW bytes, which
 * cannot take more than TYPED_SLACK. steps: upper bound of the nodes that are
 * passed where number keys of a table share a chain; tables of few pairs are
 * not counted. */
struct typed_costs {
  int values;
  uint64_t memory, steps;
};
enum { TYPED_FEW = 512 };

/* Limits: values at the top level; memory for each byte (FACTOR) and in
 * addition (SLACK); steps in addition to those for each byte. */
enum {
  TYPED_VALUES = 250,
  TYPED_FACTOR = 8,
  TYPED_SLACK = 64 << 10,
  TYPED_STEPS = 2 << 10
};
static inline uint64_t typed_memory(uint64_t length) {
  return TYPED_FACTOR * length + TYPED_SLACK;
}
/* Each step takes 5 to 8 ns, so scanning and decoding stay below 20 ns a
 * byte. */
static inline uint64_t typed_steps(uint64_t length) {
  return length + length / 2 + TYPED_STEPS;
}
/* Payloads up to this length cost too little to be refused for their costs. */
enum { TYPED_CHEAP = TYPED_VALUES };

/* Is the message's head to be scanned before it is sent? */
static inline bool typed_is_due(const struct perigee_message *m) {
  return (m->flags & PERIGEE_TYPED) &&
         (m->length > TYPED_CHEAP || !(m->flags & PERIGEE_CHECKED));
}

/* As perigee_typed_scan. costs may be NULL; they are complete only if the
 * result is not negative. */
int typed_scan(const uint8_t *data, uint64_t length, struct typed_costs *costs);

/* The same in portions, for long payloads. The bytes must stay until the end.
 * begin returns NULL without memory. step scans about so many bytes and returns
 * how many it did; end before the scan has finished gives it up. */
struct typed_scan;
struct typed_scan *typed_scan_begin(const uint8_t *data, uint64_t length);
uint64_t typed_scan_step(struct typed_scan *, uint64_t bytes);
bool typed_scan_over(const struct typed_scan *);
int typed_scan_end(struct typed_scan *, struct typed_costs *costs);

#endif
