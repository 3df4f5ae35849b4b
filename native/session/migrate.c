/* SPDX-License-Identifier: Apache-2.0
 *
 * migrate.c - finds out that a peer is on the same host, and moves sessions to
 * another socket.
 *
 * Proof. A connection from an address that leads back to this host (address.c)
 * was made by a process here, which may still be a proxy for another host. So
 * an engine that speaks TCP has a random abstract name, told in its TERMS, and
 * a socket beside it, the door: a process that can connect there shares a
 * network namespace with the engine. The name alone would prove nothing, as
 * everybody who was told knows it. The kernel tells the process that owns the
 * door, which is then watched (peer.c). From then on the end of that process
 * tells of the peer's death, and silence means nothing.
 *
 * Moving. A session dialed at one address may be better off at another:
 *
 *   dialed over TCP, for any transport or for shared memory, by a peer of the
 *   same user and host: to a Unix socket, and so to shared memory; after the
 *   proofs of the secret
 *   dialed at a Unix socket, for "tcp": to TCP over loopback
 *
 * The listening side makes a ticket, valid once and for hello_timeout, and says
 * MOVE in place of OFFER; the dialer waits for either if the address that it
 * dialed is this host's own. Tickets are limited; if none is free, the peer with
 * the fewest takes one from the peer with the most. The dialer closes the
 * connection, dials the new address and shows the ticket in its HELLO. The
 * listeners for that are made when first needed, accept holders of tickets only,
 * and live as long as the engine. The session keeps the address that was dialed
 * first. A session that cannot move dials that address once more, and stays there.
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
#include "net/address.h"
#include "sessions.h"

enum { NAME_TEXT = 48, TICKETS = 64 };
/* The number of connections that may wait, and of those that are accepted in
 * one go before other descriptors have their turn. */
enum { WAITING = 64 };

/* The engine's name, and the door beside it. Sessions that move dial the name
 * itself. */
struct local_name {
  struct watcher watcher; /* of fd */
  uint8_t bytes[HELLO_LOCAL];
  int fd; /* the door; -1: it could not be made */
};

/* Lets one session in at another socket, once. */
struct ticket {
  uint64_t id;        /* 0: the entry is free */
  uint64_t holder[2]; /* the peer that has the ticket (shares.h) */
  uint32_t session;   /* the session that moves by it */
  int64_t due;
  bool tcp;       /* for loopback; otherwise for the Unix socket */
  int pid, pidfd; /* of the peer */
  char address[ADDRESS_TEXT];
};

struct tickets {
  struct ticket list[TICKETS];
};

struct migration {
  struct local_name name;
  struct perigee_listener *local, *loopback;
  uint8_t *key; /* tickets' keys are derived from it; in the vault */
  bool keyed;   /* the key has been made */
  struct tickets tickets;
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

static void migrate_step(struct perigee_session *s,
                         enum migration_event event) {
  machine_step(&migration_machine, &s->migration.state, event);
}

/* ---- The name and its door ----------------------------------------------- */

/* The name's address as a text, from "@" on, and as the system takes it. */
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

static socklen_t door_address(const uint8_t name[HELLO_LOCAL],
                              struct sockaddr_un *un) {
  socklen_t length = name_address(name, un);
  *((char *)un + length) = '?';
  return length + 1;
}

/* Closes the connections at once: a peer that could connect has seen that the
 * engine is here. */
static void door_ready(struct watcher *watcher, uint32_t events) {
  const struct local_name *n = CONTAINER(watcher, struct local_name, watcher);
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

/* Makes a name and opens its door, if that is possible. */
static void name_open(struct perigee_engine *engine, struct local_name *n) {
  const struct perigee_options *o = &engine->options;
  struct sockaddr_un un;
  n->watcher.ready = door_ready;
  n->fd = -1;
  if (o->random(o->context, n->bytes, sizeof n->bytes) != 0)
    return;
  socklen_t length = door_address(n->bytes, &un);
  n->fd = socket_new(AF_UNIX);
  if (n->fd >= 0 && (bind(n->fd, (struct sockaddr *)&un, length) != 0 ||
                     listen(n->fd, WAITING) != 0 ||
                     watch_add(engine, n->fd, &n->watcher, EPOLLIN) != 0)) {
    close(n->fd);
    n->fd = -1;
  }
}

static void name_close(struct perigee_engine *engine, struct local_name *n) {
  if (n->fd >= 0)
    watch_close(engine, n->fd);
}

/* An engine without a door tells zeros. */
static bool name_is_told(const uint8_t name[HELLO_LOCAL]) {
  static const uint8_t none[HELLO_LOCAL];
  return memcmp(name, none, HELLO_LOCAL) != 0;
}

/* Returns whether this side can connect to a peer's door. Our own name, told by
 * a peer, proves nothing. A socket whose backlog is full counts as reached. fd:
 * the connection, which the caller closes, or -1. */
static bool name_reach(const struct local_name *own,
                       const uint8_t name[HELLO_LOCAL], int *fd) {
  struct sockaddr_un un;
  *fd = -1;
  if (!name_is_told(name) || memcmp(name, own->bytes, HELLO_LOCAL) == 0)
    return false;
  socklen_t length = door_address(name, &un);
  *fd = socket_new(AF_UNIX);
  if (*fd < 0 || connect(*fd, (struct sockaddr *)&un, length) == 0)
    return *fd >= 0;
  bool full = errno == EAGAIN;
  close(*fd);
  *fd = -1;
  return full;
}

/* ---- Tickets ------------------------------------------------------------- */

/* Frees an entry, and closes its pidfd. */
static void ticket_clear(struct ticket *t) {
  if (t->id && t->pidfd >= 0)
    close(t->pidfd);
  *t = (struct ticket){.id = 0};
}

static void tickets_close(struct tickets *tickets) {
  for (int i = 0; i < TICKETS; i++)
    ticket_clear(&tickets->list[i]);
}

/* Returns a ticket that can be used, or NULL. */
static struct ticket *tickets_find(struct tickets *tickets, uint64_t id,
                                   bool tcp, int64_t now) {
  for (int i = 0; id != 0 && i < TICKETS; i++) {
    struct ticket *t = &tickets->list[i];
    if (t->id == id && t->tcp == tcp)
      return now < t->due ? t : NULL;
  }
  return NULL;
}

static int tickets_count(const struct tickets *tickets,
                         const uint64_t holder[2]) {
  int count = 0;
  for (const struct ticket *t = tickets->list; t < tickets->list + TICKETS; t++)
    count += t->id && memcmp(t->holder, holder, sizeof t->holder) == 0;
  return count;
}

/* Returns the oldest ticket of the peer that has most, if that peer has more
 * than this one; otherwise NULL. */
static struct ticket *ticket_of_most(struct tickets *tickets,
                                     const uint64_t holder[2]) {
  int most = tickets_count(tickets, holder);
  struct ticket *found = NULL;
  for (struct ticket *t = tickets->list; t < tickets->list + TICKETS; t++) {
    int count = tickets_count(tickets, t->holder);
    if (count > most || (found && count == most && t->due < found->due)) {
      found = t;
      most = count;
    }
  }
  return found;
}

/* Returns the entry for a further ticket of that peer: a free one, that of a
 * ticket that was not used in time, or one of the peer that has most. The
 * session that it was given for is to be dropped first. NULL if this peer has
 * its share. */
static struct ticket *tickets_place(struct tickets *tickets,
                                    const uint64_t holder[2], int64_t now) {
  for (struct ticket *t = tickets->list; t < tickets->list + TICKETS; t++)
    if (!t->id || now >= t->due)
      return t;
  return ticket_of_most(tickets, holder);
}

/* ---- The peer's host ----------------------------------------------------- */

static struct migration *migration_of(struct perigee_engine *engine) {
  const struct perigee_options *o = &engine->options;
  struct migration *n = engine->migration;
  if (n || !(n = calloc(1, sizeof *n)))
    return n;
  engine->migration = n;
  n->key = vault_take(&engine->vault, SECRET_KEY);
  n->keyed = n->key && o->random(o->context, n->key, SECRET_KEY) == 0;
  name_open(engine, &n->name);
  return n;
}

void migrate_close(struct perigee_engine *engine) {
  struct migration *n = engine->migration;
  engine->migration = NULL;
  if (!n)
    return;
  tickets_close(&n->tickets);
  name_close(engine, &n->name);
  vault_give(&engine->vault, n->key, SECRET_KEY);
  free(n);
}

/* Returns whether the peer is on this host; its process is known
 * then, unless its door's backlog is full. */
static bool migrate_reaches(struct perigee_session *s,
                            const uint8_t name[HELLO_LOCAL]) {
  struct migration *n = migration_of(s->engine);
  int fd;
  if (!n || !name_reach(&n->name, name, &fd))
    return false;
  if (fd >= 0) {
    peer_named(s, fd);
    close(fd);
  }
  return true;
}

/* ---- Tickets of sessions ------------------------------------------------- */

/* Frees a ticket and ends the session that was sent away with it: so there are
 * never more such sessions than tickets. */
static void ticket_drop(struct perigee_engine *engine, struct ticket *t) {
  struct perigee_session *s = t->id ? session_by_id(engine, t->session) : NULL;
  ticket_clear(t);
  if (s && s->migration.state == MIGRATION_SENT_ON &&
      s->state == PERIGEE_SESSION_HELLO)
    session_end(s, PERIGEE_CLOSED, "it was sent on");
}

void migrate_forget(struct perigee_engine *engine, const char *address) {
  struct migration *n = engine->migration;
  for (int i = 0; n && i < TICKETS; i++)
    if (strcmp(n->tickets.list[i].address, address) == 0)
      ticket_drop(engine, &n->tickets.list[i]);
}

/* Makes a ticket; NULL if the peer has its share of them. */
static struct ticket *ticket_new(struct perigee_session *s, bool tcp) {
  struct migration *n = s->engine->migration;
  int64_t now = engine_clock(s->engine);
  uint64_t holder[2];
  accounts_who(s, holder);
  struct ticket *t = tickets_place(&n->tickets, holder, now);
  if (!t)
    return NULL;
  ticket_drop(s->engine, t);
  while (t->id == 0)
    t->id = engine_random(s->engine);
  memcpy(t->holder, holder, sizeof t->holder);
  t->session = s->id;
  t->due = time_after(now, s->engine->options.hello_timeout);
  t->tcp = tcp;
  t->pid = s->process.pid;
  t->pidfd = tcp ? peer_lend(s) : -1; /* over Unix sockets the kernel tells */
  memcpy(t->address, s->target.address, sizeof t->address);
  return t;
}

/* Makes the session the one that the ticket was given for. */
static int ticket_admit(struct perigee_session *s, uint64_t id,
                        char reason[REASON]) {
  struct migration *n = s->engine->migration;
  int64_t now = engine_clock(s->engine);
  struct ticket *t = n ? tickets_find(&n->tickets, id, s->tcp, now) : NULL;
  if (!t) {
    snprintf(reason, REASON,
             "this place is for sessions that were sent here, once and at "
             "once; dial the address where they were");
    return PERIGEE_DENIED;
  }
  migrate_step(s, ENTERED);
  s->migration.ticket = id;
  handshake_ticket(n->key, id, s->security.keys->ticket.key);
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
static void migrate_tell_alias(struct perigee_session *s,
                               const struct migration *n, struct terms *t) {
  union socket_address at;
  socklen_t length = sizeof at;
  memset(&at, 0, sizeof at);
  _Static_assert(sizeof t->alias == HANDSHAKE_ALIAS, "it has its place");
  if (n && n->keyed && getpeername(s->socket.fd, &at.any, &length) == 0)
    handshake_alias(n->key, &at, sizeof at, (uint8_t *)t->alias);
}

void migrate_terms(struct perigee_session *s, struct terms *t) {
  t->flags |= s->migration.state == MIGRATION_RETURNED ? TERMS_STAYS : 0;
  if (!s->tcp)
    return;
  struct migration *n = migration_of(s->engine);
  if (n && n->name.fd >= 0)
    memcpy(t->local, n->name.bytes, sizeof t->local);
  if (s->dialed)
    migrate_tell_alias(s, n, t);
  t->user = (uint32_t)geteuid();
}

static const char to_memory[] =
    "both sides are on one host: moved from TCP to shared memory";
static const char to_loopback[] =
    "TCP was asked for: moved from the Unix socket to TCP over loopback";

int migrate_admits(struct perigee_session *s, const struct hello *h,
                   char reason[REASON]) {
  int status =
      s->migration.ticketed ? ticket_admit(s, h->ticket, reason) : PERIGEE_OK;
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
      session_moved(s) || (s->peer.here && migrate_reaches(s, t->local));
}

/* Returns whether the dialer prefers a transport that needs a Unix socket, and
 * that this side has, to all that both sides have over TCP. */
static bool migrate_prefers_memory(const struct perigee_session *s,
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

/* From TCP: the listening side decides, so it has to know that both are here, and
 * to have a name that the dialer can dial. The dialer may lack a descriptor for
 * the other's door, or may not connect there: its address is enough, as it comes
 * back if it cannot move. */
static bool migrate_is_near(const struct perigee_session *s,
                            const struct terms *dialed) {
  return s->dialed ? s->peer.here
                   : s->peer.same_host && name_is_told(dialed->local);
}

static bool migrate_may(const struct perigee_session *s,
                        const struct terms *dialer,
                        const struct terms *dialed) {
  if (session_moved(s) || s->alone || (dialer->flags & TERMS_STAYS))
    return false;
  if (!s->tcp)
    return s->transport && s->transport->socket == SOCKET_TCP;
  return migrate_is_near(s, dialed) && dialer->user == dialed->user &&
         migrate_prefers_memory(s, dialer);
}

void migrate_agree(struct perigee_session *s, const struct terms *dialer,
                   const struct terms *dialed) {
  if (migrate_may(s, dialer, dialed))
    migrate_step(s, AGREE);
}

void migrate_stays(struct perigee_session *s) {
  if (s->migration.state == MIGRATION_AGREED)
    migrate_step(s, STAY);
}

/* ---- Moving -------------------------------------------------------------- */

static struct perigee_listener *local_place(struct perigee_engine *engine) {
  struct migration *n = engine->migration;
  char text[NAME_TEXT + 8] = "unix:";
  name_text(n->name.bytes, text + strlen("unix:"));
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

static uint32_t listener_port(const struct perigee_listener *l) {
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
  f.move.port = s->tcp ? 0 : listener_port(l);
  handshake_ticket(s->engine->migration->key, t->id, f.move.key);
  unauth_leave(s); /* from here on this connection only has to end */
  migrate_step(s, SEND);
  session_send(s, &f, NULL, 0);
  explicit_bzero(&f.move, sizeof f.move);
  return true;
}

/* The address to dial, from the peer's TERMS and MOVE. */
static void migrate_place(const struct perigee_session *s,
                          const struct move *move, struct address *to) {
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
  if (!s->operations.connect || move->ticket == 0 ||
      (move->port == 0) != s->tcp)
    return PERIGEE_PROTOCOL;
  migrate_place(s, move, &to);
  session_tell(s, &bye, NULL, 0);
  migrate_step(s, FOLLOW);
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
      status == PERIGEE_CLOSED || !s->operations.connect)
    return false;
  if (!s->tcp && *s->target.transport) /* only shared memory was asked for */
    return false;
  session_back(s);
  secret_wipe(&s->security.keys->ticket);
  migrate_step(s, RETURN);
  s->migration.ticket = 0;
  snprintf(s->migration.why, sizeof s->migration.why,
           "both sides are on one host, but it could not move to %s",
           s->tcp ? "TCP over loopback" : "shared memory");
  address_parse(s->target.address, &first, reason);
  dial_to(s, &first);
  return true;
}
