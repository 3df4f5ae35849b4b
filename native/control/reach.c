/* SPDX-License-Identifier: Apache-2.0
 *
 * reach.c - names by c-ares, and a race of their addresses (RFC 8305).
 *
 *   state     event                               becomes
 *   naming    the name's addresses are there      racing
 *   racing    an address refuses, or STAGGER is   racing, with the next address
 *             over
 *   racing    one is connected                    over: the others are closed
 *   racing    the last one refuses                over
 *
 * All its sockets, those of c-ares too, are in one epoll instance, which is
 * what the caller waits for.
 */
#include "control/reach.h"
#include "perigee.h"

#include <ares.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { RUNNERS = 16, STAGGER = 250 }; /* at most; milliseconds */

struct reach {
  int watcher;
  ares_channel names; /* NULL: the addresses are there */
  bool named;
  int names_status;
  struct ares_addrinfo *found;
  struct ares_addrinfo_node *next;
  int runner[RUNNERS]; /* sockets that connect */
  unsigned running;
  int error;                   /* of the one that failed last */
  int64_t given, stagger, due; /* milliseconds; due: of the next address */
};

static int64_t reach_now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * INT64_C(1000) + at.tv_nsec / 1000000;
}

/* ---- Names --------------------------------------------------------------- */

static void names_changed(void *pointer, ares_socket_t fd, int readable,
                          int writable) {
  const struct reach *reach = pointer;
  struct epoll_event event = {.events = (readable ? EPOLLIN : 0U) |
                                        (writable ? EPOLLOUT : 0U),
                              .data.fd = fd};
  if (!event.events)
    epoll_ctl(reach->watcher, EPOLL_CTL_DEL, fd, NULL);
  else if (epoll_ctl(reach->watcher, EPOLL_CTL_MOD, fd, &event) != 0)
    epoll_ctl(reach->watcher, EPOLL_CTL_ADD, fd, &event);
}

static void name_found(void *argument, int status, int timeouts,
                       struct ares_addrinfo *found) {
  struct reach *reach = argument;
  (void)timeouts;
  reach->named = true;
  reach->names_status = status;
  if (status == ARES_SUCCESS)
    reach->found = found;
}

static bool name_begin(struct reach *reach, const char *host, uint16_t port) {
  char service[8];
  struct ares_addrinfo_hints hints = {.ai_family = AF_UNSPEC,
                                      .ai_socktype = SOCK_STREAM};
  struct ares_options options = {.sock_state_cb = names_changed,
                                 .sock_state_cb_data = reach};
  if (ares_library_init(ARES_LIB_INIT_ALL) != ARES_SUCCESS ||
      ares_init_options(&reach->names, &options, ARES_OPT_SOCK_STATE_CB) !=
          ARES_SUCCESS)
    return false;
  snprintf(service, sizeof service, "%u", port);
  ares_getaddrinfo(reach->names, host, service, &hints, name_found, reach);
  return true;
}

static void name_end(struct reach *reach) {
  if (reach->names)
    ares_destroy(reach->names);
  reach->names = NULL;
}

/* Passes c-ares what is ready, and has it look at the time. */
static void name_process(struct reach *reach) {
  struct epoll_event ready[RUNNERS];
  int n = epoll_wait(reach->watcher, ready, RUNNERS, 0);
  for (int i = 0; i < n && !reach->named; i++) {
    bool writes = ready[i].events & EPOLLOUT;
    bool reads = ready[i].events & ~(uint32_t)EPOLLOUT;
    ares_process_fd(reach->names, reads ? ready[i].data.fd : ARES_SOCKET_BAD,
                    writes ? ready[i].data.fd : ARES_SOCKET_BAD);
  }
  if (!reach->named)
    ares_process_fd(reach->names, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
}

static int64_t name_due(const struct reach *reach) {
  struct timeval room;
  const struct timeval *due = ares_timeout(reach->names, NULL, &room);
  return due ? due->tv_sec * INT64_C(1000) + due->tv_usec / 1000 + 1 : -1;
}

static unsigned count_nodes(const struct ares_addrinfo_node *node) {
  unsigned n = 0;
  for (; node; node = node->ai_next)
    n++;
  return n;
}

/* Each address has its turn in half of the time that the caller gives. */
static void race_begin(struct reach *reach) {
  unsigned n;
  name_end(reach);
  reach->next = reach->found->nodes;
  n = count_nodes(reach->next);
  reach->stagger = STAGGER;
  if (reach->given && n && reach->given / 2 / n < STAGGER)
    reach->stagger = reach->given / 2 / n;
}

/* Returns 1 once there are addresses. */
static int name_step(struct reach *reach, const char **why) {
  if (!reach->named)
    name_process(reach);
  if (!reach->named)
    return 0;
  if (!reach->found) {
    *why = ares_strerror(reach->names_status);
    return PERIGEE_NOT_FOUND;
  }
  race_begin(reach);
  return 1;
}

/* ---- The race ------------------------------------------------------------ */

/* Takes a socket out of the race. */
static int race_leave(struct reach *reach, unsigned i) {
  int fd = reach->runner[i];
  epoll_ctl(reach->watcher, EPOLL_CTL_DEL, fd, NULL);
  reach->runner[i] = reach->runner[--reach->running];
  return fd;
}

static void race_drop(struct reach *reach, unsigned i) {
  close(race_leave(reach, i));
}

/* Begins to connect to an address. Returns 0, or an errno. */
static int race_run(struct reach *reach, const struct ares_addrinfo_node *to) {
  int fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  struct epoll_event event = {.events = EPOLLOUT, .data.fd = fd};
  if (fd < 0)
    return errno;
  reach->runner[reach->running++] = fd;
  if ((connect(fd, to->ai_addr, to->ai_addrlen) == 0 || errno == EINPROGRESS) &&
      epoll_ctl(reach->watcher, EPOLL_CTL_ADD, fd, &event) == 0)
    return 0;
  int error = errno;
  race_drop(reach, reach->running - 1);
  return error;
}

static void race_next(struct reach *reach) {
  while (reach->next && reach->running < RUNNERS) {
    int error = race_run(reach, reach->next);
    reach->next = reach->next->ai_next;
    reach->due = reach_now() + reach->stagger;
    if (error == 0)
      return;
    reach->error = error;
  }
}

/* Returns 0: it connects; 1: it is connected; or -errno. */
static int connect_result(int fd) {
  int error = 0;
  struct sockaddr_storage peer;
  socklen_t length = sizeof error, peer_length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0)
    return -errno;
  if (error)
    return -error;
  return getpeername(fd, (struct sockaddr *)&peer, &peer_length) == 0;
}

/* Returns the socket that has connected, which is no runner any more; or -1.
 * Of those that failed the next one follows at once. */
static int race_winner(struct reach *reach) {
  for (unsigned i = 0; i < reach->running;) {
    int state = connect_result(reach->runner[i]);
    if (state > 0)
      return race_leave(reach, i);
    if (state == 0) {
      i++;
      continue;
    }
    reach->error = -state;
    reach->due = 0;
    race_drop(reach, i);
  }
  return -1;
}

static int race_lost(const struct reach *reach, const char **why) {
  *why = strerror(reach->error);
  return reach->error == ECONNREFUSED ? PERIGEE_NOT_FOUND : PERIGEE_PEER_LOST;
}

static int race_step(struct reach *reach, int *descriptor, const char **why) {
  *descriptor = race_winner(reach);
  if (*descriptor < 0 && reach_now() >= reach->due)
    race_next(reach);
  if (*descriptor >= 0)
    return 1;
  return reach->running == 0 ? race_lost(reach, why) : 0;
}

/* ---- Both ---------------------------------------------------------------- */

/* Milliseconds until the time is to be looked at; -1: never. */
static int64_t reach_due(const struct reach *reach) {
  if (reach->names)
    return name_due(reach);
  if (!reach->next || reach->running == RUNNERS)
    return -1;
  int64_t left = reach->due - reach_now();
  return left > 0 ? left : 0;
}

int reach_step(struct reach *reach, struct perigee_stream_wait *wait,
               int *descriptor, const char **why) {
  int status = reach->names ? name_step(reach, why) : 1;
  if (status == 1)
    status = race_step(reach, descriptor, why);
  if (status == 0)
    *wait =
        (struct perigee_stream_wait){.descriptor = reach->watcher,
                                     .milliseconds = (int32_t)reach_due(reach),
                                     .readable = true};
  return status;
}

int reach_descriptor(const struct reach *reach) {
  return reach->watcher;
}

struct reach *reach_open(const char *host, uint16_t port,
                         uint32_t milliseconds) {
  struct reach *reach = calloc(1, sizeof *reach);
  if (!reach)
    return NULL;
  reach->given = milliseconds;
  reach->error = EADDRNOTAVAIL;
  reach->watcher = epoll_create1(EPOLL_CLOEXEC);
  if (reach->watcher >= 0 && name_begin(reach, host, port))
    return reach;
  reach_close(reach);
  return NULL;
}

void reach_close(struct reach *reach) {
  if (!reach)
    return;
  name_end(reach);
  if (reach->found)
    ares_freeaddrinfo(reach->found);
  while (reach->running > 0)
    race_drop(reach, 0);
  if (reach->watcher >= 0)
    close(reach->watcher);
  free(reach);
}
