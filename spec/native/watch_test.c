/* SPDX-License-Identifier: Apache-2.0
 *
 * watch_test.c - a sleep is a look at the sockets: what it took from epoll is
 * told once, and the look that it makes unnecessary is not left out for good.
 */
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/engine.h"
#include "core/watch.h"
#include "support.h"

static const struct timespec none = {0};

struct told {
  struct watcher watcher;
  int times;
};

static void told(struct watcher *watcher, uint32_t events) {
  assert_int_equal(events, EPOLLIN);
  CONTAINER(watcher, struct told, watcher)->times++;
}

struct bench {
  struct perigee_engine *engine;
  struct told patient, other;
  int fds[2]; /* of the two, ready; of `other` an edge */
};

static void bench_open(struct bench *b, bool both) {
  *b = (struct bench){.patient.watcher = {.ready = told, .patient = true},
                      .other.watcher = {.ready = told}};
  struct told *of[] = {&b->patient, &b->other};
  assert_int_equal(perigee_engine_open(NULL, &b->engine), 0);
  for (int i = 0; i < 2; i++) {
    b->fds[i] = eventfd(i == 0 || both, EFD_CLOEXEC);
    assert_int_equal(watch_add(b->engine, b->fds[i], &of[i]->watcher,
                               EPOLLIN | (i ? EPOLLET : 0u)),
                     0);
  }
}

static void bench_close(struct bench *b) {
  for (int i = 0; i < 2; i++)
    close(b->fds[i]);
  perigee_engine_close(b->engine);
}

static void who_is_patient_is_called_by_the_next_look(void **state) {
  struct bench b;
  (void)state;
  bench_open(&b, false);
  assert_int_equal(watch_sleep(b.engine, &none), 1);
  assert_int_equal(b.patient.times, 0);
  watch_poll(b.engine);
  assert_int_equal(b.patient.times, 1);
  watch_poll(b.engine); /* it is ready still */
  assert_int_equal(b.patient.times, 2);
  bench_close(&b);
}

static void among_several_nobody_waits(void **state) {
  struct bench b;
  (void)state;
  bench_open(&b, true);
  assert_int_equal(watch_sleep(b.engine, &none), 2);
  assert_int_equal(b.patient.times, 1);
  assert_int_equal(b.other.times, 1);
  watch_poll(b.engine); /* the sleep has just looked */
  assert_int_equal(b.patient.times, 1);
  watch_poll(b.engine);
  assert_int_equal(b.patient.times, 2);
  assert_int_equal(b.other.times, 1);
  bench_close(&b);
}

static void who_is_removed_before_its_turn_is_not_called(void **state) {
  struct bench b;
  (void)state;
  bench_open(&b, false);
  assert_int_equal(watch_sleep(b.engine, &none), 1);
  assert_true(watch_remove(b.engine, b.fds[0]));
  watch_poll(b.engine);
  assert_int_equal(b.patient.times, 0);
  bench_close(&b);
}

static void what_was_added_since_the_sleep_is_looked_at(void **state) {
  struct bench b;
  struct told added = {.watcher = {.ready = told}};
  int fd = eventfd(1, EFD_CLOEXEC);
  (void)state;
  bench_open(&b, true);
  assert_int_equal(watch_sleep(b.engine, &none), 2);
  assert_int_equal(watch_add(b.engine, fd, &added.watcher, EPOLLIN), 0);
  watch_poll(b.engine);
  assert_int_equal(added.times, 1);
  close(fd);
  bench_close(&b);
}

static void a_look_left_to_a_sleep_that_never_came_is_made(void **state) {
  struct bench b;
  (void)state;
  bench_open(&b, true);
  watch_leave(b.engine);
  watch_poll(b.engine);
  assert_int_equal(b.other.times, 0);
  watch_again(b.engine);
  assert_true(b.engine->sockets_due);
  watch_poll(b.engine);
  assert_int_equal(b.other.times, 1);
  bench_close(&b);
}

static void a_look_counts_for_a_short_time(void **state) {
  struct bench b;
  (void)state;
  bench_open(&b, false);
  assert_int_equal(eventfd_write(b.fds[1], 1), 0);
  assert_int_equal(watch_sleep(b.engine, &none), 2);
  b.engine->now += 1000000;
  watch_poll(b.engine);
  assert_int_equal(b.patient.times, 2);
  bench_close(&b);
}

static void who_arms_after_a_sleep_looks(void **state) {
  struct bench b;
  (void)state;
  bench_open(&b, false);
  assert_int_equal(watch_sleep(b.engine, &none), 1);
  assert_int_equal(eventfd_write(b.fds[1], 1), 0);
  perigee_arm(b.engine, NULL);
  assert_int_equal(b.other.times, 1);
  bench_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(who_is_patient_is_called_by_the_next_look),
      cmocka_unit_test(among_several_nobody_waits),
      cmocka_unit_test(who_is_removed_before_its_turn_is_not_called),
      cmocka_unit_test(what_was_added_since_the_sleep_is_looked_at),
      cmocka_unit_test(a_look_left_to_a_sleep_that_never_came_is_made),
      cmocka_unit_test(a_look_counts_for_a_short_time),
      cmocka_unit_test(who_arms_after_a_sleep_looks),
  };
  return cmocka_run_group_tests_name("watch", tests, NULL, NULL);
}
