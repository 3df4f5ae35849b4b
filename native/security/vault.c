/* SPDX-License-Identifier: Apache-2.0 */
#include "vault.h"

#include <sodium.h>
#include <stdint.h>
#include <stdlib.h>

/* Whole pages, less what sodium_malloc keeps there for itself. The first chunk
 * is one page: most engines need no more. */
enum { CANARY = 16, FIRST = (4 << 10) - CANARY, CHUNK = (64 << 10) - CANARY };

/* Bookkeeping; it stands outside of the locked memory, as it is no secret. */
struct vault_chunk {
  struct vault_chunk *next;
  uint8_t *cells;
};

static const size_t sizes[VAULT_CLASSES] = {VAULT_SMALL, VAULT_LARGE};

static int class_of(size_t length) {
  return length <= VAULT_SMALL ? 0 : 1;
}

/* sodium_malloc locks what it can and does not report failure. Locking the
 * memory again costs nothing and reports it. */
static struct vault_chunk *chunk_new(struct vault *v, size_t length) {
  struct vault_chunk *c = malloc(sizeof *c);
  uint8_t *cells = c ? sodium_malloc(length) : NULL;
  if (!cells) {
    free(c);
    return NULL;
  }
  v->refused |= sodium_mlock(cells, length) != 0;
  *c = (struct vault_chunk){.next = v->chunks, .cells = cells};
  v->chunks = c;
  return c;
}

static void push(struct vault *v, int class, void *cell) {
  *(void **)cell = v->free[class];
  v->free[class] = cell;
}

static void grow(struct vault *v, int class) {
  size_t length = v->chunks ? CHUNK : FIRST;
  struct vault_chunk *c = chunk_new(v, length);
  for (size_t at = 0; c && at + sizes[class] <= length; at += sizes[class])
    push(v, class, c->cells + at);
}

void *vault_take(struct vault *v, size_t length) {
  int class = class_of(length);
  if (length > VAULT_LARGE)
    return NULL;
  if (!v->free[class])
    grow(v, class);
  void **cell = v->free[class];
  if (!cell)
    return NULL;
  v->free[class] = *cell;
  sodium_memzero(cell, sizes[class]);
  return cell;
}

void vault_give(struct vault *v, void *cell, size_t length) {
  if (!cell)
    return;
  sodium_memzero(cell, sizes[class_of(length)]);
  push(v, class_of(length), cell);
}

void vault_close(struct vault *v) {
  while (v->chunks) {
    struct vault_chunk *c = v->chunks;
    v->chunks = c->next;
    sodium_free(c->cells);
    free(c);
  }
  *v = (struct vault){.chunks = NULL};
}
