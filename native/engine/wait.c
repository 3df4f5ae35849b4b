/* SPDX-License-Identifier: Apache-2.0
 *
 * wait.c - polling for one operation, and sleeping.
 *
 * spin.h decides how long a wait polls before it sleeps, and when it yields the
 * core, for perigee_await and perigee_wait together: so a wait of Lua's, which
 * calls one after the other, polls only once. spin.h is first asked when the
 * clock is read, at every 64th poll; what is found before costs nothing more.
 *
 * To sleep, a wait arms every session (a fenced store that peers read after
 * whatever they do for this side), except parked ones, which are armed already
 * (poll.c). It polls once more. It sleeps in epoll only if that finds nothing;
 * the peer's wake frame ends the sleep. The last poll leaves the look at the
 * sockets to the sleep (watch.c). An event that is found on the way is kept as
 * the engine's pending_event for the next perigee_poll.
 *
 * An event after a quiet time is mostly one call whose caller waits for it. So
 * the next perigee_poll gives that event at once and looks for nothing else:
 * another look would cost a poll, and take away the first line of the next
 * record, which the caller's core has just prepared for writing.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>

#include "core/pool.h"
#include "core/watch.h"
#include "host/signals.h"
#include "polling.h"

enum { ENGINES = 64 };

/* Gives the event that a wait has found, first. */
static __attribute__((noinline)) int
wait_poll_pending(struct perigee_engine *engine, struct perigee_event *events,
                  int capacity) {
  bool awaited = engine->event_awaited;
  engine->event_pending = engine->event_awaited = false;
  events[0] = engine->pending_event;
  if (awaited || capacity == 1)
    return 1;
  return 1 + engine_poll(engine, events + 1, capacity - 1, true);
}

static inline int poll_owned(struct perigee_engine *engine,
                             struct perigee_event *events, int capacity) {
  if (!engine_alive(engine))
    return fail(engine, PERIGEE_FORKED,
                "this engine belongs to the parent process; make another");
  engine->away = true;
  if (UNLIKELY(engine->armed))
    engine_disarm(engine);
  return engine->event_pending ? wait_poll_pending(engine, events, capacity)
                               : engine_poll(engine, events, capacity, false);
}

static __attribute__((noinline, cold)) int
poll_shared(struct perigee_engine *engine, struct perigee_event *events,
            int capacity) {
  bool taken = lock_take(engine, ENTRY_POLL);
  int result = poll_owned(engine, events, capacity);
  if (taken)
    lock_give(engine);
  return result;
}

int perigee_poll(struct perigee_engine *engine, struct perigee_event *events,
                 int capacity) {
  if (SHARED(engine))
    return poll_shared(engine, events, capacity);
  return poll_owned(engine, events, capacity);
}

static bool wait_found(struct perigee_engine *engine) {
  if (!engine->event_pending)
    engine->event_pending =
        engine_poll(engine, &engine->pending_event, 1, false) == 1;
  return engine->event_pending;
}

/* A wait that polls. The first one's time counts if there are several
 * engines. */
struct spinning {
  int64_t most; /* ns, the caller's limit */
  int64_t begun, limit;
  int64_t until; /* the caller's deadline, which its first poll may exceed */
  bool timed;    /* begun and limit are set */
  bool cut;      /* the caller's limit is shorter than the learned one */
  bool looked;   /* the clock was read: the wait is longer than a moment */
};

static void wait_begin_spin(struct perigee_engine *engine, struct spinning *s) {
  s->timed = true;
  s->begun = engine->now;
  if (s->most < 0)
    s->most = engine->spin.most;
  s->limit = spin_begin(&engine->spin, engine->now, engine->progress,
                        engine_own(engine) > 0);
  s->cut = s->most < s->limit;
  if (s->cut || s->limit == engine->spin.most)
    s->limit = s->most;
}

static inline void wait_end_spin(struct perigee_engine *engine,
                                 const struct spinning *s) {
  if (!s->timed || s->limit == 0)
    return;
  engine->counters.spins += s->looked;
  spin_paid(&engine->spin);
}

static void wait_give_up_spin(struct perigee_engine *engine,
                              const struct spinning *s) {
  if (s->limit == 0)
    return;
  engine->counters.spins++;
  if (!s->cut)
    spin_wasted(&engine->spin, engine->now, engine->progress);
}

/* Yields the core, if it is time. */
static void wait_yield(struct perigee_engine *engine) {
  int64_t before = engine_clock(engine);
  if (!spin_yields(&engine->spin, before))
    return;
  sched_yield();
  int64_t now = engine_clock(engine);
  spin_yielded(&engine->spin, now, now - before);
}

static __attribute__((noinline)) bool wait_look(struct perigee_engine *engine,
                                                struct spinning *s) {
  if (engine->idle != 0)
    engine_clock(engine);
  if (!s->timed)
    wait_begin_spin(engine, s);
  s->looked = true;
  if (engine->now - s->begun >= s->limit || engine->now >= s->until) {
    wait_give_up_spin(engine, s);
    return false;
  }
  wait_yield(engine);
  return true;
}

/* Called after a poll that found nothing: may the wait poll on? The more often
 * it looks at a line, the more often the peer has to fetch that line twice for
 * one record, so it pauses twice. */
static inline bool wait_spin_on(struct perigee_engine *engine,
                                struct spinning *s) {
  __builtin_ia32_pause();
  __builtin_ia32_pause();
  if (engine->idle != 0 && !(engine->spin.others | engine->moved))
    return true; /* the clock was not read in this poll, which took no time */
  return wait_look(engine, s);
}

static inline int await_owned(struct perigee_engine *engine, int operation,
                              struct perigee_event *event, int64_t spin) {
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  engine->away = true;
  if (engine->armed)
    engine_disarm(engine);
  if (engine->event_pending)
    return 0;
  struct spinning spinning = {.most = spin, .until = INT64_MAX};
  for (;;) {
    if (engine_poll(engine, event, 1, false) == 1) {
      wait_end_spin(engine, &spinning);
      if (event->operation == operation && event->kind >= PERIGEE_EVENT_REPLY)
        return 1;
      engine->pending_event = *event;
      engine->event_pending = true;
      return 0;
    }
    if (!wait_spin_on(engine, &spinning))
      return 0;
  }
}

static __attribute__((noinline, cold)) int
await_shared(struct perigee_engine *engine, int operation,
             struct perigee_event *event, int64_t spin) {
  bool taken = lock_take(engine, ENTRY_POLL);
  int result = await_owned(engine, operation, event, spin);
  if (taken)
    lock_give(engine);
  return result;
}

int perigee_await(struct perigee_engine *engine, int operation,
                  struct perigee_event *event, int64_t spin) {
  if (SHARED(engine))
    return await_shared(engine, operation, event, spin);
  return await_owned(engine, operation, event, spin);
}

/* The clock is read if another engine moved something, because that took
 * time. */
static void wait_keep_time(struct perigee_engine *const *engines, int count) {
  for (int i = 1; i < count; i++)
    if (engines[i]->moved)
      engines[0]->moved = true;
}

/* The first poll ends the operations that the program was told of: they are
 * under way no more when the wait's kind is asked for. */
static bool wait_spin(struct perigee_engine *const *engines, int count,
                      struct spinning *s) {
  bool waited = false;
  do {
    for (int i = 0; i < count; i++)
      if (wait_found(engines[i])) {
        engines[i]->event_awaited = waited;
        if (waited)
          wait_end_spin(engines[0], s);
        return true;
      }
    if (!waited)
      wait_begin_spin(engines[0], s);
    waited = true;
    wait_keep_time(engines, count);
  } while (s->limit > 0 && wait_spin_on(engines[0], s));
  return false;
}

/* Arms the engine; true if there is something to poll for. A sleep that follows
 * looks at the sockets itself. */
static bool wait_arm(struct perigee_engine *engine, bool sleeps) {
  engine_arm(engine);
  (sleeps ? watch_leave : watch_again)(engine);
  uint64_t before = engine->progress;
  engine->sockets_due = true; /* the poll reads sockets, clock and timers */
  engine->woken = false;      /* and puts none of them off */
  bool some = wait_found(engine) || engine->progress != before;
  if (some)
    watch_again(engine);
  return some;
}

int perigee_arm(struct perigee_engine *engine, int64_t *timeout) {
  ENTRY(engine, ENTRY_POLL);
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  if (wait_arm(engine, false))
    return 1;
  if (engine->thread)
    progress_promise(engine);
  if (timeout)
    *timeout = engine_nap(engine, -1);
  return 0;
}

int perigee_fd(const struct perigee_engine *engine) {
  return engine->thread ? progress_fd(engine) : engine->epoll;
}

static int wait_sleep_on_all(struct perigee_engine *const *engines, int count,
                             const struct timespec *timeout) {
  struct pollfd fds[ENGINES];
  for (int i = 0; i < count; i++)
    fds[i] = (struct pollfd){.fd = engines[i]->epoll, .events = POLLIN};
  int n = signals_poll(fds, (nfds_t)count, timeout);
  int error = errno;
  for (int i = 0; i < count; i++)
    engine_clock(engines[i]);
  errno = error;
  return n;
}

static int wait_sleep_on(struct perigee_engine *const *engines, int count,
                         int64_t timeout, bool bounded) {
  for (int i = 0; i < count; i++) {
    engines[i]->counters.sleeps++;
    trim_sleeps(engines[i]);
  }
  struct timespec t = {timeout / 1000000000, timeout % 1000000000};
  const struct timespec *limit = timeout < 0 ? NULL : &t;
  int n = count == 1 ? watch_sleep(engines[0], limit)
                     : wait_sleep_on_all(engines, count, limit);
  int error = errno;
  for (int i = 0; i < count; i++)
    engines[i]->woken = true;
  if (n < 0 && error == EINTR)
    return PERIGEE_AGAIN;
  return n > 0 || !bounded;
}

static int wait_for_event(struct perigee_engine *const *engines, int count,
                          int64_t timeout) {
  for (int i = 0; i < count; i++)
    if (engines[i]->armed)
      engine_disarm(engines[i]);
  struct spinning s = {.most = engines[0]->spin.most, .until = INT64_MAX};
  int64_t begun = engine_clock(engines[0]);
  if (timeout >= 0 && timeout < s.most) {
    s.most = timeout;
    s.until = begun + timeout;
  }
  if (wait_spin(engines, count, &s))
    return 1;
  int64_t least = timeout;
  if (timeout >= 0 && (least -= engines[0]->now - begun) <= 0)
    return 0;
  int64_t mine = least;
  for (int i = 0; i < count; i++) {
    if (wait_arm(engines[i], count == 1))
      return 1;
    least = engine_nap(engines[i], least);
  }
  int status =
      wait_sleep_on(engines, count, least, least == mine && timeout >= 0);
  if (status == 1)
    spin_woken(&engines[0]->spin, engines[0]->now - begun);
  return status;
}

/* Engines with a thread belong to the program while it waits. */
int perigee_wait(struct perigee_engine *const *engines, int count,
                 int64_t timeout) {
  if (!engines || count < 1 || count > ENGINES)
    return PERIGEE_INVALID;
  for (int i = 0; i < count; i++)
    if (!engine_alive(engines[i]))
      return PERIGEE_FORKED;
  bool shared = false;
  for (int i = 0; i < count; i++)
    if (UNLIKELY(engines[i]->thread != NULL)) {
      progress_wait(engines[i]);
      shared = true;
    }
  int status = wait_for_event(engines, count, timeout);
  for (int i = 0; shared && i < count; i++)
    if (engines[i]->thread)
      progress_back(engines[i]);
  return status;
}
