/* SPDX-License-Identifier: Apache-2.0 */
#include "shares.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lock.h"

/* ---- Quotas ------------------------------------------------------------- */

static uint64_t less(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

static uint64_t more(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

/* Sockets of listeners, files of the program and the like are not counted. */
static uint64_t descriptors(const struct perigee_options *o) {
  struct rlimit limit = {.rlim_cur = 1024};
  if (o->descriptors > 0)
    return o->descriptors;
  getrlimit(RLIMIT_NOFILE, &limit);
  uint64_t most = less(limit.rlim_cur, 1 << 24);
  return most - most / 8;
}

/* Each makes two mappings at most of the space that it lies in: so a quarter of
 * those that a process may have, for whatever it does. */
static uint64_t segments(void) {
  unsigned long long most = 65530;
  FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
  if (f && fscanf(f, "%llu", &most) != 1)
    most = 65530;
  if (f)
    fclose(f);
  return most / 8;
}

/* Of operations an eighth stays for own ones, whatever peers do. One peer may
 * have nearly all sessions, and descriptors for them: they cost little, and
 * what it can do with them is bounded by the rest. */
static void fill(struct shares *all, const struct perigee_options *o) {
  enum { ALL_BUT_RESERVE = 1 << 30 };
  uint64_t served = o->operations - more(8, o->operations / 8);
  uint64_t files = descriptors(o);
  all->own = o->operations - (uint32_t)more(9, o->operations / 16);
  all->easy = o->operations / 2;
  all->quota[SHARE_OPERATIONS] =
      (struct quota){.limit = served,
                     .reserve = served / 16,
                     .least = less(o->serving, more(4, less(128, served / 64))),
                     .factor = 1,
                     .part = 5};
  all->quota[SHARE_KEPT] = all->quota[SHARE_OPERATIONS];
  all->quota[SHARE_KEPT].limit = o->operations / 2;
  all->quota[SHARE_POOLED] = all->quota[SHARE_EXPOSED] =
      (struct quota){.limit = o->pool,
                     .reserve = o->pool / 16,
                     .least = o->pool / 64,
                     .factor = 4,
                     .part = 5};
  all->quota[SHARE_LENT] = all->quota[SHARE_EXPOSED];
  all->quota[SHARE_LENT].limit = room_half(o);
  all->quota[SHARE_MAPPED] = (struct quota){.limit = o->mapped,
                                            .reserve = o->mapped / 16,
                                            .least = o->mapped / 1024,
                                            .factor = 2,
                                            .part = 5};
  uint64_t maps = segments();
  all->quota[SHARE_SEGMENTS] = (struct quota){.limit = maps,
                                              .reserve = maps / 16,
                                              .least = maps / 256,
                                              .factor = 2,
                                              .part = 6};
  all->quota[SHARE_DESCRIPTORS] = (struct quota){.limit = files,
                                                 .reserve = less(64, files / 8),
                                                 .least = 8,
                                                 .factor = ALL_BUT_RESERVE,
                                                 .part = 3};
  all->quota[SHARE_SESSIONS] =
      (struct quota){.limit = o->sessions,
                     .reserve = less(16, o->sessions / 16),
                     .least = 4,
                     .factor = ALL_BUT_RESERVE,
                     .part = 3};
}

uint64_t share_most(const struct share *s, enum share_kind kind) {
  const struct quota *q = &s->all->quota[kind];
  uint64_t others = s->all->engine.used[kind] - s->parent->used[kind];
  uint64_t rest = q->limit > others ? q->limit - others : 0;
  uint64_t spare = rest > q->reserve ? rest - q->reserve : 0;
  uint64_t part = UINT64_C(1) << q->part;
  uint64_t least = less(q->least, (rest + part) / (part + 1));
  spare -= (spare + q->factor) / (q->factor + 1);
  return less(rest, more(least, spare));
}

/* ---- Who is who --------------------------------------------------------- */

enum identity { PROCESS = 1, AGENT, SESSION, HOST };

/* Of its address what the peer cannot choose. */
static void host_of(const struct perigee_session *s, uint64_t key[2]) {
  union socket_address at = {0};
  socklen_t length = sizeof at;
  getpeername(s->fd, &at.any, &length);
  address_plain(&at);
  key[0] = HOST + (uint64_t)at.any.sa_family;
  if (at.any.sa_family == AF_INET)
    key[1] = at.in.sin_addr.s_addr;
  else
    memcpy(&key[1], &at.in6.sin6_addr, sizeof key[1]);
}

/* A process is known by the kernel's word also after its session moved from a
 * Unix socket to loopback (neighbour.h). */
void shares_who(const struct perigee_session *s, uint64_t key[2]) {
  if (s->alone) {
    key[0] = SESSION;
    key[1] = s->id;
  } else if (!s->tcp || s->peer_pid) {
    key[0] = PROCESS;
    key[1] = (uint64_t)s->peer_pid;
  } else if (s->here && !s->dialed && s->terms.probe[0]) {
    key[0] = AGENT;
    key[1] = s->terms.probe[0];
  } else if (s->here) {
    key[0] = SESSION;
    key[1] = s->id;
  } else {
    host_of(s, key);
  }
}

static struct node *bucket(struct shares *all, const uint64_t key[2]) {
  uint64_t hash = 0;
  for (int i = 0; i < 2; i++)
    hash = (hash ^ key[i]) * UINT64_C(0x9e3779b97f4a7c15);
  return &all->peers[hash >> 56];
}

static struct share *peer_of(struct shares *all, const uint64_t key[2]) {
  struct node *head = bucket(all, key);
  for (struct node *n = head->next; n != head; n = n->next) {
    struct share *peer = CONTAINER(n, struct share, node);
    if (memcmp(peer->key, key, sizeof peer->key) == 0)
      return peer;
  }
  struct share *peer = calloc(1, sizeof *peer);
  if (!peer)
    return NULL;
  memcpy(peer->key, key, sizeof peer->key);
  peer->parent = &all->engine;
  peer->all = all;
  list_append(head, &peer->node);
  all->peer_count++;
  return peer;
}

static void peer_leave(struct share *peer) {
  if (peer->members > 0)
    return;
  list_remove(&peer->node);
  peer->all->peer_count--;
  free(peer);
}

/* ---- Sessions ----------------------------------------------------------- */

static bool room_for(struct shares *all) {
  uint32_t room = all->room ? 2 * all->room : 16;
  if (all->spares > 0 || all->count < all->room)
    return true;
  struct share **by_index = realloc(all->by_index, room * sizeof *by_index);
  if (by_index)
    all->by_index = by_index;
  uint32_t *spare = by_index ? realloc(all->spare, room * sizeof *spare) : NULL;
  if (!spare)
    return false;
  all->spare = spare;
  all->room = room;
  return true;
}

static struct share *share_new(struct shares *all, struct share *peer) {
  struct share *s = room_for(all) ? calloc(1, sizeof *s) : NULL;
  if (!s)
    return NULL;
  s->index = all->spares > 0 ? all->spare[--all->spares] : all->count++;
  s->parent = peer;
  s->all = all;
  s->members = 1;
  peer->members++;
  all->by_index[s->index] = s;
  return s;
}

static void share_free(struct share *s) {
  struct shares *all = s->all;
  if (s->members > 0 || s->used[SHARE_POOLED] > 0)
    return;
  all->by_index[s->index] = NULL;
  all->spare[all->spares++] = s->index;
  s->parent->members--;
  peer_leave(s->parent);
  free(s);
}

/* Its socket, and what tells of its process. */
static uint64_t descriptors_of(const struct perigee_session *s) {
  return (s->fd >= 0) + (uint64_t)(s->pidfd >= 0);
}

/* Who was dialed has been asked for. */
static bool may_join(const struct perigee_session *s, const struct share *own) {
  return s->dialed || s->alone ||
         (share_may(own, SHARE_SESSIONS, 1) &&
          share_may(own, SHARE_DESCRIPTORS, descriptors_of(s)));
}

int shares_join(struct perigee_session *s, char *reason, uint64_t size) {
  struct shares *all = &s->engine->shares;
  uint64_t key[2];
  shares_leave(s);
  shares_who(s, key);
  struct share *peer = peer_of(all, key);
  s->share = peer ? share_new(all, peer) : NULL;
  if (!s->share) {
    if (peer)
      peer_leave(peer);
    return PERIGEE_NO_MEMORY;
  }
  s->descriptors = descriptors_of(s);
  bool may = may_join(s, s->share);
  share_add(s->share, SHARE_SESSIONS, 1);
  share_add(s->share, SHARE_DESCRIPTORS, s->descriptors);
  if (may)
    return PERIGEE_OK;
  all->refused++;
  snprintf(reason, size,
           "this peer has %llu sessions already: what is left is kept for "
           "others (options sessions and descriptors)",
           (unsigned long long)peer->used[SHARE_SESSIONS] - 1);
  shares_leave(s);
  return PERIGEE_NO_MEMORY;
}

#ifdef PERIGEE_DEBUG
/* What an ended session still holds, but for blocks that the program has. */
static void check_empty(const struct share *s) {
  for (int i = 0; i < SHARES; i++)
    if (s->used[i] != 0 && i != SHARE_POOLED) {
      fprintf(stderr, "perigee: an ended session holds %llu of kind %d\n",
              (unsigned long long)s->used[i], i);
      abort();
    }
}

/* Each level's sum is what the one above it says. */
static void check_sums(struct shares *all) {
  uint64_t sessions[SHARES] = {0}, peers[SHARES] = {0};
  for (uint32_t i = 1; i < all->count; i++)
    for (int k = 0; all->by_index[i] && k < SHARES; k++)
      sessions[k] += all->by_index[i]->used[k];
  for (int b = 0; b < SHARE_BUCKETS; b++)
    for (struct node *n = all->peers[b].next; n != &all->peers[b]; n = n->next)
      for (int k = 0; k < SHARES; k++)
        peers[k] += CONTAINER(n, struct share, node)->used[k];
  for (int k = 0; k < SHARES; k++)
    if (sessions[k] != peers[k] || peers[k] != all->engine.used[k]) {
      fprintf(stderr, "perigee: shares of kind %d do not add up\n", k);
      abort();
    }
}
#else
static void check_empty(const struct share *s) {
  (void)s;
}

static void check_sums(struct shares *all) {
  (void)all;
}
#endif

void shares_leave(struct perigee_session *s) {
  struct share *share = s->share;
  if (!share)
    return;
  s->share = NULL;
  share_give(share, SHARE_SESSIONS, 1);
  share_give(share, SHARE_DESCRIPTORS, s->descriptors);
  check_empty(share);
  check_sums(share->all);
  share->members = 0;
  share_free(share);
}

void shares_unpool(struct perigee_engine *engine, uint32_t index, uint64_t n) {
  struct share *s = engine->shares.by_index[index];
  share_give(s, SHARE_POOLED, n);
  share_free(s);
}

/* ---- Opening and closing ------------------------------------------------ */

int shares_open(struct perigee_engine *engine) {
  struct shares *all = &engine->shares;
  fill(all, &engine->options);
  all->engine.all = all;
  all->count = 1; /* 0 names nobody */
  for (int i = 0; i < SHARE_BUCKETS; i++)
    list_open(&all->peers[i]);
  return room_for(all) ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

void shares_close(struct perigee_engine *engine) {
  struct shares *all = &engine->shares;
  for (uint32_t i = 1; i < all->count; i++)
    if (all->by_index[i]) { /* for blocks that the program never gave back */
      all->by_index[i]->used[SHARE_POOLED] = all->by_index[i]->members = 0;
      share_free(all->by_index[i]);
    }
  free(all->by_index);
  free(all->spare);
}

/* ---- For programs ------------------------------------------------------- */

void perigee_shares(struct perigee_engine *engine,
                    const struct perigee_session *session,
                    struct perigee_shares *out) {
  LOOK(engine);
  const struct shares *all = &engine->shares;
  const struct share *s = session ? session->share : NULL;
  const struct share *whose = session ? s : &all->engine;
  struct perigee_share kept = {0}, lent = {0}, segments = {0};
  struct perigee_share *to[SHARES] = {[SHARE_OPERATIONS] = &out->operations,
                                      [SHARE_KEPT] = &kept,
                                      [SHARE_POOLED] = &out->pooled,
                                      [SHARE_EXPOSED] = &out->exposed,
                                      [SHARE_LENT] = &lent,
                                      [SHARE_MAPPED] = &out->mapped,
                                      [SHARE_SEGMENTS] = &segments,
                                      [SHARE_DESCRIPTORS] = &out->descriptors,
                                      [SHARE_SESSIONS] = &out->sessions};
  *out = (struct perigee_shares){.refused = all->refused};
  for (int i = 0; i < SHARES && whose; i++)
    *to[i] = (struct perigee_share){
        .used = whose->used[i],
        .peer = s ? s->parent->used[i] : whose->used[i],
        .most = s ? share_most(s, i) : all->quota[i].limit};
  out->operations.used += kept.used;
  out->operations.peer += kept.peer;
  out->exposed.used += lent.used;
  out->exposed.peer += lent.peer;
}
