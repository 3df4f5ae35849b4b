/* SPDX-License-Identifier: Apache-2.0
 *
 * simulation_test.c - thousands of simulated worlds (simulation.h) of two
 * engines, by worlds.h.
 */
#include "simulation.h"
#include "support.h"
#include "worlds.h"

static void run(uint64_t seed) {
  simulate(seed, false);
}

static void every_world_ends_well(void **state) {
  (void)state;
  assert_int_equal(worlds_run(run), 0);
}

static void a_world_is_the_same_each_time(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 64; seed++) {
    if (!world_is_exact(seed))
      continue;
    uint64_t first = simulate(seed, false), second = simulate(seed, false);
    if (first != second)
      fail_msg("seed %llu goes otherwise the second time",
               (unsigned long long)seed);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_world_ends_well),
      cmocka_unit_test(a_world_is_the_same_each_time),
  };
  if (worlds_alone()) {
    simulate(worlds_alone(), true);
    return 0;
  }
  return cmocka_run_group_tests(tests, NULL, NULL);
}
