/* SPDX-License-Identifier: Apache-2.0
 *
 * disk.h - reads and writes of one file, of which none blocks its caller.
 *
 *   disk.c       opening a file: whose it is, a lock, its space
 *   disk_io.c    what is under way; by io_uring, or by threads
 *
 * A disk belongs to the thread that opened it.
 */
#ifndef DISK_H
#define DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

#include "cache/cache.h"

enum { DISK_BLOCK = 4096, DISK_BOUNCE = 16384 };

/* What is under way: two parts of memory, of which one is the op's own. */
struct disk_op {
  uint64_t token, offset;
  struct iovec parts[2];
  uint8_t *bounce; /* DISK_BOUNCE bytes */
  uint8_t *to;     /* where bytes of it go after a read */
  uint32_t bounced;
  int32_t status;
  uint32_t next; /* free, or ended: number + 1 */
  bool write, under_way;
};

struct disk_ring;
struct disk_threads;

struct perigee_cache_disk {
  int file, event;
  uint32_t depth, busy;
  uint32_t align; /* of memory; 1: not O_DIRECT */
  uint64_t size;
  bool had_head; /* it begins with the magic number */
  struct disk_op *ops;
  uint8_t *bounces;
  uint32_t free_op;
  struct disk_ring *ring; /* or NULL: */
  struct disk_threads *threads;
};

struct disk_end {
  uint64_t token;
  int64_t status;
};

/* Opens a file, or makes it, with all its space. `magic` is what it begins
 * with, unless it has nothing but zeros in it. May block for as long as the
 * file system takes. Returns PERIGEE_CACHE_NO_SPACE, ..., PERIGEE_SYSTEM,
 * PERIGEE_INVALID; then `reason` tells in words why. */
int disk_open(const struct perigee_cache_file_options *options, uint64_t magic,
              struct perigee_cache_disk **disk, char *reason, uint64_t room);
/* Has bytes read from the file, or written to it. offset: a multiple of
 * DISK_BLOCK. Memory of more than DISK_BOUNCE bytes begins at a multiple of
 * DISK_BLOCK; it stays until the end comes. What is written is filled up with
 * zeros to a multiple of DISK_BLOCK. PERIGEE_AGAIN: `depth` are under way. */
int disk_read(struct perigee_cache_disk *d, void *to, uint64_t length,
              uint64_t offset, uint64_t token);
int disk_write(struct perigee_cache_disk *d, const void *from, uint64_t length,
               uint64_t offset, uint64_t token);
/* Begins what was asked for since the last time. */
void disk_go(struct perigee_cache_disk *d);
/* Returns how many have ended, at most `most`. `event` is readable when some
 * have; it is not any more after a poll that returned fewer than `most`. */
uint32_t disk_poll(struct perigee_cache_disk *d, struct disk_end *ends,
                   uint32_t most);
/* Has `event` be readable. */
void disk_tell(const struct perigee_cache_disk *d);
/* Like close, of what has nothing under way. PERIGEE_AGAIN: it has. */
int disk_close(struct perigee_cache_disk *d);

/* ---- disk_io.c ----------------------------------------------------------- */

int disk_begin(struct perigee_cache_disk *d, bool by_threads, uint32_t threads);
void disk_stop(struct perigee_cache_disk *d);

#endif
