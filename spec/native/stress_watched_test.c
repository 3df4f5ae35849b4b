/* SPDX-License-Identifier: Apache-2.0
 *
 * stress_watched_test.c - no wake-up is lost: threads write single bytes into
 * pipes that an engine watches, at random moments, and the program waits for
 * them in every possible way. If a wake-up is lost, the wait for it times out.
 */
#include "support.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PIPES = 16, WRITERS = 2, BATCH = 4 };
#ifdef __SANITIZE_THREAD__
enum { BYTES = 5000 };
#else
enum { BYTES = 20000 };
#endif

/* Each writes to its own pipes; both ends belong to the test. */
struct writer {
  pthread_t thread;
  unsigned seed;
  int *fds;
};

static void pause_for_a_bit(unsigned *seed) {
  const struct timespec t = {0, rand_r(seed) % 200000};
  int dice = rand_r(seed) % 8;
  if (dice == 0)
    nanosleep(&t, NULL);
  else if (dice < 3)
    sched_yield();
}

static void *write_bytes(void *context) {
  struct writer *w = context;
  for (int i = 0; i < BYTES; i++) {
    if (write(w->fds[rand_r(&w->seed) % (PIPES / WRITERS)], "x", 1) != 1)
      abort();
    pause_for_a_bit(&w->seed);
  }
  return NULL;
}

/* ---- Ways to wait ------------------------------------------------------- */

static void by_wait(struct perigee_engine *engine) {
  assert_int_equal(perigee_wait(&engine, 1, 20000 * MS), 1);
}

static void by_descriptor(struct perigee_engine *engine) {
  struct pollfd fd = {.fd = perigee_fd(engine), .events = POLLIN};
  if (perigee_arm(engine, NULL) == 0)
    assert_int_equal(poll(&fd, 1, 20000), 1);
}

/* Longer than the engine's thread waits before it polls for the program. */
static void by_computing(struct perigee_engine *engine) {
  const struct timespec t = {0, 3 * MS};
  (void)engine;
  nanosleep(&t, NULL);
}

static void by_polling(struct perigee_engine *engine) {
  (void)engine;
}

static void wait_somehow(struct perigee_engine *engine, unsigned *seed) {
  static void (*const ways[])(struct perigee_engine *) = {
      by_wait, by_descriptor, by_polling};
  if (rand_r(seed) % 256 == 0)
    by_computing(engine);
  else
    ways[rand_r(seed) % 3](engine);
}

/* ---- The program -------------------------------------------------------- */

/* Now and then a ready descriptor is left unread, or not watched for a
 * moment. */
static int handle(struct perigee_engine *engine, const struct perigee_event *e,
                  unsigned *seed) {
  char bytes[16];
  int fd = (int)e->descriptor, dice = rand_r(seed) % 16;
  assert_int_equal(e->kind, PERIGEE_EVENT_READY);
  if (dice == 0)
    return 0;
  ssize_t n = read(fd, bytes, sizeof bytes);
  if (dice == 1) {
    assert_int_equal(perigee_unwatch(engine, fd), 0);
    assert_int_equal(perigee_watch(engine, fd, PERIGEE_READABLE, e->code), 0);
  }
  return n > 0 ? (int)n : 0;
}

static void every_byte_is_heard_of(void **state) {
  struct perigee_engine *engine;
  struct perigee_options o;
  struct writer writers[WRITERS];
  int from[PIPES], to[PIPES], left = WRITERS * BYTES;
  unsigned seed = 1;
  perigee_options_init(&o, sizeof o);
  o.progress = *(int32_t *)*state;
  assert_int_equal(perigee_engine_open(&o, &engine), 0);
  for (int i = 0; i < PIPES; i++) {
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    from[i] = fds[0];
    to[i] = fds[1];
    assert_int_equal(
        perigee_watch(engine, from[i], PERIGEE_READABLE, (uint64_t)i), 0);
  }
  for (int i = 0; i < WRITERS; i++) {
    writers[i] = (struct writer){.seed = 10 + (unsigned)i,
                                 .fds = to + i * (PIPES / WRITERS)};
    pthread_create(&writers[i].thread, NULL, write_bytes, &writers[i]);
  }
  while (left > 0) {
    struct perigee_event events[BATCH];
    wait_somehow(engine, &seed);
    int n = perigee_poll(engine, events, BATCH);
    for (int i = 0; i < n; i++)
      left -= handle(engine, &events[i], &seed);
  }
  assert_int_equal(left, 0);
  for (int i = 0; i < WRITERS; i++)
    pthread_join(writers[i].thread, NULL);
  for (int i = 0; i < PIPES; i++) {
    assert_int_equal(perigee_unwatch(engine, from[i]), 0);
    close(from[i]);
    close(to[i]);
  }
  perigee_engine_close(engine);
}

static const int32_t without = 0, with = 1; /* a thread */

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(without, every_byte_is_heard_of),
      OVER(with, every_byte_is_heard_of),
  };
  return cmocka_run_group_tests_name("watched descriptors under stress", tests,
                                     NULL, NULL);
}
