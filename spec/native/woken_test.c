/* SPDX-License-Identifier: Apache-2.0
 *
 * woken_test.c - whom a peer wakes that a call has just woken itself: who sleeps
 * for the reply, and not who sleeps after it.
 */
#include "support.h"

static uint64_t sleeps_of(const struct pair *p) {
  return perigee_counters(p->engine[1], NULL)->sleeps;
}

/* Sleeps for a moment. A wait whose time is over while it polls does not. */
static void listener_sleeps(struct pair *p) {
  uint64_t before = sleeps_of(p);
  struct perigee_event e;
  while (perigee_wait(&p->engine[1], 1, MS) != 0 || sleeps_of(p) == before)
    assert_int_equal(perigee_poll(p->engine[1], &e, 1), 0);
}

/* The listener is woken by a call and answers. `asleep`: the caller is asleep by
 * then. Returns how often the listener has woken the caller. */
static uint64_t wakes_of_an_answer(struct pair *p, bool asleep) {
  struct perigee_message m = {.head = "x", .length = 1, .timeout = -1};
  struct perigee_event e;
  uint64_t before = perigee_counters(p->engine[1], p->session[1])->wakes;
  listener_sleeps(p);
  int call = perigee_call(p->session[0], &m);
  while (asleep && perigee_arm(p->engine[0], NULL) == 1)
    assert_int_equal(perigee_poll(p->engine[0], &e, 1), 0);
  assert_int_equal(perigee_poll(p->engine[1], &e, 1), 1);
  assert_int_equal(perigee_reply(p->engine[1], e.operation, &m), 0);
  assert_int_equal(perigee_poll(p->engine[0], &e, 1), 1);
  assert_int_equal(e.operation, call);
  while (perigee_arm(p->engine[0], NULL) == 1)
    assert_int_equal(perigee_poll(p->engine[0], &e, 1), 0);
  assert_int_equal(perigee_poll(p->engine[1], &e, 1), 0);
  return perigee_counters(p->engine[1], p->session[1])->wakes - before;
}

static void who_sleeps_for_a_reply_is_woken(void **state) {
  struct pair p;
  pair_open(&p, *state);
  assert_int_equal(wakes_of_an_answer(&p, true), 1);
  pair_close(&p);
}

static void who_has_a_reply_and_sleeps_is_left_alone(void **state) {
  struct pair p;
  pair_open(&p, *state);
  assert_int_equal(wakes_of_an_answer(&p, false), 0);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(variant_default, who_sleeps_for_a_reply_is_woken),
      OVER(variant_default, who_has_a_reply_and_sleeps_is_left_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
