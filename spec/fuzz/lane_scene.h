/* SPDX-License-Identifier: Apache-2.0
 *
 * lane_scene.h - an engine with one open TCP session and operations of every
 * kind under way: calls with landings of all shapes, a read, a write, messages,
 * requests that it serves. Every byte of its memory is known: bytes outside of
 * pending landings never change, and each operation ends once.
 */
#ifndef LANE_SCENE_H
#define LANE_SCENE_H

#include "fuzz.h"

/* Each memory consists of places, each with a guard behind it. */
enum { PLACE = 2048, GUARD = 1024, PLACES = 8, SPAN = PLACE + GUARD };
enum { MEMORY = PLACES * SPAN, GRAIN = 64, EXPORTED = 8 * SPAN };
enum { OWN = 32, HELD_MOST = 64, PATTERN = 0xa5, STRANGE = 0xee };
/* The bytes of a head that is at least so long are alike. */
enum { ALONE = 4096 };
enum { CONTIGUOUS, STRIDED, SHAPES };

struct own {
  int operation; /* -1: none, or it has ended */
  struct perigee_slice landing;
};

struct scene {
  struct world world;
  struct perigee_engine *engine;
  struct perigee_region *host, *opaque, *exported;
  uint8_t *memory;               /* of host */
  uint8_t *expected;             /* the bytes outside of pending landings */
  uint8_t named[MEMORY / GRAIN]; /* pending landings over each grain */
  struct hand hand;
  struct own own[OWN];
  struct perigee_transfer list[OWN];
  const struct perigee_remote *remote;
  int served[HELD_MOST], lands[HELD_MOST]; /* to answer; to land */
  struct own landings[HELD_MOST];
  int serving, landing, lost;
  uint8_t mood; /* how this side answers */
  uint8_t seen;
  bool warm; /* what is allocated only once has been */
};

/* ---- Memory --------------------------------------------------------------- */

static inline struct perigee_slice place(struct perigee_region *region,
                                         uint64_t base, int number, int shape) {
  uint64_t at = base + (uint64_t)(number % PLACES) * SPAN;
  return shape == STRIDED
             ? (struct perigee_slice){{region}, at, 128, PLACE / 256, 256}
             : (struct perigee_slice){{region}, at, PLACE, 1, PLACE};
}

/* A landing becomes pending (by = 1) or ends (-1): its bytes stay as they
 * are. */
static inline void name(struct scene *s, const struct perigee_slice *l,
                        int by) {
  if (l->region != s->host)
    return;
  for (uint64_t i = 0; i < l->count; i++)
    for (uint64_t at = l->offset + i * l->stride, end = at + l->length;
         at < end; at += GRAIN) {
      s->named[at / GRAIN] = (uint8_t)(s->named[at / GRAIN] + by);
      if (by < 0)
        memcpy(s->expected + at, s->memory + at, GRAIN);
    }
}

static inline void is_intact(struct scene *s) {
  uint64_t at = 0, end;
  while (at < MEMORY) {
    for (end = at; end < MEMORY && !s->named[end / GRAIN]; end += GRAIN)
      ;
    require(memcmp(s->memory + at, s->expected + at, end - at) == 0);
    for (at = end; at < MEMORY && s->named[at / GRAIN]; at += GRAIN)
      ;
  }
}

/* Of the opaque memory only the guards are known. */
static inline void guards_are_intact(struct scene *s) {
  static uint8_t copy[MEMORY], guard[GUARD];
  memset(guard, PATTERN, GUARD);
  require(perigee_region_read(s->opaque, 0, copy, MEMORY) == PERIGEE_OK);
  for (uint64_t i = 0; i < PLACES; i++)
    require(memcmp(copy + i * SPAN + PLACE, guard, GUARD) == 0);
}

/* ---- Operations ------------------------------------------------------------ */

static inline void begun(struct scene *s, int operation,
                         const struct perigee_slice *landing) {
  int i = 0;
  if (operation < 0 || operation == PERIGEE_INLINE)
    return;
  while (i < OWN && s->own[i].operation >= 0)
    i++;
  require(i < OWN);
  s->own[i] = (struct own){.operation = operation};
  if (!landing)
    return;
  s->own[i].landing = *landing;
  name(s, landing, 1);
}

static inline void over(struct scene *s, struct own *own) {
  own->operation = -1;
  if (own->landing.region)
    name(s, &own->landing, -1);
  own->landing.region = NULL;
}

static inline void ended(struct scene *s, const struct perigee_event *e) {
  int i = 0;
  require(strcmp(perigee_status_name(e->status), "unknown") != 0);
  while (i < OWN && s->own[i].operation != e->operation)
    i++;
  require(i < OWN);
  over(s, &s->own[i]);
}

static inline struct perigee_slice somewhere(struct scene *s, uint8_t how) {
  bool opaque = how % 4 == 3;
  return place(opaque ? s->opaque : s->host, 0, how / 8, how / 4 % SHAPES);
}

static inline void calls(struct scene *s, uint8_t how) {
  static const uint8_t nil[] = {0};
  struct perigee_slice l = somewhere(s, how);
  struct perigee_message m = {.timeout = -1, .method = how};
  if (how & 64)
    m = (struct perigee_message){.flags = PERIGEE_TYPED,
                                 .head = nil,
                                 .length = 1,
                                 .timeout = -1,
                                 .slice = place(s->exported, 0, 0, 0)};
  bool lands = how & 128;
  if (lands)
    m.into = l;
  else if (how & 1)
    m.flags |= PERIGEE_ASKS;
  begun(s, perigee_call(s->hand.session, &m), lands ? &l : NULL);
}

static inline void lends(struct scene *s, uint8_t how) {
  struct perigee_message m = {.timeout = -1, .capacity = 100};
  struct perigee_loan loan;
  uint64_t length = how & 1 ? 100 : PLACE;
  if (perigee_call_begin(s->hand.session, length, &loan) == PERIGEE_OK)
    begun(s, perigee_call_commit(s->hand.session, &m, length), NULL);
}

static inline void moves(struct scene *s, uint8_t how) {
  struct perigee_slice l = somewhere(s, how);
  int i = 0;
  while (i < OWN && s->own[i].operation >= 0)
    i++;
  if (i == OWN || !s->remote)
    return;
  s->list[i] = (struct perigee_transfer){
      .local = l,
      .remote = {{.remote = (struct perigee_remote *)(uintptr_t)s->remote},
                 0,
                 l.length * l.count,
                 1,
                 0}};
  bool reads = how & 128;
  int op = perigee_transfer(s->hand.session, reads ? 1 : 2 + (how & 1),
                            &s->list[i], 1, 7, -1);
  begun(s, op, reads ? &l : NULL);
}

static inline void wants(struct scene *s, uint8_t what, uint8_t how) {
  struct perigee_slice l = somewhere(s, how);
  int busy = 0;
  for (int i = 0; i < OWN; i++)
    busy += s->own[i].operation >= 0;
  if (busy == OWN || !s->hand.session ||
      s->hand.session->state != PERIGEE_SESSION_OPEN)
    return;
  switch (what % 8) {
  case 0:
    begun(s, perigee_recv(s->hand.session, &l, -1), &l);
    break;
  case 1:
    begun(s, perigee_recv_imm(s->hand.session, -1), NULL);
    break;
  case 2:
    begun(s, perigee_send(s->hand.session, &l, -1), NULL);
    break;
  case 3:
    begun(s, perigee_lookup(s->hand.session, "bait", -1), NULL);
    break;
  case 4:
    lends(s, how);
    break;
  case 5:
  case 6:
    moves(s, how);
    break;
  default:
    calls(s, how);
  }
}

/* ---- What it serves --------------------------------------------------------- */

static inline void answers(struct scene *s, int served) {
  struct perigee_message m = {.status = -(s->mood & 1)};
  if (s->mood & 2) /* too long for the ring */
    m.slice = place(s->exported, 0, 1, s->mood / 4 % SHAPES);
  if (s->mood & 8)
    m.flags = PERIGEE_TYPED;
  perigee_reply(s->engine, served, &m);
}

static inline void answers_all(struct scene *s) {
  while (s->serving > 0)
    answers(s, s->served[--s->serving]);
}

static inline void lands(struct scene *s, const struct perigee_event *e) {
  struct own *own = &s->landings[e->operation];
  struct perigee_slice none = {0}, l = somewhere(s, s->mood);
  struct perigee_message no = {.status = PERIGEE_NO_SERVICE};
  bool named = s->mood & 16;
  require(own->operation < 0);
  if (named) { /* bytes may arrive before this returns */
    own->landing = l;
    name(s, &l, 1);
  }
  if (perigee_land(s->engine, e->operation, named ? &l : &none) == 0) {
    own->operation = e->operation;
    return;
  }
  over(s, own);
  perigee_reply(s->engine, e->operation, &no);
}

/* Where the reply to an own call lands; or the call is given up. */
static inline void lands_reply(struct scene *s, const struct perigee_event *e) {
  struct perigee_slice l = somewhere(s, s->mood);
  bool named = s->mood & 16;
  int i = 0;
  for (uint64_t at = 0; at < e->length; at++)
    s->seen ^= e->pointer[at];
  while (i < OWN && s->own[i].operation != e->operation)
    i++;
  require(i < OWN && !s->own[i].landing.region);
  if (named) { /* bytes may arrive before this returns */
    s->own[i].landing = l;
    name(s, &l, 1);
  }
  if (perigee_land_reply(s->engine, e->operation, named ? &l : NULL) == 0)
    return;
  if (named)
    name(s, &l, -1);
  s->own[i].landing.region = NULL;
  perigee_cancel(s->engine, e->operation);
}

static inline void arrived(struct scene *s, const struct perigee_event *e) {
  for (uint64_t i = 0; i < e->length; i++)
    s->seen ^= e->pointer[i]; /* all of it can be read */
  for (uint64_t i = 0; i < e->length && e->length >= ALONE; i++)
    require(e->pointer[i] == e->pointer[0]);
  over(s, &s->landings[e->operation]);
  if (e->kind == PERIGEE_EVENT_ABANDONED)
    return;
  require(s->serving < HELD_MOST);
  s->served[s->serving++] = e->operation;
  if (!(s->mood & 32))
    answers_all(s);
}

static inline void handle(struct scene *s, const struct perigee_event *e) {
  if (e->flags & PERIGEE_POOLED)
    perigee_pool_free(s->engine, e->landed);
  switch (e->kind) {
  case PERIGEE_EVENT_ACCEPTED:
  case PERIGEE_EVENT_SENT:
    break;
  case PERIGEE_EVENT_LOST:
    require(e->status < 0 && ++s->lost == 1);
    break;
  case PERIGEE_EVENT_LANDING:
    lands(s, e);
    break;
  case PERIGEE_EVENT_REPLY_LANDING:
    lands_reply(s, e);
    break;
  case PERIGEE_EVENT_REQUEST:
  case PERIGEE_EVENT_ABANDONED:
    arrived(s, e);
    break;
  default:
    if (e->kind == PERIGEE_EVENT_DONE && e->status == PERIGEE_OK &&
        e->pointer && !s->remote)
      s->remote = (const struct perigee_remote *)e->pointer;
    ended(s, e);
  }
}

static inline void lives(struct scene *s) {
  struct perigee_event events[8];
  int n = hand_poll(&s->hand, events, 8);
  for (int i = 0; i < n; i++)
    handle(s, &events[i]);
  is_intact(s);
}

#endif
