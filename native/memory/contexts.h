/* SPDX-License-Identifier: Apache-2.0
 *
 * contexts.h - the devices whose memory an engine uses. Each has a context,
 * made when it is first asked for. A device is named by its kind ("gpu", its
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

/* Finds the context of a name; NULL and "host" are host memory. The context
 * stays until the contexts close. Returns PERIGEE_UNSUPPORTED for an unknown
 * kind, PERIGEE_NOT_FOUND for a missing device, or the status of opening it,
 * with a reason. */
int contexts_find(struct contexts *contexts, const char *name,
                  const struct memory_context **out,
                  char reason[MEMORY_REASON]);
/* Finds the context of the memory that a pointer leads to: of the first kind
 * that recognizes the pointer, else host memory. */
int contexts_owner(struct contexts *contexts, const void *pointer,
                   const struct memory_context **out,
                   char reason[MEMORY_REASON]);
/* Blocks until no context has a copy under way. */
void contexts_drain(struct contexts *contexts);
/* Call it after all memory of the contexts was released. */
void contexts_close(struct contexts *contexts);
/* Frees them in a child process without calling any kind of memory. */
void contexts_forsake(struct contexts *contexts);

#endif
