/* SPDX-License-Identifier: Apache-2.0
 *
 * lanes.c - what operations ask of their session: may they begin, why is there
 * no memory, and to wake the peer.
 */
#include "lanes.h"

#include "net/features.h"

int lane_state(const struct perigee_session *s, const char **reason) {
  const struct perigee_transport *t = s->transport;
  return t->broken ? t->broken(s->lane, reason) : PERIGEE_OK;
}

const char *lane_trouble(const struct perigee_session *s) {
  bool known = s && s->lane && s->transport->trouble;
  return known ? s->transport->trouble(s->lane) : "";
}

/* Nothing is begun over a broken lane: callers that try again at once would get
 * events without end, and never that of the session. */
void session_tell_shut(struct perigee_session *s, int *status) {
  bool open = s->state == PERIGEE_SESSION_OPEN, alive = engine_alive(s->engine);
  const char *reason = "";
  if (open && alive) /* the lane broke; the session's end is not told yet */
    *status = lane_state(s, &reason);
  if (!alive)
    *status = fail(s->engine, PERIGEE_FORKED,
                   "this session belongs to the parent process");
  else if (open)
    fail(s->engine, *status, "the session is ending: %s", reason);
  else if (s->state == PERIGEE_SESSION_ENDED)
    *status = fail(s->engine, s->ended.status, "the session has ended: %s",
                   s->ended.reason);
  else
    *status = fail(s->engine, PERIGEE_AGAIN, "the session is not open yet");
}

int session_needs(struct perigee_session *s, uint64_t feature) {
  const char *name = feature_of(feature)->name;
  if (s->peer.features & feature)
    return PERIGEE_OK;
  if (s->engine->features & feature)
    return fail(s->engine, PERIGEE_UNSUPPORTED,
                "the peer does not have the feature \"%s\"", name);
  return fail(s->engine, PERIGEE_UNSUPPORTED,
              "the feature \"%s\" is turned off here (option features)", name);
}

void session_wake(struct perigee_session *s) {
  if (!lane_sleep(s->lane)->wanted(s->lane))
    return;
  struct frame wake = {.type = FRAME_WAKE};
  s->counters.wakes++;
  /* A full socket wakes its reader anyway; a dead one is noticed by the next
   * look at the sockets. */
  s->up->tell(s, &wake, NULL, 0);
}
