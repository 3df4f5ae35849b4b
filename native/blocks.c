/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks.h"

#include <sys/mman.h>

#include "perigee.h"

enum state { NONE = 0, LIVE, WARM, COLD };

/* Of the smallest block that it begins with; NONE inside of a block. */
struct block {
  uint32_t next, previous; /* index + 1; 0: none */
  uint8_t class;
  uint8_t state;
};

static uint64_t class_size(unsigned class) {
  return UINT64_C(1) << (BLOCKS_SHIFT + class);
}

static unsigned class_of(uint64_t length) {
  if (length <= class_size(0))
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
  if (space < class_size(0) || space > class_size(BLOCKS_CLASSES - 1))
    return PERIGEE_INVALID;
  blocks->space = space & ~(class_size(0) - 1);
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
  blocks->table = NULL;
}

/* ---- Free lists --------------------------------------------------------- */

static void push(struct blocks *blocks, struct block *block, unsigned class,
                 enum state state) {
  uint32_t index = (uint32_t)(block - blocks->table) + 1;
  uint32_t *first = &blocks->lists[state == COLD][class];
  *block = (struct block){.next = *first, .class = (uint8_t)class,
                          .state = (uint8_t)state};
  if (*first)
    blocks->table[*first - 1].previous = index;
  *first = index;
  blocks->filled[state == COLD] |= UINT32_C(1) << class;
  if (state == WARM)
    blocks->warm += class_size(class);
}

static void unlink_block(struct blocks *blocks, struct block *block) {
  bool cold = block->state == COLD;
  uint32_t *first = &blocks->lists[cold][block->class];
  if (block->previous)
    blocks->table[block->previous - 1].next = block->next;
  else
    *first = block->next;
  if (block->next)
    blocks->table[block->next - 1].previous = block->previous;
  if (!*first)
    blocks->filled[cold] &= ~(UINT32_C(1) << block->class);
  if (!cold)
    blocks->warm -= class_size(block->class);
  block->state = NONE;
}

/* The smallest free block of at least a class; of equal ones a warm one. */
static struct block *find(struct blocks *blocks, unsigned class) {
  uint32_t warm = blocks->filled[0] >> class;
  uint32_t cold = blocks->filled[1] >> class;
  if (!(warm | cold))
    return NULL;
  unsigned up = (unsigned)__builtin_ctz(warm | cold);
  bool is_cold = !(warm >> up & 1);
  return &blocks->table[blocks->lists[is_cold][class + up] - 1];
}

/* ---- Where blocks come from --------------------------------------------- */

/* Fresh space; what alignment skips becomes smaller free blocks. */
static struct block *bump(struct blocks *blocks, unsigned class) {
  uint64_t size = class_size(class);
  uint64_t start = (blocks->bump + size - 1) & ~(size - 1);
  if (start > blocks->space || blocks->space - start < size)
    return NULL;
  while (blocks->bump < start) {
    unsigned gap = (unsigned)__builtin_ctzll(blocks->bump) - BLOCKS_SHIFT;
    push(blocks, block_at(blocks, blocks->bump), gap, COLD);
    blocks->bump += class_size(gap);
  }
  blocks->bump += size;
  return block_at(blocks, start);
}

/* Halves a free block, unlinked, until it is of the class wanted. */
static struct block *split(struct blocks *blocks, struct block *block,
                           unsigned class) {
  enum state state = block->state;
  unsigned had = block->class;
  unlink_block(blocks, block);
  while (had > class) {
    had--;
    uint64_t half = block_offset(blocks, block) + class_size(had);
    push(blocks, block_at(blocks, half), had, state);
  }
  return block;
}

static struct block *buddy_of(const struct blocks *blocks,
                              const struct block *block) {
  uint64_t offset = block_offset(blocks, block) ^ class_size(block->class);
  if (offset >= blocks->space)
    return NULL;
  struct block *buddy = block_at(blocks, offset);
  bool is_free = buddy->state == WARM || buddy->state == COLD;
  return is_free && buddy->class == block->class ? buddy : NULL;
}

/* Joins a free block with free neighbours as far as it goes. */
static struct block *join(struct blocks *blocks, struct block *block) {
  struct block *buddy;
  while ((buddy = buddy_of(blocks, block))) {
    unsigned class = block->class + 1u;
    enum state state = block->state == WARM ? WARM : buddy->state;
    unlink_block(blocks, block);
    unlink_block(blocks, buddy);
    if (buddy < block)
      block = buddy;
    push(blocks, block, class, state);
  }
  return block;
}

/* Only when nothing else is left, and once for as long as nothing is given:
 * passes over all blocks of the space. */
static void join_all(struct blocks *blocks) {
  if (blocks->joined)
    return;
  blocks->joined = true;
  for (uint64_t offset = 0; offset < blocks->bump;) {
    struct block *block = block_at(blocks, offset);
    if (block->state != LIVE)
      block = join(blocks, block);
    offset = block_offset(blocks, block) + class_size(block->class);
  }
}

static struct block *obtain(struct blocks *blocks, unsigned class) {
  struct block *block = find(blocks, class);
  if (block && block->class == class) {
    unlink_block(blocks, block);
    return block;
  }
  struct block *fresh = bump(blocks, class);
  if (fresh)
    return fresh;
  if (!block) {
    join_all(blocks);
    block = find(blocks, class);
  }
  return block ? split(blocks, block, class) : NULL;
}

/* ---- What callers see --------------------------------------------------- */

int64_t blocks_take(struct blocks *blocks, uint64_t length) {
  if (length > blocks->limit || length > blocks->space)
    return PERIGEE_TOO_LARGE;
  unsigned class = class_of(length);
  uint64_t size = class_size(class);
  if (size > blocks->limit || size > blocks->space)
    return PERIGEE_TOO_LARGE;
  if (size > blocks->limit - blocks->live)
    return PERIGEE_NO_MEMORY;
  struct block *block = obtain(blocks, class);
  if (!block)
    return PERIGEE_NO_MEMORY;
  block->class = (uint8_t)class;
  block->state = LIVE;
  blocks->live += size;
  return (int64_t)block_offset(blocks, block);
}

uint64_t blocks_size(const struct blocks *blocks, uint64_t offset) {
  if (offset >= blocks->space || offset & (class_size(0) - 1))
    return 0;
  const struct block *block = block_at(blocks, offset);
  return block->state == LIVE ? class_size(block->class) : 0;
}

int blocks_give(struct blocks *blocks, uint64_t offset) {
  uint64_t size = blocks_size(blocks, offset);
  if (size == 0)
    return PERIGEE_INVALID;
  struct block *block = block_at(blocks, offset);
  blocks->live -= size;
  blocks->joined = false;
  push(blocks, block, block->class, WARM);
  return PERIGEE_OK;
}

uint64_t blocks_idle(struct blocks *blocks, uint64_t keep, uint64_t *offset) {
  if (blocks->warm <= keep)
    return 0;
  unsigned class = 31 - (unsigned)__builtin_clz(blocks->filled[0]);
  struct block *block = &blocks->table[blocks->lists[0][class] - 1];
  unlink_block(blocks, block);
  push(blocks, block, class, COLD);
  *offset = block_offset(blocks, block);
  return class_size(class);
}
