/* SPDX-License-Identifier: Apache-2.0
 *
 * streams.c - sessions whose frames go through their lane, because they have no
 * socket (endpoint.c) or because the lane has taken the socket over; the
 * further sockets of such lanes; and whether the peer is still there.
 *
 *   state   event   becomes
 *   socket  take    lane    the lane takes the session's socket over, or there
 *                           never was one: frames go through the lane
 *   lane    attach  whole   the dialer over TCP has dialed the further sockets
 *                           that the lane wants; the listener dials none, and
 *                           is whole at once
 *
 * A session whose lane wants no socket stays in the first state. To begin at
 * another address, as when the lane could not take the socket, puts the state
 * back to it (session_back).
 *
 * Further sockets. The dialer of the session dials them, to the same address,
 * once the peer has the lane. The first frame on each, ATTACH, names its
 * session and proves that it belongs to it. The session does without a socket
 * that it cannot get. If both sides have the feature "streams", the lane gives
 * up a socket that is silent. It wants another in its place, under a number of
 * its own. A socket that could not be had is tried again, too, after longer and
 * longer pauses (transport/tcp/tcp_life.c).
 *
 * Liveness. On one host the end of the socket tells that the peer is gone, and
 * a peer that is merely stopped counts as alive. From another host the end may
 * never arrive. So each side sends something at least three times within
 * dead_after (its own or the peer's, the smaller), and a side that receives
 * nothing for its own dead_after takes the peer as lost.
 *
 * This side pays for the keepalives that a peer asks for. So the shortest
 * dead_after that counts for a peer grows with the number of its sessions
 * (liveness_least), not with those of others, of which it knows nothing.
 * Sessions of one kind look at the same times, an eighth of the pause apart, so
 * that a sleep ends once for many. A look is due when the next keepalive is, or
 * when the peer's is overdue. The socket is read before a peer is given up:
 * something may be waiting there if this side was stopped for a while.
 *
 * With the feature "streams" on both sides, the session's own socket has to
 * bring something, and each of the further ones is looked at by itself: a
 * middlebox may forget one connection and not another. Otherwise any socket
 * that brings something shows that the peer is there. The peer's kernel has to
 * answer while this side leaves bytes unread for want of room (tcp.c).
 *
 * On one host the peer's process is watched as well (peer.c), because a child
 * made by plain fork keeps the socket open. Only what the process sent before
 * its end is received afterwards.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "core/fabrics.h"
#include "core/lanes.h"
#include "net/address.h"
#include "net/wire.h"
#include "sessions.h"

const struct machine streams_machine = {
    .name = "streams",
    .taken = MACHINE_STEPS,
    .states = {"socket", "lane", "whole"},
    .events = {"take", "attach"},
    .next = {
        [STREAMS_SOCKET] = {[STREAMS_TAKE] = TO(STREAMS_LANE)},
        [STREAMS_LANE] = {[STREAMS_ATTACH] = TO(STREAMS_WHOLE)},
    }};

static const int64_t DRAIN = 50 * 1000000; /* ns */
/* A limit, as the clock of a simulation may stand still. */
enum { DRAIN_TURNS = 1 << 20 };

/* Called when both sides are ready. All further bytes on the socket belong to
 * the lane if the lane takes it over. */
bool streams_take(struct perigee_session *s) {
  const struct perigee_transport *t = lane_table(s->lane);
  int fd = s->socket.fd;
  if (s->tcp)
    proof_end(s);
  if (!t->sockets || s->alone)
    return true;
  session_uncork(s);
  if (wire_waits(&s->socket.wire)) {
    s->up->fail(s, PERIGEE_PEER_LOST, "the peer does not take what it is told");
    return false;
  }
  s->streams.address_length = sizeof s->streams.address;
  getpeername(fd, &s->streams.address.any, &s->streams.address_length);
  s->socket.fd = -1;
  machine_step(&streams_machine, &s->streams.state, STREAMS_TAKE);
  if (!s->dialed || !s->tcp)
    machine_step(&streams_machine, &s->streams.state, STREAMS_ATTACH);
  int status = t->sockets->take(s->lane, fd, s->socket.wire.bytes,
                                s->socket.wire.length);
  handshake_further(s->security.keys->session);
  s->socket.wire.length = 0;
  if (status < 0)
    s->up->fail(s, status,
                status == PERIGEE_NO_MEMORY && s->security.intact
                    ? VAULT_FULL
                    : "the session's socket could not be taken over");
  return status == PERIGEE_OK;
}

/* ---- Sending what is left ------------------------------------------------ */

static bool frames_are_sent(const struct perigee_session *s) {
  return s->state != PERIGEE_SESSION_OPEN ||
         s->streams.state == STREAMS_SOCKET ||
         lane_table(s->lane)->frames->drained(s->lane);
}

static bool frames_are_all_sent(struct perigee_engine *engine) {
  struct node *n, *head = &engine->sessions;
  bool all = true;
  for (n = head->next; n != head; n = n->next)
    all &= frames_are_sent(CONTAINER(n, struct perigee_session, node));
  return all;
}

static void frames_drain(struct perigee_engine *engine,
                         const struct perigee_session *only) {
  int64_t end = engine_clock(engine) + DRAIN;
  for (int i = 0;
       i < DRAIN_TURNS &&
       !(only ? frames_are_sent(only) : frames_are_all_sent(engine)) &&
       engine_clock(engine) < end;
       i++)
    fabrics_turn(engine);
}

void session_drain(struct perigee_session *s) {
  frames_drain(s->engine, s);
}

void sessions_drain(struct perigee_engine *engine) {
  frames_drain(engine, NULL);
}

/* ---- Further sockets ----------------------------------------------------- */

/* A socket that is to become a stream. */
struct attaching {
  struct watcher watcher;
  struct perigee_session *session;
  uint32_t place, number;
  int64_t since; /* when it was dialed */
  int fd;        /* -1: the lane has it, or it was closed */
};

bool attach_heals(const struct perigee_session *s) {
  return s->tcp && s->transport && s->transport->sockets &&
         (s->peer.features & FEATURE_STREAMS);
}

static void attaching_free(struct attaching *a) {
  a->session->streams.attaching[a->place - 1] = NULL;
  if (a->fd >= 0)
    watch_close(a->session->engine, a->fd);
  free(a);
}

void attach_end(struct perigee_session *s) {
  for (int i = 0; i < STREAMS_MAX; i++)
    if (s->streams.attaching[i])
      attaching_free(s->streams.attaching[i]);
}

int attach_give(struct perigee_session *s, uint32_t number, int fd,
                const uint8_t *bytes, uint32_t length) {
  s->account.descriptors++;
  share_add(s->account.share, SHARE_DESCRIPTORS, 1);
  return lane_table(s->lane)->sockets->attach(s->lane, number, fd, bytes,
                                              length);
}

void attach_closed(struct perigee_session *s, int fd) {
  lane_close(s, fd);
  if (!s->account.share)
    return;
  s->account.descriptors--;
  share_give(s->account.share, SHARE_DESCRIPTORS, 1);
}

/* ---- Further sockets: dialing -------------------------------------------- */

static void attach_connected(struct attaching *a) {
  struct perigee_session *s = a->session;
  struct frame f = {
      .type = FRAME_ATTACH,
      .attach = {.session = s->peer.hello.nonce, .index = a->number}};
  handshake_attach(s->security.keys->session, a->number, f.attach.mac);
  if (wire_send(a->fd, &f, NULL, 0) == PERIGEE_OK) {
    int fd = a->fd;
    a->fd = -1;
    attach_give(s, a->number, fd, NULL, 0);
  }
  attaching_free(a);
}

static void attach_ready(struct watcher *watcher, uint32_t events) {
  struct attaching *a = CONTAINER(watcher, struct attaching, watcher);
  (void)events;
  int error = 0;
  socklen_t length = sizeof error;
  a->session->engine->progress++;
  getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0 && a->session->state == PERIGEE_SESSION_OPEN)
    attach_connected(a);
  else
    attaching_free(a);
}

static bool attach_dial(struct perigee_session *s, uint32_t place,
                        uint32_t number) {
  const union socket_address *to = &s->streams.address;
  struct attaching *a = calloc(1, sizeof *a);
  if (!a)
    return false;
  a->session = s;
  a->place = place;
  a->number = number;
  a->since = s->engine->now;
  a->watcher.ready = attach_ready;
  s->streams.attaching[place - 1] = a;
  a->fd = socket_new(to->any.sa_family);
  int status =
      a->fd < 0 ? -1 : connect(a->fd, &to->any, s->streams.address_length);
  if (status != 0 && errno != EINPROGRESS) {
    attaching_free(a);
    return false;
  }
  if (status == 0)
    attach_connected(a);
  else if (watch_add(s->engine, a->fd, &a->watcher, EPOLLOUT) != 0)
    attaching_free(a);
  return true;
}

/* Dials what the lane wants; false: it wants nothing. */
static bool attach_dial_wanted(struct perigee_session *s) {
  const struct transport_sockets *t = lane_table(s->lane)->sockets;
  bool any = false;
  uint32_t number;
  for (uint32_t i = 1; i <= STREAMS_MAX; i++)
    if (!s->streams.attaching[i - 1] && (number = t->wants(s->lane, i)) > 0) {
      any = true;
      if (!attach_dial(s, i, number))
        break;
    }
  return any;
}

void attach_wanted(struct perigee_session *s) {
  if (attach_dial_wanted(s))
    machine_step(&streams_machine, &s->streams.state, STREAMS_ATTACH);
}

/* A dial that nobody answers is given up. */
static void attach_look(struct perigee_session *s) {
  if (s->streams.state != STREAMS_WHOLE)
    return;
  for (int i = 0; i < STREAMS_MAX; i++) {
    struct attaching *a = s->streams.attaching[i];
    if (a && s->engine->now - a->since >= s->engine->options.hello_timeout)
      attaching_free(a);
  }
  lane_table(s->lane)->sockets->look(s->lane);
  attach_dial_wanted(s);
}

/* ---- Further sockets: being dialed --------------------------------------- */

/* Frees the session that the socket was accepted for, but not the socket. */
int attach_asked(struct perigee_session *peer, const struct attach *asked) {
  struct perigee_session *s = proof_find(peer->engine, asked);
  int fd = peer->socket.fd;
  if (!s || s->streams.state == STREAMS_SOCKET || !lane_table(s->lane)->sockets)
    return PERIGEE_DENIED;
  if (!share_may(s->account.share, SHARE_DESCRIPTORS, 1)) {
    s->account.share->all->refused++;
    return PERIGEE_NO_MEMORY;
  }
  peer->socket.fd = -1;
  attach_give(s, asked->index, fd, peer->socket.wire.bytes,
              peer->socket.wire.length);
  peer->socket.wire.length = 0;
  hot_activate(s);
  peer->up->end(peer, PERIGEE_CLOSED, "its socket is part of a session");
  return PERIGEE_OK;
}

/* ---- Liveness ------------------------------------------------------------ */

/* Keepalives are at most two looks apart: a side that has sent nothing between
 * two looks sends one, and then looks after twice the time, as long as it sends
 * nothing else; at such a look it sends one in any case. */
enum { LOOKS = 7, EARLIER = 8 };
static const int64_t MS = 1000000;
/* The time without anything received, after which a process that has ended is
 * taken to have sent nothing more. */
static const int64_t EXIT_GRACE = 100000000; /* ns */

static int64_t liveness_patience(const struct perigee_session *s) {
  return s->alive.peer_exited ? EXIT_GRACE : s->engine->options.dead_after;
}

uint32_t liveness_told(const struct perigee_engine *engine) {
  int64_t ms = engine->options.dead_after / MS;
  return ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

/* At most 28,000 looks a second are for a peer that wants them often: some 4 %
 * of a core. Nobody waits longer than a second for this reason. */
static int64_t liveness_least(const struct perigee_session *s) {
  static const int64_t EACH = 250000, MOST = 1000000000; /* ns */
  const struct share *peer = s->account.share->parent;
  int64_t least = (int64_t)peer->used[SHARE_SESSIONS] * EACH;
  if (least > MOST)
    return MOST;
  return least > DEAD_AFTER_LEAST ? least : DEAD_AFTER_LEAST;
}

/* As short as either side needs. */
static int64_t liveness_shorter(const struct perigee_session *s) {
  int64_t own = s->engine->options.dead_after, least = liveness_least(s);
  int64_t peers = s->peer.terms.dead_after * MS;
  if (peers < least)
    peers = least;
  return own < peers ? own : peers;
}

/* A stream that cannot be replaced ends the session, and a peer is given up by
 * this side's own dead_after only. */
int64_t liveness_of_streams(const struct perigee_session *s) {
  int64_t time =
      attach_heals(s) ? liveness_shorter(s) : s->engine->options.dead_after;
  if (!liveness_wanted(s) && !attach_heals(s))
    return 0;
  return time > STREAM_PATIENCE ? time : STREAM_PATIENCE;
}

/* The time between looks. */
static int64_t liveness_pause(const struct perigee_session *s) {
  return (liveness_wanted(s) ? liveness_shorter(s) : liveness_of_streams(s)) /
         LOOKS;
}

static void liveness_tick(struct timer *timer);

/* Not later than asked for, and not much earlier. */
static int64_t liveness_together(int64_t due, int64_t pause) {
  return due - due % (pause / EARLIER + 1);
}

/* The limit is over if the lane is ending: the timer must not be due at once
 * then, as the poll that ends the session comes after all timers. */
static void liveness_arm(struct perigee_session *s) {
  int64_t now = s->engine->now,
          limit = time_after(s->alive.heard_at, liveness_patience(s));
  int64_t pause = liveness_pause(s);
  int64_t due =
      liveness_together(now + (s->alive.silent ? 2 : 1) * pause, pause);
  bool over = limit <= now || !liveness_wanted(s);
  s->alive.timer.expired = liveness_tick;
  timers_remove(&s->engine->timers, &s->alive.timer);
  timers_add(&s->engine->timers, &s->alive.timer,
             over || due < limit ? due : limit);
}

void liveness_begin(struct perigee_session *s) {
  if (!liveness_wanted(s) && !attach_heals(s))
    return;
  s->alive.heard_at = engine_clock(s->engine);
  liveness_arm(s);
}

void liveness_peer_exited(struct perigee_session *s) {
  s->alive.peer_exited = true;
  liveness_begin(s);
}

static bool liveness_is_dead(struct perigee_session *s) {
  int64_t limit = time_after(s->alive.heard_at, liveness_patience(s));
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
  /* The next poll ends the session with a better reason if the lane is
   * ending. */
  bool ending = s->streams.state != STREAMS_SOCKET &&
                ((const struct lane_head *)s->lane)->ending;
  return s->alive.heard_at < s->engine->now && !ending;
}

static void liveness_give_up(struct perigee_session *s) {
  char reason[96];
  if (s->alive.peer_exited)
    snprintf(reason, sizeof reason,
             "the peer's process has ended, and another keeps its socket open");
  else
    snprintf(reason, sizeof reason,
             "nothing was heard of the peer for %.1f s (option dead_after)",
             (double)(s->engine->now - s->alive.heard_at) / 1e9);
  s->up->end(s, PERIGEE_PEER_LOST, reason);
}

static void liveness_ping(struct perigee_session *s) {
  struct frame ping = {.type = FRAME_PING};
  uint64_t sent, received;
  socket_traffic(s, &sent, &received);
  bool before = s->alive.silent;
  s->alive.silent = sent == s->alive.said;
  if (s->alive.silent || before)
    session_tell(s, &ping, NULL, 0);
  socket_traffic(s, &s->alive.said, &received);
}

static void liveness_tick(struct timer *timer) {
  struct perigee_session *s =
      CONTAINER(timer, struct perigee_session, alive.timer);
  bool wanted = liveness_wanted(s);
  liveness_heard(s);
  bool lost = wanted && liveness_is_dead(s);
  if (s->state != PERIGEE_SESSION_OPEN) /* by what was read */
    return;
  if (lost) {
    liveness_give_up(s);
    return;
  }
  if (wanted)
    liveness_ping(s);
  if (attach_heals(s))
    attach_look(s);
  liveness_arm(s);
}
