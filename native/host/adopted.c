/* SPDX-License-Identifier: Apache-2.0 */
#include "adopted.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Only memory (memfd) has seals, and fcntl tells them without waiting for
 * anything. */
bool adopted_memory(int fd, int seals, uint64_t *length) {
  struct stat st;
  struct statfs fs;
  int have = fcntl(fd, F_GET_SEALS);
  if (have < 0 || (have & seals) != seals || fstat(fd, &st) != 0 ||
      st.st_size < 0 || fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC)
    return false;
  *length = (uint64_t)st.st_size;
  return true;
}

/* Without lingering: bytes that are still to be sent are dropped. */
void adopted_close(int fd) {
  const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close(fd);
}

static void close_all(struct msghdr *m) {
  for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
      continue;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      adopted_close(fd);
    }
  }
}

void adopted_drain(int socket) {
  uint8_t bytes[16 << 10];
  union adopted_control control;
  struct iovec v = {bytes, sizeof bytes};
  ssize_t got;
  shutdown(socket, SHUT_RD);
  do {
    struct msghdr m = {.msg_iov = &v,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    got = recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got > 0)
      close_all(&m);
  } while (got > 0);
}
