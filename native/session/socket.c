/* SPDX-License-Identifier: Apache-2.0
 *
 * socket.c - a session's socket: the frames on it, and the memory that a lane
 * hands to its peer by it. listen.c and dial.c make the sockets. The frames of
 * a session without one go through the lane, and so do those of a session whose
 * lane has taken it over (streams.c).
 *
 * Handing memory. Files (memfds) are announced by frames on the session's Unix
 * socket while the session lasts.
 *
 *   state    event                                        becomes
 *   free     the socket is full                           waiting
 *   free     no descriptor, or no memory, is to be had    resting
 *   waiting  epoll tells that the socket has room         free
 *   waiting  it has had none for long                     the session ends
 *   resting  RESTS is over                                free
 *
 * Memory is handed only in state free; in the other states a poll tries nothing
 * and pays nothing, and the timer runs (session_socket.handing). Operations
 * that wait for a block are stepped once when the state becomes free again.
 *
 * The spare descriptor. A program may use all its descriptors for a while.
 * Sessions need one more for a moment whenever memory is handed over, and
 * should not end for lack of it. So each engine keeps one open, closes it when
 * another is needed in its place, and opens it again at once.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/status.h"
#include "core/lanes.h"
#include "host/adopted.h"
#include "sessions.h"

enum { READS = 16 }; /* reads of one socket before others have their turn */

/* ns. WAITS is long: a live peer reads its socket whenever it polls. */
static const int64_t RESTS = 1000000, WAITS = INT64_C(5000000000);
/* ns for which others are likely to follow a frame that asks or answers. */
static const int64_t FOLLOWED = 2000000;
static const char full[] = NOT_TAKEN; /* socket.unhanded in state waiting */

/* ---- The spare descriptor ------------------------------------------------ */

bool spare_lend(struct perigee_engine *engine) {
  if (engine->spare_fd < 0)
    return false;
  close(engine->spare_fd);
  engine->spare_fd = -1;
  return true;
}

/* A copy of any descriptor will do. */
void spare_keep(struct perigee_engine *engine) {
  if (engine->spare_fd < 0)
    engine->spare_fd = fcntl(engine->epoll, F_DUPFD_CLOEXEC, 0);
}

/* ---- Sockets of the lane ------------------------------------------------- */

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

static void socket_set_waits(struct perigee_session *s, bool waits) {
  if (waits == s->socket.waits || s->socket.hangup)
    return;
  s->socket.waits = waits;
  watch_change(s->engine, s->socket.fd, &s->socket.watcher,
               EPOLLIN | EPOLLRDHUP | (waits ? EPOLLOUT : 0u));
}

/* Has epoll report room in the socket while something waits to be sent. */
static void socket_watch_room(struct perigee_session *s) {
  if (!s->socket.wire.corked)
    socket_set_waits(s, wire_waits(&s->socket.wire));
}

void session_await_room(struct perigee_session *s) {
  socket_set_waits(s, true);
}

static int socket_post(struct perigee_session *s, const struct frame *f) {
  int status = wire_post(s->socket.fd, &s->socket.wire, f);
  socket_watch_room(s);
  return status;
}

void session_uncork(struct perigee_session *s) {
  if (s->socket.fd < 0 || !s->socket.wire.corked)
    return;
  wire_flush(s->socket.fd, &s->socket.wire);
  socket_watch_room(s);
}

static int socket_say_by_lane(struct perigee_session *s,
                              const struct frame *f) {
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  return lane_table(s->lane)->frames->say(s->lane, bytes,
                                          wire_encode(f, bytes));
}

/* Sockets are looked at often then (poll.c). What a lane has taken over it polls
 * for. */
static void socket_asks(const struct perigee_session *s,
                        const struct frame *f) {
  bool asks = f->type == FRAME_LOOKUP || f->type == FRAME_FOUND ||
              f->type == FRAME_LANE || f->type == FRAME_EXTRA;
  if (asks && s->streams.state == STREAMS_SOCKET)
    s->engine->frames_until = s->engine->now + FOLLOWED;
}

int session_tell(struct perigee_session *s, const struct frame *f,
                 const int *fds, uint32_t fd_count) {
  socket_asks(s, f);
  if (s->streams.state != STREAMS_SOCKET)
    return socket_say_by_lane(s, f);
  return s->tcp ? socket_post(s, f) : wire_send(s->socket.fd, f, fds, fd_count);
}

bool session_send(struct perigee_session *s, const struct frame *f,
                  const int *fds, uint32_t fd_count) {
  int status = session_tell(s, f, fds, fd_count);
  if (status == PERIGEE_OK)
    return true;
  if (status == PERIGEE_AGAIN)
    s->up->fail(s, PERIGEE_PROTOCOL, NOT_TAKEN);
  else if (status == PERIGEE_NO_MEMORY)
    s->up->fail(s, PERIGEE_NO_MEMORY, IN_FLIGHT);
  /* A dead peer is noticed by end of file, after all that it sent. */
  return status == PERIGEE_PEER_LOST;
}

/* ---- Handing memory ------------------------------------------------------ */

/* Nothing is handed before the session is open. */
static bool handing_is_free(const struct perigee_session *s, const char **why) {
  bool is_free = s->state != PERIGEE_SESSION_HELLO && !s->socket.handing.next;
  if (!is_free)
    *why = s->socket.unhanded;
  return is_free;
}

static void handing_due(struct timer *timer);

/* Counts from the present, as the engine's time may be old. */
static void handing_pause(struct perigee_session *s, const char *why,
                          int64_t time) {
  int64_t now = engine_clock(s->engine);
  s->socket.unhanded = why;
  s->socket.handing.expired = handing_due;
  timers_add(&s->engine->timers, &s->socket.handing, now + time);
}

void handing_later(struct perigee_session *s, const char *why) {
  spare_keep(s->engine);
  if (s->state == PERIGEE_SESSION_OPEN && !s->socket.handing.next)
    handing_pause(s, why, RESTS);
}

/* Counts as progress, so that the next poll steps the operations that wait for
 * a block. */
static void handing_resume(struct perigee_session *s) {
  timers_remove(&s->engine->timers, &s->socket.handing);
  s->engine->progress++;
  hot_activate(s);
}

static bool socket_has_room(const struct perigee_session *s) {
  struct pollfd p = {.fd = s->socket.fd, .events = POLLOUT};
  return poll(&p, 1, 0) == 1;
}

/* Checks the socket itself: if this side was stopped for a while, epoll has not
 * yet told of the room that the peer made. */
static void handing_due(struct timer *timer) {
  struct perigee_session *s =
      CONTAINER(timer, struct perigee_session, socket.handing);
  if (s->socket.unhanded == full && !socket_has_room(s))
    s->up->end(s, PERIGEE_PROTOCOL, NOT_TAKEN);
  else
    handing_resume(s);
}

static void handing_room(struct perigee_session *s) {
  if (s->state == PERIGEE_SESSION_OPEN && !s->tcp)
    handing_resume(s);
}

static int handing_memfd(void) {
  return memfd_create("perigee-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

int handing_file(struct perigee_session *s, const char **why) {
  if (!handing_is_free(s, why))
    return PERIGEE_AGAIN;
  int fd = handing_memfd();
  bool scarce = fd < 0 && system_scarce(errno);
  if (scarce && spare_lend(s->engine))
    fd = handing_memfd();
  if (fd >= 0)
    return fd;
  *why = scarce ? NO_DESCRIPTORS : "the system has no memory for a file of it";
  handing_later(s, *why);
  return scarce ? PERIGEE_AGAIN : PERIGEE_NO_MEMORY;
}

static void handing_went(struct perigee_session *s, int fd) {
  if (fd >= 0)
    close(fd);
  spare_keep(s->engine);
}

int handing_hand(struct perigee_session *s, const void *bytes, uint32_t length,
                 int fd, const char **why) {
  struct frame f = {.type = FRAME_LANE,
                    .lane = {.length = (uint16_t)length, .fds = fd >= 0}};
  if (!handing_is_free(s, why) || s->state != PERIGEE_SESSION_OPEN)
    return PERIGEE_AGAIN;
  memcpy(f.lane.bytes, bytes, length);
  int status = session_tell(s, &f, &fd, f.lane.fds);
  if (status == PERIGEE_OK) {
    handing_went(s, fd);
    return PERIGEE_OK;
  }
  *why = status == PERIGEE_AGAIN       ? full
         : status == PERIGEE_NO_MEMORY ? IN_FLIGHT
                                       : "the peer cut the connection";
  handing_pause(s, *why, status == PERIGEE_AGAIN ? WAITS : RESTS);
  if (status == PERIGEE_AGAIN)
    session_await_room(s);
  return PERIGEE_AGAIN;
}

/* ---- Whether the peer is heard ------------------------------------------- */

bool liveness_wanted(const struct perigee_session *s) {
  return s->tcp && (!s->peer.same_host || s->alive.peer_exited);
}

void socket_traffic(const struct perigee_session *s, uint64_t *sent,
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
  socket_traffic(s, &sent, &received);
  if (received == s->alive.heard)
    return;
  s->alive.heard = received;
  s->alive.heard_at = s->engine->now;
}

/* ---- Receiving ----------------------------------------------------------- */

static int socket_lane_frame(struct perigee_session *s, const struct frame *f) {
  const struct perigee_transport *t = lane_table(s->lane);
  int fd = f->lane.fds > 0 ? wire_take_fd(&s->socket.wire) : -1;
  if (t->heard && (fd >= 0) == (f->lane.fds > 0))
    return t->heard(s->lane, f->lane.bytes, f->lane.length, fd);
  if (fd >= 0)
    adopted_close(fd);
  return PERIGEE_PROTOCOL;
}

static int socket_frame(struct perigee_session *s, struct frame *f) {
  if (s->state == PERIGEE_SESSION_HELLO)
    return s->engine->wireup->frame(s, f);
  socket_asks(s, f);
  switch (f->type) {
  case FRAME_WAKE:
  case FRAME_PING:
    return PERIGEE_OK;
  case FRAME_LOOKUP:
    return lookup_asked(s, &f->lookup);
  case FRAME_FOUND:
    return lookup_found(s, &f->found);
  case FRAME_LANE:
    return socket_lane_frame(s, f);
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
    s->up->fail(
        s, PERIGEE_PEER_LOST,
        "the peer closed the connection before the handshake was finished");
  else if (s->streams.state == STREAMS_SOCKET)
    /* otherwise the socket would stay readable for ever */
    watch_remove(s->engine, s->socket.fd);
}

/* Ends the session: there is no memory for what came, or it is no valid
 * frame. */
static void socket_misheard(struct perigee_session *s, int status) {
  if (status == PERIGEE_NO_MEMORY)
    s->up->fail(s, status, lane_trouble(s));
  else
    s->up->fail(s, PERIGEE_PROTOCOL,
                "the peer sent something that is no Perigee frame");
}

void session_frames(struct perigee_session *s) {
  struct frame f;
  int status = 1;
  while (status > 0 && s->state != PERIGEE_SESSION_ENDED &&
         !s->admission.waits && (status = wire_next(&s->socket.wire, &f)) > 0)
    if ((status = socket_frame(s, &f)) >= 0)
      status = 1;
  /* Descriptors that no frame has announced end the session. */
  if (s->state != PERIGEE_SESSION_ENDED &&
      (status < 0 ||
       (s->socket.wire.length == 0 && s->socket.wire.fd_count > 0)))
    socket_misheard(s, status);
}

void session_hear(struct perigee_session *s) {
  const struct transport_frames *frames = lane_table(s->lane)->frames;
  struct wire *w = &s->socket.wire;
  uint32_t got;
  while (s->state != PERIGEE_SESSION_ENDED &&
         (got = frames->hear(s->lane, w->bytes + w->length,
                             (uint32_t)sizeof w->bytes - w->length))) {
    w->length += got;
    s->engine->progress++;
    session_frames(s);
  }
}

/* Descriptors that an unauthenticated peer sends count like its socket. */
static bool socket_fds_have_place(struct perigee_session *s) {
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
static int socket_read(struct perigee_session *s) {
  if (!s->tcp && !s->admission.origin)
    spare_lend(s->engine);
  int got = wire_read(s->socket.fd, &s->socket.wire);
  if (!s->tcp && s->socket.wire.fd_count == 0)
    spare_keep(s->engine);
  return got;
}

static void socket_heard(struct perigee_session *s, int got) {
  if (got == PERIGEE_PROTOCOL)
    s->up->fail(s, PERIGEE_PROTOCOL,
                "the peer sent more descriptors than there may be");
  else if (got == PERIGEE_NO_MEMORY || !socket_fds_have_place(s))
    s->up->fail(s, PERIGEE_NO_MEMORY, NO_DESCRIPTORS);
  else
    session_frames(s);
  if (!s->tcp)
    spare_keep(s->engine);
}

static void socket_read_all(struct perigee_session *s) {
  int got;
  uint32_t room;
  s->engine->progress++;
  hot_activate(s);
  for (int reads = 0; reads < READS; reads++) {
    room = (uint32_t)sizeof s->socket.wire.bytes - s->socket.wire.length;
    got = socket_read(s);
    if (got == PERIGEE_AGAIN)
      return;
    socket_heard(s, got);
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
    socket_read_all(s);
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
  /* The end of file tells so if nothing can be sent any more. */
  if ((events & EPOLLOUT) && s->socket.fd >= 0 &&
      wire_flush(s->socket.fd, &s->socket.wire) == 0) {
    socket_watch_room(s);
    handing_room(s);
  }
  if ((events & ~(uint32_t)EPOLLOUT) && s->socket.fd >= 0)
    socket_read_all(s);
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
