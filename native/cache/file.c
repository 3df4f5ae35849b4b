/* SPDX-License-Identifier: Apache-2.0
 *
 * file.c - parts of a file, and the blocks that are written for them. The store
 * tells of each entry that comes or goes, and of each slab that is taken for a
 * size or is empty again; the blocks that say so are dirty then, and are
 * written one after another, each from what the store says at that moment. A
 * block is written by one write at a time.
 *
 *   a part is     its map block says         its table
 *   not used      nothing, or that           is not looked at
 *   of a size     its size and epoch         has records of that epoch
 *
 * While the map block is dirty or being written, no other block of the part is
 * written, and no value: what is there could be taken for what was there. The
 * map block waits until no other block of the part is being written.
 *
 * What goes is noted until the file does not say it any more (removals).
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "cache/file.h"

/* ---- Dirty blocks ------------------------------------------------------ */

static void part_queue(struct perigee_cache_file *f, uint32_t part) {
  struct part *p = &f->parts[part];
  if (p->queued)
    return;
  p->queued = true;
  p->next = 0;
  if (f->last)
    f->parts[f->last - 1].next = part + 1;
  else
    f->first = part + 1;
  f->last = part + 1;
  f->queued++;
}

static uint32_t part_unqueue(struct perigee_cache_file *f) {
  uint32_t part = f->first - 1;
  struct part *p = &f->parts[part];
  f->first = p->next;
  f->last = f->first ? f->last : 0;
  f->queued--;
  p->queued = false;
  return part;
}

void block_dirty(struct perigee_cache_file *f, uint32_t part, uint32_t block) {
  struct part *p = &f->parts[part];
  if (p->blocks[block] & DIRTY)
    return;
  p->blocks[block] |= DIRTY;
  p->dirty++;
  part_queue(f, part);
}

/* ---- Removals ---------------------------------------------------------- */

static void removal_set(struct perigee_cache_file *f, struct removal *r,
                        int64_t number) {
  r->number = number;
  r->writes = f->parts[r->part].blocks[block_number(number)] & WRITING ? 2 : 1;
}

static void removal_add(struct perigee_cache_file *f, uint32_t hash,
                        uint32_t part, uint32_t number) {
  if (f->removal_count == REMOVALS) {
    f->untold = true;
    return;
  }
  struct removal *r = &f->removals[f->removal_count++];
  r->hash = hash;
  r->part = part;
  removal_set(f, r, number);
}

static void removals_written(struct perigee_cache_file *f, uint32_t part,
                             uint32_t block) {
  for (uint32_t i = 0; i < f->removal_count;) {
    struct removal *r = &f->removals[i];
    if (r->part == part && block_number(r->number) == block && --r->writes == 0)
      *r = f->removals[--f->removal_count];
    else
      i++;
  }
  if (f->queued == 0 && f->flushing == 0)
    f->untold = false;
}

bool key_is_left(const struct perigee_cache_file *f, uint32_t hash) {
  bool left = f->untold;
  for (uint32_t i = 0; !left && i < f->removal_count; i++)
    left = f->removals[i].hash == hash;
  return left;
}

bool place_is_left(const struct perigee_cache_file *f, uint32_t part,
                   uint32_t number) {
  bool left = f->untold || f->parts[part].blocks[0] != 0;
  for (uint32_t i = 0; !left && i < f->removal_count; i++)
    left = f->removals[i].part == part && f->removals[i].number == number;
  return left;
}

/* ---- What the store tells ---------------------------------------------- */

static uint32_t entry_part(const struct entry *r) {
  return what_slab(word(&r->what));
}

static uint32_t entry_number(const struct perigee_cache_file *f,
                             const struct entry *r) {
  const struct slab *s = &f->store->slabs[entry_part(r)];
  return where_place(word(&r->where)) /
         (uint32_t)(size_bytes(s->size) / PLACE_UNIT);
}

uint32_t memory_find(const struct perigee_cache_file *f, const void *key,
                     uint64_t length) {
  struct sought s;
  return f->memory && sought_key(&s, f->memory->o.seed, key, length)
             ? directory_find(f->memory, &s, true)
             : 0;
}

/* The file does not have the value any more. Its version in memory is the same
 * or, if it came from here, a later one: by the key alone. */
static void memory_unmark(const struct perigee_cache_file *f,
                          const struct entry *r) {
  uint8_t key[PERIGEE_CACHE_KEY];
  key_copy(r, key);
  uint32_t ref = memory_find(f, key, what_length(word(&r->what)));
  if (ref)
    own(f->memory, ref)->marked = 0;
}

static void entry_is_gone(struct perigee_cache_file *f, const struct entry *r) {
  uint32_t part = entry_part(r), number = entry_number(f, r);
  block_dirty(f, part, block_number(number));
  removal_add(f, what_hash(word(&r->what)), part, number);
  memory_unmark(f, r);
}

void part_is_unused(struct perigee_cache_file *f, uint32_t part) {
  struct part *p = &f->parts[part];
  for (uint32_t i = 1; i < p->end; i++)
    p->blocks[i] &= WRITING;
  p->dirty = (p->blocks[0] & DIRTY) != 0;
  block_dirty(f, part, 0);
  for (uint32_t i = 0; i < f->removal_count; i++)
    if (f->removals[i].part == part && f->removals[i].number != MAP_NUMBER)
      removal_set(f, &f->removals[i], MAP_NUMBER);
}

void file_changed(struct perigee_cache_file *f, enum change change,
                  uint32_t at) {
  const struct entry *r = NULL;
  if (change == CHANGE_SHOWN || change == CHANGE_GONE)
    r = record(f->store, at);
  if (change == CHANGE_SHOWN)
    block_dirty(f, entry_part(r), block_number(entry_number(f, r)));
  else if (change == CHANGE_GONE)
    entry_is_gone(f, r);
  else if (change == CHANGE_ENDED) {
    /* One whose table is being read may begin again with the next record, and
     * keeps what was found of its blocks until then (part_next). */
    if (f->again != AGAIN_TABLES || at != f->at)
      part_is_unused(f, at);
  } else {
    f->parts[at].epoch = ++f->epoch;
    block_dirty(f, at, 0);
  }
}

/* ---- Blocks as bytes --------------------------------------------------- */

uint64_t part_table(const struct perigee_cache_file *f, uint32_t part, int size,
                    uint32_t *places, uint32_t *blocks) {
  uint64_t length = f->store->slabs[part].length / BLOCK * BLOCK;
  *places = (uint32_t)slab_places(f->store, length, size);
  *blocks = (uint32_t)(table_bytes(*places) / BLOCK);
  return length - table_bytes(*places);
}

static int64_t entry_expires(const struct perigee_cache_file *f, uint32_t ref) {
  int64_t left = entry_left(f->store, ref);
  return left ? f->wall + left : 0;
}

static void record_write(const struct perigee_cache_file *f, uint32_t ref,
                         const struct table_of *of, uint32_t number,
                         uint8_t *at) {
  const struct entry *e = record(f->store, ref);
  struct table_record r = {.version = word(&e->version),
                           .checksum = word(&e->checksum),
                           .expires = entry_expires(f, ref),
                           .length = where_length(word(&e->where)),
                           .key_length = what_length(word(&e->what))};
  key_copy(e, r.key);
  table_record_write(at, of, number, &r);
}

static void table_block(const struct perigee_cache_file *f, uint32_t part,
                        uint32_t block, uint8_t *bytes) {
  const struct slab *s = &f->store->slabs[part];
  struct table_of of = {.key = f->key, .epoch = f->parts[part].epoch};
  memset(bytes, 0, BLOCK);
  for (uint32_t i = 0; i < RECORDS; i++) {
    uint32_t number = (block - 1) * RECORDS + i;
    uint32_t ref = number < s->fresh ? s->owners[number] : EMPTY;
    if (!(ref & EMPTY) && own(f->store, ref)->state == SEALED)
      record_write(f, ref, &of, number, bytes + i * RECORD_STRIDE);
  }
}

static void map_block(const struct perigee_cache_file *f, uint32_t part,
                      uint8_t *bytes) {
  const struct slab *s = &f->store->slabs[part];
  struct table_map map = {.epoch = f->parts[part].epoch,
                          .length = s->length,
                          .unit = f->parts[part].unit,
                          .size = s->size};
  table_map_write(bytes, f->key, &map);
}

/* ---- Writing blocks ---------------------------------------------------- */

static uint64_t flush_offset(const struct perigee_cache_file *f, uint32_t part,
                             uint32_t block) {
  uint32_t places, blocks;
  if (block == 0)
    return (uint64_t)BLOCK * (1 + f->parts[part].unit);
  return part_offset(f, part) + (uint64_t)(block - 1) * BLOCK +
         part_table(f, part, f->store->slabs[part].size, &places, &blocks);
}

static bool block_write(struct perigee_cache_file *f, uint32_t part,
                        uint32_t block) {
  struct part *p = &f->parts[part];
  uint32_t i = 0;
  while (f->flushes[i].under_way)
    i++;
  struct flush *flush = &f->flushes[i];
  if (block == 0)
    map_block(f, part, flush->bytes);
  else
    table_block(f, part, block, flush->bytes);
  if (disk_write(f->disk, flush->bytes, BLOCK, flush_offset(f, part, block),
                 token_of(OF_FLUSH, i)) < 0)
    return false;
  flush->part = part;
  flush->block = block;
  flush->under_way = true;
  p->blocks[block] = WRITING;
  p->dirty--;
  p->writing++;
  f->flushing++;
  return true;
}

static void part_flush(struct perigee_cache_file *f, uint32_t part) {
  struct part *p = &f->parts[part];
  if (p->blocks[0]) {
    if (p->blocks[0] == DIRTY && p->writing == 0)
      block_write(f, part, 0);
    return;
  }
  uint32_t left = p->dirty;
  for (uint32_t i = 1; left > 0 && f->flushing < FLUSHES && i < p->end; i++) {
    left -= p->blocks[i] & DIRTY;
    if (p->blocks[i] == DIRTY && !block_write(f, part, i))
      return;
  }
}

void file_flush(struct perigee_cache_file *f) {
  for (uint32_t i = f->queued; i > 0 && f->flushing < FLUSHES; i--) {
    uint32_t part = part_unqueue(f);
    if (f->again == AGAIN_DONE && !f->failed)
      part_flush(f, part);
    if (f->parts[part].dirty)
      part_queue(f, part);
  }
}

/* A block that cannot be written ends all writing: the file may say what is not
 * so any more. */
void flush_ended(struct perigee_cache_file *f, uint32_t index, int64_t status) {
  struct flush *flush = &f->flushes[index];
  struct part *p = &f->parts[flush->part];
  flush->under_way = false;
  f->flushing--;
  p->writing--;
  p->blocks[flush->block] &= DIRTY;
  if (status < 0)
    f->failed = (int32_t)status;
  else
    removals_written(f, flush->part, flush->block);
}

void file_quota(struct perigee_cache_file *f, bool lowered) {
  f->lowered = lowered;
  perigee_cache_quota(f->store,
                      lowered ? f->store->slab_bytes : f->units * f->unit);
}

/* ---- Units and parts --------------------------------------------------- */

static uint32_t units_of(const struct perigee_cache_file *f, uint64_t length) {
  return (uint32_t)((length + f->unit - 1) / f->unit);
}

/* Returns the first unit of so many that are free, or `units`. */
static uint32_t units_find(const struct perigee_cache_file *f, uint32_t count) {
  uint32_t run = 0;
  for (uint32_t i = 0; i < f->units; i++) {
    run = f->used[i] ? 0 : run + 1;
    if (run == count)
      return i + 1 - count;
  }
  return f->units;
}

static int parts_grow(struct perigee_cache_file *f, uint32_t index) {
  if (index < f->part_end)
    return PERIGEE_OK;
  struct part *parts = realloc(f->parts, (index + 1) * sizeof *parts);
  if (!parts)
    return PERIGEE_NO_MEMORY;
  memset(parts + f->part_end, 0, (index + 1 - f->part_end) * sizeof *parts);
  f->parts = parts;
  f->part_end = index + 1;
  return PERIGEE_OK;
}

/* The size with the most places has the most blocks. */
static int part_fill(struct perigee_cache_file *f, uint32_t index,
                     uint32_t unit, uint64_t length) {
  uint64_t places = slab_places(f->store, length, 0);
  struct part *p = &f->parts[index];
  *p = (struct part){.unit = unit, .units = units_of(f, length)};
  p->end = (uint32_t)(table_bytes(places) / BLOCK) + 1;
  p->blocks = calloc(p->end, 1);
  if (!p->blocks)
    return PERIGEE_NO_MEMORY;
  memset(f->used + unit, 1, p->units);
  return PERIGEE_OK;
}

int64_t part_add(struct perigee_cache_file *f, uint32_t unit, uint64_t length) {
  int64_t number = perigee_cache_add(f->store, NULL, length);
  if (number < 0)
    return number;
  uint32_t index = slab_index((uint32_t)number);
  int status = parts_grow(f, index);
  if (status == 0)
    status = part_fill(f, index, unit, length);
  if (status < 0)
    perigee_cache_remove(f->store, (uint32_t)number);
  return status < 0 ? status : (int64_t)index;
}

static int part_remove(struct perigee_cache_file *f, uint32_t number) {
  struct part *p = &f->parts[slab_index(number)];
  if (p->dirty || p->writing)
    return PERIGEE_AGAIN;
  int status = perigee_cache_remove(f->store, number);
  if (status < 0)
    return status;
  memset(f->used + p->unit, 0, p->units);
  free(p->blocks);
  *p = (struct part){.blocks = NULL};
  file_quota(f, false);
  return PERIGEE_OK;
}

/* ---- What the store wants ---------------------------------------------- */

int file_piece(struct perigee_cache_file *f) {
  void *piece = mmap(NULL, PERIGEE_CACHE_PIECE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (piece == MAP_FAILED)
    return PERIGEE_NO_MEMORY;
  int64_t number = perigee_cache_grow(f->store, piece);
  if (number < 0) {
    munmap(piece, PERIGEE_CACHE_PIECE);
    return (int)number;
  }
  f->pieces[f->piece_count++] = piece;
  return PERIGEE_OK;
}

/* Without a run for it the store gets no more than it has now, so that it
 * evicts, and empties parts. */
static int file_run(struct perigee_cache_file *f, uint64_t length) {
  uint32_t unit = units_find(f, units_of(f, length));
  if (unit == f->units) {
    file_quota(f, true);
    return PERIGEE_NO_MEMORY;
  }
  int64_t part = part_add(f, unit, length);
  return part < 0 ? (int)part : PERIGEE_OK;
}

int file_feed(struct perigee_cache_file *f) {
  struct perigee_cache_want want;
  int status = PERIGEE_OK;
  perigee_cache_wants(f->store, &want);
  while (status == 0 && want.idle >= 0) {
    status = part_remove(f, (uint32_t)want.idle);
    uint64_t slab = want.slab;
    perigee_cache_wants(f->store, &want);
    want.slab = slab;
  }
  if (want.pieces)
    status = file_piece(f);
  if (want.slab && status == 0)
    status = file_run(f, want.slab);
  return status;
}
