/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the floors that send descriptors to another process.
 */
#ifndef BENCH_DESCRIPTORS_H
#define BENCH_DESCRIPTORS_H

#include "floor.h"

#include <sys/socket.h>

union descriptor_control {
  struct cmsghdr header;
  char room[CMSG_SPACE(sizeof(int))];
};

static inline void send_descriptor(int to, int file, size_t size) {
  union descriptor_control control = {{.cmsg_len = CMSG_LEN(sizeof(int)),
                                       .cmsg_level = SOL_SOCKET,
                                       .cmsg_type = SCM_RIGHTS}};
  struct iovec bytes = {&size, sizeof size};
  struct msghdr message = {.msg_iov = &bytes,
                           .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = sizeof control};
  memcpy(CMSG_DATA(&control.header), &file, sizeof file);
  if (sendmsg(to, &message, 0) != sizeof size)
    die("sendmsg");
}

/* Returns -1 at the end of the socket. */
static inline int receive_descriptor(int from, size_t *size) {
  union descriptor_control control;
  struct iovec bytes = {size, sizeof *size};
  struct msghdr message = {.msg_iov = &bytes,
                           .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = sizeof control};
  int file = -1;
  if (recvmsg(from, &message, 0) == sizeof *size && message.msg_controllen)
    memcpy(&file, CMSG_DATA(&control.header), sizeof file);
  return file;
}

#endif
