/* SPDX-License-Identifier: Apache-2.0
 *
 * contexts.c - finds kinds of memory and their devices: those of the program
 * first, then the built-in ones.
 */
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 1 << 16 };

struct context {
  struct context *next;
  struct memory_context memory;
  bool watched; /* its descriptor is (contexts_tell) */
};

static const struct perigee_memory *const builtin[] = {&memory_cuda_kind, NULL};

/* Returns kind number i, from 0; NULL behind the last. */
static const struct perigee_memory *contexts_kind(const struct contexts *all,
                                                  uint32_t i) {
  const struct perigee_memory *const *k = all->kinds;
  for (; k && *k; k++)
    if (i-- == 0)
      return *k;
  for (k = builtin; *k; k++)
    if (i-- == 0)
      return *k;
  return NULL;
}

static const struct perigee_memory *
contexts_kind_named(const struct contexts *all, const char *name,
                    size_t length) {
  const struct perigee_memory *kind;
  for (uint32_t i = 0; (kind = contexts_kind(all, i)); i++)
    if (strncmp(kind->name, name, length) == 0 && !kind->name[length])
      return kind;
  return NULL;
}

/* Parses what follows the colon; returns false if that is no device number. */
static bool contexts_number(const char *text, uint32_t *device) {
  size_t digits = strspn(text, "0123456789");
  if (digits == 0 || digits > 5 || text[digits])
    return false;
  *device = (uint32_t)strtoul(text, NULL, 10);
  return *device < DEVICES;
}

static int context_make(struct contexts *all, const struct perigee_memory *kind,
                        uint32_t device, struct context **out,
                        char reason[MEMORY_REASON]) {
  struct context *c = calloc(1, sizeof *c);
  int status = c ? PERIGEE_OK : PERIGEE_NO_MEMORY;
  if (c && kind->open)
    status = kind->open(device, &c->memory.own, reason);
  else if (c && device > 0)
    status = PERIGEE_NOT_FOUND;
  if (status < 0) {
    free(c);
    return status;
  }
  c->memory.kind = kind;
  c->memory.device = device;
  c->memory.direct = kind->direct;
  c->memory.pinnable = kind->pinnable && kind->pinnable(c->memory.own);
  c->next = all->first;
  *out = all->first = c;
  return PERIGEE_OK;
}

static int contexts_open(struct contexts *all,
                         const struct perigee_memory *kind, uint32_t device,
                         const struct memory_context **out,
                         char reason[MEMORY_REASON]) {
  struct context *c = all->first;
  while (c && (c->memory.kind != kind || c->memory.device != device))
    c = c->next;
  int status = c ? PERIGEE_OK : context_make(all, kind, device, &c, reason);
  if (status < 0 && !*reason)
    snprintf(reason, MEMORY_REASON, "cannot open device %u of memory \"%s\"",
             device, kind->name);
  if (status == PERIGEE_OK)
    *out = &c->memory;
  return status;
}

int contexts_find(struct contexts *all, const char *name,
                  const struct memory_context **out,
                  char reason[MEMORY_REASON]) {
  uint32_t device = 0;
  *reason = 0;
  *out = &memory_host;
  if (!name || strcmp(name, memory_host_kind.name) == 0)
    return PERIGEE_OK;
  size_t length = strcspn(name, ":");
  const struct perigee_memory *kind = contexts_kind_named(all, name, length);
  if (kind && (!name[length] || contexts_number(name + length + 1, &device)))
    return contexts_open(all, kind, device, out, reason);
  snprintf(reason, MEMORY_REASON, "no kind of memory \"%s\"", name);
  return PERIGEE_UNSUPPORTED;
}

int contexts_owner(struct contexts *all, const void *pointer,
                   const struct memory_context **out,
                   char reason[MEMORY_REASON]) {
  const struct perigee_memory *kind;
  *reason = 0;
  *out = &memory_host;
  for (uint32_t i = 0; (kind = contexts_kind(all, i)); i++) {
    int device = kind->owner_of ? kind->owner_of(pointer) : -1;
    if (device >= 0)
      return contexts_open(all, kind, (uint32_t)device, out, reason);
  }
  return PERIGEE_OK;
}

const struct memory_context *contexts_opened(const struct contexts *all,
                                             const char *kind,
                                             const struct memory_key *key,
                                             int *device) {
  const struct memory_context *found = NULL;
  for (const struct context *c = all->first; c; c = c->next) {
    const struct memory_sharing *sharing = c->memory.kind->sharing;
    if (!sharing || strcmp(c->memory.kind->name, kind) != 0)
      continue;
    if (*device == DEVICE_UNASKED)
      *device = sharing->whose ? sharing->whose(key) : -1;
    if (!found || (int)c->memory.device == *device)
      found = &c->memory;
  }
  return found;
}

void contexts_unpin(struct contexts *all, const struct area *area) {
  for (const struct context *c = all->first; c; c = c->next) {
    const struct memory_copies *copies = c->memory.kind->copies;
    if (copies && copies->unpin)
      copies->unpin(&c->memory, area);
  }
}

const char *contexts_trouble(const struct contexts *all) {
  const char *why = "";
  for (const struct context *c = all->first; c && !*why; c = c->next)
    if (c->memory.kind->why)
      why = c->memory.kind->why(&c->memory);
  return why;
}

/* A context that comes first was made last. */
void contexts_describe(const struct contexts *all, const char *kind, char *text,
                       size_t size) {
  char told[MEMORY_REASON];
  size_t length = 0;
  *text = 0;
  for (const struct context *c = all->first; c && length < size; c = c->next) {
    const struct memory_context *m = &c->memory;
    if (m->kind->describe && strcmp(m->kind->name, kind) == 0 &&
        m->kind->describe(m, told, sizeof told) > 0)
      length += (size_t)snprintf(text + length, size - length, "; %s", told);
  }
}

/* 1: it tells; 0: it has nothing to tell of; or a status. */
static int context_tells(struct context *c, bool (*watch)(void *of, int fd),
                         void *of) {
  const struct memory_copies *copies = c->memory.kind->copies;
  int fd = -1;
  if (!copies)
    return 0;
  int status =
      copies->tell ? copies->tell(&c->memory, &fd) : PERIGEE_UNSUPPORTED;
  if (status == 1 && !c->watched) {
    c->watched = watch(of, fd);
    return c->watched ? 1 : PERIGEE_SYSTEM;
  }
  return status;
}

bool contexts_tell(struct contexts *all, bool (*watch)(void *of, int fd),
                   void *of) {
  bool some = false;
  for (struct context *c = all->first; c; c = c->next) {
    int status = context_tells(c, watch, of);
    if (status < 0)
      return false;
    some = some || status == 1;
  }
  return some;
}

void contexts_drain(struct contexts *all) {
  for (struct context *c = all->first; c; c = c->next)
    if (c->memory.kind->copies)
      c->memory.kind->copies->drain(&c->memory);
}

static void contexts_close_all(struct contexts *all, bool told) {
  struct context *c;
  while ((c = all->first)) {
    all->first = c->next;
    if (told && c->memory.kind->close)
      c->memory.kind->close(c->memory.own);
    free(c);
  }
}

void contexts_close(struct contexts *all) {
  contexts_close_all(all, true);
}

void contexts_forsake(struct contexts *all) {
  contexts_close_all(all, false);
}
