/* SPDX-License-Identifier: Apache-2.0
 *
 * peer.c - the process at the other end of a Unix socket. The kernel keeps who
 * connected, or who listens; a pid alone is only as good as its holder's life,
 * so the process is held on to by a pidfd from the moment that the socket is
 * there, and no word is exchanged with one that has ended by then.
 *
 * SO_PEERPIDFD (Linux 6.5) gives the very process that the socket keeps. Before
 * that the number is looked up, and may be of somebody else if the connector
 * died while another process kept its socket open: such a holder is of the same
 * user, and its memory never holds what we would look for there (shm_probe).
 *
 * The pidfd is watched while the session lasts: a child made by plain fork keeps
 * its parent's socket open, so that its end says nothing.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core.h"

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

static int by_number(int socket, const struct ucred *peer) {
  int pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
  if (pidfd < 0 || plausible(socket, peer))
    return pidfd;
  close(pidfd);
  errno = ESRCH;
  return -1;
}

/* A descriptor, or -1 and why in errno. */
static int hold(int socket, const struct ucred *peer) {
  int pidfd;
  socklen_t length = sizeof pidfd;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0)
    return pidfd;
  return errno == ENOPROTOOPT ? by_number(socket, peer) : -1;
}

static bool watch(struct perigee_session *s) {
  return s->pidfd < 0 ||
         socket_watch(s->engine, s->pidfd, s, WATCH_PEER, EPOLLIN) == 0;
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
  s->peer_pid = peer.pid;
  s->pidfd = hold(s->fd, &peer);
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
  if (s->pidfd >= 0 && engine_alive(s->engine))
    epoll_ctl(s->engine->epoll, EPOLL_CTL_DEL, s->pidfd, NULL);
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

void peer_keep(struct perigee_session *s, int pid, int pidfd) {
  peer_forget(s);
  s->peer_pid = pid;
  s->pidfd = pidfd;
  watch(s); /* else its socket tells, as a rule */
}

/* ---- Its end ------------------------------------------------------------- */

/* What it still said is heard first. */
void peer_ended(struct perigee_session *s) {
  s->engine->progress++;
  peer_unwatch(s);
  if (s->state == PERIGEE_SESSION_ENDED || s->state == PERIGEE_SESSION_NONE)
    return;
  if (!s->spoken)
    socket_look(s);
  if (s->state != PERIGEE_SESSION_ENDED && !s->hangup)
    session_hang_up(s);
  turns_stir(s);
}
