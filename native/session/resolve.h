/* SPDX-License-Identifier: Apache-2.0
 *
 * resolve.h - resolves a host's name without blocking and without a thread, by
 * c-ares, whose sockets are watched by the engine's epoll. /etc/hosts and the
 * system's other settings at that time are used.
 */
#ifndef RESOLVE_H
#define RESOLVE_H

#include "core/engine.h"
#include "net/address.h"

enum { ADDRESSES_MAX = 16 };

/* Addresses in the order in which they are to be tried. */
struct addresses {
  union socket_address at[ADDRESSES_MAX];
  uint32_t count;
};

struct resolve;

/* Begins a look-up. The watcher is called when another step is due. NULL
 * without memory. */
struct resolve *resolve_begin(struct perigee_engine *engine,
                              const struct address *address,
                              struct watcher *watcher);
/* Continues: returns 1 and the addresses, 0, or a status and a sentence. */
int resolve_step(struct resolve *resolve, struct addresses *found,
                 char reason[ADDRESS_REASON]);
/* Returns the nanoseconds after which the next step is due at the latest. */
int64_t resolve_due(const struct resolve *resolve);
/* Ends the look-up; the watcher is not called any more. */
void resolve_end(struct resolve *resolve);

#endif
