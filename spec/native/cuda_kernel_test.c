/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_kernel_test.c - the text of the copy kernel (memory/cuda/kernel.c), run
 * by an interpreter (ptx.h): over random tables it has to write each byte of
 * each piece, once, and no other, and to read no byte beyond them. And what is
 * made of the times of a trial (memory/cuda/trial.c).
 */
#include <stdlib.h>
#include <string.h>

#include "support.h"

#include "memory/cuda/cuda.h"
#include "ptx.h"

enum { ROOM = 256 * KIB, PIECES = 48, EDGE = 64 };

/* Memory of a run. Addresses are those of the arrays. */
static struct ground {
  _Alignas(64) struct piece table[PIECES];
  _Alignas(64) uint8_t from[ROOM];
  _Alignas(64) uint8_t to[ROOM];
  uint8_t written[ROOM], readable[ROOM];
  uint32_t count;
  uint64_t place;                 /* behind the last piece */
  uint64_t loads[17], stores[17]; /* by their bytes */
} ground;

static uint64_t randomness;

static uint64_t below(uint64_t n) {
  randomness = randomness * 6364136223846793005u + 1442695040888963407u;
  return (randomness >> 33) % n;
}

/* ---- Memory --------------------------------------------------------------- */

static bool lies_in(uint64_t at, uint32_t bytes, const void *base,
                    uint64_t length) {
  uint64_t offset = at - (uint64_t)(uintptr_t)base;
  return offset < length && bytes <= length - offset;
}

static void load(void *memory, uint64_t at, void *to, uint32_t bytes) {
  struct ground *g = memory;
  const void *from = (const void *)(uintptr_t)at; /* NOLINT */
  bool table = lies_in(at, bytes, g->table, g->count * sizeof *g->table);
  if (!table) {
    assert_true(lies_in(at, bytes, g->from, ROOM));
    for (uint64_t i = 0; i < bytes; i++)
      assert_true(g->readable[at + i - (uint64_t)(uintptr_t)g->from]);
    g->loads[bytes]++;
  }
  memcpy(to, from, bytes);
}

static void store(void *memory, uint64_t at, const void *from, uint32_t bytes) {
  struct ground *g = memory;
  uint64_t offset = at - (uint64_t)(uintptr_t)g->to;
  assert_true(lies_in(at, bytes, g->to, ROOM));
  memcpy(g->to + offset, from, bytes);
  for (uint32_t i = 0; i < bytes; i++)
    g->written[offset + i]++;
  g->stores[bytes]++;
}

/* ---- Tables --------------------------------------------------------------- */

static void ground_clear(void) {
  memset(&ground, 0, sizeof ground);
  ground.place = EDGE;
  for (uint64_t i = 0; i < ROOM; i++)
    ground.from[i] = (uint8_t)below(256);
}

/* Adds a piece whose sides begin so many bytes behind a multiple of 64. False:
 * there is no room. */
static bool ground_add(uint64_t bytes, uint64_t to, uint64_t from) {
  uint64_t place = (ground.place + EDGE) & ~UINT64_C(63);
  if (ground.count == PIECES || place + bytes + 2 * EDGE > ROOM)
    return false;
  ground.table[ground.count++] = (struct piece){
      (CUdeviceptr)(uintptr_t)(ground.to + place + to),
      (CUdeviceptr)(uintptr_t)(ground.from + place + from), bytes};
  memset(ground.readable + place + from, 1, bytes);
  ground.place = place + EDGE + bytes;
  return true;
}

static void ground_fill(void) {
  uint64_t lengths[] = {2, 40, 300, 9000}, units[] = {1, 2, 4, 8, 16};
  uint64_t most = 1 + below(PIECES);
  while (ground.count < most) {
    uint64_t unit = units[below(5)], from = below(EDGE / unit) * unit;
    uint64_t to = below(EDGE / unit) * unit, shift = below(3) ? 0 : below(16);
    if (!ground_add(below(lengths[below(4)]), (to + shift) % EDGE,
                    (from + shift) % EDGE))
      return;
  }
}

/* Returns the byte that belongs at this place of the destination, or NULL. */
static const uint8_t *source_of(uint64_t at) {
  uint64_t address = (uint64_t)(uintptr_t)(ground.to + at);
  for (uint32_t i = 0; i < ground.count; i++) {
    const struct piece *p = &ground.table[i];
    if (address - p->to < p->bytes)
      return ground.from + (p->from - (uint64_t)(uintptr_t)ground.from) +
             (address - p->to);
  }
  return NULL;
}

static void ground_check(void) {
  for (uint64_t at = 0; at < ground.place + EDGE && at < ROOM; at++) {
    const uint8_t *source = source_of(at);
    assert_int_equal(ground.written[at], source != NULL);
    if (source)
      assert_int_equal(ground.to[at], *source);
  }
}

static void run(const struct ptx *p, uint32_t blocks, uint32_t threads) {
  const struct ptx_run r = {
      .blocks = blocks,
      .threads = threads,
      .names = {"perigee_copy_table", "perigee_copy_count"},
      .values = {(uint64_t)(uintptr_t)ground.table, ground.count},
      .memory = &ground,
      .load = load,
      .store = store};
  ptx_run(p, &r);
  ground_check();
}

/* ---- Tests ---------------------------------------------------------------- */

static void it_copies_whatever_its_tables_say(void **state) {
  static const uint32_t threads[] = {1, 5, 32, 64, 96, 256};
  struct ptx *p = ptx_parse(kernel_text);
  (void)state;
  for (randomness = 1; randomness < 121; randomness++) {
    uint64_t seed = randomness;
    ground_clear();
    ground_fill();
    run(p, 1 + (uint32_t)below(ground.count + 3), threads[below(6)]);
    randomness = seed;
  }
  ptx_free(p);
}

/* All lengths about those at which the way of copying changes. */
static void it_copies_pieces_of_each_length(void **state) {
  struct ptx *p = ptx_parse(kernel_text);
  (void)state;
  for (uint64_t bytes = 0; bytes < 150; bytes++) {
    ground_clear();
    for (uint64_t to = 0; to < 16; to++)
      ground_add(bytes, to, below(2) ? to : below(16));
    run(p, 4, 2);
  }
  for (uint64_t bytes = 2040; bytes < 2060; bytes++) {
    ground_clear();
    for (uint64_t to = 0; to < 16; to++)
      ground_add(bytes, to, to);
    run(p, 16, 32);
  }
  ptx_free(p);
}

static void it_copies_nothing(void **state) {
  struct ptx *p = ptx_parse(kernel_text);
  (void)state;
  ground_clear();
  run(p, 3, 32);
  ground_add(0, 0, 0);
  ground_add(0, 3, 5);
  run(p, 3, 32);
  ptx_free(p);
}

static void words(const struct ptx *p, uint64_t to, uint64_t from,
                  uint64_t bytes, uint64_t word, uint64_t edges) {
  ground_clear();
  assert_true(ground_add(bytes, to, from));
  run(p, 1, 64);
  assert_int_equal(ground.loads[word] * word + edges, bytes);
  assert_int_equal(ground.loads[1], word == 1 ? bytes : edges);
  assert_memory_equal(ground.loads, ground.stores, sizeof ground.loads);
}

static void it_copies_in_the_longest_words(void **state) {
  struct ptx *p = ptx_parse(kernel_text);
  (void)state;
  words(p, 0, 0, 16384, 16, 0);
  words(p, 16, 48, 1024, 16, 0);
  words(p, 0, 0, 1000, 16, 8);
  words(p, 3, 19, 1000, 16, 13 + 11);
  words(p, 8, 16, 1024, 8, 0);
  words(p, 5, 13, 1024, 8, 3 + 5);
  words(p, 4, 8, 1024, 4, 0);
  words(p, 6, 2, 1024, 4, 2 + 2);
  words(p, 0, 2, 1024, 1, 0);
  words(p, 7, 0, 1024, 1, 0);
  words(p, 5, 5, 3, 16, 3);
  ptx_free(p);
}

/* ---- The rule ------------------------------------------------------------- */

static struct trial_times times(void) {
  struct trial_times t = {{{500, 100, 40},
                           {500, 110, 60},
                           {500, 200, 350},
                           {200, 60, 30},
                           {10, 12, 20}}};
  return t;
}

static void a_rule_is_where_times_meet(void **state) {
  struct trial_times t = times();
  (void)state;
  struct rule r = trial_judge(&t);
  /* 50 ahead at 16 KiB, 150 behind at 64: a quarter of the way. */
  assert_int_equal(r.kernel_most, 28 * KIB);
  assert_int_equal(r.kernel_least, 16);
  assert_true(r.batches);
  t.of[4][BY_KERNEL] = 9;
  assert_int_equal(trial_judge(&t).kernel_least, 4);
  t.of[3][BY_KERNEL] = 61;
  assert_int_equal(trial_judge(&t).kernel_least, 64);
  t.of[2][BY_KERNEL] = 199;
  assert_int_equal(trial_judge(&t).kernel_most, 64 * KIB);
}

static void a_slower_kernel_has_no_rule(void **state) {
  struct trial_times t = times();
  (void)state;
  t.of[0][BY_KERNEL] = 100;
  assert_int_equal(trial_judge(&t).kernel_most, 0);
  t = times();
  t.of[1][BY_KERNEL] = 1000000000;
  assert_int_equal(trial_judge(&t).kernel_most, 4 * KIB);
  for (int i = 0; i < SAMPLES; i++)
    t.of[i][BY_KERNEL] = t.of[i][BY_BATCH] = 1000000000;
  assert_int_equal(trial_judge(&t).kernel_most, 0);
  assert_false(trial_judge(&t).batches);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(it_copies_whatever_its_tables_say),
      cmocka_unit_test(it_copies_pieces_of_each_length),
      cmocka_unit_test(it_copies_nothing),
      cmocka_unit_test(it_copies_in_the_longest_words),
      cmocka_unit_test(a_rule_is_where_times_meet),
      cmocka_unit_test(a_slower_kernel_has_no_rule),
  };
  return cmocka_run_group_tests_name("cuda_kernel", tests, NULL, NULL);
}
