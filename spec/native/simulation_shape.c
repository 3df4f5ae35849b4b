/* SPDX-License-Identifier: Apache-2.0
 *
 * simulation_shape.c - shapes of the memory that operations of a simulated world
 * use: one slice of some blocks, or a list of slices in any order, with and
 * without gaps, in one region or in two.
 */
#include <string.h>

#include "simulation.h"

enum { SHARE = 4 }; /* blocks of a slice of a list, at most */
enum { LISTS = 16 };

/* ---- Sizes --------------------------------------------------------------- */

static uint64_t place_length(const struct place *p) {
  return p->block * p->count;
}

static uint64_t place_span(const struct place *p) {
  return p->count ? (p->count - 1) * p->stride + p->block : 0;
}

uint64_t shape_length(const struct shape *s) {
  uint64_t length = 0;
  for (uint32_t i = 0; i < s->count; i++)
    length += place_length(&s->places[i]);
  return length;
}

uint64_t shape_end(const struct shape *s) {
  uint64_t end = 0;
  for (uint32_t i = 0; i < s->count; i++) {
    uint64_t own = s->places[i].offset + place_span(&s->places[i]);
    end = own > end ? own : end;
  }
  return end;
}

bool shape_uses_two(const struct shape *s) {
  bool two = false;
  for (uint32_t i = 0; i < s->count; i++)
    two |= s->places[i].also;
  return two;
}

void shape_shift(struct shape *s, uint64_t offset) {
  for (uint32_t i = 0; i < s->count; i++)
    s->places[i].offset += offset;
}

/* The most that may lie between blocks, if they are so many. */
static uint64_t gap_most(uint64_t room, uint64_t length, uint64_t blocks) {
  uint64_t gap = room > length ? (room - length) / blocks : 0;
  return gap < EDGE ? gap : EDGE - 1;
}

/* ---- One slice ----------------------------------------------------------- */

static void shape_plain(struct world *w, struct shape *s, uint64_t length) {
  struct place *p = &s->places[0];
  s->count = 1;
  p->count = happens(w, 0.3) ? 1 + below(w, SHARE) : 1;
  if (length % p->count != 0)
    p->count = 1;
  p->block = length / p->count;
  p->stride = p->block + (p->count > 1 ? below(w, EDGE) : 0);
}

/* ---- Lists --------------------------------------------------------------- */

static uint32_t some_number(struct world *w) {
  return 1 + (uint32_t)below(w, happens(w, 0.15) ? PLACES : 5);
}

/* Divides a length among slices, some of which are empty. */
static void shape_divide(struct world *w, struct shape *s, uint64_t length,
                         uint32_t number) {
  s->count = number;
  for (uint32_t i = 0; i < number; i++) {
    struct place *p = &s->places[i];
    bool last = i + 1 == number;
    uint64_t most = 2 * length / (number - i), n = below(w, most + 1);
    n = last || n > length ? length : n;
    p->count = happens(w, 0.3) ? 1 + below(w, SHARE) : 1;
    if (last && n % p->count != 0)
      p->count = 1;
    p->block = n / p->count;
    p->stride = p->block;
    length -= place_length(p);
  }
}

static void some_order(struct world *w, uint32_t *order, uint32_t count) {
  bool as_they_are = happens(w, 0.3);
  for (uint32_t i = 0; i < count; i++) {
    uint32_t at = as_they_are ? i : (uint32_t)below(w, i + 1);
    order[i] = i; /* at may be i */
    order[i] = order[at];
    order[at] = i;
  }
}

/* Lays the slices one behind the other, in any order. */
static void shape_scatter(struct world *w, struct shape *s, uint64_t gap,
                          bool two) {
  uint32_t order[PLACES];
  uint64_t at = 0;
  bool close = happens(w, 0.3);
  some_order(w, order, s->count);
  for (uint32_t i = 0; i < s->count; i++) {
    struct place *p = &s->places[order[i]];
    p->also = two && happens(w, 0.5);
    p->offset = at;
    if (p->count > 1)
      p->stride = p->block + below(w, gap + 1);
    at += place_span(p) + (close ? 0 : below(w, gap + 1));
  }
}

/* Lays the blocks of all slices between each other. */
static void shape_interleave(struct world *w, struct shape *s, uint64_t gap,
                             bool two) {
  uint32_t order[PLACES];
  uint64_t block = s->places[0].block;
  uint64_t stride = s->count * block + below(w, gap + 1);
  some_order(w, order, s->count);
  for (uint32_t i = 0; i < s->count; i++) {
    struct place *p = &s->places[order[i]];
    p->also = two && happens(w, 0.3);
    p->offset = i * block;
    p->stride = stride;
  }
}

/* Slices of which the blocks lie between each other's, and one of what remains
 * of the length behind them. */
static void shape_teeth(struct world *w, struct shape *s, uint64_t room,
                        uint64_t length, uint32_t number, bool two) {
  uint64_t blocks = 2 + below(w, SHARE - 1);
  uint64_t block = length / (blocks * number);
  for (uint32_t i = 0; i < number; i++)
    s->places[i] = (struct place){.block = block, .count = blocks};
  s->count = number;
  shape_interleave(w, s, gap_most(room, length, blocks), two);
  uint64_t rest = length - shape_length(s);
  s->places[number] = (struct place){shape_end(s), rest, 1, rest, false};
  s->count += rest > 0;
}

static void shape_list(struct world *w, struct shape *s, uint64_t room,
                       uint64_t length, bool two) {
  uint32_t number = some_number(w);
  s->listed = true;
  if (number < PLACES && happens(w, 0.3)) {
    shape_teeth(w, s, room, length, number, two);
    return;
  }
  shape_divide(w, s, length, number);
  shape_scatter(w, s, gap_most(room, length, (SHARE + 1) * number), two);
}

void shape_make(struct world *w, struct shape *s, uint64_t room,
                uint64_t length, bool two) {
  *s = (struct shape){0};
  if (happens(w, 0.35))
    shape_list(w, s, room, length, two);
  else
    shape_plain(w, s, length);
}

void shape_lay(struct world *w, struct shape *s, uint64_t room,
               uint64_t length) {
  *s = (struct shape){.listed = happens(w, 0.35)};
  shape_divide(w, s, length, s->listed ? some_number(w) : 1);
  for (uint32_t i = 0; i < s->count; i++) {
    struct place *p = &s->places[i];
    p->stride = below(w, p->block + EDGE);
    p->offset = below(w, room - place_span(p));
  }
}

/* ---- Blocks by numbers --------------------------------------------------- */

void shape_comb(struct world *w, struct shape *s, uint64_t room,
                const struct comb *comb, bool two) {
  uint64_t all = comb->slices * comb->most;
  uint64_t gap = gap_most(room, all * comb->block, all + comb->slices);
  *s = (struct shape){.listed = comb->listed, .count = comb->slices};
  for (uint32_t i = 0; i < s->count; i++)
    s->places[i] = (struct place){0, comb->block, comb->most, comb->block, 0};
  if (happens(w, 0.5))
    shape_interleave(w, s, gap, two && comb->listed);
  else
    shape_scatter(w, s, gap, two && comb->listed);
}

static struct place block_of(const struct place *p, uint32_t number) {
  return (struct place){p->offset + number * p->stride, p->block, 1, p->block,
                        p->also};
}

void shape_pick(struct shape *s, const uint32_t *numbers, uint32_t count,
                bool by_number) {
  struct shape all = *s;
  uint32_t outer = by_number ? count : all.count;
  uint32_t inner = by_number ? all.count : count;
  s->count = 0;
  for (uint32_t i = 0; i < outer; i++)
    for (uint32_t k = 0; k < inner; k++)
      s->places[s->count++] =
          block_of(&all.places[by_number ? k : i], numbers[by_number ? i : k]);
}

/* ---- Runs ---------------------------------------------------------------- */

bool walk_next(struct walk *walk, struct run *run) {
  const struct shape *s = walk->shape;
  while (walk->place < s->count) {
    const struct place *p = &s->places[walk->place];
    if (p->block == 0 || walk->block == p->count) {
      walk->place++;
      walk->block = 0;
      continue;
    }
    *run = (struct run){p->offset + walk->block * p->stride, p->block,
                        walk->done, p->also};
    walk->block++;
    walk->done += p->block;
    return true;
  }
  return false;
}

/* ---- Slices -------------------------------------------------------------- */

static struct perigee_slice lists[LISTS][PLACES];
static unsigned used;

static struct perigee_slice slice_of(const struct place *p) {
  return (struct perigee_slice){
      {NULL}, p->offset, p->block, p->count, p->stride};
}

struct perigee_slice shape_slice(const struct shape *s,
                                 struct perigee_region *region,
                                 struct perigee_region *also) {
  struct perigee_slice *list = lists[used++ % LISTS];
  for (uint32_t i = 0; i < s->count; i++) {
    list[i] = slice_of(&s->places[i]);
    list[i].region = s->places[i].also ? also : region;
  }
  return s->listed ? perigee_list(list, s->count) : list[0];
}

struct perigee_slice shape_remote(const struct shape *s,
                                  struct perigee_remote *remote) {
  struct perigee_slice *list = lists[used++ % LISTS];
  for (uint32_t i = 0; i < s->count; i++) {
    list[i] = slice_of(&s->places[i]);
    list[i].remote = remote;
  }
  return s->listed ? perigee_list(list, s->count) : list[0];
}

void slices_forget(void) {
  memset(lists, 0xee, sizeof lists);
}
