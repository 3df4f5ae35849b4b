/* SPDX-License-Identifier: Apache-2.0
 *
 * cached_readers.h - a writer that puts, deletes and replaces entries of a
 * store as fast as it can, and readers that look them up in the mapped
 * directory, copy their bytes without a lease, and look again. A value says
 * throughout whose it is, so a copy that the second look lets pass is checked
 * whole. Values are stored and loaded as relaxed words: the order is the
 * store's, not theirs.
 */
#ifndef CACHED_READERS_H
#define CACHED_READERS_H

#include "cached.h"

enum { READER_KEYS = 600, READER_PIECES = 2, VALUE_WORDS = 96 };

struct readers_room {
  _Atomic uint64_t stop, good[8], bad;
  struct cached k;
};

static inline uint64_t readers_roll(uint64_t *dice) {
  *dice = *dice * UINT64_C(6364136223846793005) + 1442695040888963407;
  return *dice >> 33;
}

static inline uint64_t readers_word(uint64_t key, uint64_t stamp, uint64_t at) {
  return (key << 48) ^ (stamp << 8) ^ at;
}

static inline uint32_t readers_key(uint64_t key, char name[128]) {
  return (uint32_t)snprintf(name, 128, "%0*d", 4 + (int)key % 90, (int)key);
}

/* ---- Writing ----------------------------------------------------------- */

static inline void readers_put(struct cached *k, uint64_t key, uint64_t stamp,
                               uint64_t words) {
  struct perigee_cache_put put = {.length = words * 8};
  struct perigee_cache_place place;
  char name[128];
  readers_key(key, name);
  if (cached_reserve(k, name, &put, &place) < 0)
    return;
  _Atomic uint64_t *to = (void *)(cached_slab(k, place.slab) + place.offset);
  for (uint64_t i = 0; i < words; i++)
    atomic_store_explicit(&to[i], readers_word(key, stamp, i),
                          memory_order_relaxed);
  perigee_cache_seal(k->cache, place.entry, stamp, k->now);
}

/* Keys come and go in waves, so buckets are split, chains grow and shrink, and
 * records are used again for keys of other lengths. */
static inline void readers_write(struct cached *k, uint64_t step,
                                 uint64_t *dice) {
  uint64_t key = readers_roll(dice) % READER_KEYS;
  char name[128];
  readers_key(key, name);
  if (readers_roll(dice) % 2 == 0)
    cached_delete(k, name);
  else
    readers_put(k, key, step, 1 + readers_roll(dice) % VALUE_WORDS);
  if (step % 4 == 0) {
    int length = snprintf(name, sizeof name, "grow/%lu", (unsigned long)step);
    cached_put(k, name, 0);
    if (step % 8 == 0)
      perigee_cache_delete(k->cache, name, (uint32_t)length);
  }
}

static inline struct cached readers_open(void) {
  struct perigee_cache_options o = {
      .quota = 4 * MB, .slab = 4 * MB, .reserved_each = 8};
  struct cached k = cached_open(&o);
  while (k.piece_count < READER_PIECES)
    cached_grow(&k);
  readers_put(&k, 0, 0, 1);
  return k;
}

/* ---- Reading ----------------------------------------------------------- */

static inline struct perigee_cache_view *readers_view(const struct cached *k) {
  struct perigee_cache_view *view = perigee_cache_view_open();
  for (uint32_t i = 0; i < k->piece_count; i++)
    if (perigee_cache_view_piece(view, i, k->pieces[i]) < 0)
      abort();
  return view;
}

static inline bool readers_is_of(const uint64_t *words, uint64_t count,
                                 uint64_t key, uint64_t stamp) {
  for (uint64_t i = 0; i < count; i++)
    if (words[i] != readers_word(key, stamp, i))
      return false;
  return true;
}

/* Looks one key up. Returns 1: a whole copy of it; 0: none; -1: other bytes. */
static inline int readers_read(const struct cached *k,
                               const struct perigee_cache_view *view,
                               uint64_t key) {
  struct perigee_cache_place place;
  uint64_t words[VALUE_WORDS];
  char name[128];
  uint32_t length = readers_key(key, name);
  int status = perigee_cache_seen(view, name, length, &place);
  if (status == PERIGEE_NOT_FOUND || status == PERIGEE_AGAIN)
    return 0;
  if (status < 0 || place.slab != 0 || place.length > sizeof words ||
      place.offset + place.length > 4 * MB)
    return -1;
  const _Atomic uint64_t *from =
      (const void *)((const char *)k->slabs[0] + place.offset);
  for (uint64_t i = 0; i < place.length / 8; i++)
    words[i] = atomic_load_explicit(&from[i], memory_order_relaxed);
  if (!perigee_cache_same(view, name, length, &place))
    return 0;
  return readers_is_of(words, place.length / 8, key, place.checksum) ? 1 : -1;
}

/* Reads until it is told to stop. */
static inline void readers_run(struct readers_room *room, int number) {
  struct perigee_cache_view *view = readers_view(&room->k);
  uint64_t dice = (uint64_t)number + 1;
  while (!atomic_load_explicit(&room->stop, memory_order_relaxed)) {
    int result =
        readers_read(&room->k, view, readers_roll(&dice) % READER_KEYS);
    if (result != 0)
      atomic_fetch_add_explicit(result > 0 ? &room->good[number] : &room->bad,
                                1, memory_order_relaxed);
  }
  perigee_cache_view_close(view);
}

#endif
