/* SPDX-License-Identifier: Apache-2.0
 *
 * door.h - a listener over TCP that wants to know who comes, and its program.
 * The transport is the specs' own.
 */
#ifndef DOOR_H
#define DOOR_H

#include <netinet/in.h>

#include "raw_peer.h"

enum { HEARD = 8 };

/* Two engines with their secrets for scope "cluster"; 0 will dial, 1 listens
 * and has all told that it refuses. */
void open_with(struct pair *p, const char *dialer, const char *listener);
void open_side(struct pair *p, int side, const char *secret, const char *scope);
/* The listener of engine 1. */
void open_port(struct pair *p);
int port_of(const struct pair *p);
void poll_both(struct pair *p);

struct sockaddr_in loopback(int port);
/* A socket to the listener, and what a peer would say first. */
int raw_connect(const struct pair *p);
struct frame tcp_hello(void);

/* Frames that come on a socket, at most `most`, or until it is cut. */
struct heard {
  struct frame frame[HEARD];
  int count;
  bool cut;
};
void hear(struct pair *p, int fd, struct heard *h, int most);
void is_refusal(const struct frame *f, int status, const char *word);
/* The listener's program hears of one. */
void told(struct pair *p, int status, const char *word);

#endif
