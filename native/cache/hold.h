/* SPDX-License-Identifier: Apache-2.0
 *
 * hold.h - what a cache and its holder say to each other: messages over a
 * socket of packets. A request has a kind, and a name or a number. Its answer,
 * in the order of the requests, has a status, and maybe a name. A descriptor
 * goes beside either. The functions ask nothing of the system: a holder has no
 * library.
 */
#ifndef CACHE_HOLD_H
#define CACHE_HOLD_H

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "cache/cache.h"

enum { HELD = 4096, NAME = PERIGEE_CACHE_HELD_NAME };
/* What the holder is called in lists of processes, and the descriptors that it
 * begins with: what it listens at, and its own program. */
#define HOLDER_TITLE "perigee-hold"
enum { HOLDER_LISTENER = 3, HOLDER_PROGRAM = 4 };
enum held_kind { HELD_PUT = 1, HELD_DROP, HELD_TAKE, HELD_END };

struct hold_message {
  uint32_t kind, number;
  int32_t status;
  char name[NAME];
};

/* A message on its way: what sendmsg and recvmsg take, with room for one
 * descriptor. It points into itself. */
struct hold_packet {
  struct msghdr head;
  struct iovec bytes;
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int))];
  } control;
};

/* Makes a packet that a message is received into. */
static inline void hold_packet_in(struct hold_packet *p,
                                  struct hold_message *m) {
  *p = (struct hold_packet){.bytes = {m, sizeof *m}, .control = {.room = {0}}};
  p->head.msg_iov = &p->bytes;
  p->head.msg_iovlen = 1;
  p->head.msg_control = &p->control;
  p->head.msg_controllen = sizeof p->control.room;
}

/* Makes one that is sent, with a descriptor unless that is below 0. */
static inline void hold_packet_out(struct hold_packet *p,
                                   struct hold_message *m, int fd) {
  hold_packet_in(p, m);
  if (fd < 0) {
    p->head.msg_control = NULL;
    p->head.msg_controllen = 0;
    return;
  }
  p->control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd),
                                     .cmsg_level = SOL_SOCKET,
                                     .cmsg_type = SCM_RIGHTS};
  memcpy(CMSG_DATA(&p->control.head), &fd, sizeof fd);
}

/* Ends the name of a message that has come, for it is not believed. Returns the
 * descriptor with it, which is the caller's, or -1. length: what recvmsg has
 * returned. */
static inline int hold_packet_fd(struct hold_packet *p, struct hold_message *m,
                                 long length) {
  struct cmsghdr *head = length > 0 ? CMSG_FIRSTHDR(&p->head) : NULL;
  int fd = -1;
  if (head && head->cmsg_type == SCM_RIGHTS &&
      head->cmsg_len == CMSG_LEN(sizeof fd))
    memcpy(&fd, CMSG_DATA(head), sizeof fd);
  m->name[NAME - 1] = 0;
  return fd;
}

#endif
