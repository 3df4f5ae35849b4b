/* SPDX-License-Identifier: Apache-2.0
 *
 * poll.c - one poll. It ends the life of what the last poll handed out; reads
 * the clock, the timers and the sockets now and then; gives the events that
 * wait; reads the records of every session; steps every operation that moves;
 * and gives events again.
 *
 * A poll looks at the hot sessions only. Many sessions idle while few work;
 * idle ones are parked, and cost a poll nothing.
 *
 *   state    event                                        becomes
 *   out      it opened                                    hot
 *   hot      unused for PARK_AFTER, and nothing to poll
 *            for after its lane was armed                 parked
 *   parked   one of its descriptors has an event, or
 *            its lane asks for a poll                     hot
 *   parked   an operation begins, moves, or waits for
 *            room                                         hot
 *   any      it ended                                     out
 *
 * A parked session is in the state of every session of a sleeping engine
 * (wait.c): its lane is armed, so the peer wakes this side by a frame on the
 * session's socket for whatever it does. News that the lane itself waits for
 * comes by a watched descriptor, or by hot_activate. The wake-up is seen at the
 * next look at the sockets.
 *
 * No wake-up is lost. To park a session: arm its lane (a fenced store), then
 * poll it, then take it off the list, without a look at the sockets in between.
 * That poll finds whatever the peer did before it could see the lane armed,
 * because of the two fences (arm; wanted, or session_sure), and the session
 * stays hot. The peer sends a frame for whatever it does later. The frame is
 * read after the session left the list, and anything that is read from a
 * session's socket makes it hot. The peer sends one frame for each arming, so
 * the lane is armed again each time. The poll counts only if it looked at
 * everything: a session whose requests are not read now, for lack of room or
 * because one before them is still landing or not started, stays hot.
 * spec/model/park.pml is a model of this.
 *
 * Frames alone (a keepalive, a late wake-up) do not count as use: the next poll
 * that finds nothing parks the session again. The session that was used last
 * stays hot, so that a single session never waits for a look at the sockets.
 *
 * A look at the sockets is one system call for all of them. It is made each
 * SOCKETS_PARKED while any session is parked, otherwise each SOCKETS_EVERY; but
 * each SOCKETS_ASKED for a while after a frame that asks or answers something,
 * such as a look-up, because more follow it. A sleeping engine wakes at once.
 *
 * A session is always hot if its lane cannot report by itself that it has
 * something to do: its transport has no `rests`, or its lane has faults.
 *
 * These walk all sessions, the parked ones, too: closing the engine or a
 * listener, a fork's child, making room among too many unauthenticated peers
 * (unauth.c), and the counters of the whole engine.
 */
#include <limits.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/apart.h"
#include "base/stamp.h"
#include "call/calls.h"
#include "operation/loan.h"
#include "core/fabrics.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "core/pool.h"
#include "core/stats_file.h"
#include "core/watch.h"
#include "polling.h"
#include "session/sessions.h"

enum { STEPS_A_POLL = 32 };
/* The clock is read every 64 polls of one session, more often with many
 * sessions, and after a poll that moved something, as that took time. */
enum { LOOKS_PER_TICK = 2048, LOOKS_A_POLL = 31 };
/* ns between looks at the sockets, which alone tell of parked sessions. */
static const int64_t SOCKETS_EVERY = 500000, SOCKETS_PARKED = 100000,
                     SOCKETS_ASKED = 20000;

/* ---- Which sessions a poll looks at -------------------------------------- */

/* ns. The first record after that may wait for a look at the sockets. */
static const int64_t PARK_AFTER = 20 * 1000000;

/* Is nothing in progress that needs polls? */
static bool schedule_rests(struct perigee_session *s) {
  if (s->state != PERIGEE_SESSION_OPEN || !session_rests(s))
    return false;
  const struct perigee_transport *t = lane_table(s->lane);
  return t->rests && t->rests(s->lane) && lanes_rest(s);
}

static void schedule_arm_one(struct perigee_session *s) {
  lane_sleep(s->lane)->arm(s->lane);
  lanes_arm(s);
}

static void schedule_disarm_one(struct perigee_session *s) {
  lane_sleep(s->lane)->disarm(s->lane);
  lanes_disarm(s);
}

/* Was no other hot session used later? The one that is left last counts if
 * several were used at the same time. */
static bool schedule_is_last(const struct perigee_session *s) {
  const struct node *n, *head = &s->engine->hot;
  for (n = head->next; n != head; n = n->next) {
    const struct perigee_session *other =
        CONTAINER(n, struct perigee_session, polled.node);
    if (other != s && other->polled.used >= s->polled.used)
      return false;
  }
  return true;
}

/* The second look releases what the first one has read, so there must be no
 * event that still has to be given and may point there. */
static __attribute__((noinline, cold)) void
schedule_park(struct perigee_session *s) {
  struct perigee_engine *engine = s->engine;
  if (engine->ready_count > 0 || !schedule_rests(s) || schedule_is_last(s))
    return;
  schedule_arm_one(s);
  uint64_t before = engine->progress;
  session_poll(s);
  if (engine->progress == before && schedule_rests(s)) {
    hot_park(s);
  } else if (!engine->armed && s->state == PERIGEE_SESSION_OPEN) {
    schedule_disarm_one(s);
  }
}

static void schedule_poll(struct perigee_engine *engine) {
  struct node *n, *head = &engine->hot;
  for (n = head->next; n != head && engine_room(engine); n = engine->turn) {
    struct perigee_session *s =
        CONTAINER(n, struct perigee_session, polled.node);
    engine->turn = n->next;
    session_poll(s);
    if (UNLIKELY(engine->now - s->polled.used > PARK_AFTER))
      schedule_park(s);
  }
  engine->turn = NULL;
  if ((n != head || engine_is_asked_enough(engine)) && head->next->next != head)
    list_append(head, list_pop(head)); /* the next poll begins with another */
}

/* Arms the lanes of all sessions but the parked ones, which are armed. */
static void schedule_arm(struct perigee_engine *engine) {
  struct node *n, *head = &engine->hot;
  for (n = head->next; n != head; n = n->next) {
    struct perigee_session *s =
        CONTAINER(n, struct perigee_session, polled.node);
    if (s->lane)
      schedule_arm_one(s);
  }
}

/* Disarms the hot sessions; parked ones stay armed. */
static void schedule_disarm(struct perigee_engine *engine) {
  struct node *n, *head = &engine->hot;
  for (n = head->next; n != head; n = n->next) {
    struct perigee_session *s =
        CONTAINER(n, struct perigee_session, polled.node);
    if (s->lane)
      schedule_disarm_one(s);
  }
}

/* ---- Sleeping ------------------------------------------------------------ */

/* ns. Work that goes on without an event, such as a copy by a GPU, is looked at
 * after so long; and while nothing happens, after a 32nd part of the time that
 * it was waited for, so that a long copy costs few looks, and its end is noticed
 * late by 3 % at most. Copies of which a kind of memory tells by a descriptor
 * are looked at after twice as long each time: the first looks ask for more
 * copies before all have ended, and each later one comes for a word that was
 * lost. */
static const int64_t SOON = 50000, SOON_MOST = 10000000;
enum { SOON_PART = 32 };

void engine_arm(struct perigee_engine *engine) {
  engine->armed = true;
  fabrics_arm(engine);
  schedule_arm(engine);
}

__attribute__((noinline)) void engine_disarm(struct perigee_engine *engine) {
  engine->armed = false;
  schedule_disarm(engine);
}

/* The word wakes the engine, whose next poll looks at the copies. */
static void nap_told(struct watcher *watcher, uint32_t events) {
  (void)watcher, (void)events;
}

static bool nap_watch(void *of, int fd) {
  struct perigee_engine *engine = of;
  engine->copies_watcher.ready = nap_told;
  return watch_add(engine, fd, &engine->copies_watcher, EPOLLIN | EPOLLET) == 0;
}

static bool nap_is_told(struct perigee_engine *engine) {
  return engine->poll_soon == SOON_COPIES &&
         contexts_tell(&engine->memories, nap_watch, engine);
}

static int64_t nap_soon(struct perigee_engine *engine) {
  if (engine->soon == 0 || engine->soon_after != engine->progress) {
    engine->soon = engine->now;
    engine->soon_after = engine->progress;
  }
  int64_t part = nap_is_told(engine) ? 1 : SOON_PART;
  int64_t nap = (engine->now - engine->soon) / part;
  return nap < SOON ? SOON : nap < SOON_MOST ? nap : SOON_MOST;
}

/* Returns the time to the nearest timer: a longer sleep would be late. */
int64_t engine_nap(struct perigee_engine *engine, int64_t timeout) {
  int64_t soon = engine->poll_soon ? nap_soon(engine) : INT64_MAX;
  if (soon < INT64_MAX && (timeout < 0 || timeout > soon))
    timeout = soon;
  int64_t delayed =
      engine->faults ? faults_due(engine->faults, engine->now) : -1;
  if (delayed >= 0 && (timeout < 0 || delayed - engine->now < timeout))
    timeout = delayed - engine->now;
  int64_t next = timers_next(&engine->timers);
  if (next < 0)
    return timeout;
  next -= engine->now;
  if (next < 0)
    next = 0;
  return timeout < 0 || next < timeout ? next : timeout;
}

/* ---- The clock, timers and sockets --------------------------------------- */

/* The timeout is as long as the timer runs, so the two tell when it started. */
static void timer_start(struct perigee_engine *engine, struct operation *op) {
  int64_t due = time_after(engine->now, op->timeout);
  op->timeout = due - engine->now;
  timers_add(&engine->timers, &op->timer, due);
}

void engine_start_timers(struct perigee_engine *engine) {
  uint32_t last = engine->fresh, first = FRESH_NONE;
  struct operation *table = engine->table;
  engine->fresh = FRESH_NONE;
  while (last != FRESH_NONE) { /* turns the list around */
    uint32_t before = table[last - FRESH].fresh;
    table[last - FRESH].fresh = first;
    first = last;
    last = before;
  }
  while (first != FRESH_NONE) {
    struct operation *op = &table[first - FRESH];
    first = op->fresh;
    op->fresh = 0;
    if (op->timeout >= 0 && !op->timer.next)
      timer_start(engine, op);
  }
}

static void poll_time_out(struct perigee_engine *engine) {
  engine_start_timers(engine);
  struct timer *t;
  while ((t = timers_expired(&engine->timers, engine->now)))
    t->expired(t);
}

static bool sockets_are_due(const struct perigee_engine *engine) {
  int64_t every = engine->now < engine->frames_until ? SOCKETS_ASKED
                  : engine->parked                   ? SOCKETS_PARKED
                                                     : SOCKETS_EVERY;
  return engine->sockets_due || engine->more_ready ||
         engine->now - engine->sockets_at >= every;
}

/* Does what need not be done in every poll. */
static __attribute__((noinline)) void poll_tick(struct perigee_engine *engine) {
  bool moved = engine->moved;
  engine->idle = 0;
  engine->moved = false;
  budget_begin(&engine->budget, engine_clock(engine));
  if (UNLIKELY(engine->budget.slow_pages))
    regions_use_small_pages(engine);
  poll_time_out(engine);
  if (sockets_are_due(engine)) {
    engine->sockets_due = false;
    engine->sockets_at = engine->now;
    watched_rearm(engine);
    watch_poll(engine);
    unauth_turn(engine);
    messages_sweep(engine);
  }
  if (!list_empty(&engine->regions.closing))
    regions_sweep(engine);
  if (UNLIKELY(moved))
    engine_begin_pieces(engine);
}

/* ---- Events -------------------------------------------------------------- */

static struct perigee_event *poll_next_event(struct perigee_engine *engine) {
  struct perigee_event *e = &engine->out[engine->filled++];
  engine->progress++;
  *e = (struct perigee_event){0};
  return e;
}

/* Has an operation ended except for an asynchronous copy of its memory? */
static bool session_copies(const struct perigee_session *s) {
  const struct node *n;
  for (n = s->operations.all.next; n != &s->operations.all; n = n->next)
    if (CONTAINER(n, struct operation, all)->quiet_wait)
      return true;
  return false;
}

static __attribute__((noinline, cold)) void
poll_give_news(struct perigee_engine *engine, struct node *list, int kind) {
  struct node *n, *next;
  for (n = list->next; n != list && engine->filled < engine->room; n = next) {
    next = n->next;
    struct perigee_session *s = CONTAINER(n, struct perigee_session, news);
    if (list == &engine->losses && session_copies(s))
      continue;
    list_remove(n);
    struct perigee_event *e = poll_next_event(engine);
    e->kind = (uint8_t)kind;
    e->session = s->id;
    e->status = s->ended.status;
    stats_event(engine, NULL, (uint32_t)kind, s->id, s->ended.status, 0);
    if (kind == PERIGEE_EVENT_LOST) {
      e->pointer = (const uint8_t *)s->ended.reason;
      e->length = strlen(s->ended.reason);
    }
    if (list == &engine->news && s->state == PERIGEE_SESSION_ENDED)
      list_append(&engine->losses, &s->news); /* it ended before it was told */
  }
}

/* With a thread the text is copied, as its owner may change it meanwhile. */
static const char *event_text(const struct operation *op, const char *why) {
  const char *copy = NULL;
  if (engine_copies(op->engine))
    copy =
        (const char *)scratch_copy(op, (const uint8_t *)why, strlen(why) + 1);
  return copy ? copy : why;
}

/* Was the operation ended by the end of its session? */
static bool event_ended_with(const struct perigee_session *s,
                             const struct perigee_event *e) {
  if (s->state != PERIGEE_SESSION_ENDED)
    return false;
  return e->kind == PERIGEE_EVENT_CONNECTED ? e->status == s->ended.status
                                            : e->status == PERIGEE_PEER_LOST;
}

/* Adds to an event without a text why the session is lost or never opened, why
 * there was no memory, or why a device does no more. */
static void event_tell_why(const struct operation *op,
                           struct perigee_event *e) {
  const struct perigee_session *s = op->session;
  const char *why = "";
  bool own = e->kind == PERIGEE_EVENT_REPLY || e->kind == PERIGEE_EVENT_DONE ||
             e->kind == PERIGEE_EVENT_CONNECTED;
  if (!own || !s || e->pointer)
    return;
  if (event_ended_with(s, e))
    why = s->ended.reason;
  else if (e->status == PERIGEE_NO_MEMORY)
    why = event_text(op, lane_trouble(s));
  else if (e->status == PERIGEE_CLOSED && s->state == PERIGEE_SESSION_OPEN)
    why = event_text(op, contexts_trouble(&s->engine->memories));
  else if (e->status == PERIGEE_PEER_LOST) /* but its session goes on */
    why = lanes_trouble(s);
  if (!*why)
    return;
  e->flags = 0;
  e->pointer = (const uint8_t *)why;
  e->length = strlen(why);
}

/* Tells how much of a call's timeout is left, by op->value. */
static void event_tell_left(const struct operation *op,
                            struct perigee_event *e) {
  int64_t due = (int64_t)op->value, now = op->engine->now;
  e->remaining = due < 0 ? -1 : due > now ? due - now : 0;
  e->capacity = 0;
}

/* Adds to the event of what has failed how much time is left, and why. */
static __attribute__((noinline, cold)) void
event_tell_failure(const struct operation *op, struct perigee_event *e) {
  if (op->kind == OP_CALL)
    event_tell_left(op, e);
  if (op->kind == OP_CALL &&
      op->nth > 0) { /* the batch's number stands for it */
    e->operation = op->parent->index;
    e->capacity = op->nth - 1;
  }
  event_tell_why(op, e);
}

/* Gives the program what it owns from now on: a slice, the head of a long
 * reply. While it is asked where a reply lands, it owns nothing yet. */
static void event_hand_over(struct operation *op, struct perigee_event *e) {
  if (op->event == PERIGEE_EVENT_REPLY_LANDING) {
    e->flags &= (uint8_t)~OPERATION_ASKS;
    event_tell_left(op, e);
    return;
  }
  if (op->kind == OP_CALL && op->flags & PERIGEE_HELD) {
    event_tell_left(op, e);
    op->block = NULL;
  }
  if (op->flags & PERIGEE_POOLED) {
    e->landed = op->slice_block;
    op->slice_block = NULL;
  }
}

static inline __attribute__((always_inline)) void
event_give(struct perigee_engine *engine, struct operation *op) {
  struct perigee_event *e = &engine->out[engine->filled++];
  uint32_t kind = op->event;
  uint32_t session = op->session ? op->session->id : 0;
  int status = op->status;
  uint64_t length = op->length, slice = op->slice;
  stats_event(engine, op, kind, session, status, length + slice);
  engine->progress++;
  e->kind = (uint8_t)kind;
  e->flags = (uint8_t)apart(op->flags);
  e->method = 0;
  e->session = session;
  e->status = status;
  e->operation = op->index;
  e->pointer = op->pointer;
  e->length = length;
  e->slice = slice;
  e->capacity = op->value;
  e->remaining = 0;
  e->code = op->code;
  if (op->flags & (PERIGEE_POOLED | PERIGEE_HELD | OPERATION_ASKS))
    event_hand_over(op, e);
  op->event = PERIGEE_EVENT_NONE;
  if (kind != PERIGEE_EVENT_REQUEST && kind != PERIGEE_EVENT_LANDING) {
    if (UNLIKELY(status < 0))
      event_tell_failure(op, e);
    if (op->class->told)
      op->class->told(op);
    list_append(&engine->given, &op->queue);
    return;
  }
  e->method = op->method;
  e->remaining = op->deadline < 0 ? -1 : op->deadline - engine->now;
  if (op->deadline >= 0 && e->remaining < 0)
    e->remaining = 0;
}

/* Gives the rest of what is no operation's. */
static __attribute__((noinline, cold)) void
poll_give_notices(struct perigee_engine *engine) {
  poll_give_news(engine, &engine->losses, PERIGEE_EVENT_LOST);
  if (engine->filled == engine->room)
    return;
  bool more = watched_give(engine);
  if (engine->filled < engine->room &&
      refusals_give(engine, &engine->out[engine->filled]))
    engine->filled++;
  engine->notices = more || engine->refusals.due ||
                    !list_empty(&engine->news) || !list_empty(&engine->losses);
}

/* Gives a new session before its operations, and its loss after them. */
static __attribute__((noinline)) void
poll_give_some(struct perigee_engine *engine) {
  struct node *n;
  if (UNLIKELY(engine->notices))
    poll_give_news(engine, &engine->news, PERIGEE_EVENT_ACCEPTED);
  while (engine->filled < engine->room && (n = list_pop(&engine->ready))) {
    engine->ready_count--;
    event_give(engine, CONTAINER(n, struct operation, queue));
  }
  if (UNLIKELY(engine->notices))
    poll_give_notices(engine);
}

void engine_give(struct perigee_engine *engine, struct operation *op,
                 struct perigee_event *event) {
  engine->out = event;
  engine->filled = 0;
  list_remove(&op->queue);
  engine->ready_count--;
  event_give(engine, op);
}

static inline void poll_give(struct perigee_engine *engine) {
  bool some = engine->ready_count > 0 || engine->notices;
  if (some && !engine->keeps_events)
    poll_give_some(engine);
}

int engine_give_ready(struct perigee_engine *engine,
                      struct perigee_event *events, int capacity) {
  engine->out = events;
  engine->room = capacity;
  engine->filled = 0;
  poll_give(engine);
  return engine->filled;
}

/* ---- The poll ------------------------------------------------------------ */

/* Frees sessions that the program has freed: all of them, or those that it
 * never heard of. */
static __attribute__((noinline, cold)) void
poll_reap(struct perigee_engine *engine, bool all) {
  struct node *n, *next, *head = &engine->dead;
  for (n = head->next; n != head; n = next) {
    next = n->next;
    struct perigee_session *s = CONTAINER(n, struct perigee_session, node);
    if (all || s->ended.unannounced)
      session_reap(s);
  }
}

static __attribute__((noinline)) void
poll_end_operations(struct perigee_engine *engine) {
  struct node *n;
  while ((n = list_pop(&engine->given))) {
    struct operation *op = CONTAINER(n, struct operation, queue);
    op->class->given(op);
  }
}

/* Ends operations whose last event was handed out by the poll before. */
static inline void poll_end_given(struct perigee_engine *engine) {
  engine->scratch_used = 0;
  if (!list_empty(&engine->given))
    poll_end_operations(engine);
  if (UNLIKELY(!list_empty(&engine->dead)))
    poll_reap(engine, true);
}

void engine_end_given(struct perigee_engine *engine) {
  poll_end_given(engine);
}

/* Steps a few operations in each poll, in turn, so that a thousand that cannot
 * go on cost the others little. */
static __attribute__((noinline)) void
poll_step_moving(struct perigee_engine *engine, bool all) {
  struct node *head = &engine->moving, *last = head->previous;
  uint32_t turns = all ? engine->live : STEPS_A_POLL;
  for (; turns > 0 && engine->budget.left > 0; turns--) {
    struct node *n = list_pop(head);
    if (!n)
      break;
    list_append(head, n);
    struct operation *op = CONTAINER(n, struct operation, queue);
    op->class->step(op);
    if (n == last)
      break;
  }
  if (engine->budget.left < BUDGET)
    engine->moved = true;
}

static inline bool poll_tick_is_due(struct perigee_engine *engine) {
  uint64_t looks = LOOKS_A_POLL + engine->hot_count;
  return ++engine->idle * looks >= LOOKS_PER_TICK;
}

/* Returns whether this poll is before or after a sleep: such a poll looks at
 * every session and operation. A peer that woke this side mostly has sent a
 * record. That comes first; the wake frame is read by the next poll. */
static __attribute__((noinline)) bool
poll_begin_unusual(struct perigee_engine *engine) {
  bool all = engine->armed || engine->woken || engine->sockets_due;
  if (engine->woken)
    engine->sockets_due = true;
  else if (poll_tick_is_due(engine) || engine->sockets_due ||
           engine->more_ready || engine->moved)
    poll_tick(engine);
  engine->woken = false;
  return all;
}

/* Reads the clock and so on, if it is time; returns as poll_begin_unusual(). */
static inline bool poll_begin(struct perigee_engine *engine) {
  if (UNLIKELY(engine->armed | engine->woken | engine->sockets_due |
               engine->more_ready | engine->moved))
    return poll_begin_unusual(engine);
  if (UNLIKELY(poll_tick_is_due(engine)))
    poll_tick(engine);
  return false;
}

int engine_poll(struct perigee_engine *engine, struct perigee_event *events,
                int capacity, bool keep) {
  engine->out = events;
  engine->room = capacity;
  engine->filled = 0;
  engine->budget.left = BUDGET;
  engine->asked = 0;
  engine->keep = keep;
  engine->poll_soon = 0;
  engine->counters->polls++;
  if (!keep)
    poll_end_given(engine);
  bool all = poll_begin(engine);
  if (engine->fabric_count > 0)
    fabrics_turn(engine);
  poll_give(engine);
  uint64_t before = engine->progress;
  schedule_poll(engine);
  if (engine->progress != before)
    engine->worked_at = engine->now;
  if (!list_empty(&engine->moving))
    poll_step_moving(engine, all);
  /* Looking at a caller's mark takes its cache line away from the caller. A
   * peer that releases a reply wakes a sleeper, so all are looked at only
   * before a sleep. */
  if ((engine->idle == 0 || all) && !list_empty(&engine->lenders))
    room_sweep(engine, engine->armed);
  poll_give(engine);
  if (engine->filled > 0)
    STAMP(STAMP_GIVEN);
  return engine->filled;
}

bool engine_progress(struct perigee_engine *engine) {
  uint64_t before = engine->progress;
  engine->aside = engine->keeps_events = true;
  engine->sockets_due = true;
  engine->woken = false;
  poll_reap(engine, false); /* unauthenticated peers would fill the table */
  engine_poll(engine, NULL, INT_MAX, true);
  engine->aside = engine->keeps_events = false;
  return engine->progress != before;
}
