/* SPDX-License-Identifier: Apache-2.0
 *
 * ring.h - a single-producer single-consumer byte ring of records in shared
 * memory, without a shared index that both sides would touch: the first word of
 * a record says that the record is there.
 *
 * Records are multiples of 64 bytes and never wrap. The word of a record of n
 * units of 64 bytes at byte position p (which only grows) is
 *     key ^ (p / 64 << 20) ^ n
 * with n = 0 for "skip to the start". The consumer polls the word at its
 * position until, with key and position removed, it is a size that a record may
 * have. The bytes that were there before are either a word of another position,
 * which never fits, or old payload, which fits with probability (units + 1) /
 * 2^64 (2^-56 for the default ring), as only the two sides know the key.
 *
 * Ordering: the producer writes the record's bytes and then the word with a
 * release store; the consumer reads the word with an acquire load and then the
 * bytes. The consumer stores `consumed` with release after its last read; the
 * producer loads it with acquire before it writes there again. Each side keeps
 * its own position in private memory; the peer's position is believed only if
 * it advances within the ring.
 *
 * The time of a short record is that of its cache lines moving from one
 * processor to the other, so both sides prefetch. The consumer polls a record's
 * first line only and fetches all others at once when the word is there. While
 * it finds one record behind another, it also fetches one further on. The
 * producer then takes the lines where the next record of that length will be
 * for writing. These are hints for up to RING_AHEAD lines: no value and no
 * order depends on them.
 *
 * On AMD the producer takes no lines ahead, except where short records follow each
 * other. One record at a time takes 0.9 to 1.0 of the time without that. 64 under way
 * would take 1.05 of the time near, and 1.25 far (bench/history/tried.md, "Small calls
 * over shared memory"). We believe that the producer's requests for the next lines
 * delay the consumer's for those that were just written; and that, where records
 * follow each other, the producer itself would wait for them.
 *
 * A lap may end early. Lines that were used again soon are in the first-level
 * caches of both cores, and move sooner from one to the other; others take up
 * memory for nothing. So a producer whose records are short and read at once goes
 * back to the start after RING_LAP bytes: by a skip, which may be anywhere but at
 * the start. If it then finds no room, RING_WHOLE laps use all of the ring.
 *
 * A ring may move: its records go on in other memory, which both sides know by
 * then, and may come back in the same way. The word of a move is that of a skip
 * with a second word behind it,
 *     key ^ (p / 64 << 20) ^ RING_MOVE
 * Positions go on, so no word of one memory fits into the other later. The
 * longest record, and how often `consumed` is told, stay those of the memory
 * with which the ring was opened. The consumer tells `consumed` at the next
 * release behind a move, so its producer knows when nobody reads the memory
 * that was left. A producer that moves again before that breaks the protocol. It
 * publishes what it has reserved before the ring may move.
 *
 * Room may be lent: a program fills the record that comes next, for as long as it
 * takes, and the record is published then without a copy. The other side polls
 * the room's first line meanwhile, so the program writes behind that line only. If
 * another record comes first, the ring moves away from the room (leave).
 */
#ifndef RING_H
#define RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The largest record: a quarter of the ring, and RING_HEAD for its header. */
enum { RING_UNIT = 64, RING_SHARE = 4, RING_HEAD = 2 * RING_UNIT };
enum { RING_AHEAD = 16, RING_FAR = 3 };
enum { RING_LAP = 8 << 10, RING_TELL = 4 << 10, RING_WHOLE = 64 };
enum { RING_LONG = 2 * RING_AHEAD * RING_UNIT };
enum { RING_MOVE = (1 << 20) - 1 }; /* more units than a record has */
enum { RING_STRAY = 16 << 10 }; /* bytes behind lent room, without a record */

struct ring_out {
  uint8_t *bytes;
  const _Atomic uint64_t *consumed; /* written by the peer */
  uint64_t size, key;
  uint64_t head;     /* next position to write */
  uint64_t known;    /* the last value of consumed that was believed */
  uint64_t lap;      /* up to here, records of this lap need no look */
  uint64_t left_out; /* bytes of laps that ended early */
  uint64_t since;    /* from here on laps were whole, and in this memory; if it
                        does not stream, they went through the caches */
  uint32_t whole;    /* laps that do not end early */
  bool streams;      /* long records are written past the caches */
  bool owns;         /* the next record's lines are always taken ahead */
  /* Called a few times for each length of the ring, if the record that comes next
   * is longer than RING_LONG; it may move the ring. NULL: nobody is. */
  void (*longs)(struct ring_out *ring, uint64_t length, void *context);
  void *context;
  bool lends;        /* the room that comes next is lent. lap is 0 then, so that
                        ring_find has each record that comes first .. */
  uint64_t lent_lap; /* .. and this is what it was */
  /* Called if a record comes before that in the room that is lent: has the ring
   * go on elsewhere (ring_move). False: it could not, and nothing is written. */
  bool (*leave)(struct ring_out *ring, void *context);
};

/* Filled in by ring_open(). next, empty and most are what a look needs, so that
 * one which finds nothing is a load and a comparison. */
struct ring_in {
  const uint8_t *next; /* where the next record will be */
  uint64_t empty;      /* the word there of a record of no units */
  uint64_t most;       /* units of the largest record */
  const uint8_t *bytes;
  _Atomic uint64_t *consumed; /* ours; the peer reads it */
  uint64_t size, key;
  uint64_t tail;        /* next position to read */
  uint64_t released;    /* the value last stored in consumed, or less .. */
  uint64_t tell;        /* .. which is told after so many bytes */
  const uint8_t *other; /* memory that the ring may move to, or NULL .. */
  uint64_t other_size;  /* .. and its size, a power of two */
  uint64_t moved;       /* the position behind the last move */
};

static inline uint64_t ring_units(uint64_t length) {
  return (length + RING_UNIT - 1) / RING_UNIT;
}

/* Returns the length of the longest record. */
static inline uint64_t ring_most(uint64_t size) {
  return size / RING_SHARE + RING_HEAD;
}

static inline uint64_t ring_word(uint64_t key, uint64_t position,
                                 uint64_t units) {
  return key ^ (position / RING_UNIT << 20) ^ units;
}

/* Returns contiguous room for a record of this length, or NULL if it is full.
 * ring_find does it where that may need a look at `consumed`, or a skip. */
uint8_t *ring_find(struct ring_out *ring, uint64_t length);
static inline uint8_t *ring_reserve(struct ring_out *ring, uint64_t length) {
  uint64_t need = ring_units(length) * RING_UNIT;
  uint64_t at = ring->head & (ring->size - 1);
  bool easy = need <= ring_most(ring->size) && at + need <= ring->lap &&
              ring->head + need - ring->known <= ring->size;
  return __builtin_expect(easy, 1) ? ring->bytes + at : ring_find(ring, length);
}
/* Fetches all lines of the record but its first. Most have two. */
static inline void ring_fetch(const uint8_t *record, uint64_t units) {
  if (units > 1)
    __builtin_prefetch(record + RING_UNIT);
  if (__builtin_expect(units <= 2, 1))
    return;
  uint64_t count = units < RING_AHEAD ? units : RING_AHEAD;
  for (uint64_t i = 2; i < count; i++)
    __builtin_prefetch(record + i * RING_UNIT);
}

/* Takes a line for writing. GCC emits prefetchw only for processors that it was
 * told of; older processors execute it as a no-op. */
static inline void line_own(const uint8_t *line) {
#ifdef __x86_64__
  __asm__ volatile("prefetchw %0" : : "m"(*line));
#else
  __builtin_prefetch(line, 1);
#endif
}

/* Takes the next record's lines for writing; behind the end of the ring is its
 * start. */
static inline void ring_own(const struct ring_out *ring, uint64_t units) {
  uint64_t mask = ring->size - 1, at = ring->head;
  line_own(ring->bytes + (at & mask));
  if (units > 1)
    line_own(ring->bytes + ((at + RING_UNIT) & mask));
  if (__builtin_expect(units <= 2, 1))
    return;
  uint64_t count = units < RING_AHEAD ? units : RING_AHEAD;
  for (uint64_t i = 2; i < count; i++)
    line_own(ring->bytes + ((at + i * RING_UNIT) & mask));
}

/* Publishes the room that was reserved last, at `at`; length may be less than
 * reserved. follows: another record was published since the session's last poll (a
 * hint). */
static inline void ring_publish_at(struct ring_out *ring, uint8_t *at,
                                   uint64_t length, bool follows) {
  uint64_t units = ring_units(length), head = ring->head;
  atomic_store_explicit((_Atomic uint64_t *)(void *)at,
                        ring_word(ring->key, head, units),
                        memory_order_release);
  ring->head = head + units * RING_UNIT;
  if (ring->owns || (follows && units <= RING_AHEAD))
    ring_own(ring, units);
}
static inline void ring_publish(struct ring_out *ring, uint64_t length) {
  ring_publish_at(ring, ring->bytes + (ring->head & (ring->size - 1)), length,
                  false);
}
/* Lends room for a record of this length, or returns NULL. One room may be lent
 * at a time. */
uint8_t *ring_lend(struct ring_out *ring, uint64_t length);
/* The room that comes next is not lent any more, if it was. */
static inline void ring_unlend(struct ring_out *ring) {
  if (ring->lends)
    ring->lap = ring->lent_lap;
  ring->lends = false;
}
/* Moves the ring to other memory, whose size is a power of two. False: there is
 * no room to say so, or the room there is lent. */
bool ring_move(struct ring_out *ring, uint8_t *bytes, uint64_t size);
/* Has the consumer told that it is behind that position? */
bool ring_is_behind(struct ring_out *ring, uint64_t position);
/* A ring to write, from its beginning. The size is a power of two. */
void ring_begin(struct ring_out *ring, uint8_t *bytes, uint64_t size,
                uint64_t key, const _Atomic uint64_t *consumed);
/* A ring to read, from its beginning. The size is a power of two. */
void ring_open(struct ring_in *ring, const uint8_t *bytes, uint64_t size,
               uint64_t key, _Atomic uint64_t *consumed);
/* The word at the ring's position, without key and position; acquired. */
static inline uint64_t ring_look(const struct ring_in *ring) {
  return ring->empty ^ atomic_load_explicit(
                           (const _Atomic uint64_t *)(const void *)ring->next,
                           memory_order_acquire);
}
/* False: ring_peek() would return 0. */
static inline bool ring_has(const struct ring_in *ring) {
  return ring_look(ring) <= ring->most;
}
/* Called when one record was handled and the next is there, as there may be many.
 * Fetches all lines of the record RING_FAR records behind the next, if it is
 * short. It is looked for as if all had the next one's length: so the processor
 * needs no word that is still on its way to know where that is. */
static inline void ring_ahead(const struct ring_in *ring) {
  uint64_t units = ring_look(ring), mask = ring->size - 1;
  if (units - 1 >= RING_AHEAD)
    return; /* it is no record, or long */
  uint64_t at = (ring->tail + RING_FAR * units * RING_UNIT) & mask;
  if (at + units * RING_UNIT > ring->size)
    return;
  __builtin_prefetch(ring->bytes + at);
  ring_fetch(ring->bytes + at, units);
}
/* Goes on behind a record of that length, or behind a skip. */
static inline __attribute__((always_inline)) void
ring_advance(struct ring_in *ring, uint64_t length) {
  ring->tail += length;
  ring->next = ring->bytes + (ring->tail & (ring->size - 1));
  ring->empty = ring_word(ring->key, ring->tail, 0);
}
static inline bool ring_fits(const struct ring_in *ring, uint64_t units) {
  uint64_t rest = ring->size - (uint64_t)(ring->next - ring->bytes);
  return units <= ring->most && units * RING_UNIT <= rest;
}
static inline int ring_take(struct ring_in *ring, uint64_t units,
                            const uint8_t **bytes, uint64_t *length) {
  ring_fetch(ring->next, units);
  *bytes = ring->next;
  *length = units * RING_UNIT;
  ring_advance(ring, units * RING_UNIT);
  return 1;
}
/* Returns 1 and the next record, 0 if there is none, or PERIGEE_PROTOCOL.
 * ring_rare does it where the word has other units than a record that fits. */
int ring_rare(struct ring_in *ring, uint64_t units, const uint8_t **bytes,
              uint64_t *length);
static inline int ring_peek(struct ring_in *ring, const uint8_t **bytes,
                            uint64_t *length) {
  uint64_t units = ring_look(ring);
  bool easy = units > 0 && ring_fits(ring, units);
  return __builtin_expect(easy, 1) ? ring_take(ring, units, bytes, length)
                                   : ring_rare(ring, units, bytes, length);
}
/* Frees all records that were peeked. The peer is told only after each RING_TELL
 * bytes, in a short ring after less, so that the line of `consumed` seldom
 * moves; returns true if it was told now. A producer whose records were all read
 * has room for two records. */
static inline bool ring_release(struct ring_in *r) {
  if (r->tail - r->released < r->tell)
    return false;
  r->released = r->tail;
  atomic_store_explicit(r->consumed, r->tail, memory_order_release);
  return true;
}

#endif
