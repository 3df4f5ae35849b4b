/* SPDX-License-Identifier: Apache-2.0 */
#include "spares.h"

#include <stdlib.h>

/* It stands in front of each block. */
struct spare {
  union {
    struct spares *home; /* while it is in use */
    struct spare *next;  /* while it is kept */
  };
  uint64_t size; /* number of its size; SPARE_SIZES: it is longer than all */
};

_Static_assert(sizeof(struct spare) == 16, "memory behind it is aligned");

static uint64_t spare_bytes(uint64_t size) {
  return (uint64_t)SPARE_LEAST << size;
}

/* Returns the number of the least size that has so many bytes. */
static uint64_t spare_size(uint64_t bytes) {
  uint64_t size = 0;
  while (size < SPARE_SIZES && spare_bytes(size) - sizeof(struct spare) < bytes)
    size++;
  return size;
}

static struct spare *spare_make(uint64_t size, uint64_t bytes) {
  return malloc(size < SPARE_SIZES ? spare_bytes(size)
                                   : sizeof(struct spare) + bytes);
}

void *spares_take(struct spares *spares, uint64_t bytes) {
  uint64_t size = spare_size(bytes);
  struct spare *b = size < SPARE_SIZES ? spares->free[size] : NULL;
  if (b) {
    spares->free[size] = b->next;
    spares->kept -= spare_bytes(size);
  } else if (!(b = spare_make(size, bytes))) {
    return NULL;
  }
  b->home = spares;
  b->size = size;
  return b + 1;
}

void spares_give(void *memory) {
  struct spare *b = memory;
  if (!b--)
    return;
  struct spares *home = b->home;
  if (b->size == SPARE_SIZES ||
      home->kept + spare_bytes(b->size) > SPARES_KEPT) {
    free(b);
    return;
  }
  home->kept += spare_bytes(b->size);
  b->next = home->free[b->size];
  home->free[b->size] = b;
}

void spares_close(struct spares *spares) {
  for (int size = 0; size < SPARE_SIZES; size++)
    for (struct spare *b = spares->free[size], *next; b; b = next) {
      next = b->next;
      free(b);
    }
  *spares = (struct spares){0};
}
