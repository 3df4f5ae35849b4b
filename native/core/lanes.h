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
/* May an operation begin? If not, its status, and a sentence. */
void session_tell_shut(struct perigee_session *session, int *status);
static inline bool session_open_for(struct perigee_session *s, int *status) {
  if (s->state == PERIGEE_SESSION_OPEN && engine_alive(s->engine) &&
      !((const struct lane_head *)s->lane)->ending)
    return true;
  session_tell_shut(s, status);
  return false;
}
/* PERIGEE_OK; or UNSUPPORTED, with a sentence that names the missing
 * feature. */
int session_needs(struct perigee_session *session, uint64_t feature);
/* Wakes the peer, if it sleeps and wants to be woken. */
void session_wake(struct perigee_session *session);

/* The same after each record, of which there may be many before the next poll.
 * Who is seen to sleep is woken at once. To see who falls asleep at this moment
 * takes a fence between the record's stores and the look, and those stores wait
 * for lines that the peer has: so the next poll does that, once for all records
 * (session_sure). There is a next poll before this side sleeps, as it arms only
 * to poll once more; who is armed already, has a thread that polls, or is parked,
 * does it at once. */
static inline void session_wake_soon(struct perigee_session *s) {
  const _Atomic uint32_t *armed = ((const struct lane_head *)s->lane)->armed;
  bool polls =
      armed && !s->polled.parked && !s->engine->armed && !s->engine->thread;
  if (polls && atomic_load_explicit(armed, memory_order_relaxed) == 0)
    s->polled.unsure = true;
  else
    session_wake(s);
}

/* The fence is that of wanted() (shm.c), and so is its partner, in arm(). */
static inline void session_sure(struct perigee_session *s) {
  const struct lane_head *head = (const struct lane_head *)s->lane;
  s->polled.unsure = false;
  atomic_thread_fence(memory_order_seq_cst);
  if (atomic_load_explicit(head->armed, memory_order_relaxed) != 0)
    session_wake(s);
}

#endif
