/* SPDX-License-Identifier: Apache-2.0
 *
 * local_name.h - the random abstract name of an engine that speaks TCP. A
 * socket beside it, the door, shows a peer that it shares a network namespace
 * with the engine, if it can connect there (migrate.h). Sessions that move dial
 * the name itself.
 */
#ifndef LOCAL_NAME_H
#define LOCAL_NAME_H

#include "core/engine.h"

enum { NAME_TEXT = 48 };

struct local_name {
  struct watcher watcher; /* of fd */
  uint8_t bytes[HELLO_LOCAL];
  int fd; /* the door; -1: it could not be made */
};

/* Makes a name and opens its door, if that is possible. */
void name_open(struct perigee_engine *engine, struct local_name *name);
void name_close(struct perigee_engine *engine, struct local_name *name);
/* The name's address as a text, from "@" on, and as the system takes it. */
void name_text(const uint8_t name[HELLO_LOCAL], char text[NAME_TEXT]);
socklen_t name_address(const uint8_t name[HELLO_LOCAL], struct sockaddr_un *un);
/* Returns whether this side can connect to a peer's door. Our own name, told by
 * a peer, proves nothing. A socket whose backlog is full counts as reached. fd:
 * the connection, which the caller closes, or -1. */
bool name_reach(const struct local_name *own, const uint8_t name[HELLO_LOCAL],
                int *fd);

#endif
