/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_traces_test.c - random traces of a cache beside a simple model. The
 * model has, of each key, what may be there: eviction may take it away, but
 * only where events say so. Each place that a reservation gets is checked
 * against all places that are in use or under a lease. What the store counts is
 * counted anew now and then. What is left at the end is nothing.
 */
#include "cached_inside.h"

enum { KEYS = 96, LEASES = 64, RESERVED_AT_ONCE = 8, STEPS_OF_ONE = 20000 };

struct model_key {
  uint64_t version, length; /* version 0: not there */
  struct perigee_cache_place place;
  bool hard;
};
struct model_lease {
  struct perigee_cache_place place;
  int64_t until;
  bool open;
};
struct model_reservation {
  struct perigee_cache_place place;
  int key;
  bool open, hard;
};

struct trace {
  struct cached k;
  struct model_key keys[KEYS];
  struct model_lease leases[LEASES];
  struct model_reservation reservations[RESERVED_AT_ONCE];
  uint64_t dice, event;
  int64_t term;
};

static uint32_t roll(struct trace *t, uint32_t sides) {
  t->dice = t->dice * UINT64_C(6364136223846793005) + 1442695040888963407;
  return (uint32_t)((t->dice >> 33) % sides);
}

static void key_name(int key, char *name) {
  snprintf(name, 64, "%0*d", 2 + key % 40, key);
}

static int key_of(const uint8_t *name, uint32_t length) {
  char text[PERIGEE_CACHE_KEY + 1] = {0};
  memcpy(text, name, length);
  return (int)strtol(text, NULL, 10);
}

/* ---- What the model knows ---------------------------------------------- */

static bool overlaps(const struct perigee_cache_place *a,
                     const struct perigee_cache_place *b) {
  uint64_t a_bytes = size_bytes(size_of(a->length)),
           b_bytes = size_bytes(size_of(b->length));
  return a->slab == b->slab && a->offset < b->offset + b_bytes &&
         b->offset < a->offset + a_bytes;
}

/* Follows what the store says has gone. */
static void follow_events(struct trace *t) {
  uint8_t name[PERIGEE_CACHE_KEY];
  const struct event *e;
  assert_true(event_oldest(t->k.cache) <= t->event);
  while ((e = event_of(t->k.cache, t->event, name))) {
    struct model_key *m = &t->keys[key_of(name, e->key_length)];
    if (e->what == PERIGEE_CACHE_EVICTED) {
      assert_int_equal(m->version, e->version);
      assert_false(m->hard);
    }
    if (e->what != PERIGEE_CACHE_SEALED && m->version == e->version)
      m->version = 0;
    t->event++;
  }
}

static void check_place(struct trace *t,
                        const struct perigee_cache_place *place) {
  assert_true(place->offset + place->length <=
              t->k.lengths[place->slab & 0xffff]);
  assert_non_null(cached_slab(&t->k, place->slab));
  for (int i = 0; i < KEYS; i++)
    assert_false(t->keys[i].version && overlaps(&t->keys[i].place, place));
  for (int i = 0; i < LEASES; i++)
    assert_false(t->leases[i].open && t->leases[i].until > t->k.now &&
                 overlaps(&t->leases[i].place, place));
  for (int i = 0; i < RESERVED_AT_ONCE; i++)
    assert_false(t->reservations[i].open &&
                 overlaps(&t->reservations[i].place, place));
}

/* ---- Steps ------------------------------------------------------------- */

static uint64_t some_length(struct trace *t) {
  static const uint32_t most[] = {1,     4096,  4096,   20000,
                                  20000, 20000, 300000, 3 << 20};
  return roll(t, most[roll(t, 8)] + 1);
}

static void step_reserve(struct trace *t) {
  struct model_reservation *r = &t->reservations[roll(t, RESERVED_AT_ONCE)];
  int parent = (int)roll(t, KEYS);
  char name[64], above[64];
  struct perigee_cache_put put = {.length = some_length(t)};
  if (r->open)
    return;
  r->key = (int)roll(t, KEYS);
  key_name(r->key, name);
  key_name(parent, above);
  put.if_absent = roll(t, 2) == 0;
  put.pin = roll(t, 16) == 0 ? PERIGEE_CACHE_HARD : (uint8_t)(roll(t, 4) == 0);
  put.group = roll(t, 4) == 0 ? 1 + roll(t, 5) : 0;
  put.ttl = roll(t, 4) == 0 ? (int64_t)roll(t, 1000) * 10000000 : 0;
  if (roll(t, 4) == 0 && t->keys[parent].version) {
    put.parent = above;
    put.parent_length = (uint32_t)strlen(above);
  }
  int status = cached_reserve(&t->k, name, &put, &r->place);
  follow_events(t);
  if (status < 0)
    return;
  check_place(t, &r->place);
  memset(cached_slab(&t->k, r->place.slab) + r->place.offset, r->key,
         r->place.length);
  r->open = true;
  r->hard = put.pin == PERIGEE_CACHE_HARD;
}

static void step_end(struct trace *t) {
  struct model_reservation *r = &t->reservations[roll(t, RESERVED_AT_ONCE)];
  if (!r->open)
    return;
  r->open = false;
  if (roll(t, 5) == 0) {
    assert_int_equal(perigee_cache_abort(t->k.cache, r->place.entry), 0);
    return;
  }
  int64_t version = perigee_cache_seal(t->k.cache, r->place.entry,
                                       (uint64_t)r->key, t->k.now);
  assert_true(version > 0);
  t->keys[r->key] = (struct model_key){.version = (uint64_t)version,
                                       .length = r->place.length,
                                       .place = r->place,
                                       .hard = r->hard};
}

static void step_locate(struct trace *t) {
  struct model_lease *l = &t->leases[roll(t, LEASES)];
  int key = (int)roll(t, KEYS);
  char name[64];
  if (l->open)
    return;
  key_name(key, name);
  int status = cached_locate(&t->k, name, &l->place);
  follow_events(t);
  assert_true(status == PERIGEE_OK || t->keys[key].version == 0);
  if (status < 0)
    return;
  assert_int_equal(l->place.version, t->keys[key].version);
  assert_int_equal(l->place.length, t->keys[key].length);
  assert_int_equal(l->place.offset, t->keys[key].place.offset);
  l->until = t->k.now + t->term;
  l->open = true;
}

/* A lease that the client holds has its entry's bytes, whatever has become of
 * that. */
static void step_release(struct trace *t) {
  struct model_lease *l = &t->leases[roll(t, LEASES)];
  if (!l->open)
    return;
  l->open = false;
  if (l->until <= t->k.now)
    return;
  const char *bytes = cached_slab(&t->k, l->place.slab) + l->place.offset;
  for (uint64_t i = 0; i < l->place.length; i += 997)
    assert_int_equal(bytes[i], (char)l->place.checksum);
  assert_int_equal(
      perigee_cache_release(t->k.cache, t->k.client, l->place.lease), 0);
}

static void step_delete(struct trace *t) {
  char name[64];
  key_name((int)roll(t, KEYS), name);
  cached_delete(&t->k, name);
}

static void step_pin(struct trace *t) {
  int key = (int)roll(t, KEYS), pin = (int)roll(t, 3);
  char name[64];
  key_name(key, name);
  int status = perigee_cache_pin(t->k.cache, name, (uint32_t)strlen(name), pin);
  if (status == PERIGEE_OK)
    t->keys[key].hard = pin == PERIGEE_CACHE_HARD;
}

static void step_turn(struct trace *t) {
  t->k.now += roll(t, 100000000);
  perigee_cache_turn(t->k.cache, t->k.now, roll(t, 50));
  if (roll(t, 50) == 0)
    perigee_cache_quota(t->k.cache, (uint64_t)(8 + roll(t, 24)) * MB);
  cached_feed(&t->k);
}

static void (*const steps[])(struct trace *) = {
    step_reserve, step_reserve, step_end, step_end, step_locate,
    step_release, step_delete,  step_pin, step_turn};

/* ---- The whole --------------------------------------------------------- */

static void check_counters(struct trace *t) {
  struct perigee_cache_counters n = cached_count(&t->k);
  uint64_t entries = 0, values = 0, places = 0;
  for (int i = 0; i < KEYS; i++) {
    entries += t->keys[i].version != 0;
    values += t->keys[i].version ? t->keys[i].length : 0;
  }
  for (uint32_t i = 0; i < t->k.cache->slab_end; i++)
    if (t->k.cache->slabs[i].size != NONE)
      places += t->k.cache->slabs[i].live;
  assert_int_equal(n.entries, entries);
  assert_int_equal(n.values, values);
  assert_int_equal(places, n.entries + n.reserved + n.held);
  assert_true(n.used >= n.values);
}

static void end_all(struct trace *t) {
  char name[64];
  perigee_cache_client_gone(t->k.cache, t->k.client);
  for (int i = 0; i < KEYS; i++) {
    key_name(i, name);
    cached_delete(&t->k, name);
  }
  struct perigee_cache_counters n = cached_count(&t->k);
  assert_int_equal(n.entries + n.reserved + n.held + n.leases, 0);
  assert_int_equal(n.used + n.values + n.hard, 0);
  assert_int_equal(t->k.cache->empty_bytes, t->k.cache->slab_bytes);
  assert_int_equal(n.directory, (uint64_t)CHUNK); /* its first buckets */
}

static void run_trace(uint64_t seed) {
  struct perigee_cache_options o = {.quota = 24 * MB,
                                    .slab = MB,
                                    .lease = SECONDS,
                                    .margin = SECONDS / 4,
                                    .groups = 4,
                                    .lfu = seed % 2,
                                    .seed = {(uint8_t)seed, 1}};
  struct trace t = {.dice = seed, .event = 1, .term = SECONDS};
  t.k = cached_open(&o);
  for (int i = 0; i < STEPS_OF_ONE; i++) {
    steps[roll(&t, sizeof steps / sizeof *steps)](&t);
    follow_events(&t);
    if (i % 64 == 0) {
      check_counters(&t);
      cached_check(t.k.cache);
    }
  }
  end_all(&t);
  cached_close(&t.k);
}

static void random_traces_go_as_the_model(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 24; seed++)
    run_trace(seed);
}

/* ---- Growth ------------------------------------------------------------ */

/* Keys of all lengths come and go, more than once, so that chunks change their
 * size. All that is there is found, by the store and by a view. */
static void a_growing_directory_finds_all(void **state) {
  enum { MANY = 60000 };
  struct perigee_cache_options o = {.quota = UINT64_C(1) << 30};
  struct cached k = cached_open(&o);
  struct perigee_cache_view *view = perigee_cache_view_open();
  struct perigee_cache_place place;
  char key[600];
  (void)state;
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < MANY; i++) {
      snprintf(key, sizeof key, "%0*d", 6 + (i + round * 7) % 100, i);
      assert_true(cached_put(&k, key, 0) > 0);
    }
    for (uint32_t i = 0; i < k.piece_count; i++)
      perigee_cache_view_piece(view, i, k.pieces[i]);
    for (int i = 0; i < MANY; i++) {
      snprintf(key, sizeof key, "%0*d", 6 + (i + round * 7) % 100, i);
      uint32_t length = (uint32_t)strlen(key);
      assert_int_equal(perigee_cache_seen(view, key, length, &place), 0);
      assert_int_equal(perigee_cache_same(view, key, length, &place), 1);
      assert_int_equal(cached_delete(&k, key), 0);
      assert_int_equal(perigee_cache_seen(view, key, length, &place),
                       PERIGEE_NOT_FOUND);
      assert_int_equal(perigee_cache_same(view, key, length, &place), 0);
    }
  }
  uint64_t buckets =
      (directory_buckets(k.cache) + BUCKETS_A_CHUNK - 1) / BUCKETS_A_CHUNK;
  assert_int_equal(cached_count(&k).directory, buckets * CHUNK);
  perigee_cache_view_close(view);
  cached_close(&k);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_traces_go_as_the_model),
      cmocka_unit_test(a_growing_directory_finds_all),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
