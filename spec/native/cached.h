/* SPDX-License-Identifier: Apache-2.0
 *
 * cached.h - a store of tests, whose clock is a number and whose memory is
 * anonymous, or shared with child processes.
 */
#ifndef CACHED_H
#define CACHED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cache/store.h"

#include <cmocka.h>

enum { CACHED_SLABS = 256, KB = 1 << 10, MB = 1 << 20 };
#define SECONDS INT64_C(1000000000)

struct cached {
  struct perigee_cache *cache;
  int64_t now;
  uint32_t client;
  void *slabs[CACHED_SLABS];
  uint64_t lengths[CACHED_SLABS];
  void *pieces[PERIGEE_CACHE_PIECES];
  uint32_t piece_count;
};

static inline void *cached_map(uint64_t length) {
  void *p = mmap(NULL, length, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  assert_true(p != MAP_FAILED);
  return p;
}

static inline void cached_grow(struct cached *k) {
  void *piece = cached_map(PERIGEE_CACHE_PIECE);
  assert_int_equal(perigee_cache_grow(k->cache, piece), k->piece_count);
  k->pieces[k->piece_count++] = piece;
}

static inline struct cached
cached_open(const struct perigee_cache_options *options) {
  struct cached k = {.now = 5 * SECONDS};
  assert_int_equal(perigee_cache_open(options, k.now, &k.cache), 0);
  cached_grow(&k);
  k.client = (uint32_t)perigee_cache_client(k.cache);
  return k;
}

static inline void cached_close(struct cached *k) {
  perigee_cache_close(k->cache);
  for (uint32_t i = 0; i < k->piece_count; i++)
    munmap(k->pieces[i], PERIGEE_CACHE_PIECE);
  for (int i = 0; i < CACHED_SLABS; i++)
    if (k->slabs[i])
      munmap(k->slabs[i], k->lengths[i]);
}

/* Returns where the slab of this number lies. */
static inline char *cached_slab(const struct cached *k, uint32_t number) {
  return k->slabs[number & 0xffff];
}

/* Gives what is wanted, and takes back what is of no use. */
static inline void cached_feed(struct cached *k) {
  struct perigee_cache_want want;
  perigee_cache_wants(k->cache, &want);
  for (; want.idle >= 0; perigee_cache_wants(k->cache, &want)) {
    assert_int_equal(perigee_cache_remove(k->cache, (uint32_t)want.idle), 0);
    munmap(cached_slab(k, (uint32_t)want.idle), k->lengths[want.idle & 0xffff]);
    k->slabs[want.idle & 0xffff] = NULL;
  }
  if (want.pieces)
    cached_grow(k);
  if (!want.slab)
    return;
  void *slab = cached_map(want.slab);
  int64_t number = perigee_cache_add(k->cache, slab, want.slab);
  assert_int_equal(number, want.next);
  assert_in_range(number & 0xffff, 0, CACHED_SLABS - 1);
  k->slabs[number & 0xffff] = slab;
  k->lengths[number & 0xffff] = want.slab;
}

static inline int cached_reserve_as(struct cached *k, const char *key,
                                    uint32_t length,
                                    const struct perigee_cache_put *put,
                                    struct perigee_cache_place *place) {
  int status;
  while ((status = perigee_cache_reserve(k->cache, key, length, put, k->now,
                                         place)) == PERIGEE_CACHE_WANTS)
    cached_feed(k);
  return status;
}

static inline int cached_reserve(struct cached *k, const char *key,
                                 const struct perigee_cache_put *put,
                                 struct perigee_cache_place *place) {
  struct perigee_cache_put own = *put;
  own.client = k->client;
  return cached_reserve_as(k, key, (uint32_t)strlen(key), &own, place);
}

/* Returns the version, or a status. */
static inline int64_t cached_put_as(struct cached *k, const char *key,
                                    const struct perigee_cache_put *put) {
  struct perigee_cache_place place;
  int status = cached_reserve(k, key, put, &place);
  if (status < 0)
    return status;
  return perigee_cache_seal(k->cache, place.entry, 0, k->now);
}

static inline int64_t cached_put(struct cached *k, const char *key,
                                 uint64_t length) {
  return cached_put_as(k, key, &(struct perigee_cache_put){.length = length});
}

static inline int cached_has(struct cached *k, const char *key) {
  struct perigee_cache_place place;
  int status =
      perigee_cache_stat(k->cache, key, (uint32_t)strlen(key), k->now, &place);
  return status == PERIGEE_OK;
}

static inline int cached_locate(struct cached *k, const char *key,
                                struct perigee_cache_place *place) {
  return perigee_cache_locate(k->cache, k->client, key, (uint32_t)strlen(key),
                              k->now, place);
}

static inline int cached_delete(struct cached *k, const char *key) {
  return perigee_cache_delete(k->cache, key, (uint32_t)strlen(key));
}

static inline struct perigee_cache_counters cached_count(struct cached *k) {
  struct perigee_cache_counters n;
  perigee_cache_count(k->cache, &n);
  return n;
}

static inline void cached_turn(struct cached *k) {
  for (int i = 0; i < 1000 && perigee_cache_turn(k->cache, k->now, 1000); i++)
    ;
}

#endif
