/* SPDX-License-Identifier: Apache-2.0
 *
 * watched_test.c - the program's own descriptors (perigee_watch), with engines
 * with and without a thread. unwatched_test.c has what ends that.
 */
#include "watching.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>

enum { MANY = 600, BATCH = 64 };

static const struct timespec A_WHILE = {0, 50 * 1000000};

/* ---- What comes of it --------------------------------------------------- */

static void it_tells_of_what_is_ready(void **state) {
  struct world w;
  world_open(&w, state);
  watch(w.engine, w.pipe[READ_END], READABLE, 7);
  nothing(w.engine);
  put(w.pipe[WRITE_END]);
  is_ready(w.engine, w.pipe[READ_END], READABLE, 7);
  assert_int_equal(get(w.pipe[READ_END]), 1);
  nothing(w.engine);
  watch(w.engine, w.pipe[WRITE_END], WRITABLE, UINT64_MAX);
  is_ready(w.engine, w.pipe[WRITE_END], WRITABLE, UINT64_MAX);
  world_close(&w);
}

static void both_directions_are_told_together(void **state) {
  int fds[2];
  struct perigee_engine *engine = open_engine(state, 1);
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  watch(engine, fds[0], READABLE | WRITABLE, 1);
  is_ready(engine, fds[0], WRITABLE, 1);
  put(fds[1]);
  is_ready(engine, fds[0], READABLE | WRITABLE, 1);
  perigee_engine_close(engine);
  close_pipe(fds);
}

static void what_is_left_unread_is_told_again(void **state) {
  struct world w;
  struct perigee_event e[BATCH];
  world_open(&w, state);
  watch(w.engine, w.pipe[READ_END], READABLE, 1);
  put(w.pipe[WRITE_END]);
  put(w.pipe[WRITE_END]);
  for (int i = 0; i < 100; i++) {
    assert_int_equal(perigee_wait(&w.engine, 1, 10000 * MS), 1);
    int n = perigee_poll(w.engine, e, BATCH);
    assert_in_range(n, 0, 1); /* what wakes is looked at by the next poll */
    for (int k = 0; k < n; k++)
      check_ready(&e[k], w.pipe[READ_END], READABLE, 1);
  }
  assert_int_equal(get(w.pipe[READ_END]), 2);
  while (perigee_poll(w.engine, e, BATCH) > 0)
    ;
  nothing(w.engine);
  world_close(&w);
}

static void what_was_told_is_told_by_the_very_next_poll(void **state) {
  struct world w;
  struct perigee_event e;
  world_open(&w, state);
  watch(w.engine, w.pipe[READ_END], READABLE, 1);
  put(w.pipe[WRITE_END]);
  is_ready(w.engine, w.pipe[READ_END], READABLE, 1);
  for (int i = 0; i < 4; i++) {
    if (i > 1) /* a thread has polled since */
      nanosleep(&A_WHILE, NULL);
    assert_int_equal(perigee_poll(w.engine, &e, 1), 1);
    check_ready(&e, w.pipe[READ_END], READABLE, 1);
  }
  world_close(&w);
}

static void the_end_is_told(void **state) {
  struct world w;
  int other[2];
  world_open(&w, state);
  open_pipe(other);
  watch(w.engine, w.pipe[READ_END], READABLE, 1);
  watch(w.engine, other[WRITE_END], WRITABLE, 2);
  is_ready(w.engine, other[WRITE_END], WRITABLE, 2);
  close(other[READ_END]);
  is_ready(w.engine, other[WRITE_END], WRITABLE | PERIGEE_HANGUP, 2);
  unwatch(w.engine, other[WRITE_END]);
  close(w.pipe[WRITE_END]);
  is_ready(w.engine, w.pipe[READ_END], READABLE | PERIGEE_HANGUP, 1);
  perigee_engine_close(w.engine);
  close(w.pipe[READ_END]);
  close(other[WRITE_END]);
}

static void hundreds_at_once_are_told_once_each(void **state) {
  struct perigee_engine *engine = open_engine(state, 2 * MANY);
  struct perigee_event events[BATCH];
  int fds[MANY], told[MANY] = {0}, left = MANY;
  for (int i = 0; i < MANY; i++) {
    fds[i] = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_true(fds[i] >= 0);
    watch(engine, fds[i], READABLE, (uint64_t)i);
  }
  while (left > 0) {
    int n = perigee_poll(engine, events, BATCH);
    for (int k = 0; k < n; k++, left--) {
      uint64_t i = events[k].code;
      check_ready(&events[k], fds[i], READABLE, i);
      assert_int_equal(get(fds[i]), 8);
      assert_int_equal(told[i]++, 0);
    }
    if (n == 0)
      assert_int_equal(perigee_wait(&engine, 1, 10000 * MS), 1);
  }
  nothing(engine);
  for (int i = 0; i < MANY; i++) {
    unwatch(engine, fds[i]);
    close(fds[i]);
  }
  perigee_engine_close(engine);
}

/* None of them is handled, and each gets its turn. */
static void who_is_always_ready_passes_over_nobody(void **state) {
  enum { FEW = 50 };
  struct perigee_engine *engine = open_engine(state, FEW);
  struct perigee_event e;
  int fds[FEW], told[FEW] = {0};
  for (int i = 0; i < FEW; i++) {
    fds[i] = eventfd(1, EFD_CLOEXEC);
    watch(engine, fds[i], READABLE, (uint64_t)i);
  }
  for (int i = 0; i < 10 * FEW; i++) {
    e = next(engine);
    told[e.code]++;
  }
  for (int i = 0; i < FEW; i++) {
    assert_in_range(told[i], 8, 12);
    unwatch(engine, fds[i]);
    close(fds[i]);
  }
  perigee_engine_close(engine);
}

/* ---- Sleeping ----------------------------------------------------------- */

static void *put_later(void *fd) {
  nanosleep(&A_WHILE, NULL);
  put(*(int *)fd);
  return NULL;
}

static void a_wait_is_woken(void **state) {
  struct world w;
  pthread_t writer;
  world_open(&w, state);
  watch(w.engine, w.pipe[READ_END], READABLE, 3);
  pthread_create(&writer, NULL, put_later, &w.pipe[WRITE_END]);
  is_ready(w.engine, w.pipe[READ_END], READABLE, 3);
  pthread_join(writer, NULL);
  world_close(&w);
}

static void an_await_for_something_else_ends(void **state) {
  struct world w;
  struct perigee_event e;
  world_open(&w, state);
  int op = perigee_connect(w.engine, "tcp://192.0.2.1:1", NULL, 10000 * MS);
  assert_true(op >= 0);
  watch(w.engine, w.pipe[READ_END], READABLE, 3);
  put(w.pipe[WRITE_END]);
  while (perigee_await(w.engine, op, &e, 1000 * MS) == 0)
    if (perigee_poll(w.engine, &e, 1) == 1)
      break;
  if (e.kind == PERIGEE_EVENT_CONNECTED) /* there is no way there */
    e = next(w.engine);
  check_ready(&e, w.pipe[READ_END], READABLE, 3);
  world_close(&w);
}

static void another_loop_is_woken_by_the_engines_descriptor(void **state) {
  struct world w;
  pthread_t writer;
  world_open(&w, state);
  struct pollfd outer = {.fd = perigee_fd(w.engine), .events = POLLIN};
  watch(w.engine, w.pipe[READ_END], READABLE, 3);
  for (int i = 0; i < 3; i++) {
    nothing(w.engine);
    assert_int_equal(perigee_arm(w.engine, NULL), 0);
    pthread_create(&writer, NULL, put_later, &w.pipe[WRITE_END]);
    assert_int_equal(poll(&outer, 1, 10000), 1);
    is_ready(w.engine, w.pipe[READ_END], READABLE, 3);
    assert_int_equal(perigee_arm(w.engine, NULL), 1); /* it was not read */
    is_ready(w.engine, w.pipe[READ_END], READABLE, 3);
    assert_int_equal(get(w.pipe[READ_END]), 1);
    pthread_join(writer, NULL);
  }
  world_close(&w);
}

static void one_engine_watches_another(void **state) {
  struct world w;
  world_open(&w, state);
  struct perigee_engine *outer = open_engine(state, 4);
  watch(w.engine, w.pipe[READ_END], READABLE, 1);
  nothing(w.engine);
  assert_int_equal(perigee_arm(w.engine, NULL), 0);
  watch(outer, perigee_fd(w.engine), READABLE, 2);
  put(w.pipe[WRITE_END]);
  is_ready(outer, perigee_fd(w.engine), READABLE, 2);
  is_ready(w.engine, w.pipe[READ_END], READABLE, 1);
  unwatch(outer, perigee_fd(w.engine));
  perigee_engine_close(outer);
  world_close(&w);
}

static void two_engines_watch_the_same(void **state) {
  struct world w;
  world_open(&w, state);
  struct perigee_engine *other = open_engine(state, 4);
  watch(w.engine, w.pipe[READ_END], READABLE, 1);
  watch(other, w.pipe[READ_END], READABLE, 2);
  put(w.pipe[WRITE_END]);
  is_ready(w.engine, w.pipe[READ_END], READABLE, 1);
  is_ready(other, w.pipe[READ_END], READABLE, 2);
  perigee_engine_close(other);
  world_close(&w);
}

/* ---- Changes ------------------------------------------------------------ */

static void rewatch(struct perigee_engine *engine, int fd, int events,
                    uint64_t token) {
  assert_int_equal(perigee_rewatch(engine, fd, events, token), 0);
}

static void events_and_token_are_changed(void **state) {
  int fds[2];
  struct perigee_engine *engine = open_engine(state, 1);
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  watch(engine, fds[0], READABLE, 1);
  nothing(engine);
  rewatch(engine, fds[0], WRITABLE, 2);
  is_ready(engine, fds[0], WRITABLE, 2);
  put(fds[1]);
  rewatch(engine, fds[0], READABLE, 3); /* from what was told */
  is_ready(engine, fds[0], READABLE, 3);
  assert_int_equal(perigee_wait(&engine, 1, 10000 * MS), 1);
  rewatch(engine, fds[0], READABLE | WRITABLE, 4); /* and found again */
  is_ready(engine, fds[0], READABLE | WRITABLE, 4);
  perigee_engine_close(engine);
  close_pipe(fds);
}

static void one_without_events_is_quiet_until_it_has_some(void **state) {
  struct world w;
  world_open(&w, state);
  watch(w.engine, w.pipe[READ_END], READABLE, 1);
  rewatch(w.engine, w.pipe[READ_END], 0, 2); /* before it is ready */
  put(w.pipe[WRITE_END]);
  nothing(w.engine);
  rewatch(w.engine, w.pipe[READ_END], READABLE, 3);
  is_ready(w.engine, w.pipe[READ_END], READABLE, 3);
  rewatch(w.engine, w.pipe[READ_END], 0, 4); /* when it was told */
  rewatch(w.engine, w.pipe[READ_END], 0, 5);
  nothing(w.engine);
  rewatch(w.engine, w.pipe[READ_END], READABLE, 6);
  assert_int_equal(perigee_wait(&w.engine, 1, 10000 * MS), 1);
  rewatch(w.engine, w.pipe[READ_END], 0, 7); /* when a wait has found it */
  close(w.pipe[WRITE_END]);
  nothing(w.engine);
  unwatch(w.engine, w.pipe[READ_END]);
  nothing(w.engine);
  perigee_engine_close(w.engine);
  close(w.pipe[READ_END]);
}

/* Descriptors already reported do not keep the thread from anything,
 * including sleep: it polls as rarely as with nothing to watch. */
static void the_thread_sleeps_beside_what_nobody_handles(void **state) {
  struct world w;
  world_open(&w, state);
  watch(w.engine, w.pipe[READ_END], READABLE, 1);
  put(w.pipe[WRITE_END]);
  for (int i = 0; i < 2; i++) {
    nanosleep(&A_WHILE, NULL);
    uint64_t before = perigee_counters(w.engine, NULL)->polls;
    for (int k = 0; k < 4; k++)
      nanosleep(&A_WHILE, NULL);
    assert_in_range(perigee_counters(w.engine, NULL)->polls - before, 0, 40);
    is_ready(w.engine, w.pipe[READ_END], READABLE, 1);
  }
  world_close(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(it_tells_of_what_is_ready),
      BOTH(both_directions_are_told_together),
      BOTH(what_is_left_unread_is_told_again),
      BOTH(what_was_told_is_told_by_the_very_next_poll),
      BOTH(the_end_is_told),
      BOTH(hundreds_at_once_are_told_once_each),
      BOTH(who_is_always_ready_passes_over_nobody),
      BOTH(a_wait_is_woken),
      BOTH(an_await_for_something_else_ends),
      BOTH(another_loop_is_woken_by_the_engines_descriptor),
      BOTH(one_engine_watches_another),
      BOTH(two_engines_watch_the_same),
      BOTH(events_and_token_are_changed),
      BOTH(one_without_events_is_quiet_until_it_has_some),
      BOTH(the_thread_sleeps_beside_what_nobody_handles),
  };
  return cmocka_run_group_tests_name("watched", tests, NULL, NULL);
}
