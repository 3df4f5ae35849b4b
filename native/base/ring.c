/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

#include <stddef.h>

#include "perigee.h"

static bool ring_has_room(struct ring_out *r, uint64_t need) {
  if (r->head + need - r->known <= r->size)
    return true;
  uint64_t seen = atomic_load_explicit(r->consumed, memory_order_acquire);
  /* A value that goes back or is ahead of the head comes from a hostile peer
   * and is ignored: such a peer's ring just stays full. */
  if (seen >= r->known && seen <= r->head)
    r->known = seen;
  return r->head + need - r->known <= r->size;
}

uint8_t *ring_find(struct ring_out *r, uint64_t length) {
  uint64_t need = ring_units(length) * RING_UNIT;
  uint64_t at = r->head & (r->size - 1), rest = r->size - at;
  if (need > r->size / RING_SHARE)
    return NULL;
  if (need <= rest)
    return ring_has_room(r, need) ? r->bytes + at : NULL;
  if (!ring_has_room(r, rest + need))
    return NULL;
  atomic_store_explicit((_Atomic uint64_t *)(void *)(r->bytes + at),
                        ring_word(r->key, r->head, 0), memory_order_release);
  r->head += rest;
  return r->bytes;
}

void ring_open(struct ring_in *r, const uint8_t *bytes, uint64_t size,
               uint64_t key, _Atomic uint64_t *consumed) {
  *r = (struct ring_in){.next = bytes,
                        .empty = ring_word(key, 0, 0),
                        .most = size / RING_SHARE / RING_UNIT,
                        .bytes = bytes,
                        .consumed = consumed,
                        .size = size,
                        .key = key};
}

/* A record follows a skip to the start: no other skip, and not one that is too
 * long. Only the units that were looked at count, as the peer may write the
 * word again. */
__attribute__((noinline, cold)) int ring_rare(struct ring_in *r, uint64_t units,
                                              const uint8_t **bytes,
                                              uint64_t *length) {
  uint64_t rest = r->size - (uint64_t)(r->next - r->bytes);
  if (units > r->most)
    return 0;
  if (units > 0 || rest == r->size)
    return PERIGEE_PROTOCOL;
  ring_advance(r, rest);
  units = ring_look(r);
  if (units > r->most)
    return 0;
  return units > 0 ? ring_take(r, units, bytes, length) : PERIGEE_PROTOCOL;
}
