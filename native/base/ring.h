/* SPDX-License-Identifier: Apache-2.0
 *
 * ring.h - a single-producer single-consumer byte ring of records in shared
 * memory, with no index line between the two: a record is there when its
 * first word says so.
 *
 * Records are multiples of 64 bytes and never wrap. The word of a record at
 * byte position p (which only grows) of n units of 64 bytes is
 *     key ^ (p / 64 << 20) ^ n
 * with n = 0 for "skip to the start". The consumer waits until the word at its
 * position, with key and position taken off, is a number of units that a
 * record may have. What lay there before is a word of another position, which
 * never fits, or old payload: that fits with probability (units + 1) / 2^64,
 * 2^-56 for the default ring, as nobody but the two sides knows the key.
 *
 * Order: the producer's release store of the word comes after the record's
 * bytes; the consumer's acquire load before reading them. The consumer's
 * release store of `consumed` comes after its last look; the producer's
 * acquire load before it writes there again. Positions of one's own side live
 * in private memory; the peer's position may only advance within the ring.
 *
 * What a short record takes is the way of its lines from one processor to the
 * other, so they are asked for before they are touched. The consumer, who looks
 * at a record's first line only, fetches all others at once when its word is
 * there; the producer, who now has time, makes those its own where the next
 * record of that length will lie. These are hints, of up to RING_AHEAD lines:
 * they read and write nothing, and no order depends on them.
 */
#ifndef RING_H
#define RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { RING_UNIT = 64, RING_SHARE = 4 }; /* a record: ring / 4 at most */
enum { RING_AHEAD = 16 };

struct ring_out {
  uint8_t *bytes;
  const _Atomic uint64_t *consumed; /* the peer's */
  uint64_t size, key;
  uint64_t head;  /* next position to write */
  uint64_t known; /* consumed, as last seen */
};

struct ring_in {
  const uint8_t *bytes;
  _Atomic uint64_t *consumed; /* ours, for the peer to read */
  uint64_t size, key;
  uint64_t tail;     /* next position to read */
  uint64_t released; /* as last told */
};

static inline uint64_t ring_units(uint64_t length) {
  return (length + RING_UNIT - 1) / RING_UNIT;
}

static inline uint64_t ring_word(uint64_t key, uint64_t position,
                                 uint64_t units) {
  return key ^ (position / RING_UNIT << 20) ^ units;
}

/* Room for a record of this length, contiguous, or NULL. */
uint8_t *ring_reserve(struct ring_out *ring, uint64_t length);
/* The others of the record's lines. */
static inline void ring_fetch(const uint8_t *record, uint64_t units) {
  uint64_t count = units < RING_AHEAD ? units : RING_AHEAD;
  while (--count > 0)
    __builtin_prefetch(record += RING_UNIT);
}

/* GCC takes a prefetch for writing only where it is told of the processor; those
 * that do not know this one take it as nothing. */
static inline void line_own(const uint8_t *line) {
#ifdef __x86_64__
  __asm__ volatile("prefetchw %0" : : "m"(*line));
#else
  __builtin_prefetch(line, 1);
#endif
}

/* Up to the ring's end: one that does not fit there will go to the start. */
static inline void ring_own(const struct ring_out *ring, uint64_t units) {
  uint64_t at = ring->head & (ring->size - 1);
  uint64_t count = (ring->size - at) / RING_UNIT;
  if (count > RING_AHEAD)
    count = RING_AHEAD;
  if (count > units)
    count = units;
  for (; count > 0; count--, at += RING_UNIT)
    line_own(ring->bytes + at);
}

/* Publishes what was reserved last; length is at most what was reserved. */
static inline void ring_publish(struct ring_out *ring, uint64_t length) {
  uint64_t units = ring_units(length);
  uint8_t *at = ring->bytes + (ring->head & (ring->size - 1));
  atomic_store_explicit((_Atomic uint64_t *)(void *)at,
                        ring_word(ring->key, ring->head, units),
                        memory_order_release);
  ring->head += units * RING_UNIT;
  ring_own(ring, units);
}
/* 1 and the next record, 0, or PERIGEE_PROTOCOL. */
int ring_peek(struct ring_in *ring, const uint8_t **bytes, uint64_t *length);
/* Gives back all that was peeked, lazily: the peer is told by quarters of the
 * ring, so that the line of `consumed` seldom moves. True if it was told. A
 * producer with nothing left unread always has room for two records. */
bool ring_release(struct ring_in *ring);

#endif
