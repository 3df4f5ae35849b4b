/* SPDX-License-Identifier: Apache-2.0
 *
 * blocks.h - an allocator of power-of-two blocks over a space of offsets.
 *
 * The memory behind the offsets may be shared with a peer that lies, so
 * nothing is stored in it: what is known of a block lies in a private table
 * with one entry for each smallest block, touched only as far as the space
 * was used. Blocks are aligned to their size.
 *
 *   state   event   becomes
 *   none    bump    cold      fresh space, handed out in order
 *   cold    take    live
 *   warm    take    live      before cold ones, the last given first
 *   live    give    warm
 *   warm    idle    cold      the caller gives its pages back to the system
 *
 * Where no block of a size is left, a larger one is split; where none is
 * left either, free neighbours are joined.
 */
#ifndef BLOCKS_H
#define BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

enum { BLOCKS_SHIFT = 12, BLOCKS_ORDERS = 32 };

struct block;

struct blocks {
  struct block *table; /* by offset >> BLOCKS_SHIFT */
  uint64_t space;      /* bytes, a multiple of the smallest block */
  uint64_t limit;      /* of bytes live */
  uint64_t live;       /* bytes */
  uint64_t warm;       /* bytes free that have been used */
  uint64_t low;        /* of those the least since the last look, */
  uint64_t before;     /* and between the two before it */
  uint64_t keep;       /* bytes, since then */
  uint32_t look;
  uint64_t bump;                    /* offset of the space never handed out */
  uint32_t lists[2][BLOCKS_ORDERS]; /* warm, cold: index + 1 of the first */
  uint32_t filled[2];               /* bit for each order that has any */
  bool joined;                      /* since the last give: nothing to join */
};

/* PERIGEE_INVALID if the space is above 2^43, PERIGEE_NO_MEMORY. */
int blocks_open(struct blocks *blocks, uint64_t space, uint64_t limit);
void blocks_close(struct blocks *blocks);

/* Bytes of the block that so many need: at most 2^63. */
static inline uint64_t blocks_whole(uint64_t length) {
  uint64_t least = UINT64_C(1) << BLOCKS_SHIFT;
  return length <= least
             ? least
             : UINT64_C(1) << (64 - (unsigned)__builtin_clzll(length - 1));
}

/* An offset; PERIGEE_TOO_LARGE if it is more than there could ever be,
 * PERIGEE_AGAIN if there is not as much now. */
int64_t blocks_take(struct blocks *blocks, uint64_t length);
/* The same, only of what is warm. */
int64_t blocks_take_warm(struct blocks *blocks, uint64_t length);
/* PERIGEE_INVALID, and nothing is changed, if no live block begins there. */
int blocks_give(struct blocks *blocks, uint64_t offset);
/* Of the live block that begins there; 0: none does. */
uint64_t blocks_size(const struct blocks *blocks, uint64_t offset);

/* What its owner notes of a live block, in place of the links that it has when
 * it is free. */
struct blocks_note {
  uint32_t owner, pages;
};
void blocks_note(struct blocks *blocks, uint64_t offset,
                 struct blocks_note note);
/* Zeros where no live block begins. */
struct blocks_note blocks_noted(const struct blocks *blocks, uint64_t offset);

/* Free blocks that begin there are cold: the caller has given back their pages.
 */
void blocks_cool(struct blocks *blocks, uint64_t from, uint64_t to);

/* Warm bytes that are worth keeping: all but those that nobody took between the
 * last looks, which are numbered. Half of them at the first, the rest at the
 * second. */
uint64_t blocks_keep(struct blocks *blocks, uint32_t look);

/* While more than keep bytes are warm: makes one free block cold and returns
 * its size and offset, for its pages to be punched out. 0: none. */
uint64_t blocks_idle(struct blocks *blocks, uint64_t keep, uint64_t *offset);

#endif
