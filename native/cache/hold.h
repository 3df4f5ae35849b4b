/* SPDX-License-Identifier: Apache-2.0
 *
 * hold.h - what a cache and its holder say to each other: messages over a
 * socket of packets. A request has a kind, and a name or a number. Its answer,
 * in the order of the requests, has a status, and maybe a name. A descriptor
 * goes beside either.
 */
#ifndef CACHE_HOLD_H
#define CACHE_HOLD_H

#include <stdint.h>

#include "cache/cache.h"

enum { HELD = 4096, NAME = PERIGEE_CACHE_HELD_NAME };
/* What the holder is called in lists of processes, and the descriptors that it
 * begins with: what it listens at, and its own program. */
#define HOLDER_TITLE "perigee-hold"
enum { HOLDER_LISTENER = 3, HOLDER_PROGRAM = 4 };
enum held_kind { HELD_PUT = 1, HELD_DROP, HELD_TAKE, HELD_END };

struct hold_message {
  uint32_t kind, number;
  int32_t status;
  char name[NAME];
};

#endif
