/* SPDX-License-Identifier: Apache-2.0
 *
 * layout.h - the directory as the store writes it, and as clients of the host
 * read it: a linear hash table of 64-byte buckets, and a record for each entry.
 *
 * Pieces make one space of offsets, and are cut into chunks of 64 KiB. A chunk
 * has buckets, or things of one size. Chunk 0 is the head; the 16 after it are
 * a table that says which chunks have the buckets. A thing is named by its ref:
 * its offset over 8.
 *
 * The table grows by one bucket at a time: bucket n of a table of n takes over
 * half of an older bucket, so nothing ever pauses. Overflow buckets are things
 * of 64 bytes.
 *
 * Order. Each word that readers see is stored with release and loaded with
 * acquire, which on x86-64 costs nothing. A writer makes `sequence` of a
 * chain's first bucket odd, stores, and makes it even. A reader loads the
 * sequence, words, and the sequence again. If it loaded a word that was stored
 * after the sequence became odd, then that load acquires what precedes the
 * store: the second load of the sequence finds it changed. The same holds for a
 * record that was freed and used again: its new words are stored after the
 * sequence of its former chain was raised. A bucket that splits is copied
 * first, then `buckets` is raised, then the copies are taken from the old one.
 * A reader that misses an entry for that reason has acquired the taking, so it
 * finds `buckets` changed when it loads it again.
 */
#ifndef LAYOUT_H
#define LAYOUT_H

#include <sodium.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cache/cache.h"
#include "perigee.h"

#define LAYOUT_MAGIC UINT64_C(0x3165686361636770)

enum {
  CHUNK = 65536,
  CHUNKS_A_PIECE = PERIGEE_CACHE_PIECE / CHUNK,
  CHUNKS = PERIGEE_CACHE_PIECES * CHUNKS_A_PIECE,
  BUCKET = 64,
  BUCKETS_A_CHUNK = CHUNK / BUCKET,
  BUCKET_SLOTS = 9,
  CHAIN = 8, /* buckets of a chain at most */
  TABLE_AT = CHUNK,
  TABLE_CHUNKS = 16, /* 2^18 numbers of chunks: 2^28 buckets */
  FIRST_CHUNK = 1 + TABLE_CHUNKS,
  REFS_A_PIECE = PERIGEE_CACHE_PIECE / 8,
  KEY_WORDS = PERIGEE_CACHE_KEY / 8,
  PLACE_UNIT = 1024
};
#define MOST_BUCKETS (UINT64_C(1) << 28)

struct head {
  uint64_t magic;
  uint32_t abi, unused;
  uint8_t seed[16];
  _Atomic uint64_t buckets;
  _Atomic uint32_t pieces;
};

/* next: the ref of the chain's next bucket, or 0; a slot without a ref is
 * free. */
struct bucket {
  _Atomic uint32_t sequence, next;
  _Atomic uint32_t refs[BUCKET_SLOTS];
  _Atomic uint16_t tags[BUCKET_SLOTS];
  uint16_t unused;
};
_Static_assert(sizeof(struct bucket) == BUCKET, "a bucket is a cache line");

/* what: hash, index of the slab, marks, length of the key. where: how
 * often that index was used before, place in the slab in units, length of the
 * value. All that the store alone needs to know of an entry lies elsewhere, so
 * all words of the directory are atomic. */
struct entry {
  _Atomic uint64_t what, where, version, checksum, key[];
};
enum { RECORD = 32 };
_Static_assert(offsetof(struct entry, key) == RECORD, "no gaps in a record");

static inline uint64_t word(const _Atomic uint64_t *at) {
  return atomic_load_explicit(at, memory_order_acquire);
}

static inline void set_word(_Atomic uint64_t *at, uint64_t value) {
  atomic_store_explicit(at, value, memory_order_release);
}

/* SEEN: readers see it. For who puts entries back when the store's process has
 * ended: MORTAL, it has a TTL; its pin. */
#define SEEN_BIT (UINT64_C(1) << 10)
#define MORTAL_BIT (UINT64_C(1) << 11)
enum { PIN_SHIFT = 12 };
#define PIN_BITS (UINT64_C(3) << PIN_SHIFT)

static inline uint64_t what_of(uint32_t hash, uint32_t length) {
  return (uint64_t)hash << 32 | length;
}
static inline uint64_t what_at(uint64_t what, uint32_t slab) {
  return (what & ~(UINT64_C(0xffff) << 16)) | (uint64_t)slab << 16;
}
static inline uint64_t what_pinned(uint64_t what, uint32_t pin) {
  return (what & ~PIN_BITS) | (uint64_t)pin << PIN_SHIFT;
}
static inline uint32_t what_hash(uint64_t what) {
  return (uint32_t)(what >> 32);
}
static inline uint32_t what_slab(uint64_t what) {
  return what >> 16 & 0xffff;
}
static inline uint32_t what_length(uint64_t what) {
  return what & (SEEN_BIT - 1);
}

/* A slab's number: how often its index was used before, and its index. */
enum { INDEX_BITS = 16, PLACE_BITS = 20, GENERATIONS = 1 << 12 };

static inline uint32_t slab_index(uint32_t number) {
  return number & ((1 << INDEX_BITS) - 1);
}
static inline uint64_t where_of(uint32_t slab, uint32_t place,
                                uint64_t length) {
  return (uint64_t)(slab >> INDEX_BITS) << (32 + PLACE_BITS) |
         (uint64_t)place << 32 | length;
}
static inline uint32_t where_place(uint64_t where) {
  return (where >> 32) & ((1 << PLACE_BITS) - 1);
}
static inline uint32_t where_length(uint64_t where) {
  return (uint32_t)where;
}
static inline uint32_t slab_number(uint64_t what, uint64_t where) {
  return (uint32_t)(where >> (32 + PLACE_BITS)) << INDEX_BITS | what_slab(what);
}
static inline struct perigee_cache_place place_of(const struct entry *r,
                                                  uint64_t what) {
  uint64_t where = word(&r->where);
  return (struct perigee_cache_place){.offset = (uint64_t)where_place(where) *
                                                PLACE_UNIT,
                                      .length = where_length(where),
                                      .version = word(&r->version),
                                      .checksum = word(&r->checksum),
                                      .slab = slab_number(what, where)};
}

/* A key as words, filled up with zeros; its hash, of which the lower half picks
 * the bucket and the upper 16 bits are the tag. The seed is the store's own,
 * and the hash is SipHash, so strangers cannot choose keys of one bucket. The
 * hash is of the words: the key may lie where a client writes meanwhile. */
struct sought {
  uint64_t words[KEY_WORDS];
  uint32_t length, count, hash;
  uint16_t tag;
};

static inline bool sought_key(struct sought *s, const uint8_t seed[16],
                              const void *key, uint64_t length) {
  uint64_t hash;
  if (!key || length == 0 || length > PERIGEE_CACHE_KEY)
    return false;
  s->length = (uint32_t)length;
  s->count = (s->length + 7) / 8;
  s->words[s->count - 1] = 0;
  memcpy(s->words, key, length);
  crypto_shorthash((unsigned char *)&hash, (const unsigned char *)s->words,
                   length, seed);
  s->hash = (uint32_t)hash;
  s->tag = (uint16_t)(hash >> 48);
  return true;
}

static inline bool is_key(const struct sought *s, const struct entry *record) {
  uint64_t differ = 0;
  for (uint32_t i = 0; i < s->count; i++)
    differ |= s->words[i] ^ word(&record->key[i]);
  return differ == 0;
}

/* Returns which of `buckets` (1 at least) buckets a hash is in. */
static inline uint32_t bucket_of(uint64_t buckets, uint32_t hash) {
  uint32_t half = UINT32_C(1) << (63 - (unsigned)__builtin_clzll(buckets)),
           at = hash & (2 * half - 1);
  return at < buckets ? at : at & (half - 1);
}

#endif
