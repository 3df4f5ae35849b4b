/* SPDX-License-Identifier: Apache-2.0
 *
 * directory.c - the hash table as its writer sees it: layout.h tells how it
 * lies and in which order its words change. Each entry that is added splits up
 * to two buckets, so the table keeps pace with its entries, and no step has to
 * do with more than one chain. A chain has at most CHAIN buckets: keys that
 * strangers choose cannot make longer ones, since they do not know the seed. A
 * client of the host does; its keys are refused beyond that.
 *
 * The table does not shrink.
 */
#include "store.h"

enum { FIRST_BUCKETS = 64, LOAD = 8, SPLITS = 2 };

static uint32_t load32(const _Atomic uint32_t *at) {
  return atomic_load_explicit(at, memory_order_relaxed);
}

static void store32(_Atomic uint32_t *at, uint32_t value) {
  atomic_store_explicit(at, value, memory_order_release);
}

static _Atomic uint32_t *bucket_table(const struct perigee_cache *c) {
  return (_Atomic uint32_t *)(c->pieces[0] + TABLE_AT);
}

static struct bucket *bucket_at(const struct perigee_cache *c, uint32_t at) {
  uint32_t chunk = load32(&bucket_table(c)[at / BUCKETS_A_CHUNK]);
  struct bucket *first = thing(c, chunk * (CHUNK / 8));
  return first + at % BUCKETS_A_CHUNK;
}

static struct bucket *bucket_next(const struct perigee_cache *c,
                                  const struct bucket *b) {
  uint32_t ref = load32(&b->next);
  return ref ? thing(c, ref) : NULL;
}

/* The memory of a chunk that was used before has anything in it. */
static void bucket_clear(struct bucket *b) {
  store32(&b->next, 0);
  for (int i = 0; i < BUCKET_SLOTS; i++)
    store32(&b->refs[i], 0);
}

/* A bucket's sequence is even but while its chain changes. */
static void chain_lock(struct bucket *b) {
  store32(&b->sequence, load32(&b->sequence) + 1);
}

static void chain_unlock(struct bucket *b) {
  store32(&b->sequence, load32(&b->sequence) + 1);
}

static void slot_set(struct bucket *b, int slot, uint32_t ref, uint16_t tag) {
  atomic_store_explicit(&b->tags[slot], tag, memory_order_release);
  store32(&b->refs[slot], ref);
}

int directory_open(struct perigee_cache *c) {
  uint32_t chunk = chunk_take(c);
  store32(bucket_table(c), chunk);
  for (uint32_t i = 0; i < FIRST_BUCKETS; i++)
    bucket_clear(bucket_at(c, i));
  c->head->magic = LAYOUT_MAGIC;
  c->head->abi = PERIGEE_CACHE_ABI;
  memcpy(c->head->seed, c->o.seed, sizeof c->o.seed);
  atomic_store_explicit(&c->head->buckets, FIRST_BUCKETS, memory_order_release);
  return PERIGEE_OK;
}

static struct bucket *chain_of(const struct perigee_cache *c, uint32_t hash) {
  return bucket_at(c, bucket_of(directory_buckets(c), hash));
}

uint32_t directory_find(const struct perigee_cache *c, const struct sought *s,
                        bool sealed) {
  uint64_t what = s->length | (sealed ? SEEN_BIT : 0);
  for (const struct bucket *b = chain_of(c, s->hash); b; b = bucket_next(c, b))
    for (int i = 0; i < BUCKET_SLOTS; i++) {
      uint32_t ref = load32(&b->refs[i]);
      if (!ref ||
          atomic_load_explicit(&b->tags[i], memory_order_relaxed) != s->tag)
        continue;
      const struct entry *r = record(c, ref);
      if ((word(&r->what) & (2 * SEEN_BIT - 1)) == what && is_key(s, r))
        return ref;
    }
  return 0;
}

/* ---- Adding ------------------------------------------------------------ */

/* Finds a free slot in a chain, which gets one more bucket if it has none. */
static int chain_room(struct perigee_cache *c, struct bucket *first,
                      struct bucket **at, int *slot) {
  struct bucket *b = first;
  for (int n = 1;; n++) {
    for (int i = 0; i < BUCKET_SLOTS; i++)
      if (!load32(&b->refs[i])) {
        *at = b;
        *slot = i;
        return PERIGEE_OK;
      }
    struct bucket *next = bucket_next(c, b);
    if (!next && n == CHAIN)
      return PERIGEE_NO_MEMORY;
    if (!next)
      break;
    b = next;
  }
  uint32_t ref = record_take(c, BUCKET);
  if (!ref)
    return record_status(c);
  bucket_clear(thing(c, ref));
  chain_lock(first);
  store32(&b->next, ref);
  chain_unlock(first);
  *at = thing(c, ref);
  *slot = 0;
  return PERIGEE_OK;
}

static bool bucket_is_empty(const struct bucket *b) {
  for (int i = 0; i < BUCKET_SLOTS; i++)
    if (load32(&b->refs[i]))
      return false;
  return true;
}

/* Gives a chain's last buckets back while nothing is in them. */
static void chain_trim(struct perigee_cache *c, struct bucket *first) {
  for (;;) {
    struct bucket *before = first, *b = bucket_next(c, first);
    for (struct bucket *next; b && (next = bucket_next(c, b)); b = next)
      before = b;
    if (!b || !bucket_is_empty(b))
      return;
    uint32_t ref = load32(&before->next);
    chain_lock(first);
    store32(&before->next, 0);
    chain_unlock(first);
    record_give(c, ref);
  }
}

/* ---- Splitting --------------------------------------------------------- */

/* Copies to the new bucket what belongs there; take: or takes it from the old
 * one. */
static int split_pass(struct perigee_cache *c, struct bucket *from,
                      struct bucket *to, uint32_t number, bool take) {
  for (struct bucket *b = from, *at = to; b; b = bucket_next(c, b))
    for (int i = 0; i < BUCKET_SLOTS; i++) {
      uint32_t ref = load32(&b->refs[i]);
      int slot;
      if (!ref || bucket_of((uint64_t)number + 1,
                            what_hash(word(&record(c, ref)->what))) != number)
        continue;
      if (take) {
        store32(&b->refs[i], 0);
        continue;
      }
      int status = chain_room(c, to, &at, &slot);
      if (status < 0)
        return status;
      slot_set(at, slot, ref,
               atomic_load_explicit(&b->tags[i], memory_order_relaxed));
    }
  return PERIGEE_OK;
}

static bool split_ready(struct perigee_cache *c, uint64_t number) {
  _Atomic uint32_t *at = &bucket_table(c)[number / BUCKETS_A_CHUNK];
  if (number == MOST_BUCKETS)
    return false;
  if (number % BUCKETS_A_CHUNK == 0 && !load32(at))
    store32(at, chunk_take(c));
  return load32(at) != 0;
}

static void chain_free(struct perigee_cache *c, struct bucket *first) {
  for (struct bucket *b = first; b; b = bucket_next(c, b))
    for (int i = 0; i < BUCKET_SLOTS; i++)
      store32(&b->refs[i], 0);
  chain_trim(c, first);
}

static void split_one(struct perigee_cache *c) {
  uint64_t number = directory_buckets(c);
  if (!split_ready(c, number))
    return;
  uint64_t half = UINT64_C(1) << (63 - (unsigned)__builtin_clzll(number));
  struct bucket *from = bucket_at(c, (uint32_t)(number - half)),
                *to = bucket_at(c, (uint32_t)number);
  store32(&to->sequence, load32(&to->sequence) & ~1U);
  bucket_clear(to);
  if (split_pass(c, from, to, (uint32_t)number, false) < 0) {
    chain_free(c, to);
    return;
  }
  atomic_store_explicit(&c->head->buckets, number + 1, memory_order_release);
  chain_lock(from);
  split_pass(c, from, to, (uint32_t)number, true);
  chain_unlock(from);
  chain_trim(c, from);
}

/* ---- What entries ask for ---------------------------------------------- */

int directory_add(struct perigee_cache *c, uint32_t ref, uint16_t tag) {
  struct bucket *first = chain_of(c, what_hash(word(&record(c, ref)->what)));
  struct bucket *b = NULL;
  int slot = 0, status = chain_room(c, first, &b, &slot);
  if (status < 0)
    return status;
  chain_lock(first);
  slot_set(b, slot, ref, tag);
  chain_unlock(first);
  c->linked++;
  for (int i = 0; i < SPLITS && c->linked > LOAD * directory_buckets(c); i++)
    split_one(c);
  return PERIGEE_OK;
}

static void chain_drop(struct perigee_cache *c, struct bucket *first,
                       uint32_t ref) {
  for (struct bucket *b = first; b; b = bucket_next(c, b))
    for (int i = 0; i < BUCKET_SLOTS; i++)
      if (load32(&b->refs[i]) == ref) {
        store32(&b->refs[i], 0);
        c->linked--;
        return;
      }
}

void directory_remove(struct perigee_cache *c, uint32_t ref) {
  struct bucket *first = chain_of(c, what_hash(word(&record(c, ref)->what)));
  chain_lock(first);
  chain_drop(c, first, ref);
  chain_unlock(first);
  chain_trim(c, first);
}

/* An entry takes another one's slot, so that lists with a cursor miss no key
 * that stays (answer.c). */
static void chain_replace(struct perigee_cache *c, struct bucket *first,
                          uint32_t ref, uint32_t old) {
  for (struct bucket *b = first; b; b = bucket_next(c, b))
    for (int i = 0; i < BUCKET_SLOTS; i++) {
      uint32_t is = load32(&b->refs[i]);
      if (is == ref || is == old)
        store32(&b->refs[i], is == old ? ref : 0);
    }
  c->linked--;
}

/* Both are of one key, so of one chain, and have one tag. */
void directory_show(struct perigee_cache *c, uint32_t ref, uint32_t old) {
  struct entry *r = record(c, ref);
  struct bucket *first = chain_of(c, what_hash(word(&r->what)));
  chain_lock(first);
  set_word(&r->what, word(&r->what) | SEEN_BIT);
  if (old)
    chain_replace(c, first, ref, old);
  chain_unlock(first);
  if (old)
    chain_trim(c, first);
}

uint32_t directory_at(const struct perigee_cache *c, uint32_t bucket,
                      uint32_t place, bool *end) {
  const struct bucket *b = bucket_at(c, bucket);
  for (; b && place >= BUCKET_SLOTS; place -= BUCKET_SLOTS)
    b = bucket_next(c, b);
  *end = !b;
  return b ? load32(&b->refs[place]) : 0;
}
