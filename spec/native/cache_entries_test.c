/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_entries_test.c - the life of an entry of a cache: each step of its
 * table, writers, leases, pins, chains, groups, TTLs, and what is evicted when.
 */
#include "cached.h"

static const struct perigee_cache_options small = {
    .quota = 16 * MB, .slab = MB, .lease = SECONDS, .margin = SECONDS / 4};

static struct perigee_cache_put put_of(uint64_t length) {
  return (struct perigee_cache_put){.length = length};
}

static struct perigee_cache_put child_of(const char *parent) {
  return (struct perigee_cache_put){
      .length = 1, .parent = parent, .parent_length = (uint32_t)strlen(parent)};
}

static struct perigee_cache_put member_of(uint64_t group, uint64_t length) {
  return (struct perigee_cache_put){.length = length, .group = group};
}

/* Evicts one, also one that is pinned soft. */
static bool evicts(struct cached *k) {
  return evict_one(k->cache, 0, false) || evict_one(k->cache, 0, true);
}

/* Nothing is left of any entry. */
static void assert_empty(struct cached *k) {
  struct perigee_cache_counters n = cached_count(k);
  assert_int_equal(n.entries + n.reserved + n.held + n.leases, 0);
  assert_int_equal(n.used + n.values + n.hard, 0);
  assert_int_equal(k->cache->empty_bytes, k->cache->slab_bytes);
}

/* ---- Reserving and sealing --------------------------------------------- */

static void a_reserved_entry_is_not_seen(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_place a, b;
  struct perigee_cache_put put = put_of(5000);
  assert_int_equal(cached_reserve(&k, "a", &put, &a), 0);
  assert_false(cached_has(&k, "a"));
  assert_int_equal(cached_reserve(&k, "a", &put, &b), PERIGEE_CACHE_BUSY);
  assert_int_equal(perigee_cache_seal(k.cache, a.entry, 7, k.now), 1);
  assert_int_equal(cached_locate(&k, "a", &b), 0);
  assert_int_equal(b.length, 5000);
  assert_int_equal(b.checksum, 7);
  assert_int_equal(b.offset, a.offset);
  assert_int_equal(perigee_cache_seal(k.cache, a.entry, 7, k.now),
                   PERIGEE_STALE);
  assert_int_equal(perigee_cache_abort(k.cache, a.entry), PERIGEE_STALE);
  cached_close(&k);
}

static void an_absent_key_is_put_once_and_another_again(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_place place;
  struct perigee_cache_put put = put_of(1);
  assert_int_equal(cached_put(&k, "a", 10), 1);
  put.if_absent = 1;
  assert_int_equal(cached_reserve(&k, "a", &put, &place), PERIGEE_CACHE_EXISTS);
  assert_int_equal(cached_put(&k, "a", 20), 2);
  assert_int_equal(cached_locate(&k, "a", &place), 0);
  assert_int_equal(place.version, 2);
  assert_int_equal(place.length, 20);
  assert_int_equal(cached_count(&k).entries, 1);
  cached_close(&k);
}

static uint64_t length_of_a(struct cached *k) {
  struct perigee_cache_place place;
  assert_int_equal(perigee_cache_stat(k->cache, "a", 1, k->now, &place), 0);
  return place.length;
}

static void a_value_comes_back_to_a_key_that_is_reserved(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_put put = put_of(100);
  struct perigee_cache_put old = {.length = 50, .again = 1};
  struct perigee_cache_place a, b, c;
  assert_int_equal(cached_reserve(&k, "a", &put, &a), 0);
  assert_int_equal(cached_reserve(&k, "a", &old, &b), 0);
  assert_int_equal(cached_reserve(&k, "a", &put, &c), PERIGEE_CACHE_BUSY);
  assert_int_equal(perigee_cache_seal_again(k.cache, b.entry, 0, 7, k.now), 7);
  assert_int_equal(length_of_a(&k), 50);
  assert_int_equal(cached_reserve(&k, "a", &put, &c), PERIGEE_CACHE_BUSY);
  assert_int_equal(perigee_cache_seal(k.cache, a.entry, 0, k.now), 8);
  assert_int_equal(length_of_a(&k), 100);
  assert_int_equal(perigee_cache_delete(k.cache, "a", 1), 0);
  assert_empty(&k);
  cached_close(&k);
}

static void what_comes_back_too_late_is_given_up(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_put put = put_of(100);
  struct perigee_cache_put old = {.length = 50, .again = 1};
  struct perigee_cache_place a, b;
  assert_int_equal(cached_reserve(&k, "a", &put, &a), 0);
  assert_int_equal(cached_reserve(&k, "a", &old, &b), 0);
  assert_int_equal(perigee_cache_seal(k.cache, a.entry, 0, k.now), 1);
  assert_int_equal(perigee_cache_abort(k.cache, b.entry), 0);
  assert_int_equal(length_of_a(&k), 100);
  assert_int_equal(perigee_cache_delete(k.cache, "a", 1), 0);
  assert_empty(&k);
  cached_close(&k);
}

static void bad_keys_lengths_and_numbers_are_refused(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_place place;
  struct perigee_cache_put put = put_of(0);
  char key[513] = {0};
  assert_int_equal(cached_reserve_as(&k, key, 0, &put, &place),
                   PERIGEE_INVALID);
  assert_int_equal(cached_reserve_as(&k, key, 513, &put, &place),
                   PERIGEE_INVALID);
  assert_int_equal(cached_reserve_as(&k, key, 512, &put, &place), 0);
  assert_int_equal(perigee_cache_seal(k.cache, place.entry, 0, k.now), 1);
  assert_int_equal(perigee_cache_delete(k.cache, key, 511), PERIGEE_NOT_FOUND);
  assert_int_equal(perigee_cache_delete(k.cache, key, 512), 0);
  put.length = UINT64_C(1) << 40;
  assert_int_equal(cached_reserve(&k, "a", &put, &place), PERIGEE_TOO_LARGE);
  put = put_of(1);
  put.pin = 3;
  assert_int_equal(cached_reserve(&k, "a", &put, &place), PERIGEE_INVALID);
  put = put_of(1);
  put.client = 9;
  assert_int_equal(cached_reserve_as(&k, "a", 1, &put, &place),
                   PERIGEE_INVALID);
  for (uint64_t i = 0; i < 4096; i++)
    assert_int_equal(perigee_cache_abort(k.cache, i << 32 | i * 8191),
                     PERIGEE_STALE);
  assert_empty(&k);
  cached_close(&k);
}

static void a_client_has_so_many_reservations_and_loses_them(void **state) {
  (void)state;
  struct perigee_cache_options o = small;
  o.reserved_each = 10;
  struct cached k = cached_open(&o);
  struct perigee_cache_place place;
  struct perigee_cache_put put = put_of(1);
  char key[32];
  for (int i = 0; i < 10; i++) {
    snprintf(key, sizeof key, "k%d", i);
    assert_int_equal(cached_reserve(&k, key, &put, &place), 0);
  }
  assert_int_equal(cached_reserve(&k, "more", &put, &place), PERIGEE_AGAIN);
  assert_int_equal(perigee_cache_client_gone(k.cache, k.client), 0);
  assert_int_equal(perigee_cache_client_gone(k.cache, k.client),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_cache_seal(k.cache, place.entry, 0, k.now),
                   PERIGEE_STALE);
  assert_empty(&k);
  cached_close(&k);
}

/* ---- Leases ------------------------------------------------------------ */

/* Returns whether the place of "a" is taken while the value `b` is put. */
static bool is_kept(struct cached *k, const struct perigee_cache_place *a) {
  struct perigee_cache_place b;
  struct perigee_cache_put put = put_of(a->length);
  assert_int_equal(cached_reserve(k, "b", &put, &b), 0);
  bool kept = b.slab != a->slab || b.offset != a->offset;
  assert_int_equal(perigee_cache_abort(k->cache, b.entry), 0);
  return kept;
}

static void a_place_is_used_again_after_its_last_lease(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_place one, two;
  cached_put(&k, "a", 4096);
  assert_int_equal(cached_locate(&k, "a", &one), 0);
  assert_int_equal(cached_locate(&k, "a", &two), 0);
  assert_int_equal(cached_delete(&k, "a"), 0);
  assert_false(cached_has(&k, "a"));
  assert_true(is_kept(&k, &one));
  assert_int_equal(perigee_cache_release(k.cache, k.client, one.lease), 0);
  assert_int_equal(perigee_cache_release(k.cache, k.client, one.lease),
                   PERIGEE_STALE);
  assert_true(is_kept(&k, &one));
  assert_int_equal(perigee_cache_release(k.cache, 1, two.lease), PERIGEE_STALE);
  assert_int_equal(perigee_cache_release(k.cache, k.client, two.lease), 0);
  assert_false(is_kept(&k, &one));
  assert_empty(&k);
  cached_close(&k);
}

static void a_lease_ends_by_itself_after_the_margin(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_place place;
  cached_put(&k, "a", 4096);
  assert_int_equal(cached_locate(&k, "a", &place), 0);
  assert_int_equal(cached_delete(&k, "a"), 0);
  k.now += SECONDS + SECONDS / 4 - 1;
  cached_turn(&k);
  assert_true(is_kept(&k, &place));
  k.now += 1;
  cached_turn(&k);
  assert_false(is_kept(&k, &place));
  assert_empty(&k);
  cached_close(&k);
}

static void a_client_has_a_share_of_leases_which_end_with_it(void **state) {
  (void)state;
  struct perigee_cache_options o = small;
  o.leases = 16;
  struct cached k = cached_open(&o);
  struct perigee_cache_place place;
  cached_put(&k, "a", 1);
  assert_int_equal(cached_locate(&k, "a", &place), 0);
  assert_int_equal(cached_locate(&k, "a", &place), 0);
  assert_int_equal(cached_locate(&k, "a", &place), PERIGEE_AGAIN);
  cached_delete(&k, "a");
  assert_int_equal(cached_count(&k).held, 1);
  perigee_cache_client_gone(k.cache, k.client);
  assert_empty(&k);
  cached_close(&k);
}

/* ---- Ties -------------------------------------------------------------- */

static void a_parent_outlives_its_children(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_put put = child_of("a");
  assert_int_equal(cached_put_as(&k, "b", &put), PERIGEE_NOT_FOUND);
  cached_put(&k, "a", 1);
  assert_true(cached_put_as(&k, "b", &put) > 0);
  put = child_of("b");
  assert_true(cached_put_as(&k, "c", &put) > 0);
  assert_true(evicts(&k));
  assert_false(cached_has(&k, "c"));
  assert_true(evicts(&k));
  assert_false(cached_has(&k, "b"));
  assert_true(cached_has(&k, "a"));
  assert_true(evicts(&k));
  assert_empty(&k);
  cached_close(&k);
}

static void a_deleted_parent_leaves_its_children(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_place place;
  struct perigee_cache_put put = child_of("a");
  cached_put(&k, "a", 1);
  assert_true(cached_put_as(&k, "b", &put) > 0);
  cached_locate(&k, "a", &place);
  cached_delete(&k, "a");
  cached_put(&k, "a", 1);
  assert_int_equal(cached_count(&k).held, 1);
  perigee_cache_release(k.cache, k.client, place.lease);
  assert_int_equal(cached_count(&k).held, 0);
  put = child_of("a");
  assert_true(cached_put_as(&k, "c", &put) > 0);
  cached_delete(&k, "a");
  cached_delete(&k, "b");
  cached_delete(&k, "c");
  assert_empty(&k);
  cached_close(&k);
}

static void a_parent_is_aborted_before_its_child(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_place a;
  struct perigee_cache_put put = put_of(1);
  assert_int_equal(cached_reserve(&k, "a", &put, &a), 0);
  put = child_of("a");
  assert_true(cached_put_as(&k, "b", &put) > 0);
  perigee_cache_abort(k.cache, a.entry);
  assert_true(cached_has(&k, "b"));
  cached_delete(&k, "b");
  assert_empty(&k);
  cached_close(&k);
}

static void a_group_goes_together(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_put put = member_of(9, 1);
  cached_put_as(&k, "a", &put);
  k.now += SECONDS;
  cached_put(&k, "single", 1);
  k.now += SECONDS;
  put = member_of(9, 9000);
  cached_put_as(&k, "b", &put);
  put = member_of(9, 1);
  put.parent = "b", put.parent_length = 1;
  cached_put_as(&k, "c", &put);
  assert_true(evict_one(k.cache, 0, false));
  assert_false(cached_has(&k, "a") || cached_has(&k, "b") ||
               cached_has(&k, "c"));
  assert_true(cached_has(&k, "single"));
  assert_int_equal(cached_count(&k).entries, 1);
  cached_close(&k);
}

static void a_group_stays_with_a_hard_pin_or_a_child_outside(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_put put = member_of(9, 1);
  cached_put_as(&k, "a", &put);
  cached_put_as(&k, "b", &put);
  perigee_cache_pin(k.cache, "b", 1, PERIGEE_CACHE_HARD);
  assert_false(evicts(&k));
  perigee_cache_pin(k.cache, "b", 1, PERIGEE_CACHE_SOFT);
  assert_false(evict_one(k.cache, 0, false));
  put = child_of("b");
  put.length = 9000;
  cached_put_as(&k, "c", &put);
  assert_false(evicts(&k));
  cached_delete(&k, "c");
  assert_true(evicts(&k));
  assert_empty(&k);
  cached_close(&k);
}

static void entries_end_when_their_time_is_over(void **state) {
  (void)state;
  static const int64_t ttls[] = {1, SECONDS, 70 * SECONDS, 10000 * SECONDS,
                                 4000000 * SECONDS};
  struct cached k = cached_open(&small);
  char key[32];
  for (int i = 0; i < 5; i++) {
    struct perigee_cache_put put = {.length = 1, .ttl = ttls[i]};
    snprintf(key, sizeof key, "k%d", i);
    assert_true(cached_put_as(&k, key, &put) > 0);
  }
  int64_t began = k.now;
  for (int i = 0; i < 5; i++) {
    snprintf(key, sizeof key, "k%d", i);
    k.now = began + ttls[i] - 1;
    assert_true(cached_has(&k, key));
    k.now = began + ttls[i] + SECONDS / 5;
    while (perigee_cache_turn(k.cache, k.now, 1000000))
      ;
    assert_int_equal(cached_count(&k).entries, 4 - i);
    assert_int_equal(cached_count(&k).expired, i + 1);
  }
  assert_empty(&k);
  cached_close(&k);
}

static void the_longest_ttl_is_two_years(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_put put = {.length = 1, .ttl = INT64_MAX};
  assert_true(cached_put_as(&k, "a", &put) > 0);
  k.now += 731 * 86400 * SECONDS;
  assert_true(cached_has(&k, "a"));
  k.now += 366 * 86400 * SECONDS;
  assert_false(cached_has(&k, "a"));
  cached_close(&k);
}

static void a_ttl_that_is_over_is_not_found_before_the_turn(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_put put = {.length = 1, .ttl = SECONDS};
  cached_put_as(&k, "a", &put);
  k.now += 2 * SECONDS;
  assert_false(cached_has(&k, "a"));
  assert_empty(&k);
  cached_close(&k);
}

/* ---- Eviction ---------------------------------------------------------- */

static void the_least_recently_used_one_goes(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  cached_put(&k, "a", 1);
  cached_put(&k, "b", 1);
  cached_put(&k, "c", 1);
  k.now += SECONDS;
  assert_int_equal(perigee_cache_touch(k.cache, "a", 1, k.now), 0);
  evict_one(k.cache, 0, false);
  assert_false(cached_has(&k, "b"));
  assert_true(cached_has(&k, "a") && cached_has(&k, "c"));
  cached_close(&k);
}

static void the_least_often_used_one_goes_with_lfu(void **state) {
  (void)state;
  struct perigee_cache_options o = small;
  o.lfu = 1;
  struct cached k = cached_open(&o);
  cached_put(&k, "a", 1);
  cached_put(&k, "b", 1);
  for (int i = 0; i < 4; i++)
    perigee_cache_touch(k.cache, "a", 1, k.now);
  cached_put(&k, "c", 1);
  perigee_cache_touch(k.cache, "b", 1, k.now);
  perigee_cache_touch(k.cache, "c", 1, k.now);
  perigee_cache_touch(k.cache, "c", 1, k.now);
  evict_one(k.cache, 0, false);
  assert_true(cached_has(&k, "a"));
  assert_false(cached_has(&k, "b"));
  k.now += 1000 * SECONDS; /* forgotten: the one used last is left */
  perigee_cache_turn(k.cache, k.now, 1);
  perigee_cache_touch(k.cache, "c", 1, k.now);
  evict_one(k.cache, 0, false);
  assert_false(cached_has(&k, "a"));
  cached_close(&k);
}

static void put_many(struct cached *k, const char *prefix, int from, int to,
                     uint64_t length) {
  char key[32];
  for (int i = from; i < to; i++) {
    snprintf(key, sizeof key, "%s%d", prefix, i);
    assert_true(cached_put(k, key, length) > 0);
  }
}

static void eviction_goes_from_the_high_to_the_low_mark(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  put_many(&k, "k", 0, 3880, 4096); /* of 4096 */
  cached_turn(&k);
  assert_int_equal(cached_count(&k).entries, 3880);
  put_many(&k, "k", 3880, 3900, 4096);
  cached_turn(&k);
  assert_in_range(cached_count(&k).entries, 3680, 3687);
  assert_false(cached_has(&k, "k0"));
  assert_true(cached_has(&k, "k3899"));
  cached_close(&k);
}

static void a_full_store_takes_new_entries(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  put_many(&k, "k", 0, 10000, 4096);
  assert_int_equal(cached_count(&k).entries, 4096);
  assert_int_equal(cached_count(&k).slabs, 16 * MB);
  cached_close(&k);
}

static void hard_pins_stay_and_have_their_share(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_put put = {.length = 4096, .pin = PERIGEE_CACHE_HARD};
  struct perigee_cache_place place;
  char key[32];
  for (int i = 0; i < 2048; i++) {
    snprintf(key, sizeof key, "pin%d", i);
    assert_true(cached_put_as(&k, key, &put) > 0);
  }
  assert_int_equal(cached_reserve(&k, "more", &put, &place), PERIGEE_NO_MEMORY);
  put_many(&k, "k", 0, 10000, 4096);
  for (int i = 0; i < 2048; i++) {
    snprintf(key, sizeof key, "pin%d", i);
    assert_true(cached_has(&k, key));
  }
  cached_close(&k);
}

static void soft_pins_go_last(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_put put = {.length = 4096, .pin = PERIGEE_CACHE_SOFT};
  assert_true(cached_put_as(&k, "soft", &put) > 0);
  put_many(&k, "k", 0, 10000, 4096);
  assert_true(cached_has(&k, "soft"));
  while (evict_one(k.cache, 0, false))
    ;
  assert_true(cached_has(&k, "soft"));
  assert_true(evicts(&k));
  assert_empty(&k);
  cached_close(&k);
}

static const struct perigee_cache_put copy = {
    .length = 4096, .ttl = 3600 * SECONDS, .pin = PERIGEE_CACHE_COPY};

static void copies_go_first_though_they_were_used_last(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_cold cold[2];
  put_many(&k, "k", 0, 2000, 4096);
  assert_true(cached_put_as(&k, "copy", &copy) > 0);
  assert_int_equal(cached_count(&k).copies, 1);
  assert_int_equal(cached_count(&k).entries, 2001);
  k.now += SECONDS;
  assert_int_equal(perigee_cache_touch(k.cache, "copy", 4, k.now), 0);
  assert_int_equal(perigee_cache_coldest(k.cache, cold, 2, 1000), 2);
  assert_true(cold[0].key[0] == 'k' && cold[1].key[0] == 'k');
  assert_true(evict_oldest(k.cache));
  assert_false(cached_has(&k, "copy"));
  assert_int_equal(cached_count(&k).copies, 0);
  assert_true(cached_put_as(&k, "copy", &copy) > 0);
  put_many(&k, "more", 0, 2096, 4096); /* all that have room */
  assert_false(cached_has(&k, "copy"));
  assert_int_equal(cached_count(&k).entries, 4096);
  cached_close(&k);
}

static void copies_have_a_ttl_and_no_ties_or_other_pins(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_put put = copy;
  assert_true(cached_put(&k, "parent", 1) > 0);
  put.ttl = 0;
  assert_int_equal(cached_put_as(&k, "copy", &put), PERIGEE_INVALID);
  put = copy;
  put.group = 7;
  assert_int_equal(cached_put_as(&k, "copy", &put), PERIGEE_INVALID);
  put = copy;
  put.parent = "parent";
  put.parent_length = 6;
  assert_int_equal(cached_put_as(&k, "copy", &put), PERIGEE_INVALID);
  put = copy;
  put.pin = PERIGEE_CACHE_COPY + 1;
  assert_int_equal(cached_put_as(&k, "copy", &put), PERIGEE_INVALID);
  assert_true(cached_put_as(&k, "copy", &copy) > 0);
  assert_int_equal(perigee_cache_pin(k.cache, "copy", 4, PERIGEE_CACHE_HARD),
                   PERIGEE_NOT_FOUND);
  assert_int_equal(perigee_cache_pin(k.cache, "parent", 6, PERIGEE_CACHE_COPY),
                   PERIGEE_INVALID);
  cached_close(&k);
}

static void slabs_come_from_other_sizes(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_place place;
  struct perigee_cache_put put = put_of(300000);
  put_many(&k, "k", 0, 4096, 4096);
  assert_int_equal(cached_reserve(&k, "large", &put, &place),
                   PERIGEE_NO_MEMORY);
  cached_turn(&k);
  assert_int_equal(cached_reserve(&k, "large", &put, &place), 0);
  put = put_of(10 * MB);
  int status = PERIGEE_NO_MEMORY;
  for (int i = 0; i < 4 && status == PERIGEE_NO_MEMORY; i++) {
    status = cached_reserve(&k, "huge", &put, &place);
    cached_turn(&k);
  }
  assert_int_equal(status, 0);
  assert_true(cached_count(&k).slabs <= 16 * MB);
  cached_close(&k);
}

static void a_smaller_quota_empties_slabs(void **state) {
  (void)state;
  struct cached k = cached_open(&small);
  struct perigee_cache_place place;
  put_many(&k, "k", 0, 4096, 4096);
  cached_locate(&k, "k1", &place);
  perigee_cache_quota(k.cache, 4 * MB);
  cached_turn(&k);
  cached_feed(&k);
  k.now += 2 * SECONDS;
  cached_turn(&k);
  cached_feed(&k);
  assert_true(cached_count(&k).slabs <= 4 * MB);
  assert_true(cached_count(&k).used <= 4 * MB);
  assert_true(cached_count(&k).entries > 0);
  cached_close(&k);
}

/* ---- Sizes ------------------------------------------------------------- */

static void at_most_a_quarter_of_what_is_used_is_waste(void **state) {
  (void)state;
  uint64_t before = 0;
  for (int i = 0; i < SIZES; i++) {
    uint64_t bytes = size_bytes(i);
    assert_int_equal(size_of(bytes), i);
    assert_int_equal(size_of(before + 1), i);
    assert_true(i == 0 || bytes - (before + 1) <= (before + 1) / 4);
    assert_int_equal(bytes % PLACE_UNIT, 0);
    before = bytes;
  }
  assert_int_equal(before, PERIGEE_CACHE_LARGEST);
}

/* ---- The table --------------------------------------------------------- */

/* Runs last: the tests above take each step that the table has. */
static void each_step_of_the_table_was_taken(void **state) {
  (void)state;
  int steps = 0;
  for (int from = 0; from < STATES; from++)
    for (int step = 0; step < STEPS; step++) {
      steps += entry_next[from][step] != 0;
      if ((entry_next[from][step] != 0) != (entry_taken[from][step] != 0))
        fail_msg("state %d, step %d: taken %d times", from, step,
                 (int)entry_taken[from][step]);
    }
  assert_int_equal(steps, 10);
}

static void a_slab_at_an_old_index_has_a_new_number(void **state) {
  struct cached k = cached_open(&small);
  (void)state;
  int64_t first = perigee_cache_add(k.cache, NULL, MB);
  assert_int_equal(perigee_cache_remove(k.cache, (uint32_t)first), 0);
  int64_t second = perigee_cache_add(k.cache, NULL, MB);
  assert_int_equal(second & 0xffff, first & 0xffff);
  assert_int_not_equal(second, first);
  assert_int_equal(perigee_cache_remove(k.cache, (uint32_t)first),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_cache_remove(k.cache, (uint32_t)second), 0);
  cached_close(&k);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_reserved_entry_is_not_seen),
      cmocka_unit_test(an_absent_key_is_put_once_and_another_again),
      cmocka_unit_test(a_value_comes_back_to_a_key_that_is_reserved),
      cmocka_unit_test(what_comes_back_too_late_is_given_up),
      cmocka_unit_test(bad_keys_lengths_and_numbers_are_refused),
      cmocka_unit_test(a_client_has_so_many_reservations_and_loses_them),
      cmocka_unit_test(a_place_is_used_again_after_its_last_lease),
      cmocka_unit_test(a_lease_ends_by_itself_after_the_margin),
      cmocka_unit_test(a_client_has_a_share_of_leases_which_end_with_it),
      cmocka_unit_test(a_parent_outlives_its_children),
      cmocka_unit_test(a_deleted_parent_leaves_its_children),
      cmocka_unit_test(a_parent_is_aborted_before_its_child),
      cmocka_unit_test(a_group_goes_together),
      cmocka_unit_test(a_group_stays_with_a_hard_pin_or_a_child_outside),
      cmocka_unit_test(entries_end_when_their_time_is_over),
      cmocka_unit_test(the_longest_ttl_is_two_years),
      cmocka_unit_test(a_ttl_that_is_over_is_not_found_before_the_turn),
      cmocka_unit_test(the_least_recently_used_one_goes),
      cmocka_unit_test(the_least_often_used_one_goes_with_lfu),
      cmocka_unit_test(eviction_goes_from_the_high_to_the_low_mark),
      cmocka_unit_test(a_full_store_takes_new_entries),
      cmocka_unit_test(hard_pins_stay_and_have_their_share),
      cmocka_unit_test(soft_pins_go_last),
      cmocka_unit_test(copies_go_first_though_they_were_used_last),
      cmocka_unit_test(copies_have_a_ttl_and_no_ties_or_other_pins),
      cmocka_unit_test(slabs_come_from_other_sizes),
      cmocka_unit_test(a_smaller_quota_empties_slabs),
      cmocka_unit_test(at_most_a_quarter_of_what_is_used_is_waste),
      cmocka_unit_test(each_step_of_the_table_was_taken),
      cmocka_unit_test(a_slab_at_an_old_index_has_a_new_number),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
