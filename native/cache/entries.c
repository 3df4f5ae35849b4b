/* SPDX-License-Identifier: Apache-2.0
 *
 * entries.c - the life of an entry. Its record is its identity; its place in a
 * slab is freed before it, if need be.
 *
 *   state      step      becomes
 *   none       reserve   reserved   in the table, but not seen
 *   reserved   seal      sealed
 *   reserved   husk      husk       aborted, but others are chained to it
 *   reserved   free      none       aborted
 *   sealed     hold      held       out of the table; it may be read still
 *   sealed     husk      husk       out of the table; its place is free
 *   sealed     free      none
 *   held       husk      husk       the last lease has ended
 *   held       free      none
 *   husk       free      none       the last entry chained to it has gone
 */
#include <stdlib.h>

#include "store.h"

enum { EVICTIONS = 16, LONGEST_TTL = 1 << 30 };
#define MOST_VERSION (UINT64_C(1) << 62)

#define TO(state) ((state) + 1)
const uint8_t entry_next[STATES][STEPS] = {
    [STATE_NONE] = {[STEP_RESERVE] = TO(RESERVED)},
    [RESERVED] = {[STEP_SEAL] = TO(SEALED),
                  [STEP_HUSK] = TO(HUSK),
                  [STEP_FREE] = TO(STATE_NONE)},
    [SEALED] = {[STEP_HOLD] = TO(HELD),
                [STEP_HUSK] = TO(HUSK),
                [STEP_FREE] = TO(STATE_NONE)},
    [HELD] = {[STEP_HUSK] = TO(HUSK), [STEP_FREE] = TO(STATE_NONE)},
    [HUSK] = {[STEP_FREE] = TO(STATE_NONE)},
};
uint64_t entry_taken[STATES][STEPS];

static void entry_step(struct own *e, enum step step) {
  uint8_t to = entry_next[e->state][step];
#ifdef PERIGEE_DEBUG
  if (!to)
    abort();
  entry_taken[e->state][step]++;
#endif
  e->state = (uint8_t)(to - 1) & 15;
}

static uint64_t entry_bytes(const struct perigee_cache *c,
                            const struct entry *r) {
  return size_bytes(class_of(c, where_length(word(&r->where))));
}

static struct slab *slab_of(const struct perigee_cache *c, uint32_t ref) {
  return &c->slabs[what_slab(word(&record(c, ref)->what))];
}

static void entry_fix(struct perigee_cache *c, uint32_t ref, int by) {
  slab_of(c, ref)->fixed += (uint32_t)by;
}

static void entry_moves(struct perigee_cache *c, uint32_t ref, int by) {
  slab_of(c, ref)->mobile += (uint32_t)by;
}

void entry_place(const struct perigee_cache *c, uint32_t ref,
                 struct perigee_cache_place *place) {
  const struct entry *r = record(c, ref);
  *place = place_of(r, word(&r->what));
}

/* ---- The lists of what can be evicted ---------------------------------- */

static struct ends *list_of(struct perigee_cache *c, uint32_t ref) {
  int pin = own(c, ref)->pin;
  int kind = pin == PERIGEE_CACHE_COPY   ? COPIES
             : pin == PERIGEE_CACHE_SOFT ? SOFT
                                         : USUAL;
  return &c->lists[class_of(c, where_length(word(&record(c, ref)->where)))]
                  [kind];
}

static void evictable_remove(struct perigee_cache *c, uint32_t ref) {
  struct own *e = own(c, ref);
  struct ends *l = list_of(c, ref);
  *(e->before ? &own(c, e->before)->after : &l->first) = e->after;
  *(e->after ? &own(c, e->after)->before : &l->last) = e->before;
  e->listed = 0;
  entry_moves(c, ref, -1);
}

static void evictable_add(struct perigee_cache *c, uint32_t ref, bool first) {
  struct own *e = own(c, ref);
  struct ends *l = list_of(c, ref);
  e->before = first ? 0 : l->last;
  e->after = first ? l->first : 0;
  *(e->before ? &own(c, e->before)->after : &l->first) = ref;
  *(e->after ? &own(c, e->after)->before : &l->last) = ref;
  e->listed = 1;
  entry_moves(c, ref, 1);
}

/* An entry that comes to a list later than it was used last goes to the end
 * that is nearer. */
static bool is_recent(struct perigee_cache *c, uint32_t ref) {
  const struct ends *l = list_of(c, ref);
  if (!l->first)
    return true;
  uint64_t both = (uint64_t)own(c, l->first)->used + own(c, l->last)->used;
  return 2 * (uint64_t)own(c, ref)->used >= both;
}

void entry_list(struct perigee_cache *c, uint32_t ref, bool first) {
  struct own *e = own(c, ref);
  const struct group *g = group_of(c, ref);
  bool should = e->state == SEALED && e->pin != PERIGEE_CACHE_HARD &&
                children(c, ref) == 0 && (!g || group_is_free(g));
  if (e->listed && should && first && !e->before)
    return;
  if (e->listed)
    evictable_remove(c, ref);
  if (should)
    evictable_add(c, ref, first || is_recent(c, ref));
}

/* A use counts with a chance of one in 2^(uses / 8), so that a byte is
 * enough. */
void entry_use(struct perigee_cache *c, uint32_t ref) {
  struct own *e = own(c, ref);
  uint64_t dice = c->n.hits * UINT64_C(0x9e3779b97f4a7c15);
  uint32_t tick = tick_of(c, c->now);
  bool again = e->used == tick && e->listed; /* near the front already */
  e->used = tick;
  if (e->uses < UINT8_MAX && dice >> (64 - e->uses / 8 - 1) <= 1)
    e->uses++;
  if (!again)
    entry_list(c, ref, true);
}

/* ---- Reserving --------------------------------------------------------- */

static int put_check(struct perigee_cache *c, const struct sought *s,
                     const struct perigee_cache_put *put, int64_t now) {
  const struct client *k = client_of(c, put->client);
  bool copy = put->pin == PERIGEE_CACHE_COPY;
  if (!k || put->pin > PERIGEE_CACHE_COPY ||
      (copy && (put->ttl <= 0 || put->group || put->parent)))
    return PERIGEE_INVALID;
  if (put->length > PERIGEE_CACHE_LARGEST ||
      size_bytes(size_of(put->length)) > c->o.quota)
    return PERIGEE_TOO_LARGE;
  if (!put->again && directory_find(c, s, false))
    return PERIGEE_CACHE_BUSY;
  if (put->if_absent &&
      (entry_find(c, s->words, s->length, now) ||
       (c->below && entry_find(c->below, s->words, s->length, now))))
    return PERIGEE_CACHE_EXISTS;
  if (k->reserved >= c->o.reserved_each)
    return PERIGEE_AGAIN;
  if (put->pin == PERIGEE_CACHE_HARD &&
      c->n.hard + size_bytes(class_of(c, put->length)) > c->o.hard)
    return PERIGEE_NO_MEMORY;
  return PERIGEE_OK;
}

static int parent_find(struct perigee_cache *c,
                       const struct perigee_cache_put *put, uint32_t *parent) {
  struct sought s;
  *parent = 0;
  if (!put->parent)
    return PERIGEE_OK;
  if (!sought_key(&s, c->o.seed, put->parent, put->parent_length))
    return PERIGEE_INVALID;
  *parent = directory_find(c, &s, true);
  if (!*parent)
    *parent = directory_find(c, &s, false);
  return *parent ? PERIGEE_OK : PERIGEE_NOT_FOUND;
}

/* Returns the ref of a record, or 0. */
static uint32_t record_new(struct perigee_cache *c, const struct sought *s,
                           const struct perigee_cache_put *put) {
  uint32_t ref = record_take(c, RECORD + s->count * 8);
  if (!ref)
    return 0;
  struct entry *r = record(c, ref);
  uint64_t what = what_pinned(what_of(s->hash, s->length), put->pin);
  set_word(&r->what, what | (put->ttl > 0 ? MORTAL_BIT : 0));
  set_word(&r->where, put->length);
  for (uint32_t i = 0; i < s->count; i++)
    set_word(&r->key[i], s->words[i]);
  *own(c, ref) = (struct own){
      .used = put->client, .state = STATE_NONE, .pin = put->pin & 3};
  return ref;
}

static void place_set(struct perigee_cache *c, uint32_t ref, uint32_t slab,
                      uint32_t place, uint64_t length) {
  struct entry *r = record(c, ref);
  set_word(&r->what, what_at(word(&r->what), slab_index(slab)));
  set_word(&r->where, where_of(slab, place, length));
}

/* The same. Of a directory that cannot grow others go. */
static uint32_t record_have(struct perigee_cache *c, const struct sought *s,
                            const struct perigee_cache_put *put) {
  uint32_t ref = record_new(c, s, put);
  for (int i = 0; !ref && i < EVICTIONS && records_complete(c); i++) {
    if (!evict_oldest(c))
      break;
    ref = record_new(c, s, put);
  }
  return ref;
}

static bool has_evictable(const struct perigee_cache *c, int size) {
  const struct ends *l = c->lists[size];
  return l[COPIES].last || l[USUAL].last || l[SOFT].last;
}

/* Has a place for a value, for which others of its size may have to go. Some
 * that were looked at may not go; then others are looked at. */
static int place_take(struct perigee_cache *c, uint32_t ref, uint64_t length) {
  int size = class_of(c, length), status = PERIGEE_NO_MEMORY;
  uint32_t slab = 0, place = 0;
  for (int i = 0; i < EVICTIONS; i++) {
    status = space_take(c, size, ref, &slab, &place);
    if (status != PERIGEE_NO_MEMORY ||
        !(evict_one(c, size, COPIES) || evict_one(c, size, USUAL) ||
          evict_one(c, size, SOFT) || has_evictable(c, size)))
      break;
  }
  if (status == PERIGEE_NO_MEMORY)
    c->starved = size;
  if (status < 0)
    return status;
  place_set(c, ref, slab, place, length);
  return PERIGEE_OK;
}

static int place_restore_of(struct perigee_cache *c, uint32_t ref,
                            const struct perigee_cache_place *place) {
  int status = space_restore(c, class_of(c, place->length), ref, place);
  if (status == 0)
    place_set(c, ref, place->slab, (uint32_t)(place->offset / PLACE_UNIT),
              place->length);
  return status;
}

static void reservation_add(struct perigee_cache *c, uint32_t ref) {
  struct own *e = own(c, ref);
  struct client *k = client_of(c, e->used);
  e->before = 0;
  e->after = k->reservation;
  if (e->after)
    own(c, e->after)->before = ref;
  k->reservation = ref;
  k->reserved++;
  c->n.reserved++;
  entry_fix(c, ref, 1);
}

static void reservation_end(struct perigee_cache *c, uint32_t ref) {
  struct own *e = own(c, ref);
  struct client *k = client_of(c, e->used);
  *(e->before ? &own(c, e->before)->after : &k->reservation) = e->after;
  if (e->after)
    own(c, e->after)->before = e->before;
  k->reserved--;
  c->n.reserved--;
  entry_fix(c, ref, -1);
}

static void record_end(struct perigee_cache *c, uint32_t ref) {
  ties_end(c, ref);
  record_give(c, ref);
}

static void place_give(struct perigee_cache *c, const struct entry *r) {
  space_give(c, what_slab(word(&r->what)), where_place(word(&r->where)));
}

/* Hard pins count from the reservation on. */
static void pin_count(struct perigee_cache *c, uint32_t ref, int by) {
  uint8_t pin = own(c, ref)->pin;
  ties_pinned(c, ref, pin, by);
  if (pin != PERIGEE_CACHE_HARD)
    return;
  c->n.hard += (uint64_t)(by * (int64_t)entry_bytes(c, record(c, ref)));
  entry_fix(c, ref, by);
}

/* If its chain has no room, and the directory none for one more bucket, another
 * entry of the chain goes. */
static int chain_enter(struct perigee_cache *c, uint32_t ref,
                       const struct sought *s) {
  int status = directory_add(c, ref, s->tag);
  if (status == PERIGEE_NO_MEMORY && records_complete(c) &&
      evict_near(c, bucket_of(directory_buckets(c), s->hash)))
    status = directory_add(c, ref, s->tag);
  return status;
}

/* Its parent is looked up when nothing goes for its record or its group any
 * more. */
static int ties_make(struct perigee_cache *c, uint32_t ref,
                     const struct perigee_cache_put *put) {
  uint32_t parent = 0;
  int status = ties_group(c, ref, put->group, put->parent || put->ttl > 0);
  if (status == 0)
    status = parent_find(c, put, &parent);
  return parent ? ties_parent(c, ref, parent) : status;
}

/* place: where it was before, or NULL. */
static int reserve(struct perigee_cache *c, const struct sought *s,
                   const struct perigee_cache_put *put,
                   const struct perigee_cache_place *place, uint32_t *ref) {
  *ref = record_have(c, s, put);
  if (!*ref)
    return record_status(c);
  int status = ties_make(c, *ref, put);
  if (status == 0)
    status = place ? place_restore_of(c, *ref, place)
                   : place_take(c, *ref, put->length);
  if (status == 0) {
    status = chain_enter(c, *ref, s);
    if (status < 0)
      place_give(c, record(c, *ref));
  }
  if (status < 0) {
    ties_cut(c, *ref);
    record_end(c, *ref);
  }
  return status;
}

/* Until its seal an entry's version is the reservation's number, and `expires`
 * the ticks that it will live. */
int perigee_cache_reserve(struct perigee_cache *c, const char *key,
                          uint32_t key_length,
                          const struct perigee_cache_put *put, int64_t now,
                          struct perigee_cache_place *place) {
  struct sought s;
  uint32_t parent, ref;
  c->now = now;
  if (!c->head)
    return PERIGEE_CACHE_WANTS;
  if (!sought_key(&s, c->o.seed, key, key_length))
    return PERIGEE_INVALID;
  int status = put_check(c, &s, put, now);
  if (status == 0)
    status = parent_find(c, put, &parent);
  if (status == 0)
    status = reserve(c, &s, put, NULL, &ref);
  if (status < 0)
    return status;
  struct entry *r = record(c, ref);
  entry_step(own(c, ref), STEP_RESERVE);
  reservation_add(c, ref);
  pin_count(c, ref, 1);
  if (put->ttl > 0)
    extra(c, ref)->expires = ticks_of(put->ttl, LONGEST_TTL) + 1;
  uint32_t number = (uint32_t)++c->reservations;
  set_word(&r->version, number);
  set_word(&r->checksum, 0);
  entry_place(c, ref, place);
  place->version = 0;
  place->entry = (uint64_t)number << 32 | ref;
  return PERIGEE_OK;
}

/* ---- Sealing, aborting ------------------------------------------------- */

/* Returns the ref of a reservation, or 0. */
static uint32_t reserved_of(const struct perigee_cache *c, uint64_t entry) {
  uint32_t ref = (uint32_t)entry;
  if (!record_may_be(c, ref, RECORD / 8 + 1))
    return 0;
  return own(c, ref)->state == RESERVED &&
                 word(&record(c, ref)->version) == entry >> 32
             ? ref
             : 0;
}

static void record_key(const struct perigee_cache *c, const struct entry *r,
                       struct sought *s) {
  uint8_t key[PERIGEE_CACHE_KEY];
  key_copy(r, key);
  sought_key(s, c->o.seed, key, what_length(word(&r->what)));
}

/* A removed entry has leases, or has lost the last one. */
static void hold_count(struct perigee_cache *c, const struct entry *r, int by) {
  c->n.held += (uint64_t)by;
  c->held_of[class_of(c, where_length(word(&r->where)))] += (uint32_t)by;
  c->held_bytes += (uint64_t)(by * (int64_t)entry_bytes(c, r));
}

/* What has gone from below is not elsewhere any more. */
static void above_unmark(struct perigee_cache *above, const struct entry *r) {
  struct sought s;
  record_key(above, r, &s);
  uint32_t ref = directory_find(above, &s, true);
  if (ref)
    own(above, ref)->marked = 0;
}

/* Takes apart what a removed entry was part of. */
static void entry_out(struct perigee_cache *c, uint32_t ref, int why) {
  const struct entry *r = record(c, ref);
  struct own *e = own(c, ref);
  pin_count(c, ref, -1);
  if (e->state == RESERVED) {
    reservation_end(c, ref);
  } else {
    if (e->listed)
      evictable_remove(c, ref);
    if (e->wheeled)
      wheel_remove(c, ref);
    c->n.entries--;
    c->n.copies -= e->pin == PERIGEE_CACHE_COPY;
    c->n.values -= where_length(word(&r->where));
    event_note(c, ref, why);
    if (c->changed)
      c->changed(c->file, CHANGE_GONE, ref);
    if (c->above)
      above_unmark(c->above, r);
  }
  ties_cut(c, ref);
  if (e->leases) {
    entry_step(e, STEP_HOLD);
    hold_count(c, r, 1);
    entry_moves(c, ref, 1);
  } else {
    place_give(c, r);
    entry_step(e, children(c, ref) ? STEP_HUSK : STEP_FREE);
    if (e->state == STATE_NONE)
      record_end(c, ref);
  }
}

void entry_settle(struct perigee_cache *c, uint32_t ref) {
  const struct entry *r = record(c, ref);
  struct own *e = own(c, ref);
  if (e->state == HELD && e->leases == 0) {
    hold_count(c, r, -1);
    entry_moves(c, ref, -1);
    place_give(c, r);
    entry_step(e, children(c, ref) ? STEP_HUSK : STEP_FREE);
  } else if (e->state == HUSK && children(c, ref) == 0) {
    entry_step(e, STEP_FREE);
  } else {
    return;
  }
  if (e->state == STATE_NONE)
    record_end(c, ref);
}

void entry_remove(struct perigee_cache *c, uint32_t ref, int why) {
  directory_remove(c, ref);
  entry_out(c, ref, why);
}

/* Has an entry be seen, in place of `old` (or 0). */
static void entry_show(struct perigee_cache *c, uint32_t ref, uint32_t old,
                       uint64_t version, uint64_t checksum) {
  struct entry *r = record(c, ref);
  struct own *e = own(c, ref);
  if (c->n.version < version)
    c->n.version = version;
  set_word(&r->version, version);
  set_word(&r->checksum, checksum);
  directory_show(c, ref, old);
  if (old)
    entry_out(c, old, PERIGEE_CACHE_REPLACED);
  entry_step(e, STEP_SEAL);
  e->used = tick_of(c, c->now);
  ties_sealed(c, ref);
  struct extra *x = extra(c, ref);
  if (x && x->expires) {
    uint32_t left = UINT32_MAX - e->used; /* of the store's ticks */
    x->expires = e->used + (x->expires < left ? x->expires : left);
    wheel_add(c, ref);
  }
  entry_list(c, ref, true);
  c->n.entries++;
  c->n.copies += e->pin == PERIGEE_CACHE_COPY;
  c->n.sealed++;
  c->n.values += where_length(word(&r->where));
  event_note(c, ref, PERIGEE_CACHE_SEALED);
}

int64_t entry_seal(struct perigee_cache *c, uint64_t entry, uint64_t checksum,
                   uint64_t version, int64_t now) {
  struct sought s;
  uint32_t ref = reserved_of(c, entry);
  c->now = now;
  if (!ref)
    return PERIGEE_STALE;
  record_key(c, record(c, ref), &s);
  reservation_end(c, ref);
  entry_show(c, ref, directory_find(c, &s, true), version, checksum);
  if (c->changed)
    c->changed(c->file, CHANGE_SHOWN, ref);
  return (int64_t)version;
}

int64_t perigee_cache_seal(struct perigee_cache *c, uint64_t entry,
                           uint64_t checksum, int64_t now) {
  return entry_seal(c, entry, checksum, c->n.version + 1, now);
}

int perigee_cache_abort(struct perigee_cache *c, uint64_t entry) {
  uint32_t ref = reserved_of(c, entry);
  if (!ref)
    return PERIGEE_STALE;
  entry_remove(c, ref, 0);
  return PERIGEE_OK;
}

int64_t perigee_cache_seal_again(struct perigee_cache *c, uint64_t entry,
                                 uint64_t checksum, uint64_t version,
                                 int64_t now) {
  if (version == 0 || version > MOST_VERSION)
    return PERIGEE_INVALID;
  return entry_seal(c, entry, checksum, version, now);
}

/* ---- Entries that were there before ------------------------------------ */

void perigee_cache_versions(struct perigee_cache *c, uint64_t above) {
  if (c->n.version < above && above <= MOST_VERSION)
    c->n.version = above;
}

static int restore_check(struct perigee_cache *c, const struct sought *s,
                         const struct perigee_cache_place *place,
                         uint32_t *old) {
  if (place->version == 0 || place->version > MOST_VERSION)
    return PERIGEE_INVALID;
  if (place->length > PERIGEE_CACHE_LARGEST)
    return PERIGEE_RANGE;
  if (directory_find(c, s, false))
    return PERIGEE_CACHE_BUSY;
  *old = directory_find(c, s, true);
  return *old && word(&record(c, *old)->version) >= place->version
             ? PERIGEE_CACHE_EXISTS
             : PERIGEE_OK;
}

int perigee_cache_restore(struct perigee_cache *c, const char *key,
                          uint32_t key_length,
                          const struct perigee_cache_place *place, int64_t ttl,
                          int64_t now) {
  struct perigee_cache_put put = {.length = place->length, .ttl = ttl};
  struct sought s;
  uint32_t ref, old;
  c->now = now;
  if (!c->head)
    return PERIGEE_CACHE_WANTS;
  if (!sought_key(&s, c->o.seed, key, key_length) || ttl < 0)
    return PERIGEE_INVALID;
  int status = restore_check(c, &s, place, &old);
  if (status == 0)
    status = reserve(c, &s, &put, place, &ref);
  if (status < 0)
    return status;
  entry_step(own(c, ref), STEP_RESERVE);
  if (ttl > 0)
    extra(c, ref)->expires = ticks_of(ttl, LONGEST_TTL) + 1;
  entry_show(c, ref, old, place->version, place->checksum);
  return PERIGEE_OK;
}

/* ---- Sealed entries ---------------------------------------------------- */

uint32_t entry_find(struct perigee_cache *c, const void *key, uint64_t length,
                    int64_t now) {
  struct sought s;
  if (!c->head || !sought_key(&s, c->o.seed, key, length))
    return 0;
  uint32_t ref = directory_find(c, &s, true);
  const struct extra *x = ref ? extra(c, ref) : NULL;
  if (x && x->expires && x->expires <= tick_of(c, now)) {
    entry_remove(c, ref, PERIGEE_CACHE_EXPIRED);
    return 0;
  }
  return ref;
}

int perigee_cache_delete(struct perigee_cache *c, const char *key,
                         uint32_t key_length) {
  uint32_t ref = entry_find(c, key, key_length, c->now);
  if (!ref)
    return PERIGEE_NOT_FOUND;
  entry_remove(c, ref, PERIGEE_CACHE_DELETED);
  return PERIGEE_OK;
}

int perigee_cache_touch(struct perigee_cache *c, const char *key,
                        uint32_t key_length, int64_t now) {
  c->now = now;
  uint32_t ref = entry_find(c, key, key_length, now);
  if (!ref)
    return PERIGEE_NOT_FOUND;
  entry_use(c, ref);
  return PERIGEE_OK;
}

int perigee_cache_pin(struct perigee_cache *c, const char *key,
                      uint32_t key_length, int pin) {
  uint32_t ref = entry_find(c, key, key_length, c->now);
  if (pin < 0 || pin > PERIGEE_CACHE_HARD)
    return PERIGEE_INVALID;
  if (!ref || own(c, ref)->pin == PERIGEE_CACHE_COPY)
    return PERIGEE_NOT_FOUND;
  struct own *e = own(c, ref);
  if (pin == e->pin)
    return PERIGEE_OK;
  if (pin == PERIGEE_CACHE_HARD &&
      c->n.hard + entry_bytes(c, record(c, ref)) > c->o.hard)
    return PERIGEE_NO_MEMORY;
  pin_count(c, ref, -1);
  if (e->listed)
    evictable_remove(c, ref);
  e->pin = (uint8_t)pin & 3;
  set_word(&record(c, ref)->what,
           what_pinned(word(&record(c, ref)->what), (uint32_t)pin));
  pin_count(c, ref, 1);
  entry_list(c, ref, true);
  return PERIGEE_OK;
}

int perigee_cache_stat(struct perigee_cache *c, const char *key,
                       uint32_t key_length, int64_t now,
                       struct perigee_cache_place *place) {
  c->now = now;
  uint32_t ref = entry_find(c, key, key_length, now);
  if (!ref)
    return PERIGEE_NOT_FOUND;
  entry_place(c, ref, place);
  return PERIGEE_OK;
}

int perigee_cache_mark(struct perigee_cache *c, const char *key,
                       uint32_t key_length, uint64_t version, int marked) {
  uint32_t ref = entry_find(c, key, key_length, c->now);
  if (!ref)
    return PERIGEE_NOT_FOUND;
  if (word(&record(c, ref)->version) != version)
    return PERIGEE_STALE;
  own(c, ref)->marked = marked != 0;
  return PERIGEE_OK;
}

int64_t entry_left(const struct perigee_cache *c, uint32_t ref) {
  const struct extra *x = extra(c, ref);
  if (!x || !x->expires)
    return 0;
  int64_t left = (int64_t)x->expires - tick_of(c, c->now);
  return (left > 0 ? left : 1) << TICK_SHIFT;
}

int64_t perigee_cache_left(struct perigee_cache *c, const char *key,
                           uint32_t key_length, int64_t now) {
  c->now = now;
  uint32_t ref = entry_find(c, key, key_length, now);
  return ref ? entry_left(c, ref) : PERIGEE_NOT_FOUND;
}
