/* SPDX-License-Identifier: Apache-2.0
 *
 * vault.h - memory for keys: locked, so that it is never written to a disk;
 * excluded from core dumps; with pages that fault around each chunk
 * (sodium_malloc); and wiped when it is given back. Keys are many and short,
 * and the system limits locked memory (RLIMIT_MEMLOCK), so cells of two sizes
 * are cut from chunks. A chunk goes back to the system when all of its cells
 * were given back, but for one of each size.
 *
 * Further keys lie in the same kind of memory, unlocked, once the limit is
 * reached; `refused` tells so. A process that has all of its memory locked
 * (mlockall) gets no memory beyond the limit, and an error. A vault belongs to
 * one engine, and so to one thread at a time.
 */
#ifndef VAULT_H
#define VAULT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/list.h"

enum { VAULT_SMALL = 240, VAULT_LARGE = 624, VAULT_CLASSES = 2 };

/* The error for the user. */
#define VAULT_FULL                                                             \
  "no memory for keys, which is locked: raise RLIMIT_MEMLOCK (ulimit -l, "     \
  "LimitMEMLOCK=)"

struct vault {
  struct vault_class {
    struct node chunks; /* with cells in use: those with free ones first */
    struct vault_chunk *spare; /* without, or NULL */
  } classes[VAULT_CLASSES];
  bool refused; /* a chunk could not be locked */
};

/* Takes no memory. */
void vault_open(struct vault *vault);

/* Returns zeroed memory, aligned for a struct seal; NULL without memory. length
 * is at most VAULT_LARGE. */
void *vault_take(struct vault *vault, size_t length);
/* Wipes a cell and takes it back; length as in vault_take. cell may be NULL. */
void vault_give(struct vault *vault, void *cell, size_t length);
/* Wipes and frees all of it; then it may be opened again. */
void vault_close(struct vault *vault);

#endif
