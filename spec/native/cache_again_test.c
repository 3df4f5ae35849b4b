/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_again_test.c - what a file shows after a restart: when it was damaged
 * in any way, and when its process was killed at any time. A value that is
 * shown is the key's, whole, and of the version that its record says.
 */
#include <signal.h>

#include "filed.h"

enum { KEYS = 60, SIZE = 4 << 20 };

static uint64_t roll(uint64_t *dice, uint64_t below) {
  *dice = *dice * UINT64_C(6364136223846793005) + 1442695040888963407;
  return (*dice >> 20) % below;
}

static void key_name(uint32_t number, char key[16]) {
  snprintf(key, 16, "key %u", number);
}

static uint64_t length_of(uint32_t number) {
  static const uint64_t lengths[] = {100, 5000, 20000, 70000, 0, 4096};
  return lengths[number % 6];
}

static int set_up(void **state) {
  static struct filed k;
  char key[16];
  filed_begin(&k, false);
  k.options.size = SIZE;
  filed_open_ready(&k);
  for (uint32_t i = 0; i < KEYS; i++) {
    key_name(i, key);
    assert_int_equal(filed_write(&k, key, length_of(i), i + 1), 0);
  }
  filed_settle(&k);
  *state = &k;
  return 0;
}

/* Returns how many keys have their values. */
static uint32_t count_good(struct filed *k) {
  uint32_t good = 0;
  char key[16];
  for (uint32_t i = 0; i < KEYS; i++) {
    key_name(i, key);
    uint64_t version = filed_read(k, key);
    assert_true(version == 0 || version == i + 1);
    good += version != 0;
  }
  return good;
}

/* ---- Damage ------------------------------------------------------------ */

/* The place in the file of an entry's record. */
static uint64_t record_offset(struct filed *k, const char *key) {
  struct perigee_cache_file *f = k->file;
  struct perigee_cache_place place;
  uint32_t places, blocks;
  assert_int_equal(
      perigee_cache_stat(f->store, key, (uint32_t)strlen(key), k->now, &place),
      0);
  uint32_t part = slab_index(place.slab);
  int size = f->store->slabs[part].size;
  uint32_t number = (uint32_t)(place.offset / size_bytes(size));
  return part_offset(f, part) + part_table(f, part, size, &places, &blocks) +
         (uint64_t)number / RECORDS * BLOCK + number % RECORDS * RECORD_STRIDE;
}

static void each_byte_of_a_record_counts(void **state) {
  struct filed *k = *state;
  uint64_t at = record_offset(k, "key 7");
  uint8_t *bytes = filed_bytes(k);
  for (uint32_t i = 0; i < RECORD_HEAD + 5; i++) {
    uint8_t flipped = bytes[at + i] ^ (uint8_t)(1 << i % 8);
    filed_close(k);
    filed_poke(k, at + i, &flipped, 1);
    filed_open_ready(k);
    assert_int_equal(filed_entries(k), KEYS - 1);
    assert_int_equal(filed_read(k, "key 7"), 0);
    if (i % 11 == 0)
      assert_int_equal(count_good(k), KEYS - 1);
    filed_close(k);
    filed_poke(k, at / BLOCK * BLOCK, bytes + at / BLOCK * BLOCK, BLOCK);
    filed_open_ready(k);
    assert_int_equal(filed_entries(k), KEYS);
  }
  free(bytes);
}

static void a_flipped_value_is_found_by_its_checksum(void **state) {
  struct filed *k = *state;
  struct perigee_cache_place place;
  uint8_t *bytes = filed_bytes(k);
  assert_int_equal(
      perigee_cache_stat(k->file->store, "key 3", 5, k->now, &place), 0);
  uint64_t at = part_offset(k->file, slab_index(place.slab)) + place.offset +
                place.length - 1;
  filed_close(k);
  filed_poke(k, at, &(uint8_t){bytes[at] ^ 0x80}, 1);
  filed_open_ready(k);
  assert_int_equal(filed_entries(k), KEYS);
  assert_int_equal(filed_read(k, "key 3"), 0);
  assert_int_equal(count_good(k), KEYS - 1);
  filed_forget(k, "key 3");
  assert_int_equal(filed_write(k, "key 3", 70000, 900), 0);
  assert_int_equal(filed_read(k, "key 3"), 900);
  free(bytes);
}

static void without_its_head_a_file_is_empty(void **state) {
  struct filed *k = *state;
  for (uint32_t at = 8; at < 56; at++) {
    uint8_t *bytes = filed_bytes(k);
    filed_close(k);
    filed_poke(k, at, &(uint8_t){bytes[at] ^ 4}, 1);
    filed_open_ready(k);
    assert_int_equal(filed_entries(k), 0);
    filed_close(k);
    filed_poke(k, 0, bytes, BLOCK);
    filed_open_ready(k);
    assert_int_equal(count_good(k), KEYS);
    free(bytes);
  }
}

static void damage(struct filed *k, const uint8_t *bytes, uint64_t *dice) {
  static const uint8_t zeros[BLOCK];
  uint64_t blocks = SIZE / BLOCK, block = 1 + roll(dice, blocks - 1),
           other = 1 + roll(dice, blocks - 1);
  uint64_t at = block * BLOCK + roll(dice, BLOCK);
  switch (roll(dice, 5)) {
  case 0:
    filed_poke(k, block * BLOCK, zeros, BLOCK);
    break;
  case 1:
    filed_poke(k, at, &(uint8_t){bytes[at] ^ (1 << roll(dice, 8))}, 1);
    break;
  case 2: /* written elsewhere */
    filed_poke(k, other * BLOCK, bytes + block * BLOCK, BLOCK);
    break;
  case 3: /* torn */
    filed_poke(k, block * BLOCK, zeros, 512);
    break;
  default:
    assert_int_equal(truncate(k->path, (off_t)at), 0);
    break;
  }
}

/* Most damage is done where nothing is, so it is done to the used blocks many
 * times, and each once by itself in the first rounds. */
static void no_damage_shows_what_is_not_so(void **state) {
  enum { ROUNDS = 40 };
  struct filed *k = *state;
  uint8_t *bytes = filed_bytes(k);
  uint64_t dice = 1, lost = 0;
  filed_close(k);
  for (uint32_t i = 0; i < ROUNDS; i++) {
    filed_poke(k, 0, bytes, SIZE);
    for (uint64_t times = 1 + roll(&dice, i + 1); times > 0; times--)
      damage(k, bytes, &dice);
    filed_open_ready(k);
    lost += KEYS - count_good(k);
    uint64_t entries = filed_entries(k);
    filed_close(k);
    filed_open_ready(k);
    assert_int_equal(filed_entries(k), entries);
    assert_int_equal(filed_write(k, "another", 70000, 1000), 0);
    assert_int_equal(filed_read(k, "another"), 1000);
    filed_close(k);
  }
  assert_true(lost > 0);
  free(bytes);
}

/* A client's value may look like a table, wherever it lies. */
static void values_are_no_records(void **state) {
  enum { LONG = 256 << 10 };
  struct filed *k = *state;
  uint8_t *bytes = filed_bytes(k), *value = filed_memory(LONG);
  uint64_t at = record_offset(k, "key 7") / BLOCK * BLOCK;
  char key[16];
  for (uint32_t i = 0; i < LONG; i += BLOCK)
    memcpy(value + i, bytes + at, BLOCK);
  for (uint32_t i = 0; i < KEYS; i++) {
    key_name(i, key);
    filed_forget(k, key);
  }
  /* All of the file has it, and is then used for another size. */
  for (uint32_t i = 0; i < 40; i++) {
    key_name(1000 + i, key);
    k->now += SECONDS;
    assert_int_equal(filed_start(k, key, value, LONG, 2000 + i, 0, 1), 0);
    assert_int_equal(filed_next(k, 1), 0);
  }
  for (uint32_t i = 0; i < 40; i++) {
    key_name(1000 + i, key);
    filed_forget(k, key);
  }
  assert_int_equal(filed_write(k, "small", 100, 5000), 0);
  filed_close(k);
  filed_open_ready(k);
  assert_int_equal(filed_entries(k), 1);
  assert_int_equal(filed_read(k, "small"), 5000);
  free(bytes);
  free(value);
}

/* ---- Entries put back -------------------------------------------------- */

static int restore(struct cached *m, const char *key, uint64_t offset,
                   uint64_t length, uint64_t version) {
  struct perigee_cache_place place = {.slab = 0,
                                      .offset = offset,
                                      .length = length,
                                      .version = version,
                                      .checksum = version};
  return perigee_cache_restore(m->cache, key, (uint32_t)strlen(key), &place, 0,
                               m->now);
}

static void entries_are_put_back_where_they_were(void **state) {
  struct perigee_cache_options o = {.quota = 2 * MB, .slab = MB};
  struct cached m = cached_open(&o);
  struct perigee_cache_place place;
  (void)state;
  assert_int_equal(restore(&m, "a", 0, 4096, 1), PERIGEE_RANGE);
  void *slab = cached_map(MB);
  assert_int_equal(perigee_cache_add(m.cache, slab, MB), 0);
  m.slabs[0] = slab;
  m.lengths[0] = MB;
  assert_int_equal(restore(&m, "a", 4096, 4000, 7), 0);
  assert_int_equal(restore(&m, "a", 8192, 4000, 7), PERIGEE_CACHE_EXISTS);
  assert_int_equal(restore(&m, "b", 4096, 4000, 8), PERIGEE_RANGE);
  assert_int_equal(restore(&m, "b", 0, 4000, 8), PERIGEE_RANGE);
  assert_int_equal(restore(&m, "b", 8193, 4000, 8), PERIGEE_RANGE);
  assert_int_equal(restore(&m, "b", 16384, 9000, 8), PERIGEE_RANGE);
  assert_int_equal(restore(&m, "b", MB, 4000, 8), PERIGEE_RANGE);
  assert_int_equal(restore(&m, "b", 16384, 4000, 0), PERIGEE_INVALID);
  assert_int_equal(restore(&m, "", 16384, 4000, 8), PERIGEE_INVALID);
  assert_int_equal(restore(&m, "b", 16384, UINT64_C(1) << 40, 8),
                   PERIGEE_RANGE);
  assert_int_equal(restore(&m, "a", 12288, 100, 9), 0);
  assert_int_equal(restore(&m, "b", MB - 4096, 4000, 3), 0);
  struct perigee_cache_counters n = cached_count(&m);
  assert_int_equal(n.entries, 2);
  assert_int_equal(n.used, 8192);
  assert_int_equal(n.values, 4100);
  assert_int_equal(cached_locate(&m, "a", &place), 0);
  assert_int_equal(place.offset, 12288);
  assert_int_equal(place.version, 9);
  /* All other places are free, each once; later versions are larger. */
  for (int i = 0; i < 254; i++) {
    char key[16];
    snprintf(key, sizeof key, "%d", i);
    assert_int_equal(cached_put(&m, key, 4096), 10 + i);
    assert_int_equal(cached_count(&m).slabs, MB);
  }
  perigee_cache_versions(m.cache, 100000);
  perigee_cache_versions(m.cache, 5);
  assert_int_equal(cached_put(&m, "later", 4096), 100001);
  cached_close(&m);
}

/* ---- Killed ------------------------------------------------------------ */

/* What a child has told: a key's versions up to this one were forgotten, or its
 * value of this version was written. */
struct told {
  uint32_t key, forgotten;
  uint64_t version;
};

static void tell(int to, uint32_t key, bool forgotten, uint64_t version) {
  struct told t = {key, forgotten, version};
  if (write(to, &t, sizeof t) != sizeof t)
    _exit(3);
}

/* Keeps some writes under way, and has each key forgotten before the next
 * version is written. */
static void child_run(struct filed *k, int to, uint64_t seed) {
  enum { MOST = 80000 };
  uint8_t *value = filed_memory(MOST);
  char key[16];
  for (uint64_t version = 1000;; version++) {
    uint32_t number = (uint32_t)roll(&seed, KEYS);
    uint64_t length = roll(&seed, MOST);
    key_name(number, key);
    filed_forget(k, key);
    tell(to, number, true, version - 1);
    filed_value(value, length, key, version);
    k->now += SECONDS / 100;
    if (filed_start(k, key, value, length, version, 0, 1) < 0)
      continue;
    if (filed_next(k, 1) == 0)
      tell(to, number, false, version);
  }
}

static uint64_t kill_at_work(struct filed *k, uint64_t seed,
                             uint64_t forgotten[KEYS]) {
  int ends[2];
  struct told t;
  uint64_t count = 0;
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    if (filed_open(k) < 0)
      _exit(2);
    filed_ready(k);
    child_run(k, ends[1], seed);
  }
  close(ends[1]);
  for (uint64_t most = 20 + roll(&seed, 200);
       count < most && read(ends[0], &t, sizeof t) == sizeof t; count++)
    if (t.forgotten)
      forgotten[t.key] = t.version;
  kill(child, SIGKILL);
  while (read(ends[0], &t, sizeof t) == sizeof t)
    if (t.forgotten)
      forgotten[t.key] = t.version;
  waitpid(child, NULL, 0);
  close(ends[0]);
  return count;
}

static void nothing_older_is_there_after_a_kill(void **state) {
  struct filed *k = *state;
  filed_close(k);
  for (uint64_t round = 0; round < 8; round++) {
    uint64_t forgotten[KEYS] = {0}, found = 0;
    char key[16];
    unlink(k->path);
    k->options.by_threads = round % 2 == 1;
    for (int kills = 0; kills < 3; kills++) {
      uint64_t told = kill_at_work(k, round * 8 + (uint64_t)kills, forgotten);
      assert_true(told >= 20);
    }
    filed_open_ready(k);
    for (uint32_t i = 0; i < KEYS; i++) {
      key_name(i, key);
      uint64_t version = filed_read(k, key);
      assert_true(version == 0 || version > forgotten[i]);
      found += version != 0;
    }
    assert_int_equal(found, filed_entries(k)); /* each is whole */
    filed_close(k);
  }
}

#define EACH(test)                                                             \
  cmocka_unit_test_setup_teardown(test, set_up, filed_tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      EACH(each_byte_of_a_record_counts),
      EACH(a_flipped_value_is_found_by_its_checksum),
      EACH(without_its_head_a_file_is_empty),
      EACH(no_damage_shows_what_is_not_so),
      EACH(values_are_no_records),
      cmocka_unit_test(entries_are_put_back_where_they_were),
      EACH(nothing_older_is_there_after_a_kill),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
