/* SPDX-License-Identifier: Apache-2.0
 *
 * adopted.h - descriptors that peers sent over a Unix socket. Any file may be
 * behind such a descriptor: one of a file system that answers late or never, or
 * a socket with SO_LINGER, whose last close waits until everything is sent.
 * Nothing here waits for either, as long as this process may have more
 * descriptors.
 */
#ifndef ADOPTED_H
#define ADOPTED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* The most that one message can bring, and room for them and the credentials of
 * their sender. */
enum { ADOPTED_MOST = 253 };
union adopted_control {
  struct cmsghdr head;
  char room[CMSG_SPACE(sizeof(int) * ADOPTED_MOST) +
            CMSG_SPACE(sizeof(struct ucred))];
};

/* True if the descriptor is memory with these seals; tells its length. */
bool adopted_memory(int fd, int seals, uint64_t *length);
/* Neither waits until long memory is freed. there: how much of
 * the mapping there may be. */
void adopted_close(int fd);
void adopted_unmap(void *at, uint64_t length, uint64_t there);
/* Moves a mapping's pages to another place and returns that, or MAP_FAILED. The
 * mapping itself stays, without pages. */
void *adopted_take(void *at, uint64_t length);
/* As adopted_unmap, of private memory without a file, which stays mapped and has zeros
 * afterwards. at and length are of whole pages. */
void adopted_empty(void *at, uint64_t length);
/* For a socket that will be closed: shuts its receiving side down and discards
 * the messages that wait there, with their descriptors. */
void adopted_drain(int socket);

#endif
