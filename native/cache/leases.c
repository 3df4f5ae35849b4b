/* SPDX-License-Identifier: Apache-2.0
 *
 * leases.c - clients, and who may read what until when. All leases last equally
 * long, so they end in the order in which they were granted. A lease's number
 * has its index + 1 and its generation, so that an old number is none.
 *
 * The place of an entry that was removed stays taken while it has leases. One
 * ends when it is given back, when `lease` plus `margin` are over, or when its
 * client is gone; spec/model/lease.pml shows that this is late enough.
 */
#include <stdlib.h>

#include "store.h"

int leases_open(struct perigee_cache *c) {
  c->leases = calloc(c->o.leases, sizeof *c->leases);
  c->clients = calloc(c->o.clients, sizeof *c->clients);
  return c->leases && c->clients ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

struct client *client_of(struct perigee_cache *c, uint32_t client) {
  if (client >= c->client_end || !c->clients[client].there)
    return NULL;
  return &c->clients[client];
}

/* ---- Lists: by time, and of a client ----------------------------------- */

static struct lease *lease_at(struct perigee_cache *c, uint32_t at) {
  return &c->leases[at - 1];
}

static void lease_link(struct perigee_cache *c, uint32_t at) {
  struct lease *l = lease_at(c, at);
  struct ends *own = &c->clients[l->client].leases;
  l->before = c->granted.last;
  l->earlier = own->last;
  l->after = l->later = 0;
  *(l->before ? &lease_at(c, l->before)->after : &c->granted.first) = at;
  *(l->earlier ? &lease_at(c, l->earlier)->later : &own->first) = at;
  c->granted.last = own->last = at;
}

static void lease_unlink(struct perigee_cache *c, uint32_t at) {
  const struct lease *l = lease_at(c, at);
  struct ends *all = &c->granted, *own = &c->clients[l->client].leases;
  *(l->before ? &lease_at(c, l->before)->after : &all->first) = l->after;
  *(l->after ? &lease_at(c, l->after)->before : &all->last) = l->before;
  *(l->earlier ? &lease_at(c, l->earlier)->later : &own->first) = l->later;
  *(l->later ? &lease_at(c, l->later)->earlier : &own->last) = l->earlier;
}

/* ---- Granting and ending ----------------------------------------------- */

static uint32_t lease_free(struct perigee_cache *c) {
  uint32_t at = c->free_lease;
  if (at)
    c->free_lease = lease_at(c, at)->after;
  else if (c->lease_end < c->o.leases)
    at = ++c->lease_end;
  return at;
}

/* Returns the lease's number, or 0. */
static uint64_t lease_grant(struct perigee_cache *c, uint32_t client,
                            uint32_t ref, int64_t now) {
  struct client *k = &c->clients[client];
  struct own *e = own(c, ref);
  if (k->leased >= c->o.leases_each || e->leases == UINT16_MAX)
    return 0;
  uint32_t at = lease_free(c);
  if (!at)
    return 0;
  struct lease *l = lease_at(c, at);
  l->until = now + c->o.lease + c->o.margin;
  l->entry = ref;
  l->client = client;
  l->generation++;
  lease_link(c, at);
  e->leases++;
  k->leased++;
  c->n.leases++;
  return (uint64_t)l->generation << 32 | at;
}

static void lease_over(struct perigee_cache *c, uint32_t at) {
  struct lease *l = lease_at(c, at);
  uint32_t ref = l->entry;
  lease_unlink(c, at);
  c->clients[l->client].leased--;
  c->n.leases--;
  l->entry = 0;
  l->after = c->free_lease;
  c->free_lease = at;
  own(c, ref)->leases--;
  entry_settle(c, ref);
}

void leases_turn(struct perigee_cache *c, int64_t now, uint32_t *budget) {
  for (; *budget > 0 && c->granted.first; (*budget)--) {
    if (lease_at(c, c->granted.first)->until > now)
      return;
    lease_over(c, c->granted.first);
  }
}

/* ---- What clients ask for ---------------------------------------------- */

static void client_free(struct perigee_cache *c, uint32_t number) {
  struct client *k = &c->clients[number];
  k->there = false;
  k->next = c->free_client;
  c->free_client = number + 1;
  c->n.clients--;
}

int64_t perigee_cache_client(struct perigee_cache *c) {
  uint32_t number = c->free_client ? c->free_client - 1 : c->client_end;
  if (number >= c->o.clients)
    return PERIGEE_NO_MEMORY;
  if (c->free_client)
    c->free_client = c->clients[number].next;
  else
    c->client_end++;
  c->clients[number] = (struct client){.there = true};
  c->n.clients++;
  int64_t below = c->spills ? perigee_cache_client(c->below) : 0;
  c->clients[number].below = (uint32_t)below;
  if (below < 0)
    client_free(c, number);
  return below < 0 ? below : number;
}

int perigee_cache_client_gone(struct perigee_cache *c, uint32_t client) {
  struct client *k = client_of(c, client);
  if (!k)
    return PERIGEE_INVALID;
  while (k->reservation)
    entry_remove(c, k->reservation, 0);
  while (k->leases.first)
    lease_over(c, k->leases.first);
  if (c->spills)
    perigee_cache_client_gone(c->below, k->below);
  client_free(c, client);
  return PERIGEE_OK;
}

/* Grants a lease of the entry that is found; *ref: it, or 0. */
static int lease_found(struct perigee_cache *c, uint32_t client,
                       const char *key, uint32_t key_length, int64_t now,
                       struct perigee_cache_place *place, uint32_t *ref) {
  *ref = 0;
  if (!client_of(c, client))
    return PERIGEE_INVALID;
  c->now = now;
  *ref = entry_find(c, key, key_length, now);
  uint64_t lease = *ref ? lease_grant(c, client, *ref, now) : 0;
  if (!lease)
    return *ref ? PERIGEE_AGAIN : PERIGEE_NOT_FOUND;
  entry_place(c, *ref, place);
  place->lease = lease;
  return PERIGEE_OK;
}

int perigee_cache_locate(struct perigee_cache *c, uint32_t client,
                         const char *key, uint32_t key_length, int64_t now,
                         struct perigee_cache_place *place) {
  uint32_t ref;
  int status = lease_found(c, client, key, key_length, now, place, &ref);
  c->n.misses += status == PERIGEE_NOT_FOUND;
  if (status < 0)
    return status;
  c->n.hits++;
  entry_use(c, ref);
  return PERIGEE_OK;
}

int perigee_cache_lease(struct perigee_cache *c, uint32_t client,
                        const char *key, uint32_t key_length, int64_t now,
                        struct perigee_cache_place *place) {
  uint32_t ref;
  return lease_found(c, client, key, key_length, now, place, &ref);
}

int perigee_cache_release(struct perigee_cache *c, uint32_t client,
                          uint64_t lease) {
  uint32_t at = (uint32_t)lease;
  if (at == 0 || at > c->lease_end)
    return PERIGEE_STALE;
  const struct lease *l = lease_at(c, at);
  if (l->entry == 0 || l->client != client || l->generation != lease >> 32)
    return PERIGEE_STALE;
  lease_over(c, at);
  return PERIGEE_OK;
}
