/* SPDX-License-Identifier: Apache-2.0
 *
 * forked.h - descriptors by which others see that this process still has
 * something. A child of a fork does not have it, and may never call anything
 * here, as a worker of a data loader does; so it closes its copies as it begins.
 *
 * A descriptor that is made and not told of here yet, or forgotten and not closed
 * yet, stays open in a child that another thread forks at that moment.
 */
#ifndef FORKED_H
#define FORKED_H

#include <stdint.h>

#include "base/list.h"

/* All zero: it is of no descriptors. */
struct forked {
  struct node node;
  int *fds; /* -1: none */
  uint32_t count;
};

/* Has children close these and make them -1. */
void forked_closes(struct forked *forked, int *fds, uint32_t count);
/* Closes one of them, unless it is -1, and makes it -1. */
void forked_close(int *fd);
/* Before the place of the descriptors goes. It may be called again. */
void forked_forget(struct forked *forked);

/* Whoever has a fork wait for a lock calls this first, before pthread_atfork, if
 * functions of this file are called with that lock held (forked.c). */
void forked_watch(void);

#endif
