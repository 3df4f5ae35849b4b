/* SPDX-License-Identifier: Apache-2.0
 *
 * woken_test.c - whom a peer wakes that a call has just woken itself: who sleeps
 * for the reply, and not who sleeps after it. And whom the end of a call wakes: who
 * sleeps over its reply, or over the rest of its request.
 */
#include <poll.h>

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

/* The listener has nothing to do, and is to be woken for more. */
static bool listener_is_asleep(struct pair *p) {
  struct pollfd fd = {.fd = perigee_fd(p->engine[1]), .events = POLLIN};
  return perigee_arm(p->engine[1], NULL) == 0 && poll(&fd, 1, 0) == 0;
}

static void listener_falls_asleep(struct pair *p) {
  struct perigee_event e;
  int64_t end = clock_now() + 20000 * MS;
  while (!listener_is_asleep(p)) {
    assert_int_equal(perigee_poll(p->engine[1], &e, 1), 0);
    assert_true(clock_now() < end);
  }
}

static void listener_is_woken(struct pair *p) {
  struct pollfd fd = {.fd = perigee_fd(p->engine[1]), .events = POLLIN};
  if (poll(&fd, 1, 20000) != 1)
    fail_msg("the end of the call woke nobody");
}

/* A call whose reply refers to the listener's memory. The caller cancels it before
 * it reads the reply, or cannot take the reply. */
static void replied_by_reference(void *state, bool cancels) {
  static uint8_t bytes[MIB];
  struct perigee_message m = {.head = "x", .length = 1, .timeout = -1};
  struct perigee_region *own;
  struct pair p;
  pair_open(&p, state);
  assert_int_equal(
      perigee_region_register(p.engine[1], NULL, bytes, MIB, 0, NULL, &own), 0);
  m.capacity = cancels ? 0 : 1;
  int call = perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  struct perigee_message r = {.slice = all_of(own, MIB)};
  assert_int_equal(perigee_reply(p.engine[1], e.operation, &r), 1);
  listener_falls_asleep(&p);
  p.still[1] = true;
  if (cancels)
    perigee_cancel(p.engine[0], call);
  ended(&p, 0, call, cancels ? PERIGEE_CANCELLED : PERIGEE_PROTOCOL);
  listener_is_woken(&p);
  p.still[1] = false;
  assert_int_equal(until(&p, 1, PERIGEE_EVENT_SENT).status, 0);
  region_end(own);
  pair_close(&p);
}

static void who_sleeps_over_a_reply_is_woken_by_the_end_of_its_call(void **s) {
  replied_by_reference(*s, true);
}

static void who_sleeps_over_a_reply_is_woken_if_it_is_not_taken(void **state) {
  replied_by_reference(*state, false);
}

/* The rest of it waits for the caller's next poll. */
static void
who_sleeps_over_a_request_is_woken_by_the_end_of_its_call(void **s) {
  static uint8_t bytes[MIB];
  struct perigee_message m = {.head = bytes, .length = MIB, .timeout = -1};
  struct pair p;
  pair_open(&p, *s);
  int call = perigee_call(p.session[0], &m);
  listener_falls_asleep(&p);
  assert_int_equal(operations(&p, 1), 1);
  perigee_cancel(p.engine[0], call);
  listener_is_woken(&p);
  ended(&p, 0, call, PERIGEE_CANCELLED);
  settle(&p);
  pair_close(&p);
}

int main(void) {
  static const struct variant staged = {"shm without pulling, host", "shm",
                                        "host", 0, NULL};
  const struct CMUnitTest tests[] = {
      OVER(variant_default, who_sleeps_for_a_reply_is_woken),
      OVER(variant_default, who_has_a_reply_and_sleeps_is_left_alone),
      OVER(variant_default,
           who_sleeps_over_a_reply_is_woken_by_the_end_of_its_call),
      OVER(staged, who_sleeps_over_a_reply_is_woken_by_the_end_of_its_call),
      OVER(variant_default,
           who_sleeps_over_a_reply_is_woken_if_it_is_not_taken),
      OVER(staged, who_sleeps_over_a_request_is_woken_by_the_end_of_its_call),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
