/* SPDX-License-Identifier: Apache-2.0
 *
 * file.h - values in a file, of which a store is the directory.
 *
 *   disk.h           reads and writes
 *   table.c          what is written beside the values, as bytes
 *   file.c           parts of the file, and the blocks written for them
 *   file_errands.c   opening and closing; what the caller asks for
 *   file_again.c     making the directory again
 */
#ifndef FILE_H
#define FILE_H

#include "cache/disk.h"
#include "cache/table.h"

enum {
  FLUSHES = 16, /* blocks that are written at a time */
  REMOVALS = 4096,
  TURN = 64, /* entries that go in one turn */
  SCAN_BYTES = 1 << 18,
  MAP_NUMBER = -1
};

/* A part of the file: the slab of its number. Of its map block (0) and the
 * blocks of its table (1, ...) each is dirty, or being written, or both. */
enum { DIRTY = 1, WRITING = 2 };
struct part {
  uint64_t epoch;
  uint8_t *blocks; /* NULL: there is no part */
  uint32_t unit, units, end;
  uint32_t dirty, writing;
  uint32_t next; /* in the queue: index + 1 */
  bool queued;
};

/* An entry that has gone, whose record may be in the file still: until its
 * block, or the map block, was written `writes` times. */
struct removal {
  uint32_t hash, part;
  int64_t number; /* of the place; MAP_NUMBER */
  uint32_t writes;
};

struct flush {
  uint32_t part, block;
  uint8_t *bytes;
  bool under_way;
};

/* What the caller asked for.
 *
 *   an errand is  event                                       becomes
 *   none        write: its place's record may be there      waiting
 *   none        write, read                                 moving
 *   none        forget: the key's record may be there       waiting
 *   waiting     the block was written: of a write           moving
 *   waiting     ..., of a forget; or the file failed        ended
 *   moving      all bytes are there                         ended
 *   ended       the caller polled                           none
 */
enum errand_state { ERRAND_NONE, WAITING, MOVING, ENDED };
enum errand_kind { ERRAND_WRITE, ERRAND_READ, ERRAND_FORGET };
struct errand {
  enum errand_state state;
  enum errand_kind kind;
  bool doomed; /* the key was forgotten meanwhile */
  uint8_t *memory;
  uint64_t token, entry, lease, version, checksum;
  struct perigee_cache_place place;
  int64_t status;
  uint32_t hash, number, part;
};

/* The search for what was there: maps first, then tables, part by part. */
enum again { AGAIN_MAPS, AGAIN_TABLES, AGAIN_DONE };

struct perigee_cache_file {
  struct perigee_cache_disk *disk;
  struct perigee_cache *store, *memory;
  uint8_t key[TABLE_KEY];
  uint64_t size, unit, data; /* data: where the units begin */
  uint32_t units;
  uint8_t *used; /* of each unit */
  struct part *parts;
  uint32_t part_end;
  uint64_t epoch;
  int64_t now, wall;
  int32_t failed;
  uint32_t client;
  bool lowered, closing;
  void *pieces[PERIGEE_CACHE_PIECES];
  uint32_t piece_count;
  /* blocks to be written */
  uint32_t first, last, queued; /* parts: index + 1 */
  struct flush flushes[FLUSHES];
  uint8_t *flush_bytes;
  uint32_t flushing;
  struct removal removals[REMOVALS];
  uint32_t removal_count;
  bool untold; /* some removals had no room */
  /* file_errands.c, "The head" */
  uint8_t *head;
  bool owes, owing, heading; /* owing: the head on the disk says so */
  /* file_errands.c */
  struct errand *errands;
  uint32_t depth, waiting, moving, ended;
  /* file_again.c */
  enum again again;
  uint32_t at, blocks, count; /* unit, or part; block in its table; how many
                               * are being read */
  int16_t *sizes;             /* of parts, as their maps say */
  uint8_t *scanned;
  bool reading;
};

/* Tokens of the disk. */
enum { OF_ERRAND = 0, OF_FLUSH = 1, OF_SCAN = 2, OF_HEAD = 3 };
static inline uint64_t token_of(int of, uint32_t index) {
  return (uint64_t)of << 32 | index;
}

/* ---- file.c -------------------------------------------------------------- */

void file_changed(struct perigee_cache_file *f, enum change change,
                  uint32_t at);
/* Has a store have what it wants. PERIGEE_NO_MEMORY: the file has no such run;
 * PERIGEE_AGAIN: it will, maybe. */
int file_feed(struct perigee_cache_file *f);
int file_piece(struct perigee_cache_file *f);
/* The store may use all units, or what it has now. */
void file_quota(struct perigee_cache_file *f, bool lowered);
/* Adds a part of the file as a slab; returns its index, or a status. */
int64_t part_add(struct perigee_cache_file *f, uint32_t unit, uint64_t length);
static inline uint32_t block_number(int64_t number) {
  return number == MAP_NUMBER ? 0 : (uint32_t)number / RECORDS + 1;
}
/* Of an unused part the map block alone says that nothing is there. */
void part_is_unused(struct perigee_cache_file *f, uint32_t part);
void block_dirty(struct perigee_cache_file *f, uint32_t part, uint32_t block);
/* Returns the ref of the key's sealed entry in memory, or 0. */
uint32_t memory_find(const struct perigee_cache_file *f, const void *key,
                     uint64_t length);
/* Begins to write blocks. */
void file_flush(struct perigee_cache_file *f);
void flush_ended(struct perigee_cache_file *f, uint32_t index, int64_t status);
/* May a record of this key, or this place, be in the file still? */
bool key_is_left(const struct perigee_cache_file *f, uint32_t hash);
bool place_is_left(const struct perigee_cache_file *f, uint32_t part,
                   uint32_t number);
static inline uint64_t part_offset(const struct perigee_cache_file *f,
                                   uint32_t part) {
  return f->data + (uint64_t)f->parts[part].unit * f->unit;
}
/* Returns where a part's table begins in it, and its places and blocks. */
uint64_t part_table(const struct perigee_cache_file *f, uint32_t part, int size,
                    uint32_t *places, uint32_t *blocks);

/* ---- file_again.c -------------------------------------------------------- */

int again_open(struct perigee_cache_file *f);
void again_close(struct perigee_cache_file *f);
/* Reads on. */
void again_go(struct perigee_cache_file *f);
void again_ended(struct perigee_cache_file *f, int64_t status);

#endif
