/* SPDX-License-Identifier: Apache-2.0
 *
 * contexts.h - the devices whose memory an engine uses: a context for each,
 * made when it is first asked for. They are named by their kind ("gpu", its
 * first device) or by kind and number ("gpu:3").
 */
#ifndef CONTEXTS_H
#define CONTEXTS_H

#include "memory.h"

struct context;
struct contexts {
  /* The program's kinds: NULL-terminated, or NULL. */
  const struct perigee_memory *const *kinds;
  struct context *first;
};

/* The context of a name; NULL and "host" are host memory. It stays until the
 * contexts close. PERIGEE_UNSUPPORTED: no such kind; PERIGEE_NOT_FOUND: no such
 * device; or what opening it gave; with a reason. */
int contexts_find(struct contexts *contexts, const char *name,
                  const struct memory_context **out,
                  char reason[MEMORY_REASON]);
/* The context of the memory that a pointer leads to: of the first kind that
 * knows it, else host memory. */
int contexts_owner(struct contexts *contexts, const void *pointer,
                   const struct memory_context **out,
                   char reason[MEMORY_REASON]);
/* Blocks until no copy of any is under way. */
void contexts_drain(struct contexts *contexts);
/* After all memory of theirs was released. */
void contexts_close(struct contexts *contexts);
/* In a child process, where no kind is called. */
void contexts_forsake(struct contexts *contexts);

#endif
