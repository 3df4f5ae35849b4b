/* SPDX-License-Identifier: Apache-2.0
 *
 * dial.c - from an address to a connected socket. A Unix socket connects at
 * once or not at all. Over TCP the name is resolved first, then its addresses
 * are tried in turn; while there is another one, each gets at most PATIENCE.
 * The session is in state "none" until the handshake begins. A dial that fails
 * is the session's failure (session_fail).
 *
 * A name is resolved without blocking and without a thread, by c-ares, whose
 * sockets are watched by the engine's epoll. /etc/hosts and the system's other
 * settings at that time are used.
 */
#include <ares.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/status.h"
#include "net/address.h"
#include "operation/operations.h"
#include "sessions.h"

/* ---- Resolving names ----------------------------------------------------- */

struct resolve {
  ares_channel channel; /* one for each look-up: destroying it cancels it */
  struct perigee_engine *engine;
  struct watcher *watcher;
  struct address address;
  struct addresses found;
  bool done;
  int status; /* a status of c-ares */
};

/* Does nothing in a child process: it shares the epoll instance with its
 * parent, whose look-up goes on. */
static void watch_changed(void *pointer, ares_socket_t fd, int readable,
                          int writable) {
  const struct resolve *r = pointer;
  uint32_t events = (readable ? EPOLLIN : 0u) | (writable ? EPOLLOUT : 0u);
  if (!engine_alive(r->engine))
    return;
  if (!events)
    watch_remove(r->engine, fd);
  else if (watch_change(r->engine, fd, r->watcher, events) != 0)
    watch_add(r->engine, fd, r->watcher, events);
}

static void resolve_add(struct resolve *r,
                        const struct ares_addrinfo_node *node) {
  union socket_address *to = &r->found.at[r->found.count];
  size_t room = node->ai_family == AF_INET6  ? sizeof to->in6
                : node->ai_family == AF_INET ? sizeof to->in
                                             : 0;
  if (room == 0 || node->ai_addrlen != room || r->found.count == ADDRESSES_MAX)
    return;
  memcpy(to, node->ai_addr, room);
  if (node->ai_family == AF_INET6)
    to->in6.sin6_port = htons(r->address.port);
  else
    to->in.sin_port = htons(r->address.port);
  r->found.count++;
}

static void resolve_answered(void *pointer, int status, int timeouts,
                             struct ares_addrinfo *result) {
  struct resolve *r = pointer;
  (void)timeouts;
  r->done = true;
  r->status = status;
  if (!result)
    return;
  for (struct ares_addrinfo_node *n = result->nodes; n; n = n->ai_next)
    resolve_add(r, n);
  ares_freeaddrinfo(result);
}

struct resolve *resolve_begin(struct perigee_engine *engine,
                              const struct address *address,
                              struct watcher *watcher) {
  struct resolve *r = calloc(1, sizeof *r);
  struct ares_options options = {.sock_state_cb = watch_changed,
                                 .sock_state_cb_data = r};
  if (!r)
    return NULL;
  r->engine = engine;
  r->watcher = watcher;
  r->address = *address;
  if (ares_init_options(&r->channel, &options, ARES_OPT_SOCK_STATE_CB) !=
      ARES_SUCCESS) {
    free(r);
    return NULL;
  }
  const struct ares_addrinfo_hints hints = {.ai_family = AF_UNSPEC,
                                            .ai_socktype = SOCK_STREAM};
  ares_getaddrinfo(r->channel, address->host, NULL, &hints, resolve_answered,
                   r);
  return r;
}

static void process(struct resolve *r) {
  ares_socket_t fds[ARES_GETSOCK_MAXNUM];
  /* One bit for each socket to read from, and above those one for each to write
   * to. */
  uint32_t ready = (uint32_t)ares_getsock(r->channel, fds, ARES_GETSOCK_MAXNUM);
  ares_process_fd(r->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
  for (int i = 0; i < ARES_GETSOCK_MAXNUM && !r->done; i++) {
    bool reads = ready >> i & 1, writes = ready >> (i + 16) & 1;
    if (reads || writes)
      ares_process_fd(r->channel, reads ? fds[i] : ARES_SOCKET_BAD,
                      writes ? fds[i] : ARES_SOCKET_BAD);
  }
}

static int nobody(const struct resolve *r, char reason[ADDRESS_REASON]) {
  bool unknown = r->status == ARES_SUCCESS || r->status == ARES_ENOTFOUND ||
                 r->status == ARES_ENODATA || r->status == ARES_EBADNAME;
  if (unknown)
    snprintf(reason, ADDRESS_REASON, "no host is known by the name \"%s\"",
             r->address.host);
  else
    snprintf(reason, ADDRESS_REASON,
             "the name \"%s\" could not be looked up: %s", r->address.host,
             ares_strerror(r->status));
  if (r->status == ARES_ENOMEM)
    return PERIGEE_NO_MEMORY;
  return r->status == ARES_ETIMEOUT ? PERIGEE_TIMEOUT : PERIGEE_NOT_FOUND;
}

int resolve_step(struct resolve *r, struct addresses *found,
                 char reason[ADDRESS_REASON]) {
  if (!r->done)
    process(r);
  if (!r->done)
    return 0;
  *found = r->found;
  return r->found.count > 0 ? 1 : nobody(r, reason);
}

/* Returns the nanoseconds after which the next step is due at the latest. */
static int64_t resolve_due(const struct resolve *r) {
  struct timeval most = {1, 0}, room;
  const struct timeval *due = ares_timeout(r->channel, &most, &room);
  return (int64_t)due->tv_sec * 1000000000 + (int64_t)due->tv_usec * 1000;
}

void resolve_end(struct resolve *r) {
  r->done = true;
  ares_destroy(r->channel);
  free(r);
}

/* ---- Dialing ------------------------------------------------------------- */

static const int64_t PATIENCE = 1000000000, PAUSE = 1000000; /* ns */

struct dial {
  struct timer timer; /* of the address that is tried, the look-up, the pause */
  struct perigee_session *session;
  struct address address;
  struct resolve *resolve; /* NULL: no look-up is in progress */
  struct addresses to;
  uint32_t next;
  int error;  /* of the address that was tried last */
  bool pause; /* dialing begins after a pause */
};

void dial_end(struct perigee_session *s) {
  if (!s->dial)
    return;
  if (s->dial->resolve)
    resolve_end(s->dial->resolve);
  timers_remove(&s->engine->timers, &s->dial->timer);
  free(s->dial);
  s->dial = NULL;
}

struct dial *dial_new(const struct address *address) {
  struct dial *d = calloc(1, sizeof *d);
  if (d)
    d->address = *address;
  return d;
}

/* ---- Unix sockets -------------------------------------------------------- */

static void dial_nobody_there(struct perigee_session *s, int error) {
  char reason[ADDRESS_TEXT + 80];
  bool denied = error == EACCES || error == EPERM;
  bool nobody = error == ENOENT || error == ENOTDIR || error == ECONNREFUSED;
  snprintf(reason, sizeof reason, "%s %s: %s",
           nobody   ? "nobody listens at"
           : denied ? "this process may not use"
                    : "cannot connect to",
           s->target.address, system_text(error));
  s->up->fail(s,
              nobody   ? PERIGEE_NOT_FOUND
              : denied ? PERIGEE_DENIED
                       : system_status(error),
              reason);
}

static void dial_unix(struct perigee_session *s) {
  const struct address *to = &s->dial->address;
  int status = connect(s->socket.fd, &to->at.any, to->length);
  if (status != 0 &&
      errno == EAGAIN) /* its backlog is full: tried again at the next poll */
    return;
  operation_unqueue(s->operations.connect);
  dial_end(s);
  if (status == 0 && watch_add(s->engine, s->socket.fd, &s->socket.watcher,
                               EPOLLIN | EPOLLRDHUP) == 0)
    s->engine->wireup->begin(s);
  else
    dial_nobody_there(s, errno);
}

/* ---- TCP ----------------------------------------------------------------- */

static void dial_tick(struct timer *timer);

static void dial_arm(struct perigee_session *s, int64_t after) {
  struct dial *d = s->dial;
  d->session = s;
  d->timer.expired = dial_tick;
  timers_remove(&s->engine->timers, &d->timer);
  timers_add(&s->engine->timers, &d->timer, engine_clock(s->engine) + after);
}

static void dial_close_socket(struct perigee_session *s) {
  timers_remove(&s->engine->timers, &s->dial->timer);
  if (s->socket.fd >= 0)
    watch_close(s->engine, s->socket.fd);
  s->socket.fd = -1;
}

/* None of the addresses could be reached. */
static void dial_unreachable(struct perigee_session *s) {
  char reason[ADDRESS_TEXT + 120];
  int error = s->dial->error;
  if (error == ECONNREFUSED) {
    dial_nobody_there(s, error);
    return;
  }
  bool silent = error == ETIMEDOUT, scarce = system_scarce(error);
  snprintf(reason, sizeof reason, "%s cannot be reached: %s%s",
           s->target.address, silent ? "nothing came back" : system_text(error),
           silent ? " (is the host up, and does a firewall let this port pass?)"
                  : "");
  s->up->fail(s,
              silent   ? PERIGEE_TIMEOUT
              : scarce ? PERIGEE_NO_MEMORY
                       : PERIGEE_NOT_FOUND,
              reason);
}

/* The kernel may give a port of this host at which nobody listens to our own
 * end of the connection, which is then connected to itself. */
static bool dial_met_itself(int fd) {
  union socket_address own = {0}, peer = {0};
  socklen_t a = sizeof own, b = sizeof peer;
  return getsockname(fd, &own.any, &a) == 0 &&
         getpeername(fd, &peer.any, &b) == 0 && a == b &&
         memcmp(&own, &peer, a) == 0;
}

static void dial_connected(struct perigee_session *s) {
  address_text(&s->dial->to.at[s->dial->next - 1], s->peer.address);
  dial_end(s);
  socket_no_delay(s->socket.fd);
  watch_change(s->engine, s->socket.fd, &s->socket.watcher,
               EPOLLIN | EPOLLRDHUP);
  s->engine->wireup->begin(s);
}

/* Returns 0 if the connection is in progress, or an errno. */
static int dial_try(struct perigee_session *s, const union socket_address *to) {
  s->socket.fd = socket_new(to->any.sa_family);
  if (s->socket.fd < 0)
    return errno;
  if (connect(s->socket.fd, &to->any, address_length(to)) != 0 &&
      errno != EINPROGRESS)
    return errno;
  bool watched =
      watch_add(s->engine, s->socket.fd, &s->socket.watcher, EPOLLOUT) == 0;
  return watched ? 0 : errno;
}

static void dial_try_next(struct perigee_session *s) {
  struct dial *d = s->dial;
  while (d->next < d->to.count) {
    dial_close_socket(s);
    int error = dial_try(s, &d->to.at[d->next++]);
    if (error == 0) {
      if (d->next < d->to.count)
        dial_arm(s, PATIENCE);
      return;
    }
    d->error = error;
  }
  dial_unreachable(s);
}

static void dial_look_up(struct perigee_session *s) {
  char reason[ADDRESS_REASON];
  struct dial *d = s->dial;
  int status = resolve_step(d->resolve, &d->to, reason);
  if (status == 0) {
    dial_arm(s, resolve_due(d->resolve));
    return;
  }
  resolve_end(d->resolve);
  d->resolve = NULL;
  if (status < 0)
    s->up->fail(s, status, reason);
  else
    dial_try_next(s);
}

/* Checks the socket again, as the event may be of one that was closed since. */
void dial_ready(struct perigee_session *s) {
  struct pollfd now = {.fd = s->socket.fd, .events = POLLOUT};
  if (!s->dial || s->dial->resolve || s->socket.fd < 0 || poll(&now, 1, 0) != 1)
    return;
  s->engine->progress++;
  socklen_t length = sizeof s->dial->error;
  getsockopt(s->socket.fd, SOL_SOCKET, SO_ERROR, &s->dial->error, &length);
  if (s->dial->error == 0 && dial_met_itself(s->socket.fd))
    s->dial->error = ECONNREFUSED;
  if (s->dial->error == 0)
    dial_connected(s);
  else
    dial_try_next(s);
}

void dial_resolved(struct watcher *watcher, uint32_t events) {
  struct perigee_session *s =
      CONTAINER(watcher, struct perigee_session, target.on_lookup);
  (void)events;
  if (!s->dial || !s->dial->resolve)
    return;
  s->engine->progress++;
  dial_look_up(s);
}

static void dial_anew(struct perigee_session *s) {
  struct address to = s->dial->address;
  dial_end(s);
  dial_to(s, &to);
}

/* Looks at the socket first: if this side was stopped for a while, the answer
 * may have come in time. */
static void dial_timed_out(struct perigee_session *s) {
  s->dial->error = ETIMEDOUT;
  uint32_t tried = s->dial->next;
  dial_ready(s);
  if (s->dial && s->dial->next == tried)
    dial_try_next(s);
}

static void dial_tick(struct timer *timer) {
  const struct dial *d = CONTAINER(timer, struct dial, timer);
  if (d->resolve)
    dial_look_up(d->session);
  else if (d->pause)
    dial_anew(d->session);
  else
    dial_timed_out(d->session);
}

static int dial_tcp(struct perigee_session *s) {
  struct dial *d = s->dial;
  if (d->address.length > 0) {
    d->to.at[0] = d->address.at;
    d->to.count = 1;
    dial_try_next(s);
    return PERIGEE_OK;
  }
  d->resolve = resolve_begin(s->engine, &d->address, &s->target.on_lookup);
  if (!d->resolve)
    return PERIGEE_NO_MEMORY;
  dial_look_up(s);
  return PERIGEE_OK;
}

/* ---- Dialing ------------------------------------------------------------- */

static int dial_begin(struct perigee_session *s,
                      const struct address *address) {
  s->dial = dial_new(address);
  if (!s->dial)
    return fail(s->engine, PERIGEE_NO_MEMORY, "no memory to dial with");
  s->tcp = address->tcp;
  if (s->tcp)
    return dial_tcp(s);
  s->socket.fd = socket_new(AF_UNIX);
  if (s->socket.fd < 0)
    return fail(s->engine, system_status(errno), "no socket: %s",
                system_text(errno));
  operation_move(s->operations.connect);
  dial_unix(s);
  return PERIGEE_OK;
}

void dial_to(struct perigee_session *s, const struct address *address) {
  int status = dial_begin(s, address);
  if (status < 0)
    s->up->fail(s, status, fail_detail(s->engine));
}

/* Each pause may be twice as long as the one before, up to 80 PAUSEs. Its
 * length is random, so that dialers do not come back all at once. */
void dial_later(struct perigee_session *s, struct dial *d) {
  s->dial = d;
  d->pause = true;
  int64_t pause = (int64_t)(1 + engine_random(s->engine) % 4) * PAUSE;
  dial_arm(s, pause << s->target.tries);
  s->target.tries += s->target.tries < 4;
}

void dial_again(struct perigee_session *s) {
  s->engine->poll_soon |= SOON_LOOK;
  if (s->dial)
    dial_unix(s);
}
