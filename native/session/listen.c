/* SPDX-License-Identifier: Apache-2.0
 *
 * listen.c - listeners, and accepting. Over TCP everybody can connect, so a
 * listener for other hosts needs a secret, or has to be marked insecure.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "core/lock.h"
#include "host/adopted.h"
#include "net/address.h"
#include "sessions.h"

/* BACKLOG: capped by the system. ACCEPTS: connections that one listener accepts
 * before others have their turn. */
enum { BACKLOG = 4096, ACCEPTS = 16 };

/* ---- Opening ------------------------------------------------------------- */

/* Can other hosts connect without being asked for a secret? */
static bool listens_to_all(const struct perigee_engine *engine,
                           const struct address *address) {
  return address->tcp && !address_loopback(&address->at) &&
         !engine->secret->set;
}

static int listen_check_address(struct perigee_engine *engine, const char *text,
                                struct address *address) {
  char reason[ADDRESS_REASON];
  int status = address_parse(text, address, reason);
  if (status < 0)
    return fail(engine, status, "%s", reason);
  if (address->tcp && strcmp(address->host, "localhost") == 0) {
    address->at.in =
        (struct sockaddr_in){.sin_family = AF_INET,
                             .sin_port = htons(address->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address->length = sizeof address->at.in;
  }
  if (address->length == 0)
    return fail(engine, PERIGEE_INVALID,
                "\"%.200s\": to listen, name an address of this host by its "
                "number, or 0.0.0.0 or [::] for all its IPv4 or all its IPv6 "
                "addresses",
                text);
  if (listens_to_all(engine, address) && engine->options.insecure != 1)
    return fail(
        engine, PERIGEE_DENIED,
        "at %.200s any host could connect, and there is no "
        "secret: give both sides one (option secret, like "
        "\"file:PATH\", or the environment's PERIGEE_SECRET), or, where "
        "everybody on the network is trusted, say insecure",
        text);
  return PERIGEE_OK;
}

static int listen_failed(struct perigee_listener *l,
                         const struct address *address) {
  if (errno == EADDRINUSE && address->tcp)
    return fail(l->engine, PERIGEE_NAME_TAKEN,
                "%s is in use by another listener", l->address);
  if (errno == EADDRINUSE)
    return fail(l->engine, PERIGEE_NAME_TAKEN,
                "%s exists already; if no process listens there any more, "
                "remove it",
                l->address + strlen("unix:"));
  if (errno == EADDRNOTAVAIL)
    return fail(l->engine, PERIGEE_NOT_FOUND,
                "cannot listen at %s: this host has no such address",
                l->address);
  bool nowhere = errno == ENOENT || errno == ENOTDIR;
  bool denied = errno == EACCES || errno == EPERM;
  int status = nowhere  ? PERIGEE_NOT_FOUND
               : denied ? PERIGEE_DENIED
                        : system_status(errno);
  return fail(l->engine, status, "cannot listen at %s: %s", l->address,
              system_text(errno));
}

/* Reads the address that the system chose: port 0 stands for any free one. */
static void listener_learn_address(struct perigee_listener *l) {
  union socket_address at;
  socklen_t length = sizeof at;
  if (getsockname(l->fd, &at.any, &length) == 0)
    address_text(&at, l->address);
}

static int listener_bind(struct perigee_listener *l,
                         const struct address *address) {
  int on = 1;
  if (address->tcp)
    setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address->at.any.sa_family == AF_INET6) /* IPv4 has its own listener */
    setsockopt(l->fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  if (bind(l->fd, &address->at.any, address->length) != 0)
    return listen_failed(l, address);
  l->file = !address->tcp && address->at.un.sun_path[0];
  if ((l->file && chmod(address->at.un.sun_path, 0600) != 0) ||
      listen(l->fd, BACKLOG) != 0)
    return listen_failed(l, address);
  if (address->tcp)
    listener_learn_address(l);
  if (watch_add(l->engine, l->fd, &l->watcher, EPOLLIN) != 0)
    return fail(l->engine, system_status(errno), "epoll: %s",
                system_text(errno));
  l->listens = true;
  return PERIGEE_OK;
}

int perigee_listen(struct perigee_engine *engine, const char *text,
                   struct perigee_listener **out) {
  ENTER(engine);
  if (!text)
    return fail_missing(engine, "address to listen at");
  return listener_open(engine, text, false, out);
}

static void listener_ready(struct watcher *watcher, uint32_t events);

int listener_open(struct perigee_engine *engine, const char *text, bool tickets,
                  struct perigee_listener **out) {
  struct address address;
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  int status = listen_check_address(engine, text, &address);
  if (status < 0)
    return status;
  struct perigee_listener *l = calloc(1, sizeof *l);
  if (!l)
    return PERIGEE_NO_MEMORY;
  l->engine = engine;
  l->watcher.ready = listener_ready;
  l->tcp = address.tcp;
  l->tickets = tickets;
  l->open_to_all = listens_to_all(engine, &address);
  snprintf(l->address, sizeof l->address, "%s", text);
  l->fd = socket_new(address.at.any.sa_family);
  if (l->fd < 0) {
    free(l);
    return fail(engine, system_status(errno), "no socket: %s",
                system_text(errno));
  }
  spare_keep(engine);
  list_append(&engine->listeners, &l->node);
  status = listener_bind(l, &address);
  if (status < 0) {
    perigee_listener_close(l);
    return status;
  }
  *out = l;
  return PERIGEE_OK;
}

/* Closes connections that were not accepted, with the descriptors that they may
 * have brought over a Unix socket. */
static void listener_send_away(struct perigee_listener *l) {
  int fd;
  while (!l->tcp && (fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
    adopted_drain(fd);
    close(fd);
  }
}

/* Ends the sessions whose handshake is under way, here or where they were sent
 * on to: once they opened, nobody would take them. */
static void listener_end_hellos(const struct perigee_listener *l) {
  migrate_forget(l->engine, l->address);
  struct node *n, *next, *head = &l->engine->sessions;
  for (n = head->next; n != head; n = next) {
    next = n->next;
    struct perigee_session *s = CONTAINER(n, struct perigee_session, node);
    if (s->state == PERIGEE_SESSION_HELLO && !s->dialed &&
        strcmp(s->target.address, l->address) == 0)
      session_end(s, PERIGEE_CLOSED, "the listener was closed");
  }
}

void perigee_listener_named(struct perigee_listener *l) {
  ENTER(l->engine);
  l->file = false;
}

void perigee_listener_close(struct perigee_listener *l) {
  ENTER(l->engine);
  if (engine_alive(l->engine)) {
    listener_send_away(l);
    if (l->listens)
      listener_end_hellos(l);
  }
  if (l->file && engine_alive(l->engine))
    unlink(l->address + strlen("unix:"));
  watch_close(l->engine, l->fd);
  list_remove(&l->node);
  free(l);
}

const char *perigee_listener_address(const struct perigee_listener *l) {
  return l->address;
}

bool perigee_listener_insecure(const struct perigee_listener *l) {
  return l->open_to_all;
}

/* ---- Accepting ----------------------------------------------------------- */

/* Without free descriptors, connections are refused one at a time, by means of
 * the spare one: otherwise the socket would stay readable for ever. */
static bool accept_by_spare(struct perigee_engine *engine) {
  return system_scarce(errno) && spare_lend(engine);
}

/* Refuses a connection that was accepted. */
static void accept_refuse(struct perigee_listener *l, int fd) {
  struct frame f = {.type = FRAME_REFUSE, .refuse = {PERIGEE_AGAIN, CROWDED}};
  wire_send(fd, &f, NULL, 0);
  if (!l->tcp)
    adopted_drain(fd);
  close(fd);
  refusals_add(l->engine, "", l->address, PERIGEE_NO_MEMORY,
               "too many come at once, or all sessions are in use (options "
               "hellos and sessions), or descriptors (ulimit -n), or memory "
               "for keys (ulimit -l)");
}

/* Another unauthenticated peer is given up if all sessions are in use. */
static struct perigee_session *accept_session(struct perigee_engine *engine,
                                              int *fd) {
  int place = unauth_place(engine, *fd);
  if (place < 0)
    return NULL;
  *fd = place;
  struct perigee_session *s = session_new(engine, place);
  if (!s)
    unauth_give_up(engine);
  return s;
}

static void accept_let_in(struct perigee_listener *l, struct perigee_session *s,
                          const union socket_address *from) {
  s->tcp = l->tcp;
  s->migration.ticketed = l->tickets;
  snprintf(s->target.address, sizeof s->target.address, "%s", l->address);
  if (s->tcp) {
    address_text(from, s->peer.address);
    socket_no_delay(s->socket.fd);
  }
  if (watch_add(l->engine, s->socket.fd, &s->socket.watcher,
                EPOLLIN | EPOLLRDHUP)) {
    session_end(s, PERIGEE_SYSTEM, "epoll failed");
    return;
  }
  s->engine->wireup->begin(s);
  if (s->state == PERIGEE_SESSION_HELLO && !unauth_join(s, from))
    session_end(s, PERIGEE_NO_MEMORY, "no memory for one more");
}

static int accept_next(struct perigee_listener *l, union socket_address *from) {
  socklen_t length = sizeof *from;
  return accept4(l->fd, &from->any, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

static void listener_ready(struct watcher *watcher, uint32_t events) {
  struct perigee_listener *l =
      CONTAINER(watcher, struct perigee_listener, watcher);
  (void)events;
  struct perigee_engine *engine = l->engine;
  for (int i = 0; i < ACCEPTS; i++) {
    union socket_address from = {0};
    int fd = accept_next(l, &from);
    bool last = fd < 0 && accept_by_spare(engine);
    if (last)
      fd = accept_next(l, &from);
    struct perigee_session *s =
        fd >= 0 && !last ? accept_session(engine, &fd) : NULL;
    if (s)
      accept_let_in(l, s, &from);
    else if (fd >= 0)
      accept_refuse(l, fd);
    spare_keep(engine);
    if (fd < 0)
      return;
  }
}
