/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts of times in ns, in 256 buckets for each power of two, so that a time
 * is known within 0.2 %. A bucket's number is the upper bits of the double.
 */
#ifndef BENCH_SPREAD_H
#define BENCH_SPREAD_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
  SPREAD_SHIFT = 52 - 8,
  SPREAD_FIRST = 1023 << 8, /* 1 ns */
  SPREAD_BUCKETS = 44 << 8  /* up to 4 hours */
};

struct spread {
  uint32_t counts[SPREAD_BUCKETS];
  double sum;
};

static inline void spread_clear(struct spread *spread) {
  memset(spread, 0, sizeof *spread);
}

static inline void spread_count(struct spread *spread, double ns,
                                uint32_t count) {
  double value = ns < 1 ? 1 : ns;
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint64_t bucket = (bits >> SPREAD_SHIFT) - SPREAD_FIRST;
  spread->counts[bucket < SPREAD_BUCKETS ? bucket : SPREAD_BUCKETS - 1] +=
      count;
  spread->sum += value * count;
}

static inline void spread_add(struct spread *spread, int64_t ns) {
  spread_count(spread, (double)ns, 1);
}

static inline double spread_value(uint64_t bucket) {
  double value;
  uint64_t bits = (bucket + SPREAD_FIRST) << SPREAD_SHIFT;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Prints TIME:COUNT,... with the middle of each bucket. */
static inline void spread_print(const struct spread *spread, FILE *to) {
  const char *comma = "";
  for (uint64_t i = 0; i < SPREAD_BUCKETS; i++) {
    if (!spread->counts[i])
      continue;
    double middle = (spread_value(i) + spread_value(i + 1)) / 2;
    fprintf(to, "%s%.6g:%u", comma, middle, spread->counts[i]);
    comma = ",";
  }
}

#endif
