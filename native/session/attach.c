/* SPDX-License-Identifier: Apache-2.0
 *
 * attach.c - further sockets for a session whose lane wants them. The dialer of
 * the session dials them, to the same address, once the peer has the lane. The
 * first frame on each, ATTACH, names its session and proves that it belongs to
 * it. The session does without a socket that it cannot get.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/hot.h"
#include "net/address.h"
#include "sessions.h"

/* A socket that is to become a stream. */
struct attaching {
  struct watcher watcher;
  struct perigee_session *session;
  uint32_t number;
  int fd; /* -1: the lane has it, or it was closed */
};

static void attaching_free(struct attaching *a) {
  a->session->streams.attaching[a->number - 1] = NULL;
  if (a->fd >= 0)
    watch_close(a->session->engine, a->fd);
  free(a);
}

void attach_end(struct perigee_session *s) {
  for (int i = 0; i < STREAMS_MAX; i++)
    if (s->streams.attaching[i])
      attaching_free(s->streams.attaching[i]);
}

/* Counts one more descriptor for the session, if the lane took it. */
static void count(struct perigee_session *s, int status) {
  if (status < 0)
    return;
  s->account.descriptors++;
  share_add(s->account.share, SHARE_DESCRIPTORS, 1);
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
    count(s, lane_table(s->lane)->sockets->attach(s->lane, a->number, fd, NULL,
                                                  0));
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

static bool dial(struct perigee_session *s, uint32_t number) {
  const union socket_address *to = &s->streams.address;
  struct attaching *a = calloc(1, sizeof *a);
  if (!a)
    return false;
  a->session = s;
  a->number = number;
  a->watcher.ready = ready;
  s->streams.attaching[number - 1] = a;
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

void attach_wanted(struct perigee_session *s) {
  const struct perigee_transport *t = lane_table(s->lane);
  uint32_t wanted = t->sockets->wants(s->lane);
  if (wanted == 0)
    return;
  machine_step(&streams_machine, &s->streams.state, STREAMS_ATTACH);
  if (wanted > STREAMS_MAX)
    wanted = STREAMS_MAX;
  for (uint32_t i = 1; i <= wanted && dial(s, i); i++)
    ;
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
  count(s, lane_table(s->lane)->sockets->attach(s->lane, asked->index, fd,
                                                peer->socket.wire.bytes,
                                                peer->socket.wire.length));
  peer->socket.wire.length = 0;
  hot_activate(s);
  session_end(peer, PERIGEE_CLOSED, "its socket is part of a session");
  return PERIGEE_OK;
}
