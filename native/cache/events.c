/* SPDX-License-Identifier: Apache-2.0
 *
 * events.c - what has happened to entries, in order, as far as it is kept: the
 * last `events` of them, and of their keys the last `event_bytes` bytes. Events
 * are numbered from 1. An event is lost when its number, or its key, was
 * overwritten. Nobody is told of copies of what other caches have.
 */
#include <stdlib.h>

#include "store.h"

int events_open(struct perigee_cache *c) {
  c->events = calloc(c->o.events, sizeof *c->events);
  c->event_keys = malloc(c->o.event_bytes);
  c->event_next = 1;
  return c->events && c->event_keys ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

static struct event *event_slot(const struct perigee_cache *c,
                                uint64_t number) {
  return &c->events[number & (c->o.events - 1)];
}

/* Copies a part of the keys' ring to or from; it may go over the ring's end. */
static void event_copy(const struct perigee_cache *c, uint64_t at,
                       uint8_t *bytes, uint32_t length, bool in) {
  uint32_t from = (uint32_t)(at & (c->o.event_bytes - 1));
  uint32_t first = c->o.event_bytes - from;
  first = first < length ? first : length;
  if (in) {
    memcpy(c->event_keys + from, bytes, first);
    memcpy(c->event_keys, bytes + first, length - first);
  } else {
    memcpy(bytes, c->event_keys + from, first);
    memcpy(bytes + first, c->event_keys, length - first);
  }
}

void event_note(struct perigee_cache *c, uint32_t ref, int what) {
  const struct entry *r = record(c, ref);
  uint32_t length = what_length(word(&r->what));
  uint8_t key[PERIGEE_CACHE_KEY];
  c->n.deleted += what == PERIGEE_CACHE_DELETED;
  c->n.expired += what == PERIGEE_CACHE_EXPIRED;
  if (own(c, ref)->pin == PERIGEE_CACHE_COPY)
    return;
  key_copy(r, key);
  *event_slot(c, c->event_next) =
      (struct event){.at = c->event_at,
                     .version = word(&r->version),
                     .length = where_length(word(&r->where)),
                     .key_length = (uint16_t)length,
                     .what = (uint8_t)what};
  event_copy(c, c->event_at, key, length, true);
  c->event_at += length;
  c->event_next++;
}

static bool event_kept(const struct perigee_cache *c, uint64_t number) {
  return number > 0 && number < c->event_next &&
         c->event_next - number <= c->o.events &&
         c->event_at - event_slot(c, number)->at <= c->o.event_bytes;
}

const struct event *event_of(const struct perigee_cache *c, uint64_t number,
                             uint8_t *key) {
  if (!event_kept(c, number))
    return NULL;
  const struct event *e = event_slot(c, number);
  event_copy(c, e->at, key, e->key_length, false);
  return e;
}

/* Of two events the later one is kept longer. */
uint64_t event_oldest(const struct perigee_cache *c) {
  uint64_t low = c->event_next > c->o.events ? c->event_next - c->o.events : 1,
           high = c->event_next;
  while (low < high) {
    uint64_t middle = low + (high - low) / 2;
    if (event_kept(c, middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}
