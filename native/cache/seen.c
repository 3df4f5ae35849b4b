/* SPDX-License-Identifier: Apache-2.0
 *
 * seen.c - the client's side: which cache has a key, and a view of a directory
 * that another process writes. Each offset is checked before it is followed, and
 * each number of steps is bounded: a chain has CHAIN buckets, and a look is tried
 * TRIES times. A store that died at a write leaves a sequence odd, which ends in
 * PERIGEE_AGAIN. layout.h has the arguments about order.
 */
#include <stdlib.h>

#include "base/pause.h"
#include "view.h"

enum { TRIES = 64 };

uint64_t perigee_cache_hash(const char *bytes, uint64_t length, uint64_t seed) {
  uint64_t key[2] = {seed}, hash;
  crypto_shorthash((unsigned char *)&hash, (const unsigned char *)bytes, length,
                   (const unsigned char *)key);
  return hash;
}

struct perigee_cache_view *perigee_cache_view_open(void) {
  return calloc(1, sizeof(struct perigee_cache_view));
}

void perigee_cache_view_close(struct perigee_cache_view *view) {
  free(view);
}

int perigee_cache_view_piece(struct perigee_cache_view *view, uint32_t number,
                             const void *piece) {
  const struct head *head = piece;
  if (number >= PERIGEE_CACHE_PIECES || !piece || (uintptr_t)piece % 8 != 0)
    return PERIGEE_INVALID;
  if (number == 0 && head->magic != LAYOUT_MAGIC)
    return PERIGEE_PROTOCOL;
  if (number == 0 && head->abi != PERIGEE_CACHE_ABI)
    return PERIGEE_VERSION;
  view->pieces[number] = piece;
  return PERIGEE_OK;
}

int64_t perigee_cache_view_pieces(const struct perigee_cache_view *view) {
  if (!view->pieces[0])
    return PERIGEE_INVALID;
  uint32_t n =
      atomic_load_explicit(&view_head(view)->pieces, memory_order_acquire);
  return n <= PERIGEE_CACHE_PIECES ? (int64_t)n : PERIGEE_PROTOCOL;
}

/* ---- One look ---------------------------------------------------------- */

/* Copies what a record tells, if it is this key's and sealed. PERIGEE_AGAIN: it
 * lies nowhere. */
static int look_record(const struct perigee_cache_view *view, uint32_t ref,
                       const struct sought *s,
                       struct perigee_cache_place *place) {
  const struct entry *r =
      view_thing(view, ref, RECORD + (uint64_t)s->count * 8);
  if (!r)
    return PERIGEE_AGAIN;
  uint64_t what = word(&r->what);
  if ((what & (2 * SEEN_BIT - 1)) != (s->length | SEEN_BIT) ||
      what_hash(what) != s->hash || !is_key(s, r))
    return PERIGEE_NOT_FOUND;
  *place = place_of(r, what);
  return PERIGEE_OK;
}

static int look_bucket(const struct perigee_cache_view *view,
                       const struct bucket *b, const struct sought *s,
                       struct perigee_cache_place *place) {
  for (int i = 0; i < BUCKET_SLOTS; i++) {
    if (atomic_load_explicit(&b->tags[i], memory_order_acquire) != s->tag)
      continue;
    uint32_t ref = atomic_load_explicit(&b->refs[i], memory_order_acquire);
    int status = ref ? look_record(view, ref, s, place) : PERIGEE_NOT_FOUND;
    if (status != PERIGEE_NOT_FOUND)
      return status;
  }
  return PERIGEE_NOT_FOUND;
}

static int look_chain(const struct perigee_cache_view *view,
                      const struct bucket *b, const struct sought *s,
                      struct perigee_cache_place *place) {
  for (int n = 0; n < CHAIN; n++) {
    int status = look_bucket(view, b, s, place);
    if (status != PERIGEE_NOT_FOUND)
      return status;
    uint32_t next = atomic_load_explicit(&b->next, memory_order_acquire);
    if (!next)
      return PERIGEE_NOT_FOUND;
    b = view_thing(view, next, BUCKET);
    if (!b)
      return PERIGEE_AGAIN;
  }
  return PERIGEE_AGAIN; /* longer than the store makes one */
}

/* Returns 1: try again. */
static int look_up(const struct perigee_cache_view *view,
                   const struct sought *s, struct perigee_cache_place *place) {
  const _Atomic uint64_t *buckets = &view_head(view)->buckets;
  uint64_t n = word(buckets);
  if (n == 0 || n > MOST_BUCKETS)
    return PERIGEE_AGAIN;
  uint32_t at = bucket_of(n, s->hash);
  const struct bucket *b = view_bucket(view, at);
  if (!b)
    return PERIGEE_AGAIN;
  uint32_t sequence = atomic_load_explicit(&b->sequence, memory_order_acquire);
  if (sequence & 1)
    return 1;
  int status = look_chain(view, b, s, place);
  if (atomic_load_explicit(&b->sequence, memory_order_acquire) != sequence)
    return 1;
  if (status == PERIGEE_NOT_FOUND && word(buckets) != n)
    return 1; /* it may have moved */
  place->bucket = at;
  place->sequence = sequence;
  return status;
}

int perigee_cache_seen(const struct perigee_cache_view *view, const char *key,
                       uint32_t key_length, struct perigee_cache_place *place) {
  struct perigee_cache_place found;
  struct sought s;
  int status = 1;
  if (!view->pieces[0] ||
      !sought_key(&s, view_head(view)->seed, key, key_length))
    return PERIGEE_INVALID;
  for (int i = 0; i < TRIES && status == 1; i++) {
    status = look_up(view, &s, &found);
    if (status == 1)
      pause_moment();
  }
  if (status == PERIGEE_OK)
    *place = found;
  return status == 1 ? PERIGEE_AGAIN : status;
}

/* The fence: the copy's loads come before the looks. If the bucket has changed,
 * another look could not tell: an entry that comes back from a file has the
 * version that it had, and maybe its place, which another value had meanwhile. */
int perigee_cache_same(const struct perigee_cache_view *view, const char *key,
                       uint32_t key_length,
                       const struct perigee_cache_place *place) {
  (void)key;
  (void)key_length;
  if (!view->pieces[0])
    return 0;
  atomic_thread_fence(memory_order_acquire);
  const struct bucket *b = view_bucket(view, place->bucket);
  return b && atomic_load_explicit(&b->sequence, memory_order_acquire) ==
                  place->sequence;
}
