/* SPDX-License-Identifier: Apache-2.0
 *
 * raw_peer.h - peers that connect to a listener's socket and write raw frames.
 */
#ifndef RAW_PEER_H
#define RAW_PEER_H

#include "net/wire.h"
#include "support.h"

enum { HELLOS = 16 };

/* What the engine does at once takes less than AT_ONCE even on a busy
 * machine, and AT_ONCE is much shorter than PATIENCE. */
static const int64_t PATIENCE = 10000 * MS, AT_ONCE = 2000 * MS;

/* Opens a pair whose listener's hello timeout is PATIENCE, and which admits
 * HELLOS strangers. */
void open_for_raw_peers(struct pair *p);
/* Sets the hello timeout of later connections: 100 ms, or PATIENCE again. */
void hurry(struct pair *p, bool on);
/* Polls until `count` connections were refused. */
void until_refused(struct pair *p, uint64_t count);
/* Fails unless every stranger's session is gone soon, then closes the pair. */
void close_to_raw_peers(struct pair *p);
/* The pair's own session still works: it makes a call. */
void friend_served(struct pair *p);

/* Connects a socket to the listener. */
int visit(struct pair *p);
void say(int fd, const void *bytes, size_t length, const int *fds,
         uint32_t count);
void say_frame(int fd, const struct frame *f, const int *fds, uint32_t count);
struct frame good_hello(void);
struct frame good_terms(void);
/* Sends HELLO and TERMS as a peer over a Unix socket does. */
void say_hello(int fd);
/* Polls until the listener has closed the connection; closes it here too. */
void until_cut(struct pair *p, int fd);

#endif
