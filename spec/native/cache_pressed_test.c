/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_pressed_test.c - a store that lacks something: slabs, records, groups,
 * entries that may go. Whoever asks again is served in the end, and nothing
 * goes that does not help.
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

/* All but the last entry of each chain are parents. The oldest chain goes. */
static void slabs_with_chains_come_from_other_sizes(void **state) {
  (void)state;
  struct perigee_cache_options o = small;
  o.high = o.low = 100;
  struct cached k = cached_open(&o);
  struct perigee_cache_place place;
  struct perigee_cache_put put = {.length = 4096};
  char key[32], before[32] = {0};
  for (int i = 0; i < 4096; i++) {
    k.now += SECONDS / 10;
    snprintf(key, sizeof key, "k%d", i);
    put.parent = i % 100 ? before : NULL;
    put.parent_length = (uint32_t)strlen(before);
    assert_true(cached_put_as(&k, key, &put) > 0);
    memcpy(before, key, sizeof key);
  }
  put = (struct perigee_cache_put){.length = 300000};
  assert_int_equal(cached_reserve(&k, "large", &put, &place),
                   PERIGEE_NO_MEMORY);
  turn_ends(&k);
  assert_int_equal(cached_reserve(&k, "large", &put, &place), 0);
  assert_false(cached_has(&k, "k0"));
  assert_true(cached_has(&k, "k500"));
  perigee_cache_quota(k.cache, 8 * MB);
  turn_ends(&k);
  cached_feed(&k);
  assert_true(cached_count(&k).slabs <= 8 * MB);
  assert_true(cached_has(&k, "k4095"));
  cached_close(&k);
}

/* Chains of groups: the first member of each has a parent, which is the first
 * one of the group before. Of each chain only the last group may go, which was
 * used last. */
static void put_chains(struct cached *k, int groups, int of_one) {
  struct perigee_cache_put put = {.length = 4096};
  char parent[32];
  for (int i = 0; i < groups * 4; i++) {
    int group = i / 4;
    snprintf(parent, sizeof parent, "k%d", i - 4);
    put.group = (uint64_t)group + 1;
    put.parent = i % 4 == 0 && group % of_one ? parent : NULL;
    put.parent_length = (uint32_t)strlen(parent);
    k->now += SECONDS / 10;
    assert_true(put_numbered(k, i, &put) > 0);
  }
}

static void groups_in_chains_go_from_their_ends(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  put_chains(&k, 1024, 512);
  struct perigee_cache_put put = {.length = 4096};
  for (int i = 5000; i < 7000; i++)
    assert_true(put_numbered(&k, i, &put) > 0);
  assert_true(cached_has(&k, "k0"));
  cached_close(&k);
}

static void slabs_with_groups_in_chains_are_emptied(void **state) {
  (void)state;
  struct perigee_cache_options o = small;
  o.high = o.low = 100;
  struct cached k = cached_open(&o);
  struct perigee_cache_place place;
  struct perigee_cache_put put = {.length = 300000};
  put_chains(&k, 1024, 25);
  assert_int_equal(cached_reserve(&k, "large", &put, &place),
                   PERIGEE_NO_MEMORY);
  turn_ends(&k);
  assert_int_equal(cached_reserve(&k, "large", &put, &place), 0);
  assert_true(cached_has(&k, "k1000"));
  perigee_cache_quota(k.cache, 8 * MB);
  turn_ends(&k);
  cached_feed(&k);
  assert_true(cached_count(&k).slabs <= 8 * MB);
  assert_true(cached_count(&k).entries > 1000);
  cached_close(&k);
}

/* What can never have a place drives nothing out. */
static void a_value_beyond_the_quota_is_refused(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_place place;
  struct perigee_cache_put put = {.length = 100 * MB};
  put_many(&k, 0, 1000, 4096);
  assert_int_equal(cached_reserve(&k, "large", &put, &place),
                   PERIGEE_TOO_LARGE);
  turn_ends(&k);
  assert_int_equal(cached_count(&k).entries, 1000);
  cached_close(&k);
}

static void a_size_for_which_pins_leave_no_room_drives_nothing_out(void **s) {
  (void)s;
  struct cached k = cached_open(&small);
  struct perigee_cache_place place;
  struct perigee_cache_put put = {.length = 10 * MB};
  put_many(&k, 0, 4096, 4096);
  for (int i = 0; i < 8; i++) {
    char key[32];
    snprintf(key, sizeof key, "k%d", i * 256);
    perigee_cache_pin(k.cache, key, (uint32_t)strlen(key), PERIGEE_CACHE_HARD);
  }
  assert_int_equal(cached_reserve(&k, "large", &put, &place),
                   PERIGEE_NO_MEMORY);
  uint64_t used = 0;
  for (int i = 0; i < 4096; i += 16) { /* below the mark, so that all stay */
    char key[32];
    snprintf(key, sizeof key, "k%d", i + 1);
    cached_delete(&k, key);
  }
  used = cached_count(&k).used;
  turn_ends(&k);
  assert_int_equal(cached_count(&k).used, used);
  put.length = 7 * MB;
  assert_int_equal(cached_reserve(&k, "less", &put, &place), PERIGEE_NO_MEMORY);
  turn_ends(&k);
  assert_int_equal(cached_reserve(&k, "less", &put, &place), 0);
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

/* ---- Entries that may not go --------------------------------------------- */

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

/* The same of one that is being written; and soft pins still go last. */
static void a_group_that_is_being_written_is_passed_over(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_put put = member_of(9, 4096);
  struct perigee_cache_place place;
  for (int i = 0; i < 1023; i++)
    assert_true(put_numbered(&k, i, &put) > 0);
  put_many(&k, 1023, 3000, 4096);
  perigee_cache_pin(k.cache, "k2000", 5, PERIGEE_CACHE_SOFT);
  assert_int_equal(cached_reserve(&k, "last", &put, &place), 0);
  put_many(&k, 3000, 10000, 4096);
  assert_true(cached_has(&k, "k0"));
  assert_true(cached_has(&k, "k2000"));
  assert_true(perigee_cache_seal(k.cache, place.entry, 0, k.now) > 0);
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

/* ---- Tables that are full ------------------------------------------------ */

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

/* The directory has as many pieces as it may: the oldest entries go. */
static void a_full_directory_takes_new_entries(void **state) {
  (void)state;
  struct perigee_cache_options o = small;
  o.quota = 512 * MB;
  o.slab = 16 * MB;
  struct cached k = cached_open(&o);
  struct perigee_cache_place place;
  struct perigee_cache_put put = {.length = 1, .client = k.client};
  char key[PERIGEE_CACHE_KEY] = {0};
  atomic_store(&k.cache->head->pieces, PERIGEE_CACHE_PIECES);
  for (int i = 0; i < 40000; i++) {
    memcpy(key, &i, sizeof i);
    assert_int_equal(cached_reserve_as(&k, key, sizeof key, &put, &place), 0);
    assert_true(perigee_cache_seal(k.cache, place.entry, 0, k.now) > 0);
  }
  assert_in_range(cached_count(&k).entries, 20000, 39999);
  int last = 39999, first = 0;
  memcpy(key, &last, sizeof last);
  assert_int_equal(perigee_cache_stat(k.cache, key, sizeof key, k.now, &place),
                   0);
  memcpy(key, &first, sizeof first);
  assert_int_equal(perigee_cache_stat(k.cache, key, sizeof key, k.now, &place),
                   PERIGEE_NOT_FOUND);
  cached_close(&k);
}

/* ---- Counters and times -------------------------------------------------- */

static void an_entry_that_is_found_too_late_counts_as_expired(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_put put = {.length = 1, .ttl = SECONDS};
  cached_put_as(&k, "a", &put);
  cached_put_as(&k, "b", &put);
  k.now += 2 * SECONDS;
  assert_false(cached_has(&k, "a"));
  cached_turn(&k);
  assert_int_equal(cached_count(&k).expired, 2);
  cached_close(&k);
}

static void the_longest_decay_is_none(void **state) {
  (void)state;
  struct perigee_cache_options o = small;
  o.lfu = 1;
  o.decay = (INT64_C(1) << 58) - 1;
  struct cached k = cached_open(&o);
  cached_put(&k, "a", 1);
  assert_true(evict_one(k.cache, 0, false));
  cached_close(&k);
}

/* Ticks end after 9 years; a time to live does not begin anew there. */
static void an_old_store_keeps_what_lives_long(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_put put = {.length = 1, .ttl = INT64_MAX};
  k.now += 8 * 366 * 86400 * SECONDS;
  turn_ends(&k);
  assert_true(cached_put_as(&k, "a", &put) > 0);
  k.now += SECONDS;
  turn_ends(&k);
  assert_true(cached_has(&k, "a"));
  cached_close(&k);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_slab_that_stays_keeps_no_other_from_the_quota),
      cmocka_unit_test(a_slab_that_stays_keeps_no_other_from_a_size),
      cmocka_unit_test(a_slab_that_stayed_goes_when_it_can),
      cmocka_unit_test(slabs_with_chains_come_from_other_sizes),
      cmocka_unit_test(groups_in_chains_go_from_their_ends),
      cmocka_unit_test(slabs_with_groups_in_chains_are_emptied),
      cmocka_unit_test(a_value_beyond_the_quota_is_refused),
      cmocka_unit_test(a_size_for_which_pins_leave_no_room_drives_nothing_out),
      cmocka_unit_test(no_slab_is_wanted_beyond_the_quota),
      cmocka_unit_test(reservations_that_fail_waste_no_leased_entries),
      cmocka_unit_test(a_group_that_stays_is_passed_over),
      cmocka_unit_test(a_group_that_is_being_written_is_passed_over),
      cmocka_unit_test(a_group_stays_while_it_is_being_written),
      cmocka_unit_test(groups_make_room_for_others),
      cmocka_unit_test(a_parent_may_be_in_the_group_that_goes),
      cmocka_unit_test(a_full_directory_takes_new_entries),
      cmocka_unit_test(an_entry_that_is_found_too_late_counts_as_expired),
      cmocka_unit_test(the_longest_decay_is_none),
      cmocka_unit_test(an_old_store_keeps_what_lives_long),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
