/* SPDX-License-Identifier: Apache-2.0
 *
 * door.h - a TCP listener that requires a secret, and the program that it tells
 * of refusals. The session's transport is the specs' own.
 */
#ifndef DOOR_H
#define DOOR_H

#include <netinet/in.h>

#include "raw_peer.h"

enum { HEARD = 8 };

/* Two engines with their secrets for scope "cluster". 0 will dial; 1 will
 * listen and reports all refusals. */
void open_with(struct pair *p, const char *dialer, const char *listener);
/* As open_with(), with one secret. 1 admits so many strangers at a time. */
void open_to(struct pair *p, const char *secret, uint32_t hellos);
void open_side(struct pair *p, int side, const char *secret, const char *scope);
/* Engine 1 listens. */
void open_port(struct pair *p);
int port_of(const struct pair *p);
void poll_both(struct pair *p);

struct sockaddr_in loopback(int port);
/* A socket connected to the listener, and a peer's first frame. */
int raw_connect(const struct pair *p);
struct frame tcp_hello(void);

/* The frames that arrive on a socket, until it is closed or `most` came. */
struct heard {
  struct frame frame[HEARD];
  int count;
  bool cut;
};
void hear(struct pair *p, int fd, struct heard *h, int most);
void is_refusal(const struct frame *f, int status, const char *word);
/* The listener's program must have been told of one refusal. */
void told(struct pair *p, int status, const char *word);

#endif
