/* SPDX-License-Identifier: Apache-2.0
 *
 * unwatched_test.c - the program's own descriptors: what is not watched any
 * more, what cannot be, and what was closed while it was.
 */
#include "watching.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

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
  assert_int_equal(perigee_rewatch(w.engine, fd, PERIGEE_HANGUP, 0),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_rewatch(w.engine, w.pipe[WRITE_END], WRITABLE, 0),
                   PERIGEE_NOT_FOUND);
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
               perigee_rewatch(w.engine, w.pipe[READ_END], READABLE, 1) ==
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

static void by_rewatching(struct world *w) {
  perigee_rewatch(w->engine, w->pipe[READ_END], READABLE, 2);
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
  void (*const ways[])(struct world *) = {by_polling, by_unwatching,
                                          by_rewatching, by_watching_the_next,
                                          by_closing_the_engine};
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    char said[512], wanted[64];
    assert_int_equal(die(state, ways[i], said, sizeof said), SIGABRT);
    snprintf(wanted, sizeof wanted, "descriptor %d was closed", atoi(said));
    assert_non_null(strstr(said, wanted));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(after_unwatch_nothing_comes),
      BOTH(a_number_may_be_used_again),
      BOTH(what_cannot_be_watched_is_refused_by_name),
      BOTH(a_child_process_has_no_part_in_it),
      BOTH(closing_a_watched_one_is_found),
  };
  return cmocka_run_group_tests_name("unwatched", tests, NULL, NULL);
}
