/* SPDX-License-Identifier: Apache-2.0
 *
 * liveness.c - is a peer on another host still there? On one host the end of
 * its socket tells, and a peer that is stopped is alive. From another host the
 * end may never come: so each side says something at least three times within
 * dead_after, its own or the peer's if that is less, and who hears nothing for
 * its own dead_after has lost its peer.
 *
 * The session's timer looks when the next word is due, or would be too late.
 * Before a peer is given up, what lies unread in its socket is read: it may be
 * this side that did nothing for a while.
 *
 * On one host the peer's process is watched, too (peer.c): a child made by plain
 * fork keeps its socket open. Once it has ended only its last words are heard.
 */
#include <stdio.h>

#include "core/hot.h"
#include "sessions.h"

/* Words are at most two looks apart: who said nothing between two looks says
 * one, and looks again after the time of two, as long as nothing else is said;
 * who looks after so long says one in any case. */
enum { LOOKS = 7 };
static const int64_t MS = 1000000;
/* How long nothing is heard of a process that has ended, before nothing will
 * be: what it said may be on its way. */
static const int64_t EXIT_GRACE = 100000000; /* ns */

bool liveness_wanted(const struct perigee_session *s) {
  return s->tcp && (!s->same_host || s->peer_exited);
}

static int64_t patience(const struct perigee_session *s) {
  return s->peer_exited ? EXIT_GRACE : s->engine->options.dead_after;
}

static void traffic(const struct perigee_session *s, uint64_t *sent,
                    uint64_t *received) {
  *sent = s->wire.sent;
  *received = s->wire.received;
  if (s->spoken)
    lane_table(s->lane)->sockets->traffic(s->lane, sent, received);
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

uint32_t liveness_told(const struct perigee_engine *engine) {
  int64_t ms = engine->options.dead_after / MS;
  return ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

/* Between looks: as both sides need it. */
static int64_t pause_of(const struct perigee_session *s) {
  int64_t own = s->engine->options.dead_after;
  int64_t peers = s->terms.dead_after * MS;
  if (peers < DEAD_AFTER_LEAST)
    peers = DEAD_AFTER_LEAST;
  return (own < peers ? own : peers) / LOOKS;
}

static void set(struct perigee_session *s) {
  int64_t due = s->engine->now + (s->silent ? 2 : 1) * pause_of(s);
  int64_t limit = s->heard_at + patience(s);
  timers_add(&s->engine->timers, &s->timer, due < limit ? due : limit);
}

void liveness_begin(struct perigee_session *s) {
  if (!liveness_wanted(s))
    return;
  s->heard_at = engine_clock(s->engine);
  set(s);
}

void liveness_peer_exited(struct perigee_session *s) {
  s->peer_exited = true;
  liveness_begin(s);
}

static bool dead(struct perigee_session *s) {
  int64_t limit = s->heard_at + patience(s);
  if (s->engine->now < limit)
    return false;
  const struct perigee_transport *t = lane_table(s->lane);
  if (s->spoken && t->poll) {
    if (t->sockets) /* no descriptor was looked at for as long */
      t->sockets->socket_ready(s->lane);
    t->poll(s->lane);
    hot_activate(s); /* to look at what came */
  } else {
    socket_look(s);
  }
  liveness_heard(s);
  /* A lane that is ending has a better reason, which the next poll tells. */
  bool ending = s->spoken && ((const struct lane_head *)s->lane)->ending;
  return s->heard_at < s->engine->now && !ending;
}

static void give_up(struct perigee_session *s) {
  char reason[96];
  if (s->peer_exited)
    snprintf(reason, sizeof reason,
             "the peer's process has ended, and another keeps its socket open");
  else
    snprintf(reason, sizeof reason,
             "nothing was heard of the peer for %.1f s (option dead_after)",
             (double)(s->engine->now - s->heard_at) / 1e9);
  session_end(s, PERIGEE_PEER_LOST, reason);
}

void liveness_tick(struct perigee_session *s) {
  struct frame ping = {.type = FRAME_PING};
  uint64_t sent, received;
  liveness_heard(s);
  bool lost = dead(s);
  if (s->state != PERIGEE_SESSION_OPEN) /* by what was read */
    return;
  if (lost) {
    give_up(s);
    return;
  }
  traffic(s, &sent, &received);
  bool before = s->silent;
  s->silent = sent == s->said;
  if (s->silent || before)
    session_tell(s, &ping, NULL, 0);
  traffic(s, &s->said, &received);
  set(s);
}
