/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_table_fuzz.c - the table of a part of a cache's file, of which any byte
 * may be anything; some records get the sum that they should have, as only the
 * cache can make it. What is found is put back into a store, which stays sound:
 * entries are within the slab, and do not overlap. Heads and map blocks are
 * read as they come.
 *
 * decoder: native/cache/table.c
 */
#include <stdlib.h>

#include "cache/table.h"

enum { SLAB = 64 << 10, BLOCKS = 2, PLACES = BLOCKS * RECORDS, POKES = 24 };

#define SECOND INT64_C(1000000000)

struct input {
  const uint8_t *data;
  size_t size;
};

static void require(bool holds) {
  if (!holds)
    abort();
}

static void take(struct input *in, void *to, size_t length) {
  size_t n = length < in->size ? length : in->size;
  memset(to, 0, length);
  if (n > 0)
    memcpy(to, in->data, n);
  in->data += n;
  in->size -= n;
}

static uint8_t take8(struct input *in) {
  uint8_t value;
  take(in, &value, sizeof value);
  return value;
}

static uint16_t take16(struct input *in) {
  uint16_t value;
  take(in, &value, sizeof value);
  return value;
}

static const uint8_t secret[TABLE_KEY] = {1, 2, 3};

struct scene {
  struct perigee_cache *cache;
  char *piece;
  int64_t now;
  int size;
  bool taken[PLACES];
};

/* The store stays for the next input, since opening one takes longer than most
 * inputs: each entry lives for a second. */
static void open_store(struct scene *s) {
  struct perigee_cache_options o = {.quota = SLAB,
                                    .slab = SLAB,
                                    .leases = 16,
                                    .clients = 4,
                                    .groups = 4,
                                    .events = 16,
                                    .event_bytes = 1024,
                                    .seed = {1}};
  s->piece = aligned_alloc(4096, PERIGEE_CACHE_PIECE);
  require(s->piece != NULL);
  memset(s->piece, 0, PERIGEE_CACHE_PIECE);
  require(perigee_cache_open(&o, 0, &s->cache) == PERIGEE_OK);
  require(perigee_cache_grow(s->cache, s->piece) == 0);
  require(perigee_cache_add(s->cache, NULL, SLAB) == 0);
}

static void clear_store(struct scene *s) {
  struct perigee_cache_counters n;
  s->now += 2 * SECOND;
  while (perigee_cache_turn(s->cache, s->now, 1000))
    ;
  perigee_cache_count(s->cache, &n);
  require(n.entries + n.used + n.values == 0);
  memset(s->taken, 0, sizeof s->taken);
}

/* The places of what is replaced are free, but are not given out again here. */
static void found(void *with, uint32_t number, const struct table_record *r) {
  struct scene *s = with;
  struct perigee_cache_place place = {.offset = number * size_bytes(s->size),
                                      .length = r->length,
                                      .version = r->version,
                                      .checksum = r->checksum};
  struct perigee_cache_place now;
  require(number < PLACES);
  require(r->key_length > 0 && r->key_length <= PERIGEE_CACHE_KEY);
  const char *key = (const char *)r->key;
  int status = perigee_cache_restore(s->cache, key, r->key_length, &place,
                                     SECOND, s->now);
  if (status < 0)
    return;
  require(!s->taken[number]);
  s->taken[number] = true;
  require(place.offset + place.length <= SLAB);
  require(perigee_cache_stat(s->cache, key, r->key_length, s->now, &now) == 0);
  require(now.offset == place.offset && now.length == r->length);
  require(now.version == r->version && now.checksum == r->checksum);
}

static void record_of(struct input *in, struct table_record *r) {
  *r = (struct table_record){.version = take16(in),
                             .checksum = take16(in),
                             .length = take16(in) % 9000,
                             .key_length = 1 + take8(in) % 4};
  r->key[0] = (uint8_t)('a' + take8(in) % 4);
}

static void poke(struct input *in, uint8_t *record) {
  uint16_t at = take16(in) % RECORD_STRIDE;
  record[at] = take8(in);
}

/* As it should be, of as many bytes as the length of the key says. */
static void seal(uint8_t *record, const struct table_of *of, uint32_t number) {
  uint32_t length;
  memcpy(&length, record + 36, sizeof length);
  if (length > PERIGEE_CACHE_KEY)
    return;
  uint64_t sum = table_record_sum(record, of, number, RECORD_HEAD + length);
  memcpy(record, &sum, sizeof sum);
}

static void fill(struct input *in, uint8_t *blocks, const struct table_of *of) {
  for (uint32_t i = 0; i < PLACES; i++) {
    uint8_t *at = blocks + i / RECORDS * BLOCK + i % RECORDS * RECORD_STRIDE;
    struct table_record r;
    uint8_t what = take8(in);
    record_of(in, &r);
    if (what & 1)
      table_record_write(at, of, i, &r);
    if (what & 2)
      poke(in, at);
    if (what & 4)
      seal(at, of, i);
  }
}

static void read_alone(struct input *in) {
  uint8_t *block = malloc(BLOCK);
  struct table_head head;
  struct table_map map;
  require(block != NULL);
  memset(block, 0, BLOCK);
  take(in, block, 64);
  table_head_read(block, &head);
  if (table_map_read(block, secret, 3, &map))
    require(map.unit == 3 && map.size >= NONE && map.size < SIZES);
  free(block);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct scene s;
  struct input in = {data, size};
  struct table_of of = {.key = secret, .epoch = 7};
  uint8_t *blocks = calloc(BLOCKS, BLOCK);
  require(blocks != NULL);
  if (!s.cache)
    open_store(&s);
  s.size = (int)(take8(&in) % 5);
  fill(&in, blocks, &of);
  for (int i = 0; i < POKES && in.size > 0; i++)
    blocks[take16(&in) % (BLOCKS * BLOCK)] = take8(&in);
  table_scan(blocks, BLOCKS, 0, 1 + take8(&in) % PLACES, &of, found, &s);
  read_alone(&in);
  clear_store(&s);
  free(blocks);
  return 0;
}
