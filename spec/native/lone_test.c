/* SPDX-License-Identifier: Apache-2.0
 *
 * lone_test.c - the events that a poll returns after a wait: an event that came
 * alone is returned at once, without another look; events that came together
 * are all returned.
 */
#include <pthread.h>
#include <time.h>

#include "support.h"

enum { CALLS = 10, ROOM = 64 };

static void open_pair(struct pair *p, void *state) {
  struct perigee_options o;
  variant_options(state, &o);
  o.spin = 10000 * MS;
  o.progress = 0;
  pair_open_with(p, state, &o);
}

static uint64_t polls(const struct pair *p) {
  return perigee_counters(p->engine[1], NULL)->polls;
}

static void call(struct pair *p) {
  struct perigee_message m = {.head = "x", .length = 1, .timeout = -1};
  assert_true(perigee_call(p->session[0], &m) >= 0);
}

static void answer(struct pair *p, const struct perigee_event *e) {
  struct perigee_message m = {.status = PERIGEE_OK};
  assert_int_equal(e->kind, PERIGEE_EVENT_REQUEST);
  assert_int_equal(perigee_reply(p->engine[1], e->operation, &m), 0);
  until(p, 0, PERIGEE_EVENT_REPLY);
}

/* Begins when the other side waits. */
static void *call_late(void *context) {
  const struct timespec t = {0, 20 * MS};
  nanosleep(&t, NULL);
  call(context);
  return NULL;
}

/* False if the call arrived before the wait had looked for it once in vain. */
static bool is_waited_for(struct pair *p) {
  struct perigee_event e[ROOM];
  pthread_t caller;
  uint64_t begun = polls(p);
  assert_int_equal(pthread_create(&caller, NULL, call_late, p), 0);
  assert_int_equal(perigee_wait(&p->engine[1], 1, 20000 * MS), 1);
  uint64_t before = polls(p);
  assert_int_equal(perigee_poll(p->engine[1], e, ROOM), 1);
  bool waited = before - begun > 1;
  if (waited)
    assert_int_equal(polls(p), before);
  pthread_join(caller, NULL);
  answer(p, &e[0]);
  return waited;
}

/* Tries again if the machine did not begin the wait in time. */
static void what_was_waited_for_is_given_without_another_look(void **state) {
  struct pair p;
  int times = 1;
  open_pair(&p, *state);
  while (!is_waited_for(&p))
    assert_in_range(times++, 1, 100);
  pair_close(&p);
}

static void what_came_together_is_given_together(void **state) {
  struct perigee_event e[ROOM];
  struct pair p;
  open_pair(&p, *state);
  for (int i = 0; i < CALLS; i++)
    call(&p);
  assert_int_equal(perigee_wait(&p.engine[1], 1, 20000 * MS), 1);
  assert_int_equal(perigee_poll(p.engine[1], e, ROOM), CALLS);
  for (int i = 0; i < CALLS; i++)
    answer(&p, &e[i]);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(variant_default, what_was_waited_for_is_given_without_another_look),
      OVER(variant_default, what_came_together_is_given_together),
  };
  return cmocka_run_group_tests_name("lone", tests, NULL, NULL);
}
