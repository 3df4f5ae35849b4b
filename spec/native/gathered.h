/* SPDX-License-Identifier: Apache-2.0
 *
 * gathered.h - a region of one kind of memory, in one piece or as blocks with
 * gaps, for the tests of kinds of memory.
 */
#ifndef GATHERED_H
#define GATHERED_H

#include "kinds.h"

enum { BLOCKS = 1000, BLOCK = 64, STRIDE = 256 };
enum { GATHERED = BLOCKS * BLOCK, SIZE = BLOCKS * STRIDE };

static inline struct perigee_region *
of_kind(struct perigee_engine *engine, const char *kind, uint64_t length) {
  struct perigee_region *region = NULL;
  assert_int_equal(perigee_region_alloc(engine, NULL, length, 0, kind, &region),
                   0);
  return region;
}

/* A whole region, or BLOCKS parts of it with gaps. */
static inline struct payload walk(struct perigee_region *r,
                                  struct copies *copies, bool blocks) {
  *copies = (struct copies){0};
  uint64_t block = blocks ? BLOCK : GATHERED, count = blocks ? BLOCKS : 1;
  return (struct payload){.memory = r->memory,
                          .base = perigee_region_pointer(r),
                          .block = block,
                          .count = count,
                          .stride = blocks ? STRIDE : GATHERED,
                          .total = block * count,
                          .copies = copies};
}

static inline void move_all(struct payload *to, struct payload *from) {
  while (to->done < to->total)
    assert_true(payload_move(to, from, to->total - to->done) >= 0);
  assert_true(payload_quiet(to) && payload_quiet(from));
}

static inline void gather(uint8_t *to, const uint8_t *from) {
  for (int i = 0; i < BLOCKS; i++)
    memcpy(to + i * BLOCK, from + i * STRIDE, BLOCK);
}

#endif
