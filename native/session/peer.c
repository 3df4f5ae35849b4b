/* SPDX-License-Identifier: Apache-2.0
 *
 * peer.c - the process at the other end of a Unix socket. The kernel records
 * who connected, or who listens. A pid is only valid while its process lives,
 * so a pidfd of the process is opened as soon as there is a socket, and no
 * frame is exchanged with a process that has ended by then.
 *
 * SO_PEERPIDFD (Linux 6.5) gives exactly the process that the kernel recorded.
 * On older kernels the pid is looked up, and may belong to another process by
 * now, if the peer died while a third process kept the socket open. There the
 * kernel is asked for the sender of each message: a message that was sent after
 * the pidfd was opened, and that names this pid, proves that the pidfd is
 * right. Until then no memory of the process is read (shm_probe).
 *
 * The pidfd is watched while the session lasts, also over TCP on one host: a
 * child made by plain fork keeps its parent's socket open, so the socket does
 * not tell that the parent has ended.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/hot.h"
#include "sessions.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* ---- Finding the process ------------------------------------------------- */

static bool tells(int fd, short what) {
  struct pollfd p = {.fd = fd, .events = what};
  return poll(&p, 1, 0) != 0;
}

/* Is the process with this pid of the recorded user, and the socket still
 * open? */
static bool plausible(int socket, const struct ucred *peer) {
  char path[32];
  struct stat entry;
  snprintf(path, sizeof path, "/proc/%d", peer->pid);
  return stat(path, &entry) == 0 && entry.st_uid == peer->uid &&
         !tells(socket, POLLRDHUP);
}

static int by_number(struct perigee_session *s, const struct ucred *peer) {
  int pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
  int on = 1, there = INT_MAX; /* unknown: no later byte counts as proof */
  if (pidfd < 0 || plausible(s->socket.fd, peer)) {
    setsockopt(s->socket.fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    ioctl(s->socket.fd, FIONREAD, &there);
    s->process.by_number = true;
    s->process.before = s->socket.wire.received + (uint64_t)there;
    return pidfd;
  }
  close(pidfd);
  errno = ESRCH;
  return -1;
}

/* Returns a pidfd, or -1 with errno. */
static int hold(struct perigee_session *s, const struct ucred *peer) {
  int pidfd;
  socklen_t length = sizeof pidfd;
  if (getsockopt(s->socket.fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0)
    return pidfd;
  return errno == ENOPROTOOPT ? by_number(s, peer) : -1;
}

/* Compares with the last byte of the frame, which was just decoded. */
bool peer_vouches(const struct perigee_session *s) {
  return !s->process.by_number ||
         (s->socket.wire.sender == s->process.pid &&
          s->socket.wire.received - s->socket.wire.length > s->process.before);
}

static bool watch(struct perigee_session *s) {
  return s->process.pidfd < 0 || watch_add(s->engine, s->process.pidfd,
                                           &s->process.watcher, EPOLLIN) == 0;
}

int peer_take(struct perigee_session *s, char reason[REASON]) {
  struct ucred peer;
  socklen_t length = sizeof peer;
  if (getsockopt(s->socket.fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
      peer.uid != geteuid()) {
    snprintf(reason, REASON, "the peer runs as another user");
    return PERIGEE_DENIED;
  }
  peer_forget(s);
  s->process.by_number = false;
  s->process.pid = peer.pid;
  s->process.pidfd = hold(s, &peer);
  bool ended =
      s->process.pidfd < 0 ? errno == ESRCH : tells(s->process.pidfd, POLLIN);
  if (!ended && watch(s))
    return PERIGEE_OK;
  snprintf(reason, REASON, "%s",
           ended ? "the process at the other end of the socket has ended"
                 : "epoll failed");
  return ended ? PERIGEE_PEER_LOST : PERIGEE_SYSTEM;
}

/* ---- Closing the pidfd --------------------------------------------------- */

void peer_unwatch(struct perigee_session *s) {
  if (s->process.pidfd >= 0)
    watch_remove(s->engine, s->process.pidfd);
}

void peer_forget(struct perigee_session *s) {
  peer_unwatch(s);
  if (s->process.pidfd >= 0)
    close(s->process.pidfd);
  s->process.pidfd = -1;
}

int peer_lend(struct perigee_session *s) {
  int pidfd = s->process.pidfd;
  peer_unwatch(s);
  s->process.pidfd = -1;
  return pidfd;
}

void peer_named(struct perigee_session *s, int socket) {
  struct ucred peer;
  int pidfd;
  socklen_t size = sizeof peer, length = sizeof pidfd;
  if (s->process.pidfd >= 0)
    return;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0)
    s->process.pidfd = pidfd;
  else if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           peer.pid > 0)
    s->process.pidfd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
  watch(s);
}

void peer_keep(struct perigee_session *s, int pid, int pidfd) {
  peer_forget(s);
  s->process.pid = pid;
  s->process.pidfd = pidfd;
  watch(s); /* if it fails, the socket will tell the end in most cases */
}

/* ---- The end of the process ---------------------------------------------- */

/* Receives first what the process has sent. */
void peer_ended(struct watcher *watcher, uint32_t events) {
  struct perigee_session *s =
      CONTAINER(watcher, struct perigee_session, process.watcher);
  (void)events;
  s->engine->progress++;
  peer_unwatch(s);
  if (s->state == PERIGEE_SESSION_ENDED || s->state == PERIGEE_SESSION_NONE)
    return;
  if (s->tcp && s->state == PERIGEE_SESSION_OPEN) {
    liveness_peer_exited(s);
    return;
  }
  if (s->streams.state == STREAMS_SOCKET)
    socket_look(s);
  if (s->state != PERIGEE_SESSION_ENDED && !s->socket.hangup)
    session_hang_up(s);
  hot_activate(s);
}
