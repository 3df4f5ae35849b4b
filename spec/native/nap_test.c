/* SPDX-License-Identifier: Apache-2.0
 *
 * nap_test.c - how soon an engine looks again at work that no event tells of,
 * as a copy by a GPU. The clock is made up.
 */
#include "engine/polling.h"
#include "support.h"

enum { US = 1000, SECOND = 1000000000 };

static int64_t now;

static int64_t clock_of_test(void *context) {
  (void)context;
  return now;
}

/* An engine with such work, which was waited for since now. */
static struct perigee_engine *engine_with_work(void) {
  struct perigee_options o;
  struct perigee_engine *engine = NULL;
  perigee_options_init(&o, sizeof o);
  o.clock = clock_of_test;
  now = SECOND;
  assert_int_equal(perigee_engine_open(&o, &engine), PERIGEE_OK);
  engine->poll_soon = true;
  engine->now = now;
  return engine;
}

static int64_t nap_after(struct perigee_engine *engine, int64_t time) {
  engine->now += time;
  return engine_nap(engine, -1);
}

/* A sleep may end by something else, or not begin at all (perigee_arm). */
static void looks_become_rarer_by_time_and_not_by_their_number(void **state) {
  (void)state;
  struct perigee_engine *engine = engine_with_work();
  for (int i = 0; i < 1000; i++)
    assert_int_equal(nap_after(engine, 0), 50 * US);
  assert_int_equal(nap_after(engine, 3200 * US), 100 * US);
  assert_int_equal(nap_after(engine, 3200 * US), 200 * US);
  assert_int_equal(nap_after(engine, SECOND), 10000 * US);
  assert_int_equal(engine_nap(engine, 30 * US), 30 * US);
  engine->progress++;
  assert_int_equal(nap_after(engine, 10), 50 * US);
  perigee_engine_close(engine);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(looks_become_rarer_by_time_and_not_by_their_number),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
