/* SPDX-License-Identifier: Apache-2.0
 *
 * ties.c - what ties entries together, and times when they end: chains, groups,
 * and a wheel of TTLs. Few entries have any of these, so what they need is in a
 * thing of its own, the entry's extra.
 *
 * A chain: an entry counts its children, and is not evicted while it has some.
 * It may be deleted; then its record stays as a husk.
 *
 * A group is evicted as a whole, or not at all: not while a member is reserved
 * or pinned hard, or is the parent of an entry outside. It has at most MEMBERS,
 * which bounds that step.
 *
 * The wheel: four levels of 256 slots. An entry is in the level of the highest
 * byte in which its tick differs from the wheel's, and comes to a lower level
 * when the wheel reaches its slot.
 */
#include <stdlib.h>

#include "store.h"

enum { MEMBERS = 1024 };

int ties_open(struct perigee_cache *c) {
  uint32_t heads = 1;
  while (heads < c->o.groups)
    heads *= 2;
  c->groups = calloc(c->o.groups, sizeof *c->groups);
  c->group_heads = calloc(heads, sizeof *c->group_heads);
  c->group_mask = heads - 1;
  c->extras = calloc(EXTRA_BLOCKS, sizeof(struct extra *));
  if (!c->groups || !c->group_heads || !c->extras)
    return PERIGEE_NO_MEMORY;
  for (uint32_t i = 0; i < c->o.groups; i++)
    c->groups[i].next = i + 1 < c->o.groups ? i + 2 : 0;
  c->free_group = 1;
  return PERIGEE_OK;
}

/* ---- Groups ------------------------------------------------------------ */

static uint32_t *group_head(struct perigee_cache *c, uint64_t id) {
  uint64_t hash;
  crypto_shorthash((unsigned char *)&hash, (const unsigned char *)&id,
                   sizeof id, c->o.seed);
  return &c->group_heads[hash & c->group_mask];
}

/* Returns index + 1 of a group, which is made if it is new, or 0. */
static uint32_t group_have(struct perigee_cache *c, uint64_t id) {
  uint32_t *head = group_head(c, id), at = *head;
  while (at && c->groups[at - 1].id != id)
    at = c->groups[at - 1].next;
  if (at)
    return c->groups[at - 1].members < MEMBERS ? at : 0;
  if (!c->free_group && !evict_group(c))
    return 0;
  at = c->free_group;
  struct group *g = &c->groups[at - 1];
  c->free_group = g->next;
  *g = (struct group){.id = id, .next = *head};
  *head = at;
  return at;
}

static void group_end(struct perigee_cache *c, uint32_t at) {
  struct group *g = &c->groups[at - 1];
  uint32_t *link = group_head(c, g->id);
  while (*link != at)
    link = &c->groups[*link - 1].next;
  *link = g->next;
  g->next = c->free_group;
  c->free_group = at;
}

/* Counts what may keep a group: if its members may go now, or no more, they
 * come to the lists of what can be evicted, or leave these. */
static void group_count(struct perigee_cache *c, struct group *g,
                        uint32_t *counter, int64_t by) {
  bool was = group_is_free(g);
  *counter += (uint32_t)by;
  if (was == group_is_free(g))
    return;
  for (uint32_t at = g->first; at; at = extra(c, at)->after)
    entry_list(c, at, false);
}

static void group_join(struct perigee_cache *c, uint32_t ref, uint32_t at) {
  struct group *g = &c->groups[at - 1];
  struct extra *x = extra(c, ref);
  x->group = at;
  x->before = 0;
  x->after = g->first;
  if (x->after)
    extra(c, x->after)->before = ref;
  g->first = ref;
  g->members++;
  group_count(c, g, &g->reserved, 1);
}

static void group_leave(struct perigee_cache *c, uint32_t ref) {
  struct extra *x = extra(c, ref);
  struct group *g = &c->groups[x->group - 1];
  *(x->before ? &extra(c, x->before)->after : &g->first) = x->after;
  if (x->after)
    extra(c, x->after)->before = x->before;
  group_count(c, g, &g->outside, -(int64_t)x->outside);
  x->outside = 0;
  group_count(c, g, &g->reserved, -(own(c, ref)->state != SEALED));
  if (--g->members == 0)
    group_end(c, x->group);
  x->group = 0;
}

void ties_pinned(struct perigee_cache *c, uint32_t ref, int pin, int by) {
  struct group *g = group_of(c, ref);
  if (g && pin == PERIGEE_CACHE_HARD)
    group_count(c, g, &g->hard, by);
  if (g && pin == PERIGEE_CACHE_SOFT)
    g->soft += (uint32_t)by;
}

void ties_sealed(struct perigee_cache *c, uint32_t ref) {
  struct group *g = group_of(c, ref);
  if (g)
    group_count(c, g, &g->reserved, -1);
}

/* ---- Chains ------------------------------------------------------------ */

/* Counts a child of an entry, or one less. */
static void child_count(struct perigee_cache *c, uint32_t ref, uint32_t parent,
                        int by) {
  struct extra *x = extra(c, parent);
  struct group *g = group_of(c, parent);
  x->children += (uint32_t)by;
  if (g && g != group_of(c, ref)) {
    x->outside += (uint32_t)by;
    group_count(c, g, &g->outside, by);
  }
}

static void child_add(struct perigee_cache *c, uint32_t ref, uint32_t parent) {
  extra(c, ref)->parent = parent;
  child_count(c, ref, parent, 1);
  if (children(c, parent) > 1)
    return;
  entry_list(c, parent, false);
}

static void child_remove(struct perigee_cache *c, uint32_t ref) {
  uint32_t parent = extra(c, ref)->parent;
  const struct own *e = own(c, parent);
  extra(c, ref)->parent = 0;
  child_count(c, ref, parent, -1);
  if (children(c, parent) > 0)
    return;
  if (e->state == HELD || e->state == HUSK) {
    entry_settle(c, parent);
    return;
  }
  entry_list(c, parent, false);
}

/* ---- Both -------------------------------------------------------------- */

/* Returns the number of an extra that was never used, or 0. */
static uint32_t extra_fresh(struct perigee_cache *c) {
  uint32_t at = c->extra_end ? c->extra_end : 1, block = at >> EXTRA_SHIFT;
  if (block == EXTRA_BLOCKS)
    return 0;
  if (!c->extras[block])
    c->extras[block] = malloc(sizeof(struct extra) << EXTRA_SHIFT);
  if (!c->extras[block])
    return 0;
  c->extra_end = at + 1;
  return at;
}

static bool extra_have(struct perigee_cache *c, uint32_t ref) {
  struct own *e = own(c, ref);
  if (e->extra)
    return true;
  e->extra = c->free_extra ? c->free_extra : extra_fresh(c);
  if (!e->extra)
    return false;
  struct extra *x = extra(c, ref);
  if (e->extra == c->free_extra)
    c->free_extra = x->parent;
  *x = (struct extra){0};
  return true;
}

void ties_end(struct perigee_cache *c, uint32_t ref) {
  struct extra *x = extra(c, ref);
  if (!x)
    return;
  x->parent = c->free_extra;
  c->free_extra = own(c, ref)->extra;
}

int ties_group(struct perigee_cache *c, uint32_t ref, uint64_t group,
               bool more) {
  if (!group && !more)
    return PERIGEE_OK;
  if (!extra_have(c, ref))
    return PERIGEE_NO_MEMORY;
  uint32_t at = group ? group_have(c, group) : 0;
  if (group && !at)
    return PERIGEE_NO_MEMORY;
  if (at)
    group_join(c, ref, at);
  return PERIGEE_OK;
}

int ties_parent(struct perigee_cache *c, uint32_t ref, uint32_t parent) {
  if (!extra_have(c, parent))
    return PERIGEE_NO_MEMORY;
  child_add(c, ref, parent);
  return PERIGEE_OK;
}

void ties_cut(struct perigee_cache *c, uint32_t ref) {
  const struct extra *x = extra(c, ref);
  if (x && x->parent)
    child_remove(c, ref);
  if (x && x->group)
    group_leave(c, ref);
}

/* ---- The wheel --------------------------------------------------------- */

static void wheel_put(struct perigee_cache *c, uint32_t ref, uint32_t tick) {
  struct extra *x = extra(c, ref);
  uint32_t at = x->expires, differ = at ^ tick;
  uint32_t level = differ ? (31 - (uint32_t)__builtin_clz(differ)) / 8 : 0;
  x->slot = level * WHEEL_SLOTS + (at >> (8 * level)) % WHEEL_SLOTS;
  uint32_t *slot = &c->wheel[0][0] + x->slot;
  x->earlier = 0;
  x->later = *slot;
  if (x->later)
    extra(c, x->later)->earlier = ref;
  *slot = ref;
}

void wheel_add(struct perigee_cache *c, uint32_t ref) {
  struct extra *x = extra(c, ref);
  if (x->expires <= c->tick)
    x->expires = c->tick + 1;
  own(c, ref)->wheeled = 1;
  c->wheeled++;
  wheel_put(c, ref, c->tick);
}

static void wheel_take(struct perigee_cache *c, uint32_t ref) {
  const struct extra *x = extra(c, ref);
  *(x->earlier ? &extra(c, x->earlier)->later : &c->wheel[0][0] + x->slot) =
      x->later;
  if (x->later)
    extra(c, x->later)->earlier = x->earlier;
}

void wheel_remove(struct perigee_cache *c, uint32_t ref) {
  wheel_take(c, ref);
  own(c, ref)->wheeled = 0;
  c->wheeled--;
}

/* Brings down what is in the slots that the tick begins; false: no budget. */
static bool wheel_down(struct perigee_cache *c, uint32_t tick,
                       uint32_t *budget) {
  for (uint32_t level = WHEEL_LEVELS - 1; level > 0; level--) {
    if (tick << (32 - 8 * level))
      continue;
    uint32_t *slot = &c->wheel[level][(tick >> (8 * level)) % WHEEL_SLOTS];
    for (uint32_t ref = *slot; ref; ref = *slot) {
      if (*budget == 0)
        return false;
      (*budget)--;
      wheel_take(c, ref);
      wheel_put(c, ref, tick);
    }
  }
  return true;
}

static bool wheel_tick(struct perigee_cache *c, uint32_t tick,
                       uint32_t *budget) {
  uint32_t *slot = &c->wheel[0][tick % WHEEL_SLOTS];
  if (*budget == 0 || !wheel_down(c, tick, budget))
    return false;
  for (; *slot; (*budget)--) {
    if (*budget == 0)
      return false;
    entry_remove(c, *slot, PERIGEE_CACHE_EXPIRED);
  }
  c->tick = tick;
  *budget -= *budget > 0;
  return true;
}

void wheel_turn(struct perigee_cache *c, int64_t now, uint32_t *budget) {
  uint32_t until = tick_of(c, now);
  while (c->wheeled && c->tick < until)
    if (!wheel_tick(c, c->tick + 1, budget))
      return;
  if (!c->wheeled && c->tick < until)
    c->tick = until;
}
