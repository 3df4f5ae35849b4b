/* SPDX-License-Identifier: Apache-2.0
 *
 * watched_test.c - the program's own descriptors (perigee_watch), with engines
 * with and without a thread.
 */
#include "support.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { READ_END, WRITE_END, MANY = 600, BATCH = 64 };
enum { READABLE = PERIGEE_READABLE, WRITABLE = PERIGEE_WRITABLE };

/* ---- An engine and pipes ------------------------------------------------ */

struct world {
  struct perigee_engine *engine;
  int pipe[2];
};

static const int32_t without = 0, with = 1; /* a thread */

static struct perigee_engine *open_engine(void **state, uint32_t watched) {
  struct perigee_engine *engine;
  struct perigee_options o;
  perigee_options(&o);
  o.progress = *(int32_t *)*state;
  o.watched = watched;
  assert_int_equal(perigee_engine_open(&o, &engine), 0);
  return engine;
}

static void open_pipe(int fds[2]) {
  assert_int_equal(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
}

static void close_pipe(int fds[2]) {
  close(fds[READ_END]);
  close(fds[WRITE_END]);
}

static void world_open(struct world *w, void **state) {
  w->engine = open_engine(state, 4096);
  open_pipe(w->pipe);
}

static void world_close(struct world *w) {
  perigee_engine_close(w->engine);
  close_pipe(w->pipe);
}

static void put(int fd) {
  assert_int_equal(write(fd, "x", 1), 1);
}

static int get(int fd) {
  char bytes[64];
  return (int)read(fd, bytes, sizeof bytes);
}

static void watch(struct perigee_engine *engine, int fd, int events,
                  uint64_t token) {
  assert_int_equal(perigee_watch(engine, fd, events, token), 0);
}

static void unwatch(struct perigee_engine *engine, int fd) {
  assert_int_equal(perigee_unwatch(engine, fd), 0);
}

static const struct timespec A_WHILE = {0, 50 * 1000000};

/* ---- What comes of it --------------------------------------------------- */

static struct perigee_event next(struct perigee_engine *engine) {
  struct perigee_event e;
  for (int n; (n = perigee_poll(engine, &e, 1)) != 1;) {
    assert_int_equal(n, 0);
    assert_int_equal(perigee_wait(&engine, 1, 10000 * MS), 1);
  }
  return e;
}

static void check_ready(const struct perigee_event *e, int fd, int ready,
                        uint64_t token) {
  assert_int_equal(e->kind, PERIGEE_EVENT_READY);
  assert_int_equal(e->descriptor, fd);
  assert_int_equal(e->flags, ready);
  assert_int_equal(e->code, token);
  assert_int_equal(e->status, PERIGEE_OK);
  assert_int_equal(e->operation, -1);
}

static void is_ready(struct perigee_engine *engine, int fd, int ready,
                     uint64_t token) {
  struct perigee_event e = next(engine);
  check_ready(&e, fd, ready, token);
}

/* The engine looks at epoll, which has nothing. */
static void nothing(struct perigee_engine *engine) {
  struct perigee_event e;
  assert_int_equal(perigee_arm(engine, NULL), 0);
  assert_int_equal(perigee_poll(engine, &e, 1), 0);
}

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

/* ---- Ends --------------------------------------------------------------- */

static void after_unwatch_nothing_comes(void **state) {
  struct world w;
  struct perigee_event e;
  int other[2];
  world_open(&w, state);
  open_pipe(other);
  put(w.pipe[WRITE_END]);
  put(other[WRITE_END]);
  watch(w.engine, w.pipe[READ_END], READABLE, 1); /* not looked at yet */
  unwatch(w.engine, w.pipe[READ_END]);
  nothing(w.engine);
  watch(w.engine, w.pipe[READ_END], READABLE, 1); /* found by a wait */
  assert_int_equal(perigee_wait(&w.engine, 1, 10000 * MS), 1);
  unwatch(w.engine, w.pipe[READ_END]);
  nothing(w.engine);
  watch(w.engine, w.pipe[READ_END], READABLE, 1); /* there was no room */
  watch(w.engine, other[READ_END], READABLE, 2);
  e = next(w.engine);
  int left = e.code == 1 ? other[READ_END] : w.pipe[READ_END];
  unwatch(w.engine, left);
  unwatch(w.engine, (int)e.descriptor); /* it was told */
  nothing(w.engine);
  assert_int_equal(perigee_unwatch(w.engine, left), PERIGEE_NOT_FOUND);
  close_pipe(other);
  world_close(&w);
}

static void a_number_may_be_used_again(void **state) {
  struct world w;
  world_open(&w, state);
  for (int i = 0; i < 100; i++) {
    int fds[2];
    open_pipe(fds);
    watch(w.engine, fds[READ_END], READABLE, (uint64_t)i);
    nothing(w.engine);
    put(fds[WRITE_END]);
    is_ready(w.engine, fds[READ_END], READABLE, (uint64_t)i);
    unwatch(w.engine, fds[READ_END]);
    close_pipe(fds);
  }
  world_close(&w);
}

static void refuse(struct perigee_engine *engine, int fd, int events,
                   int status, const char *why) {
  char name[32];
  snprintf(name, sizeof name, "descriptor %d", fd);
  assert_int_equal(perigee_watch(engine, fd, events, 0), status);
  assert_non_null(strstr(perigee_detail(engine), name));
  assert_non_null(strstr(perigee_detail(engine), why));
}

static void what_cannot_be_watched_is_refused_by_name(void **state) {
  struct world w;
  int other[2];
  world_open(&w, state);
  struct perigee_engine *small = open_engine(state, 1);
  FILE *file = tmpfile();
  int folder = open("/", O_RDONLY | O_CLOEXEC);
  int fd = w.pipe[READ_END];
  open_pipe(other);
  close_pipe(other);
  refuse(w.engine, other[READ_END], READABLE, PERIGEE_INVALID, "not open");
  refuse(w.engine, -1, READABLE, PERIGEE_INVALID, "not open");
  refuse(w.engine, fileno(file), READABLE, PERIGEE_UNSUPPORTED, "ready");
  refuse(w.engine, folder, READABLE, PERIGEE_UNSUPPORTED, "ready");
  refuse(w.engine, fd, 0, PERIGEE_INVALID, "events");
  refuse(w.engine, fd, READABLE | PERIGEE_HANGUP, PERIGEE_INVALID, "events");
  refuse(w.engine, perigee_fd(w.engine), READABLE, PERIGEE_INVALID, "own");
  watch(w.engine, fd, READABLE, 0);
  refuse(w.engine, fd, READABLE, PERIGEE_INVALID, "already");
  refuse(w.engine, fd, WRITABLE, PERIGEE_INVALID, "already");
  watch(small, fd, READABLE, 0);
  refuse(small, w.pipe[WRITE_END], WRITABLE, PERIGEE_NO_MEMORY, "watched");
  unwatch(small, fd);
  watch(small, w.pipe[WRITE_END], WRITABLE, 0);
  assert_int_equal(perigee_unwatch(small, fd), PERIGEE_NOT_FOUND);
  close(folder);
  fclose(file);
  perigee_engine_close(small);
  world_close(&w);
}

static void a_child_process_has_no_part_in_it(void **state) {
  struct world w;
  int status;
  world_open(&w, state);
  watch(w.engine, w.pipe[READ_END], READABLE, 1);
  pid_t child = fork();
  if (child == 0) {
    int fine = perigee_watch(w.engine, w.pipe[WRITE_END], WRITABLE, 1) ==
                   PERIGEE_FORKED &&
               perigee_unwatch(w.engine, w.pipe[READ_END]) == PERIGEE_FORKED;
    close_pipe(w.pipe);
    perigee_engine_close(w.engine);
    _exit(fine ? 0 : 1);
  }
  waitpid(child, &status, 0);
  assert_int_equal(status, 0);
  put(w.pipe[WRITE_END]);
  is_ready(w.engine, w.pipe[READ_END], READABLE, 1);
  world_close(&w);
}

/* ---- Closed while it is watched ----------------------------------------- */

static void by_polling(struct world *w) {
  struct perigee_event e;
  for (int i = 0; i < 100; i++) {
    perigee_arm(w->engine, NULL);
    perigee_poll(w->engine, &e, 1);
  }
}

static void by_unwatching(struct world *w) {
  perigee_unwatch(w->engine, w->pipe[READ_END]);
}

static void by_watching_the_next(struct world *w) {
  int fd = fcntl(w->pipe[WRITE_END], F_DUPFD, w->pipe[READ_END]);
  perigee_watch(w->engine, fd, WRITABLE, 2);
}

static void by_closing_the_engine(struct world *w) {
  perigee_engine_close(w->engine);
}

/* What a child prints as it dies of the fault. The engine is the child's. */
static int die(void **state, void (*find)(struct world *), char *said,
               size_t size) {
  int err[2], status;
  assert_int_equal(pipe(err), 0);
  pid_t child = fork();
  if (child == 0) {
    struct rlimit none = {0};
    struct world w;
    signal(SIGABRT, SIG_DFL); /* cmocka has its own */
    setrlimit(RLIMIT_CORE, &none);
    dup2(err[1], STDERR_FILENO);
    world_open(&w, state);
    perigee_watch(w.engine, w.pipe[READ_END], READABLE, 1);
    dprintf(err[1], "%d: ", w.pipe[READ_END]);
    close(w.pipe[READ_END]);
    find(&w);
    _exit(0);
  }
  close(err[1]);
  ssize_t n = read(err[0], said, size - 1);
  for (ssize_t more = n; more > 0; n += more)
    more = read(err[0], said + n, size - 1 - (size_t)n);
  said[n] = '\0';
  close(err[0]);
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void closing_a_watched_one_is_found(void **state) {
  void (*const ways[])(struct world *) = {
      by_polling, by_unwatching, by_watching_the_next, by_closing_the_engine};
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    char said[512], wanted[64];
    assert_int_equal(die(state, ways[i], said, sizeof said), SIGABRT);
    snprintf(wanted, sizeof wanted, "descriptor %d was closed", atoi(said));
    assert_non_null(strstr(said, wanted));
  }
}

#define BOTH(test) OVER(without, test), OVER(with, test)

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
      BOTH(the_thread_sleeps_beside_what_nobody_handles),
      BOTH(after_unwatch_nothing_comes),
      BOTH(a_number_may_be_used_again),
      BOTH(what_cannot_be_watched_is_refused_by_name),
      BOTH(a_child_process_has_no_part_in_it),
      BOTH(closing_a_watched_one_is_found),
  };
  return cmocka_run_group_tests_name("watched", tests, NULL, NULL);
}
