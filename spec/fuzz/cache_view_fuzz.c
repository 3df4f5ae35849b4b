/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_view_fuzz.c - a mapped directory of a cache in which any word may be
 * anything. A look-up ends, and leaves the pieces nowhere.
 *
 * Decoders: native/cache/seen.c
 */
#include "fuzz.h"

#include "cache/layout.h"

enum { KEYS = 40, WORDS = 1 << 16, POKES = 16 };

static struct perigee_cache_view *view;
static uint32_t *piece, words[WORDS], word_count; /* words that are not 0 */

static uint32_t key_of(uint32_t number, char key[PERIGEE_CACHE_KEY]) {
  memset(key, (int)('a' + number % 26), PERIGEE_CACHE_KEY);
  memcpy(key, &number, sizeof number);
  return 4 + number * 97 % (PERIGEE_CACHE_KEY - 4);
}

static void fill(struct perigee_cache *cache) {
  char key[PERIGEE_CACHE_KEY];
  for (uint32_t i = 0; i < KEYS; i++) {
    struct perigee_cache_put put = {.length = i};
    struct perigee_cache_place place;
    require(perigee_cache_reserve(cache, key, key_of(i, key), &put, 0,
                                  &place) == PERIGEE_OK);
    require(perigee_cache_seal(cache, place.entry, i, 0) > 0);
  }
}

static void open_once(void) {
  struct perigee_cache_options o = {.quota = 1 << 30, .seed = {7}};
  static struct perigee_cache *cache;
  piece = aligned_alloc(4096, PERIGEE_CACHE_PIECE);
  require(piece != NULL);
  memset(piece, 0, PERIGEE_CACHE_PIECE);
  require(perigee_cache_open(&o, 0, &cache) == PERIGEE_OK);
  require(perigee_cache_grow(cache, piece) == 0);
  require(perigee_cache_add(cache, NULL, 64 << 20) == 0);
  require(perigee_cache_client(cache) == 0);
  fill(cache);
  view = perigee_cache_view_open();
  require(perigee_cache_view_piece(view, 0, piece) == PERIGEE_OK);
  for (uint32_t i = 0; i < PERIGEE_CACHE_PIECE / 4 && word_count < WORDS; i++)
    if (piece[i])
      words[word_count++] = i;
}

/* A number at or near one that means something in a directory, or any. */
static uint32_t take_value(struct input *in) {
  static const uint32_t edges[] = {0,
                                   1,
                                   CHUNK / 8,
                                   FIRST_CHUNK,
                                   FIRST_CHUNK * (CHUNK / 8),
                                   CHUNKS_A_PIECE,
                                   REFS_A_PIECE,
                                   CHUNKS,
                                   UINT32_C(1) << 28,
                                   0x7fffffff};
  uint8_t kind = take8(in);
  if (kind >= 240)
    return (uint32_t)take16(in) << 16 | take16(in);
  return edges[kind % 10] + (uint32_t)take8(in) - 128;
}

static void look_once(struct input *in) {
  struct perigee_cache_place place = {.bucket = take_value(in)};
  char key[PERIGEE_CACHE_KEY];
  uint32_t length = key_of(take8(in) % (KEYS + 1), key);
  int status = perigee_cache_seen(view, key, length, &place);
  require(status == PERIGEE_OK || status == PERIGEE_NOT_FOUND ||
          status == PERIGEE_AGAIN);
  perigee_cache_same(view, key, length, &place);
  perigee_cache_view_pieces(view);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct input in = {data, size};
  uint32_t at[POKES], was[POKES];
  int pokes = 0;
  if (!view)
    open_once();
  for (; pokes < POKES && in.size > 3; pokes++) {
    at[pokes] = words[take16(&in) % word_count];
    was[pokes] = piece[at[pokes]];
    piece[at[pokes]] = take_value(&in);
    look_once(&in);
  }
  while (pokes-- > 0)
    piece[at[pokes]] = was[pokes];
  return 0;
}
