/* SPDX-License-Identifier: Apache-2.0
 *
 * raw_peer.h - who comes to a listener's socket and speaks for himself.
 */
#ifndef RAW_PEER_H
#define RAW_PEER_H

#include "net/wire.h"
#include "support.h"

enum { HELLOS = 16 };

/* What is sent away at once is, long before PATIENCE is over: so this holds on a
 * machine that does other things, too. */
static const int64_t PATIENCE = 10000 * MS, AT_ONCE = 2000 * MS;

/* A pair whose listener has patience, and takes in HELLOS strangers. */
void open_for_raw_peers(struct pair *p);
/* Those who come from now on have 100 ms; or PATIENCE again. */
void hurry(struct pair *p, bool on);
/* Polls until so many were refused. */
void until_refused(struct pair *p, uint64_t count);
/* Nothing is left of any stranger, or will be in a moment. */
void close_to_raw_peers(struct pair *p);
/* The pair's own session is of use still. */
void friend_served(struct pair *p);

/* A socket to the listener. */
int visit(struct pair *p);
void say(int fd, const void *bytes, size_t length, const int *fds,
         uint32_t count);
void say_frame(int fd, const struct frame *f, const int *fds, uint32_t count);
struct frame good_hello(void);
struct frame good_terms(void);
/* Both, as a peer over a Unix socket says them. */
void say_hello(int fd);
/* Polls until the listener has cut the connection; closes it here too. */
void until_cut(struct pair *p, int fd);

#endif
