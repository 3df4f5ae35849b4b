/* SPDX-License-Identifier: Apache-2.0
 *
 * heat.c - which values of a store below are asked for so often that they are
 * to come back up. An entry's gets are counted where its ref says, so entries
 * that share a count are hot together; counts are halved each WINDOW. An entry
 * that was got HOT times is noted, and its count begins anew: so each copy back
 * stands for as many gets, whatever else is hot.
 */
#include <stdlib.h>

#include "store.h"

enum {
  COUNT_BITS = 12,
  COUNTS = 1 << COUNT_BITS,
  NOTED = 16,
  HOT = 8,
  HALVES = 8
};
#define WINDOW INT64_C(1000000000)
#define GOLDEN UINT32_C(2654435769)

struct heat {
  int64_t at;
  uint8_t counts[COUNTS]; /* below HOT */
  uint32_t noted;
  struct perigee_cache_cold notes[NOTED];
};

struct heat *heat_open(void) {
  return calloc(1, sizeof(struct heat));
}

static void halve(struct heat *h, int64_t now) {
  int64_t windows = (now - h->at) / WINDOW;
  if (windows == 0)
    return;
  for (int i = 0; i < COUNTS; i++)
    h->counts[i] = windows < HALVES ? h->counts[i] >> windows : 0;
  h->at = now;
}

static bool is_noted(const struct heat *h, uint64_t version) {
  bool noted = h->noted == NOTED;
  for (uint32_t i = 0; !noted && i < h->noted; i++)
    noted = h->notes[i].place.version == version;
  return noted;
}

void heat_note(struct perigee_cache *c, const char *key, uint32_t length,
               int64_t now) {
  struct heat *h = c->heat;
  uint32_t ref = h ? entry_find(c->below, key, length, now) : 0;
  if (!ref)
    return;
  halve(h, now);
  uint8_t *count = &h->counts[ref * GOLDEN >> (32 - COUNT_BITS)];
  if (++*count < HOT)
    return;
  *count = 0;
  if (!is_noted(h, word(&record(c->below, ref)->version)))
    cold_fill(c->below, ref, &h->notes[h->noted++]);
}

/* Is it still so: has it the same entry, and only below? */
static bool is_hot(struct perigee_cache *c, const struct perigee_cache_cold *n,
                   int64_t now) {
  uint32_t ref = entry_find(c->below, n->key, n->key_length, now);
  return ref && word(&record(c->below, ref)->version) == n->place.version &&
         !entry_find(c, n->key, n->key_length, now);
}

uint32_t perigee_cache_hot(struct perigee_cache *c,
                           struct perigee_cache_cold *hot, uint32_t most,
                           int64_t now) {
  struct heat *h = c->heat;
  uint32_t n = 0;
  for (uint32_t i = 0; h && i < h->noted && n < most; i++)
    if (is_hot(c, &h->notes[i], now))
      hot[n++] = h->notes[i];
  if (h)
    h->noted = 0;
  return n;
}
