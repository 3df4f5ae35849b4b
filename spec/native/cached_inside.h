/* SPDX-License-Identifier: Apache-2.0
 *
 * cached_inside.h - counts a store's entries anew, and compares that with all
 * that the store counts as it goes on: its counters, those of slabs and groups,
 * and its lists.
 */
#ifndef CACHED_INSIDE_H
#define CACHED_INSIDE_H

#include "cached.h"

enum { INSIDE_SLABS = 64, INSIDE_GROUPS = 64 };

struct inside {
  struct perigee_cache_counters n;
  uint64_t linked, wheeled, held_bytes;
  uint32_t fixed[INSIDE_SLABS], mobile[INSIDE_SLABS];
  struct group groups[INSIDE_GROUPS];
};

static inline uint64_t inside_bytes(const struct entry *r) {
  return size_bytes(size_of((uint32_t)word(&r->where)));
}

static inline void inside_group(struct inside *in, const struct extra *x,
                                const struct own *e) {
  if (!x || !x->group)
    return;
  assert_true(x->group <= INSIDE_GROUPS);
  struct group *g = &in->groups[x->group - 1];
  g->members++;
  g->hard += e->pin == PERIGEE_CACHE_HARD;
  g->soft += e->pin == PERIGEE_CACHE_SOFT;
  g->reserved += e->state == RESERVED;
  g->outside += x->outside;
}

/* An entry in the table. */
static inline void inside_entry(struct inside *in, struct perigee_cache *c,
                                uint32_t ref) {
  const struct own *e = own(c, ref);
  const struct entry *r = record(c, ref);
  const struct group *g = group_of(c, ref);
  uint32_t slab = what_slab(word(&r->what));
  bool sealed = e->state == SEALED, hard = e->pin == PERIGEE_CACHE_HARD;
  assert_true(sealed || e->state == RESERVED);
  assert_true(slab < INSIDE_SLABS && c->slabs[slab].there);
  assert_int_equal(e->listed, sealed && !hard && children(c, ref) == 0 &&
                                  (!g || group_is_free(g)));
  in->linked++;
  in->wheeled += e->wheeled;
  in->n.entries += sealed;
  in->n.copies += sealed && e->pin == PERIGEE_CACHE_COPY;
  in->n.reserved += !sealed;
  in->n.values += sealed ? (uint32_t)word(&r->where) : 0;
  in->n.used += inside_bytes(r);
  in->n.hard += hard ? inside_bytes(r) : 0;
  in->fixed[slab] += hard + (uint32_t)!sealed;
  in->mobile[slab] += e->listed;
  inside_group(in, extra(c, ref), e);
}

static inline void inside_table(struct inside *in, struct perigee_cache *c) {
  for (uint32_t bucket = 0; bucket < directory_buckets(c); bucket++) {
    bool end = false;
    for (uint32_t place = 0; !end; place++) {
      uint32_t ref = directory_at(c, bucket, place, &end);
      if (ref)
        inside_entry(in, c, ref);
    }
  }
}

/* Entries that are held are in no table. */
static inline void inside_slab(struct inside *in, struct perigee_cache *c,
                               uint32_t number) {
  const struct slab *s = &c->slabs[number];
  for (uint32_t i = 0; i < s->fresh; i++)
    if (!(s->owners[i] & EMPTY) && own(c, s->owners[i])->state == HELD) {
      in->mobile[number]++;
      in->n.held++;
      in->held_bytes += inside_bytes(record(c, s->owners[i]));
    }
  assert_int_equal(in->fixed[number], s->fixed);
  assert_int_equal(in->mobile[number], s->mobile);
  assert_int_equal(s->listed, s->live < s->places && !s->draining);
}

static inline void inside_groups(const struct inside *in,
                                 const struct perigee_cache *c) {
  for (uint32_t i = 0; i < c->o.groups && i < INSIDE_GROUPS; i++) {
    const struct group *is = &in->groups[i], *g = &c->groups[i];
    if (!is->members)
      continue;
    assert_int_equal(is->members, g->members);
    assert_int_equal(is->hard, g->hard);
    assert_int_equal(is->soft, g->soft);
    assert_int_equal(is->reserved, g->reserved);
    assert_int_equal(is->outside, g->outside);
  }
}

static inline void cached_check(struct perigee_cache *c) {
  struct inside in = {.linked = 0};
  inside_table(&in, c);
  for (uint32_t i = 0; i < c->slab_end; i++)
    if (c->slabs[i].there && c->slabs[i].size != NONE)
      inside_slab(&in, c, i);
  inside_groups(&in, c);
  assert_int_equal(in.linked, c->linked);
  assert_int_equal(in.wheeled, c->wheeled);
  assert_int_equal(in.n.entries, c->n.entries);
  assert_int_equal(in.n.copies, c->n.copies);
  assert_int_equal(in.n.reserved, c->n.reserved);
  assert_int_equal(in.n.held, c->n.held);
  assert_int_equal(in.n.values, c->n.values);
  assert_int_equal(in.n.hard, c->n.hard);
  assert_int_equal(in.held_bytes, c->held_bytes);
  assert_int_equal(in.n.used + in.held_bytes, c->n.used);
}

#endif
