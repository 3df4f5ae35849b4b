/* SPDX-License-Identifier: Apache-2.0
 *
 * signals_test.c - orderly shutdown by signals, each case in a child process of
 * its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "host/signals.h"
#include "perigee.h"

static volatile sig_atomic_t seen;

static void see(int number) {
  seen = number;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* How a child that runs the case ends, as waitpid reports it. */
static int ends(int (*run)(void)) {
  int status;
  pid_t child = fork();
  if (child == 0)
    _exit(run());
  assert_int_equal(waitpid(child, &status, 0), child);
  return status;
}

static void ends_well(int (*run)(void)) {
  int status = ends(run);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

static void ends_by(int (*run)(void), int number) {
  int status = ends(run);
  assert_true(WIFSIGNALED(status));
  assert_int_equal(WTERMSIG(status), number);
}

/* Used in a case: its exit status is the line that fails. */
#define CHECK(condition)                                                       \
  do                                                                           \
    if (!(condition))                                                          \
      return __LINE__ & 0xff ? __LINE__ & 0xff : 1;                            \
  while (0)

static int case_noted(void) {
  CHECK(perigee_signals_begin() == PERIGEE_OK);
  CHECK(perigee_signals_noted() == 0);
  raise(SIGTERM);
  CHECK(perigee_signals_noted() == SIGTERM);
  perigee_signals_end();
  CHECK(perigee_signals_begin() == PERIGEE_OK);
  CHECK(perigee_signals_noted() == 0);
  raise(SIGINT);
  CHECK(perigee_signals_noted() == SIGINT);
  perigee_signals_end();
  return 0;
}

static void first_is_noted(void **state) {
  (void)state;
  ends_well(case_noted);
}

static int case_second(void) {
  CHECK(perigee_signals_begin() == PERIGEE_OK);
  raise(SIGTERM);
  raise(SIGINT);
  return 1;
}

static void second_ends_the_process(void **state) {
  (void)state;
  ends_by(case_second, SIGINT);
}

static int case_never_polls(void) {
  CHECK(perigee_signals_begin() == PERIGEE_OK);
  raise(SIGINT);
  for (;;)
    seen = !seen;
}

static void two_seconds_end_the_process(void **state) {
  (void)state;
  double start = now();
  ends_by(case_never_polls, SIGINT);
  assert_true(now() - start > 1.9 && now() - start < 4);
}

static int case_ended_in_time(void) {
  CHECK(perigee_signals_begin() == PERIGEE_OK);
  raise(SIGTERM);
  perigee_signals_end();
  struct timespec rest = {.tv_sec = 2, .tv_nsec = 200000000};
  CHECK(nanosleep(&rest, NULL) == 0);
  return 0;
}

static void end_disarms(void **state) {
  (void)state;
  ends_well(case_ended_in_time);
}

static int case_put_back(void) {
  struct sigaction own = {.sa_handler = see, .sa_flags = SA_RESTART}, after;
  sigaddset(&own.sa_mask, SIGUSR1);
  (void)sigaction(SIGINT, &own, NULL);
  signal(SIGTERM, SIG_IGN);
  for (int noted = 0; noted < 2; noted++) {
    CHECK(perigee_signals_begin() == PERIGEE_OK);
    CHECK(perigee_signals_begin() == PERIGEE_OK);
    if (noted)
      raise(SIGTERM);
    perigee_signals_end();
    CHECK(perigee_signals_noted() == (noted ? SIGTERM : 0));
    (void)sigaction(SIGINT, NULL, &after);
    CHECK(after.sa_handler != see);
    perigee_signals_end();
    (void)sigaction(SIGINT, NULL, &after);
    CHECK(after.sa_handler == see && (after.sa_flags & SA_RESTART));
    CHECK(sigismember(&after.sa_mask, SIGUSR1));
    CHECK(!sigismember(&after.sa_mask, SIGTERM));
    (void)sigaction(SIGTERM, NULL, &after);
    CHECK(after.sa_handler == SIG_IGN);
  }
  raise(SIGINT);
  CHECK(seen == SIGINT);
  perigee_signals_end();
  (void)sigaction(SIGINT, NULL, &after);
  CHECK(after.sa_handler == see);
  return 0;
}

static void last_end_puts_back(void **state) {
  (void)state;
  ends_well(case_put_back);
}

static int case_mask_and_alarm(void) {
  sigset_t mask;
  alarm(100);
  CHECK(perigee_signals_begin() == PERIGEE_OK);
  raise(SIGTERM);
  sigprocmask(SIG_BLOCK, NULL, &mask);
  CHECK(!sigismember(&mask, SIGINT) && !sigismember(&mask, SIGTERM));
  perigee_signals_end();
  CHECK(alarm(0) > 98);
  return 0;
}

static void mask_and_alarm_are_left_alone(void **state) {
  (void)state;
  ends_well(case_mask_and_alarm);
}

static bool is_interrupted(void) {
  double start = now();
  struct timespec long_time = {.tv_sec = 1};
  int result = signals_poll(NULL, 0, &long_time);
  return result == -1 && errno == EINTR && now() - start < 0.9;
}

static int case_poll_before(void) {
  struct timespec short_time = {.tv_nsec = 1000000};
  CHECK(signals_poll(NULL, 0, &short_time) == 0);
  CHECK(perigee_signals_begin() == PERIGEE_OK);
  CHECK(signals_poll(NULL, 0, &short_time) == 0);
  raise(SIGTERM);
  CHECK(is_interrupted());
  CHECK(is_interrupted());
  CHECK(perigee_signals_noted() == SIGTERM);
  CHECK(signals_poll(NULL, 0, &short_time) == 0);
  return 0;
}

static int case_epoll(void) {
  struct epoll_event e = {.events = EPOLLIN, .data.u32 = 7}, got = {0};
  struct timespec none = {0};
  int epoll = epoll_create1(EPOLL_CLOEXEC), fd = eventfd(0, EFD_CLOEXEC);
  CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) == 0);
  CHECK(signals_epoll(epoll, &got, 1, &none) == 0);
  CHECK(eventfd_write(fd, 1) == 0);
  CHECK(signals_epoll(epoll, &got, 1, NULL) == 1 && got.data.u32 == 7);
  CHECK(perigee_signals_begin() == PERIGEE_OK);
  CHECK(signals_epoll(epoll, &got, 1, NULL) == 1);
  raise(SIGTERM);
  CHECK(signals_epoll(epoll, &got, 1, NULL) == -1 && errno == EINTR);
  CHECK(perigee_signals_noted() == SIGTERM);
  CHECK(signals_epoll(epoll, &got, 1, NULL) == 1);
  perigee_signals_end();
  return 0;
}

/* epoll_wait(2) would fail with EINTR. */
static int case_stopped(void) {
  struct epoll_event got;
  struct timespec time = {.tv_nsec = 300000000};
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  pid_t self = getpid(), child = fork();
  if (child == 0) {
    usleep(50000);
    kill(self, SIGSTOP);
    usleep(50000);
    _exit(kill(self, SIGCONT));
  }
  CHECK(signals_epoll(epoll, &got, 1, &time) == 0);
  waitpid(child, NULL, 0);
  return 0;
}

static int case_poll_during(void) {
  pid_t parent = getpid();
  CHECK(perigee_signals_begin() == PERIGEE_OK);
  pid_t child = fork();
  if (child == 0) {
    usleep(100000);
    _exit(kill(parent, SIGINT));
  }
  CHECK(is_interrupted());
  CHECK(perigee_signals_noted() == SIGINT);
  perigee_signals_end();
  waitpid(child, NULL, 0);
  return 0;
}

static void sleep_misses_none(void **state) {
  (void)state;
  ends_well(case_poll_before);
  ends_well(case_epoll);
  ends_well(case_stopped);
  ends_well(case_poll_during);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(first_is_noted),
      cmocka_unit_test(second_ends_the_process),
      cmocka_unit_test(two_seconds_end_the_process),
      cmocka_unit_test(end_disarms),
      cmocka_unit_test(last_end_puts_back),
      cmocka_unit_test(mask_and_alarm_are_left_alone),
      cmocka_unit_test(sleep_misses_none),
  };
  return cmocka_run_group_tests_name("signals", tests, NULL, NULL);
}
