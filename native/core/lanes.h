/* SPDX-License-Identifier: Apache-2.0
 *
 * lanes.h - a session's lane, for operations.
 */
#ifndef LANES_H
#define LANES_H

#include <stdatomic.h>

#include "engine.h"

/* Returns the status of a broken lane and why it broke, or PERIGEE_OK. */
int lane_state(const struct perigee_session *session, const char **reason);
/* Returns why its transport had no memory lately, or "". */
const char *lane_trouble(const struct perigee_session *session);
/* session_open_for() returns whether an operation may begin. If not,
 * session_tell_shut() sets the status and the error's text. */
void session_tell_shut(struct perigee_session *session, int *status);
static inline bool session_open_for(struct perigee_session *s, int *status) {
  if (s->state == PERIGEE_SESSION_OPEN && engine_alive(s->engine) &&
      !((const struct lane_head *)s->lane)->ending)
    return true;
  session_tell_shut(s, status);
  return false;
}
/* Returns PERIGEE_OK, or UNSUPPORTED with a sentence that names the missing
 * feature. */
int session_needs(struct perigee_session *session, uint64_t feature);
/* Wakes the peer, if it sleeps and wants to be woken. */
void session_wake(struct perigee_session *session);

/* Called after each record, of which there may be many before the next poll. A
 * peer that is seen asleep is woken at once. To see a peer that falls asleep at
 * this moment takes a fence between the record's stores and the load of
 * `armed`, and the fence waits for cache lines that the peer has. So the next
 * poll does that once for all records (session_sure). This side always polls
 * again before it sleeps, because it polls once after arming. A side that is
 * armed already, has a polling thread, or is parked fences at once. */
static inline void session_wake_soon(struct perigee_session *s) {
  const _Atomic uint32_t *armed = ((const struct lane_head *)s->lane)->armed;
  bool polls =
      armed && !s->polled.parked && !s->engine->armed && !s->engine->thread;
  if (polls && atomic_load_explicit(armed, memory_order_relaxed) == 0)
    s->polled.unsure = true;
  else
    session_wake(s);
}

void session_sure(struct perigee_session *session);

#endif
