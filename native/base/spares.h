/* SPDX-License-Identifier: Apache-2.0
 *
 * spares.h - memory for what is made and freed again and again in several sizes,
 * such as checked lists: blocks that were given back are kept for the next that
 * need as much, up to SPARES_KEPT bytes. So posts of lists do without malloc.
 */
#ifndef SPARES_H
#define SPARES_H

#include <stdint.h>

/* Blocks have 1 KiB to 1 MiB, each size twice the one before. Longer ones are
 * not kept. */
enum { SPARE_LEAST = 1 << 10, SPARE_SIZES = 11 };

/* Sanitizers are to see each block freed. */
#if defined(__SANITIZE_ADDRESS__)
enum { SPARES_KEPT = 0 };
#else
enum { SPARES_KEPT = 1 << 20 };
#endif

struct spare;

/* All zero: none are kept. */
struct spares {
  uint64_t kept; /* bytes */
  struct spare *free[SPARE_SIZES];
};

/* Returns memory with any contents, aligned to 16, or NULL. */
void *spares_take(struct spares *spares, uint64_t bytes);
/* Gives memory back, which may be NULL. */
void spares_give(void *memory);
/* Frees those that are kept. All others were given back. */
void spares_close(struct spares *spares);

#endif
