/* SPDX-License-Identifier: Apache-2.0
 *
 * refused.c - tells the program of peers that were refused before they were
 * authenticated. There may be thousands, so an event comes now and then: how
 * many were refused since the last event, and why one of them was: the last
 * that did more than connect, if there was one.
 */
#include <stdio.h>
#include <string.h>

#include "core/lock.h"
#include "sessions.h"

static void due(struct perigee_engine *engine) {
  engine->refusals.due = engine->notices = true;
  engine->progress++;
}

static void expired(struct timer *timer) {
  due(CONTAINER(timer, struct perigee_engine, refusals.timer));
}

void perigee_tell_refused(struct perigee_engine *engine, int64_t every) {
  ENTER(engine);
  struct refusals *r = &engine->refusals;
  timers_remove(&engine->timers, &r->timer);
  r->timer.expired = expired;
  r->every = every;
  r->next = r->count = 0;
  r->on = every >= 0;
  r->due = false;
}

void refusals_add(struct perigee_engine *engine, const char *peer,
                  const char *address, int status, const char *reason) {
  struct refusals *r = &engine->refusals;
  engine->counters.refused++;
  if (!r->on)
    return;
  if (r->count++ == 0 || status != PERIGEE_PEER_LOST ||
      r->status == PERIGEE_PEER_LOST) {
    r->status = status;
    snprintf(r->text, sizeof r->text, "%s at %s: %s",
             *peer ? peer : "a process of this host", address, reason);
  }
  if (r->due || r->timer.next)
    return;
  if (engine_clock(engine) >= r->next)
    due(engine);
  else
    timers_add(&engine->timers, &r->timer, r->next);
}

/* The event's texts stay valid until the next poll. */
bool refusals_give(struct perigee_engine *engine, struct perigee_event *e) {
  struct refusals *r = &engine->refusals;
  if (!r->due || engine->keep)
    return false;
  memcpy(r->told, r->text, sizeof r->told);
  *e = (struct perigee_event){.kind = PERIGEE_EVENT_REFUSED,
                              .status = r->status,
                              .operation = -1,
                              .pointer = (const uint8_t *)r->told,
                              .length = strlen(r->told),
                              .code = r->count};
  r->due = false;
  r->count = 0;
  r->next = engine->now + r->every;
  return true;
}
