/* SPDX-License-Identifier: Apache-2.0
 *
 * view.h - a directory that another process writes, or wrote: where things lie.
 * Each offset is checked before it is followed.
 */
#ifndef VIEW_H
#define VIEW_H

#include "cache/layout.h"

struct perigee_cache_view {
  const uint8_t *pieces[PERIGEE_CACHE_PIECES];
};

static inline const struct head *
view_head(const struct perigee_cache_view *view) {
  return (const struct head *)view->pieces[0];
}

/* Returns where a thing of so many bytes lies, or NULL: not in a mapped
 * piece. */
static inline const void *view_thing(const struct perigee_cache_view *view,
                                     uint32_t ref, uint64_t bytes) {
  uint32_t piece = ref / REFS_A_PIECE;
  uint64_t offset = (uint64_t)(ref % REFS_A_PIECE) * 8;
  if (piece >= PERIGEE_CACHE_PIECES || !view->pieces[piece] ||
      offset + bytes > PERIGEE_CACHE_PIECE)
    return NULL;
  return view->pieces[piece] + offset;
}

static inline const struct bucket *
view_bucket(const struct perigee_cache_view *view, uint32_t at) {
  const _Atomic uint32_t *table =
      (const _Atomic uint32_t *)(view->pieces[0] + TABLE_AT);
  if (at >= MOST_BUCKETS)
    return NULL;
  uint32_t chunk =
      atomic_load_explicit(&table[at / BUCKETS_A_CHUNK], memory_order_acquire);
  if (chunk >= CHUNKS)
    return NULL; /* a ref would not fit */
  return view_thing(view, chunk * (CHUNK / 8) + at % BUCKETS_A_CHUNK * 8,
                    BUCKET);
}

#endif
