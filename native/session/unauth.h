/* SPDX-License-Identifier: Apache-2.0
 *
 * unauth.h - who is let in, when, and in what share: strangers, from being
 * accepted until they have proven who they are, and a share counts what they
 * hold (shares.h). Anybody can come, by thousands.
 *
 * Places. At most options.hellos strangers are here at once. When there are
 * more, the oldest of the origin that has most is given up, told to try again:
 * so a crowd from one address takes places from itself alone. An origin is what
 * one attacker cannot have many of: an IPv4 address, an IPv6 network of 64 bits,
 * or, at a Unix socket, a process.
 *
 * Turns. What costs much in a hello (the curve's arithmetic over TCP, memory to
 * share at a Unix socket) is done for one at a time, of each origin in turn, its
 * newest first, who most likely still waits. While sessions have work these
 * turns take at most a SHARE of the time.
 */
#ifndef UNAUTH_H
#define UNAUTH_H

#include "base/list.h"
#include "net/address.h"

struct perigee_engine;
struct perigee_session;

/* What they are told that are given up. */
#define CROWDED "too many come at once; try again"

struct origin_key {
  uint64_t family, bits;
};

struct origin {
  struct node node;
  struct origin_key key;
  uint32_t here, waiting; /* strangers; those that wait for their turn */
};

struct unauth {
  struct node all;     /* the oldest first */
  struct node origins; /* with anybody here; whose turn was last is last */
  uint32_t waiting;
  int64_t paid; /* the time that turns have used up, by their share */
};

/* PERIGEE_NO_MEMORY: there is none. Closed when no session is left. */
int unauth_open(struct perigee_engine *engine);
void unauth_close(struct perigee_engine *engine);
/* Who was accepted is a stranger, from that address over TCP. False: there is no
 * memory. It may be given up at once. */
bool unauth_join(struct perigee_session *, const union socket_address *from);
/* It is no stranger any more, or none that will be let in. */
void unauth_leave(struct perigee_session *session);
/* Gives up the oldest of the origin that has most; false: there is none. */
bool unauth_give_up(struct perigee_engine *engine);
/* From here on it costs much: it waits for its turn (wireup_turn). False: it is
 * no stranger, and goes on. */
bool unauth_wait(struct perigee_session *session);
/* Gives a turn, if somebody waits and it is time. */
void unauth_turn(struct perigee_engine *engine);
/* Are there so many that who says hello has to come back with a cookie? */
bool unauth_crowded(const struct perigee_engine *engine);

#endif
