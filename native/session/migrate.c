/* SPDX-License-Identifier: Apache-2.0
 *
 * migrate.c - names, tickets, and moves between sockets. migrate.h tells which
 * sessions move, and why.
 *
 *   state   event   becomes
 *   none    agree   agreed    the TERMS of both sides allow a move; the
 *                             listening side decides
 *   none    enter   moved     listening side: the peer's HELLO showed a ticket
 *   agreed  stay    none      the listening side has no ticket to give and says
 *                             OFFER; the dialer hears that, or dials anew
 *   agreed  send    sent_on   the listening side has said MOVE; the session
 *                             waits for the BYE
 *   agreed  follow  moved     the dialer has heard MOVE and dials the new place
 *   moved   return  returned  the dialer cannot open it there: it dials the
 *                             first address again, and says by TERMS_STAYS
 *                             that it will not move
 *
 * Only a session that has moved has a ticket.
 */
#include "migrate.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/accounts.h"
#include "host/adopted.h"
#include "unauth.h"

/* WAITING: how many connections may wait, and how many are accepted in one go
 * before other descriptors have their turn. */
enum { TICKETS = 64, NAME_TEXT = 48, WAITING = 64 };

struct ticket {
  uint64_t id;        /* 0: the entry is free */
  uint64_t holder[2]; /* the peer that has the ticket (shares.h) */
  uint32_t session;   /* the session that moves by it */
  int64_t due;
  bool tcp;       /* for loopback; otherwise for the Unix socket */
  int pid, pidfd; /* of the peer */
  char address[ADDRESS_TEXT];
};

struct migration {
  struct watcher watcher; /* of fd */
  uint8_t name[HELLO_LOCAL];
  int fd; /* the socket with the name; -1: it could not be made */
  struct perigee_listener *local, *loopback;
  uint8_t *key; /* tickets' keys are derived from it; in the vault */
  bool keyed;   /* the key has been made */
  struct ticket tickets[TICKETS];
};

enum migration_event { AGREE, STAY, SEND, FOLLOW, ENTERED, RETURN };

const struct machine migration_machine = {
    .name = "migration",
    .taken = MACHINE_STEPS,
    .states = {"none", "agreed", "sent_on", "moved", "returned"},
    .events = {"agree", "stay", "send", "follow", "enter", "return"},
    .next = {
        [MIGRATION_NONE] =
            {[AGREE] = TO(MIGRATION_AGREED), [ENTERED] = TO(MIGRATION_MOVED)},
        [MIGRATION_AGREED] = {[STAY] = TO(MIGRATION_NONE),
                              [SEND] = TO(MIGRATION_SENT_ON),
                              [FOLLOW] = TO(MIGRATION_MOVED)},
        [MIGRATION_MOVED] = {[RETURN] = TO(MIGRATION_RETURNED)},
    }};

static void step(struct perigee_session *s, enum migration_event event) {
  machine_step(&migration_machine, &s->migration.state, event);
}

/* ---- Names -------------------------------------------------------------- */

static void name_text(const uint8_t name[HELLO_LOCAL], char text[NAME_TEXT]) {
  int n = snprintf(text, NAME_TEXT, "@perigee-");
  for (int i = 0; i < HELLO_LOCAL; i++)
    n += snprintf(text + n, NAME_TEXT - (size_t)n, "%02x", name[i]);
}

static socklen_t name_address(const uint8_t name[HELLO_LOCAL],
                              struct sockaddr_un *un) {
  char text[NAME_TEXT];
  name_text(name, text);
  *un = (struct sockaddr_un){.sun_family = AF_UNIX};
  memcpy(un->sun_path + 1, text + 1, strlen(text + 1));
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(text));
}

/* Address of the socket that only shows that the engine is on this host.
 * Sessions that move dial the name itself. */
static socklen_t door_address(const uint8_t name[HELLO_LOCAL],
                              struct sockaddr_un *un) {
  socklen_t length = name_address(name, un);
  *((char *)un + length) = '?';
  return length + 1;
}

static void ticket_clear(struct ticket *t) {
  if (t->id && t->pidfd >= 0)
    close(t->pidfd);
  *t = (struct ticket){.id = 0};
}

/* Frees a ticket and ends the session that was sent away with it: so there are
 * never more such sessions than tickets. */
static void ticket_drop(struct perigee_engine *engine, struct ticket *t) {
  struct perigee_session *s = t->id ? session_by_id(engine, t->session) : NULL;
  ticket_clear(t);
  if (s && s->migration.state == MIGRATION_SENT_ON &&
      s->state == PERIGEE_SESSION_HELLO)
    session_end(s, PERIGEE_CLOSED, "it was sent on");
}

/* Closes the connections at once: a peer that could connect has seen that the
 * engine is here. */
static void accept_ready(struct watcher *watcher, uint32_t events) {
  const struct migration *n = CONTAINER(watcher, struct migration, watcher);
  int fd;
  (void)events;
  for (int i = 0; i < WAITING; i++)
    if ((fd = accept(n->fd, NULL, NULL)) >= 0) {
      adopted_drain(fd);
      close(fd);
    } else {
      return;
    }
}

static struct migration *migration_of(struct perigee_engine *engine) {
  const struct perigee_options *o = &engine->options;
  struct migration *n = engine->migration;
  struct sockaddr_un un;
  if (n || !(n = calloc(1, sizeof *n)))
    return n;
  engine->migration = n;
  n->watcher.ready = accept_ready;
  n->fd = -1;
  n->key = vault_take(&engine->vault, SECRET_KEY);
  n->keyed = n->key && o->random(o->context, n->key, SECRET_KEY) == 0;
  if (o->random(o->context, n->name, sizeof n->name) != 0)
    return n;
  socklen_t length = door_address(n->name, &un);
  n->fd = socket_new(AF_UNIX);
  if (n->fd >= 0 && (bind(n->fd, (struct sockaddr *)&un, length) != 0 ||
                     listen(n->fd, WAITING) != 0 ||
                     watch_add(engine, n->fd, &n->watcher, EPOLLIN) != 0)) {
    close(n->fd);
    n->fd = -1;
  }
  return n;
}

void migrate_close(struct perigee_engine *engine) {
  struct migration *n = engine->migration;
  engine->migration = NULL;
  for (int i = 0; n && i < TICKETS; i++)
    ticket_clear(&n->tickets[i]);
  if (n && n->fd >= 0)
    watch_close(engine, n->fd);
  if (n)
    vault_give(&engine->vault, n->key, SECRET_KEY);
  free(n);
}

/* Returns whether this side can connect to the peer's name. Our own name, told
 * by a peer, proves nothing. A socket whose backlog is full counts as
 * reached. */
static bool reached(struct perigee_session *s,
                    const uint8_t name[HELLO_LOCAL]) {
  static const uint8_t none[HELLO_LOCAL];
  struct migration *n = migration_of(s->engine);
  struct sockaddr_un un;
  if (!n || memcmp(name, none, HELLO_LOCAL) == 0 ||
      memcmp(name, n->name, HELLO_LOCAL) == 0)
    return false;
  socklen_t length = door_address(name, &un);
  int fd = socket_new(AF_UNIX);
  bool met = fd >= 0 && connect(fd, (struct sockaddr *)&un, length) == 0;
  bool there = met || (fd >= 0 && errno == EAGAIN);
  if (met)
    peer_named(s, fd);
  if (fd >= 0)
    close(fd);
  return there;
}

/* ---- Tickets ------------------------------------------------------------ */

static struct ticket *ticket_find(struct perigee_engine *engine, uint64_t id,
                                  bool tcp) {
  struct migration *n = engine->migration;
  int64_t now = engine_clock(engine);
  for (int i = 0; n && id != 0 && i < TICKETS; i++) {
    struct ticket *t = &n->tickets[i];
    if (t->id == id && t->tcp == tcp)
      return now < t->due ? t : NULL;
  }
  return NULL;
}

static bool same_holder(const struct ticket *a, const uint64_t holder[2]) {
  return memcmp(a->holder, holder, sizeof a->holder) == 0;
}

static int tickets_of(const struct migration *n, const uint64_t holder[2]) {
  int count = 0;
  for (int i = 0; i < TICKETS; i++)
    count += n->tickets[i].id && same_holder(&n->tickets[i], holder);
  return count;
}

/* Returns the oldest ticket of the peer that has most, if that peer has more
 * than this one; otherwise NULL. */
static struct ticket *ticket_of_most(struct migration *n,
                                     const uint64_t holder[2]) {
  int most = tickets_of(n, holder);
  struct ticket *found = NULL;
  for (struct ticket *t = n->tickets; t < n->tickets + TICKETS; t++) {
    int count = tickets_of(n, t->holder);
    if (count > most || (found && count == most && t->due < found->due)) {
      found = t;
      most = count;
    }
  }
  return found;
}

/* Returns a free entry, or that of a ticket that was not used in time. */
static struct ticket *ticket_free(struct migration *n, int64_t now) {
  for (struct ticket *t = n->tickets; t < n->tickets + TICKETS; t++)
    if (!t->id || now >= t->due)
      return t;
  return NULL;
}

/* Makes a ticket. If all entries are in use, peers get equal shares; NULL if
 * this one has its share. */
static struct ticket *ticket_new(struct perigee_session *s, bool tcp) {
  struct migration *n = s->engine->migration;
  int64_t now = engine_clock(s->engine);
  uint64_t holder[2];
  accounts_who(s, holder);
  struct ticket *t = ticket_free(n, now);
  if (!t && !(t = ticket_of_most(n, holder)))
    return NULL;
  ticket_drop(s->engine, t);
  while (t->id == 0)
    t->id = engine_random(s->engine);
  memcpy(t->holder, holder, sizeof t->holder);
  t->session = s->id;
  t->due = now + s->engine->options.hello_timeout;
  t->tcp = tcp;
  t->pid = s->process.pid;
  t->pidfd = tcp ? peer_lend(s) : -1; /* over Unix sockets the kernel tells */
  memcpy(t->address, s->target.address, sizeof t->address);
  return t;
}

/* Makes the session the one that the ticket was given for. */
static int admit(struct perigee_session *s, uint64_t id, char reason[REASON]) {
  struct ticket *t = ticket_find(s->engine, id, s->tcp);
  if (!t) {
    snprintf(reason, REASON,
             "this place is for sessions that were sent here, once and at "
             "once; dial the address where they were");
    return PERIGEE_DENIED;
  }
  step(s, ENTERED);
  s->migration.ticket = id;
  handshake_ticket(s->engine->migration->key, id, s->security.keys->ticket.key);
  s->security.keys->ticket.set = true;
  memcpy(s->target.address, t->address, sizeof s->target.address);
  if (s->tcp) {
    peer_keep(s, t->pid, t->pidfd);
    t->pidfd = -1;
  }
  ticket_drop(s->engine, t);
  return PERIGEE_OK;
}

/* ---- Handshake ----------------------------------------------------------- */

void migrate_hello(const struct perigee_session *s, struct hello *h) {
  h->ticket = s->migration.ticket;
}

/* Tells the listener which sessions belong to one agent. Each listener gets
 * another alias, so that no other peer can use it. */
static void tell_alias(struct perigee_session *s, const struct migration *n,
                       struct terms *t) {
  union socket_address at;
  socklen_t length = sizeof at;
  memset(&at, 0, sizeof at);
  _Static_assert(sizeof t->probe == HANDSHAKE_ALIAS, "it has its place");
  if (n && n->keyed && getpeername(s->socket.fd, &at.any, &length) == 0)
    handshake_alias(n->key, &at, sizeof at, (uint8_t *)t->probe);
}

void migrate_terms(struct perigee_session *s, struct terms *t) {
  t->flags |= s->migration.state == MIGRATION_RETURNED ? TERMS_STAYS : 0;
  if (!s->tcp)
    return;
  struct migration *n = migration_of(s->engine);
  if (n && n->fd >= 0)
    memcpy(t->local, n->name, sizeof t->local);
  if (s->dialed)
    tell_alias(s, n, t);
  t->user = (uint32_t)geteuid();
}

bool migrate_willing(const struct perigee_session *s) {
  return s->dialed && !session_moved(s) &&
         s->migration.state != MIGRATION_RETURNED;
}

static const char to_memory[] =
    "both sides are on one host: moved from TCP to shared memory";
static const char to_loopback[] =
    "TCP was asked for: moved from the Unix socket to TCP over loopback";

int migrate_admits(struct perigee_session *s, const struct hello *h,
                   char reason[REASON]) {
  int status = s->migration.ticketed ? admit(s, h->ticket, reason) : PERIGEE_OK;
  if (status == PERIGEE_OK && session_moved(s))
    snprintf(s->migration.why, sizeof s->migration.why, "%s",
             s->tcp ? to_loopback : to_memory);
  if (status < 0 || s->migration.ticket == h->ticket || !s->tcp)
    return status;
  snprintf(reason, REASON,
           "this is for one connection that was told of, and that was another, "
           "or it came too late");
  return PERIGEE_DENIED;
}

void migrate_met(struct perigee_session *s, const struct terms *t) {
  union socket_address at = {0};
  socklen_t length = sizeof at;
  s->peer.here = s->tcp && getpeername(s->socket.fd, &at.any, &length) == 0 &&
                 address_here(&at);
  s->peer.same_host =
      session_moved(s) || (s->peer.here && reached(s, t->local));
}

/* Returns whether the dialer prefers a transport that needs a Unix socket, and
 * that this side has, to all that both sides have over TCP. */
static bool prefers_memory(const struct perigee_session *s,
                           const struct terms *dialer) {
  for (uint32_t i = 0; i < dialer->transports; i++) {
    const char *name = dialer->transport[i];
    if (transport_needs(s->engine, name, SOCKET_UNIX))
      return true;
    if (s->transport && strcmp(name, s->transport->name) == 0)
      return false;
  }
  return false;
}

static bool may_move(const struct perigee_session *s,
                     const struct terms *dialer, const struct terms *dialed) {
  if (session_moved(s) || s->alone || (dialer->flags & TERMS_STAYS))
    return false;
  if (!s->tcp)
    return s->transport && s->transport->socket == SOCKET_TCP;
  return s->peer.same_host && dialer->user == dialed->user &&
         prefers_memory(s, dialer);
}

void migrate_agree(struct perigee_session *s, const struct terms *dialer,
                   const struct terms *dialed) {
  if (may_move(s, dialer, dialed))
    step(s, AGREE);
}

void migrate_stays(struct perigee_session *s) {
  if (s->migration.state == MIGRATION_AGREED)
    step(s, STAY);
}

/* ---- Moving ------------------------------------------------------------- */

static struct perigee_listener *local_place(struct perigee_engine *engine) {
  struct migration *n = engine->migration;
  char text[NAME_TEXT + 8] = "unix:";
  name_text(n->name, text + strlen("unix:"));
  if (!n->local)
    listener_open(engine, text, true, &n->local);
  return n->local;
}

static struct perigee_listener *loopback_place(struct perigee_engine *engine) {
  struct migration *n = migration_of(engine);
  if (n && !n->loopback)
    listener_open(engine, "tcp://127.0.0.1:0", true, &n->loopback);
  return n ? n->loopback : NULL;
}

static uint32_t port_of(const struct perigee_listener *l) {
  struct address address;
  char reason[ADDRESS_REASON];
  return address_parse(l->address, &address, reason) == PERIGEE_OK
             ? address.port
             : 0;
}

bool migrate_call(struct perigee_session *s) {
  struct frame f = {.type = FRAME_MOVE};
  struct perigee_listener *l =
      s->tcp ? local_place(s->engine) : loopback_place(s->engine);
  bool keyed = l && s->engine->migration->keyed;
  struct ticket *t = keyed ? ticket_new(s, !s->tcp) : NULL;
  if (!t)
    return false;
  f.move.ticket = t->id;
  f.move.port = s->tcp ? 0 : port_of(l);
  handshake_ticket(s->engine->migration->key, t->id, f.move.key);
  unauth_leave(s); /* from here on this connection only has to end */
  step(s, SEND);
  session_send(s, &f, NULL, 0);
  explicit_bzero(&f.move, sizeof f.move);
  return true;
}

/* The address to dial, from the peer's TERMS and MOVE. */
static void place(const struct perigee_session *s, const struct move *move,
                  struct address *to) {
  *to = (struct address){.tcp = !s->tcp};
  if (s->tcp) {
    to->length = name_address(s->peer.terms.local, &to->at.un);
    return;
  }
  to->at.in = (struct sockaddr_in){.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)move->port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  to->length = sizeof to->at.in;
}

int migrate_called(struct perigee_session *s, const struct move *move) {
  struct frame bye = {.type = FRAME_BYE};
  struct address to;
  bool waits = s->operations.connect &&
               s->operations.connect->event == PERIGEE_EVENT_NONE;
  if (!waits || move->ticket == 0 || (move->port == 0) != s->tcp)
    return PERIGEE_PROTOCOL;
  place(s, move, &to);
  session_tell(s, &bye, NULL, 0);
  step(s, FOLLOW);
  session_back(s);
  s->migration.ticket = move->ticket;
  memcpy(s->security.keys->ticket.key, move->key, sizeof move->key);
  s->security.keys->ticket.set = true;
  dial_to(s, &to);
  return PERIGEE_OK;
}

bool migrate_returns(struct perigee_session *s, int status) {
  struct address first;
  char reason[ADDRESS_REASON];
  if (!s->dialed || !session_moved(s) || s->state == PERIGEE_SESSION_OPEN ||
      status == PERIGEE_CLOSED || !s->operations.connect ||
      s->operations.connect->event != PERIGEE_EVENT_NONE)
    return false;
  if (!s->tcp && *s->target.transport) /* only shared memory was asked for */
    return false;
  session_back(s);
  secret_wipe(&s->security.keys->ticket);
  step(s, RETURN);
  s->migration.ticket = 0;
  snprintf(s->migration.why, sizeof s->migration.why,
           "both sides are on one host, but it could not move to %s",
           s->tcp ? "TCP over loopback" : "shared memory");
  address_parse(s->target.address, &first, reason);
  dial_to(s, &first);
  return true;
}
