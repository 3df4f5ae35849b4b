/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_pressed_test.c - a store that lacks something: slabs, records, groups,
 * entries that may go. Whoever asks again is served in the end, and nothing goes
 * that does not help.
 */
#include "cached.h"

static const struct perigee_cache_options small = {
    .quota = 16 * MB, .slab = MB, .lease = SECONDS, .margin = SECONDS / 4};

static struct perigee_cache_put member_of(uint64_t group, uint64_t length) {
  return (struct perigee_cache_put){.length = length, .group = group};
}

static int64_t put_numbered(struct cached *k, int i,
                            const struct perigee_cache_put *put) {
  char key[32];
  snprintf(key, sizeof key, "k%d", i);
  return cached_put_as(k, key, put);
}

/* Puts so many values, each of which finds room. */
static void put_many(struct cached *k, int from, int to, uint64_t length) {
  struct perigee_cache_put put = {.length = length};
  for (int i = from; i < to; i++)
    assert_true(put_numbered(k, i, &put) > 0);
}

/* Calls turn until it says that nothing is left to do now. */
static void turn_ends(struct cached *k) {
  for (int i = 0; i < 1000; i++)
    if (!perigee_cache_turn(k->cache, k->now, 100))
      return;
  fail_msg("there is always more to do");
}

/* ---- Slabs that cannot be emptied ---------------------------------------- */

/* The slab with the fewest bytes has a member of a group that cannot go. */
static struct cached with_a_slab_that_stays(uint64_t quota) {
  struct perigee_cache_options o = small;
  o.quota = quota;
  struct cached k = cached_open(&o);
  struct perigee_cache_put put = member_of(9, 4096);
  assert_true(cached_put_as(&k, "member", &put) > 0);
  put = member_of(9, 9000);
  put.pin = PERIGEE_CACHE_HARD;
  assert_true(cached_put_as(&k, "pinned", &put) > 0);
  assert_true(cached_put(&k, "other", 20000) > 0);
  assert_int_equal(cached_count(&k).slabs, 3 * MB);
  return k;
}

static void a_slab_that_stays_keeps_no_other_from_the_quota(void **state) {
  (void)state;
  struct cached k = with_a_slab_that_stays(16 * MB);
  perigee_cache_quota(k.cache, 2 * MB);
  turn_ends(&k);
  cached_feed(&k);
  assert_int_equal(cached_count(&k).slabs, 2 * MB);
  assert_true(cached_has(&k, "member") && cached_has(&k, "pinned"));
  assert_false(cached_has(&k, "other"));
  cached_close(&k);
}

static void a_slab_that_stays_keeps_no_other_from_a_size(void **state) {
  (void)state;
  struct cached k = with_a_slab_that_stays(3 * MB);
  struct perigee_cache_place place;
  struct perigee_cache_put put = {.length = 300000};
  assert_int_equal(cached_reserve(&k, "large", &put, &place),
                   PERIGEE_NO_MEMORY);
  turn_ends(&k);
  assert_int_equal(cached_reserve(&k, "large", &put, &place), 0);
  assert_true(cached_has(&k, "member"));
  cached_close(&k);
}

/* It is looked at again later, as its pin may be gone. */
static void a_slab_that_stayed_goes_when_it_can(void **state) {
  (void)state;
  struct cached k = with_a_slab_that_stays(16 * MB);
  perigee_cache_quota(k.cache, 0);
  turn_ends(&k);
  assert_true(cached_has(&k, "member"));
  perigee_cache_pin(k.cache, "pinned", 6, PERIGEE_CACHE_UNPINNED);
  k.now += SECONDS;
  turn_ends(&k);
  assert_int_equal(cached_count(&k).entries, 0);
  cached_close(&k);
}

/* A slab that was wanted is not any more if others took its share meanwhile. */
static void no_slab_is_wanted_beyond_the_quota(void **state) {
  (void)state;
  struct perigee_cache_options o = small;
  o.quota = 2 * MB;
  struct cached k = cached_open(&o);
  struct perigee_cache_place place;
  struct perigee_cache_put put = {.length = 700000, .client = k.client};
  struct perigee_cache_want want;
  put_many(&k, 0, 257, 4096);
  for (int i = 0; i < 257; i++) {
    char key[32];
    snprintf(key, sizeof key, "k%d", i);
    if (i < 256)
      assert_int_equal(cached_delete(&k, key), 0);
  }
  assert_int_equal(k.cache->empty_bytes, MB);
  assert_int_equal(perigee_cache_reserve(k.cache, "a", 1, &put, k.now, &place),
                   PERIGEE_CACHE_WANTS);
  put_many(&k, 1000, 1256, 4096); /* takes the empty one */
  perigee_cache_wants(k.cache, &want);
  assert_int_equal(want.slab, 0);
  cached_feed(&k);
  assert_true(cached_count(&k).slabs <= 2 * MB);
  cached_close(&k);
}

/* ---- Entries that may not go ---------------------------------------------- */

static void reservations_that_fail_waste_no_leased_entries(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_place place;
  struct perigee_cache_put put = {.length = 4096};
  char key[32];
  put_many(&k, 0, 4096, 4096);
  for (int i = 0; i < 4096; i++) {
    snprintf(key, sizeof key, "k%d", i);
    assert_int_equal(cached_locate(&k, key, &place), 0);
  }
  for (int i = 0; i < 100; i++)
    assert_int_equal(cached_reserve(&k, "new", &put, &place),
                     PERIGEE_NO_MEMORY);
  assert_in_range(cached_count(&k).entries, 4096 - 16, 4095);
  k.now += 2 * SECONDS;
  cached_turn(&k);
  assert_int_equal(cached_reserve(&k, "new", &put, &place), 0);
  cached_close(&k);
}

/* Behind 200 old members of a group that stays others are found. */
static void a_group_that_stays_is_passed_over(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_put put = member_of(9, 4096);
  for (int i = 0; i < 200; i++)
    assert_true(put_numbered(&k, i, &put) > 0);
  perigee_cache_pin(k.cache, "k7", 2, PERIGEE_CACHE_HARD);
  put_many(&k, 200, 10000, 4096);
  assert_int_equal(cached_count(&k).entries, 4096);
  assert_true(cached_has(&k, "k0"));
  cached_close(&k);
}

/* Its parent is there when it is sealed, and so are the others of its group. */
static void a_group_stays_while_it_is_being_written(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_put put = member_of(9, 1);
  struct perigee_cache_place place;
  cached_put_as(&k, "a", &put);
  put.parent = "a", put.parent_length = 1;
  assert_int_equal(cached_reserve(&k, "b", &put, &place), 0);
  assert_false(evict_one(k.cache, 0, false) || evict_one(k.cache, 0, true));
  assert_true(perigee_cache_seal(k.cache, place.entry, 0, k.now) > 0);
  assert_true(cached_has(&k, "a"));
  assert_int_equal(cached_reserve(&k, "c", &put, &place), 0);
  assert_false(evict_one(k.cache, 0, false));
  assert_int_equal(perigee_cache_abort(k.cache, place.entry), 0);
  assert_true(evict_one(k.cache, 0, false));
  assert_int_equal(cached_count(&k).entries, 0);
  cached_close(&k);
}

/* ---- Tables that are full -------------------------------------------------- */

/* A group goes if there is none left; not one that may not. */
static void groups_make_room_for_others(void **state) {
  (void)state;
  struct perigee_cache_options o = small;
  o.groups = 8;
  struct cached k = cached_open(&o);
  struct perigee_cache_put put;
  for (int i = 0; i < 100; i++) {
    put = member_of((uint64_t)i + 1, 1);
    put.pin = i == 3 ? PERIGEE_CACHE_HARD : PERIGEE_CACHE_UNPINNED;
    assert_true(put_numbered(&k, i, &put) > 0);
  }
  assert_int_equal(cached_count(&k).entries, 8);
  assert_true(cached_has(&k, "k3") && cached_has(&k, "k99"));
  for (int i = 0; i < 7; i++) {
    put = member_of((uint64_t)i + 200, 1);
    put.pin = PERIGEE_CACHE_HARD;
    assert_true(put_numbered(&k, i + 200, &put) > 0);
  }
  put = member_of(300, 1);
  assert_int_equal(put_numbered(&k, 300, &put), PERIGEE_NO_MEMORY);
  cached_close(&k);
}

/* A parent of the new entry does not go for its group. */
static void a_parent_may_be_in_the_group_that_goes(void **state) {
  (void)state;
  struct perigee_cache_options o = small;
  o.groups = 1;
  struct cached k = cached_open(&o);
  struct perigee_cache_put put = member_of(1, 1);
  assert_true(cached_put_as(&k, "a", &put) > 0);
  put = member_of(2, 1);
  put.parent = "a", put.parent_length = 1;
  int64_t version = cached_put_as(&k, "b", &put);
  assert_true(version > 0 ? cached_has(&k, "a") : version == PERIGEE_NOT_FOUND);
  cached_delete(&k, "a");
  cached_delete(&k, "b");
  assert_int_equal(cached_count(&k).used, 0);
  cached_close(&k);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_slab_that_stays_keeps_no_other_from_the_quota),
      cmocka_unit_test(a_slab_that_stays_keeps_no_other_from_a_size),
      cmocka_unit_test(a_slab_that_stayed_goes_when_it_can),
      cmocka_unit_test(no_slab_is_wanted_beyond_the_quota),
      cmocka_unit_test(reservations_that_fail_waste_no_leased_entries),
      cmocka_unit_test(a_group_that_stays_is_passed_over),
      cmocka_unit_test(a_group_stays_while_it_is_being_written),
      cmocka_unit_test(groups_make_room_for_others),
      cmocka_unit_test(a_parent_may_be_in_the_group_that_goes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
