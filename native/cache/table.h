/* SPDX-License-Identifier: Apache-2.0
 *
 * table.h - what is written in a file beside the values, so that its directory
 * can be made again. All numbers are little endian; blocks have 4096 bytes.
 *
 *   block 0        head: magic number, size, unit, key, and a sum of these
 *   then           a map block for each unit
 *   then           units
 *
 * A part of the file (a slab of its directory) is a run of units. The map block
 * of its first unit says how long it is and which size its places have. Behind
 * its places, in the last blocks of its length, it has a table: a record for
 * each place, RECORDS to a block. A place that has no entry has no record.
 *
 *   map block      u64 sum, epoch, length, u32 unit, size + 1 (0: unused)
 *   record         u64 sum, version, checksum, i64 expires (time of day in ns;
 *                  0: never), u32 length, u16 key's length, u16 0, key
 *
 * Sums are SipHashes under the head's key, which is random and which no client
 * knows. So bytes of values, which clients choose, never pass for a record,
 * wherever they lie. A record's sum takes in its number and the epoch of its
 * part, which is new each time that a size takes it: records of before, and
 * those that were written elsewhere, are none. A value is checked by its
 * checksum, by whoever reads it.
 *
 * Order of writes (file.c). A value is written to a place when neither a record
 * nor a map block of the place's last entry is left in the file; its record is
 * written after it. So what a process leaves that was killed at any time is
 * entries whose values are whole. A device that loses what it had not yet
 * written for good may leave a record with another value's bytes: these do not
 * have its checksum.
 *
 * A key may be found twice, if the record of its former entry could not be
 * taken away: the larger version is the later one.
 */
#ifndef TABLE_H
#define TABLE_H

#include "cache/store.h"

#define TABLE_MAGIC UINT64_C(0x31656c6966636770)

enum {
  TABLE_KEY = 16,
  RECORD_STRIDE = 584,
  RECORD_HEAD = 40, /* bytes before the key */
  RECORD_MOST = RECORD_HEAD + PERIGEE_CACHE_KEY
};
_Static_assert(RECORD_STRIDE *RECORDS <= BLOCK, "records fit into a block");
_Static_assert(RECORD_MOST <= RECORD_STRIDE, "a record fits");

struct table_head {
  uint64_t size, unit;
  uint8_t key[TABLE_KEY];
};

/* size: NONE: nothing is in it. */
struct table_map {
  uint64_t epoch, length;
  uint32_t unit;
  int size;
};

struct table_record {
  uint64_t version, checksum;
  int64_t expires;
  uint32_t length, key_length;
  uint8_t key[PERIGEE_CACHE_KEY];
};

/* Whose records: the file's key, the part's epoch. */
struct table_of {
  const uint8_t *key;
  uint64_t epoch;
};

/* These write a whole block, or for a record its stride. */
void table_head_write(uint8_t *block, const struct table_head *head);
void table_map_write(uint8_t *block, const uint8_t *key,
                     const struct table_map *map);
void table_record_write(uint8_t *at, const struct table_of *of, uint32_t number,
                        const struct table_record *record);
/* These read what may be anything; false: it is none. */
bool table_head_read(const uint8_t *block, struct table_head *head);
bool table_map_read(const uint8_t *block, const uint8_t *key, uint32_t unit,
                    struct table_map *map);
/* Returns the sum of a record of this many bytes, as it should be. */
uint64_t table_record_sum(const uint8_t *at, const struct table_of *of,
                          uint32_t number, uint32_t bytes);
/* Calls `found` for each record of blocks; first: the number of the first
 * record in them; end: of places. */
void table_scan(const uint8_t *blocks, uint32_t count, uint32_t first,
                uint32_t end, const struct table_of *of,
                void (*found)(void *with, uint32_t number,
                              const struct table_record *record),
                void *with);

#endif
