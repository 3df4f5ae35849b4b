/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_revive_test.c - entries of a store whose process has ended, in another
 * store.
 */
#include "cached.h"

static const struct perigee_cache_options small = {.quota = 16 * MB,
                                                   .slab = MB};

struct heir {
  struct cached old, k;
  uint32_t from[CACHED_SLABS], to[CACHED_SLABS], count;
};

/* The new store has the slabs of the old one. */
static struct heir heir_open(void) {
  struct heir h = {.old = cached_open(&small)};
  return h;
}

static int64_t heir_revive(struct heir *h) {
  struct perigee_cache_view *view = perigee_cache_view_open();
  for (uint32_t i = 0; i < h->old.piece_count; i++)
    assert_int_equal(perigee_cache_view_piece(view, i, h->old.pieces[i]), 0);
  h->k = cached_open(&small);
  cached_grow(&h->k);
  for (uint32_t i = 0; i < CACHED_SLABS; i++)
    if (h->old.slabs[i]) {
      h->from[h->count] = i;
      int64_t number =
          perigee_cache_add(h->k.cache, h->old.slabs[i], h->old.lengths[i]);
      assert_true(number >= 0);
      h->to[h->count++] = (uint32_t)number;
    }
  int64_t came = perigee_cache_revive(h->k.cache, view, h->from, h->to,
                                      h->count, h->k.now);
  for (uint32_t i = 0; i < h->count; i++)
    assert_int_equal(perigee_cache_retire(h->k.cache, h->to[i]), 0);
  perigee_cache_view_close(view);
  return came;
}

static void heir_close(struct heir *h) {
  cached_close(&h->k);
  cached_close(&h->old);
}

static void what_was_sealed_is_there_where_it_was(void **state) {
  struct heir h = heir_open();
  struct perigee_cache_place before, after;
  char key[16];
  (void)state;
  for (int i = 0; i < 500; i++) {
    snprintf(key, sizeof key, "key %d", i);
    cached_put(&h.old, key, (uint64_t)i * 37 + 1);
  }
  perigee_cache_delete(h.old.cache, "key 7", 5);
  cached_put(&h.old, "key 8", 5000);
  perigee_cache_stat(h.old.cache, "key 8", 5, h.old.now, &before);
  assert_int_equal(heir_revive(&h), 499);
  assert_false(cached_has(&h.k, "key 7"));
  assert_int_equal(perigee_cache_stat(h.k.cache, "key 8", 5, h.k.now, &after),
                   0);
  assert_int_equal(after.offset, before.offset);
  assert_int_equal(after.length, 5000);
  assert_int_equal(after.version, before.version);
  assert_true(cached_put(&h.k, "new", 1) > (int64_t)before.version);
  assert_int_equal(cached_count(&h.k).values, cached_count(&h.old).values + 1);
  heir_close(&h);
}

static void what_was_not_sealed_or_is_mortal_is_gone(void **state) {
  struct heir h = heir_open();
  struct perigee_cache_place place;
  struct perigee_cache_put put = {.length = 10};
  (void)state;
  assert_int_equal(cached_reserve(&h.old, "reserved", &put, &place), 0);
  put.ttl = SECONDS;
  cached_put_as(&h.old, "mortal", &put);
  cached_put(&h.old, "there", 1);
  assert_int_equal(heir_revive(&h), 1);
  assert_true(cached_has(&h.k, "there"));
  heir_close(&h);
}

static void pins_are_known_still(void **state) {
  struct heir h = heir_open();
  struct perigee_cache_put put = {.length = 5000, .pin = PERIGEE_CACHE_HARD};
  (void)state;
  cached_put_as(&h.old, "hard", &put);
  cached_put(&h.old, "later", 5000);
  perigee_cache_pin(h.old.cache, "later", 5, PERIGEE_CACHE_HARD);
  cached_put(&h.old, "let go", 5000);
  perigee_cache_pin(h.old.cache, "let go", 6, PERIGEE_CACHE_HARD);
  perigee_cache_pin(h.old.cache, "let go", 6, PERIGEE_CACHE_UNPINNED);
  assert_int_equal(heir_revive(&h), 3);
  assert_int_equal(cached_count(&h.k).hard, 2 * 5120);
  heir_close(&h);
}

static void slabs_of_old_are_read_until_they_are_empty(void **state) {
  struct heir h = heir_open();
  struct perigee_cache_place place;
  struct perigee_cache_want want;
  (void)state;
  cached_put(&h.old, "old", 1);
  assert_int_equal(heir_revive(&h), 1);
  cached_put(&h.k, "new", 1);
  perigee_cache_stat(h.k.cache, "new", 3, h.k.now, &place);
  assert_int_not_equal(place.slab, h.to[0]);
  perigee_cache_wants(h.k.cache, &want);
  assert_int_equal(want.idle, -1);
  perigee_cache_delete(h.k.cache, "old", 3);
  perigee_cache_wants(h.k.cache, &want);
  assert_int_equal(want.idle, h.to[0]);
  assert_int_equal(perigee_cache_remove(h.k.cache, h.to[0]), 0);
  perigee_cache_wants(h.k.cache, &want);
  assert_int_equal(want.idle, -1);
  heir_close(&h);
}

/* Any bytes may stand in a directory of old. */
static void a_directory_of_rubbish_is_survived(void **state) {
  (void)state;
  for (unsigned seed = 1; seed < 200; seed++) {
    struct heir h = heir_open();
    char key[16];
    srand(seed);
    for (int i = 0; i < 50; i++) {
      snprintf(key, sizeof key, "key %d", i);
      cached_put(&h.old, key, 100);
    }
    uint64_t *words = h.old.pieces[0];
    for (int i = 0; i < 2000; i++)
      words[8 + (size_t)rand() % (3 * MB / 8)] =
          (uint64_t)rand() << 32 | (uint32_t)rand();
    int64_t came = heir_revive(&h);
    assert_true(came >= 0 && came <= 1000);
    heir_close(&h);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_was_sealed_is_there_where_it_was),
      cmocka_unit_test(what_was_not_sealed_or_is_mortal_is_gone),
      cmocka_unit_test(pins_are_known_still),
      cmocka_unit_test(slabs_of_old_are_read_until_they_are_empty),
      cmocka_unit_test(a_directory_of_rubbish_is_survived),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
