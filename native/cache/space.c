/* SPDX-License-Identifier: Apache-2.0
 *
 * space.c - slabs, and places in them. A slab has places of one size; sizes go
 * from 4 KiB to 1 GiB by four steps a power of two, so of a place at most a
 * fifth is waste. A slab is used for a size only if at most an eighth of it is
 * left over behind its last place.
 *
 *   a slab is      event                       becomes
 *   empty          a size takes it             with room
 *   with room      its last place is taken     full
 *   full           a place is given            with room
 *   with room      its last entry has gone     empty
 *   any            another size needs it       draining: no place is taken
 *   draining       its last entry has gone     empty
 *   draining       an entry in it cannot go    with room, or full (stuck)
 *   empty          the caller takes it back    gone
 *
 * A slab that is retired is in no list: nothing new comes to it, and when it is
 * empty the caller takes it back.
 */
#include <stdlib.h>

#include "store.h"

enum { LEAST_SHIFT = 12, LOOKS = 64 };

int size_of(uint64_t length) {
  if (length <= UINT64_C(1) << LEAST_SHIFT)
    return 0;
  unsigned power = 63 - (unsigned)__builtin_clzll(length - 1);
  uint64_t step = ((length - 1) - (UINT64_C(1) << power)) >> (power - 2);
  return (int)((power - LEAST_SHIFT) * 4 + step + 1);
}

uint64_t size_bytes(int size) {
  if (size == 0)
    return UINT64_C(1) << LEAST_SHIFT;
  unsigned power = LEAST_SHIFT + (unsigned)(size - 1) / 4;
  uint64_t steps = (unsigned)(size - 1) % 4 + 1;
  return (UINT64_C(1) << power) + (steps << (power - 2));
}

/* ---- Lists of slabs, by index + 1 -------------------------------------- */

static uint32_t slab_number_at(const struct perigee_cache *c, uint32_t index) {
  return c->slabs[index].generation << INDEX_BITS | index;
}

static uint32_t *slab_list(struct perigee_cache *c, const struct slab *s) {
  return s->size == NONE ? &c->empty : &c->with_room[s->size];
}

static void slab_link(struct perigee_cache *c, uint32_t number) {
  struct slab *s = &c->slabs[number];
  uint32_t *list = slab_list(c, s);
  if (s->retired)
    return;
  s->listed = true;
  s->before = 0;
  s->after = *list;
  if (s->after)
    c->slabs[s->after - 1].before = number + 1;
  *list = number + 1;
}

static void slab_unlink(struct perigee_cache *c, uint32_t number) {
  struct slab *s = &c->slabs[number];
  if (!s->listed)
    return;
  s->listed = false;
  if (s->before)
    c->slabs[s->before - 1].after = s->after;
  else
    *slab_list(c, s) = s->after;
  if (s->after)
    c->slabs[s->after - 1].before = s->before;
}

/* ---- Sizes and slabs --------------------------------------------------- */

static uint64_t places_bytes(const struct perigee_cache *c, uint64_t places,
                             int size) {
  return places * size_bytes(size) + (c->file ? table_bytes(places) : 0);
}

uint64_t slab_places(const struct perigee_cache *c, uint64_t length, int size) {
  uint64_t places = length / size_bytes(size);
  if (c->file)
    places = length * RECORDS / (size_bytes(size) * RECORDS + BLOCK) + 1;
  while (places > 0 && places_bytes(c, places, size) > length)
    places--;
  return places;
}

static bool slab_fits(const struct perigee_cache *c, uint64_t length,
                      int size) {
  uint64_t places = slab_places(c, length, size);
  return places > 0 && length - places_bytes(c, places, size) <= length / 8;
}

/* Returns how long a slab for this size should be: an ordinary one, if that
 * fits; else one with just as many places as go into an ordinary one, or
 * one. */
static uint64_t slab_wanted(const struct perigee_cache *c, int size) {
  uint64_t places = c->o.slab / size_bytes(size);
  return slab_fits(c, c->o.slab, size)
             ? c->o.slab
             : places_bytes(c, places ? places : 1, size);
}

static uint32_t empty_slab(const struct perigee_cache *c, int size) {
  uint32_t at = c->empty;
  for (int i = 0; at && i < LOOKS; i++, at = c->slabs[at - 1].after)
    if (slab_fits(c, c->slabs[at - 1].length, size))
      return at;
  return 0;
}

bool space_has(const struct perigee_cache *c, int size) {
  return c->with_room[size] || empty_slab(c, size) ||
         c->slab_bytes - c->empty_bytes + slab_wanted(c, size) <= c->o.quota;
}

static int slab_begin(struct perigee_cache *c, uint32_t number, int size) {
  struct slab *s = &c->slabs[number];
  uint64_t places = slab_places(c, s->length, size);
  uint32_t *owners = places ? calloc(places, sizeof *owners) : NULL;
  if (!owners)
    return PERIGEE_NO_MEMORY;
  slab_unlink(c, number);
  c->empty_bytes -= s->length;
  s->owners = owners;
  s->places = (uint32_t)places;
  s->size = (int16_t)size;
  s->fresh = s->free = s->live = s->fixed = s->mobile = 0;
  slab_link(c, number);
  return PERIGEE_OK;
}

static void slab_end(struct perigee_cache *c, uint32_t number) {
  struct slab *s = &c->slabs[number];
  slab_unlink(c, number);
  free(s->owners);
  s->owners = NULL;
  s->size = NONE;
  s->draining = false;
  if (c->drained == number + 1)
    c->drained = 0;
  c->empty_bytes += s->length;
  slab_link(c, number);
  if (c->changed)
    c->changed(c->file, CHANGE_ENDED, number);
}

static int slab_use(struct perigee_cache *c, uint32_t number, int size) {
  int status = slab_begin(c, number, size);
  if (status == 0 && c->changed)
    c->changed(c->file, CHANGE_BEGUN, number);
  return status;
}

/* Has a slab with room, or says what is wanted. */
static int slab_for(struct perigee_cache *c, int size) {
  uint32_t at = empty_slab(c, size);
  uint64_t wanted = slab_wanted(c, size);
  if (at)
    return slab_use(c, at - 1, size);
  if (c->slab_bytes - c->empty_bytes + wanted > c->o.quota)
    return PERIGEE_NO_MEMORY;
  c->wanted = wanted;
  return PERIGEE_CACHE_WANTS;
}

/* ---- Places ------------------------------------------------------------ */

/* The fence: bytes that are written to the place are not seen before the former
 * entry's removal from the directory (perigee_cache_same). */
int space_take(struct perigee_cache *c, int size, uint32_t entry,
               uint32_t *slab, uint32_t *place) {
  int status = c->with_room[size] ? PERIGEE_OK : slab_for(c, size);
  if (status < 0)
    return status;
  uint32_t number = c->with_room[size] - 1;
  struct slab *s = &c->slabs[number];
  uint32_t at = s->free ? s->free - 1 : s->fresh++;
  if (s->free)
    s->free = s->owners[at] & ~EMPTY;
  s->owners[at] = entry;
  if (++s->live == s->places)
    slab_unlink(c, number);
  c->n.used += size_bytes(size);
  *slab = slab_number_at(c, number);
  *place = (uint32_t)(at * (size_bytes(size) / PLACE_UNIT));
  atomic_thread_fence(memory_order_release);
  return PERIGEE_OK;
}

/* Places that are left out are free. */
static void place_restore(struct perigee_cache *c, uint32_t number, uint32_t at,
                          uint32_t entry) {
  struct slab *s = &c->slabs[number];
  for (; s->fresh < at; s->fresh++) {
    s->owners[s->fresh] = EMPTY | s->free;
    s->free = s->fresh + 1;
  }
  s->owners[s->fresh++] = entry;
  if (++s->live == s->places)
    slab_unlink(c, number);
}

int space_restore(struct perigee_cache *c, int size, uint32_t entry,
                  const struct perigee_cache_place *place) {
  uint32_t number = slab_index(place->slab);
  uint64_t bytes = size_bytes(size), at = place->offset / bytes;
  if (number >= c->slab_end || !c->slabs[number].there ||
      slab_number_at(c, number) != place->slab)
    return PERIGEE_RANGE;
  const struct slab *s = &c->slabs[number];
  bool begun = s->size != NONE;
  if (place->offset % bytes != 0 || at >= slab_places(c, s->length, size) ||
      (begun && (s->size != size || s->draining || at < s->fresh)))
    return PERIGEE_RANGE;
  int status = begun ? PERIGEE_OK : slab_begin(c, number, size);
  if (status < 0)
    return status;
  place_restore(c, number, (uint32_t)at, entry);
  c->n.used += bytes;
  return PERIGEE_OK;
}

void space_give(struct perigee_cache *c, uint32_t number, uint32_t offset) {
  struct slab *s = &c->slabs[number];
  uint64_t bytes = size_bytes(s->size);
  uint32_t at = (uint32_t)(offset / (bytes / PLACE_UNIT));
  s->owners[at] = EMPTY | s->free;
  s->free = at + 1;
  s->live--;
  c->n.used -= bytes;
  if (s->live == 0)
    slab_end(c, number);
  else if (!s->listed && !s->draining)
    slab_link(c, number);
}

/* ---- Draining ---------------------------------------------------------- */

static bool slab_stays(const struct slab *s, int size, uint32_t now) {
  return (s->size == size && !s->retired) || s->fixed > 0 || s->stuck == now;
}

/* Would a slab for this size have room within the quota if all went that can?
 * Else nothing has to go for it. */
static bool space_may_have(const struct perigee_cache *c, int size,
                           uint32_t now) {
  uint64_t bytes = slab_wanted(c, size);
  for (uint32_t i = 0; i < c->slab_end; i++) {
    const struct slab *s = &c->slabs[i];
    if (s->there && s->size != NONE && slab_stays(s, size, now))
      bytes += s->length;
  }
  return bytes <= c->o.quota;
}

bool space_waits(const struct perigee_cache *c, int size) {
  uint32_t now = tick_of(c, c->now) + 1;
  for (uint32_t i = 0; i < c->slab_end; i++) {
    const struct slab *s = &c->slabs[i];
    if (s->there && s->size != NONE && s->mobile < s->live &&
        !slab_stays(s, size, now))
      return size == NONE || space_may_have(c, size, now);
  }
  return false;
}

/* The one with the fewest bytes in use is emptied. One of which an entry cannot
 * go is left out until the next tick, so that others have their turn and a turn
 * of the store ends. */
uint32_t space_drain(struct perigee_cache *c, int size) {
  uint32_t best = 0, now = tick_of(c, c->now) + 1;
  uint64_t least = UINT64_MAX;
  if (size != NONE && !space_may_have(c, size, now))
    return 0;
  for (uint32_t i = 0; i < c->slab_end; i++) {
    const struct slab *s = &c->slabs[i];
    if (!s->there || s->size == NONE || s->mobile < s->live ||
        slab_stays(s, size, now))
      continue;
    uint64_t live = s->live * size_bytes(s->size);
    if (live < least) {
      least = live;
      best = i + 1;
    }
  }
  if (best) {
    slab_unlink(c, best - 1);
    c->slabs[best - 1].draining = true;
  }
  return best;
}

void space_stuck(struct perigee_cache *c, uint32_t number) {
  struct slab *s = &c->slabs[number];
  s->draining = false;
  s->stuck = tick_of(c, c->now) + 1;
  if (!s->listed && s->live < s->places)
    slab_link(c, number);
}

/* ---- The caller's side ------------------------------------------------- */

static uint32_t slab_free_index(const struct perigee_cache *c) {
  uint32_t at = 0;
  while (at < c->slab_end && c->slabs[at].there)
    at++;
  return at;
}

int64_t perigee_cache_add(struct perigee_cache *c, void *pointer,
                          uint64_t length) {
  uint32_t at = slab_free_index(c);
  if (length < size_bytes(0) ||
      length > PERIGEE_CACHE_LARGEST + (c->file ? table_bytes(1) : 0))
    return PERIGEE_INVALID;
  if (at == SLABS)
    return PERIGEE_TOO_LARGE;
  c->slab_end += at == c->slab_end;
  c->slabs[at] = (struct slab){.pointer = pointer,
                               .length = length,
                               .generation = c->slabs[at].generation,
                               .size = NONE,
                               .there = true};
  c->slab_bytes += length;
  c->empty_bytes += length;
  c->wanted = 0;
  slab_link(c, at);
  return slab_number_at(c, at);
}

int perigee_cache_remove(struct perigee_cache *c, uint32_t number) {
  uint32_t at = slab_index(number);
  if (at >= c->slab_end || !c->slabs[at].there ||
      slab_number_at(c, at) != number)
    return PERIGEE_INVALID;
  struct slab *s = &c->slabs[at];
  if (s->size != NONE)
    return PERIGEE_AGAIN;
  slab_unlink(c, at);
  c->slab_bytes -= s->length;
  c->empty_bytes -= s->length;
  s->there = false;
  c->retired -= s->retired;
  s->generation = (s->generation + 1) % GENERATIONS;
  return PERIGEE_OK;
}

/* An empty slab is of no use beyond the quota, or with what is wanted. That is
 * not wanted any more if slabs that were empty are in use meanwhile. */
int perigee_cache_retire(struct perigee_cache *c, uint32_t number) {
  uint32_t at = slab_index(number);
  if (at >= c->slab_end || !c->slabs[at].there ||
      slab_number_at(c, at) != number)
    return PERIGEE_INVALID;
  struct slab *s = &c->slabs[at];
  c->retired += !s->retired;
  slab_unlink(c, at);
  s->retired = true;
  return PERIGEE_OK;
}

/* Returns the number of an empty slab that is of no use, or -1. */
static int64_t slab_idle(const struct perigee_cache *c) {
  for (uint32_t i = 0; c->retired > 0 && i < c->slab_end; i++)
    if (c->slabs[i].there && c->slabs[i].retired && c->slabs[i].size == NONE)
      return slab_number_at(c, i);
  bool beyond = c->slab_bytes + c->wanted > c->o.quota;
  return beyond && c->empty ? (int64_t)slab_number_at(c, c->empty - 1) : -1;
}

void perigee_cache_wants(struct perigee_cache *c,
                         struct perigee_cache_want *want) {
  enum { SPARE_CHUNKS = 8 };
  if (c->slab_bytes - c->empty_bytes + c->wanted > c->o.quota)
    c->wanted = 0;
  want->idle = slab_idle(c);
  want->slab = c->wanted;
  want->pieces = c->free_chunks < SPARE_CHUNKS && !records_complete(c);
  uint32_t at = slab_free_index(c);
  want->next = at < SLABS ? slab_number_at(c, at) : 0;
}
