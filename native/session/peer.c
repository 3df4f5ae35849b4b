/* SPDX-License-Identifier: Apache-2.0
 *
 * peer.c - the process at the other end of a Unix socket. The kernel keeps who
 * connected, or who listens; a pid alone is only as good as its holder's life,
 * so the process is held on to by a pidfd from the moment that the socket is
 * there, and no word is exchanged with one that has ended by then.
 *
 * SO_PEERPIDFD (Linux 6.5) gives the very process that the socket keeps. Before
 * that the number is looked up, and may be of somebody else by now if the
 * connector died while another process kept its socket open. So there the kernel
 * is asked who sends what comes: whoever sends by that number something that was
 * not there yet when its pidfd was taken has it, and no other process is read
 * from (shm_probe).
 *
 * The pidfd is watched while the session lasts, over TCP on one host, too: a
 * child made by plain fork keeps its parent's socket open, so that its end says
 * nothing.
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

/* ---- Taking hold --------------------------------------------------------- */

static bool tells(int fd, short what) {
  struct pollfd p = {.fd = fd, .events = what};
  return poll(&p, 1, 0) != 0;
}

/* Who has the number now is of that user, and the socket is still open. */
static bool plausible(int socket, const struct ucred *peer) {
  char path[32];
  struct stat entry;
  snprintf(path, sizeof path, "/proc/%d", peer->pid);
  return stat(path, &entry) == 0 && entry.st_uid == peer->uid &&
         !tells(socket, POLLRDHUP);
}

static int by_number(struct perigee_session *s, const struct ucred *peer) {
  int pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
  int on = 1, there = INT_MAX; /* that cannot be told: all that ever comes */
  if (pidfd < 0 || plausible(s->fd, peer)) {
    setsockopt(s->fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    ioctl(s->fd, FIONREAD, &there);
    s->by_number = true;
    s->before = s->wire.received + (uint64_t)there;
    return pidfd;
  }
  close(pidfd);
  errno = ESRCH;
  return -1;
}

/* A descriptor, or -1 and why in errno. */
static int hold(struct perigee_session *s, const struct ucred *peer) {
  int pidfd;
  socklen_t length = sizeof pidfd;
  if (getsockopt(s->fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0)
    return pidfd;
  return errno == ENOPROTOOPT ? by_number(s, peer) : -1;
}

/* A frame ends with the last byte that was read of it. */
bool peer_vouches(const struct perigee_session *s) {
  return !s->by_number || (s->wire.sender == s->peer_pid &&
                           s->wire.received - s->wire.length > s->before);
}

static bool watch(struct perigee_session *s) {
  return s->pidfd < 0 ||
         watch_add(s->engine, s->pidfd, &s->on_process, EPOLLIN) == 0;
}

int peer_take(struct perigee_session *s, char reason[REASON]) {
  struct ucred peer;
  socklen_t length = sizeof peer;
  if (getsockopt(s->fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
      peer.uid != geteuid()) {
    snprintf(reason, REASON, "the peer runs as another user");
    return PERIGEE_DENIED;
  }
  peer_forget(s);
  s->by_number = false;
  s->peer_pid = peer.pid;
  s->pidfd = hold(s, &peer);
  bool ended = s->pidfd < 0 ? errno == ESRCH : tells(s->pidfd, POLLIN);
  if (!ended && watch(s))
    return PERIGEE_OK;
  snprintf(reason, REASON, "%s",
           ended ? "the process at the other end of the socket has ended"
                 : "epoll failed");
  return ended ? PERIGEE_PEER_LOST : PERIGEE_SYSTEM;
}

/* ---- Letting go ---------------------------------------------------------- */

void peer_unwatch(struct perigee_session *s) {
  if (s->pidfd >= 0)
    watch_remove(s->engine, s->pidfd);
}

void peer_forget(struct perigee_session *s) {
  peer_unwatch(s);
  if (s->pidfd >= 0)
    close(s->pidfd);
  s->pidfd = -1;
}

int peer_lend(struct perigee_session *s) {
  int pidfd = s->pidfd;
  peer_unwatch(s);
  s->pidfd = -1;
  return pidfd;
}

void peer_named(struct perigee_session *s, int socket) {
  struct ucred peer;
  int pidfd;
  socklen_t size = sizeof peer, length = sizeof pidfd;
  if (s->pidfd >= 0)
    return;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0)
    s->pidfd = pidfd;
  else if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           peer.pid > 0)
    s->pidfd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
  watch(s);
}

void peer_keep(struct perigee_session *s, int pid, int pidfd) {
  peer_forget(s);
  s->peer_pid = pid;
  s->pidfd = pidfd;
  watch(s); /* else its socket tells, as a rule */
}

/* ---- Its end ------------------------------------------------------------- */

/* What it still said is heard first. */
void peer_ended(struct watcher *watcher, uint32_t events) {
  struct perigee_session *s =
      CONTAINER(watcher, struct perigee_session, on_process);
  (void)events;
  s->engine->progress++;
  peer_unwatch(s);
  if (s->state == PERIGEE_SESSION_ENDED || s->state == PERIGEE_SESSION_NONE)
    return;
  if (s->tcp && s->state == PERIGEE_SESSION_OPEN) {
    liveness_peer_exited(s);
    return;
  }
  if (!s->spoken)
    socket_look(s);
  if (s->state != PERIGEE_SESSION_ENDED && !s->hangup)
    session_hang_up(s);
  hot_activate(s);
}
