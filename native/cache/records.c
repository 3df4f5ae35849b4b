/* SPDX-License-Identifier: Apache-2.0
 *
 * records.c - memory of the directory. A chunk has things of one size in words,
 * and goes back when it has none. What the store alone knows of a chunk and its
 * things is elsewhere; only a free thing's first word is used, for the next
 * one's number. Readers may still look at that word, so it is stored like
 * theirs.
 *
 *   a chunk is    event                      becomes
 *   fresh         taken for a size           with room
 *   with room     its last thing is taken    full
 *   full          a thing is given           with room
 *   with room     its last thing is given    free: of any size again
 */
#include "store.h"

#include <stdlib.h>

static uint32_t chunk_things(const struct chunk *k) {
  return CHUNK / 8 / k->words;
}

static void chunk_link(struct perigee_cache *c, uint32_t number) {
  struct chunk *k = &c->chunks[number];
  k->before = 0;
  k->after = c->room[k->words];
  if (k->after)
    c->chunks[k->after].before = number;
  c->room[k->words] = number;
}

static void chunk_unlink(struct perigee_cache *c, uint32_t number) {
  struct chunk *k = &c->chunks[number];
  if (k->before)
    c->chunks[k->before].after = k->after;
  else
    c->room[k->words] = k->after;
  if (k->after)
    c->chunks[k->after].before = k->before;
}

uint32_t chunk_take(struct perigee_cache *c) {
  uint32_t number = c->free_chunk;
  if (number) {
    c->free_chunk = c->chunks[number].after;
  } else {
    if (c->free_chunks == 0)
      return 0;
    number = c->next_chunk++;
  }
  c->free_chunks--;
  c->chunks[number] = (struct chunk){0};
  c->n.directory += CHUNK;
  return number;
}

static uint64_t own_bytes(uint32_t words) {
  return CHUNK / 8 / words * sizeof(struct own);
}

static void chunk_give(struct perigee_cache *c, uint32_t number) {
  c->n.directory -= own_bytes(c->chunks[number].words);
  free(c->chunks[number].own);
  c->chunks[number] = (struct chunk){.after = c->free_chunk};
  c->free_chunk = number;
  c->free_chunks++;
  c->n.directory -= CHUNK;
}

static uint32_t thing_ref(const struct chunk *k, uint32_t number,
                          uint32_t index) {
  return number * (CHUNK / 8) + index * k->words;
}

static uint32_t thing_first(struct perigee_cache *c, uint32_t number) {
  struct chunk *k = &c->chunks[number];
  if (!k->free)
    return thing_ref(k, number, k->fresh++);
  uint32_t ref = thing_ref(k, number, k->free - 1U);
  k->free = (uint16_t)word(thing(c, ref));
  return ref;
}

/* Has a chunk of things of so many words; returns it, or 0. */
static uint32_t chunk_of(struct perigee_cache *c, uint16_t words) {
  struct own *own = malloc(own_bytes(words));
  uint32_t number = own ? chunk_take(c) : 0;
  if (!number) {
    free(own);
    return 0;
  }
  c->chunks[number].words = words;
  c->chunks[number].own = own;
  c->n.directory += own_bytes(words);
  chunk_link(c, number);
  return number;
}

uint32_t record_take(struct perigee_cache *c, uint32_t bytes) {
  uint16_t words = (uint16_t)((bytes + 7) / 8);
  uint32_t number = c->room[words];
  if (!number)
    number = chunk_of(c, words);
  if (!number)
    return 0;
  uint32_t ref = thing_first(c, number);
  own(c, ref)->state = STATE_NONE;
  if (++c->chunks[number].live == chunk_things(&c->chunks[number]))
    chunk_unlink(c, number);
  return ref;
}

void record_give(struct perigee_cache *c, uint32_t ref) {
  uint32_t number = ref / (CHUNK / 8);
  struct chunk *k = &c->chunks[number];
  set_word(thing(c, ref), k->free);
  k->free = (uint16_t)(ref % (CHUNK / 8) / k->words + 1);
  if (k->live-- == chunk_things(k))
    chunk_link(c, number);
  if (k->live == 0) {
    chunk_unlink(c, number);
    chunk_give(c, number);
  }
}

bool records_complete(const struct perigee_cache *c) {
  return c->head &&
         atomic_load_explicit(&c->head->pieces, memory_order_relaxed) ==
             PERIGEE_CACHE_PIECES;
}

int record_status(const struct perigee_cache *c) {
  return c->free_chunks || records_complete(c) ? PERIGEE_NO_MEMORY
                                               : PERIGEE_CACHE_WANTS;
}

bool record_may_be(const struct perigee_cache *c, uint32_t ref,
                   uint32_t words) {
  uint32_t number = ref / (CHUNK / 8);
  if (number < FIRST_CHUNK || number >= c->next_chunk)
    return false;
  const struct chunk *k = &c->chunks[number];
  return k->words >= words && ref % (CHUNK / 8) % k->words == 0 &&
         ref % (CHUNK / 8) / k->words < k->fresh;
}

int64_t perigee_cache_grow(struct perigee_cache *c, void *piece) {
  uint32_t number = c->next_chunk ? 0 : FIRST_CHUNK;
  uint32_t pieces =
      c->head ? atomic_load_explicit(&c->head->pieces, memory_order_relaxed)
              : 0;
  if (!piece || (uintptr_t)piece % 4096 != 0)
    return PERIGEE_INVALID;
  if (pieces == PERIGEE_CACHE_PIECES)
    return PERIGEE_TOO_LARGE;
  c->pieces[pieces] = piece;
  c->free_chunks += CHUNKS_A_PIECE - number;
  if (number) {
    c->next_chunk = number;
    c->head = piece;
    if (directory_open(c) < 0)
      return PERIGEE_NO_MEMORY;
  }
  atomic_store_explicit(&c->head->pieces, pieces + 1, memory_order_release);
  return pieces;
}
