/* SPDX-License-Identifier: Apache-2.0
 *
 * watching.h - an engine that watches pipes of the program, and what it tells
 * of them.
 */
#ifndef WATCHING_H
#define WATCHING_H

#include "support.h"

#include <fcntl.h>
#include <unistd.h>

enum { READ_END, WRITE_END };
enum { READABLE = PERIGEE_READABLE, WRITABLE = PERIGEE_WRITABLE };

struct world {
  struct perigee_engine *engine;
  int pipe[2];
};

static const int32_t without = 0, with = 1; /* a thread */

static inline struct perigee_engine *open_engine(void **state,
                                                 uint32_t watched) {
  struct perigee_engine *engine;
  struct perigee_options o;
  perigee_options_init(&o, sizeof o);
  o.progress = *(int32_t *)*state;
  o.watched = watched;
  assert_int_equal(perigee_engine_open(&o, &engine), 0);
  return engine;
}

static inline void open_pipe(int fds[2]) {
  assert_int_equal(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
}

static inline void close_pipe(int fds[2]) {
  close(fds[READ_END]);
  close(fds[WRITE_END]);
}

static inline void world_open(struct world *w, void **state) {
  w->engine = open_engine(state, 4096);
  open_pipe(w->pipe);
}

static inline void world_close(struct world *w) {
  perigee_engine_close(w->engine);
  close_pipe(w->pipe);
}

static inline void put(int fd) {
  assert_int_equal(write(fd, "x", 1), 1);
}

static inline int get(int fd) {
  char bytes[64];
  return (int)read(fd, bytes, sizeof bytes);
}

static inline void watch(struct perigee_engine *engine, int fd, int events,
                         uint64_t token) {
  assert_int_equal(perigee_watch(engine, fd, events, token), 0);
}

static inline void unwatch(struct perigee_engine *engine, int fd) {
  assert_int_equal(perigee_unwatch(engine, fd), 0);
}

static inline struct perigee_event next(struct perigee_engine *engine) {
  struct perigee_event e;
  for (int n; (n = perigee_poll(engine, &e, 1)) != 1;) {
    assert_int_equal(n, 0);
    assert_int_equal(perigee_wait(&engine, 1, 10000 * MS), 1);
  }
  return e;
}

static inline void check_ready(const struct perigee_event *e, int fd, int ready,
                               uint64_t token) {
  assert_int_equal(e->kind, PERIGEE_EVENT_READY);
  assert_int_equal(e->descriptor, fd);
  assert_int_equal(e->flags, ready);
  assert_int_equal(e->code, token);
  assert_int_equal(e->status, PERIGEE_OK);
  assert_int_equal(e->operation, -1);
}

static inline void is_ready(struct perigee_engine *engine, int fd, int ready,
                            uint64_t token) {
  struct perigee_event e = next(engine);
  check_ready(&e, fd, ready, token);
}

/* The engine looks at epoll, which has nothing. */
static inline void nothing(struct perigee_engine *engine) {
  struct perigee_event e;
  assert_int_equal(perigee_arm(engine, NULL), 0);
  assert_int_equal(perigee_poll(engine, &e, 1), 0);
}

/* Runs a test with an engine without a thread, and with one that has one. */
#define BOTH(test) OVER(without, test), OVER(with, test)

#endif
