/* SPDX-License-Identifier: Apache-2.0
 *
 * file_again.c - making the directory of a file again: all map blocks are read,
 * and then the table of each part that has one. Whatever is there may be torn,
 * flipped, or a lie: what is not as it should be is left out, and its block is
 * written anew, so that it never comes back.
 */
#include <stdlib.h>

#include "cache/file.h"

enum { SCAN_BLOCKS = SCAN_BYTES / BLOCK };

int again_open(struct perigee_cache_file *f) {
  f->sizes = calloc(f->units, sizeof *f->sizes);
  f->scanned = aligned_alloc(BLOCK, SCAN_BYTES);
  return f->sizes && f->scanned ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

void again_close(struct perigee_cache_file *f) {
  free(f->sizes);
  free(f->scanned);
  f->sizes = NULL;
  f->scanned = NULL;
}

/* ---- Map blocks -------------------------------------------------------- */

static bool units_are_free(const struct perigee_cache_file *f, uint32_t unit,
                           uint64_t length) {
  uint64_t end = unit + (length + f->unit - 1) / f->unit;
  bool is_free = length >= BLOCK && end <= f->units;
  for (uint32_t i = unit; is_free && i < end; i++)
    is_free = !f->used[i];
  return is_free;
}

static void map_found(struct perigee_cache_file *f,
                      const struct table_map *map) {
  if (map->epoch > f->epoch)
    f->epoch = map->epoch;
  if (map->size == NONE || !units_are_free(f, map->unit, map->length) ||
      slab_places(f->store, map->length, map->size) == 0)
    return;
  int64_t part = part_add(f, map->unit, map->length);
  if (part < 0)
    return;
  f->parts[part].epoch = map->epoch;
  f->sizes[part] = (int16_t)map->size;
}

static void maps_scan(struct perigee_cache_file *f) {
  struct table_map map;
  for (uint32_t i = 0; i < f->count; i++)
    if (table_map_read(f->scanned + (uint64_t)i * BLOCK, f->key, f->at + i,
                       &map))
      map_found(f, &map);
}

static void maps_go(struct perigee_cache_file *f) {
  if (f->at == f->units) {
    f->again = AGAIN_TABLES;
    f->at = f->blocks = 0;
    return;
  }
  f->count = f->units - f->at < SCAN_BLOCKS ? f->units - f->at : SCAN_BLOCKS;
  f->reading =
      disk_read(f->disk, f->scanned, (uint64_t)f->count * BLOCK,
                (uint64_t)BLOCK * (1 + f->at), token_of(OF_SCAN, 0)) == 0;
}

/* ---- Tables ------------------------------------------------------------ */

/* Memory may have been kept, or have got the key's next value meanwhile. What it
 * has of the same version is marked. */
static bool is_newer_in_memory(const struct perigee_cache_file *f,
                               const struct table_record *r) {
  uint32_t ref = memory_find(f, r->key, r->key_length);
  uint64_t version = ref ? word(&record(f->memory, ref)->version) : 0;
  if (ref && version == r->version)
    own(f->memory, ref)->marked = 1;
  return version > r->version;
}

static int record_restore(struct perigee_cache_file *f, uint32_t number,
                          const struct table_record *r) {
  int size = f->sizes[f->at];
  int64_t ttl = r->expires ? r->expires - f->wall : 0;
  uint32_t generation = f->store->slabs[f->at].generation;
  struct perigee_cache_place place = {.slab = generation << INDEX_BITS | f->at,
                                      .offset = number * size_bytes(size),
                                      .length = r->length,
                                      .version = r->version,
                                      .checksum = r->checksum};
  if ((r->expires && ttl <= 0) || r->length > PERIGEE_CACHE_LARGEST ||
      class_of(f->store, r->length) != size || is_newer_in_memory(f, r))
    return PERIGEE_RANGE;
  int status;
  do
    status = perigee_cache_restore(f->store, (const char *)r->key,
                                   r->key_length, &place, ttl, f->now);
  while (status == PERIGEE_CACHE_WANTS && file_piece(f) == PERIGEE_OK);
  return status;
}

/* What is left out may be an older value of a key that has a later one: who
 * forgets that waits until both are gone from the disk. */
static void record_found(void *with, uint32_t number,
                         const struct table_record *r) {
  struct perigee_cache_file *f = with;
  if (record_restore(f, number, r) == PERIGEE_OK)
    return;
  f->untold = true;
  block_dirty(f, f->at, block_number(number));
}

static void tables_scan(struct perigee_cache_file *f) {
  uint32_t places, blocks;
  struct table_of of = {.key = f->key, .epoch = f->parts[f->at].epoch};
  part_table(f, f->at, f->sizes[f->at], &places, &blocks);
  table_scan(f->scanned, f->count, f->blocks * RECORDS, places, &of,
             record_found, f);
}

static void part_next(struct perigee_cache_file *f) {
  if (f->store->slabs[f->at].size == NONE)
    part_is_unused(f, f->at);
  f->at++;
  f->blocks = 0;
}

static void tables_go(struct perigee_cache_file *f) {
  uint32_t places, blocks;
  if (f->at == f->part_end) {
    f->again = AGAIN_DONE;
    again_close(f);
    return;
  }
  uint64_t at = part_table(f, f->at, f->sizes[f->at], &places, &blocks) +
                part_offset(f, f->at) + (uint64_t)f->blocks * BLOCK;
  if (f->blocks == blocks) {
    part_next(f);
    return;
  }
  f->count =
      blocks - f->blocks < SCAN_BLOCKS ? blocks - f->blocks : SCAN_BLOCKS;
  f->reading = disk_read(f->disk, f->scanned, (uint64_t)f->count * BLOCK, at,
                         token_of(OF_SCAN, 0)) == 0;
}

/* ---- Both -------------------------------------------------------------- */

void again_go(struct perigee_cache_file *f) {
  while (f->again != AGAIN_DONE && !f->reading && !f->closing)
    if (f->again == AGAIN_MAPS)
      maps_go(f);
    else
      tables_go(f);
}

/* What cannot be read is written anew. */
void again_ended(struct perigee_cache_file *f, int64_t status) {
  f->reading = false;
  if (status < 0)
    memset(f->scanned, 0, SCAN_BYTES);
  if (f->again == AGAIN_MAPS) {
    maps_scan(f);
    f->at += f->count;
    return;
  }
  tables_scan(f);
  for (uint32_t i = 0; status < 0 && i < f->count; i++)
    block_dirty(f, f->at, f->blocks + i + 1);
  f->blocks += f->count;
}
