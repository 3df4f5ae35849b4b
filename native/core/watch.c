/* SPDX-License-Identifier: Apache-2.0
 *
 * watch.c - looks at the engine's descriptors, by epoll.
 *
 *   state    event                                      becomes
 *   due      a poll looks                               due
 *   due      the poll before a sleep begins             left
 *   due      a sleep ended                              seen
 *   left     that poll: it does not look, because the
 *            sleep does                                 due
 *   left     there is no sleep                          due
 *   seen     a poll looks: the sleep has looked. The
 *            watcher that was put off is called         due
 *   seen     a descriptor is added, changed or removed,
 *            the sleep took all the events that it
 *            could, or LATELY is over                   due: nobody is called
 *
 * So a sleep is one or two system calls (signals.c), where it was a look, the
 * sleep, and up to two looks after it.
 *
 * No event is lost. The sleep gives what it takes from epoll to the watchers
 * before anything else is done (a poll, a timer, the program), so that no
 * watcher can be gone by then. A patient watcher may be kept for the next poll;
 * it is forgotten when any descriptor is removed or changed, as it may have
 * been its own, and epoll reports it again, because its descriptor is
 * level-triggered. A look that was left out is made by the sleep, for which
 * what was ready before is as good as what becomes ready then; where the poll
 * before it finds something, so that nobody sleeps, the next poll looks. A
 * caller that does something else after a sleep, and polls later, looks again.
 */
#include "watch.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "engine.h"
#include "host/signals.h"

/* The most events that one look takes; if there are as many, the next poll
 * looks again. All that they cause (a session that begins or ends: up to 0.1 ms
 * each) happens in one poll, while other sessions' calls wait. */
enum { READY = 8 };
/* ns for which the look of a sleep counts: polls find no socket later than they
 * would without (SOCKETS_PARKED of poll.c). */
static const int64_t LATELY = 100000;
enum { NEVER = -1 };

static void forget(struct perigee_engine *engine) {
  engine->looked_at = NEVER;
  engine->put_off = NULL;
}

static int control(struct perigee_engine *engine, int how, int fd,
                   struct watcher *watcher, uint32_t events) {
  struct epoll_event e = {.events = events, .data.ptr = watcher};
  forget(engine);
  return epoll_ctl(engine->epoll, how, fd, &e);
}

int watch_add(struct perigee_engine *engine, int fd, struct watcher *watcher,
              uint32_t events) {
  return control(engine, EPOLL_CTL_ADD, fd, watcher, events);
}

int watch_change(struct perigee_engine *engine, int fd, struct watcher *watcher,
                 uint32_t events) {
  return control(engine, EPOLL_CTL_MOD, fd, watcher, events);
}

bool watch_remove(struct perigee_engine *engine, int fd) {
  forget(engine);
  return !engine_alive(engine) ||
         epoll_ctl(engine->epoll, EPOLL_CTL_DEL, fd, NULL) == 0;
}

/* Removes the descriptor from epoll before it is closed: while a child process
 * has a copy, epoll would go on to report it. */
void watch_close(struct perigee_engine *engine, int fd) {
  watch_remove(engine, fd);
  close(fd);
}

static void call(struct perigee_engine *engine,
                 const struct epoll_event events[READY], int n) {
  engine->more_ready = n == READY;
  engine->progress += engine->more_ready; /* keeps a wait from sleeping */
  for (int i = 0; i < n; i++) {
    struct watcher *watcher = events[i].data.ptr;
    watcher->ready(watcher, events[i].events);
  }
}

void watch_poll(struct perigee_engine *engine) {
  struct epoll_event events[READY] = {{0}};
  struct watcher *patient = engine->put_off;
  bool looked = engine->looked_at != NEVER && !engine->more_ready &&
                engine->now - engine->looked_at < LATELY;
  forget(engine);
  if (!looked)
    call(engine, events, epoll_wait(engine->epoll, events, READY, 0));
  else if (patient)
    patient->ready(patient, engine->put_off_for);
}

/* Keeps a patient watcher that alone is ready for the next look. */
static bool put_off(struct perigee_engine *engine,
                    const struct epoll_event events[READY], int n) {
  struct watcher *first = events[0].data.ptr;
  bool waits = n == 1 && first->patient;
  engine->put_off = waits ? first : NULL;
  engine->put_off_for = events[0].events;
  return waits;
}

static int watch_sleep_by(struct perigee_engine *engine,
                          int (*sleep)(int, struct epoll_event *, int,
                                       const struct timespec *),
                          const struct timespec *timeout) {
  struct epoll_event events[READY] = {{0}};
  int n = sleep(engine->epoll, events, READY, timeout), error = errno;
  engine_clock(engine);
  engine->looked_at = n >= 0 ? engine->now : NEVER;
  engine->more_ready = false;
  if (!put_off(engine, events, n))
    call(engine, events, n); /* which may add descriptors: another look */
  errno = error;
  return n;
}

int watch_sleep(struct perigee_engine *engine, const struct timespec *timeout) {
  return watch_sleep_by(engine, signals_epoll, timeout);
}

int watch_sleep_on(struct perigee_engine *engine,
                   const struct timespec *timeout) {
  return watch_sleep_by(engine, signals_epoll_on, timeout);
}

void watch_leave(struct perigee_engine *engine) {
  engine->looked_at = engine->now;
}

void watch_again(struct perigee_engine *engine) {
  forget(engine);
  engine->sockets_due = true;
}
