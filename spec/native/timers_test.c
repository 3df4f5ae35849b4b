/* SPDX-License-Identifier: Apache-2.0
 *
 * timers_test.c - the timing wheel against a plain list of armed timers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/timers.h"

enum { COUNT = 500 };
static const int64_t SECOND = 1000000000, HOUR = 3600 * SECOND;

static int setup(void **state) {
  struct timers *timers = malloc(sizeof *timers);
  timers_open(timers, SECOND);
  *state = timers;
  return 0;
}

static int teardown(void **state) {
  free(*state);
  return 0;
}

static void empty_wheel_sleeps_for_ever(void **state) {
  assert_null(timers_expired(*state, HOUR));
  assert_int_equal(timers_next(*state), -1);
}

static void never_early_and_one_tick_late(void **state) {
  struct timer timer = {0};
  int64_t due = SECOND + 12345678;
  timers_add(*state, &timer, due);
  assert_null(timers_expired(*state, due - 1));
  assert_ptr_equal(timers_expired(*state, due + TIMERS_TICK), &timer);
  assert_null(timer.next);
  assert_null(timers_expired(*state, due + TIMERS_TICK));
}

static void past_is_due_at_once(void **state) {
  struct timer timers[2] = {0};
  timers_add(*state, &timers[0], SECOND);
  timers_add(*state, &timers[1], 0);
  assert_true(timers_next(*state) <= SECOND);
  assert_ptr_equal(timers_expired(*state, SECOND), &timers[0]);
  assert_ptr_equal(timers_expired(*state, SECOND), &timers[1]);
  assert_null(timers_expired(*state, SECOND));
}

static void removed_never_comes(void **state) {
  struct timer timers[2] = {0};
  timers_remove(*state, &timers[0]);
  timers_add(*state, &timers[0], 2 * SECOND);
  timers_add(*state, &timers[1], 0);
  timers_remove(*state, &timers[0]);
  timers_remove(*state, &timers[1]);
  timers_remove(*state, &timers[1]);
  assert_null(timers_expired(*state, HOUR));
  assert_int_equal(timers_next(*state), -1);
}

static void jump_of_hours_finds_all(void **state) {
  struct timer timers[COUNT] = {0};
  for (int i = 0; i < COUNT; i++)
    timers_add(*state, &timers[i], SECOND + i * 7 * SECOND);
  int found = 0;
  while (timers_expired(*state, 5 * HOUR))
    found++;
  assert_int_equal(found, COUNT);
}

static void sleeping_until_next_finds_it(void **state) {
  const int64_t after[] = {1, TIMERS_TICK, 40 * SECOND, HOUR, INT64_MAX / 2};
  for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
    struct timers *timers = *state;
    struct timer timer = {0};
    timers_open(timers, SECOND);
    timers_add(timers, &timer, SECOND + after[i]);
    int64_t next = timers_next(timers);
    assert_true(next >= timer.due && next - timer.due < TIMERS_TICK);
    assert_ptr_equal(timers_expired(timers, next), &timer);
  }
}

static void no_limit_is_allowed(void **state) {
  struct timer timer = {0};
  timers_add(*state, &timer, INT64_MAX);
  assert_true(timers_next(*state) > 1000 * HOUR);
  assert_null(timers_expired(*state, 1000 * HOUR));
}

static void bound_after_removal_is_corrected(void **state) {
  struct timer near = {0}, far = {0};
  timers_add(*state, &near, 2 * SECOND);
  timers_add(*state, &far, HOUR);
  timers_remove(*state, &near);
  int64_t early = timers_next(*state);
  assert_true(early <= HOUR);
  assert_null(timers_expired(*state, early));
  int64_t next = timers_next(*state);
  assert_true(next >= HOUR && next < HOUR + TIMERS_TICK);
}

/* Exactly the armed timers that are due (give or take a tick) must fire. */
static void check_step(struct timers *wheel, struct timer *timers,
                       int64_t now) {
  for (struct timer *found; (found = timers_expired(wheel, now));)
    assert_true(found->due <= now);
  int64_t least = INT64_MAX;
  for (int i = 0; i < COUNT; i++) {
    if (!timers[i].next)
      continue;
    assert_true(timers[i].due > now - TIMERS_TICK);
    if (timers[i].due < least)
      least = timers[i].due;
  }
  int64_t next = timers_next(wheel);
  if (least == INT64_MAX)
    assert_int_equal(next, -1);
  else
    assert_true(next < least + TIMERS_TICK);
}

static void random_steps(void **state) {
  struct timer timers[COUNT] = {0};
  int64_t now = SECOND;
  srandom(7);
  for (int step = 0; step < 200000; step++) {
    struct timer *timer = &timers[random() % COUNT];
    int64_t within = random() % 2 ? 3 * SECOND : SECOND / 100;
    if (timer->next)
      timers_remove(*state, timer);
    else
      timers_add(*state, timer, now - 1000 + random() % within);
    if (random() % 8)
      continue;
    now += random() % (random() % 50 ? SECOND / 500 : 4 * SECOND);
    check_step(*state, timers, now);
  }
}

int main(void) {
#define test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
      test(empty_wheel_sleeps_for_ever),
      test(never_early_and_one_tick_late),
      test(past_is_due_at_once),
      test(removed_never_comes),
      test(jump_of_hours_finds_all),
      test(sleeping_until_next_finds_it),
      test(no_limit_is_allowed),
      test(bound_after_removal_is_corrected),
      test(random_steps),
  };
  return cmocka_run_group_tests_name("timers", tests, NULL, NULL);
}
