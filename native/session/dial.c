/* SPDX-License-Identifier: Apache-2.0
 *
 * dial.c - from an address to a connected socket. A Unix socket connects at
 * once or not at all. Over TCP the name is resolved first, then its addresses
 * are tried in turn; while there is another one, each gets at most PATIENCE.
 * Until the handshake begins the session is in state "none", and its timer
 * belongs to this file.
 *
 * The timeout, or a cancel, of the connect operation ends everything, and at
 * once: not only when its event is given, as a session that dialed on until
 * then would take the operation out of the queue of events.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/system.h"
#include "core/fabrics.h"
#include "core/lock.h"
#include "net/address.h"
#include "operation/operations.h"
#include "resolve.h"
#include "sessions.h"

static const int64_t PATIENCE = 1000000000, PAUSE = 1000000; /* ns */

struct dial {
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
  free(s->dial);
  s->dial = NULL;
}

/* ---- Unix sockets ------------------------------------------------------- */

static void nobody_there(struct perigee_session *s, int error) {
  char reason[ADDRESS_TEXT + 80];
  bool nobody = error == ENOENT || error == ECONNREFUSED;
  snprintf(reason, sizeof reason, "nobody listens at %s: %s", s->target.address,
           system_text(error));
  session_end(s, nobody ? PERIGEE_NOT_FOUND : system_status(error), reason);
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
    nobody_there(s, errno);
}

static void again(struct operation *op) {
  op->engine->copying = true; /* polls again soon, as no event will come */
  if (op->session->dial)
    dial_unix(op->session);
}

/* The session does not dial on, or open, while the event waits. */
static void stop(struct operation *op, int status) {
  struct perigee_session *s = op->session;
  bool waited = s->operations.connect == op;
  s->operations.connect = NULL;
  operation_finish(op, status);
  if (waited)
    session_end(s, PERIGEE_CLOSED, "nobody waits for it any more");
}

/* Frees a session that failed to connect: the program never got it. */
static void given(struct operation *op) {
  struct perigee_session *failed = op->status < 0 ? op->session : NULL;
  operation_given(op);
  if (failed)
    perigee_session_free(failed);
}

const struct operation_class connect_class = {.name = "connect",
                                              .kind = OP_CONNECT,
                                              .event = PERIGEE_EVENT_CONNECTED,
                                              .step = again,
                                              .late = operation_late,
                                              .stop = stop,
                                              .given = given};

/* ---- TCP ---------------------------------------------------------------- */

static void in_time(struct perigee_session *s, int64_t after) {
  timers_remove(&s->engine->timers, &s->timer);
  timers_add(&s->engine->timers, &s->timer, engine_clock(s->engine) + after);
}

static void drop_socket(struct perigee_session *s) {
  timers_remove(&s->engine->timers, &s->timer);
  if (s->socket.fd >= 0)
    watch_close(s->engine, s->socket.fd);
  s->socket.fd = -1;
}

/* None of the addresses could be reached. */
static void unreachable(struct perigee_session *s) {
  char reason[ADDRESS_TEXT + 120];
  int error = s->dial->error;
  if (error == ECONNREFUSED) {
    nobody_there(s, error);
    return;
  }
  bool silent = error == ETIMEDOUT, scarce = system_scarce(error);
  snprintf(reason, sizeof reason, "%s cannot be reached: %s%s",
           s->target.address, silent ? "nothing came back" : system_text(error),
           silent ? " (is the host up, and does a firewall let this port pass?)"
                  : "");
  session_end(s,
              silent   ? PERIGEE_TIMEOUT
              : scarce ? PERIGEE_NO_MEMORY
                       : PERIGEE_NOT_FOUND,
              reason);
}

/* If nobody listens at a port of this host, the kernel may give that port to
 * our own end of the connection, which is then connected to itself. */
static bool met_itself(int fd) {
  union socket_address own = {0}, peer = {0};
  socklen_t a = sizeof own, b = sizeof peer;
  return getsockname(fd, &own.any, &a) == 0 &&
         getpeername(fd, &peer.any, &b) == 0 && a == b &&
         memcmp(&own, &peer, a) == 0;
}

static void connected(struct perigee_session *s) {
  timers_remove(&s->engine->timers, &s->timer);
  address_text(&s->dial->to.at[s->dial->next - 1], s->peer.address);
  dial_end(s);
  socket_no_delay(s->socket.fd);
  watch_change(s->engine, s->socket.fd, &s->socket.watcher,
               EPOLLIN | EPOLLRDHUP);
  s->engine->wireup->begin(s);
}

/* Returns 0 if the connection is in progress, or an errno. */
static int try_one(struct perigee_session *s, const union socket_address *to) {
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

static void try_next(struct perigee_session *s) {
  struct dial *d = s->dial;
  while (d->next < d->to.count) {
    drop_socket(s);
    int error = try_one(s, &d->to.at[d->next++]);
    if (error == 0) {
      if (d->next < d->to.count)
        in_time(s, PATIENCE);
      return;
    }
    d->error = error;
  }
  unreachable(s);
}

static void look_up(struct perigee_session *s) {
  char reason[ADDRESS_REASON];
  struct dial *d = s->dial;
  int status = resolve_step(d->resolve, &d->to, reason);
  if (status == 0) {
    in_time(s, resolve_due(d->resolve));
    return;
  }
  resolve_end(d->resolve);
  d->resolve = NULL;
  if (status < 0)
    session_end(s, status, reason);
  else
    try_next(s);
}

/* Checks the socket again, as the event may be of one that was closed since. */
void dial_ready(struct perigee_session *s) {
  struct pollfd now = {.fd = s->socket.fd, .events = POLLOUT};
  if (!s->dial || s->dial->resolve || s->socket.fd < 0 || poll(&now, 1, 0) != 1)
    return;
  s->engine->progress++;
  socklen_t length = sizeof s->dial->error;
  getsockopt(s->socket.fd, SOL_SOCKET, SO_ERROR, &s->dial->error, &length);
  if (s->dial->error == 0 && met_itself(s->socket.fd))
    s->dial->error = ECONNREFUSED;
  if (s->dial->error == 0)
    connected(s);
  else
    try_next(s);
}

void dial_resolved(struct watcher *watcher, uint32_t events) {
  struct perigee_session *s =
      CONTAINER(watcher, struct perigee_session, target.on_lookup);
  (void)events;
  if (!s->dial || !s->dial->resolve)
    return;
  s->engine->progress++;
  look_up(s);
}

static void begin_anew(struct perigee_session *s) {
  struct address to = s->dial->address;
  dial_end(s);
  dial_to(s, &to);
}

/* Looks at the socket first: if this side was stopped for a while, the answer
 * may have come in time. */
void dial_tick(struct perigee_session *s) {
  if (!s->dial)
    return;
  if (s->dial->resolve) {
    look_up(s);
    return;
  }
  if (s->dial->pause) {
    begin_anew(s);
    return;
  }
  s->dial->error = ETIMEDOUT;
  uint32_t tried = s->dial->next;
  dial_ready(s);
  if (s->dial && s->dial->next == tried)
    try_next(s);
}

static int dial_tcp(struct perigee_session *s) {
  struct dial *d = s->dial;
  if (d->address.length > 0) {
    d->to.at[0] = d->address.at;
    d->to.count = 1;
    try_next(s);
    return PERIGEE_OK;
  }
  d->resolve = resolve_begin(s->engine, &d->address, &s->target.on_lookup);
  if (!d->resolve)
    return PERIGEE_NO_MEMORY;
  look_up(s);
  return PERIGEE_OK;
}

/* ---- Dialing ------------------------------------------------------------ */

/* Refuses a transport that this side does not have, before dialing. */
static int check_transport(struct perigee_engine *engine, const char *name) {
  char reason[REASON];
  struct fabric *fabric;
  const struct perigee_transport *t = transport_named(engine, name);
  if (!t)
    return transport_unknown(engine, name);
  int status = fabric_of(engine, t, &fabric, reason);
  return status < 0 ? fail(engine, status, "%s", reason) : PERIGEE_OK;
}

static int read_address(struct perigee_engine *engine, const char *text,
                        struct address *address) {
  char reason[ADDRESS_REASON];
  int status = address_parse(text, address, reason);
  if (status < 0)
    return fail(engine, status, "%s", reason);
  if (address->tcp && address->port == 0)
    return fail(engine, PERIGEE_INVALID,
                "\"%.200s\": port 0 is for listeners, which tell by their "
                "address which one they got",
                text);
  return PERIGEE_OK;
}

static int begin(struct perigee_session *s, const struct address *address) {
  s->dial = calloc(1, sizeof *s->dial);
  if (!s->dial)
    return fail(s->engine, PERIGEE_NO_MEMORY, "no memory to dial with");
  s->dial->address = *address;
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
  int status = begin(s, address);
  if (status < 0)
    session_end(s, status, fail_detail(s->engine));
}

/* Each pause may be twice as long as the one before, up to 80 PAUSEs. Its
 * length is random, so that dialers do not come back all at once. */
bool dial_again(struct perigee_session *s) {
  struct address to;
  char reason[ADDRESS_REASON];
  if (!s->operations.connect || session_moved(s) ||
      address_parse(s->target.address, &to, reason) != PERIGEE_OK)
    return false;
  struct dial *d = calloc(1, sizeof *d);
  if (!d)
    return false;
  session_back(s);
  s->dial = d;
  *d = (struct dial){.address = to, .pause = true};
  int64_t pause = (int64_t)(1 + engine_random(s->engine) % 4) * PAUSE;
  in_time(s, pause << s->target.tries);
  s->target.tries += s->target.tries < 4;
  return true;
}

int perigee_go_by(struct perigee_engine *engine, const char *name) {
  ENTER(engine);
  if (name && strlen(name) > PERIGEE_NAME_MAX)
    return fail(engine, PERIGEE_INVALID, "a name has %d bytes at most",
                PERIGEE_NAME_MAX);
  memset(engine->name, 0, sizeof engine->name);
  snprintf(engine->name, sizeof engine->name, "%s", name ? name : "");
  return PERIGEE_OK;
}

int perigee_connect(struct perigee_engine *engine, const char *text,
                    const char *transport, int64_t timeout) {
  return perigee_connect_to(engine, text, NULL, transport, timeout);
}

int perigee_connect_to(struct perigee_engine *engine, const char *text,
                       const char *expected, const char *transport,
                       int64_t timeout) {
  ENTER(engine);
  struct address address;
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  if (!text)
    return fail_missing(engine, "address to dial");
  int status = read_address(engine, text, &address);
  bool any = !transport || strcmp(transport, "auto") == 0;
  if (status == PERIGEE_OK && !any)
    status = check_transport(engine, transport);
  if (status == PERIGEE_OK && expected && strlen(expected) > PERIGEE_NAME_MAX)
    status = fail(engine, PERIGEE_INVALID, "a name has %d bytes at most",
                  PERIGEE_NAME_MAX);
  if (status < 0)
    return status;
  struct perigee_session *s = session_new(engine, -1);
  if (!s)
    return PERIGEE_NO_MEMORY;
  s->dialed = true;
  snprintf(s->target.name, sizeof s->target.name, "%s",
           expected ? expected : "");
  snprintf(s->target.address, sizeof s->target.address, "%s", text);
  snprintf(s->target.transport, sizeof s->target.transport, "%s",
           any ? "" : transport);
  s->operations.connect = operation_take(s, &connect_class);
  if (!s->operations.connect) {
    perigee_session_free(s);
    return PERIGEE_NO_MEMORY;
  }
  int index = s->operations.connect->index;
  operation_start(s->operations.connect, timeout);
  dial_to(s, &address); /* the connect operation's event tells the result */
  return index;
}
