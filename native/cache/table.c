/* SPDX-License-Identifier: Apache-2.0
 *
 * table.c - heads, map blocks and records of a file, as bytes (table.h). All of
 * these are pure functions.
 */
#include "cache/table.h"

enum { HEAD_BYTES = 48, MAP_BYTES = 32, SALT = 16 };

static uint64_t number_at(const uint8_t *at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static uint32_t half_at(const uint8_t *at) {
  uint32_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static void number_put(uint8_t *at, uint64_t value) {
  memcpy(at, &value, sizeof value);
}

static void half_put(uint8_t *at, uint32_t value) {
  memcpy(at, &value, sizeof value);
}

static uint64_t sum_of(const uint8_t *key, const uint8_t *bytes,
                       uint64_t length) {
  uint64_t sum;
  crypto_shorthash((unsigned char *)&sum, bytes, length, key);
  return sum;
}

/* ---- The head ---------------------------------------------------------- */

/* u64 magic, version of the format, size, unit, key, sum. */
void table_head_write(uint8_t *block, const struct table_head *head) {
  memset(block, 0, BLOCK);
  number_put(block, TABLE_MAGIC);
  number_put(block + 8, 1);
  number_put(block + 16, head->size);
  number_put(block + 24, head->unit);
  memcpy(block + 32, head->key, TABLE_KEY);
  number_put(block + HEAD_BYTES, sum_of(head->key, block, HEAD_BYTES));
}

bool table_head_read(const uint8_t *block, struct table_head *head) {
  memcpy(head->key, block + 32, TABLE_KEY);
  head->size = number_at(block + 16);
  head->unit = number_at(block + 24);
  return number_at(block) == TABLE_MAGIC && number_at(block + 8) == 1 &&
         number_at(block + HEAD_BYTES) == sum_of(head->key, block, HEAD_BYTES);
}

/* ---- Map blocks -------------------------------------------------------- */

void table_map_write(uint8_t *block, const uint8_t *key,
                     const struct table_map *map) {
  memset(block, 0, BLOCK);
  number_put(block + 8, map->epoch);
  number_put(block + 16, map->length);
  half_put(block + 24, map->unit);
  half_put(block + 28, (uint32_t)(map->size + 1));
  number_put(block, sum_of(key, block + 8, MAP_BYTES - 8));
}

bool table_map_read(const uint8_t *block, const uint8_t *key, uint32_t unit,
                    struct table_map *map) {
  uint32_t size = half_at(block + 28);
  map->epoch = number_at(block + 8);
  map->length = number_at(block + 16);
  map->unit = half_at(block + 24);
  map->size = size <= SIZES ? (int)size - 1 : NONE;
  return number_at(block) == sum_of(key, block + 8, MAP_BYTES - 8) &&
         map->unit == unit && size <= SIZES;
}

/* ---- Records ----------------------------------------------------------- */

uint64_t table_record_sum(const uint8_t *at, const struct table_of *of,
                          uint32_t number, uint32_t bytes) {
  uint8_t salted[SALT + RECORD_MOST];
  number_put(salted, of->epoch);
  number_put(salted + 8, number);
  memcpy(salted + SALT, at + 8, bytes - 8);
  return sum_of(of->key, salted, SALT + bytes - 8);
}

void table_record_write(uint8_t *at, const struct table_of *of, uint32_t number,
                        const struct table_record *r) {
  memset(at, 0, RECORD_STRIDE);
  number_put(at + 8, r->version);
  number_put(at + 16, r->checksum);
  number_put(at + 24, (uint64_t)r->expires);
  half_put(at + 32, r->length);
  half_put(at + 36, r->key_length);
  memcpy(at + RECORD_HEAD, r->key, r->key_length);
  number_put(at, table_record_sum(at, of, number, RECORD_HEAD + r->key_length));
}

static bool table_record_read(const uint8_t *at, const struct table_of *of,
                              uint32_t number, struct table_record *r) {
  r->version = number_at(at + 8);
  r->checksum = number_at(at + 16);
  r->expires = (int64_t)number_at(at + 24);
  r->length = half_at(at + 32);
  r->key_length = half_at(at + 36);
  if (r->key_length == 0 || r->key_length > PERIGEE_CACHE_KEY)
    return false;
  uint32_t bytes = RECORD_HEAD + r->key_length;
  if (number_at(at) != table_record_sum(at, of, number, bytes))
    return false;
  memcpy(r->key, at + RECORD_HEAD, r->key_length);
  return true;
}

void table_scan(const uint8_t *blocks, uint32_t count, uint32_t first,
                uint32_t end, const struct table_of *of,
                void (*found)(void *with, uint32_t number,
                              const struct table_record *record),
                void *with) {
  struct table_record r;
  for (uint32_t i = 0; i < count * RECORDS && first + i < end; i++) {
    const uint8_t *block = blocks + (uint64_t)(i / RECORDS) * BLOCK;
    if (table_record_read(block + i % RECORDS * RECORD_STRIDE, of, first + i,
                          &r))
      found(with, first + i, &r);
  }
}
