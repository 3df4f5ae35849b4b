/* SPDX-License-Identifier: Apache-2.0
 *
 * handing.c - memory that a lane hands to its peer while the session lasts:
 * files (memfds), announced by frames on the session's Unix socket, and the
 * descriptors that this takes.
 *
 *   state    event                                        becomes
 *   free     the socket is full                           waiting
 *   free     no descriptor, or no memory, is to be had    resting
 *   waiting  epoll tells that the socket has room         free
 *   waiting  it has had none for long                     the session ends
 *   resting  RESTS is over                                free
 *
 * Memory is handed only in state free; in the other states a poll tries nothing
 * and pays nothing. The session's timer, which an open session uses for nothing
 * else, runs in those states. When the state becomes free again, operations
 * that wait for a block are stepped once.
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
#include <sys/mman.h>
#include <unistd.h>

#include "base/system.h"
#include "core/hot.h"
#include "sessions.h"

/* ns. WAITS is long: a live peer reads its socket whenever it polls. */
static const int64_t RESTS = 1000000, WAITS = INT64_C(5000000000);
static const char full[] = NOT_TAKEN; /* s->unhanded in state waiting */

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

/* ---- When ---------------------------------------------------------------- */

static bool is_free(const struct perigee_session *s, const char **why) {
  if (s->timer.next)
    *why = s->socket.unhanded;
  return !s->timer.next;
}

/* Counts from the present, as the engine's time may be old. */
static void pause_for(struct perigee_session *s, const char *why,
                      int64_t time) {
  int64_t now = engine_clock(s->engine);
  s->socket.unhanded = why;
  timers_add(&s->engine->timers, &s->timer, now + time);
}

void handing_later(struct perigee_session *s, const char *why) {
  spare_keep(s->engine);
  if (s->state == PERIGEE_SESSION_OPEN && !s->timer.next)
    pause_for(s, why, RESTS);
}

/* Counts as progress, so that the next poll steps the operations that wait for
 * a block. */
static void free_again(struct perigee_session *s) {
  timers_remove(&s->engine->timers, &s->timer);
  s->engine->progress++;
  hot_activate(s);
}

static bool has_room(const struct perigee_session *s) {
  struct pollfd p = {.fd = s->socket.fd, .events = POLLOUT};
  return poll(&p, 1, 0) == 1;
}

/* Checks the socket itself: if this side was stopped for a while, epoll has not
 * yet told of the room that the peer made. */
void handing_due(struct perigee_session *s) {
  if (s->socket.unhanded == full && !has_room(s))
    session_end(s, PERIGEE_PROTOCOL, NOT_TAKEN);
  else
    free_again(s);
}

void handing_room(struct perigee_session *s) {
  if (s->state == PERIGEE_SESSION_OPEN && !s->tcp)
    free_again(s);
}

/* ---- What ---------------------------------------------------------------- */

static int memory(void) {
  return memfd_create("perigee-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

int handing_file(struct perigee_session *s, const char **why) {
  if (!is_free(s, why))
    return PERIGEE_AGAIN;
  int fd = memory();
  bool scarce = fd < 0 && system_scarce(errno);
  if (scarce && spare_lend(s->engine))
    fd = memory();
  if (fd >= 0)
    return fd;
  *why = scarce ? NO_DESCRIPTORS : "the system has no memory for a file of it";
  handing_later(s, *why);
  return scarce ? PERIGEE_AGAIN : PERIGEE_NO_MEMORY;
}

static void went(struct perigee_session *s, int fd) {
  if (fd >= 0)
    close(fd);
  spare_keep(s->engine);
}

int handing_hand(struct perigee_session *s, const void *bytes, uint32_t length,
                 int fd, const char **why) {
  struct frame f = {.type = FRAME_LANE,
                    .lane = {.length = (uint16_t)length, .fds = fd >= 0}};
  if (!is_free(s, why) || s->state != PERIGEE_SESSION_OPEN)
    return PERIGEE_AGAIN;
  memcpy(f.lane.bytes, bytes, length);
  int status = session_tell(s, &f, &fd, f.lane.fds);
  if (status == PERIGEE_OK) {
    went(s, fd);
    return PERIGEE_OK;
  }
  *why = status == PERIGEE_AGAIN       ? full
         : status == PERIGEE_NO_MEMORY ? IN_FLIGHT
                                       : "the peer cut the connection";
  pause_for(s, *why, status == PERIGEE_AGAIN ? WAITS : RESTS);
  if (status == PERIGEE_AGAIN)
    session_await_room(s);
  return PERIGEE_AGAIN;
}
