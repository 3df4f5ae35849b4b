/* SPDX-License-Identifier: Apache-2.0
 *
 * spin_test.c - how long waits poll and when they give up the core: first the
 * decisions alone, from recorded ends of waits, then an engine's waits. There
 * the clock and sched_yield are the test's own: a test says who runs while the
 * core is given up.
 */
#include <sched.h>

#include "base/spin.h"
#include "support.h"

enum { US = 1000, MOST = 50 * US };

/* ---- Decisions ---------------------------------------------------------- */

/* Waits that end so many ns after they began, one after another. */
struct waits {
  struct spin spin;
  int64_t now, polled; /* ns, in vain or not */
  uint64_t progress;
  int found, slept;
};

static struct waits waits_of(int64_t most, bool always) {
  struct waits w = {.now = 0};
  spin_open(&w.spin, most, always);
  return w;
}

/* A process alone on its core waits for something that comes after `after`. */
static void one_of(struct waits *w, int64_t after, bool answer) {
  int64_t limit = spin_begin(&w->spin, w->now, w->progress, answer);
  bool found = after < limit;
  w->polled += found ? after : limit;
  w->now += after;
  w->found += found;
  w->slept += !found;
  if (found)
    spin_paid(&w->spin);
  else if (limit > 0)
    spin_wasted(&w->spin, w->now - after + limit, w->progress);
  if (!found)
    spin_woken(&w->spin, after);
  w->progress++;
}

static void one(struct waits *w, int64_t after) {
  one_of(w, after, false);
}

static void each(struct waits *w, int times, int64_t after) {
  while (times-- > 0)
    one(w, after);
}

static void what_comes_within_most_is_found_always(void **state) {
  (void)state;
  struct waits w = waits_of(MOST, false);
  each(&w, 1000, 45 * US);
  assert_int_equal(w.slept, 0);
}

/* As over RDMA, where sleeping and being woken takes much longer. */
static void a_default_is_longer_where_sleeping_is(void **state) {
  (void)state;
  struct waits w = waits_of(-1, false), given = waits_of(MOST, false);
  spin_lengthen(&w.spin, 4);
  spin_lengthen(&given.spin, 4);
  each(&w, 1000, 3 * MOST);
  each(&given, 1000, 3 * MOST);
  assert_int_equal(w.slept, 0);
  assert_int_equal(given.found, 0);
}

static void what_never_comes_soon_is_waited_for_asleep(void **state) {
  (void)state;
  struct waits w = waits_of(MOST, false);
  each(&w, 1000, 10000 * US);
  assert_int_equal(w.found, 0);
  assert_true(w.polled < 2 * MOST);
}

static void always_polls_whatever_comes(void **state) {
  (void)state;
  struct waits w = waits_of(MOST, true);
  each(&w, 1000, 10000 * US);
  assert_int_equal(w.polled, 1000 * MOST);
}

static void a_burst_after_a_long_rest_is_polled_for_at_once(void **state) {
  (void)state;
  struct waits w = waits_of(MOST, false);
  each(&w, 100, 10000 * US);
  w.found = w.slept = 0;
  each(&w, 100, 5 * US);
  assert_int_equal(w.slept, 1);
}

static void of_pairs_with_rests_between_the_second_is_found(void **state) {
  (void)state;
  struct waits w = waits_of(MOST, false);
  for (int i = 0; i < 100; i++) {
    one(&w, 10000 * US);
    one(&w, 5 * US);
  }
  assert_int_equal(w.found, 100);
}

static void rests_unlearn_nothing_about_answers(void **state) {
  (void)state;
  struct waits w = waits_of(MOST, false);
  for (int i = 0; i < 1000; i++) {
    one_of(&w, 45 * US, true);
    one_of(&w, 1000 * US, false);
  }
  assert_int_equal(w.found, 1000);
  assert_true(w.polled < 1000 * 45 * US + 2 * MOST);
}

/* As when the answering process needs this core and nothing tells so. */
static void what_is_there_only_asleep_costs_a_sixteenth(void **state) {
  (void)state;
  struct waits w = waits_of(MOST, false);
  for (int i = 0; i < 20000; i++) {
    int64_t limit = spin_begin(&w.spin, w.now, w.progress++, true);
    w.polled += limit;
    w.now += limit;
    if (limit > 0)
      spin_wasted(&w.spin, w.now, w.progress - 1);
    w.now += 20 * US;
    spin_woken(&w.spin, limit + 20 * US);
  }
  assert_true(w.polled < w.now / 16);
}

static void a_wait_that_goes_on_polls_once(void **state) {
  (void)state;
  struct spin s;
  spin_open(&s, MOST, false);
  assert_int_equal(spin_begin(&s, 0, 7, true), MOST);
  spin_wasted(&s, MOST, 7);
  assert_int_equal(spin_begin(&s, MOST, 7, true), 0);
  assert_int_equal(spin_begin(&s, 2 * MOST, 8, true), MOST / 2);
}

static void who_runs_when_the_core_is_given_up_is_noted(void **state) {
  (void)state;
  struct spin s;
  spin_open(&s, MOST, false);
  assert_true(spin_yields(&s, 0));
  spin_yielded(&s, 10 * US, 5 * US);
  assert_true(s.others && spin_yields(&s, 10 * US));
  spin_yielded(&s, 11 * US, 300);
  assert_false(s.others);
}

static void servers_of_a_core_do_not_seem_to_compute(void **state) {
  (void)state;
  struct spin s;
  spin_open(&s, MOST, false);
  spin_yielded(&s, MS, 7 * 100 * US);
  assert_true(s.others && spin_yields(&s, MS));
}

static void who_computes_gets_the_core_less_and_less(void **state) {
  (void)state;
  struct spin s;
  int64_t now = 0, lost = 0;
  spin_open(&s, MOST, false);
  while (now < 60000 * MS) {
    now += 10 * US;
    if (!spin_yields(&s, now))
      continue;
    now += 4 * MS;
    lost += 4 * MS;
    spin_yielded(&s, now, 4 * MS);
  }
  assert_true(lost < now / 64);
}

/* ---- An engine's waits -------------------------------------------------- */

static int64_t now_made_up, took;
static int yields;
static struct pair *to_run;  /* whose first side runs while we do not */
static struct pair *to_call; /* whose first side calls, when the clock is */
static uint64_t call_after;  /* read after so many polls of the second */

static void call(struct pair *p) {
  struct perigee_message m = {.head = "x", .length = 1, .timeout = -1};
  assert_true(perigee_call(p->session[0], &m) >= 0);
}

static const struct perigee_counters *counters(const struct pair *p) {
  return perigee_counters(p->engine[1], NULL);
}

static int64_t made_up(void *context) {
  struct pair *p = to_call;
  (void)context;
  if (p && counters(p)->polls >= call_after) {
    to_call = NULL;
    call(p);
  }
  return now_made_up += 20;
}

int sched_yield(void) {
  yields++;
  now_made_up += took;
  if (to_run)
    call(to_run);
  to_run = NULL;
  return 0;
}

static void open_pair(struct pair *p, void *state, bool always) {
  struct perigee_options o;
  variant_options(state, &o);
  o.clock = made_up;
  o.spin = 1 * MS;
  o.spin_always = always;
  o.progress = 0;
  pair_open_with(p, state, &o);
  yields = 0;
  took = 300;
}

static void answer(struct pair *p) {
  struct perigee_message m = {.status = PERIGEE_OK};
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(perigee_reply(p->engine[1], e.operation, &m), 0);
  until(p, 0, PERIGEE_EVENT_REPLY);
}

static void
the_peer_runs_on_the_core_of_who_waits_for_it_and_nobody_sleeps(void **state) {
  struct pair p;
  open_pair(&p, *state, false);
  uint64_t sleeps = counters(&p)->sleeps;
  for (int i = 0; i < 10; i++) {
    to_run = &p;
    took = 5 * US;
    assert_int_equal(perigee_wait(&p.engine[1], 1, 20000 * MS), 1);
    answer(&p);
  }
  assert_true(yields >= 10);
  assert_int_equal(counters(&p)->sleeps, sleeps);
  pair_close(&p);
}

static void wait_for(struct pair *p, uint64_t polls) {
  call_after = counters(p)->polls + polls;
  to_call = p;
  assert_int_equal(perigee_wait(&p->engine[1], 1, 20000 * MS), 1);
  answer(p);
}

/* The clock is read each 64 polls, whoever waits: for the first time with the
 * first poll of a wait, or its 64th, and the second 64 polls later. */
static void a_wait_keeps_the_core_when_the_clock_is_first_read(void **state) {
  struct pair p;
  open_pair(&p, *state, false);
  for (int i = 0; i < 20; i++)
    wait_for(&p, 65);
  assert_int_equal(yields, 0);
  wait_for(&p, 5 * 64);
  assert_in_range(yields, 3, 4);
  pair_close(&p);
}

/* Any other operation, which never ends by itself. */
static void wait_in_vain(struct pair *p) {
  struct perigee_event e;
  assert_int_equal(perigee_await(p->engine[1], 0, &e, 1 * MS), 0);
}

static void
where_the_core_is_wanted_it_is_given_up_after_each_poll(void **state) {
  struct pair p;
  open_pair(&p, *state, false);
  wait_in_vain(&p);
  int alone = yields;
  took = 5 * US;
  call(&p);
  answer(&p);
  yields = 0;
  uint64_t polls = counters(&p)->polls;
  wait_in_vain(&p);
  assert_true(alone > 0 && yields > 0);
  assert_true(counters(&p)->polls - polls < (uint64_t)yields + 130);
  pair_close(&p);
}

/* Over sockets the word that a long reply was taken comes with the next call. */
static void what_a_wait_has_found_is_given_without_another_poll(void **state) {
  static struct variant over = {"tcp", "tcp", "host", 1, NULL};
  static const uint8_t head[12 * KIB];
  struct perigee_message m = {.head = head, .length = sizeof head};
  struct perigee_event events[4], e;
  struct pair p;
  (void)state;
  open_pair(&p, &over, false);
  call(&p);
  e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(perigee_reply(p.engine[1], e.operation, &m), 1);
  until(&p, 0, PERIGEE_EVENT_REPLY);
  poll_side(&p, 0);
  to_run = &p;
  took = 5 * US;
  assert_int_equal(perigee_wait(&p.engine[1], 1, 20000 * MS), 1);
  assert_int_equal(perigee_poll(p.engine[1], NULL, 0), 0);
  uint64_t polls = counters(&p)->polls;
  assert_int_equal(perigee_poll(p.engine[1], events, 4), 2);
  assert_int_equal(counters(&p)->polls, polls);
  e = events[events[0].kind != PERIGEE_EVENT_REQUEST];
  assert_int_equal(e.kind, PERIGEE_EVENT_REQUEST);
  m.length = 0;
  assert_int_equal(perigee_reply(p.engine[1], e.operation, &m), 0);
  until(&p, 0, PERIGEE_EVENT_REPLY);
  pair_close(&p);
}

static void who_computes_is_given_the_core_once(void **state) {
  struct pair p;
  open_pair(&p, *state, false);
  took = 4 * MS;
  for (int i = 0; i < 10; i++) {
    wait_in_vain(&p);
    call(&p);
    answer(&p);
  }
  assert_int_equal(yields, 1);
  pair_close(&p);
}

static void waits_that_never_paid_poll_for_a_moment_only(void **state) {
  struct pair p;
  open_pair(&p, *state, false);
  uint64_t before = counters(&p)->spins;
  for (int i = 0; i < 50; i++) {
    wait_in_vain(&p);
    call(&p);
    answer(&p);
  }
  assert_in_range(counters(&p)->spins - before, 1, 6);
  pair_close(&p);
}

static void whose_core_is_its_own_polls_always_and_keeps_it(void **state) {
  struct pair p;
  open_pair(&p, *state, true);
  uint64_t before = counters(&p)->spins;
  for (int i = 0; i < 50; i++)
    wait_in_vain(&p);
  assert_int_equal(counters(&p)->spins - before, 50);
  assert_int_equal(yields, 0);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_comes_within_most_is_found_always),
      cmocka_unit_test(a_default_is_longer_where_sleeping_is),
      cmocka_unit_test(what_never_comes_soon_is_waited_for_asleep),
      cmocka_unit_test(always_polls_whatever_comes),
      cmocka_unit_test(a_burst_after_a_long_rest_is_polled_for_at_once),
      cmocka_unit_test(of_pairs_with_rests_between_the_second_is_found),
      cmocka_unit_test(rests_unlearn_nothing_about_answers),
      cmocka_unit_test(what_is_there_only_asleep_costs_a_sixteenth),
      cmocka_unit_test(a_wait_that_goes_on_polls_once),
      cmocka_unit_test(who_runs_when_the_core_is_given_up_is_noted),
      cmocka_unit_test(servers_of_a_core_do_not_seem_to_compute),
      cmocka_unit_test(who_computes_gets_the_core_less_and_less),
      cmocka_unit_test(what_a_wait_has_found_is_given_without_another_poll),
      OVER(variant_default,
           the_peer_runs_on_the_core_of_who_waits_for_it_and_nobody_sleeps),
      OVER(variant_default, a_wait_keeps_the_core_when_the_clock_is_first_read),
      OVER(variant_default,
           where_the_core_is_wanted_it_is_given_up_after_each_poll),
      OVER(variant_default, who_computes_is_given_the_core_once),
      OVER(variant_default, waits_that_never_paid_poll_for_a_moment_only),
      OVER(variant_default, whose_core_is_its_own_polls_always_and_keeps_it),
  };
  return cmocka_run_group_tests_name("spin", tests, NULL, NULL);
}
