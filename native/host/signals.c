/* SPDX-License-Identifier: Apache-2.0
 *
 * signals.c - an orderly end on the first SIGINT or SIGTERM.
 *
 *   state     event    becomes
 *   outside   begin    watching   our handler for both signals, timers made
 *   watching  signal   noted      default actions put back, 2 s timer armed
 *   watching  end      outside    what was there before put back
 *   noted     end      outside    timer disarmed as well
 *   noted     signal   -          the process ends by it
 *   noted     2 s      -          the process ends by the signal noted
 *
 * Signals belong to the process, and so does the state here. Only the last end
 * of nested begins restores the actions. The timers are POSIX ones, each of
 * which raises its own signal: the program's alarms are left alone, and the
 * process ends without any code of ours, even in a loop that never polls.
 */
#include "signals.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include "perigee.h"

enum { SECONDS = 2 };

struct watched {
  int number;
  struct sigaction before;
  timer_t timer;
};

static struct watched watched[] = {{.number = SIGINT}, {.number = SIGTERM}};
enum { WATCHED = sizeof watched / sizeof *watched };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile sig_atomic_t begun; /* nested begins; set under the mutex */
static volatile sig_atomic_t noted, told;

static void signals_set(sigset_t *set) {
  sigemptyset(set);
  for (int i = 0; i < WATCHED; i++)
    sigaddset(set, watched[i].number);
}

/* The handler; makes async-signal-safe calls only. */
static void signals_note(int number) {
  const struct itimerspec after = {.it_value = {.tv_sec = SECONDS}};
  const struct sigaction standard = {.sa_handler = SIG_DFL};
  int error = errno;
  noted = number;
  for (int i = 0; i < WATCHED; i++) {
    (void)sigaction(watched[i].number, &standard, NULL);
    if (watched[i].number == number)
      timer_settime(watched[i].timer, 0, &after, NULL);
  }
  errno = error;
}

static int signal_watch(struct watched *watch) {
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL,
                           .sigev_signo = watch->number};
  struct sigaction action = {.sa_handler = signals_note}; /* no SA_RESTART */
  signals_set(&action.sa_mask);
  if (timer_create(CLOCK_MONOTONIC, &event, &watch->timer) != 0)
    return PERIGEE_SYSTEM;
  if (sigaction(watch->number, &action, &watch->before) == 0)
    return PERIGEE_OK;
  timer_delete(watch->timer);
  return PERIGEE_SYSTEM;
}

static void signal_unwatch(struct watched *watch) {
  timer_delete(watch->timer);
  (void)sigaction(watch->number, &watch->before, NULL);
}

static int signals_watch(void) {
  noted = told = 0;
  for (int i = 0; i < WATCHED; i++) {
    int status = signal_watch(&watched[i]);
    if (status == PERIGEE_OK)
      continue;
    while (i > 0)
      signal_unwatch(&watched[--i]);
    return status;
  }
  return PERIGEE_OK;
}

/* Blocks both signals for a few instructions, so that a signal meets either the
 * whole old state or the whole new one. */
static void signals_enter(sigset_t *mask) {
  sigset_t set;
  signals_set(&set);
  pthread_mutex_lock(&mutex);
  pthread_sigmask(SIG_BLOCK, &set, mask);
}

static void signals_leave(const sigset_t *mask) {
  pthread_sigmask(SIG_SETMASK, mask, NULL);
  pthread_mutex_unlock(&mutex);
}

int perigee_signals_begin(void) {
  sigset_t mask;
  int status = PERIGEE_OK;
  signals_enter(&mask);
  if (begun == 0)
    status = signals_watch();
  if (status == PERIGEE_OK)
    begun++;
  signals_leave(&mask);
  return status;
}

void perigee_signals_end(void) {
  sigset_t mask;
  signals_enter(&mask);
  if (begun > 0 && --begun == 0)
    for (int i = 0; i < WATCHED; i++)
      signal_unwatch(&watched[i]);
  signals_leave(&mask);
}

int perigee_signals_noted(void) {
  told = noted;
  return noted;
}

/* ---- Sleeping ------------------------------------------------------------ */

/* The events that a sleep waits for: of descriptors, or of an epoll. */
struct asleep {
  struct pollfd *descriptors;
  nfds_t count;
  int epoll, most;
  struct epoll_event *events; /* NULL: it is for descriptors */
  const struct timespec *timeout;
};

/* Not epoll_pwait2, which would do both in one: it fails with EINTR when the
 * process was stopped and goes on (signal(7)), although no signal came for
 * it. */
static int signals_sleep_by_epoll(const struct asleep *s,
                                  const sigset_t *mask) {
  struct pollfd p = {.fd = s->epoll, .events = POLLIN};
  int n = ppoll(&p, 1, s->timeout, mask);
  return n > 0 ? epoll_wait(s->epoll, s->events, s->most, 0) : n;
}

static int signals_sleep_with(const struct asleep *s, const sigset_t *mask) {
  return s->events ? signals_sleep_by_epoll(s, mask)
                   : ppoll(s->descriptors, s->count, s->timeout, mask);
}

static int signals_sleep(const struct asleep *s) {
  if (!begun)
    return signals_sleep_with(s, NULL);
  sigset_t set, mask;
  signals_set(&set);
  pthread_sigmask(SIG_BLOCK, &set, &mask);
  int result = -1, error = EINTR;
  if (noted == told) {
    result = signals_sleep_with(s, &mask);
    error = errno;
  }
  pthread_sigmask(SIG_SETMASK, &mask, NULL);
  errno = error;
  return result;
}

int signals_poll(struct pollfd *descriptors, nfds_t count,
                 const struct timespec *timeout) {
  return signals_sleep(&(struct asleep){
      .descriptors = descriptors, .count = count, .timeout = timeout});
}

int signals_epoll_on(int epoll, struct epoll_event *events, int most,
                     const struct timespec *timeout) {
  return signals_sleep_by_epoll(
      &(struct asleep){
          .epoll = epoll, .events = events, .most = most, .timeout = timeout},
      NULL);
}

int signals_epoll(int epoll, struct epoll_event *events, int most,
                  const struct timespec *timeout) {
  return signals_sleep(&(struct asleep){
      .epoll = epoll, .events = events, .most = most, .timeout = timeout});
}
