/* SPDX-License-Identifier: Apache-2.0
 *
 * handing.c - memory that a lane hands to the peer's half while the session
 * lasts: files of it, the word of each by the session's Unix socket, and the
 * descriptors that this takes.
 *
 *   state    event                                        becomes
 *   free     the socket is full                           waiting
 *   free     no descriptor, or no memory, is to be had    resting
 *   waiting  epoll tells that the socket has room         free
 *   waiting  it has had none for long                     the session ends
 *   resting  RESTS is over                                free
 *
 * Only while it is free is anything tried: what cannot go costs a poll nothing.
 * It is not while the session's timer runs, which nothing else has the use of
 * while such a session is open. Whoever waits for a block is stepped once more
 * when it is free again.
 *
 * The spare descriptor. A program may have all descriptors in use for a while;
 * its sessions, which need one more for a moment whenever memory is handed over,
 * need not end for that. So each engine keeps one, which it closes where another
 * may be wanted in its place, and opens again at once.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/hot.h"
#include "sessions.h"

/* ns. WAITS: a peer that lives reads its socket whenever it polls. */
static const int64_t RESTS = 1000000, WAITS = INT64_C(5000000000);
static const char full[] = NOT_TAKEN; /* unhanded, while it is waiting */

/* ---- The spare descriptor ------------------------------------------------- */

bool spare_lend(struct perigee_engine *engine) {
  if (engine->spare_fd < 0)
    return false;
  close(engine->spare_fd);
  engine->spare_fd = -1;
  return true;
}

/* Any will do that is there. */
void spare_keep(struct perigee_engine *engine) {
  if (engine->spare_fd < 0)
    engine->spare_fd = fcntl(engine->epoll, F_DUPFD_CLOEXEC, 0);
}

/* ---- When ------------------------------------------------------------------ */

static bool is_free(const struct perigee_session *s, const char **why) {
  if (s->timer.next)
    *why = s->unhanded;
  return !s->timer.next;
}

/* From now on, though nobody has read the clock for long. */
static void pause_for(struct perigee_session *s, const char *why,
                      int64_t time) {
  int64_t now = engine_clock(s->engine);
  s->unhanded = why;
  timers_add(&s->engine->timers, &s->timer, now + time);
}

void handing_later(struct perigee_session *s, const char *why) {
  spare_keep(s->engine);
  if (s->state == PERIGEE_SESSION_OPEN && !s->timer.next)
    pause_for(s, why, RESTS);
}

/* Blocks are waited for by operations that every poll steps, if it has cause to
 * go on. */
static void free_again(struct perigee_session *s) {
  timers_remove(&s->engine->timers, &s->timer);
  s->engine->progress++;
  hot_activate(s);
}

static bool has_room(const struct perigee_session *s) {
  struct pollfd p = {.fd = s->fd, .events = POLLOUT};
  return poll(&p, 1, 0) == 1;
}

/* It may be this side that did nothing for a while: then epoll has not told yet
 * of the room that the peer made. */
void handing_due(struct perigee_session *s) {
  if (s->unhanded == full && !has_room(s))
    session_end(s, PERIGEE_PROTOCOL, NOT_TAKEN);
  else
    free_again(s);
}

void handing_room(struct perigee_session *s) {
  if (s->state == PERIGEE_SESSION_OPEN && !s->tcp)
    free_again(s);
}

/* ---- What ------------------------------------------------------------------ */

static int memory(void) {
  return memfd_create("perigee-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

int handing_file(struct perigee_session *s, const char **why) {
  if (!is_free(s, why))
    return PERIGEE_AGAIN;
  int fd = memory();
  bool scarce = fd < 0 && (errno == EMFILE || errno == ENFILE);
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
