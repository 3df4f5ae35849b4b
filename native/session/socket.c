/* SPDX-License-Identifier: Apache-2.0
 *
 * socket.c - what goes and comes on sockets, which listen.c and dial.c make.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "core/hot.h"
#include "core/lanes.h"
#include "host/adopted.h"
#include "migrate.h"
#include "unauth.h"

enum { READS = 16 }; /* of one socket, before others have their turn */

void lane_close(struct perigee_session *s, int fd) {
  watch_close(s->engine, fd);
}

int lane_watch(struct perigee_session *s, int fd) {
  uint32_t edges = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  int status = watch_change(s->engine, fd, &s->on_lane, edges);
  return status == 0 || errno != ENOENT
             ? status
             : watch_add(s->engine, fd, &s->on_lane, edges);
}

/* ---- What goes ---------------------------------------------------------- */

static void set_waits(struct perigee_session *s, bool waits) {
  if (waits == s->waits || s->hangup)
    return;
  s->waits = waits;
  watch_change(s->engine, s->fd, &s->on_socket,
               EPOLLIN | EPOLLRDHUP | (waits ? EPOLLOUT : 0u));
}

/* While something waits to go, epoll tells when there is room. */
static void watch_room(struct perigee_session *s) {
  if (!s->wire.corked)
    set_waits(s, wire_waits(&s->wire));
}

void session_await_room(struct perigee_session *s) {
  set_waits(s, true);
}

static int post(struct perigee_session *s, const struct frame *f) {
  int status = wire_post(s->fd, &s->wire, f);
  watch_room(s);
  return status;
}

void session_uncork(struct perigee_session *s) {
  if (s->fd < 0 || !s->wire.corked)
    return;
  wire_flush(s->fd, &s->wire);
  watch_room(s);
}

int session_tell(struct perigee_session *s, const struct frame *f,
                 const int *fds, uint32_t fd_count) {
  if (s->spoken)
    return session_say(s, f);
  return s->tcp ? post(s, f) : wire_send(s->fd, f, fds, fd_count);
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
  /* A dead one is noticed by its end of file, after what it still said. */
  return status == PERIGEE_PEER_LOST;
}

/* ---- What comes --------------------------------------------------------- */

static int lane_frame(struct perigee_session *s, const struct frame *f) {
  const struct perigee_transport *t = lane_table(s->lane);
  int fd = f->lane.fds > 0 ? wire_take_fd(&s->wire) : -1;
  if (t->heard && (fd >= 0) == (f->lane.fds > 0))
    return t->heard(s->lane, f->lane.bytes, f->lane.length, fd);
  if (fd >= 0)
    adopted_close(fd);
  return PERIGEE_PROTOCOL;
}

static int frame(struct perigee_session *s, struct frame *f) {
  if (s->state == PERIGEE_SESSION_HELLO)
    return wireup_frame(s, f);
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
  case FRAME_BYE:
    s->hangup = true;
    strcpy(s->reason, "the peer closed the session");
    return PERIGEE_OK;
  default:
    return PERIGEE_PROTOCOL;
  }
}

void session_hang_up(struct perigee_session *s) {
  if (!s->hangup)
    strcpy(s->reason, "the peer died or cut the connection");
  s->hangup = true;
  if (s->state == PERIGEE_SESSION_HELLO)
    session_end(
        s, PERIGEE_PEER_LOST,
        "the peer closed the connection before the handshake was finished");
  else if (!s->spoken) /* its socket would stay readable for ever */
    watch_remove(s->engine, s->fd);
}

/* What it told of cannot be had here, or it is no frame. */
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
  while (status > 0 && s->state != PERIGEE_SESSION_ENDED && !s->waits_turn &&
         (status = wire_next(&s->wire, &f)) > 0)
    if ((status = frame(s, &f)) >= 0)
      status = 1;
  /* Descriptors that no frame has announced are not ours to keep. */
  if (s->state != PERIGEE_SESSION_ENDED &&
      (status < 0 || (s->wire.length == 0 && s->wire.fd_count > 0)))
    misheard(s, status);
}

/* Those that it sends are a stranger's, too. */
static bool fds_have_place(struct perigee_session *s) {
  struct wire *w = &s->wire;
  for (uint32_t i = 0; s->origin && i < w->fd_count; i++) {
    int fd = unauth_place(s->engine, w->fds[i]);
    if (fd < 0)
      return false;
    w->fds[i] = fd;
  }
  return true;
}

/* The spare descriptor makes room for one that a peer may send, as the lane's
 * frames bring one each, which is let go of as soon as it was mapped. */
static int read_once(struct perigee_session *s) {
  if (!s->tcp && !s->origin)
    spare_lend(s->engine);
  int got = wire_read(s->fd, &s->wire);
  if (!s->tcp && s->wire.fd_count == 0)
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
    room = (uint32_t)sizeof s->wire.bytes - s->wire.length;
    got = read_once(s);
    if (got == PERIGEE_AGAIN)
      return;
    heard(s, got);
    if (s->state == PERIGEE_SESSION_OPEN)
      liveness_heard(s);
    if (s->state == PERIGEE_SESSION_ENDED || s->spoken || s->dial ||
        s->waits_turn)
      return;
    if (got <= 0) {
      session_hang_up(s);
      return;
    }
    /* Less than there was room for: the rest, or the end, comes with the next
     * look, as epoll tells what is there for as long as it is. A hello's next
     * frame is waited for; but nobody who never stops talking keeps us. */
    if ((uint32_t)got < room && s->state != PERIGEE_SESSION_HELLO)
      return;
  }
}

void socket_look(struct perigee_session *s) {
  if (s->fd >= 0 && !s->waits_turn)
    socket_ready(s);
}

void session_ready(struct watcher *watcher, uint32_t events) {
  struct perigee_session *s =
      CONTAINER(watcher, struct perigee_session, on_socket);
  if (s->state == PERIGEE_SESSION_NONE) {
    dial_ready(s);
    return;
  }
  if (s->waits_turn) { /* nobody pays for who has left */
    if (events & (EPOLLRDHUP | EPOLLHUP))
      session_hang_up(s);
    return;
  }
  /* What cannot go for good is noticed by the end of what comes. */
  if ((events & EPOLLOUT) && s->fd >= 0 && wire_flush(s->fd, &s->wire) == 0) {
    watch_room(s);
    handing_room(s);
  }
  if ((events & ~(uint32_t)EPOLLOUT) && s->fd >= 0)
    socket_ready(s);
}

void lane_ready(struct watcher *watcher, uint32_t events) {
  struct perigee_session *s =
      CONTAINER(watcher, struct perigee_session, on_lane);
  (void)events;
  s->engine->progress++; /* whoever has armed for it must do so again */
  if (!s->lane || s->state != PERIGEE_SESSION_OPEN)
    return;
  lane_table(s->lane)->sockets->socket_ready(s->lane);
  hot_activate(s);
}
