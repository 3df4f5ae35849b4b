/* SPDX-License-Identifier: Apache-2.0
 *
 * timers.h - a hashed timing wheel. Arming, disarming and finding nothing due
 * take a handful of instructions; nothing is allocated.
 *
 * A timer is put into the slot of the first tick at whose start it is due. So
 * it never fires early, and at most one tick (about a millisecond) late. Timers
 * of later revolutions share the slots and are skipped.
 */
#ifndef TIMERS_H
#define TIMERS_H

#include <stddef.h>
#include <stdint.h>

enum { TIMERS_SLOTS = 1024, TIMERS_TICK = 1 << 20 }; /* nanoseconds */

/* Embedded in what it times. Zeroed: not armed. */
struct timer {
  struct timer *next, *previous; /* next == NULL: not armed */
  int64_t due;
  /* Called when the timer has come due and is no longer armed, by the
   * function that turns the wheel. The owner sets it before arming for the
   * first time. */
  void (*expired)(struct timer *timer);
};

struct timers {
  struct timer slots[TIMERS_SLOTS];
  struct timer expired; /* list of those that came due, not taken yet */
  int64_t tick;         /* the first tick whose slot was not looked at */
  int64_t now;          /* time of the last turn */
  int64_t next;         /* no timer is due in a slot before this tick */
  uint32_t count;
};

/* Returns the time that is so many ns (not negative) after `now`. INT64_MAX,
 * which never comes, stands for all that are later. */
static inline int64_t time_after(int64_t now, int64_t ns) {
  return ns < INT64_MAX - now ? now + ns : INT64_MAX;
}

/* Times are nanoseconds, not negative, and do not go back. */
void timers_open(struct timers *timers, int64_t now);

/* Moves the timers that came due since the last turn to `expired`. */
void timers_turn(struct timers *timers, int64_t now);

/* Returns the latest time for the next call of timers_expired: the start of a
 * tick at which a timer may be due, a time in the past if one is, -1 if none is
 * armed. */
int64_t timers_next(struct timers *timers);

static inline int64_t timers_tick(int64_t due) {
  return (due - 1) / TIMERS_TICK + 1;
}

static inline void timers_link(struct timer *head, struct timer *timer) {
  timer->next = head;
  timer->previous = head->previous;
  head->previous->next = timer;
  head->previous = timer;
}

/* Arms a timer that is not armed. A time in the past is due at once. */
static inline void timers_add(struct timers *timers, struct timer *timer,
                              int64_t due) {
  timer->due = due;
  timers->count++;
  if (due <= timers->now) {
    timers_link(&timers->expired, timer);
    return;
  }
  int64_t tick = timers_tick(due);
  if (tick < timers->next)
    timers->next = tick;
  timers_link(&timers->slots[tick % TIMERS_SLOTS], timer);
}

static inline void timers_remove(struct timers *timers, struct timer *timer) {
  if (!timer->next)
    return;
  timer->previous->next = timer->next;
  timer->next->previous = timer->previous;
  timer->next = NULL;
  timers->count--;
}

/* Disarms and returns one timer that is due, or NULL. */
static inline struct timer *timers_expired(struct timers *timers, int64_t now) {
  if (now >= timers->tick * TIMERS_TICK)
    timers_turn(timers, now);
  else if (now > timers->now)
    timers->now = now;
  struct timer *first = timers->expired.next;
  if (first == &timers->expired)
    return NULL;
  timers_remove(timers, first);
  return first;
}

#endif
