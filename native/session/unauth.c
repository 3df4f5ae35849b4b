/* SPDX-License-Identifier: Apache-2.0
 *
 * unauth.c - unauthenticated peers: how many are let in, which of them, when
 * they are served, and what the program is told of those that were refused. A
 * session is unauthenticated from being accepted until its peer has proven who
 * it is and a share counts what it holds (shares.h). Anybody can connect, by
 * thousands.
 *
 * Places. There are at most options.hellos such sessions at once. The oldest of
 * the origin that has most is given up and told to try again if there are more.
 * So a crowd from one address takes places from itself alone. An origin is
 * something that one attacker cannot have many of: an IPv4 address, an IPv6
 * network of 64 bits, or, at a Unix socket, a process. The last descriptors are
 * for authenticated peers.
 *
 * Turns. The expensive parts of a handshake (elliptic curves over TCP, shared
 * memory at a Unix socket) are done for one session at a time, for each origin
 * in turn. The newest of an origin comes first, as it is most likely to be
 * still waiting. Turns get at most a SHARE of the time while other sessions
 * have work.
 *
 * Refusals. An event comes now and then: it tells how many were refused since
 * the last event, and why one of them was. That is the last one that did more
 * than connect, if there was one.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/lock.h"
#include "net/address.h"
#include "sessions.h"

/* SHARE: turns get one part in SHARE of the time while sessions have work.
 * BURST: ns of turns that may follow each other without a pause. LULL: ns after
 * its last work for which a session is taken to have more. CROWD: so many
 * unauthenticated peers are a crowd. */
enum { SHARE = 4, BURST = 4000000, LULL = 2000000, CROWD = 16 };
/* RESERVE: descriptors that unauthenticated peers may not use, at most an
 * eighth of all. */
enum { RESERVE = 64 };

int unauth_open(struct perigee_engine *engine) {
  struct unauth *unauth = calloc(1, sizeof *unauth);
  engine->unauth = unauth;
  if (!unauth)
    return PERIGEE_NO_MEMORY;
  list_open(&unauth->all);
  list_open(&unauth->origins);
  return PERIGEE_OK;
}

void unauth_close(struct perigee_engine *engine) {
  free(engine->unauth);
  engine->unauth = NULL;
}

/* ---- Origins ------------------------------------------------------------- */

static struct origin_key origin_key_of(const struct perigee_session *s,
                                       const union socket_address *from) {
  struct origin_key key = {.family = (uint64_t)from->any.sa_family};
  if (!s->tcp)
    key = (struct origin_key){AF_UNIX, (uint64_t)s->process.pid};
  else if (key.family == AF_INET6)
    memcpy(&key.bits, &from->in6.sin6_addr, sizeof key.bits);
  else
    key.bits = from->in.sin_addr.s_addr;
  return key;
}

static struct origin *origin_for(struct unauth *all, struct origin_key key) {
  struct node *n, *head = &all->origins;
  for (n = head->next; n != head; n = n->next) {
    struct origin *known = CONTAINER(n, struct origin, node);
    if (known->key.family == key.family && known->key.bits == key.bits)
      return known;
  }
  struct origin *origin = calloc(1, sizeof *origin);
  if (origin) {
    origin->key = key;
    list_append(&all->origins, &origin->node);
  }
  return origin;
}

/* ---- Places -------------------------------------------------------------- */

static void unauth_wait_no_more(struct perigee_session *s) {
  s->engine->unauth->waiting -= s->admission.waits;
  s->admission.origin->waiting -= s->admission.waits;
  s->admission.waits = false;
}

void unauth_leave(struct perigee_session *s) {
  struct origin *origin = s->admission.origin;
  if (!origin)
    return;
  unauth_wait_no_more(s);
  s->admission.origin = NULL;
  list_remove(&s->admission.node);
  s->engine->hellos--;
  if (--origin->here > 0)
    return;
  list_remove(&origin->node);
  free(origin);
}

static uint32_t unauth_most(const struct unauth *all) {
  const struct node *n, *head = &all->origins;
  uint32_t count = 0;
  for (n = head->next; n != head; n = n->next) {
    const struct origin *origin = CONTAINER(n, struct origin, node);
    if (origin->here > count)
      count = origin->here;
  }
  return count;
}

static void unauth_give_up_one(struct perigee_session *s) {
  struct frame f = {.type = FRAME_REFUSE, .refuse = {PERIGEE_AGAIN, CROWDED}};
  s->up->tell(s, &f, NULL, 0);
  s->up->end(
      s, PERIGEE_TIMEOUT,
      s->handshake.step == WIREUP_NEW   ? "it said nothing, and others came"
      : s->handshake.step == WIREUP_MET ? "it proved nothing, and others came"
                                        : "it said no more, and others came");
}

bool unauth_give_up(struct perigee_engine *engine) {
  struct unauth *all = engine->unauth;
  uint32_t count = unauth_most(all);
  struct node *n, *head = &all->all;
  for (n = head->next; n != head; n = n->next) {
    struct perigee_session *s =
        CONTAINER(n, struct perigee_session, admission.node);
    if (s->admission.origin->here < count)
      continue;
    unauth_give_up_one(s);
    return true;
  }
  return false;
}

bool unauth_join(struct perigee_session *s, const union socket_address *from) {
  struct perigee_engine *engine = s->engine;
  s->admission.origin = origin_for(engine->unauth, origin_key_of(s, from));
  if (!s->admission.origin)
    return false;
  s->admission.origin->here++;
  engine->hellos++;
  list_append(&engine->unauth->all, &s->admission.node);
  if (engine->hellos > engine->options.hellos)
    unauth_give_up(engine);
  return true;
}

/* ---- Turns --------------------------------------------------------------- */

bool unauth_wait(struct perigee_session *s) {
  if (!s->admission.origin)
    return false;
  s->admission.waits = true;
  s->admission.origin->waiting++;
  s->engine->unauth->waiting++;
  return true;
}

/* Returns the newest session of the origin whose turn it is. */
static struct perigee_session *unauth_next(struct unauth *all) {
  struct node *n = all->origins.next;
  while (CONTAINER(n, struct origin, node)->waiting == 0)
    n = n->next;
  struct origin *origin = CONTAINER(n, struct origin, node);
  list_remove(n);
  list_append(&all->origins, n);
  for (n = all->all.previous;; n = n->previous) {
    struct perigee_session *s =
        CONTAINER(n, struct perigee_session, admission.node);
    if (s->admission.origin == origin && s->admission.waits)
      return s;
  }
}

static bool sessions_have_work(const struct perigee_engine *engine) {
  return engine->now - engine->worked_at < LULL;
}

/* Accounts for a turn: its time counts SHARE times, from at most BURST ago.
 * Turns while there was no other work are not counted. */
static void unauth_pay(struct perigee_engine *engine, int64_t begin) {
  struct unauth *all = engine->unauth;
  if (all->paid < begin - BURST)
    all->paid = begin - BURST;
  if (all->paid > begin)
    all->paid = begin;
  all->paid += SHARE * (engine_clock(engine) - begin);
}

void unauth_turn(struct perigee_engine *engine) {
  struct unauth *all = engine->unauth;
  if (all->waiting == 0)
    return;
  int64_t begin = engine_clock(engine);
  if (all->paid <= begin || !sessions_have_work(engine)) {
    struct perigee_session *s = unauth_next(all);
    unauth_wait_no_more(s);
    engine->wireup->turn(s);
    unauth_pay(engine, begin);
  }
  if (all->waiting > 0)
    engine->poll_soon |= SOON_LOOK;
}

bool unauth_crowded(const struct perigee_engine *engine) {
  return engine->hellos > CROWD;
}

/* ---- The last descriptors ------------------------------------------------ */

/* The last descriptors are for authenticated peers. The system gives the lowest
 * free number, so a number tells how many are in use. */
static int unauth_reserve_from(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > INT_MAX)
    return INT_MAX;
  int all = (int)limit.rlim_cur, kept = all / 8;
  return all - (kept < RESERVE ? kept : RESERVE);
}

int unauth_place(struct perigee_engine *engine, int fd) {
  if (fd < unauth_reserve_from())
    return fd;
  int low = unauth_give_up(engine) ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
  if (low >= 0)
    close(fd);
  return low;
}

/* ---- Telling the program ------------------------------------------------- */

static void refusals_due(struct perigee_engine *engine) {
  engine->refusals.due = engine->notices = true;
  engine->progress++;
}

static void refusals_expired(struct timer *timer) {
  refusals_due(CONTAINER(timer, struct perigee_engine, refusals.timer));
}

void perigee_tell_refused(struct perigee_engine *engine, int64_t every) {
  ENTER(engine);
  struct refusals *r = &engine->refusals;
  timers_remove(&engine->timers, &r->timer);
  r->timer.expired = refusals_expired;
  r->every = every;
  r->next = r->count = 0;
  r->on = every >= 0;
  r->due = false;
}

void refusals_add(struct perigee_engine *engine, const char *peer,
                  const char *address, int status, const char *reason) {
  struct refusals *r = &engine->refusals;
  engine->counters->refused++;
  if (!r->on)
    return;
  if (r->count++ == 0 || status != PERIGEE_PEER_LOST ||
      r->status == PERIGEE_PEER_LOST) {
    r->status = status;
    snprintf(r->text, sizeof r->text, "%s at %s: %s",
             *peer ? peer : "a process of this host", address, reason);
  }
  if (r->due || r->timer.next)
    return;
  if (engine_clock(engine) >= r->next)
    refusals_due(engine);
  else
    timers_add(&engine->timers, &r->timer, r->next);
}

/* The event's texts stay valid until the next poll. */
bool refusals_give(struct perigee_engine *engine, struct perigee_event *e) {
  struct refusals *r = &engine->refusals;
  if (!r->due || engine_keeps(engine))
    return false;
  memcpy(r->told, r->text, sizeof r->told);
  *e = (struct perigee_event){.kind = PERIGEE_EVENT_REFUSED,
                              .status = r->status,
                              .operation = -1,
                              .pointer = (const uint8_t *)r->told,
                              .length = strlen(r->told),
                              .code = r->count};
  r->due = false;
  r->count = 0;
  r->next = time_after(engine->now, r->every);
  return true;
}
