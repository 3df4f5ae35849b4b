/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_world_serve.c - the cache of a cache's world: its store, the slabs that
 * clients read, and its service, as lua/perigee/cache/store.lua and service.lua
 * have them.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cache_world.h"
#include "support_inside.h"

enum { EVENTS = 8, STEPS = 64, FEEDS = 3, NAME_ROOM = 32 };
static const int64_t MS = 1000000, LEASE = 300000000, UNUSED = 2000000000;

static int64_t now_of(const struct world *w) {
  return hand_time(&w->cache.hand);
}

/* ---- Memory -------------------------------------------------------------- */

static void slab_remove(struct world *w, uint32_t number) {
  struct cacher *c = &w->cache;
  int i = 0;
  HOLDS(w, perigee_cache_remove(c->store, number) == PERIGEE_OK);
  while (c->closing[i])
    HOLDS(w, ++i < CLOSING);
  c->closing[i] = c->slabs[number & 0xffff];
  c->slabs[number & 0xffff] = NULL;
}

static void slab_add(struct world *w, uint64_t length, uint32_t number) {
  struct cacher *c = &w->cache;
  struct perigee_region *region;
  char name[NAME_ROOM];
  snprintf(name, sizeof name, "cache.slab.%u", number);
  HOLDS(w, (number & 0xffff) < SLABS);
  HOLDS(w, perigee_region_alloc(c->engine, name, length, PERIGEE_READ, NULL,
                                &region) == PERIGEE_OK);
  HOLDS(w, perigee_cache_add(c->store, perigee_region_pointer(region),
                             length) == number);
  c->slabs[number & 0xffff] = region;
}

/* One is enough. */
static void piece_add(struct world *w) {
  struct cacher *c = &w->cache;
  struct perigee_region *region;
  HOLDS(w, perigee_region_alloc(c->engine, "cache.directory.0",
                                PERIGEE_CACHE_PIECE, PERIGEE_READ, NULL,
                                &region) == PERIGEE_OK);
  HOLDS(w, perigee_cache_grow(c->store, perigee_region_pointer(region)) == 0);
}

/* Gives what is wanted, and takes back what is of no use. */
static void feed(struct world *w) {
  struct perigee_cache *store = w->cache.store;
  struct perigee_cache_want want;
  perigee_cache_wants(store, &want);
  for (; want.idle >= 0; perigee_cache_wants(store, &want))
    slab_remove(w, (uint32_t)want.idle);
  if (want.pieces)
    piece_add(w);
  if (want.slab)
    slab_add(w, want.slab, want.next);
}

/* Those that nobody is in any more. */
static void close_slabs(struct cacher *c) {
  for (int i = 0; i < CLOSING; i++)
    if (c->closing[i] &&
        perigee_region_close(c->closing[i], false) == PERIGEE_OK)
      c->closing[i] = NULL;
}

/* ---- Patrons: sessions and their clients --------------------------------- */

static struct patron *patron_of(struct world *w, uint32_t session) {
  struct patron *p = w->cache.patrons;
  while (!p->there || p->session != session)
    HOLDS(w, ++p < w->cache.patrons + PATRONS);
  return p;
}

static void patron_new(struct world *w, uint32_t session) {
  struct patron *p = w->cache.patrons;
  while (p->there)
    HOLDS(w, ++p < w->cache.patrons + PATRONS);
  int64_t client = perigee_cache_client(w->cache.store);
  HOLDS(w, client >= 0);
  *p = (struct patron){session, (uint32_t)client, .there = true};
}

static void another_gone(struct world *w, const struct patron *p) {
  struct cacher *c = &w->cache;
  for (struct patron *q = c->patrons; q < c->patrons + PATRONS; q++)
    if (q->there && q != p) {
      perigee_cache_client_gone(c->store, q->client);
      q->client = (uint32_t)perigee_cache_client(c->store);
    }
}

/* Its session has settled: nothing of it reads or writes any more. */
static void patron_gone(struct world *w, struct patron *p) {
  struct cacher *c = &w->cache;
  narrate(w, "client %u of the store is gone", p->client);
  for (int i = 0; i < RESERVED; i++)
    if (c->reserved[i].token && c->reserved[i].session == p->session) {
      HOLDS(w, c->reserved[i].filling == 0);
      c->reserved[i].token = 0;
    }
  if (w->rule == WRONG_ONE_GONE)
    another_gone(w, p);
  if (w->rule != NEVER_GONE)
    HOLDS(w, perigee_cache_client_gone(c->store, p->client) == PERIGEE_OK);
  perigee_session_free(perigee_session(c->engine, p->session));
  p->there = false;
}

static void patrons_turn(struct world *w) {
  struct cacher *c = &w->cache;
  for (struct patron *p = c->patrons; p < c->patrons + PATRONS; p++)
    if (p->there && p->lost &&
        perigee_session_settled(perigee_session(c->engine, p->session)))
      patron_gone(w, p);
}

/* ---- Reservations -------------------------------------------------------- */

static struct reserved *reserved_of(struct world *w, uint64_t token) {
  for (struct reserved *r = w->cache.reserved; r < w->cache.reserved + RESERVED;
       r++)
    if (token && r->token == token)
      return r;
  return NULL;
}

static int store_reserve(struct world *w, const char *key,
                         const struct perigee_cache_put *put,
                         struct perigee_cache_place *place) {
  struct perigee_cache *store = w->cache.store;
  int status = PERIGEE_CACHE_WANTS;
  for (int i = 0; i < FEEDS; i++) {
    status = perigee_cache_reserve(store, key, NAME, put, now_of(w), place);
    if (status == PERIGEE_NO_MEMORY)
      perigee_cache_turn(store, now_of(w), STEPS);
    else if (status != PERIGEE_CACHE_WANTS)
      break;
    feed(w);
  }
  return status;
}

/* numbers: key, stamp, ttl, pin, if_absent. NULL: it cannot be. */
static struct reserved *reserve(struct world *w, uint32_t session,
                                const uint64_t *numbers, uint64_t length) {
  struct cacher *c = &w->cache;
  struct reserved *r = c->reserved;
  while (r->token)
    if (++r == c->reserved + RESERVED)
      return NULL;
  struct perigee_cache_put put = {.length = length,
                                  .ttl = (int64_t)numbers[2],
                                  .client = patron_of(w, session)->client,
                                  .pin = (uint8_t)numbers[3],
                                  .if_absent = (uint8_t)numbers[4]};
  *r = (struct reserved){
      .session = session,
      .at = now_of(w),
      .value = {(int)numbers[0], numbers[1], length, put.ttl, put.pin}};
  if (store_reserve(w, name_of(r->value.key), &put, &r->place) < 0)
    return NULL;
  r->token = ++c->tokens;
  return r;
}

static uint64_t seal(struct world *w, struct reserved *r) {
  int64_t version = perigee_cache_seal(w->cache.store, r->place.entry,
                                       r->value.stamp, now_of(w));
  HOLDS(w, version > 0);
  world_sealed(w, (uint64_t)version, &r->value);
  r->token = 0;
  return (uint64_t)version;
}

static void give_up(struct world *w, struct reserved *r) {
  HOLDS(w, perigee_cache_abort(w->cache.store, r->place.entry) == PERIGEE_OK);
  r->token = 0;
  w->tally.aborted++;
}

static struct perigee_slice place_slice(const struct world *w,
                                        const struct reserved *r,
                                        uint64_t offset, uint64_t length) {
  return (struct perigee_slice){{w->cache.slabs[r->place.slab & 0xffff]},
                                r->place.offset + offset,
                                length,
                                1,
                                length};
}

/* Nobody writes to it, nor seals it. */
static void give_up_unused(struct world *w) {
  struct cacher *c = &w->cache;
  for (struct reserved *r = c->reserved; r < c->reserved + RESERVED; r++)
    if (r->token && r->filling == 0 && r->at + UNUSED < now_of(w))
      give_up(w, r);
}

/* ---- Answering ----------------------------------------------------------- */

static struct served *served_of(struct world *w, int operation) {
  struct served *s = w->cache.served;
  while (s->state == NONE || s->operation != operation)
    if (++s == w->cache.served + SERVED)
      return NULL;
  return s;
}

static struct served *served_new(struct world *w,
                                 const struct perigee_event *e) {
  struct served *s = w->cache.served;
  HOLDS(w, !served_of(w, e->operation));
  while (s->state != NONE)
    HOLDS(w, ++s < w->cache.served + SERVED);
  s->operation = e->operation;
  s->method = e->method;
  s->token = 0;
  return s;
}

/* The caller may be gone. */
static void replied(struct world *w, struct served *s, int status) {
  HOLDS(w, status == 0 || status == 1 || status == PERIGEE_PEER_LOST ||
               status == PERIGEE_CANCELLED);
  s->state = status == 1 ? REPLIED : NONE;
}

static void reply(struct world *w, struct served *s, uint64_t length,
                  uint16_t flags) {
  struct perigee_message m = {
      .flags = flags, .head = s->reply, .length = length};
  replied(w, s, perigee_reply(w->cache.engine, s->operation, &m));
}

static void reply_number(struct world *w, struct served *s, uint64_t number) {
  reply(w, s, numbers_write(s->reply, REPLY, &number, 1, false), PERIGEE_TYPED);
}

static void refuse(struct world *w, struct served *s) {
  w->tally.refused++;
  int status = perigee_fail_call(w->cache.engine, s->operation,
                                 PERIGEE_NO_MEMORY, NULL, NULL, true);
  if (status == PERIGEE_INVALID)
    s->state = LANDS; /* ABANDONED is on its way */
  else
    replied(w, s, status);
}

static void note_put(struct world *w, int key, const uint8_t *item,
                     uint64_t version) {
  struct value value = {.key = key,
                        .ttl = (int64_t)number_get(item + 8, 8),
                        .pin = item[16],
                        .stamp = number_get(item + 20, 8),
                        .length = number_get(item + 28, 4)};
  world_sealed(w, version, &value);
}

/* What a request has changed, found, or not found. */
static void note(struct world *w, const uint8_t *request,
                 const uint8_t *reply) {
  int status = (int32_t)number_get(reply + 8, 4), what = request[1];
  int key = request[10 + NAME - 1] - 'a';
  if (what == PERIGEE_CACHE_LOCATE && status == PERIGEE_NOT_FOUND)
    HOLDS(w, !w->hard[key]);
  if (status < 0)
    return;
  if (what == PERIGEE_CACHE_LOCATE)
    world_found(w, key);
  else if (what == PERIGEE_CACHE_DELETE)
    world_deleted(w, key);
  else if (what == PERIGEE_CACHE_PIN)
    world_pinned(w, key, request[2]);
  else if (what == PERIGEE_CACHE_PUT)
    note_put(w, key, request + 10 + NAME, number_get(reply + 12, 8));
}

static void answer(struct world *w, struct served *s,
                   const struct perigee_event *e) {
  uint32_t client = patron_of(w, e->session)->client;
  int64_t n = PERIGEE_CACHE_WANTS;
  for (int i = 0; i < FEEDS && n == PERIGEE_CACHE_WANTS; i++) {
    n = perigee_cache_answer(w->cache.store, client, e->pointer, e->length,
                             s->reply, REPLY, now_of(w));
    if (n == PERIGEE_CACHE_WANTS)
      feed(w);
  }
  HOLDS(w, n >= 8);
  if (number_get(s->reply + 4, 4) == 1 &&
      e->pointer[1] != PERIGEE_CACHE_RELEASE)
    note(w, e->pointer, s->reply);
  reply(w, s, (uint64_t)n, 0);
}

/* ---- Puts ---------------------------------------------------------------- */

static void landing(struct world *w, const struct perigee_event *e) {
  struct served *s = served_new(w, e);
  uint64_t numbers[NUMBERS] = {0};
  struct reserved *r = NULL;
  bool put = e->method == PUT;
  HOLDS(w, numbers_read(e, numbers, put ? 5 : 2));
  if (put)
    r = reserve(w, e->session, numbers, e->slice);
  else
    r = reserved_of(w, numbers[0]);
  if (!r) {
    refuse(w, s);
    return;
  }
  struct perigee_slice slice =
      place_slice(w, r, put ? 0 : numbers[1], e->slice);
  int status = perigee_land(w->cache.engine, e->operation, &slice);
  HOLDS(w, status == PERIGEE_OK || status == PERIGEE_PEER_LOST ||
               status == PERIGEE_INVALID);
  s->state = LANDS;
  s->token = r->token;
  r->filling++;
  if (put && w->rule == SEALED_TOO_SOON)
    seal(w, r);
}

/* The bytes of a put or write are there. */
static void landed(struct world *w, struct served *s) {
  struct reserved *r = reserved_of(w, s->token);
  if (w->rule == SEALED_TOO_SOON && !r) {
    reply_number(w, s, 0);
    return;
  }
  HOLDS(w, r);
  r->filling--;
  r->at = now_of(w);
  reply_number(w, s, s->method == PUT ? seal(w, r) : 0);
}

static void abandoned(struct world *w, const struct perigee_event *e) {
  struct served *s = served_of(w, e->operation);
  HOLDS(w, s && s->state == LANDS);
  struct reserved *r = reserved_of(w, s->token);
  s->state = NONE;
  if (!r)
    return;
  r->filling--;
  if (s->method == PUT)
    give_up(w, r);
}

static void reserving(struct world *w, struct served *s,
                      const struct perigee_event *e) {
  uint64_t numbers[NUMBERS];
  HOLDS(w, numbers_read(e, numbers, NUMBERS));
  struct reserved *r = reserve(w, e->session, numbers, numbers[5]);
  if (r)
    reply_number(w, s, r->token);
  else
    refuse(w, s);
}

static void ending(struct world *w, struct served *s,
                   const struct perigee_event *e) {
  uint64_t token, version = 0;
  HOLDS(w, numbers_read(e, &token, 1));
  struct reserved *r = reserved_of(w, token);
  if (!r || r->filling > 0) {
    refuse(w, s);
    return;
  }
  if (e->method == SEAL)
    version = seal(w, r);
  else
    give_up(w, r);
  reply_number(w, s, version);
}

static void request(struct world *w, const struct perigee_event *e) {
  struct served *s = served_of(w, e->operation);
  if (s) {
    landed(w, s);
    return;
  }
  s = served_new(w, e);
  if (e->method == ASK)
    answer(w, s, e);
  else if (e->method == RESERVE)
    reserving(w, s, e);
  else
    ending(w, s, e);
}

/* ---- Its turn ------------------------------------------------------------ */

static void sent(struct world *w, int operation) {
  struct served *s = served_of(w, operation);
  HOLDS(w, s && s->state == REPLIED);
  s->state = NONE;
}

static void happened(struct world *w, const struct perigee_event *e) {
  narrate(w, "cache: event %d of %d in session %u: %s", e->kind, e->operation,
          e->session, perigee_status_name(e->status));
  switch (e->kind) {
  case PERIGEE_EVENT_ACCEPTED:
    patron_new(w, e->session);
    break;
  case PERIGEE_EVENT_LOST:
    patron_of(w, e->session)->lost = true;
    break;
  case PERIGEE_EVENT_REQUEST:
    request(w, e);
    break;
  case PERIGEE_EVENT_LANDING:
    landing(w, e);
    break;
  case PERIGEE_EVENT_ABANDONED:
    abandoned(w, e);
    break;
  default:
    HOLDS(w, e->kind == PERIGEE_EVENT_SENT);
    sent(w, e->operation);
  }
}

static void expect_pins(struct world *w) {
  struct perigee_cache_place place;
  for (int i = 0; i < KEYS; i++)
    if (w->hard[i])
      HOLDS(w, perigee_cache_stat(w->cache.store, name_of(i), NAME, now_of(w),
                                  &place) == PERIGEE_OK &&
                   place.version == w->latest[i]);
}

void cacher_turn(struct world *w) {
  struct cacher *c = &w->cache;
  struct perigee_event events[EVENTS];
  if (w->now < c->still_until)
    return;
  if (chance(w, w->winding_up ? 0.5 : 0.25))
    look_at_clock(c->engine);
  int n = perigee_poll(c->engine, events, EVENTS);
  HOLDS(w, n >= 0);
  for (int i = 0; i < n; i++)
    happened(w, &events[i]);
  patrons_turn(w);
  perigee_cache_turn(c->store, now_of(w), STEPS);
  feed(w);
  give_up_unused(w);
  close_slabs(c);
  expect_pins(w);
  if (!w->winding_up && chance(w, 0.003))
    c->still_until = w->now + (int64_t)roll(w, 100) * MS;
}

/* ---- Its life ------------------------------------------------------------ */

static void open_store(struct world *w) {
  struct perigee_cache_options o = {.quota = QUOTA,
                                    .slab = SLAB,
                                    .lease = LEASE,
                                    .clients = PATRONS,
                                    .leases = 128,
                                    .reserved_each = 8,
                                    .groups = 4,
                                    .events = 64,
                                    .event_bytes = 1024,
                                    .seed = {1}};
  o.margin = w->rule == NO_MARGIN ? 1 : 0;
  HOLDS(w, perigee_cache_open(&o, now_of(w), &w->cache.store) == PERIGEE_OK);
  feed(w);
}

void cacher_open(struct world *w) {
  struct cacher *c = &w->cache;
  struct perigee_options o;
  bool tcp = strcmp(w->transport, "tcp") == 0;
  c->hand = (struct hand){w, 0};
  engine_options(&c->hand, c->faults, sizeof c->faults, &o);
  HOLDS(w, perigee_engine_open(&o, &c->engine) == PERIGEE_OK);
  snprintf(w->address, sizeof w->address, "unix:/tmp/perigee-cache-world-%d",
           getpid());
  unlink(w->address + strlen("unix:")); /* left by one that was killed */
  if (tcp)
    strcpy(w->address, "tcp://127.0.0.1:0");
  HOLDS(w, perigee_listen(c->engine, w->address, &c->listener) == PERIGEE_OK);
  snprintf(w->address, sizeof w->address, "%s",
           perigee_listener_address(c->listener));
  open_store(w);
}

/* Its patrons are told by the end of the engine's sockets. */
void cacher_die(struct world *w) {
  struct cacher *c = &w->cache;
  perigee_cache_close(c->store);
  perigee_engine_close(c->engine);
  memset(c, 0, sizeof *c);
}

bool cacher_busy(const struct world *w) {
  bool any = false;
  for (int i = 0; i < PATRONS; i++)
    any |= w->cache.patrons[i].there;
  return any;
}

static void expect_nothing(struct world *w) {
  struct cacher *c = &w->cache;
  struct perigee_cache_counters n;
  perigee_cache_count(c->store, &n);
  HOLDS(w, n.entries + n.reserved + n.held == 0);
  HOLDS(w, n.leases + n.clients + n.hard == 0);
  HOLDS(w, n.used + n.values + n.slabs == 0);
  for (int i = 0; i < SERVED; i++)
    HOLDS(w, c->served[i].state == NONE);
  for (int i = 0; i < RESERVED; i++)
    HOLDS(w, c->reserved[i].token == 0);
  HOLDS(w, perigee_counters(c->engine, NULL)->operations == 0);
  HOLDS(w, perigee_counters(c->engine, NULL)->regions == 1); /* the piece */
}

void cacher_end(struct world *w) {
  struct cacher *c = &w->cache;
  for (int i = 0; i < KEYS; i++)
    perigee_cache_delete(c->store, name_of(i), NAME);
  perigee_cache_quota(c->store, 0);
  while (perigee_cache_turn(c->store, now_of(w), STEPS) == 1)
    ;
  feed(w);
  close_slabs(c);
  expect_nothing(w);
  cacher_die(w);
}
