/* SPDX-License-Identifier: Apache-2.0
 *
 * blocks_test.c - the block allocator: its promises one by one, then random
 * use against a map of the pages that are taken.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/blocks.h"
#include "perigee.h"

enum { PAGE = 4096, PAGES = 1024, HELD = 200 };
static const uint64_t SPACE = (uint64_t)PAGE * PAGES;

static struct blocks blocks;

static int setup(void **state) {
  (void)state;
  return blocks_open(&blocks, SPACE, SPACE);
}

static int teardown(void **state) {
  (void)state;
  blocks_close(&blocks);
  return 0;
}

static void sizes_are_powers_of_two(void **state) {
  (void)state;
  const uint64_t sizes[][2] = {
      {0, PAGE},      {1, PAGE},       {PAGE, PAGE},      {PAGE + 1, 2 * PAGE},
      {65536, 65536}, {65537, 131072}, {1000000, 1 << 20}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    int64_t offset = blocks_take(&blocks, sizes[i][0]);
    assert_true(offset >= 0);
    assert_int_equal(offset % (int64_t)sizes[i][1], 0);
    assert_int_equal(blocks_size(&blocks, (uint64_t)offset), sizes[i][1]);
  }
}

static void last_given_is_first_taken(void **state) {
  (void)state;
  int64_t a = blocks_take(&blocks, 8192), b = blocks_take(&blocks, 8192);
  assert_int_equal(blocks_give(&blocks, (uint64_t)a), PERIGEE_OK);
  assert_int_equal(blocks_give(&blocks, (uint64_t)b), PERIGEE_OK);
  assert_int_equal(blocks_take(&blocks, 8000), b);
  assert_int_equal(blocks_take(&blocks, 8000), a);
}

static void garbage_is_reported(void **state) {
  (void)state;
  int64_t offset = blocks_take(&blocks, 4 * PAGE);
  const uint64_t wrong[] = {(uint64_t)offset + 1,
                            (uint64_t)offset + PAGE,
                            SPACE,
                            SPACE - PAGE,
                            UINT64_MAX,
                            PAGE / 2};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_int_equal(blocks_size(&blocks, wrong[i]), 0);
    assert_int_equal(blocks_give(&blocks, wrong[i]), PERIGEE_INVALID);
  }
  assert_int_equal(blocks_give(&blocks, (uint64_t)offset), PERIGEE_OK);
  assert_int_equal(blocks_give(&blocks, (uint64_t)offset), PERIGEE_INVALID);
  assert_int_equal(blocks.live, 0);
}

static void limits_are_typed(void **state) {
  (void)state;
  struct blocks small;
  assert_int_equal(blocks_open(&small, SPACE, 3 * PAGE), PERIGEE_OK);
  assert_int_equal(blocks_take(&small, 3 * PAGE + 1), PERIGEE_TOO_LARGE);
  assert_int_equal(blocks_take(&small, 3 * PAGE), PERIGEE_TOO_LARGE);
  assert_int_equal(blocks_take(&small, UINT64_MAX), PERIGEE_TOO_LARGE);
  int64_t offset = blocks_take(&small, 2 * PAGE);
  assert_true(offset >= 0);
  assert_int_equal(blocks_take(&small, 2 * PAGE), PERIGEE_AGAIN);
  assert_true(blocks_take(&small, PAGE) >= 0);
  assert_int_equal(blocks_give(&small, (uint64_t)offset), PERIGEE_OK);
  assert_true(blocks_take(&small, 2 * PAGE) >= 0);
  blocks_close(&small);
  assert_int_equal(blocks_open(&small, 100, 100), PERIGEE_INVALID);
  blocks_close(&small);
}

static void vast_space_costs_nothing(void **state) {
  (void)state;
  struct blocks vast;
  assert_int_equal(blocks_open(&vast, UINT64_C(1) << 41, UINT64_C(1) << 40),
                   PERIGEE_OK);
  int64_t offset = blocks_take(&vast, UINT64_C(1) << 40);
  assert_true(offset >= 0);
  assert_int_equal(blocks_give(&vast, (uint64_t)offset), PERIGEE_OK);
  blocks_close(&vast);
}

static void used_up_space_is_split_and_joined(void **state) {
  (void)state;
  static int64_t pages[PAGES];
  int64_t all = blocks_take(&blocks, SPACE);
  assert_int_equal(all, 0);
  blocks_give(&blocks, 0);
  for (int i = 0; i < PAGES; i++)
    assert_true((pages[i] = blocks_take(&blocks, PAGE)) >= 0);
  assert_int_equal(blocks_take(&blocks, PAGE), PERIGEE_AGAIN);
  for (int i = 0; i < PAGES; i++)
    blocks_give(&blocks, (uint64_t)pages[(i * 7) % PAGES]);
  assert_int_equal(blocks_take(&blocks, SPACE), 0);
}

static void idle_punches_each_block_once(void **state) {
  (void)state;
  uint64_t offset, sum = 0, size;
  assert_int_equal(blocks_idle(&blocks, 0, &offset), 0);
  int64_t a = blocks_take(&blocks, 16 * PAGE), b = blocks_take(&blocks, PAGE);
  blocks_give(&blocks, (uint64_t)a);
  blocks_give(&blocks, (uint64_t)b);
  assert_int_equal(blocks_idle(&blocks, 17 * PAGE, &offset), 0);
  assert_int_equal(blocks_idle(&blocks, 16 * PAGE, &offset), 16 * PAGE);
  assert_int_equal(offset, a);
  assert_int_equal(blocks_idle(&blocks, PAGE, &offset), 0);
  assert_int_equal(blocks_take(&blocks, 16 * PAGE), a);
  blocks_give(&blocks, (uint64_t)a);
  while ((size = blocks_idle(&blocks, 0, &offset)))
    sum += size;
  assert_int_equal(sum, 17 * PAGE);
}

static void mark(uint8_t *pages, uint64_t offset, uint64_t size, uint8_t was) {
  assert_true(offset + size <= SPACE);
  for (uint64_t i = offset / PAGE; i < (offset + size) / PAGE; i++) {
    assert_int_equal(pages[i], was);
    pages[i] = !was;
  }
}

static void random_use(void **state) {
  (void)state;
  static uint8_t pages[PAGES];
  int64_t held[HELD];
  uint64_t idle;
  memset(held, -1, sizeof held);
  srandom(3);
  for (int step = 0; step < 200000; step++) {
    int64_t *slot = &held[random() % HELD];
    if (*slot >= 0) {
      mark(pages, (uint64_t)*slot, blocks_size(&blocks, (uint64_t)*slot), 1);
      assert_int_equal(blocks_give(&blocks, (uint64_t)*slot), PERIGEE_OK);
      *slot = -1;
    } else {
      *slot = blocks_take(&blocks, UINT64_C(1) << (random() % 19));
      if (*slot >= 0)
        mark(pages, (uint64_t)*slot, blocks_size(&blocks, (uint64_t)*slot), 0);
    }
    uint64_t punched = random() % 64 ? 0 : blocks_idle(&blocks, PAGE, &idle);
    for (uint64_t i = 0; i < punched / PAGE; i++)
      assert_int_equal(pages[idle / PAGE + i], 0);
    assert_true(blocks.live + blocks.warm <= SPACE);
  }
  for (int i = 0; i < HELD; i++)
    if (held[i] >= 0)
      assert_int_equal(blocks_give(&blocks, (uint64_t)held[i]), PERIGEE_OK);
  assert_int_equal(blocks.live, 0);
  assert_int_equal(blocks_take(&blocks, SPACE), 0);
}

int main(void) {
#define test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
      test(sizes_are_powers_of_two),
      test(last_given_is_first_taken),
      test(garbage_is_reported),
      test(limits_are_typed),
      test(vast_space_costs_nothing),
      test(used_up_space_is_split_and_joined),
      test(idle_punches_each_block_once),
      test(random_use),
  };
  return cmocka_run_group_tests_name("blocks", tests, NULL, NULL);
}
