/* SPDX-License-Identifier: Apache-2.0
 *
 * adopted.h - descriptors that peers have sent over a Unix socket. What is behind
 * one may be anything: a file whose file system answers when it likes, or never;
 * a socket that lingers, so that who closes it last waits until all is sent that
 * nobody reads. Nothing here waits for either, for as long as this process may
 * have more descriptors at all.
 */
#ifndef ADOPTED_H
#define ADOPTED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* As many as one message can bring, and the kernel's word on who sent it. */
enum { ADOPTED_MOST = 253 };
union adopted_control {
  struct cmsghdr head;
  char room[CMSG_SPACE(sizeof(int) * ADOPTED_MOST) +
            CMSG_SPACE(sizeof(struct ucred))];
};

/* Is it memory with these seals? Then its length. */
bool adopted_memory(int fd, int seals, uint64_t *length);
void adopted_close(int fd);
/* Of a socket that will be closed: no more is heard, and what lies there with
 * descriptors is thrown away. */
void adopted_drain(int socket);

#endif
