/* SPDX-License-Identifier: Apache-2.0 */
#include "unauth.h"

#include <stdlib.h>
#include <string.h>

#include "sessions.h"

/* SHARE: turns get one part in SHARE of the time while sessions have work.
 * BURST: ns of turns that may follow each other without a pause. LULL: ns after
 * its last work for which a session is taken to have more. CROWD: so many
 * unauthenticated peers are a crowd. */
enum { SHARE = 4, BURST = 4000000, LULL = 2000000, CROWD = 16 };

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

static struct origin_key key_of(const struct perigee_session *s,
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

static struct origin *origin_of(struct unauth *all, struct origin_key key) {
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

static void wait_no_more(struct perigee_session *s) {
  s->engine->unauth->waiting -= s->admission.waits;
  s->admission.origin->waiting -= s->admission.waits;
  s->admission.waits = false;
}

void unauth_leave(struct perigee_session *s) {
  struct origin *origin = s->admission.origin;
  if (!origin)
    return;
  wait_no_more(s);
  s->admission.origin = NULL;
  list_remove(&s->admission.node);
  s->engine->hellos--;
  if (--origin->here > 0)
    return;
  list_remove(&origin->node);
  free(origin);
}

static uint32_t most(const struct unauth *all) {
  const struct node *n, *head = &all->origins;
  uint32_t count = 0;
  for (n = head->next; n != head; n = n->next) {
    const struct origin *origin = CONTAINER(n, struct origin, node);
    if (origin->here > count)
      count = origin->here;
  }
  return count;
}

static void give_up(struct perigee_session *s) {
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
  uint32_t count = most(all);
  struct node *n, *head = &all->all;
  for (n = head->next; n != head; n = n->next) {
    struct perigee_session *s =
        CONTAINER(n, struct perigee_session, admission.node);
    if (s->admission.origin->here < count)
      continue;
    give_up(s);
    return true;
  }
  return false;
}

bool unauth_join(struct perigee_session *s, const union socket_address *from) {
  struct perigee_engine *engine = s->engine;
  s->admission.origin = origin_of(engine->unauth, key_of(s, from));
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
static struct perigee_session *next(struct unauth *all) {
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

static bool has_work(const struct perigee_engine *engine) {
  return engine->now - engine->worked_at < LULL;
}

/* Accounts for a turn: its time counts SHARE times, from at most BURST ago.
 * Turns while there was no other work are not counted. */
static void pay(struct perigee_engine *engine, int64_t begin) {
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
  if (all->paid <= begin || !has_work(engine)) {
    struct perigee_session *s = next(all);
    wait_no_more(s);
    engine->wireup->turn(s);
    pay(engine, begin);
  }
  engine->copying |=
      all->waiting > 0; /* polls again soon: no event will come */
}

bool unauth_crowded(const struct perigee_engine *engine) {
  return engine->hellos > CROWD;
}
