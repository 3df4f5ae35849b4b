/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_answer_fuzz.c - requests of a client of a cache with a store below, in
 * memory of just their length, between puts to either, turns and time that
 * passes. An answer stays within its room, and is as long as it says. At the end
 * nothing is left of anything.
 *
 * Decoders: native/cache/answer.c
 */
#include <stdbool.h>

#include "fuzz.h"

#include "cache/cache.h"

enum { SLAB = 64 << 10, ROOM = 4096, MOST = 600 };

struct store {
  struct perigee_cache *cache;
  char *piece, *slab;
  uint32_t client;
};

struct scene {
  struct store above, below;
  int64_t now;
};

static struct store store_open(void) {
  struct perigee_cache_options o = {.quota = SLAB,
                                    .slab = SLAB,
                                    .lease = 1000,
                                    .margin = 100,
                                    .leases = 16,
                                    .clients = 4,
                                    .reserved_each = 4,
                                    .groups = 4,
                                    .events = 16,
                                    .event_bytes = 1024,
                                    .seed = {1}};
  struct store s = {.slab = calloc(1, SLAB)};
  s.piece = aligned_alloc(4096, PERIGEE_CACHE_PIECE);
  require(s.piece && s.slab);
  memset(s.piece, 0, PERIGEE_CACHE_PIECE);
  require(perigee_cache_open(&o, 0, &s.cache) == PERIGEE_OK);
  require(perigee_cache_grow(s.cache, s.piece) == 0);
  require(perigee_cache_add(s.cache, s.slab, SLAB) == 0);
  return s;
}

static struct scene scene_open(void) {
  struct scene s = {.above = store_open(), .below = store_open()};
  perigee_cache_spill(s.above.cache, s.below.cache);
  return s;
}

static uint32_t take_name(struct input *in, char name[PERIGEE_CACHE_KEY]) {
  uint32_t length = 1 + take8(in) % 6;
  memset(name, 'k', PERIGEE_CACHE_KEY);
  name[length - 1] = (char)('a' + take8(in) % 4);
  return length;
}

static void put_one(struct store *s, struct input *in, int64_t now) {
  char key[PERIGEE_CACHE_KEY], parent[PERIGEE_CACHE_KEY];
  struct perigee_cache_place place;
  struct perigee_cache_put put = {.client = s->client,
                                  .length = take16(in) % 20000,
                                  .group = take8(in) % 4,
                                  .ttl = take8(in) % 2 * 500,
                                  .pin = take8(in) % 3,
                                  .if_absent = take8(in) % 2};
  uint32_t length = take_name(in, key);
  put.parent_length = take_name(in, parent);
  put.parent = take8(in) % 2 ? parent : NULL;
  int status = perigee_cache_reserve(s->cache, key, length, &put, now, &place);
  if (status < 0)
    return;
  memset(s->slab + place.offset, 'v', place.length);
  if (take8(in) % 4)
    perigee_cache_seal(s->cache, place.entry, 0, now);
}

static int64_t request_of(struct scene *s, const void *bytes, size_t length,
                          size_t room) {
  uint8_t *request = malloc(length ? length : 1), *reply = malloc(room);
  require(request && reply);
  if (length)
    memcpy(request, bytes, length);
  int64_t n = perigee_cache_answer(s->above.cache, s->above.client, request,
                                   length, reply, room, s->now);
  require(n <= (int64_t)room && (n >= 8 || n < 0));
  if (n >= 8)
    require(reply[0] == 1 && reply[1] == request[1]);
  free(request);
  free(reply);
  return n;
}

static void ask_one(struct scene *s, struct input *in) {
  uint8_t bytes[MOST];
  size_t room = 8 + take16(in) % ROOM;
  size_t length = take(in, bytes, take16(in) % MOST);
  if (length > 1 && take8(in) % 8) {
    bytes[0] = 1;
    bytes[1] = (uint8_t)(bytes[1] % 12);
  }
  request_of(s, bytes, length, room);
}

/* Deletes one entry of a store, whose list begins with that cursor's upper
 * bytes; false: there is none. */
static bool clear_one(struct scene *s, const struct store *of, uint8_t upper) {
  const uint8_t list[18] = {1, PERIGEE_CACHE_LIST, 1, 0, 1, [14] = upper};
  uint8_t reply[8 + 8 + 2 + PERIGEE_CACHE_KEY];
  require(perigee_cache_answer(s->above.cache, s->above.client, list,
                               sizeof list, reply, sizeof reply, s->now) >= 16);
  if (reply[4] == 0)
    return false;
  perigee_cache_delete(of->cache, (char *)reply + 18,
                       (uint32_t)(reply[16] | reply[17] << 8));
  return true;
}

static void store_check(const struct store *s) {
  struct perigee_cache_counters n;
  perigee_cache_count(s->cache, &n);
  require(n.entries + n.reserved + n.held + n.leases + n.clients == 0);
  require(n.used + n.values + n.hard == 0);
}

/* The stores stay for the next input, since opening one takes longer than most
 * inputs. */
static void scene_clear(struct scene *s) {
  enum { LIST_BELOW = 16 }; /* in byte 6 of a cursor */
  while (clear_one(s, &s->above, 0) || clear_one(s, &s->below, LIST_BELOW))
    ;
  perigee_cache_client_gone(s->above.cache, s->above.client);
  perigee_cache_client_gone(s->below.cache, s->below.client);
  store_check(&s->above);
  store_check(&s->below);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct input in = {data, size};
  static struct scene s;
  if (!s.above.cache)
    s = scene_open();
  s.above.client = (uint32_t)perigee_cache_client(s.above.cache);
  s.below.client = (uint32_t)perigee_cache_client(s.below.cache);
  while (in.size > 0) {
    uint8_t what = take8(&in);
    struct store *one = what < 192 ? &s.above : &s.below;
    if (what % 8 == 0)
      s.now += take16(&in);
    else if (what % 8 == 1)
      perigee_cache_turn(one->cache, s.now, take8(&in));
    else if (what % 8 < 4)
      put_one(one, &in, s.now);
    else
      ask_one(&s, &in);
  }
  scene_clear(&s);
  return 0;
}
