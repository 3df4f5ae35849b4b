/* SPDX-License-Identifier: Apache-2.0
 *
 * vault.h - memory for keys: locked, so that it is never written to a disk, in
 * no core dump, with pages that fault around each chunk (sodium_malloc), and
 * wiped when it is given back. Keys are many and short, and the system locks
 * little (RLIMIT_MEMLOCK): so cells of two sizes are cut from chunks.
 *
 * Where the system locks no more, keys lie in the same memory, unlocked; refused
 * tells so. A process that has all of its memory locked (mlockall) gets none
 * beyond that limit, and is told of it. A vault belongs to one engine, and so to
 * one thread at a time.
 */
#ifndef VAULT_H
#define VAULT_H

#include <stdbool.h>
#include <stddef.h>

enum { VAULT_SMALL = 256, VAULT_LARGE = 640, VAULT_CLASSES = 2 };

/* Why there is none. */
#define VAULT_FULL                                                             \
  "no memory for keys, which is locked: raise RLIMIT_MEMLOCK (ulimit -l, "     \
  "LimitMEMLOCK=)"

struct vault {
  struct vault_chunk *chunks;
  void *free[VAULT_CLASSES]; /* cells; each begins with the next */
  bool refused;              /* a chunk could not be locked */
};

/* Zeroed, aligned as a seal has to be; NULL: no memory. length: at most
 * VAULT_LARGE. */
void *vault_take(struct vault *vault, size_t length);
/* Wipes it. cell: as taken, by the same length, or NULL. */
void vault_give(struct vault *vault, void *cell, size_t length);
/* Wipes and frees all of it. */
void vault_close(struct vault *vault);

#endif
