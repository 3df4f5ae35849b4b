/* SPDX-License-Identifier: Apache-2.0
 *
 * resolve.h - the addresses of a host's name, without blocking and without a
 * thread: c-ares, whose sockets the engine's epoll watches. /etc/hosts and the
 * rest of the system's settings are honoured, as they are at that time.
 */
#ifndef RESOLVE_H
#define RESOLVE_H

#include "core/engine.h"
#include "net/address.h"

enum { ADDRESSES_MAX = 16 };

/* In the order in which they are to be tried. */
struct addresses {
  union socket_address at[ADDRESSES_MAX];
  uint32_t count;
};

struct resolve;

/* Begins to look up; what the sockets tell goes to the watcher, for another
 * step. NULL: no memory. */
struct resolve *resolve_begin(struct perigee_engine *engine,
                              const struct address *address,
                              struct watcher *watcher);
/* Goes on: 1 and the addresses, 0, or a status and a sentence. */
int resolve_step(struct resolve *resolve, struct addresses *found,
                 char reason[ADDRESS_REASON]);
/* Nanoseconds until the next step at the latest. */
int64_t resolve_due(const struct resolve *resolve);
/* Nothing of it is left, and no callback comes. */
void resolve_end(struct resolve *resolve);

#endif
