/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks.h"

#include <sys/mman.h>

#include "perigee.h"

enum state { NONE = 0, LIVE, WARM, COLD };

/* One for each smallest block. The state is NONE except in the entry at which a
 * block begins. */
struct block {
  uint32_t next, previous; /* free: index + 1, 0 is none; live: its note */
  uint8_t order;
  uint8_t state;
};

static uint64_t order_size(unsigned order) {
  return UINT64_C(1) << (BLOCKS_SHIFT + order);
}

static unsigned order_of(uint64_t length) {
  if (length <= order_size(0))
    return 0;
  return 64 - BLOCKS_SHIFT - (unsigned)__builtin_clzll(length - 1);
}

static struct block *block_at(const struct blocks *blocks, uint64_t offset) {
  return &blocks->table[offset >> BLOCKS_SHIFT];
}

static uint64_t block_offset(const struct blocks *blocks,
                             const struct block *block) {
  return (uint64_t)(block - blocks->table) << BLOCKS_SHIFT;
}

int blocks_open(struct blocks *blocks, uint64_t space, uint64_t limit) {
  *blocks = (struct blocks){.limit = limit};
  if (space < order_size(0) || space > order_size(BLOCKS_ORDERS - 1))
    return PERIGEE_INVALID;
  blocks->space = space & ~(order_size(0) - 1);
  uint64_t bytes = (space >> BLOCKS_SHIFT) * sizeof(struct block);
  void *table = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table == MAP_FAILED)
    return PERIGEE_NO_MEMORY;
  blocks->table = table;
  return PERIGEE_OK;
}

void blocks_close(struct blocks *blocks) {
  if (blocks->table)
    munmap(blocks->table,
           (blocks->space >> BLOCKS_SHIFT) * sizeof(struct block));
  *blocks = (struct blocks){0};
}

/* ---- Free lists --------------------------------------------------------- */

static void block_push(struct blocks *blocks, struct block *block,
                       unsigned order, enum state state) {
  uint32_t index = (uint32_t)(block - blocks->table) + 1;
  uint32_t *first = &blocks->lists[state == COLD][order];
  *block = (struct block){
      .next = *first, .order = (uint8_t)order, .state = (uint8_t)state};
  if (*first)
    blocks->table[*first - 1].previous = index;
  *first = index;
  blocks->filled[state == COLD] |= UINT32_C(1) << order;
  if (state == WARM)
    blocks->warm += order_size(order);
}

static void block_unlink(struct blocks *blocks, struct block *block) {
  bool cold = block->state == COLD;
  uint32_t *first = &blocks->lists[cold][block->order];
  if (block->previous)
    blocks->table[block->previous - 1].next = block->next;
  else
    *first = block->next;
  if (block->next)
    blocks->table[block->next - 1].previous = block->previous;
  if (!*first)
    blocks->filled[cold] &= ~(UINT32_C(1) << block->order);
  if (!cold)
    blocks->warm -= order_size(block->order);
  if (blocks->low > blocks->warm)
    blocks->low = blocks->warm;
  block->state = NONE;
}

/* Returns the smallest free block of at least this order; of two of one order,
 * the warm one. Cold blocks are looked at only with `any`. */
static struct block *blocks_find(struct blocks *blocks, unsigned order,
                                 bool any) {
  uint32_t warm = blocks->filled[0] >> order;
  uint32_t cold = any ? blocks->filled[1] >> order : 0;
  if (!(warm | cold))
    return NULL;
  unsigned up = (unsigned)__builtin_ctz(warm | cold);
  bool is_cold = !(warm >> up & 1);
  return &blocks->table[blocks->lists[is_cold][order + up] - 1];
}

/* ---- Where blocks come from --------------------------------------------- */

/* Takes fresh space. What alignment skips becomes smaller free blocks. */
static struct block *blocks_bump(struct blocks *blocks, unsigned order) {
  uint64_t size = order_size(order);
  uint64_t start = (blocks->bump + size - 1) & ~(size - 1);
  if (start > blocks->space || blocks->space - start < size)
    return NULL;
  while (blocks->bump < start) {
    unsigned gap = (unsigned)__builtin_ctzll(blocks->bump) - BLOCKS_SHIFT;
    block_push(blocks, block_at(blocks, blocks->bump), gap, COLD);
    blocks->bump += order_size(gap);
  }
  blocks->bump += size;
  return block_at(blocks, start);
}

/* Halves a free, unlinked block until it has the wanted order. */
static struct block *block_split(struct blocks *blocks, struct block *block,
                                 unsigned order) {
  enum state state = block->state;
  unsigned had = block->order;
  block_unlink(blocks, block);
  while (had > order) {
    had--;
    uint64_t half = block_offset(blocks, block) + order_size(had);
    block_push(blocks, block_at(blocks, half), had, state);
  }
  return block;
}

static struct block *block_buddy(const struct blocks *blocks,
                                 const struct block *block) {
  uint64_t offset = block_offset(blocks, block) ^ order_size(block->order);
  if (offset >= blocks->space)
    return NULL;
  struct block *buddy = block_at(blocks, offset);
  bool is_free = buddy->state == WARM || buddy->state == COLD;
  return is_free && buddy->order == block->order ? buddy : NULL;
}

/* Joins a free block with its free buddies, as far as there are any. */
static struct block *block_join(struct blocks *blocks, struct block *block) {
  struct block *buddy;
  while ((buddy = block_buddy(blocks, block))) {
    unsigned order = block->order + 1u;
    enum state state = block->state == WARM ? WARM : buddy->state;
    block_unlink(blocks, block);
    block_unlink(blocks, buddy);
    if (buddy < block)
      block = buddy;
    block_push(blocks, block, order, state);
  }
  return block;
}

/* Walks over all blocks of the space, so it runs only if nothing else is left,
 * and at most once between two gives. */
static void blocks_join_all(struct blocks *blocks) {
  if (blocks->joined)
    return;
  blocks->joined = true;
  for (uint64_t offset = 0; offset < blocks->bump;) {
    struct block *block = block_at(blocks, offset);
    if (block->state != LIVE)
      block = block_join(blocks, block);
    offset = block_offset(blocks, block) + order_size(block->order);
  }
}

static struct block *blocks_obtain(struct blocks *blocks, unsigned order,
                                   bool any) {
  struct block *block = blocks_find(blocks, order, any);
  if (block && block->order == order) {
    block_unlink(blocks, block);
    return block;
  }
  struct block *fresh = any ? blocks_bump(blocks, order) : NULL;
  if (fresh)
    return fresh;
  if (!block && any) {
    blocks_join_all(blocks);
    block = blocks_find(blocks, order, any);
  }
  return block ? block_split(blocks, block, order) : NULL;
}

/* ---- What callers see --------------------------------------------------- */

static inline int64_t blocks_take_any(struct blocks *blocks, uint64_t length,
                                      bool any) {
  if (!blocks->table || length > blocks->limit || length > blocks->space)
    return PERIGEE_TOO_LARGE;
  unsigned order = order_of(length);
  uint64_t size = order_size(order);
  if (size > blocks->limit || size > blocks->space)
    return PERIGEE_TOO_LARGE;
  if (size > blocks->limit - blocks->live)
    return PERIGEE_AGAIN;
  struct block *block = blocks_obtain(blocks, order, any);
  if (!block)
    return PERIGEE_AGAIN;
  block->order = (uint8_t)order;
  block->state = LIVE;
  block->next = block->previous = 0;
  blocks->live += size;
  return (int64_t)block_offset(blocks, block);
}

int64_t blocks_take(struct blocks *blocks, uint64_t length) {
  return blocks_take_any(blocks, length, true);
}

int64_t blocks_take_warm(struct blocks *blocks, uint64_t length) {
  return blocks_take_any(blocks, length, false);
}

uint64_t blocks_size(const struct blocks *blocks, uint64_t offset) {
  if (offset >= blocks->space || offset & (order_size(0) - 1))
    return 0;
  const struct block *block = block_at(blocks, offset);
  return block->state == LIVE ? order_size(block->order) : 0;
}

void blocks_note(struct blocks *blocks, uint64_t offset,
                 struct blocks_note note) {
  struct block *block = block_at(blocks, offset);
  block->next = note.owner;
  block->previous = note.pages;
}

struct blocks_note blocks_noted(const struct blocks *blocks, uint64_t offset) {
  if (blocks_size(blocks, offset) == 0)
    return (struct blocks_note){0};
  const struct block *block = block_at(blocks, offset);
  return (struct blocks_note){block->next, block->previous};
}

int blocks_give(struct blocks *blocks, uint64_t offset) {
  uint64_t size = blocks_size(blocks, offset);
  if (size == 0)
    return PERIGEE_INVALID;
  struct block *block = block_at(blocks, offset);
  blocks->live -= size;
  blocks->joined = false;
  block_push(blocks, block, block->order, WARM);
  return PERIGEE_OK;
}

uint64_t blocks_idle(struct blocks *blocks, uint64_t keep, uint64_t *offset) {
  if (blocks->warm <= keep)
    return 0;
  unsigned order = 31 - (unsigned)__builtin_clz(blocks->filled[0]);
  struct block *block = &blocks->table[blocks->lists[0][order] - 1];
  block_unlink(blocks, block);
  block_push(blocks, block, order, COLD);
  *offset = block_offset(blocks, block);
  return order_size(order);
}

void blocks_cool(struct blocks *blocks, uint64_t from, uint64_t to) {
  const uint64_t least = order_size(0);
  for (; from < to && from < blocks->bump; from += least) {
    struct block *block = block_at(blocks, from);
    if (block->state != WARM)
      continue;
    unsigned order = block->order;
    block_unlink(blocks, block);
    block_push(blocks, block, order, COLD);
  }
}

uint64_t blocks_keep(struct blocks *blocks, uint32_t look) {
  if (blocks->look == look)
    return blocks->keep;
  uint64_t idle = blocks->low < blocks->before ? blocks->low : blocks->before;
  uint64_t spare = blocks->low / 2 > idle ? blocks->low / 2 : idle;
  blocks->keep = blocks->warm - spare;
  blocks->before = blocks->low;
  blocks->low = blocks->warm;
  blocks->look = look;
  return blocks->keep;
}
