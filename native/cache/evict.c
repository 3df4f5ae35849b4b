/* SPDX-License-Identifier: Apache-2.0
 *
 * evict.c - which entries go, and the store's turn. Each size has three lists
 * of entries in the order of their last use: copies, which go first, those with
 * soft pins, which go last, and the others. Entries that cannot go (pinned
 * hard, reserved, with children, or of a group that one of these keeps) are in
 * no list. The lists' ends are looked at, at most LOOKS entries at a time:
 *
 *   LRU   the last one goes
 *   LFU   of those looked at, the one with the fewest uses goes; a use is
 *         forgotten for each `decay` since the last one
 *
 * Above the high watermark the size whose last entry is the oldest gives one,
 * again and again, down to the low one. Leased entries that are removed do not
 * count as used there, since evicting more would not free their places. For the
 * same reason no leased entry goes while HELD_MOST of its size have gone and
 * are leased still.
 *
 * A new group that finds none of `groups` free has another one go, of some that
 * it looks at in turn.
 *
 * A size that finds neither a place nor an entry of its own to evict is
 * starved: a slab of another size is drained for it, one of which all may go.
 */
#include "store.h"

enum { LOOKS = 16, HELD_MOST = 16 };

static bool group_may_go(const struct group *g, int kind) {
  return !g || (group_is_free(g) && (kind == SOFT || g->soft == 0));
}

/* Returns how often it was used, less what is forgotten. */
static uint32_t uses_of(const struct perigee_cache *c, const struct own *e) {
  uint64_t forgets = ((uint64_t)c->o.decay >> TICK_SHIFT) + 1;
  uint64_t lost = (tick_of(c, c->now) - e->used) / forgets;
  return e->uses > lost ? e->uses - (uint32_t)lost : 0;
}

static void entry_evict(struct perigee_cache *c, uint32_t ref) {
  c->n.evicted++;
  entry_remove(c, ref, PERIGEE_CACHE_EVICTED);
}

static void evict_all(struct perigee_cache *c, uint32_t ref) {
  const struct group *g = group_of(c, ref);
  if (!g) {
    entry_evict(c, ref);
    return;
  }
  for (uint32_t at = g->first, next; at; at = next) {
    next = extra(c, at)->after;
    entry_evict(c, at);
  }
}

/* May it go, and with it its group? A leased one gives no place soon. */
static bool may_go(const struct perigee_cache *c, uint32_t ref, int size,
                   int kind) {
  bool waits = own(c, ref)->leases > 0 && c->held_of[size] >= HELD_MOST;
  return !waits && group_may_go(group_of(c, ref), kind);
}

/* Of the entries at a list's end, returns the one to go, or 0. One that may not
 * go is put first, so that others are looked at the next time. */
static uint32_t evict_pick(struct perigee_cache *c, int size, int kind) {
  const struct ends *l = &c->lists[size][kind];
  uint32_t best = 0, least = UINT32_MAX;
  uint32_t at = l->last;
  for (int i = 0; at && i < LOOKS; i++) {
    uint32_t ref = at;
    const struct own *e = own(c, ref);
    at = e->before;
    if (!may_go(c, ref, size, kind)) {
      entry_list(c, ref, true);
      continue;
    }
    uint32_t uses = c->o.lfu ? uses_of(c, e) : 0;
    if (uses < least) {
      least = uses;
      best = ref;
    }
    if (uses == 0)
      break;
  }
  return best;
}

bool evict_one(struct perigee_cache *c, int size, int kind) {
  uint32_t ref = evict_pick(c, size, kind);
  if (ref)
    evict_all(c, ref);
  return ref != 0;
}

/* Of those looked at, the one whose newest member was used the longest ago. */
static uint32_t group_oldest(struct perigee_cache *c, int kind) {
  enum { GROUP_LOOKS = 64 };
  uint32_t best = 0, oldest = UINT32_MAX;
  for (int i = 0; i < GROUP_LOOKS; i++) {
    const struct group *g = &c->groups[c->group_hand];
    c->group_hand = (c->group_hand + 1) % c->o.groups;
    if (!group_may_go(g, kind) || own(c, g->first)->used >= oldest)
      continue;
    oldest = own(c, g->first)->used;
    best = g->first;
  }
  return best;
}

bool evict_near(struct perigee_cache *c, uint32_t bucket) {
  uint32_t best = 0, oldest = UINT32_MAX;
  bool end = false;
  for (uint32_t place = 0; !end; place++) {
    uint32_t ref = directory_at(c, bucket, place, &end);
    const struct own *e = ref ? own(c, ref) : NULL;
    if (!e || !e->listed || e->used >= oldest ||
        !group_may_go(group_of(c, ref), SOFT))
      continue;
    oldest = e->used;
    best = ref;
  }
  if (best)
    evict_all(c, best);
  return best != 0;
}

bool evict_group(struct perigee_cache *c) {
  uint32_t ref = group_oldest(c, USUAL);
  if (!ref)
    ref = group_oldest(c, SOFT);
  if (ref)
    evict_all(c, ref);
  return ref != 0;
}

/* ---- What goes next: copies are not written out ------------------------ */

/* The cursors of the sizes that have entries left. */
struct cursors {
  uint32_t count, refs[SIZES];
};

static struct cursors cursors_of(const struct perigee_cache *c, int kind) {
  struct cursors all = {.count = 0};
  for (int i = 0; i < SIZES; i++)
    if (c->lists[i][kind].last)
      all.refs[all.count++] = c->lists[i][kind].last;
  return all;
}

/* Returns the entry that was used the longest ago, and moves on its cursor. */
static uint32_t cursors_next(const struct perigee_cache *c,
                             struct cursors *all) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < all->count; i++)
    if (own(c, all->refs[i])->used < own(c, all->refs[best])->used)
      best = i;
  uint32_t ref = all->refs[best];
  all->refs[best] = own(c, ref)->before;
  if (!all->refs[best])
    all->refs[best] = all->refs[--all->count];
  return ref;
}

void cold_fill(const struct perigee_cache *c, uint32_t ref,
               struct perigee_cache_cold *cold) {
  entry_place(c, ref, &cold->place);
  cold->left = entry_left(c, ref);
  cold->key_length = what_length(word(&record(c, ref)->what));
  key_copy(record(c, ref), (uint8_t *)cold->key);
}

static uint32_t coldest_of(struct perigee_cache *c, int kind,
                           struct perigee_cache_cold *cold, uint32_t most,
                           uint32_t *looks) {
  struct cursors all = cursors_of(c, kind);
  uint32_t n = 0;
  for (; n < most && all.count > 0 && *looks > 0; (*looks)--) {
    uint32_t ref = cursors_next(c, &all);
    if (!own(c, ref)->marked)
      cold_fill(c, ref, &cold[n++]);
  }
  return n;
}

uint32_t perigee_cache_coldest(struct perigee_cache *c,
                               struct perigee_cache_cold *cold, uint32_t most,
                               uint32_t looks) {
  uint32_t n = coldest_of(c, USUAL, cold, most, &looks);
  return n + coldest_of(c, SOFT, cold + n, most - n, &looks);
}

/* ---- Watermarks -------------------------------------------------------- */

/* Returns the size whose last entry was used the longest ago, or NONE. */
static int size_oldest(const struct perigee_cache *c, int kind) {
  int best = NONE;
  uint32_t oldest = UINT32_MAX;
  for (int i = 0; i < SIZES; i++) {
    uint32_t last = c->lists[i][kind].last;
    if (last && own(c, last)->used < oldest) {
      oldest = own(c, last)->used;
      best = i;
    }
  }
  return best;
}

bool evict_oldest(struct perigee_cache *c) {
  static const int order[] = {COPIES, USUAL, SOFT};
  for (int i = 0; i < KINDS; i++) {
    int size = size_oldest(c, order[i]);
    if (size != NONE && evict_one(c, size, order[i]))
      return true;
  }
  return false;
}

static bool is_above(const struct perigee_cache *c, uint8_t percent) {
  return c->n.used - c->held_bytes > c->o.quota / 100 * percent;
}

static void watermark_turn(struct perigee_cache *c, uint32_t *budget) {
  if (is_above(c, c->o.high))
    c->evicting = true;
  for (; c->evicting && *budget > 0; (*budget)--)
    if (!is_above(c, c->o.low) || !evict_oldest(c))
      c->evicting = false;
}

/* ---- Draining a slab --------------------------------------------------- */

static void drain_stop(struct perigee_cache *c) {
  space_stuck(c, c->drained - 1);
  c->drained = 0;
}

/* Has what is in a place go; false: it cannot. */
static bool drain_place(struct perigee_cache *c, uint32_t owner) {
  const struct own *e = own(c, owner);
  if (e->state == HELD)
    return true; /* it goes when its leases end */
  if (e->state != SEALED || !e->listed ||
      !group_may_go(group_of(c, owner), SOFT))
    return false;
  evict_all(c, owner);
  return true;
}

/* Returns whether anything is left to do now. */
static bool drain_step(struct perigee_cache *c, uint32_t *budget) {
  uint32_t number = c->drained - 1;
  while (*budget > 0 && c->drained) {
    const struct slab *s = &c->slabs[number];
    (*budget)--;
    if (c->drain_at == s->fresh) {
      c->drain_at = 0; /* leases are left */
      return false;
    }
    uint32_t owner = s->owners[c->drain_at++];
    if (!(owner & EMPTY) && !drain_place(c, owner))
      drain_stop(c);
  }
  return true;
}

static bool drain_wanted(struct perigee_cache *c) {
  if (c->starved != NONE && space_has(c, c->starved))
    c->starved = NONE;
  return c->starved != NONE || c->slab_bytes - c->empty_bytes > c->o.quota;
}

/* Has a slab to be emptied. If each has entries that wait for children, the
 * oldest entries go first, in the order of any eviction: so chains that nobody
 * uses go from their ends. Returns whether anything is left to do now. */
static bool drain_begin(struct perigee_cache *c, uint32_t *budget) {
  enum { LEAVES = 64 };
  c->drain_at = 0;
  c->drained = space_drain(c, c->starved);
  if (c->drained)
    return true;
  bool more = space_waits(c, c->starved);
  for (int i = 0; more && i<LEAVES && * budget> 0; i++, (*budget)--)
    more = evict_oldest(c);
  if (!more)
    c->starved = NONE;
  return more;
}

static bool drain_turn(struct perigee_cache *c, uint32_t *budget) {
  bool more = true;
  while (more && *budget > 0 && (c->drained || drain_wanted(c)))
    more = c->drained ? drain_step(c, budget) : drain_begin(c, budget);
  return more && *budget == 0;
}

/* ---- The turn ---------------------------------------------------------- */

int perigee_cache_turn(struct perigee_cache *c, int64_t now, uint32_t budget) {
  c->now = now;
  if (!c->head)
    return 0;
  leases_turn(c, now, &budget);
  wheel_turn(c, now, &budget);
  watermark_turn(c, &budget);
  bool more = drain_turn(c, &budget);
  return more || budget == 0;
}
