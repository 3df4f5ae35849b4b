/* SPDX-License-Identifier: Apache-2.0 */
#include "timers.h"

static void timers_clear(struct timer *head) {
  head->next = head->previous = head;
}

void timers_open(struct timers *timers, int64_t now) {
  for (size_t i = 0; i < TIMERS_SLOTS; i++)
    timers_clear(&timers->slots[i]);
  timers_clear(&timers->expired);
  timers->tick = now / TIMERS_TICK + 1;
  timers->now = now;
  timers->next = INT64_MAX;
  timers->count = 0;
}

static void timers_turn_slot(struct timers *timers, struct timer *head,
                             int64_t now) {
  for (struct timer *timer = head->next, *next; timer != head; timer = next) {
    next = timer->next;
    if (timer->due > now)
      continue;
    timers_remove(timers, timer);
    timers_link(&timers->expired, timer);
    timers->count++;
  }
}

/* One revolution passes every slot, however far the clock has jumped. */
void timers_turn(struct timers *timers, int64_t now) {
  int64_t last = now / TIMERS_TICK, first = timers->tick;
  if (last - first >= TIMERS_SLOTS)
    first = last - TIMERS_SLOTS + 1;
  timers->now = now;
  timers->tick = last + 1;
  if (timers->count == 0)
    return;
  for (int64_t tick = first; tick <= last; tick++)
    timers_turn_slot(timers, &timers->slots[tick % TIMERS_SLOTS], now);
}

static int64_t timers_earliest_in(const struct timer *head, int64_t earliest) {
  for (struct timer *timer = head->next; timer != head; timer = timer->next) {
    int64_t tick = timers_tick(timer->due);
    if (tick < earliest)
      earliest = tick;
  }
  return earliest;
}

/* The search ends at the first slot that holds a timer of this revolution. */
static int64_t timers_earliest(const struct timers *timers) {
  int64_t least = INT64_MAX;
  for (int64_t i = 0; i < TIMERS_SLOTS; i++) {
    int64_t tick = timers->tick + i;
    least = timers_earliest_in(&timers->slots[tick % TIMERS_SLOTS], least);
    if (least <= tick)
      break;
  }
  return least;
}

/* Removing a timer does not update timers->next: at worst one sleep ends early,
 * and then the slots are searched for a new bound. */
int64_t timers_next(struct timers *timers) {
  if (timers->count == 0)
    return -1;
  if (timers->expired.next != &timers->expired)
    return timers->expired.next->due;
  if (timers->next < timers->tick)
    timers->next = timers_earliest(timers);
  const int64_t last = INT64_MAX / TIMERS_TICK;
  return (timers->next < last ? timers->next : last) * TIMERS_TICK;
}
