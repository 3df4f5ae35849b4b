/* SPDX-License-Identifier: Apache-2.0
 *
 * socket.c - listening, dialing, and what comes on sockets. One epoll
 * descriptor for everything that is not memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core.h"

enum { BACKLOG = 256, READY = 32, LISTENER = 1, FABRIC = 2 };

static int watch(struct perigee_engine *engine, int fd, void *what, int tag) {
  struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP,
                          .data.u64 =
                              (uint64_t)(uintptr_t)what | (uint64_t)tag};
  return epoll_ctl(engine->epoll, EPOLL_CTL_ADD, fd, &e);
}

int fabric_watch(struct perigee_engine *engine, int fd) {
  return watch(engine, fd, NULL, FABRIC);
}

static int unix_address(struct perigee_engine *engine, const char *address,
                        struct sockaddr_un *un) {
  if (strncmp(address, "unix:", 5) != 0)
    return fail(engine, PERIGEE_UNSUPPORTED,
                "\"%s\" is no address that this version knows: use unix:PATH",
                address);
  const char *path = address + 5;
  if (strlen(path) > PERIGEE_ADDRESS_MAX)
    return fail(engine, PERIGEE_TOO_LARGE,
                "the socket path \"%s\" has %zu bytes, the system allows %d; "
                "use a shorter folder",
                path, strlen(path), PERIGEE_ADDRESS_MAX);
  if (!*path)
    return fail(engine, PERIGEE_INVALID, "the socket path is empty");
  *un = (struct sockaddr_un){.sun_family = AF_UNIX};
  memcpy(un->sun_path, path, strlen(path));
  return PERIGEE_OK;
}

static int new_socket(void) {
  return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

/* ---- Listening ---------------------------------------------------------- */

static int bind_path(struct perigee_engine *engine, int fd,
                     const struct sockaddr_un *un) {
  if (bind(fd, (const struct sockaddr *)un, sizeof *un) != 0)
    return errno == EADDRINUSE
               ? fail(engine, PERIGEE_NAME_TAKEN,
                      "%s exists already; if no process listens there any "
                      "more, remove it",
                      un->sun_path)
               : fail(engine, PERIGEE_SYSTEM, "cannot listen at %s: %s",
                      un->sun_path, strerror(errno));
  if (chmod(un->sun_path, 0600) != 0 || listen(fd, BACKLOG) != 0)
    return fail(engine, PERIGEE_SYSTEM, "cannot listen at %s: %s", un->sun_path,
                strerror(errno));
  return PERIGEE_OK;
}

int perigee_listen(struct perigee_engine *engine, const char *address,
                   struct perigee_listener **out) {
  struct sockaddr_un un;
  int status = unix_address(engine, address, &un);
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  if (status < 0)
    return status;
  struct perigee_listener *l = calloc(1, sizeof *l);
  if (!l)
    return PERIGEE_NO_MEMORY;
  l->engine = engine;
  l->fd = new_socket();
  if (l->fd < 0) {
    free(l);
    return fail(engine, PERIGEE_SYSTEM, "no socket: %s", strerror(errno));
  }
  list_append(&engine->listeners, &l->node);
  status = bind_path(engine, l->fd, &un);
  if (status == PERIGEE_OK) {
    memcpy(l->path, un.sun_path, sizeof l->path);
    if (watch(engine, l->fd, l, LISTENER) != 0)
      status = fail(engine, PERIGEE_SYSTEM, "epoll: %s", strerror(errno));
  }
  if (status < 0) {
    perigee_listener_close(l);
    return status;
  }
  *out = l;
  return PERIGEE_OK;
}

void perigee_listener_close(struct perigee_listener *l) {
  if (l->path[0] && engine_alive(l->engine))
    unlink(l->path);
  close(l->fd);
  list_remove(&l->node);
  free(l);
}

/* Strangers beyond the limit are turned away, and so are all while there are
 * no descriptors: else the socket would stay readable for ever. */
static void turn_away(struct perigee_listener *l, int fd) {
  l->engine->counters.refused++;
  if (fd >= 0)
    close(fd);
}

static void accept_all(struct perigee_listener *l) {
  struct perigee_engine *engine = l->engine;
  for (int i = 0; i < BACKLOG; i++) {
    int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
      return;
    struct perigee_session *s = engine->hellos < engine->options.hellos
                                    ? session_new(engine, fd)
                                    : NULL;
    if (!s) {
      turn_away(l, fd);
      continue;
    }
    memcpy(s->address, "unix:", 5);
    memcpy(s->address + 5, l->path, sizeof l->path);
    if (watch(engine, fd, s, 0) != 0)
      session_end(s, PERIGEE_SYSTEM, "epoll failed");
    else
      hello_begin(s);
  }
}

/* ---- Dialing ------------------------------------------------------------ */

static void dial(struct perigee_session *s) {
  struct sockaddr_un un;
  unix_address(s->engine, s->address, &un);
  int status = connect(s->fd, (struct sockaddr *)&un, sizeof un);
  if (status != 0 &&
      errno == EAGAIN) /* its backlog is full: at the next poll */
    return;
  operation_unqueue(s->connect);
  char reason[PERIGEE_ADDRESS_MAX + 64];
  if (status == 0 && watch(s->engine, s->fd, s, 0) == 0) {
    hello_begin(s);
    return;
  }
  snprintf(reason, sizeof reason, "nobody listens at %s: %s", s->address,
           strerror(errno));
  session_end(s,
              errno == ENOENT || errno == ECONNREFUSED ? PERIGEE_NOT_FOUND
                                                       : PERIGEE_SYSTEM,
              reason);
}

void connect_again(struct operation *op) {
  op->engine->copying = true; /* nothing wakes us: look again soon */
  dial(op->session);
}

int perigee_connect(struct perigee_engine *engine, const char *address,
                    const char *transport, int64_t timeout) {
  struct sockaddr_un un;
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  int status = unix_address(engine, address, &un);
  if (status < 0)
    return status;
  bool any = !transport || strcmp(transport, "auto") == 0;
  const struct perigee_transport *t =
      any ? NULL : transport_named(engine, transport);
  if (!any && !t)
    return fail(engine, PERIGEE_UNSUPPORTED,
                "this build has no transport \"%s\"", transport);
  /* What cannot be had here is told before anybody is dialed. */
  char reason[REASON];
  struct fabric *fabric;
  if (t && (status = fabric_of(engine, t, &fabric, reason)) < 0)
    return fail(engine, status, "%s", reason);
  int fd = new_socket();
  if (fd < 0)
    return fail(engine, PERIGEE_SYSTEM, "no socket: %s", strerror(errno));
  struct perigee_session *s = session_new(engine, fd);
  if (!s) {
    close(fd);
    return PERIGEE_NO_MEMORY;
  }
  s->dialed = true;
  snprintf(s->address, sizeof s->address, "%s", address);
  snprintf(s->wanted, sizeof s->wanted, "%s", any ? "" : transport);
  s->connect = operation_take(s, OP_CONNECT);
  if (!s->connect) {
    perigee_session_free(s);
    return PERIGEE_NO_MEMORY;
  }
  int index = s->connect->index;
  transfer_submit(s->connect, timeout);
  operation_move(s->connect);
  dial(s);
  return index;
}

/* ---- What comes --------------------------------------------------------- */

int session_tell(struct perigee_session *s, const struct frame *f,
                 const int *fds, uint32_t fd_count) {
  return s->alone ? endpoint_tell(s, f) : wire_send(s->fd, f, fds, fd_count);
}

bool session_send(struct perigee_session *s, const struct frame *f,
                  const int *fds, uint32_t fd_count) {
  int status = session_tell(s, f, fds, fd_count);
  if (status == PERIGEE_OK)
    return true;
  if (status == PERIGEE_AGAIN)
    session_end(s, PERIGEE_PROTOCOL, "the peer does not take what it is told");
  /* A dead one is noticed by its end of file, after what it still said. */
  return status != PERIGEE_AGAIN;
}

static int frame(struct perigee_session *s, const struct frame *f) {
  if (s->state == PERIGEE_SESSION_HELLO)
    return hello_frame(s, f);
  switch (f->type) {
  case FRAME_WAKE:
    return PERIGEE_OK;
  case FRAME_LOOKUP:
    return lookup_asked(s, &f->lookup);
  case FRAME_FOUND:
    return lookup_found(s, &f->found);
  case FRAME_LANE:
    return lane_table(s->lane)->heard
               ? lane_table(s->lane)->heard(s->lane, f->lane.bytes,
                                            f->lane.length)
               : PERIGEE_PROTOCOL;
  case FRAME_BYE:
    s->hangup = true;
    strcpy(s->reason, "the peer closed the session");
    return PERIGEE_OK;
  default:
    return PERIGEE_PROTOCOL;
  }
}

static void hang_up(struct perigee_session *s) {
  if (!s->hangup)
    strcpy(s->reason, "the peer died or cut the connection");
  s->hangup = true;
  if (s->state == PERIGEE_SESSION_HELLO)
    session_end(s, PERIGEE_PEER_LOST,
                "the peer cut the connection before its hello was finished");
  else /* its socket would stay readable for ever */
    epoll_ctl(s->engine->epoll, EPOLL_CTL_DEL, s->fd, NULL);
}

void session_frames(struct perigee_session *s) {
  struct frame f;
  int status = 1;
  while (status > 0 && s->state != PERIGEE_SESSION_ENDED &&
         (status = wire_next(&s->wire, &f)) > 0)
    status = frame(s, &f) < 0 ? PERIGEE_PROTOCOL : 1;
  /* Descriptors that no frame has announced are not ours to keep. */
  if (s->state != PERIGEE_SESSION_ENDED &&
      (status < 0 || (s->wire.length == 0 && s->wire.fd_count > 0)))
    session_end(s, PERIGEE_PROTOCOL,
                "the peer sent something that is no Perigee frame");
}

static void socket_ready(struct perigee_session *s) {
  int got;
  uint32_t room;
  s->engine->progress++;
  do {
    room = (uint32_t)sizeof s->wire.bytes - s->wire.length;
    got = wire_read(s->fd, &s->wire);
    if (got == PERIGEE_AGAIN)
      return;
    if (got == PERIGEE_PROTOCOL)
      session_end(s, PERIGEE_PROTOCOL,
                  "the peer sent more descriptors than there may be");
    else
      session_frames(s);
    if (s->state == PERIGEE_SESSION_ENDED)
      return;
    if (got <= 0) {
      hang_up(s);
      return;
    }
    /* Less than there was room for: the rest, or the end, comes with the next
     * look, as epoll tells what is there for as long as it is. A hello's next
     * frame is waited for. */
  } while ((uint32_t)got == room || s->state == PERIGEE_SESSION_HELLO);
}

void sockets_poll(struct perigee_engine *engine) {
  struct epoll_event events[READY];
  int n = epoll_wait(engine->epoll, events, READY, 0);
  for (int i = 0; i < n; i++) {
    uint64_t what = events[i].data.u64;
    void *pointer = (void *)(uintptr_t)(what & ~UINT64_C(3));
    if (what & LISTENER)
      accept_all(pointer);
    else if (what & FABRIC)
      fabrics_ready(engine);
    else
      socket_ready(pointer);
  }
}
