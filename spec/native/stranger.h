/* SPDX-License-Identifier: Apache-2.0
 *
 * stranger.h - who comes to a listener's socket and speaks for himself.
 */
#ifndef STRANGER_H
#define STRANGER_H

#include "support.h"
#include "wire.h"

enum { HELLOS = 16 };

/* A pair whose listener has little patience, 100 ms and HELLOS strangers. */
void open_for_strangers(struct pair *p);
/* Nothing is left of any stranger. */
void close_to_strangers(struct pair *p);
/* The pair's own session is of use still. */
void friend_served(struct pair *p);

/* A socket to the listener. */
int visit(struct pair *p);
void say(int fd, const void *bytes, size_t length, const int *fds,
         uint32_t count);
void say_frame(int fd, const struct frame *f, const int *fds, uint32_t count);
struct frame good_hello(void);
/* Polls until the listener has cut the connection; closes it here too. */
void until_cut(struct pair *p, int fd);

#endif
