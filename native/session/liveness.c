/* SPDX-License-Identifier: Apache-2.0
 *
 * liveness.c - detects that a peer is gone. On one host the end of the socket
 * tells, and a peer that is merely stopped counts as alive. From another host
 * the end may never arrive. So each side sends something at least three times
 * within dead_after (its own or the peer's, the smaller), and a side that
 * receives nothing for its own dead_after takes the peer as lost.
 *
 * What a peer asks for is paid here. So the shortest dead_after that counts for a
 * peer grows with the number of its sessions (least_of), not with those of others,
 * of which it knows nothing. Looks of sessions of one kind are at the same times, an eighth of the pause apart, so that a sleep ends
 * once for many.
 *
 * The session's timer fires when the next keepalive is due, or the peer's is
 * overdue. Before a peer is given up, the socket is read: if this side was
 * stopped for a while, something may be waiting there.
 *
 * Where both sides have the feature "streams", it is the session's own socket
 * that has to bring something, and further ones for payloads are looked at each
 * by itself (attach.c): a middlebox may forget one connection and not another.
 * Otherwise whatever socket brings something shows that the peer is there. While
 * this side leaves bytes unread for want of room, it is the peer's kernel that has
 * to answer (tcp.c).
 *
 * On one host the peer's process is watched as well (peer.c), because a child
 * made by plain fork keeps the socket open. After the process has ended, only
 * what it sent before is received.
 */
#include <stdio.h>

#include "core/hot.h"
#include "sessions.h"

/* Keepalives are at most two looks apart: a side that has sent nothing between
 * two looks sends one, and then looks after twice the time, as long as it sends
 * nothing else; at such a look it sends one in any case. */
enum { LOOKS = 7, EARLIER = 8 };
static const int64_t MS = 1000000;
/* The time without anything received, after which a process that has ended is
 * taken to have sent nothing more. */
static const int64_t EXIT_GRACE = 100000000; /* ns */

bool liveness_wanted(const struct perigee_session *s) {
  return s->tcp && (!s->peer.same_host || s->alive.peer_exited);
}

static int64_t patience(const struct perigee_session *s) {
  return s->alive.peer_exited ? EXIT_GRACE : s->engine->options.dead_after;
}

static void traffic(const struct perigee_session *s, uint64_t *sent,
                    uint64_t *received) {
  *sent = s->socket.wire.sent;
  *received = s->socket.wire.received;
  if (s->streams.state != STREAMS_SOCKET)
    lane_table(s->lane)->sockets->traffic(s->lane, sent, received);
}

void liveness_heard(struct perigee_session *s) {
  uint64_t sent, received;
  if (!liveness_wanted(s))
    return;
  traffic(s, &sent, &received);
  if (received == s->alive.heard)
    return;
  s->alive.heard = received;
  s->alive.heard_at = s->engine->now;
}

uint32_t liveness_told(const struct perigee_engine *engine) {
  int64_t ms = engine->options.dead_after / MS;
  return ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

/* At most 28,000 looks a second are for a peer that wants them often: some 4 % of
 * a core. Nobody waits longer than a second for this reason. */
static int64_t least_of(const struct perigee_session *s) {
  static const int64_t EACH = 250000, MOST = 1000000000; /* ns */
  const struct share *peer = s->account.share->parent;
  int64_t least = (int64_t)peer->used[SHARE_SESSIONS] * EACH;
  if (least > MOST)
    return MOST;
  return least > DEAD_AFTER_LEAST ? least : DEAD_AFTER_LEAST;
}

/* As short as either side needs. */
static int64_t shorter(const struct perigee_session *s) {
  int64_t own = s->engine->options.dead_after, least = least_of(s);
  int64_t peers = s->peer.terms.dead_after * MS;
  if (peers < least)
    peers = least;
  return own < peers ? own : peers;
}

/* A stream that cannot be replaced ends the session, and a peer is given up by
 * this side's own dead_after only. */
int64_t liveness_of_streams(const struct perigee_session *s) {
  int64_t time = attach_heals(s) ? shorter(s) : s->engine->options.dead_after;
  if (!liveness_wanted(s) && !attach_heals(s))
    return 0;
  return time > STREAM_PATIENCE ? time : STREAM_PATIENCE;
}

/* The time between looks. */
static int64_t pause_of(const struct perigee_session *s) {
  return (liveness_wanted(s) ? shorter(s) : liveness_of_streams(s)) / LOOKS;
}

/* Not later than asked for, and not much earlier. */
static int64_t together(int64_t due, int64_t pause) {
  return due - due % (pause / EARLIER + 1);
}

/* The limit is over if the lane is ending: the timer must not be due at once
 * then, as the poll that ends the session comes after all timers. */
static void set(struct perigee_session *s) {
  int64_t now = s->engine->now, limit = s->alive.heard_at + patience(s);
  int64_t pause = pause_of(s);
  int64_t due = together(now + (s->alive.silent ? 2 : 1) * pause, pause);
  bool over = limit <= now || !liveness_wanted(s);
  timers_remove(&s->engine->timers, &s->timer);
  timers_add(&s->engine->timers, &s->timer, over || due < limit ? due : limit);
}

void liveness_begin(struct perigee_session *s) {
  if (!liveness_wanted(s) && !attach_heals(s))
    return;
  s->alive.heard_at = engine_clock(s->engine);
  set(s);
}

void liveness_peer_exited(struct perigee_session *s) {
  s->alive.peer_exited = true;
  liveness_begin(s);
}

static bool dead(struct perigee_session *s) {
  int64_t limit = s->alive.heard_at + patience(s);
  if (s->engine->now < limit)
    return false;
  const struct perigee_transport *t = lane_table(s->lane);
  if (s->streams.state != STREAMS_SOCKET && t->poll) {
    if (t->sockets) /* its sockets were not polled for as long */
      t->sockets->socket_ready(s->lane);
    t->poll(s->lane);
    hot_activate(s); /* polls handle what was received */
  } else {
    socket_look(s);
  }
  liveness_heard(s);
  /* If the lane is ending, the next poll ends the session with a better
   * reason. */
  bool ending = s->streams.state != STREAMS_SOCKET &&
                ((const struct lane_head *)s->lane)->ending;
  return s->alive.heard_at < s->engine->now && !ending;
}

static void give_up(struct perigee_session *s) {
  char reason[96];
  if (s->alive.peer_exited)
    snprintf(reason, sizeof reason,
             "the peer's process has ended, and another keeps its socket open");
  else
    snprintf(reason, sizeof reason,
             "nothing was heard of the peer for %.1f s (option dead_after)",
             (double)(s->engine->now - s->alive.heard_at) / 1e9);
  session_end(s, PERIGEE_PEER_LOST, reason);
}

static void keep_alive(struct perigee_session *s) {
  struct frame ping = {.type = FRAME_PING};
  uint64_t sent, received;
  traffic(s, &sent, &received);
  bool before = s->alive.silent;
  s->alive.silent = sent == s->alive.said;
  if (s->alive.silent || before)
    session_tell(s, &ping, NULL, 0);
  traffic(s, &s->alive.said, &received);
}

void liveness_tick(struct perigee_session *s) {
  bool wanted = liveness_wanted(s);
  liveness_heard(s);
  bool lost = wanted && dead(s);
  if (s->state != PERIGEE_SESSION_OPEN) /* by what was read */
    return;
  if (lost) {
    give_up(s);
    return;
  }
  if (wanted)
    keep_alive(s);
  if (attach_heals(s))
    attach_look(s);
  set(s);
}
