/* SPDX-License-Identifier: Apache-2.0
 *
 * attach.c - further sockets for a session whose lane wants them. The dialer of
 * the session dials them, to the same address, once the peer has the lane. The
 * first frame on each, ATTACH, names its session and proves that it belongs to
 * it. The session does without a socket that it cannot get.
 *
 * Where both sides have the feature "streams", the lane gives one up that is
 * silent, and wants another in its place, under a number of its own; a socket
 * that could not be had is tried again, too, after longer and longer pauses
 * (transport/tcp/tcp_life.c).
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/hot.h"
#include "net/address.h"
#include "net/features.h"
#include "sessions.h"

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

/* ---- Dialing ------------------------------------------------------------ */

static void connected(struct attaching *a) {
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

static void ready(struct watcher *watcher, uint32_t events) {
  struct attaching *a = CONTAINER(watcher, struct attaching, watcher);
  (void)events;
  int error = 0;
  socklen_t length = sizeof error;
  a->session->engine->progress++;
  getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0 && a->session->state == PERIGEE_SESSION_OPEN)
    connected(a);
  else
    attaching_free(a);
}

static bool dial(struct perigee_session *s, uint32_t place, uint32_t number) {
  const union socket_address *to = &s->streams.address;
  struct attaching *a = calloc(1, sizeof *a);
  if (!a)
    return false;
  a->session = s;
  a->place = place;
  a->number = number;
  a->since = s->engine->now;
  a->watcher.ready = ready;
  s->streams.attaching[place - 1] = a;
  a->fd = socket_new(to->any.sa_family);
  int status =
      a->fd < 0 ? -1 : connect(a->fd, &to->any, s->streams.address_length);
  if (status != 0 && errno != EINPROGRESS) {
    attaching_free(a);
    return false;
  }
  if (status == 0)
    connected(a);
  else if (watch_add(s->engine, a->fd, &a->watcher, EPOLLOUT) != 0)
    attaching_free(a);
  return true;
}

/* Dials what the lane wants; false: it wants nothing. */
static bool dial_wanted(struct perigee_session *s) {
  const struct transport_sockets *t = lane_table(s->lane)->sockets;
  bool any = false;
  uint32_t number;
  for (uint32_t i = 1; i <= STREAMS_MAX; i++)
    if (!s->streams.attaching[i - 1] && (number = t->wants(s->lane, i)) > 0) {
      any = true;
      if (!dial(s, i, number))
        break;
    }
  return any;
}

void attach_wanted(struct perigee_session *s) {
  if (dial_wanted(s))
    machine_step(&streams_machine, &s->streams.state, STREAMS_ATTACH);
}

/* A dial that nobody answers is given up. */
void attach_look(struct perigee_session *s) {
  if (s->streams.state != STREAMS_WHOLE)
    return;
  for (int i = 0; i < STREAMS_MAX; i++) {
    struct attaching *a = s->streams.attaching[i];
    if (a && s->engine->now - a->since >= s->engine->options.hello_timeout)
      attaching_free(a);
  }
  lane_table(s->lane)->sockets->look(s->lane);
  dial_wanted(s);
}

/* ---- Being dialed -------------------------------------------------------- */

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
  session_end(peer, PERIGEE_CLOSED, "its socket is part of a session");
  return PERIGEE_OK;
}
