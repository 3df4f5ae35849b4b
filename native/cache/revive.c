/* SPDX-License-Identifier: Apache-2.0
 *
 * revive.c - entries of a store whose process has ended, at whatever it did.
 * What its directory leads to was sealed, and its bytes were there before that;
 * what was taken out of the directory is not led to. An entry that was moving
 * may be found twice, and a key that was being replaced with two values, of
 * which the later version stays.
 */
#include <stdlib.h>

#include "cache/view.h"
#include "store.h"

/* An entry of the old directory: where it lay, and its record. */
struct revived {
  uint32_t slab, place, ref;
};

struct revival {
  struct perigee_cache *c;
  const struct perigee_cache_view *view;
  const uint32_t *from, *to;
  struct revived *list;
  uint64_t count, room;
  uint32_t slabs;
};

/* ---- Finding ----------------------------------------------------------- */

/* Returns which of the named slabs a number is, or the count of them. */
static uint32_t revival_slab(const struct revival *r, uint32_t number) {
  uint32_t i = 0;
  while (i < r->slabs && r->from[i] != number)
    i++;
  return i;
}

static bool revival_add(struct revival *r, struct revived one) {
  if (r->count == r->room) {
    uint64_t room = r->room ? 2 * r->room : 1024;
    void *list = realloc(r->list, room * sizeof *r->list);
    if (!list)
      return false;
    r->list = list;
    r->room = room;
  }
  r->list[r->count++] = one;
  return true;
}

/* Returns false only without memory. */
static bool revival_look(struct revival *r, uint32_t ref) {
  const struct entry *e = ref ? view_thing(r->view, ref, RECORD) : NULL;
  uint64_t what = e ? word(&e->what) : 0;
  uint32_t length = what_length(what);
  if (!(what & SEEN_BIT) || what & MORTAL_BIT || length == 0 ||
      length > PERIGEE_CACHE_KEY ||
      !view_thing(r->view, ref, RECORD + (length + UINT64_C(7)) / 8 * 8))
    return true;
  uint64_t where = word(&e->where);
  uint32_t slab = revival_slab(r, slab_number(what, where));
  return slab == r->slabs ||
         revival_add(r, (struct revived){slab, where_place(where), ref});
}

static bool revival_chain(struct revival *r, const struct bucket *b) {
  for (int n = 0; b && n < CHAIN; n++) {
    for (int i = 0; i < BUCKET_SLOTS; i++)
      if (!revival_look(
              r, atomic_load_explicit(&b->refs[i], memory_order_acquire)))
        return false;
    uint32_t next = atomic_load_explicit(&b->next, memory_order_acquire);
    b = next ? view_thing(r->view, next, BUCKET) : NULL;
  }
  return true;
}

static bool revival_find(struct revival *r) {
  uint64_t buckets = word(&view_head(r->view)->buckets);
  for (uint64_t i = 0; i < buckets && i < MOST_BUCKETS; i++)
    if (!revival_chain(r, view_bucket(r->view, (uint32_t)i)))
      return false;
  return true;
}

/* ---- Putting back ------------------------------------------------------ */

static int revived_order(const void *a, const void *b) {
  const struct revived *one = a, *other = b;
  if (one->slab != other->slab)
    return one->slab < other->slab ? -1 : 1;
  return (one->place > other->place) - (one->place < other->place);
}

static bool revived_restore(const struct revival *r, const struct revived *one,
                            int64_t now) {
  const struct entry *e = view_thing(r->view, one->ref, RECORD);
  char key[PERIGEE_CACHE_KEY];
  uint64_t what = word(&e->what);
  struct perigee_cache_place place = place_of(e, what);
  place.slab = r->to[one->slab];
  key_copy(e, (uint8_t *)key);
  if (perigee_cache_restore(r->c, key, what_length(what), &place, 0, now) < 0)
    return false;
  int pin = (int)((what & PIN_BITS) >> PIN_SHIFT);
  if (pin)
    perigee_cache_pin(r->c, key, what_length(what), pin);
  return true;
}

int64_t perigee_cache_revive(struct perigee_cache *c,
                             const struct perigee_cache_view *view,
                             const uint32_t *from, const uint32_t *to,
                             uint32_t count, int64_t now) {
  struct revival r = {
      .c = c, .view = view, .from = from, .to = to, .slabs = count};
  int64_t came = PERIGEE_NO_MEMORY;
  if (!view->pieces[0])
    return PERIGEE_INVALID;
  if (!revival_find(&r))
    goto out;
  came = 0;
  if (r.count > 0)
    qsort(r.list, r.count, sizeof *r.list, revived_order);
  for (uint64_t i = 0; i < r.count; i++)
    came += revived_restore(&r, &r.list[i], now);
out:
  free(r.list);
  return came;
}
