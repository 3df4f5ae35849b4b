/* SPDX-License-Identifier: Apache-2.0
 *
 * liveness.c - is a peer on another host still there? On one host the end of
 * its socket tells, and a peer that is stopped is alive. From another host the
 * end may never come: so each side says something at least three times within
 * dead_after, and who hears nothing for so long has lost its peer.
 *
 * The session's timer looks when the next word is due, or would be too late.
 * Before a peer is given up, what lies unread in its socket is read: it may be
 * this side that did nothing for a while.
 */
#include <stdio.h>

#include "core.h"

/* Whoever said nothing between two looks says a word: so words are at most two
 * looks apart. */
enum { LOOKS = 6 };

bool liveness_wanted(const struct perigee_session *s) {
  return s->tcp && !s->same_host;
}

static void traffic(const struct perigee_session *s, uint64_t *sent,
                    uint64_t *received) {
  *sent = s->wire.sent;
  *received = s->wire.received;
  if (s->spoken)
    lane_table(s->lane)->traffic(s->lane, sent, received);
}

void liveness_heard(struct perigee_session *s) {
  uint64_t sent, received;
  if (!liveness_wanted(s))
    return;
  traffic(s, &sent, &received);
  if (received == s->heard)
    return;
  s->heard = received;
  s->heard_at = s->engine->now;
}

static void set(struct perigee_session *s) {
  int64_t dead_after = s->engine->options.dead_after;
  int64_t due = s->engine->now + dead_after / LOOKS;
  if (due > s->heard_at + dead_after)
    due = s->heard_at + dead_after;
  timers_add(&s->engine->timers, &s->timer, due);
}

void liveness_begin(struct perigee_session *s) {
  if (!liveness_wanted(s))
    return;
  s->heard_at = engine_clock(s->engine);
  set(s);
}

static bool dead(struct perigee_session *s) {
  int64_t limit = s->heard_at + s->engine->options.dead_after;
  if (s->engine->now < limit)
    return false;
  const struct perigee_transport *t = lane_table(s->lane);
  if (s->spoken && t->poll)
    t->poll(s->lane);
  else
    socket_look(s);
  liveness_heard(s);
  return s->heard_at < s->engine->now;
}

static void give_up(struct perigee_session *s) {
  char reason[96];
  snprintf(reason, sizeof reason,
           "nothing was heard of the peer for %.1f s (option dead_after)",
           (double)(s->engine->now - s->heard_at) / 1e9);
  session_end(s, PERIGEE_PEER_LOST, reason);
}

void liveness_tick(struct perigee_session *s) {
  struct frame ping = {.type = FRAME_PING};
  uint64_t sent, received;
  liveness_heard(s);
  if (dead(s)) {
    if (s->state == PERIGEE_SESSION_OPEN)
      give_up(s);
    return;
  }
  traffic(s, &sent, &received);
  if (sent == s->said)
    session_tell(s, &ping, NULL, 0);
  traffic(s, &s->said, &received);
  set(s);
}
