/* SPDX-License-Identifier: Apache-2.0 */
#include "vault.h"

#include <sodium.h>
#include <stdint.h>
#include <stdlib.h>

/* Whole pages, less what sodium_malloc keeps there for itself. A first chunk is
 * one page: most engines need no more. */
enum { CANARY = 16, FIRST = (4 << 10) - CANARY, CHUNK = (64 << 10) - CANARY };

/* Bookkeeping; it stands outside of the locked memory, as it is no secret. */
struct vault_chunk {
  struct node node;
  uint8_t *memory;
  struct cell *free;
  uint32_t used; /* cells in use */
};

/* A cell is a head and what vault_take returns. */
struct cell {
  struct vault_chunk *chunk;
  struct cell *next; /* while it is free */
  uint8_t bytes[];
};

static const size_t sizes[VAULT_CLASSES] = {VAULT_SMALL, VAULT_LARGE};

static int vault_class_of(size_t length) {
  return length <= VAULT_SMALL ? 0 : 1;
}

static struct vault_chunk *chunk_at(struct node *node) {
  return CONTAINER(node, struct vault_chunk, node);
}

void vault_open(struct vault *v) {
  *v = (struct vault){.refused = false};
  for (int i = 0; i < VAULT_CLASSES; i++)
    list_open(&v->classes[i].chunks);
}

/* sodium_malloc locks what it can and does not report failure. Locking the
 * memory again costs nothing and reports it. */
static struct vault_chunk *chunk_new(struct vault *v, size_t length) {
  struct vault_chunk *c = malloc(sizeof *c);
  uint8_t *memory = c ? sodium_malloc(length) : NULL;
  if (!memory) {
    free(c);
    return NULL;
  }
  v->refused |= sodium_mlock(memory, length) != 0;
  *c = (struct vault_chunk){.memory = memory};
  return c;
}

static void chunk_free(struct vault_chunk *c) {
  if (!c)
    return;
  sodium_free(c->memory);
  free(c);
}

static void vault_push(struct vault_chunk *c, struct cell *cell) {
  *cell = (struct cell){.chunk = c, .next = c->free};
  c->free = cell;
}

static struct vault_chunk *vault_grow(struct vault *v, int class) {
  const struct node *chunks = &v->classes[class].chunks;
  size_t length = list_empty(chunks) ? FIRST : CHUNK;
  size_t size = sizeof(struct cell) + sizes[class];
  struct vault_chunk *c = chunk_new(v, length);
  for (size_t at = 0; c && at + size <= length; at += size)
    vault_push(c, (struct cell *)(void *)(c->memory + at));
  return c;
}

/* Returns a chunk with a free cell, first in its list, or NULL. */
static struct vault_chunk *chunk_for(struct vault *v, int class) {
  struct vault_class *k = &v->classes[class];
  struct vault_chunk *c = chunk_at(k->chunks.next);
  if (!list_empty(&k->chunks) && c->free)
    return c;
  c = k->spare ? k->spare : vault_grow(v, class);
  k->spare = NULL;
  if (c)
    list_prepend(&k->chunks, &c->node);
  return c;
}

void *vault_take(struct vault *v, size_t length) {
  int class = vault_class_of(length);
  if (length > VAULT_LARGE)
    return NULL;
  struct vault_chunk *c = chunk_for(v, class);
  if (!c)
    return NULL;
  struct cell *cell = c->free;
  c->free = cell->next;
  c->used++;
  if (!c->free) {
    list_remove(&c->node);
    list_append(&v->classes[class].chunks, &c->node);
  }
  sodium_memzero(cell->bytes, sizes[class]);
  return cell->bytes;
}

static void chunk_unused(struct vault_class *k, struct vault_chunk *c) {
  list_remove(&c->node);
  if (k->spare)
    chunk_free(c);
  else
    k->spare = c;
}

void vault_give(struct vault *v, void *bytes, size_t length) {
  struct vault_class *k = &v->classes[vault_class_of(length)];
  if (!bytes)
    return;
  sodium_memzero(bytes, sizes[vault_class_of(length)]);
  struct cell *cell = CONTAINER(bytes, struct cell, bytes);
  struct vault_chunk *c = cell->chunk;
  vault_push(c, cell);
  list_remove(&c->node);
  list_prepend(&k->chunks, &c->node);
  if (--c->used == 0)
    chunk_unused(k, c);
}

static void class_close(struct vault_class *k) {
  chunk_free(k->spare);
  for (struct node *n = k->chunks.next, *next; n != &k->chunks; n = next) {
    next = n->next;
    chunk_free(chunk_at(n));
  }
}

void vault_close(struct vault *v) {
  for (int i = 0; i < VAULT_CLASSES; i++)
    class_close(&v->classes[i]);
  vault_open(v);
}
