/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_file_test.c - values in a file: written, read, forgotten, and there
 * after a restart. All tests run by io_uring, and by threads.
 */
#include "filed.h"

static bool by_threads;

static int set_up(void **state) {
  static struct filed k;
  filed_begin(&k, by_threads);
  filed_open_ready(&k);
  *state = &k;
  return 0;
}

static void reopen(struct filed *k) {
  filed_close(k);
  filed_open_ready(k);
}

/* ---- Values ------------------------------------------------------------ */

static const uint64_t lengths[] = {0,     1,     4095,    4096,   4097,
                                   5000,  9000,  13000,   16384,  16385,
                                   70000, 65536, 1 << 20, 1500000};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static void it_takes_the_way_that_is_asked_for(void **state) {
  struct filed *k = *state;
  struct perigee_cache_file_state s;
  perigee_cache_file_state(k->file, &s);
  assert_int_equal(s.ready, 1);
#ifdef PERIGEE_URING
  if (by_threads)
    assert_int_equal(s.ring, 0);
#else
  assert_int_equal(s.ring, 0);
#endif
  assert_int_equal(s.failed + s.under_way, 0);
  print_message("ring %u, O_DIRECT %u, memory at multiples of %u\n", s.ring,
                s.direct, k->file->disk->align);
}

static void values_of_all_lengths_come_back(void **state) {
  struct filed *k = *state;
  char key[16];
  for (uint32_t i = 0; i < LENGTHS; i++) {
    snprintf(key, sizeof key, "key %u", i);
    assert_int_equal(filed_write(k, key, lengths[i], i + 1), 0);
    assert_int_equal(filed_read(k, key), i + 1);
  }
  reopen(k);
  assert_int_equal(filed_entries(k), LENGTHS);
  for (uint32_t i = 0; i < LENGTHS; i++) {
    snprintf(key, sizeof key, "key %u", i);
    assert_int_equal(filed_read(k, key), i + 1);
  }
}

static void small_values_may_lie_anywhere(void **state) {
  struct filed *k = *state;
  uint8_t *memory = filed_memory(64 << 10), *to = filed_memory(64 << 10);
  struct perigee_cache_place place;
  for (uint32_t shift = 1; shift < 1500; shift += 511) {
    filed_value(memory + shift, 10000, "k", shift);
    assert_int_equal(
        filed_start(k, "k", memory + shift, 10000, shift, 0, shift), 0);
    assert_int_equal(filed_next(k, shift), 0);
    memset(to, 7, 64 << 10);
    assert_int_equal(perigee_cache_file_read(k->file, "k", 1, to + 3 * shift,
                                             10000, 5, &place),
                     0);
    assert_int_equal(filed_next(k, 5), 0);
    assert_memory_equal(to + 3 * shift, memory + shift, 10000);
    assert_int_equal(to[3 * shift - 1], 7);
    assert_int_equal(to[3 * shift + 10000], 7);
  }
  assert_int_equal(filed_start(k, "l", memory + 512, 16385, 9, 0, 1),
                   PERIGEE_INVALID);
  free(memory);
  free(to);
}

static void a_later_version_replaces_one(void **state) {
  struct filed *k = *state;
  assert_int_equal(filed_write(k, "k", 5000, 3), 0);
  assert_int_equal(filed_write(k, "k", 5000, 3), PERIGEE_CACHE_EXISTS);
  assert_int_equal(filed_write(k, "k", 5000, 2), PERIGEE_CACHE_EXISTS);
  assert_int_equal(filed_write(k, "k", 70000, 4), 0);
  assert_int_equal(filed_read(k, "k"), 4);
  reopen(k);
  assert_int_equal(filed_entries(k), 1);
  assert_int_equal(filed_read(k, "k"), 4);
}

static void what_is_asked_for_wrongly_is_refused(void **state) {
  struct filed *k = *state;
  struct perigee_cache_place place;
  char key[514];
  uint8_t *to = filed_memory(8192);
  memset(key, 'k', sizeof key);
  key[513] = 0;
  assert_int_equal(filed_write(k, key, 100, 1), PERIGEE_INVALID);
  assert_int_equal(filed_write(k, "", 100, 1), PERIGEE_INVALID);
  assert_int_equal(filed_write(k, "k", 100, 0), PERIGEE_INVALID);
  key[512] = 0;
  assert_int_equal(filed_write(k, key, 100, 1), 0);
  assert_int_equal(filed_read(k, key), 1);
  assert_int_equal(
      perigee_cache_file_read(k->file, key, 512, to, 99, 1, &place),
      PERIGEE_TOO_LARGE);
  assert_int_equal(
      perigee_cache_file_read(k->file, "none", 4, to, 99, 1, &place),
      PERIGEE_NOT_FOUND);
  assert_int_equal(perigee_cache_file_write(k->file, "k", 1, to,
                                            UINT64_C(1) << 40, 1, 0, 0, 1),
                   PERIGEE_TOO_LARGE);
  assert_int_equal(perigee_cache_file_forget(k->file, "", 0, 1),
                   PERIGEE_INVALID);
  reopen(k);
  assert_int_equal(filed_read(k, key), 1);
  free(to);
}

/* ---- Many at a time ---------------------------------------------------- */

static void many_are_under_way_and_no_more(void **state) {
  struct filed *k = *state;
  struct perigee_cache_file_end ends[64];
  uint8_t *value = filed_memory(20000);
  char key[16];
  int started = 0, ended = 0, status;
  memset(value, 1, 20000);
  for (;; started++) {
    snprintf(key, sizeof key, "key %d", started);
    status = filed_start(k, key, value, 20000, 1, 0, (uint64_t)started);
    if (status < 0)
      break;
  }
  assert_int_equal(status, PERIGEE_AGAIN);
  assert_int_equal(started, 64);
  assert_int_equal(perigee_cache_file_close(k->file), PERIGEE_AGAIN);
  while (ended < started) {
    int64_t n = filed_poll(k, ends, 5);
    for (int i = 0; i < n; i++)
      assert_int_equal(ends[i].status, 0);
    ended += (int)n;
    if (n == 0)
      filed_wait(k);
  }
  filed_close(k);
  filed_open_ready(k);
  assert_int_equal(filed_entries(k), 64);
  free(value);
}

static bool is_here(const struct filed *k, const char *key) {
  struct perigee_cache_place place;
  return perigee_cache_stat(perigee_cache_file_store(k->file), key,
                            (uint32_t)strlen(key), k->now, &place) == 0;
}

static int forget(const struct filed *k, const char *key) {
  return perigee_cache_file_forget(k->file, key, (uint32_t)strlen(key), 99);
}

/* Begins to write keys until no more may be under way; returns how many. */
static int writes_begin(struct filed *k, const uint8_t *value,
                        uint64_t length) {
  char key[16];
  for (int n = 0;; n++) {
    snprintf(key, sizeof key, "key %d", n);
    if (filed_start(k, key, value, length, 1, 0, (uint64_t)n) < 0)
      return n;
  }
}

static void
what_is_forgotten_while_much_is_under_way_is_not_found(void **state) {
  struct filed *k = *state;
  uint8_t *value = filed_memory(20000);
  memset(value, 1, 20000);
  assert_int_equal(filed_write(k, "a", 5000, 1), 0);
  filed_settle(k);
  int started = writes_begin(k, value, 20000);
  assert_int_equal(started, 64);
  assert_int_equal(forget(k, "a"), PERIGEE_AGAIN);
  bool is_found = is_here(k, "a");
  assert_false(is_found);
  assert_int_equal(forget(k, "key 3"), PERIGEE_AGAIN);
  struct perigee_cache_file_end end;
  for (int i = 0; i < started; i++) {
    while (filed_poll(k, &end, 1) == 0)
      filed_wait(k);
    assert_int_equal(end.status, end.token == 3 ? PERIGEE_CANCELLED : 0);
  }
  filed_forget(k, "a");
  filed_forget(k, "key 3");
  reopen(k);
  assert_int_equal(filed_entries(k), started - 1);
  assert_int_equal(filed_read(k, "a"), 0);
  free(value);
}

static void two_do_not_write_one_key(void **state) {
  struct filed *k = *state;
  uint8_t *value = filed_memory(1 << 20);
  memset(value, 1, 1 << 20);
  assert_int_equal(filed_start(k, "k", value, 1 << 20, 1, 0, 1), 0);
  assert_int_equal(filed_start(k, "k", value, 1 << 20, 2, 0, 2),
                   PERIGEE_CACHE_BUSY);
  assert_int_equal(filed_next(k, 1), 0);
  free(value);
}

static void
a_key_that_is_forgotten_while_it_is_written_is_not_there(void **state) {
  struct filed *k = *state;
  uint8_t *value = filed_memory(1 << 20);
  memset(value, 1, 1 << 20);
  assert_int_equal(filed_start(k, "k", value, 1 << 20, 1, 0, 1), 0);
  assert_int_equal(perigee_cache_file_forget(k->file, "k", 1, 2), 0);
  assert_int_equal(filed_next(k, 1), PERIGEE_CANCELLED);
  assert_int_equal(filed_read(k, "k"), 0);
  reopen(k);
  assert_int_equal(filed_entries(k), 0);
  free(value);
}

/* ---- What is forgotten, or over ---------------------------------------- */

static void what_was_forgotten_does_not_come_back(void **state) {
  struct filed *k = *state;
  assert_int_equal(filed_write(k, "a", 5000, 1), 0);
  assert_int_equal(filed_write(k, "b", 5000, 2), 0);
  filed_settle(k);
  filed_forget(k, "a");
  /* As it is in the file at this moment. */
  uint8_t *bytes = filed_bytes(k);
  filed_close(k);
  filed_poke(k, 0, bytes, FILED_SIZE);
  filed_open_ready(k);
  assert_int_equal(filed_read(k, "a"), 0);
  assert_int_equal(filed_read(k, "b"), 2);
  free(bytes);
}

static void the_last_one_of_a_part_does_not_come_back_either(void **state) {
  struct filed *k = *state;
  assert_int_equal(filed_write(k, "a", 5000, 1), 0);
  filed_settle(k);
  filed_forget(k, "a");
  uint8_t *bytes = filed_bytes(k);
  filed_close(k);
  filed_poke(k, 0, bytes, FILED_SIZE);
  filed_open_ready(k);
  assert_int_equal(filed_entries(k), 0);
  assert_int_equal(filed_write(k, "c", 70000, 2), 0);
  assert_int_equal(filed_read(k, "c"), 2);
  free(bytes);
}

/* Its table is not written anew, but is of another epoch. */
static void what_a_part_had_before_does_not_come_back(void **state) {
  enum { MANY = 40 };
  struct filed *k = *state;
  char key[16];
  for (uint32_t i = 0; i < MANY; i++) {
    snprintf(key, sizeof key, "key %u", i);
    assert_int_equal(filed_write(k, key, 5000, i + 1), 0);
  }
  filed_settle(k);
  for (uint32_t i = 0; i < MANY; i++) {
    snprintf(key, sizeof key, "key %u", i);
    filed_forget(k, key);
  }
  assert_int_equal(filed_write(k, "last", 5000, 100), 0);
  reopen(k);
  assert_int_equal(filed_entries(k), 1);
  assert_int_equal(filed_read(k, "last"), 100);
}

static void times_to_live_go_on(void **state) {
  struct filed *k = *state;
  assert_int_equal(filed_write_ttl(k, "short", 100, 1, 10 * SECONDS), 0);
  assert_int_equal(filed_write_ttl(k, "long", 100, 2, 100 * SECONDS), 0);
  assert_int_equal(filed_write(k, "ever", 100, 3), 0);
  k->now += 5 * SECONDS;
  reopen(k);
  assert_int_equal(filed_entries(k), 3);
  k->now += 15 * SECONDS;
  reopen(k);
  assert_int_equal(filed_entries(k), 2);
  int64_t left = perigee_cache_left(k->file->store, "long", 4, k->now);
  assert_in_range(left, 79 * SECONDS, 81 * SECONDS);
  assert_int_equal(perigee_cache_left(k->file->store, "ever", 4, k->now), 0);
  k->now += 100 * SECONDS;
  while (filed_poll(k, NULL, 0) == 0 && filed_entries(k) > 1)
    ;
  assert_int_equal(filed_read(k, "long"), 0);
  assert_int_equal(filed_read(k, "ever"), 3);
}

/* ---- Full -------------------------------------------------------------- */

/* A file that is full evicts what was used the longest ago, of all sizes. What
 * it has is whole, and is the same after a restart. */
static void a_full_file_goes_on(void **state) {
  enum { KEYS = 300, ROUNDS = 1200 };
  struct filed *k = *state;
  static uint64_t versions[KEYS];
  uint64_t there = 0, dice = 1;
  char key[16];
  memset(versions, 0, sizeof versions);
  for (uint32_t i = 1; i <= ROUNDS; i++) {
    dice = dice * UINT64_C(6364136223846793005) + 1442695040888963407;
    uint32_t at = (uint32_t)(dice >> 40) % KEYS;
    uint64_t length = lengths[(dice >> 33) % (LENGTHS - 2)];
    snprintf(key, sizeof key, "key %u", at);
    k->now += SECONDS / 50;
    if (versions[at] && i % 3 == 0)
      filed_forget(k, key);
    int64_t status = filed_write(k, key, length, i);
    assert_true(status == 0 || status == PERIGEE_NO_MEMORY);
    if (status == 0)
      versions[at] = i;
  }
  for (int round = 0; round < 2; round++) {
    uint64_t found = 0;
    for (uint32_t i = 0; i < KEYS; i++) {
      snprintf(key, sizeof key, "key %u", i);
      uint64_t version = filed_read(k, key);
      assert_true(version == 0 || version == versions[i]);
      found += version != 0;
    }
    assert_int_equal(found, filed_entries(k));
    assert_true(found > 50);
    assert_true(round == 0 || found == there);
    there = found;
    reopen(k);
  }
}

/* Values that are longer than an ordinary part have one of their own, for which
 * others go. */
static void long_values_find_room_in_a_full_file(void **state) {
  struct filed *k = *state;
  char key[16];
  int done = 0;
  for (uint32_t i = 1; i < 1500; i++) {
    snprintf(key, sizeof key, "small %u", i);
    k->now += SECONDS / 10;
    assert_int_equal(filed_write(k, key, 8000, i), 0);
  }
  for (uint32_t i = 0; i < 300 && !done; i++) {
    k->now += SECONDS / 10;
    int64_t status = filed_write(k, "long", 2500000, 5000 + i);
    done = status == 0;
    assert_true(done || status == PERIGEE_NO_MEMORY);
    filed_settle(k);
  }
  assert_true(done);
  assert_true(filed_read(k, "long") >= 5000);
  reopen(k);
  assert_true(filed_read(k, "long") >= 5000);
}

/* ---- Memory's marks ---------------------------------------------------- */

static uint32_t coldest(struct cached *m, struct perigee_cache_cold *cold,
                        uint32_t most) {
  return perigee_cache_coldest(m->cache, cold, most, 1000);
}

static void the_coldest_are_named_in_order(void **state) {
  enum { MANY = 60, LOOKS = 25 };
  static const uint64_t sizes[] = {100, 9000, 50000, 200000};
  struct perigee_cache_options o = {.quota = 64 * MB, .slab = MB};
  struct cached m = cached_open(&o);
  struct perigee_cache_cold cold[MANY + 1];
  char key[16];
  (void)state;
  for (uint32_t i = 0; i < MANY; i++) {
    struct perigee_cache_put put = {.length = sizes[i * 7 % 4],
                                    .ttl = i == 5 ? 90 * SECONDS : 0,
                                    .pin = i % 10 == 9};
    snprintf(key, sizeof key, "key %02u", i);
    m.now += SECONDS;
    assert_true(cached_put_as(&m, key, &put) > 0);
  }
  assert_int_equal(perigee_cache_coldest(m.cache, cold, MANY + 1, 1000), MANY);
  for (uint32_t i = 0; i < MANY; i++) { /* soft pins are the last ones */
    uint32_t wanted = i < 54 ? i / 9 * 10 + i % 9 : (i - 54) * 10 + 9;
    snprintf(key, sizeof key, "key %02u", wanted);
    assert_int_equal(cold[i].key_length, 6);
    assert_memory_equal(cold[i].key, key, 6);
    assert_int_equal(cold[i].place.version, wanted + 1);
    assert_int_equal(cold[i].place.length, sizes[wanted * 7 % 4]);
    assert_int_equal(cold[i].left > 0, wanted == 5);
  }
  for (uint32_t i = 0; i < 20; i++)
    assert_int_equal(
        perigee_cache_mark(m.cache, cold[i].key, 6, cold[i].place.version, 1),
        0);
  assert_int_equal(perigee_cache_coldest(m.cache, cold, 3, LOOKS), 3);
  assert_memory_equal(cold[0].key, "key 22", 6);
  assert_int_equal(perigee_cache_coldest(m.cache, cold, MANY, LOOKS), 5);
  assert_int_equal(perigee_cache_mark(m.cache, "key 00", 6, 1, 0), 0);
  assert_int_equal(perigee_cache_mark(m.cache, "key 00", 6, 2, 0),
                   PERIGEE_STALE);
  assert_int_equal(perigee_cache_mark(m.cache, "none", 4, 2, 0),
                   PERIGEE_NOT_FOUND);
  assert_int_equal(perigee_cache_coldest(m.cache, cold, 1, LOOKS), 1);
  assert_memory_equal(cold[0].key, "key 00", 6);
  cached_close(&m);
}

static void open_over(struct filed *k, struct cached *m) {
  assert_int_equal(perigee_cache_file_open(&k->options, m->cache, k->now, 1,
                                           &k->file, k->reason,
                                           sizeof k->reason),
                   0);
  filed_ready(k);
}

static void what_the_file_has_is_marked_in_memory(void **state) {
  struct filed *k = *state;
  struct perigee_cache_options o = {.quota = 64 * MB, .slab = MB};
  struct cached m = cached_open(&o);
  struct perigee_cache_cold cold[4];
  filed_close(k);
  open_over(k, &m);
  assert_int_equal(cached_put(&m, "a", 5000), 1);
  m.now += SECONDS;
  assert_int_equal(cached_put(&m, "b", 50000), 2);
  assert_int_equal(coldest(&m, cold, 4), 2);
  assert_int_equal(cold[0].key_length, 1);
  assert_int_equal(cold[0].key[0], 'a');
  assert_int_equal(filed_write(k, "a", 5000, 1), 0);
  assert_int_equal(coldest(&m, cold, 4), 1);
  assert_int_equal(cold[0].key[0], 'b');
  assert_int_equal(cold[0].place.version, 2);
  assert_int_equal(filed_write(k, "b", 50000, 1), PERIGEE_STALE);
  assert_int_equal(filed_write(k, "c", 50000, 1), PERIGEE_STALE);
  struct perigee_cache_put put = {.length = 1};
  struct perigee_cache_place place;
  assert_int_equal(cached_reserve(&m, "b", &put, &place), 0);
  assert_int_equal(filed_write(k, "b", 50000, 2), PERIGEE_CACHE_BUSY);
  assert_int_equal(perigee_cache_abort(m.cache, place.entry), 0);
  assert_int_equal(coldest(&m, cold, 4), 1);
  filed_forget(k, "a");
  assert_int_equal(coldest(&m, cold, 4), 2);
  filed_close(k);
  cached_close(&m);
}

/* Memory was kept while the file was closed. */
static void a_value_that_memory_has_a_newer_one_of_is_not_there(void **state) {
  struct filed *k = *state;
  struct perigee_cache_options o = {.quota = 64 * MB, .slab = MB};
  struct cached m = cached_open(&o);
  struct perigee_cache_cold cold[4];
  assert_int_equal(cached_put(&m, "old", 5000), 1);
  assert_int_equal(cached_put(&m, "same", 5000), 2);
  assert_int_equal(filed_write(k, "old", 5000, 1), 0);
  assert_int_equal(filed_write(k, "same", 5000, 2), 0);
  assert_int_equal(filed_write(k, "alone", 5000, 1), 0);
  filed_close(k);
  assert_int_equal(cached_put(&m, "old", 5000), 3);
  open_over(k, &m);
  assert_int_equal(filed_entries(k), 2);
  assert_int_equal(filed_read(k, "old"), 0);
  assert_int_equal(coldest(&m, cold, 4), 1);
  assert_memory_equal(cold[0].key, "old", 3);
  filed_close(k);
  filed_open_ready(k);
  assert_int_equal(filed_entries(k), 2);
  cached_close(&m);
}

#define BOTH(test)                                                             \
  cmocka_unit_test_setup_teardown(test, set_up, filed_tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(it_takes_the_way_that_is_asked_for),
      BOTH(values_of_all_lengths_come_back),
      BOTH(small_values_may_lie_anywhere),
      BOTH(a_later_version_replaces_one),
      BOTH(what_is_asked_for_wrongly_is_refused),
      BOTH(many_are_under_way_and_no_more),
      BOTH(what_is_forgotten_while_much_is_under_way_is_not_found),
      BOTH(two_do_not_write_one_key),
      BOTH(a_key_that_is_forgotten_while_it_is_written_is_not_there),
      BOTH(what_was_forgotten_does_not_come_back),
      BOTH(the_last_one_of_a_part_does_not_come_back_either),
      BOTH(what_a_part_had_before_does_not_come_back),
      BOTH(times_to_live_go_on),
      BOTH(a_full_file_goes_on),
      BOTH(long_values_find_room_in_a_full_file),
      BOTH(the_coldest_are_named_in_order),
      BOTH(what_the_file_has_is_marked_in_memory),
      BOTH(a_value_that_memory_has_a_newer_one_of_is_not_there),
  };
  int failed = cmocka_run_group_tests_name("ring", tests, NULL, NULL);
  by_threads = true;
  return failed + cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
