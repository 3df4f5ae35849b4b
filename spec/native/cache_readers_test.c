/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_readers_test.c - readers of the mapped directory in other processes,
 * which are killed, and whose writer is killed; and a directory of lies.
 */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cached_readers.h"

enum { READERS = 2, WRITES = 20000, KILLS = 12 };

static struct readers_room *room_open(void) {
  struct readers_room *room = cached_map(sizeof *room);
  room->k = readers_open();
  return room;
}

static void room_close(struct readers_room *room) {
  struct cached k = room->k;
  munmap(room, sizeof *room);
  cached_close(&k);
}

/* A child does not outlive a test that has failed. */
static pid_t child_start(void) {
  pid_t child = fork();
  if (child == 0)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
  return child;
}

static pid_t reader_start(struct readers_room *room, int number) {
  pid_t child = child_start();
  if (child == 0) {
    readers_run(room, number);
    _exit(0);
  }
  return child;
}

static uint64_t good_of(struct readers_room *room) {
  uint64_t sum = 0;
  for (int i = 0; i < READERS; i++)
    sum += atomic_load(&room->good[i]);
  return sum;
}

/* ---- Readers that are killed ------------------------------------------- */

static void writes(struct readers_room *room, uint64_t *step, uint64_t *dice,
                   int count) {
  for (int i = 0; i < count; i++)
    readers_write(&room->k, ++*step, dice);
}

static void readers_get_whole_values_or_none(void **state) {
  struct readers_room *room = room_open();
  pid_t children[READERS];
  uint64_t step = 0, dice = 9;
  (void)state;
  for (int i = 0; i < READERS; i++)
    children[i] = reader_start(room, i);
  for (int kills = 0; kills < KILLS; kills++) {
    uint64_t before = good_of(room);
    writes(room, &step, &dice, WRITES);
    while (good_of(room) < before + 200)
      writes(room, &step, &dice, 100);
    int victim = kills % READERS, status;
    kill(children[victim], SIGKILL);
    waitpid(children[victim], &status, 0);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    children[victim] = reader_start(room, victim);
  }
  atomic_store(&room->stop, 1);
  for (int i = 0; i < READERS; i++) {
    int status;
    waitpid(children[i], &status, 0);
    assert_int_equal(status, 0);
  }
  assert_int_equal(atomic_load(&room->bad), 0);
  room_close(room);
}

/* ---- Growth ------------------------------------------------------------ */

/* Looks for the key that is there all the time. */
static pid_t steady_start(struct readers_room *room) {
  pid_t child = child_start();
  if (child != 0)
    return child;
  struct perigee_cache_view *view = readers_view(&room->k);
  struct perigee_cache_place place;
  while (!atomic_load_explicit(&room->stop, memory_order_relaxed)) {
    int status = perigee_cache_seen(view, "steady", 6, &place);
    atomic_fetch_add(status == PERIGEE_NOT_FOUND ? &room->bad : &room->good[0],
                     1);
  }
  _exit(0);
}

static void a_growing_table_hides_nothing(void **state) {
  enum { GROWTHS = 40, ENTRIES = 12000 };
  struct perigee_cache_options o = {.quota = 64 * (uint64_t)MB};
  char key[32];
  (void)state;
  for (int i = 0; i < GROWTHS; i++) {
    struct readers_room *room = cached_map(sizeof *room);
    room->k = cached_open(&o);
    cached_put(&room->k, "steady", 0);
    pid_t child = steady_start(room);
    while (atomic_load(&room->good[0]) == 0)
      ;
    for (int n = 0; n < ENTRIES; n++) {
      snprintf(key, sizeof key, "growth %d", n);
      assert_true(cached_put(&room->k, key, 0) > 0);
    }
    atomic_store(&room->stop, 1);
    waitpid(child, NULL, 0);
    assert_int_equal(atomic_load(&room->bad), 0);
    room_close(room);
  }
}

/* ---- A writer that is killed ------------------------------------------- */

static pid_t writer_start(struct readers_room *room, uint64_t seed) {
  pid_t child = child_start();
  if (child == 0)
    for (uint64_t step = 1;; step++)
      readers_write(&room->k, step, &seed);
  return child;
}

/* The store that the child writes is a copy of this one, whose directory and
 * slabs are shared. It dies at any step; what it leaves misleads nobody. */
static void a_dead_writer_misleads_nobody(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= KILLS; seed++) {
    struct readers_room *room = room_open();
    struct perigee_cache_view *view = readers_view(&room->k);
    pid_t child = writer_start(room, seed);
    uint64_t dice = seed, good = 0;
    while (good < 500 * seed) {
      int result =
          readers_read(&room->k, view, readers_roll(&dice) % READER_KEYS);
      assert_in_range(result + 1, 1, 2);
      good += result == 1;
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    for (int i = 0; i < 10 * READER_KEYS; i++)
      assert_in_range(
          readers_read(&room->k, view, (uint64_t)i % READER_KEYS) + 1, 1, 2);
    perigee_cache_view_close(view);
    room_close(room);
  }
}

/* ---- Lies -------------------------------------------------------------- */

/* Any word of the directory may be anything. A copy of what was read is not
 * asked for; no look may leave the pieces, or never end. */
static void a_directory_of_lies_is_survived(void **state) {
  struct cached k = readers_open();
  uint64_t dice = 3;
  (void)state;
  for (uint64_t step = 1; step < 3000; step++)
    readers_write(&k, step, &dice);
  struct perigee_cache_view *view = readers_view(&k);
  uint32_t *words = k.pieces[0];
  uint32_t end = (FIRST_CHUNK + 8) * (CHUNK / 4);
  for (int i = 0; i < 400000; i++) {
    uint32_t at = (uint32_t)readers_roll(&dice) % end;
    words[at] = readers_roll(&dice) % 2 ? (uint32_t)readers_roll(&dice)
                                        : 1U << readers_roll(&dice) % 32;
    if (i % 2)
      words[at ^ 1] = 0;
    struct perigee_cache_place place = {.bucket = words[at]};
    char name[128];
    uint32_t length = readers_key(readers_roll(&dice) % READER_KEYS, name);
    perigee_cache_seen(view, name, length, &place);
    perigee_cache_same(view, name, length, &place);
  }
  perigee_cache_view_pieces(view);
  perigee_cache_view_close(view);
  munmap(k.slabs[0], k.lengths[0]);
  k.slabs[0] = NULL;
  cached_close(&k);
}

static void a_view_takes_only_a_directory(void **state) {
  struct cached k = readers_open();
  struct perigee_cache_view *view = perigee_cache_view_open();
  struct perigee_cache_place place = {0};
  char *other = cached_map(PERIGEE_CACHE_PIECE);
  (void)state;
  assert_int_equal(perigee_cache_seen(view, "a", 1, &place), PERIGEE_INVALID);
  assert_int_equal(perigee_cache_same(view, "a", 1, &place), 0);
  assert_int_equal(perigee_cache_view_pieces(view), PERIGEE_INVALID);
  assert_int_equal(perigee_cache_view_piece(view, 0, other), PERIGEE_PROTOCOL);
  assert_int_equal(perigee_cache_view_piece(view, PERIGEE_CACHE_PIECES, other),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_cache_view_piece(view, 0, k.pieces[0]), 0);
  assert_int_equal(perigee_cache_view_pieces(view), 2);
  assert_int_equal(perigee_cache_seen(view, "a", 1, &place), PERIGEE_NOT_FOUND);
  assert_int_equal(perigee_cache_seen(view, "a", 0, &place), PERIGEE_INVALID);
  assert_int_equal(perigee_cache_seen(view, "a", 513, &place), PERIGEE_INVALID);
  munmap(other, PERIGEE_CACHE_PIECE);
  perigee_cache_view_close(view);
  cached_close(&k);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(readers_get_whole_values_or_none),
      cmocka_unit_test(a_growing_table_hides_nothing),
      cmocka_unit_test(a_dead_writer_misleads_nobody),
      cmocka_unit_test(a_directory_of_lies_is_survived),
      cmocka_unit_test(a_view_takes_only_a_directory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
