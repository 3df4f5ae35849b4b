/* SPDX-License-Identifier: Apache-2.0 */
#include "shares.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "least.h"
#include "perigee.h"

/* ---- Quotas ------------------------------------------------------------- */

/* The sockets of listeners and the program's own files are not counted. */
static uint64_t shares_descriptors(const struct perigee_options *o) {
  struct rlimit limit = {.rlim_cur = 1024};
  if (o->descriptors > 0)
    return o->descriptors;
  getrlimit(RLIMIT_NOFILE, &limit);
  uint64_t most = least(limit.rlim_cur, 1 << 24);
  return most - most / 8;
}

/* A segment takes at most two mappings of its area. A quarter of the mappings
 * that a process may have is used for them; the rest is the program's. */
static uint64_t shares_segments(void) {
  unsigned long long most = 65530;
  FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
  if (f && fscanf(f, "%llu", &most) != 1)
    most = 65530;
  if (f)
    fclose(f);
  return most / 8;
}

/* An eighth of the operations is kept for own ones, whatever peers do. One peer
 * may have nearly all sessions and their descriptors: these cost little, and
 * what the peer can do with them is bounded by the other quotas. */
static void shares_fill(struct shares *all, const struct perigee_options *o) {
  enum { ALL_BUT_RESERVE = 1 << 30 };
  uint64_t served = o->operations - greatest(8, o->operations / 8);
  uint64_t files = shares_descriptors(o);
  all->own = o->operations - (uint32_t)greatest(9, o->operations / 16);
  all->easy = o->operations / 2;
  all->quota[SHARE_OPERATIONS] = (struct quota){
      .limit = served,
      .reserve = served / 16,
      .least = least(o->serving, greatest(4, least(128, served / 64))),
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
  all->quota[SHARE_LENT].limit = shares_half(o);
  all->quota[SHARE_MAPPED] = (struct quota){.limit = o->mapped,
                                            .reserve = o->mapped / 16,
                                            .least = o->mapped / 1024,
                                            .factor = 2,
                                            .part = 5};
  uint64_t maps = shares_segments();
  all->quota[SHARE_SEGMENTS] = (struct quota){.limit = maps,
                                              .reserve = maps / 16,
                                              .least = maps / 256,
                                              .factor = 2,
                                              .part = 6};
  all->quota[SHARE_FILLED] = (struct quota){.limit = o->pool / 64,
                                            .reserve = o->pool / 1024,
                                            .least = o->pool / 4096,
                                            .factor = 1,
                                            .part = 5};
  /* A session that gets none of it is pulled from. */
  all->quota[SHARE_STAGED] = (struct quota){.limit = o->pool / 16,
                                            .reserve = o->pool / 256,
                                            .least = o->pool / 256,
                                            .factor = 1};
  all->quota[SHARE_DESCRIPTORS] =
      (struct quota){.limit = files,
                     .reserve = least(64, files / 8),
                     .least = 8,
                     .factor = ALL_BUT_RESERVE,
                     .part = 3};
  all->quota[SHARE_SESSIONS] =
      (struct quota){.limit = o->sessions,
                     .reserve = least(16, o->sessions / 16),
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
  uint64_t even = least(q->least, (rest + part) / (part + 1));
  spare -= (spare + q->factor) / (q->factor + 1);
  return least(rest, greatest(even, spare));
}

/* ---- Peers --------------------------------------------------------------- */

static struct node *shares_bucket(struct shares *all, const uint64_t key[2]) {
  uint64_t hash = 0;
  for (int i = 0; i < 2; i++)
    hash = (hash ^ key[i]) * UINT64_C(0x9e3779b97f4a7c15);
  return &all->peers[hash >> 56];
}

static struct share *shares_peer(struct shares *all, const uint64_t key[2]) {
  struct node *head = shares_bucket(all, key);
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

static void share_peer_leave(struct share *peer) {
  if (peer->members > 0)
    return;
  list_remove(&peer->node);
  peer->all->peer_count--;
  free(peer);
}

/* ---- Sessions ----------------------------------------------------------- */

static bool shares_make_room(struct shares *all) {
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
  struct share *s = shares_make_room(all) ? calloc(1, sizeof *s) : NULL;
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

struct share *share_join(struct shares *all, const uint64_t key[2]) {
  struct share *peer = shares_peer(all, key);
  struct share *s = peer ? share_new(all, peer) : NULL;
  if (peer && !s)
    share_peer_leave(peer);
  return s;
}

static void share_free(struct share *s) {
  struct shares *all = s->all;
  if (s->members > 0 || s->used[SHARE_POOLED] > 0)
    return;
  all->by_index[s->index] = NULL;
  all->spare[all->spares++] = s->index;
  s->parent->members--;
  share_peer_leave(s->parent);
  free(s);
}

#ifdef PERIGEE_DEBUG
/* Aborts if an ended session still holds anything but pooled blocks. */
static void share_check_empty(const struct share *s) {
  for (int i = 0; i < SHARES; i++)
    if (s->used[i] != 0 && i != SHARE_POOLED) {
      fprintf(stderr, "perigee: an ended session holds %llu of kind %d\n",
              (unsigned long long)s->used[i], i);
      abort();
    }
}

/* Aborts if the sums of one level differ from the level above. */
static void shares_check_sums(struct shares *all) {
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
static void share_check_empty(const struct share *s) {
  (void)s;
}

static void shares_check_sums(struct shares *all) {
  (void)all;
}
#endif

void share_leave(struct share *s) {
  share_check_empty(s);
  shares_check_sums(s->all);
  s->members = 0;
  share_free(s);
}

void shares_unpool(struct shares *all, uint32_t index, uint64_t n) {
  struct share *s = all->by_index[index];
  share_give(s, SHARE_POOLED, n);
  share_free(s);
}

/* ---- Opening and closing ------------------------------------------------ */

int shares_open(struct shares *all, const struct perigee_options *options) {
  shares_fill(all, options);
  all->engine.all = all;
  all->count = 1; /* index 0 stands for the engine */
  for (int i = 0; i < SHARE_BUCKETS; i++)
    list_open(&all->peers[i]);
  return shares_make_room(all) ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

void shares_close(struct shares *all) {
  for (uint32_t i = 1; i < all->count; i++)
    if (all->by_index[i]) { /* the program never gave its blocks back */
      all->by_index[i]->used[SHARE_POOLED] = all->by_index[i]->members = 0;
      share_free(all->by_index[i]);
    }
  free(all->by_index);
  free(all->spare);
}
