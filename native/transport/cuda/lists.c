/* SPDX-License-Identifier: Apache-2.0
 *
 * lists.c - payloads that are lists of places in memory of GPUs. The owner
 * writes the list to a block behind its board, and the source names the block;
 * the receiver takes a copy of the list before it looks at it. Each place is
 * found, checked and copied as a payload in one piece is (fetch.c).
 *
 * A block is the exposure's until it is concealed. A receiver that looks later
 * finds another list, or none, and then that its operation is over.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda_lane.h"

/* One place, in the block. */
struct listed {
  uint64_t id, offset, block, count, stride;
};

/* A list that was taken from the peer. */
struct listing {
  uint32_t count, at; /* the place at which the fetch is, */
  uint64_t begin;     /* and the payload's byte that it begins with */
  struct listed places[PERIGEE_LIST_MOST];
};

/* ---- The owner ----------------------------------------------------------- */

/* Has the peer opened the memory of the area, and does it take lists? */
static bool list_area_is_open(struct lane *lane, struct area *area,
                              uint32_t *id) {
  return area && exported_tell(lane, area, id) == PERIGEE_OK &&
         exported_is_open(lane, *id) && lane->exported[*id].lists;
}

/* Places of one region mostly follow each other. All regions are told of, also if
 * one is not open yet. */
static bool list_write(struct lane *lane, const struct payload *payload,
                       struct listed *list) {
  struct area *last = NULL;
  bool all = true;
  uint32_t id = 0;
  for (uint64_t i = 0; i < payload->count; i++) {
    const struct extent *e = &payload->extents[i];
    if (!last || e->area != last)
      all = list_area_is_open(lane, e->area, &id) && all;
    last = e->area;
    if (all)
      list[i] = (struct listed){id, (uint64_t)(e->base - last->base), e->block,
                                e->count, e->stride};
  }
  return all;
}

int list_expose(struct lane *lane, struct exposure *e,
                const struct payload *payload) {
  if (!payload->extents[0].area || !payload->extents[0].area->shared ||
      payload->count > PERIGEE_LIST_MOST || link_board(lane) < 0)
    return PERIGEE_UNSUPPORTED;
  int64_t at =
      blocks_take(&lane->lists, payload->count * sizeof(struct listed));
  if (at < 0)
    return PERIGEE_UNSUPPORTED;
  /* Whoever still reads what was there finds that mark gone (part_end). */
  atomic_thread_fence(memory_order_release);
  uint8_t *block = board_lists(lane) + at;
  if (!list_write(lane, payload, (struct listed *)(void *)block)) {
    blocks_give(&lane->lists, (uint64_t)at);
    return PERIGEE_UNSUPPORTED;
  }
  uint64_t taken = (uint64_t)at + 1;
  memcpy(e->own, &taken, sizeof taken);
  e->source = (struct source){SOURCE_LIST, (uint64_t)at, payload->total, 1,
                              payload->count};
  return PERIGEE_OK;
}

void list_conceal(struct lane *lane, struct exposure *e) {
  uint64_t taken;
  memcpy(&taken, e->own, sizeof taken);
  if (taken > 0 && lane->own)
    blocks_give(&lane->lists, taken - 1);
  memset(e->own, 0, sizeof taken);
}

/* ---- The receiver -------------------------------------------------------- */

/* Has every place a number of a memory, and some bytes, and are they `total` in all? */
static bool listing_is_sound(const struct listing *l, uint64_t total) {
  uint64_t all = 0, bytes;
  for (uint32_t i = 0; i < l->count; i++)
    if (l->places[i].id >= LINK_MEMORIES || l->places[i].block == 0 ||
        l->places[i].count == 0 ||
        __builtin_mul_overflow(l->places[i].block, l->places[i].count,
                               &bytes) ||
        __builtin_add_overflow(all, bytes, &all))
      return false;
  return all == total;
}

int listing_take(struct lane *lane, const struct source *s, uint64_t total,
                 struct listing **out) {
  if (s->stride < 1 || s->stride > PERIGEE_LIST_MOST ||
      s->address % sizeof(uint64_t) != 0)
    return PERIGEE_PROTOCOL;
  struct listing *l = lane->spare_list ? lane->spare_list : malloc(sizeof *l);
  if (!l)
    return PERIGEE_NO_MEMORY;
  lane->spare_list = NULL;
  *out = l;
  l->count = (uint32_t)s->stride;
  l->at = 0;
  l->begin = 0;
  if (!board_read_lists(lane, s->address, s->stride * sizeof(struct listed),
                        l->places))
    return PERIGEE_PROTOCOL;
  /* If it was another one's, the mark that is read next is gone. */
  atomic_thread_fence(memory_order_acquire);
  return listing_is_sound(l, total) ? PERIGEE_OK : PERIGEE_PROTOCOL;
}

void listing_give(struct lane *lane, struct listing *l) {
  if (lane->spare_list)
    free(l);
  else
    lane->spare_list = l;
}

uint32_t listing_count(const struct listing *l) {
  return l->count;
}

struct source listing_place(const struct listing *l, uint32_t i, uint64_t *id) {
  const struct listed *p = &l->places[i];
  *id = p->id;
  return (struct source){SOURCE_KIND, p->offset, p->block, p->count, p->stride};
}

struct source listing_at(struct listing *l, uint64_t at, uint64_t *id,
                         uint64_t *begin) {
  for (;;) {
    const struct listed *p = &l->places[l->at];
    if (at < l->begin + p->block * p->count)
      break;
    l->begin += p->block * p->count;
    l->at++;
  }
  *begin = l->begin;
  return listing_place(l, l->at, id);
}
