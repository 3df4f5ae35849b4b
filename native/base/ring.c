/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

#include <stddef.h>

#include "base/least.h"
#include "perigee.h"

/* A value that goes back or is ahead of the head comes from a hostile peer and
 * is ignored: such a peer's ring just stays full. */
static void ring_hear(struct ring_out *r) {
  uint64_t seen = atomic_load_explicit(r->consumed, memory_order_acquire);
  if (seen >= r->known && seen <= r->head)
    r->known = seen;
}

static bool ring_has_room(struct ring_out *r, uint64_t need) {
  if (r->head + need - r->known <= r->size)
    return true;
  ring_hear(r);
  return r->head + need - r->known <= r->size;
}

/* Where a lap ends that may end early, and one that may not: before the last
 * byte, so that ring_find sees a record which ends there. */
static uint64_t lap_short(uint64_t size) {
  return least(size, RING_LAP) - 1;
}

static uint64_t lap_whole(uint64_t size) {
  return size - 1;
}

static _Atomic uint64_t *ring_words(struct ring_out *r, uint64_t at) {
  return (_Atomic uint64_t *)(void *)(r->bytes + at);
}

bool ring_move(struct ring_out *r, uint8_t *bytes, uint64_t size) {
  if (r->lends || !ring_has_room(r, RING_UNIT))
    return false;
  _Atomic uint64_t *words = ring_words(r, r->head & (r->size - 1));
  atomic_store_explicit(&words[1], ring_word(r->key, r->head, RING_MOVE),
                        memory_order_relaxed);
  /* Release: behind the second word. */
  atomic_store_explicit(&words[0], ring_word(r->key, r->head, 0),
                        memory_order_release);
  r->head += RING_UNIT;
  r->bytes = bytes;
  r->size = size;
  r->lap = lap_whole(size);
  r->since = r->head;
  return true;
}

bool ring_is_behind(struct ring_out *r, uint64_t position) {
  if (r->known < position)
    ring_hear(r);
  return r->known >= position;
}

static bool ring_may_own(void) {
#ifdef __x86_64__
  return !__builtin_cpu_is("amd");
#else
  return true;
#endif
}

void ring_begin(struct ring_out *r, uint8_t *bytes, uint64_t size, uint64_t key,
                const _Atomic uint64_t *consumed) {
  *r = (struct ring_out){.bytes = bytes,
                         .consumed = consumed,
                         .size = size,
                         .key = key,
                         .lap = lap_short(size),
                         .owns = ring_may_own()};
}

/* Were all records read, as far as that is told, and is there room at the
 * start? */
static bool ring_is_calm(struct ring_out *r, uint64_t rest, uint64_t need) {
  ring_hear(r);
  return r->head - r->known <= RING_TELL && ring_has_room(r, rest + need);
}

/* A record does not fit before the lap's end: is that the end? Else the lap goes
 * on to the end of the ring. */
static bool ring_ends_early(struct ring_out *r, uint64_t at, uint64_t need) {
  bool may = r->lap < lap_whole(r->size);
  bool early = may && need <= RING_LONG && r->whole == 0 &&
               ring_is_calm(r, r->size - at, need);
  if (early) {
    r->left_out += r->size - at;
    r->since = r->head + r->size - at;
    return true;
  }
  if (may && r->whole > 0)
    r->whole--;
  r->lap = lap_whole(r->size);
  return false;
}

static uint8_t *ring_full(struct ring_out *r) {
  r->whole = RING_WHOLE;
  return NULL;
}

/* Skips to the start, at which there is room. */
static uint8_t *ring_turn(struct ring_out *r, uint64_t at) {
  atomic_store_explicit(ring_words(r, at), ring_word(r->key, r->head, 0),
                        memory_order_release);
  r->head += r->size - at;
  r->lap = lap_short(r->size);
  return r->bytes;
}

static void ring_lends(struct ring_out *r) {
  r->lends = true;
  r->lent_lap = r->lap;
  r->lap = 0;
}

static bool ring_leaves(struct ring_out *r) {
  ring_unlend(r);
  bool left = r->leave(r, r->context);
  if (!left)
    ring_lends(r);
  return left;
}

uint8_t *ring_find(struct ring_out *r, uint64_t length) {
  uint64_t need = ring_units(length) * RING_UNIT;
  if (r->lends && !ring_leaves(r))
    return NULL;
  if (need > RING_LONG && r->longs)
    r->longs(r, need, r->context);
  uint64_t at = r->head & (r->size - 1), rest = r->size - at;
  if (need > ring_most(r->size))
    return NULL;
  if (at + need > r->lap && ring_ends_early(r, at, need))
    return ring_turn(r, at);
  if (!ring_has_room(r, need <= rest ? need : rest + need))
    return ring_full(r);
  if (need < rest)
    return r->bytes + at;
  if (need > rest)
    return ring_turn(r, at);
  r->lap = lap_short(r->size);
  return r->bytes + at;
}

/* None is lent at the end of a lap: readers follow no move behind a skip. Nor is
 * less than RING_LONG, as laps may end early for that. What a program writes
 * beyond its room is found only later, so it must not be a record that was
 * published. */
uint8_t *ring_lend(struct ring_out *r, uint64_t length) {
  uint64_t need = ring_units(length) * RING_UNIT, all = need + RING_STRAY;
  uint64_t at = r->head & (r->size - 1);
  bool may = need > RING_LONG && at + all <= r->size && ring_has_room(r, all);
  uint8_t *room = may ? ring_reserve(r, length) : NULL;
  if (room)
    ring_lends(r);
  return room;
}

/* Room for three of the longest records, and what is not told: so two have room
 * wherever the ring is at. */
void ring_open(struct ring_in *r, const uint8_t *bytes, uint64_t size,
               uint64_t key, _Atomic uint64_t *consumed) {
  uint64_t most = ring_most(size) / RING_UNIT;
  *r = (struct ring_in){
      .next = bytes,
      .empty = ring_word(key, 0, 0),
      .most = most,
      .bytes = bytes,
      .consumed = consumed,
      .size = size,
      .key = key,
      .tell = least(size / RING_SHARE - 3 * RING_HEAD, RING_TELL)};
}

/* Does the skip at the ring's position say that the ring moves? Its first word
 * was acquired. */
static bool ring_says_move(const struct ring_in *r) {
  const _Atomic uint64_t *words =
      (const _Atomic uint64_t *)(const void *)r->next;
  return r->other && atomic_load_explicit(&words[1], memory_order_relaxed) ==
                         ring_word(r->key, r->tail, RING_MOVE);
}

/* Goes on in the other memory; false: the peer was not told of the last move yet.
 * `consumed` is this side's own word. `released` becomes so little that the next
 * release tells the peer. */
static bool ring_follow(struct ring_in *r) {
  const uint8_t *left = r->bytes;
  uint64_t size = r->size;
  if (atomic_load_explicit(r->consumed, memory_order_relaxed) < r->moved)
    return false;
  r->bytes = r->other;
  r->size = r->other_size;
  r->other = left;
  r->other_size = size;
  ring_advance(r, RING_UNIT);
  r->moved = r->tail;
  r->released = r->tail - r->tell;
  return true;
}

/* Goes behind a move, and behind a skip to the start. Returns the units of the
 * record that follows, or as many as no record has; 0, a second skip: the peer
 * broke the protocol. */
static uint64_t ring_pass(struct ring_in *r) {
  if (ring_says_move(r)) {
    if (!ring_follow(r))
      return 0;
    uint64_t units = ring_look(r);
    if (units > 0)
      return units;
  }
  if (r->next == r->bytes)
    return 0;
  ring_advance(r, r->size - (uint64_t)(r->next - r->bytes));
  return ring_look(r);
}

/* The units are those that were looked at, as the peer may write the word
 * again: one that keeps the rules writes it once. */
__attribute__((noinline, cold)) int ring_rare(struct ring_in *r, uint64_t units,
                                              const uint8_t **bytes,
                                              uint64_t *length) {
  if (units == 0 && (units = ring_pass(r)) == 0)
    return PERIGEE_PROTOCOL;
  if (units > r->most)
    return 0;
  return ring_fits(r, units) ? ring_take(r, units, bytes, length)
                             : PERIGEE_PROTOCOL;
}
