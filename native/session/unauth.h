/* SPDX-License-Identifier: Apache-2.0
 *
 * unauth.h - unauthenticated peers: how many are let in, which of them, and
 * when they are served. A session is unauthenticated from being accepted until
 * its peer has proven who it is and a share counts what it holds (shares.h).
 * Anybody can connect, by thousands.
 *
 * Places. There are at most options.hellos such sessions at once. If there are
 * more, the oldest of the origin that has most is given up and told to try
 * again: so a crowd from one address takes places from itself alone. An origin
 * is something that one attacker cannot have many of: an IPv4 address, an IPv6
 * network of 64 bits, or, at a Unix socket, a process.
 *
 * Turns. The expensive parts of a handshake (elliptic curves over TCP, shared
 * memory at a Unix socket) are done for one session at a time, for each origin
 * in turn. Of an origin the newest comes first, as it is most likely to be
 * still waiting. While other sessions have work, turns get at most a SHARE of
 * the time.
 */
#ifndef UNAUTH_H
#define UNAUTH_H

#include "base/list.h"
#include "net/address.h"

struct perigee_engine;
struct perigee_session;

/* The reason told to those that are given up. */
#define CROWDED "too many come at once; try again"

struct origin_key {
  uint64_t family, bits;
};

struct origin {
  struct node node;
  struct origin_key key;
  uint32_t here, waiting; /* sessions; those that wait for their turn */
};

struct unauth {
  struct node all;     /* sessions, the oldest first */
  struct node origins; /* with sessions; the last one served is last */
  uint32_t waiting;
  int64_t paid; /* time up to which turns have used their share */
};

/* open: PERIGEE_NO_MEMORY without memory. Close when no session is left. */
int unauth_open(struct perigee_engine *engine);
void unauth_close(struct perigee_engine *engine);
/* Adds a session that was accepted, over TCP from that address. False without
 * memory. The session may be given up at once. */
bool unauth_join(struct perigee_session *, const union socket_address *from);
/* The session's peer is authenticated, or will not be let in. */
void unauth_leave(struct perigee_session *session);
/* Gives up the oldest session of the origin that has most; false: there is
 * none. */
bool unauth_give_up(struct perigee_engine *engine);
/* The next step is expensive: the session waits for its turn (wireup_class).
 * False: the peer is authenticated, and the session goes on at once. */
bool unauth_wait(struct perigee_session *session);
/* Gives one session its turn, if one waits and it is time. */
void unauth_turn(struct perigee_engine *engine);
/* Are there so many that a dialer must come back with a cookie? */
bool unauth_crowded(const struct perigee_engine *engine);

#endif
