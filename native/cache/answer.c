/* SPDX-License-Identifier: Apache-2.0
 *
 * answer.c - requests of clients, as cache.h lays them out. A request is bytes
 * of a stranger within the scope: each length is checked before it is followed.
 * They may lie where the stranger writes meanwhile, so each is read once: a key
 * is copied, and a value is summed where it was copied to.
 * An item is answered only if there is room for its longest answer, so no item
 * has an effect that its client is not told of. A request that turns out to be
 * none in its midst is refused; what its first items did is done.
 */
#include <endian.h>

#include "store.h"

enum {
  VERSION = 1,
  HEAD = 8,
  PLACE = 56,
  EVENT = 27,
  LIST_BUCKETS = 1024,
  PLACES = BUCKET_SLOTS * CHAIN,
  KIB = 1024
};

struct asked {
  struct perigee_cache *c;
  const uint8_t *in, *in_end;
  uint8_t *out, *out_end;
  int64_t now;
  uint32_t client, count, done;
  uint16_t flags;
  char (*keys)[PERIGEE_CACHE_KEY]; /* the item's, and its parent's or prefix */
};

/* ---- Numbers ----------------------------------------------------------- */

static uint64_t room_of(const struct asked *a) {
  return (uint64_t)(a->out_end - a->out);
}

static bool asked_number(struct asked *a, uint64_t *value, unsigned bytes) {
  *value = 0;
  if ((uint64_t)(a->in_end - a->in) < bytes)
    return false;
  memcpy(value, a->in, bytes);
  a->in += bytes;
  *value = le64toh(*value);
  return true;
}

static void put_number(struct asked *a, uint64_t value, unsigned bytes) {
  value = htole64(value);
  memcpy(a->out, &value, bytes);
  a->out += bytes;
}

static void put_bytes(struct asked *a, const void *bytes, uint64_t length) {
  if (length)
    memcpy(a->out, bytes, length);
  a->out += length;
}

static void put_status(struct asked *a, int status) {
  put_number(a, (uint32_t)status, 4);
}

/* empty: a parent's, or a prefix, for which no bytes will do. */
static bool take_key(struct asked *a, const char **key, uint32_t *length,
                     bool empty) {
  uint64_t n;
  char *own = a->keys[empty];
  if (!asked_number(a, &n, 2) || n > PERIGEE_CACHE_KEY || (n == 0 && !empty) ||
      n > (uint64_t)(a->in_end - a->in))
    return false;
  memcpy(own, a->in, n);
  *key = own;
  *length = (uint32_t)n;
  a->in += n;
  return true;
}

/* Is added to numbers of leases of what is below. */
static const uint64_t LEASE_BELOW = UINT64_C(1) << 31;

/* c: the store that it is of. lease: its ns. */
static void put_place(struct asked *a, const struct perigee_cache *c,
                      const struct perigee_cache_place *p, int64_t lease) {
  bool below = c != a->c;
  put_number(a, p->slab + (below ? PERIGEE_CACHE_SPILLED : 0), 4);
  put_number(a, below, 4);
  put_number(a, p->offset, 8);
  put_number(a, p->length, 8);
  put_number(a, p->version, 8);
  put_number(a, p->checksum, 8);
  put_number(a, p->lease | (p->lease && below ? LEASE_BELOW : 0), 8);
  put_number(a, (uint64_t)lease, 8);
}

/* A lease is told to be no longer than its entry lives. */
static int64_t lease_told(const struct asked *a, struct perigee_cache *c,
                          const char *key, uint32_t length) {
  int64_t lease = c->o.lease, left = 0;
  if (c->wheeled > 0)
    left = perigee_cache_left(c, key, length, a->now);
  return left > 0 && left < lease ? left : lease;
}

/* ---- Items: true, false: there is no room; or a status ----------------- */

static bool is_below(const struct asked *a, const char *key, uint32_t length) {
  struct perigee_cache *below = a->c->below;
  return below && entry_find(below, key, length, a->now);
}

/* Returns the store in which a client reads or uses a key: the one below, if
 * clients read there and it alone has the key. */
static struct perigee_cache *store_with(const struct asked *a, const char *key,
                                        uint32_t length) {
  struct perigee_cache *c = a->c;
  return c->spills && !entry_find(c, key, length, a->now) &&
                 is_below(a, key, length)
             ? c->below
             : c;
}

/* The client's number in one of the stores. */
static uint32_t client_in(const struct asked *a,
                          const struct perigee_cache *c) {
  return c == a->c ? a->client : a->c->clients[a->client].below;
}

static int answer_has(struct asked *a) {
  const char *key;
  uint32_t length;
  if (room_of(a) < 1)
    return 0;
  if (!take_key(a, &key, &length, false))
    return PERIGEE_PROTOCOL;
  put_number(
      a, entry_find(a->c, key, length, a->now) || is_below(a, key, length), 1);
  return 1;
}

/* The entries of a chain that is asked for are used. */
static int answer_match(struct asked *a) {
  const char *key;
  uint32_t length;
  if (!take_key(a, &key, &length, false))
    return PERIGEE_PROTOCOL;
  struct perigee_cache *c = store_with(a, key, length);
  uint32_t ref = entry_find(c, key, length, a->now);
  if (ref)
    entry_use(c, ref);
  return ref != 0 || is_below(a, key, length);
}

static bool located_fits(const struct asked *a, uint64_t bytes) {
  return room_of(a) >= 4 + PLACE + 4 + bytes;
}

/* Returns the ref of an entry, with its place, whose bytes are short enough to
 * be sent along, or 0. Those of the first item are not if there is no room: its
 * client would ask again for ever. */
static uint32_t small_value(const struct asked *a, struct perigee_cache *c,
                            const char *key, uint32_t length,
                            struct perigee_cache_place *place) {
  uint32_t ref = a->flags ? entry_find(c, key, length, a->now) : 0;
  if (!ref)
    return 0;
  entry_place(c, ref, place);
  bool small = place->length <= (uint64_t)a->flags * KIB &&
               (a->done > 0 || located_fits(a, place->length));
  return small && c->slabs[slab_index(place->slab)].pointer ? ref : 0;
}

static const uint8_t *small_bytes(struct perigee_cache *c, uint32_t ref,
                                  const struct perigee_cache_place *place) {
  c->n.hits++;
  entry_use(c, ref);
  return c->slabs[slab_index(place->slab)].pointer + place->offset;
}

static int answer_locate(struct asked *a) {
  const uint8_t *from = a->in;
  struct perigee_cache_place place;
  const char *key;
  uint32_t length;
  if (!take_key(a, &key, &length, false))
    return PERIGEE_PROTOCOL;
  struct perigee_cache *c = store_with(a, key, length);
  uint32_t small = small_value(a, c, key, length, &place);
  if (!located_fits(a, small ? place.length : 0)) {
    a->in = from;
    return 0;
  }
  int status = small ? PERIGEE_OK
                     : perigee_cache_locate(c, client_in(a, c), key, length,
                                            a->now, &place);
  put_status(a, status);
  if (status < 0)
    return 1;
  if (place.lease && c != a->c)
    heat_note(a->c, key, length, a->now);
  put_place(a, c, &place, place.lease ? lease_told(a, c, key, length) : 0);
  put_number(a, small ? place.length : 0, 4);
  if (small)
    put_bytes(a, small_bytes(c, small, &place), place.length);
  return 1;
}

static int answer_release(struct asked *a) {
  uint64_t lease;
  if (room_of(a) < 4)
    return 0;
  if (!asked_number(a, &lease, 8))
    return PERIGEE_PROTOCOL;
  bool below = a->c->spills && lease & LEASE_BELOW;
  struct perigee_cache *c = below ? a->c->below : a->c;
  lease = below ? lease & ~LEASE_BELOW : lease;
  put_status(a, perigee_cache_release(c, client_in(a, c), lease));
  return 1;
}

/* Takes a key, if there is room for so long an answer: 1, 0 (no room), or a
 * status. */
static int asked_key(struct asked *a, uint64_t answer, const char **key,
                     uint32_t *length) {
  if (room_of(a) < answer)
    return 0;
  return take_key(a, key, length, false) ? 1 : PERIGEE_PROTOCOL;
}

static int answer_delete(struct asked *a) {
  const char *key;
  uint32_t length;
  int status = asked_key(a, 4, &key, &length);
  if (status == 1) {
    int deleted = perigee_cache_delete(a->c, key, length);
    bool below = deleted == PERIGEE_NOT_FOUND && is_below(a, key, length);
    put_status(a, below ? PERIGEE_OK : deleted);
  }
  return status;
}

static int answer_touch(struct asked *a) {
  const char *key;
  uint32_t length;
  int status = asked_key(a, 4, &key, &length);
  if (status == 1)
    put_status(a, perigee_cache_touch(store_with(a, key, length), key, length,
                                      a->now));
  return status;
}

/* What was pinned below and has come back up is pinned above from now on: else
 * nobody could take the pin below away. */
static int pin(const struct asked *a, const char *key, uint32_t length) {
  struct perigee_cache *c = store_with(a, key, length);
  int status = perigee_cache_pin(c, key, length, a->flags);
  if (status == PERIGEE_OK && a->c->spills && c == a->c)
    perigee_cache_pin(c->below, key, length, PERIGEE_CACHE_UNPINNED);
  return status;
}

static int answer_pin(struct asked *a) {
  const char *key;
  uint32_t length;
  int status = asked_key(a, 4, &key, &length);
  if (status == 1)
    put_status(a, pin(a, key, length));
  return status;
}

static int answer_stat(struct asked *a) {
  struct perigee_cache_place place;
  const char *key;
  uint32_t length;
  int asked = asked_key(a, 4 + PLACE, &key, &length);
  if (asked != 1)
    return asked;
  struct perigee_cache *c = a->c;
  int status = perigee_cache_stat(c, key, length, a->now, &place);
  if (status == PERIGEE_NOT_FOUND && c->below) {
    c = c->below;
    status = perigee_cache_stat(c, key, length, a->now, &place);
  }
  put_status(a, status);
  if (status == 0)
    put_place(a, c, &place, 0);
  return 1;
}

/* ---- Values that come along -------------------------------------------- */

/* What a PUT asks for. */
struct asked_put {
  struct perigee_cache_put put;
  const char *key;
  const uint8_t *bytes;
  uint64_t checksum;
  uint32_t key_length;
};

static bool take_put(struct asked *a, struct asked_put *p) {
  uint64_t group, ttl, pin, if_absent, length;
  if (!take_key(a, &p->key, &p->key_length, false) ||
      !asked_number(a, &group, 8) || !asked_number(a, &ttl, 8) ||
      !asked_number(a, &pin, 1) || !asked_number(a, &if_absent, 1) ||
      !take_key(a, &p->put.parent, &p->put.parent_length, true) ||
      !asked_number(a, &p->checksum, 8) || !asked_number(a, &length, 4) ||
      length > (uint64_t)(a->in_end - a->in))
    return false;
  p->put.length = length;
  p->put.group = group;
  p->put.ttl = (int64_t)ttl;
  p->put.client = a->client;
  p->put.pin = (uint8_t)pin;
  p->put.if_absent = if_absent != 0;
  if (p->put.parent_length == 0)
    p->put.parent = NULL;
  p->bytes = a->in;
  a->in += length;
  return true;
}

static int64_t put_value(struct asked *a, const struct asked_put *p) {
  struct perigee_cache_place place;
  int status = perigee_cache_reserve(a->c, p->key, p->key_length, &p->put,
                                     a->now, &place);
  if (status < 0)
    return status;
  uint8_t *slab = a->c->slabs[slab_index(place.slab)].pointer;
  if (!slab) {
    perigee_cache_abort(a->c, place.entry);
    return PERIGEE_UNSUPPORTED;
  }
  uint8_t *at = slab + place.offset;
  if (p->put.length)
    memcpy(at, p->bytes, p->put.length);
  uint64_t sum =
      a->c->o.sums ? perigee_cache_sum(at, p->put.length, 0) : p->checksum;
  return perigee_cache_seal(a->c, place.entry, sum, a->now);
}

static int answer_put(struct asked *a) {
  const uint8_t *from = a->in;
  struct asked_put p = {.key = NULL};
  if (room_of(a) < 12)
    return 0;
  if (!take_put(a, &p))
    return PERIGEE_PROTOCOL;
  int64_t version = put_value(a, &p);
  if (version == PERIGEE_CACHE_WANTS) {
    a->in = from;
    return a->done ? 0 : PERIGEE_CACHE_WANTS;
  }
  put_status(a, version < 0 ? (int)version : 0);
  put_number(a, version < 0 ? 0 : (uint64_t)version, 8);
  return 1;
}

/* ---- Counters, lists, events ------------------------------------------- */

static int answer_counters(struct asked *a) {
  struct perigee_cache_counters n;
  if (room_of(a) < sizeof n)
    return PERIGEE_TOO_LARGE;
  perigee_cache_count(a->c, &n);
  const uint64_t *each = (const uint64_t *)&n;
  for (size_t i = 0; i < sizeof n / sizeof *each; i++)
    put_number(a, each[i], 8);
  return 0;
}

static uint32_t most_of(const struct asked *a) {
  return a->flags ? a->flags : UINT32_MAX;
}

/* Beyond all cursors of one store, and exact in a double. */
static const uint64_t LIST_BELOW = (uint64_t)1 << 52;

/* Puts a sealed entry's key if it begins as asked; false: there is no room. */
static bool list_put(struct asked *a, const struct perigee_cache *c,
                     uint32_t ref, const char *prefix, uint32_t length) {
  const struct entry *r = record(c, ref);
  uint32_t n = what_length(word(&r->what));
  uint8_t key[PERIGEE_CACHE_KEY];
  const struct own *e = own(c, ref);
  if (e->state != SEALED || e->pin == PERIGEE_CACHE_COPY || n < length)
    return true;
  key_copy(r, key);
  if (length && memcmp(key, prefix, length) != 0)
    return true;
  if (room_of(a) < 2 + n || a->done == most_of(a))
    return false;
  put_number(a, n, 2);
  put_bytes(a, key, n);
  a->done++;
  return true;
}

/* A cursor is a bucket, and a place in its chain. An entry stays where it is
 * until its bucket is split, and then comes to a bucket with a higher number;
 * one that replaces another has that one's place. So no key of a store is left
 * out. UINT64_MAX: the end of the store. */
static uint64_t list_from(struct asked *a, const struct perigee_cache *c,
                          uint64_t cursor, const char *prefix,
                          uint32_t length) {
  uint64_t bucket = cursor / PLACES;
  uint32_t place = (uint32_t)(cursor % PLACES);
  for (int n = 0; n < LIST_BUCKETS && bucket < directory_buckets(c); n++) {
    for (bool end = false; place < PLACES && !end; place++) {
      uint32_t ref = directory_at(c, (uint32_t)bucket, place, &end);
      if (ref && !list_put(a, c, ref, prefix, length))
        return bucket * PLACES + place;
    }
    place = 0;
    bucket++;
  }
  return bucket < directory_buckets(c) ? bucket * PLACES : UINT64_MAX;
}

/* The store below comes after the store, with cursors from LIST_BELOW. A key
 * that both have is listed twice: one that was brought to memory since may be
 * where the list has been already. */
static uint64_t list_both(struct asked *a, uint64_t cursor, const char *prefix,
                          uint32_t length) {
  const struct perigee_cache *below = a->c->below;
  if (cursor < LIST_BELOW) {
    cursor = list_from(a, a->c, cursor, prefix, length);
    return cursor == UINT64_MAX && below ? LIST_BELOW : cursor;
  }
  if (!below)
    return UINT64_MAX;
  cursor = list_from(a, below, cursor - LIST_BELOW, prefix, length);
  return cursor == UINT64_MAX ? cursor : LIST_BELOW + cursor;
}

static int answer_list(struct asked *a) {
  uint8_t *at = a->out;
  const char *prefix;
  uint32_t length;
  uint64_t cursor;
  if (a->count != 1 || !asked_number(a, &cursor, 8) ||
      !take_key(a, &prefix, &length, true))
    return PERIGEE_PROTOCOL;
  if (room_of(a) < 8 + 2 + PERIGEE_CACHE_KEY)
    return PERIGEE_TOO_LARGE;
  a->out += 8;
  cursor = list_both(a, cursor, prefix, length);
  uint8_t *end = a->out;
  a->out = at;
  put_number(a, cursor, 8);
  a->out = end;
  return 0;
}

static bool event_put(struct asked *a, uint64_t number) {
  uint8_t key[PERIGEE_CACHE_KEY];
  const struct event *e = event_of(a->c, number, key);
  if (!e || room_of(a) < EVENT + (uint64_t)e->key_length ||
      a->done == most_of(a))
    return false;
  put_number(a, e->what, 1);
  put_number(a, number, 8);
  put_number(a, e->version, 8);
  put_number(a, e->length, 8);
  put_number(a, e->key_length, 2);
  put_bytes(a, key, e->key_length);
  a->done++;
  return true;
}

static int answer_events(struct asked *a) {
  uint8_t *at = a->out;
  uint64_t from, oldest = event_oldest(a->c);
  if (a->count != 1 || !asked_number(a, &from, 8))
    return PERIGEE_PROTOCOL;
  if (room_of(a) < 16 + EVENT + PERIGEE_CACHE_KEY)
    return PERIGEE_TOO_LARGE;
  a->out += 16;
  uint64_t number = from < oldest             ? oldest
                    : from > a->c->event_next ? a->c->event_next
                                              : from;
  while (event_put(a, number))
    number++;
  uint8_t *end = a->out;
  a->out = at;
  put_number(a, number, 8);
  put_number(a, (from > 0 && from < oldest) || from > a->c->event_next, 8);
  a->out = end;
  return 0;
}

/* ---- A request --------------------------------------------------------- */

static int (*const answers[])(struct asked *) = {
    [PERIGEE_CACHE_HAS] = answer_has,
    [PERIGEE_CACHE_MATCH] = answer_match,
    [PERIGEE_CACHE_LOCATE] = answer_locate,
    [PERIGEE_CACHE_RELEASE] = answer_release,
    [PERIGEE_CACHE_DELETE] = answer_delete,
    [PERIGEE_CACHE_TOUCH] = answer_touch,
    [PERIGEE_CACHE_PIN] = answer_pin,
    [PERIGEE_CACHE_STAT] = answer_stat,
    [PERIGEE_CACHE_PUT] = answer_put,
};

static int answer_items(struct asked *a, uint64_t what) {
  if (what == PERIGEE_CACHE_LIST)
    return answer_list(a);
  if (what == PERIGEE_CACHE_EVENTS)
    return answer_events(a);
  if (what == PERIGEE_CACHE_STAT && a->count == 0)
    return answer_counters(a);
  if (what >= sizeof answers / sizeof *answers || !answers[what])
    return PERIGEE_PROTOCOL;
  for (; a->done < a->count; a->done++) {
    int status = answers[what](a);
    if (status <= 0)
      return status;
  }
  return 0;
}

static bool take_head(struct asked *a, uint64_t *what) {
  uint64_t version, flags, count;
  if (!asked_number(a, &version, 1) || !asked_number(a, what, 1) ||
      !asked_number(a, &flags, 2) || !asked_number(a, &count, 4))
    return false;
  a->flags = (uint16_t)flags;
  a->count = (uint32_t)count;
  return version == VERSION && count <= PERIGEE_CACHE_MANY;
}

void perigee_cache_below(struct perigee_cache *c, struct perigee_cache *below) {
  c->below = below;
}

void perigee_cache_spill(struct perigee_cache *c, struct perigee_cache *below) {
  c->below = below;
  c->spills = true;
  c->heat = heat_open();
  below->above = c;
}

int64_t perigee_cache_answer(struct perigee_cache *c, uint32_t client,
                             const void *request, uint64_t length, void *reply,
                             uint64_t room, int64_t now) {
  char keys[2][PERIGEE_CACHE_KEY];
  struct asked a = {.c = c,
                    .in = request,
                    .in_end = (const uint8_t *)request + length,
                    .out = reply,
                    .out_end = (uint8_t *)reply + room,
                    .now = now,
                    .client = client,
                    .keys = keys};
  uint8_t *start = reply;
  uint64_t what;
  if (!client_of(c, client))
    return PERIGEE_INVALID;
  if (!c->head || !take_head(&a, &what))
    return PERIGEE_PROTOCOL;
  if (room < HEAD)
    return PERIGEE_TOO_LARGE;
  c->now = now;
  a.out += HEAD;
  int status = answer_items(&a, what);
  if (status < 0)
    return status;
  uint8_t *end = a.out;
  a.out = start;
  put_number(&a, VERSION, 1);
  put_number(&a, what, 1);
  put_number(&a, 0, 2);
  put_number(&a, a.done, 4);
  return end - start;
}
