/* SPDX-License-Identifier: Apache-2.0
 *
 * socket.c - frames on a session's socket. listen.c and dial.c make the
 * sockets.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/system.h"
#include "core/hot.h"
#include "core/lanes.h"
#include "host/adopted.h"
#include "migrate.h"
#include "unauth.h"

enum { READS = 16 }; /* reads of one socket before others have their turn */

void lane_close(struct perigee_session *s, int fd) {
  watch_close(s->engine, fd);
}

int lane_watch(struct perigee_session *s, int fd) {
  uint32_t edges = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  int status = watch_change(s->engine, fd, &s->socket.on_lane, edges);
  return status == 0 || errno != ENOENT
             ? status
             : watch_add(s->engine, fd, &s->socket.on_lane, edges);
}

/* ---- Sending ------------------------------------------------------------- */

static void set_waits(struct perigee_session *s, bool waits) {
  if (waits == s->socket.waits || s->socket.hangup)
    return;
  s->socket.waits = waits;
  watch_change(s->engine, s->socket.fd, &s->socket.watcher,
               EPOLLIN | EPOLLRDHUP | (waits ? EPOLLOUT : 0u));
}

/* Has epoll report room in the socket while something waits to be sent. */
static void watch_room(struct perigee_session *s) {
  if (!s->socket.wire.corked)
    set_waits(s, wire_waits(&s->socket.wire));
}

void session_await_room(struct perigee_session *s) {
  set_waits(s, true);
}

static int post(struct perigee_session *s, const struct frame *f) {
  int status = wire_post(s->socket.fd, &s->socket.wire, f);
  watch_room(s);
  return status;
}

void session_uncork(struct perigee_session *s) {
  if (s->socket.fd < 0 || !s->socket.wire.corked)
    return;
  wire_flush(s->socket.fd, &s->socket.wire);
  watch_room(s);
}

int session_tell(struct perigee_session *s, const struct frame *f,
                 const int *fds, uint32_t fd_count) {
  if (s->streams.state != STREAMS_SOCKET)
    return session_say(s, f);
  return s->tcp ? post(s, f) : wire_send(s->socket.fd, f, fds, fd_count);
}

bool session_send(struct perigee_session *s, const struct frame *f,
                  const int *fds, uint32_t fd_count) {
  int status = session_tell(s, f, fds, fd_count);
  if (status == PERIGEE_OK)
    return true;
  if (status == PERIGEE_AGAIN)
    session_end(s, PERIGEE_PROTOCOL, NOT_TAKEN);
  else if (status == PERIGEE_NO_MEMORY)
    session_end(s, PERIGEE_NO_MEMORY, IN_FLIGHT);
  /* A dead peer is noticed by end of file, after all that it sent. */
  return status == PERIGEE_PEER_LOST;
}

/* ---- Receiving ----------------------------------------------------------- */

static int lane_frame(struct perigee_session *s, const struct frame *f) {
  const struct perigee_transport *t = lane_table(s->lane);
  int fd = f->lane.fds > 0 ? wire_take_fd(&s->socket.wire) : -1;
  if (t->heard && (fd >= 0) == (f->lane.fds > 0))
    return t->heard(s->lane, f->lane.bytes, f->lane.length, fd);
  if (fd >= 0)
    adopted_close(fd);
  return PERIGEE_PROTOCOL;
}

static int frame(struct perigee_session *s, struct frame *f) {
  if (s->state == PERIGEE_SESSION_HELLO)
    return s->engine->wireup->frame(s, f);
  switch (f->type) {
  case FRAME_WAKE:
  case FRAME_PING:
    return PERIGEE_OK;
  case FRAME_LOOKUP:
    return lookup_asked(s, &f->lookup);
  case FRAME_FOUND:
    return lookup_found(s, &f->found);
  case FRAME_LANE:
    return lane_frame(s, f);
  case FRAME_EXTRA:
    return lanes_heard(s, &f->extra, false);
  case FRAME_DRAIN:
    return drain_heard(s, &f->drain);
  case FRAME_BYE:
    s->socket.hangup = true;
    strcpy(s->ended.reason, "the peer closed the session");
    return PERIGEE_OK;
  default:
    return PERIGEE_PROTOCOL;
  }
}

void session_hang_up(struct perigee_session *s) {
  if (!s->socket.hangup)
    strcpy(s->ended.reason, "the peer died or cut the connection");
  s->socket.hangup = true;
  if (s->state == PERIGEE_SESSION_HELLO)
    session_end(
        s, PERIGEE_PEER_LOST,
        "the peer closed the connection before the handshake was finished");
  else if (s->streams.state == STREAMS_SOCKET)
    /* otherwise the socket would stay readable for ever */
    watch_remove(s->engine, s->socket.fd);
}

/* Ends the session: there is no memory for what came, or it is no valid
 * frame. */
static void misheard(struct perigee_session *s, int status) {
  if (status == PERIGEE_NO_MEMORY)
    session_end(s, status, lane_trouble(s));
  else
    session_end(s, PERIGEE_PROTOCOL,
                "the peer sent something that is no Perigee frame");
}

void session_frames(struct perigee_session *s) {
  struct frame f;
  int status = 1;
  while (status > 0 && s->state != PERIGEE_SESSION_ENDED &&
         !s->admission.waits && (status = wire_next(&s->socket.wire, &f)) > 0)
    if ((status = frame(s, &f)) >= 0)
      status = 1;
  /* Descriptors that no frame has announced end the session. */
  if (s->state != PERIGEE_SESSION_ENDED &&
      (status < 0 ||
       (s->socket.wire.length == 0 && s->socket.wire.fd_count > 0)))
    misheard(s, status);
}

/* Descriptors that an unauthenticated peer sends count like its socket. */
static bool fds_have_place(struct perigee_session *s) {
  struct wire *w = &s->socket.wire;
  for (uint32_t i = 0; s->admission.origin && i < w->fd_count; i++) {
    int fd = unauth_place(s->engine, w->fds[i]);
    if (fd < 0)
      return false;
    w->fds[i] = fd;
  }
  return true;
}

/* Frames of the lane bring one descriptor each, which is closed as soon as it
 * was mapped. The spare descriptor is closed to make room for it. */
static int read_once(struct perigee_session *s) {
  if (!s->tcp && !s->admission.origin)
    spare_lend(s->engine);
  int got = wire_read(s->socket.fd, &s->socket.wire);
  if (!s->tcp && s->socket.wire.fd_count == 0)
    spare_keep(s->engine);
  return got;
}

static void heard(struct perigee_session *s, int got) {
  if (got == PERIGEE_PROTOCOL)
    session_end(s, PERIGEE_PROTOCOL,
                "the peer sent more descriptors than there may be");
  else if (got == PERIGEE_NO_MEMORY || !fds_have_place(s))
    session_end(s, PERIGEE_NO_MEMORY, NO_DESCRIPTORS);
  else
    session_frames(s);
  if (!s->tcp)
    spare_keep(s->engine);
}

static void socket_ready(struct perigee_session *s) {
  int got;
  uint32_t room;
  s->engine->progress++;
  hot_activate(s);
  for (int reads = 0; reads < READS; reads++) {
    room = (uint32_t)sizeof s->socket.wire.bytes - s->socket.wire.length;
    got = read_once(s);
    if (got == PERIGEE_AGAIN)
      return;
    heard(s, got);
    if (s->state == PERIGEE_SESSION_OPEN)
      liveness_heard(s);
    if (s->state == PERIGEE_SESSION_ENDED ||
        s->streams.state != STREAMS_SOCKET || s->dial || s->admission.waits)
      return;
    if (got <= 0) {
      session_hang_up(s);
      return;
    }
    /* Less came than there was room for: the rest, or the end, comes with the
     * next look, as epoll is level-triggered. During the handshake the next
     * frame is read at once; READS bounds that for a peer that never stops
     * sending. */
    if ((uint32_t)got < room && s->state != PERIGEE_SESSION_HELLO)
      return;
  }
}

void socket_look(struct perigee_session *s) {
  if (s->socket.fd >= 0 && !s->admission.waits)
    socket_ready(s);
}

void session_ready(struct watcher *watcher, uint32_t events) {
  struct perigee_session *s =
      CONTAINER(watcher, struct perigee_session, socket.watcher);
  if (s->state == PERIGEE_SESSION_NONE) {
    dial_ready(s);
    return;
  }
  if (s->admission.waits) { /* a peer that has left costs no turn */
    if (events & (EPOLLRDHUP | EPOLLHUP))
      session_hang_up(s);
    return;
  }
  /* If nothing can be sent any more, the end of file tells so. */
  if ((events & EPOLLOUT) && s->socket.fd >= 0 &&
      wire_flush(s->socket.fd, &s->socket.wire) == 0) {
    watch_room(s);
    handing_room(s);
  }
  if ((events & ~(uint32_t)EPOLLOUT) && s->socket.fd >= 0)
    socket_ready(s);
}

void lane_ready(struct watcher *watcher, uint32_t events) {
  struct perigee_session *s =
      CONTAINER(watcher, struct perigee_session, socket.on_lane);
  (void)events;
  s->engine->progress++; /* lanes that were armed have to be armed again */
  if (!s->lane || s->state != PERIGEE_SESSION_OPEN)
    return;
  lane_table(s->lane)->sockets->socket_ready(s->lane);
  hot_activate(s);
}
