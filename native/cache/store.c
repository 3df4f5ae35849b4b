/* SPDX-License-Identifier: Apache-2.0
 *
 * store.c - opening and closing a store, its options and its counters.
 */
#include "store.h"

#include <stdlib.h>

enum {
  SECOND = 1000000000,
  DEFAULT_SLAB = 64 << 20,
  DEFAULT_CLIENTS = 1024,
  DEFAULT_LEASES = 65536,
  DEFAULT_RESERVED = 256,
  DEFAULT_GROUPS = 4096,
  DEFAULT_EVENTS = 16384,
  DEFAULT_EVENT_BYTES = 1 << 20,
  MOST_CLIENTS = 65535,
  MOST_LEASES = 1 << 26,
  MOST_EVENTS = 1 << 26
};
#define LONGEST (INT64_C(1) << 58)

int perigee_cache_abi(void) {
  return PERIGEE_CACHE_ABI;
}

static void default64(uint64_t *value, uint64_t is) {
  if (*value == 0)
    *value = is;
}

static void default32(uint32_t *value, uint32_t is) {
  if (*value == 0)
    *value = is;
}

static void default_time(int64_t *value, int64_t is) {
  if (*value == 0)
    *value = is;
}

static void options_fill(struct perigee_cache_options *o) {
  static const uint8_t none[sizeof o->seed];
  default64(&o->slab, DEFAULT_SLAB);
  default64(&o->hard, o->quota / 2);
  default_time(&o->lease, INT64_C(10) * SECOND);
  default_time(&o->margin, o->lease / 8);
  default_time(&o->decay, INT64_C(60) * SECOND);
  default32(&o->clients, DEFAULT_CLIENTS);
  default32(&o->leases, DEFAULT_LEASES);
  default32(&o->leases_each, o->leases / 8);
  default32(&o->reserved_each, DEFAULT_RESERVED);
  default32(&o->groups, DEFAULT_GROUPS);
  default32(&o->events, DEFAULT_EVENTS);
  default32(&o->event_bytes, DEFAULT_EVENT_BYTES);
  o->high = o->high ? o->high : 95;
  o->low = o->low ? o->low : 90;
  if (memcmp(o->seed, none, sizeof none) == 0)
    randombytes_buf(o->seed, sizeof o->seed);
}

static bool is_power(uint32_t n) {
  return (n & (n - 1)) == 0;
}

static bool options_are_sound(const struct perigee_cache_options *o) {
  return o->slab >= 4096 && o->slab <= PERIGEE_CACHE_LARGEST && o->lease > 0 &&
         o->lease < LONGEST && o->margin > 0 && o->margin < LONGEST &&
         o->decay > 0 && o->decay < LONGEST && o->clients <= MOST_CLIENTS &&
         o->leases <= MOST_LEASES && o->leases_each > 0 &&
         o->groups <= MOST_LEASES && is_power(o->events) &&
         o->events <= MOST_EVENTS && is_power(o->event_bytes) &&
         o->event_bytes >= PERIGEE_CACHE_KEY &&
         o->event_bytes <= UINT32_C(1) << 31 && o->low <= o->high &&
         o->high <= 100 && o->lfu <= 1;
}

static int store_fill(struct perigee_cache *c) {
  c->chunks = calloc(CHUNKS, sizeof *c->chunks);
  c->slabs = calloc(SLABS, sizeof *c->slabs);
  if (!c->chunks || !c->slabs)
    return PERIGEE_NO_MEMORY;
  int status = ties_open(c);
  if (status == 0)
    status = leases_open(c);
  if (status == 0)
    status = events_open(c);
  return status;
}

int perigee_cache_open(const struct perigee_cache_options *options, int64_t now,
                       struct perigee_cache **cache) {
  if (sodium_init() < 0)
    return PERIGEE_SYSTEM;
  struct perigee_cache *c = calloc(1, sizeof *c);
  if (!c)
    return PERIGEE_NO_MEMORY;
  c->o = *options;
  options_fill(&c->o);
  c->began = c->now = now;
  c->starved = NONE;
  int status = options_are_sound(&c->o) ? store_fill(c) : PERIGEE_INVALID;
  if (status < 0) {
    perigee_cache_close(c);
    return status;
  }
  *cache = c;
  return PERIGEE_OK;
}

void perigee_cache_close(struct perigee_cache *c) {
  for (uint32_t i = 0; c->slabs && i < c->slab_end; i++)
    free(c->slabs[i].owners);
  for (uint32_t i = 0; c->chunks && i < c->next_chunk; i++)
    free(c->chunks[i].own);
  for (uint32_t i = 0; c->extras && i <= c->extra_end >> EXTRA_SHIFT; i++)
    free(c->extras[i]);
  free(c->extras);
  free(c->chunks);
  free(c->slabs);
  free(c->groups);
  free(c->group_heads);
  free(c->leases);
  free(c->clients);
  free(c->events);
  free(c->event_keys);
  free(c->heat);
  free(c);
}

void perigee_cache_quota(struct perigee_cache *c, uint64_t quota) {
  c->o.quota = quota;
  c->wanted = 0;
}

void perigee_cache_huge(struct perigee_cache *c, uint64_t huge) {
  c->n.huge = huge;
}

void perigee_cache_failed(struct perigee_cache *c) {
  c->n.failed++;
}

static void count_below(const struct perigee_cache *below,
                        struct perigee_cache_counters *counters) {
  const struct perigee_cache_counters *n = &below->n;
  counters->hits += n->hits;
  counters->leases += n->leases;
  counters->directory += n->directory;
  counters->spilled = n->entries;
  counters->spill_quota = below->o.quota;
  counters->spill_slabs = below->slab_bytes;
  counters->spill_used = n->used;
  counters->spill_values = n->values;
  counters->spill_evicted = n->evicted;
}

void perigee_cache_count(const struct perigee_cache *c,
                         struct perigee_cache_counters *counters) {
  *counters = c->n;
  counters->quota = c->o.quota;
  counters->slabs = c->slab_bytes;
  counters->buckets = directory_buckets(c);
  if (c->spills)
    count_below(c->below, counters);
}
