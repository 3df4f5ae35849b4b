/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_world_test.c - thousands of worlds of a cache and its clients
 * (cache_world.h), by worlds.h. Broken rules have to be found.
 */
#include "cache_world.h"
#include "support.h"
#include "worlds.h"

enum { FIND_WITHIN = 2000 };

static enum rule rule;

static void run(uint64_t seed) {
  cache_world(seed, rule, false);
}

static void every_world_ends_well(void **state) {
  (void)state;
  rule = ALL_RULES;
  assert_int_equal(worlds_run(run), 0);
}

static void a_world_is_the_same_each_time(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 16; seed++) {
    if (!cache_world_is_exact(seed))
      continue;
    struct tally first = cache_world(seed, ALL_RULES, false);
    struct tally second = cache_world(seed, ALL_RULES, false);
    assert_memory_equal(&first, &second, sizeof first);
  }
}

static void a_broken_rule_is_found(void **state) {
  rule = *(const enum rule *)*state;
  assert_true(worlds_fail(run, 1, FIND_WITHIN));
}

#define BREAKS(which)                                                          \
  {                                                                            \
    "a broken rule is found: " #which, a_broken_rule_is_found, NULL, NULL,     \
        &(enum rule) {                                                         \
      which                                                                    \
    }                                                                          \
  }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_world_ends_well),
      cmocka_unit_test(a_world_is_the_same_each_time),
      BREAKS(NO_MARGIN),
      BREAKS(NO_LOOK_AFTERWARD),
      BREAKS(NO_SECOND_LOOK),
      BREAKS(FROM_THE_ANSWER),
      BREAKS(SEALED_TOO_SOON),
      BREAKS(SEALED_IN_PIECES),
      BREAKS(WRONG_ONE_GONE),
      BREAKS(NEVER_GONE),
  };
  if (worlds_alone()) {
    cache_world(worlds_alone(), ALL_RULES, true);
    return 0;
  }
  return cmocka_run_group_tests(tests, NULL, NULL);
}
