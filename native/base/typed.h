/* SPDX-License-Identifier: Apache-2.0
 *
 * typed.h - what the values of a typed payload cost LuaJIT's decoder.
 */
#ifndef PERIGEE_TYPED_H
#define PERIGEE_TYPED_H

#include <stdbool.h>
#include <stdint.h>

#include "perigee.h"

/* memory: bytes of LuaJIT's heap, as collectgarbage "count" counts them, that
 * the values take. Not counted (0) in a payload of up to TYPED_FEW bytes, as
 * none of them can be made to take more than TYPED_SLACK.
 * steps: nodes that are passed, at most, where number keys of a table share
 * a chain; tables of few pairs are not counted. */
struct typed_costs {
  int values;
  uint64_t memory, steps;
};
enum { TYPED_FEW = 512 };

/* What a payload may cost: so many values at its top level, so much memory for
 * each byte and besides, so many steps besides. */
enum {
  TYPED_VALUES = 250,
  TYPED_FACTOR = 8,
  TYPED_SLACK = 64 << 10,
  TYPED_STEPS = 2 << 10
};
static inline uint64_t typed_memory(uint64_t length) {
  return TYPED_FACTOR * length + TYPED_SLACK;
}
/* At 5 to 8 ns each they keep a byte below 20 ns, scanned and decoded. */
static inline uint64_t typed_steps(uint64_t length) {
  return length + length / 2 + TYPED_STEPS;
}
/* What is as short as that costs too little to be refused for it. */
enum { TYPED_CHEAP = TYPED_VALUES };

/* As perigee_typed_scan, and costs (may be NULL), which are complete only if
 * that is not negative. */
int typed_scan(const uint8_t *data, uint64_t length, struct typed_costs *costs);

/* The same in portions, for what is long: bytes have to stay until the end.
 * NULL: no memory. A step goes on for about so many bytes, and tells how many it
 * were; an end before it is over gives up. */
struct typed_scan;
struct typed_scan *typed_scan_begin(const uint8_t *data, uint64_t length);
uint64_t typed_scan_step(struct typed_scan *, uint64_t bytes);
bool typed_scan_over(const struct typed_scan *);
int typed_scan_end(struct typed_scan *, struct typed_costs *costs);

#endif
