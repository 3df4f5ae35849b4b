/* SPDX-License-Identifier: Apache-2.0
 *
 * wait.c - polling for one operation, sleeping, and joining an operation.
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
 * the next perigee_poll gives that event at once, with those that the same poll
 * found (mostly the end of the call before), and looks for nothing else:
 * another look would cost a poll, and take away the first line of the next
 * record, which the caller's core has just prepared for writing.
 *
 * A join waits for one operation. Its polls are like those of an engine's own
 * thread (progress.c): they do all the work, and give no events. Events wait in
 * the engine's lists for the program's next poll, in the order in which they
 * came. Meanwhile rings are read on and their room is given back, so heads are
 * copied out of the rings into blocks, which go with their operations. The
 * reply that is joined is not copied: a join returns from the poll that has
 * read it, and the next poll, wait or join gives its room back. The options
 * operations, serving and pool bound what is kept, as with a thread.
 *
 * An event that a wait has found before a join stays pending. What it points to
 * is copied, and its operation is kept from being used again (engine->awaited),
 * until the poll that gives it. A READY is not kept: the descriptor is watched
 * again, and found again while it is ready.
 *
 * A join loses no wake-up, for the reason that a wait loses none: it arms,
 * polls, and sleeps only if that poll found nothing. Whatever the peer does
 * before that poll is found by it, and whatever the peer does later wakes the
 * sleep. Polls that give no events change nothing of that, as nothing that they
 * look at depends on whether an event was given. A kept event keeps no sleep
 * away: the poll before the sleep asks for the operation, and whether anything
 * happened since the arming (engine->progress), not whether there are events.
 * So a sleep ends once for each thing that happens. Watched descriptors that
 * were found are out of epoll until a poll has given their READY.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/pause.h"
#include "base/status.h"
#include "call/calls.h"
#include "core/pool.h"
#include "core/stats_file.h"
#include "core/watch.h"
#include "host/signals.h"
#include "polling.h"

enum { ENGINES = 64 };

/* Is it the event of the end of an own operation? */
static inline bool event_is_end(const struct perigee_event *e) {
  return e->kind == PERIGEE_EVENT_REPLY || e->kind == PERIGEE_EVENT_DONE ||
         e->kind == PERIGEE_EVENT_CONNECTED;
}

/* Is it an event of this own operation? */
static inline bool event_is_of(const struct perigee_event *e, int operation) {
  return e->operation == operation &&
         (event_is_end(e) || e->kind == PERIGEE_EVENT_REPLY_LANDING);
}

static void wait_take_pending(struct perigee_engine *engine,
                              struct perigee_event *event) {
  engine_end_found(engine);
  *event = engine->pending_event;
}

/* Is the pending event that of a call which asks no more? The call may have
 * ended since the wait that found it. */
static bool pending_is_over(const struct perigee_engine *engine,
                            const struct perigee_event *e) {
  if (e->kind != PERIGEE_EVENT_REPLY_LANDING)
    return false;
  return !call_asks(&engine->table[e->operation]);
}

/* Gives the event that a wait has found, first. */
static __attribute__((noinline)) int
wait_poll_pending(struct perigee_engine *engine, struct perigee_event *events,
                  int capacity) {
  if (UNLIKELY(capacity < 1))
    return engine_poll(engine, events, 0, true);
  bool awaited = engine->event_awaited;
  wait_take_pending(engine, events);
  if (UNLIKELY(pending_is_over(engine, events)))
    return engine_poll(engine, events, capacity, false);
  if (awaited || capacity == 1)
    return 1 + engine_give_ready(engine, events + 1, capacity - 1);
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
  ALONE(engine);
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
  engine->counters->spins += s->looked;
  spin_paid(&engine->spin);
}

static void wait_give_up_spin(struct perigee_engine *engine,
                              const struct spinning *s) {
  if (s->limit == 0)
    return;
  engine->counters->spins++;
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
  bool first = !s->looked;
  s->looked = true;
  if (engine->now - s->begun >= s->limit || engine->now >= s->until) {
    wait_give_up_spin(engine, s);
    return false;
  }
  if (!first || engine->spin.others)
    wait_yield(engine);
  return true;
}

/* Called after a poll that found nothing: may the wait poll on? The more often
 * it looks at a line, the more often the peer has to fetch that line twice for
 * one record, so it pauses. */
static inline bool wait_spin_on(struct perigee_engine *engine,
                                struct spinning *s) {
  pause_moment();
  if (engine->idle != 0 && !(engine->spin.others | engine->moved))
    return true; /* the clock was not read in this poll, which took no time */
  return wait_look(engine, s);
}

/* Is the event that a wait has found that operation's? 1: it is given; 0: a
 * poll gives it; -1: it is over, so there is none. */
static __attribute__((noinline, cold)) int
await_found(struct perigee_engine *engine, int operation,
            struct perigee_event *event) {
  const struct perigee_event *e = &engine->pending_event;
  bool over = pending_is_over(engine, e);
  if (!over && !event_is_of(e, operation))
    return 0;
  wait_take_pending(engine, event);
  return over ? -1 : 1;
}

static inline int await_owned(struct perigee_engine *engine, int operation,
                              struct perigee_event *event, int64_t spin) {
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  engine->away = true;
  if (engine->armed)
    engine_disarm(engine);
  int found = UNLIKELY(engine->event_pending)
                  ? await_found(engine, operation, event)
                  : -1;
  if (found >= 0)
    return found;
  struct spinning spinning = {.most = spin, .until = INT64_MAX};
  for (;;) {
    if (engine_poll(engine, event, 1, false) == 1) {
      wait_end_spin(engine, &spinning);
      if (event_is_of(event, operation))
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
  ALONE(engine);
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

/* Arms the engine, for a poll that finds all that happened before. A sleep that
 * follows looks at the sockets itself. Returns how much has happened until
 * now. */
static uint64_t wait_arm_only(struct perigee_engine *engine, bool sleeps) {
  engine_arm(engine);
  (sleeps ? watch_leave : watch_again)(engine);
  engine->sockets_due = true; /* the poll reads sockets, clock and timers */
  engine->woken = false;      /* and puts none of them off */
  return engine->progress;
}

/* The same; true if there is something to poll for. */
static bool wait_arm(struct perigee_engine *engine, bool sleeps) {
  uint64_t before = wait_arm_only(engine, sleeps);
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
  stats_sleeps(engine);
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

static void wait_falls_asleep(struct perigee_engine *engine) {
  engine->counters->sleeps++;
  stats_sleeps(engine);
  trim_sleeps(engine);
}

static struct timespec wait_time(int64_t ns) {
  return (struct timespec){ns / 1000000000, ns % 1000000000};
}

static int wait_sleep_on(struct perigee_engine *const *engines, int count,
                         int64_t timeout, bool bounded) {
  for (int i = 0; i < count; i++)
    wait_falls_asleep(engines[i]);
  struct timespec t = wait_time(timeout);
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

static __attribute__((noinline, cold)) int
wait_refuse(struct perigee_engine *const *engines, int count) {
  if (!engines || count < 1)
    return detail_fail(PERIGEE_INVALID, "there is no engine to wait for");
  return fail(engines[0], PERIGEE_INVALID,
              "a wait is for at most %d engines, not %d", ENGINES, count);
}

/* Engines with a thread belong to the program while it waits. */
int perigee_wait(struct perigee_engine *const *engines, int count,
                 int64_t timeout) {
  if (!engines || count < 1 || count > ENGINES)
    return wait_refuse(engines, count);
  for (int i = 0; i < count; i++)
    if (!engine_alive(engines[i]))
      return PERIGEE_FORKED;
  ALONE(engines[0]);
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

/* ---- Joining an operation ------------------------------------------------ */

static bool event_asks(const struct perigee_event *e) {
  return e->kind == PERIGEE_EVENT_REQUEST || e->kind == PERIGEE_EVENT_LANDING ||
         e->kind == PERIGEE_EVENT_REPLY_LANDING;
}

/* Returns the call of a batch whose own event was given last. */
static struct operation *pending_call(struct perigee_engine *engine,
                                      const struct operation *batch,
                                      uint64_t place) {
  struct node *n, *given = &engine->given;
  for (n = given->next; n != given; n = n->next) {
    struct operation *op = CONTAINER(n, struct operation, queue);
    if (op->kind == OP_CALL && op->parent == batch && op->nth == place + 1)
      return op;
  }
  return NULL;
}

/* Returns the operation of the pending event, or NULL. */
static struct operation *pending_operation(struct perigee_engine *engine) {
  const struct perigee_event *e = &engine->pending_event;
  bool has = event_is_end(e) || event_asks(e) ||
             e->kind == PERIGEE_EVENT_SENT ||
             e->kind == PERIGEE_EVENT_ABANDONED;
  struct operation *op = has ? operation_find(engine, e->operation) : NULL;
  bool within = op && op->kind == OP_BATCH && e->kind == PERIGEE_EVENT_REPLY;
  return within ? pending_call(engine, op, e->capacity) : op;
}

/* Does what its event points to stay until it is over? Memory of the lane goes
 * with a session that was freed. */
static bool pending_stays(const struct operation *op,
                          const struct perigee_event *e) {
  bool lane = (op->viewed || op->bulky) && op->session && !op->session->freed;
  return op->block || lane || e->flags & PERIGEE_HELD;
}

/* Copies what the pending event points to, if that may be in a ring or in the
 * scratch memory. Behind the text of a failure are a zero and typed data. */
static int pending_copy(struct perigee_engine *engine, struct operation *op) {
  struct perigee_event *e = &engine->pending_event;
  bool failed = e->kind == PERIGEE_EVENT_REPLY && e->status < 0;
  uint64_t length = e->length + (failed && e->slice > 0 ? 1 + e->slice : 0);
  if (pending_stays(op, e) || !e->pointer || length == 0)
    return PERIGEE_OK;
  uint8_t *block = pool_take(op->session, length);
  if (!block)
    return fail(engine, PERIGEE_NO_MEMORY,
                "the pool has no room to keep an event (option pool): poll, "
                "then try again");
  op->pointer = op->block = memcpy(block, e->pointer, length);
  e->pointer = block;
  return PERIGEE_OK;
}

/* A wait has found an event that the program has not polled. What it points to
 * and its operation stay until the poll that gives it. A READY is taken back:
 * the descriptor is watched again, and reported again if it is ready. */
static __attribute__((noinline, cold)) int
pending_keep(struct perigee_engine *engine) {
  const struct perigee_event *e = &engine->pending_event;
  engine->event_awaited = false;
  engine->event_pending = e->kind != PERIGEE_EVENT_READY;
  struct operation *op =
      engine->event_pending ? pending_operation(engine) : NULL;
  int status = op ? pending_copy(engine, op) : PERIGEE_OK;
  if (status < 0 || !op || event_asks(e))
    return status;
  list_remove(&op->queue);
  list_append(&engine->awaited, &op->queue);
  return PERIGEE_OK;
}

int engine_keep_found(struct perigee_engine *engine) {
  ENTER(engine);
  bool found = engine->event_pending && engine_alive(engine);
  return found ? pending_keep(engine) : PERIGEE_OK;
}

/* Returns the own operation of that number, of which no poll has given the
 * event; NULL: there is none. A call whose event is over may still wait for the
 * peer to let go of its loan. A batch has other events before its own. */
static struct operation *join_find(struct perigee_engine *engine,
                                   int operation) {
  enum {
    NOT_JOINED = 1 << OP_SERVED | 1 << OP_READ | 1 << OP_WRITE | 1 << OP_BATCH
  };
  struct operation *op = operation_find(engine, operation);
  if (!op || NOT_JOINED >> op->kind & 1 || (op->kind == OP_CALL && op->nth > 0))
    return NULL;
  return op->kind != OP_CALL || call_join(op) ? op : NULL;
}

static bool join_is_batch(struct perigee_engine *engine, int operation) {
  const struct operation *op = operation_find(engine, operation);
  return op && op->kind == OP_BATCH;
}

/* Keeps the event that a wait has found. A call that is joined asks for no landing
 * any more, as it may have ended before that event could be polled. */
static __attribute__((noinline, cold)) int
join_keep(struct perigee_engine *engine, int operation) {
  const struct perigee_event *e = &engine->pending_event;
  if (e->kind != PERIGEE_EVENT_REPLY_LANDING || e->operation != operation)
    return pending_keep(engine);
  engine->event_pending = engine->event_awaited = false;
  return PERIGEE_OK;
}

/* With a thread the bytes of every reply are copied. */
static inline void join_begin(struct perigee_engine *engine,
                              struct operation *op) {
  engine->keeps_events = engine->copies = true;
  engine->joined = engine->thread ? NULL : op;
}

static inline void join_end(struct perigee_engine *engine) {
  engine->keeps_events = false;
  engine->copies = engine->thread != NULL;
  engine->joined = NULL;
}

static inline bool join_found(struct perigee_engine *engine,
                              const struct operation *op) {
  engine_poll(engine, NULL, INT_MAX, false);
  return op->event != PERIGEE_EVENT_NONE;
}

static inline bool join_spin(struct perigee_engine *engine,
                             const struct operation *op, struct spinning *s) {
  *s = (struct spinning){.most = -1, .until = INT64_MAX};
  do {
    if (join_found(engine, op)) {
      wait_end_spin(engine, s);
      return true;
    }
  } while (wait_spin_on(engine, s));
  return false;
}

/* Sleeps until something happens; true if the last poll before the sleep found
 * the end. begun: when the wait before it began. */
static bool join_sleep(struct perigee_engine *engine,
                       const struct operation *op, int64_t begun) {
  uint64_t before = wait_arm_only(engine, true);
  bool found = join_found(engine, op);
  if (found || engine->progress != before) {
    watch_again(engine);
  } else {
    int64_t nap = engine_nap(engine, -1);
    struct timespec t = wait_time(nap);
    wait_falls_asleep(engine);
    if (watch_sleep_on(engine, nap < 0 ? NULL : &t) > 0)
      spin_woken(&engine->spin, engine->now - begun);
    engine->woken = true;
  }
  engine_disarm(engine);
  return found;
}

static inline void join_wait(struct perigee_engine *engine,
                             struct operation *op) {
  struct spinning s;
  join_begin(engine, op);
  while (!join_spin(engine, op, &s) && !join_sleep(engine, op, s.begun))
    ;
  join_end(engine);
}

/* The engine's sentence is that of the event: of an earlier failure it would
 * mislead. */
static __attribute__((noinline, cold)) int
join_failed(struct perigee_engine *engine, const struct perigee_event *e) {
  char why[DETAIL];
  bool told = e->pointer && e->length > 0;
  int length = told && e->length < DETAIL ? (int)e->length : DETAIL - 1;
  snprintf(why, sizeof why, "%.*s", length,
           told ? (const char *)e->pointer : perigee_status_text(e->status));
  return fail(engine, e->status, "%s", why);
}

static inline int join_result(struct perigee_engine *engine,
                              const struct perigee_event *event) {
  return UNLIKELY(event->status < 0) ? join_failed(engine, event)
                                     : event->status;
}

static inline int join_owned(struct perigee_engine *engine, int operation,
                             struct perigee_event *event) {
  int status;
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  engine->away = true;
  if (UNLIKELY(engine->armed))
    engine_disarm(engine);
  if (UNLIKELY(engine->event_pending)) {
    const struct perigee_event *e = &engine->pending_event;
    if (event_is_end(e) && e->operation == operation &&
        !join_is_batch(engine, operation)) {
      wait_take_pending(engine, event);
      return join_result(engine, event);
    }
    if ((status = join_keep(engine, operation)) < 0)
      return status;
  }
  engine_end_given(engine);
  struct operation *op = join_find(engine, operation);
  if (!op)
    return fail(engine, PERIGEE_INVALID, "operation %d is not under way",
                operation);
  join_wait(engine, op);
  engine_give(engine, op, event);
  return join_result(engine, event);
}

static __attribute__((noinline, cold)) int
join_shared(struct perigee_engine *engine, int operation,
            struct perigee_event *event) {
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  progress_wait(engine);
  int status = join_owned(engine, operation, event);
  progress_back(engine);
  return status;
}

int perigee_join(struct perigee_engine *engine, int operation,
                 struct perigee_event *event) {
  if (UNLIKELY(operation < 0 || operation == PERIGEE_INLINE)) {
    *event = (struct perigee_event){0};
    return operation < 0 ? operation : PERIGEE_OK;
  }
  ALONE(engine);
  event->kind = PERIGEE_EVENT_NONE;
  return SHARED(engine) ? join_shared(engine, operation, event)
                        : join_owned(engine, operation, event);
}

int perigee_call_wait(struct perigee_session *session,
                      const struct perigee_message *message,
                      struct perigee_event *reply) {
  struct perigee_engine *engine = session->engine;
  int status = PERIGEE_OK;
  if (UNLIKELY(engine->event_pending))
    status = engine_keep_found(engine);
  if (status == PERIGEE_OK)
    status = perigee_call(session, message);
  return perigee_join(engine, status, reply);
}
