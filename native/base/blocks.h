/* SPDX-License-Identifier: Apache-2.0
 *
 * blocks.h - an allocator of power-of-two blocks over a space of offsets.
 *
 * The memory behind the offsets may be shared with a peer that writes anything
 * into it, so the allocator stores nothing there. A private table has one entry
 * for each smallest block. Its entries are touched only for space that was
 * used. Blocks are aligned to their size.
 *
 *   state   event   becomes
 *   none    bump    cold      fresh space, handed out in order
 *   cold    take    live
 *   warm    take    live      warm blocks are taken before cold ones, the block
 *                             that was given last first
 *   warm    idle    cold      the caller gives its pages back to the system
 *
 * A larger block is split if no block of a size is free. Adjacent free blocks
 * are joined if none of those is free either.
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
  uint64_t limit;      /* the most bytes that may be live */
  uint64_t live;       /* bytes in live blocks */
  uint64_t warm;       /* bytes in warm blocks: free, and used before */
  uint64_t low;        /* the least value of warm since the last look */
  uint64_t before;     /* the value of low at the look before */
  uint64_t keep;       /* warm bytes worth keeping, found at the last look */
  uint32_t look;       /* number of the last look */
  uint64_t bump;       /* offset of the space that was never handed out */
  uint32_t lists[2][BLOCKS_ORDERS]; /* warm, cold: index + 1 of the first */
  uint32_t filled[2]; /* one bit for each order with free blocks */
  bool joined; /* join_all() ran since the last give: it would find nothing */
};

/* PERIGEE_INVALID if the space is above 2^43, PERIGEE_NO_MEMORY. */
int blocks_open(struct blocks *blocks, uint64_t space, uint64_t limit);
void blocks_close(struct blocks *blocks);

/* Returns the size of the block that holds length bytes; length <= 2^63. */
static inline uint64_t blocks_whole(uint64_t length) {
  uint64_t least = UINT64_C(1) << BLOCKS_SHIFT;
  return length <= least
             ? least
             : UINT64_C(1) << (64 - (unsigned)__builtin_clzll(length - 1));
}

/* Returns the offset of a block of at least length bytes, PERIGEE_TOO_LARGE if
 * the limit or the space could never hold it, or PERIGEE_AGAIN if no such block
 * is free now. */
int64_t blocks_take(struct blocks *blocks, uint64_t length);
/* As blocks_take, from warm blocks only. */
int64_t blocks_take_warm(struct blocks *blocks, uint64_t length);
/* Frees a block. PERIGEE_INVALID if no live block begins at the offset; nothing
 * changes then. */
int blocks_give(struct blocks *blocks, uint64_t offset);
/* Returns the size of the live block that begins at the offset, or 0. */
uint64_t blocks_size(const struct blocks *blocks, uint64_t offset);

/* What the owner of a live block notes of it. It takes the place of the links
 * that a free block has. */
struct blocks_note {
  uint32_t owner, pages;
};
void blocks_note(struct blocks *blocks, uint64_t offset,
                 struct blocks_note note);
/* Returns zeros if no live block begins at the offset. */
struct blocks_note blocks_noted(const struct blocks *blocks, uint64_t offset);

/* Makes the free blocks that begin in [from, to) cold: the caller has given
 * their pages back to the system. */
void blocks_cool(struct blocks *blocks, uint64_t from, uint64_t to);

/* Returns how many warm bytes are worth keeping: all but those that nobody took
 * since the previous look. Half of these is given up at the first look that
 * finds them unused, and the rest at the second. Looks are numbered by the
 * caller. */
uint64_t blocks_keep(struct blocks *blocks, uint32_t look);

/* If more than keep bytes are warm, makes one free block cold and returns its
 * size and offset; the caller gives its pages back. Returns 0 otherwise. */
uint64_t blocks_idle(struct blocks *blocks, uint64_t keep, uint64_t *offset);

#endif
