/* SPDX-License-Identifier: Apache-2.0 */
#include "adopted.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

/* ---- Letting go ---------------------------------------------------------- */

/* Whoever lets memory go last frees its pages, at some 5 GB/s. A thread that
 * does nothing else lets what is longer go. It has no signals and no locks. It
 * unmaps piece by piece, as other threads that map something wait meanwhile. */
enum { LONG = 32 << 20, UNMAPPED = 4 << 20, STACK = 64 << 10 };

static bool adopted_aside(void *(*work)(void *), void *what) {
  pthread_attr_t attributes;
  pthread_t thread;
  sigset_t all, before;
  if (pthread_attr_init(&attributes) != 0)
    return false;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, STACK);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool begun = pthread_create(&thread, &attributes, work, what) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return begun;
}

/* Only of memory: fstat of another file may wait. */
static bool adopted_is_long(int fd) {
  struct stat st;
  return fcntl(fd, F_GET_SEALS) >= 0 && fstat(fd, &st) == 0 &&
         (uint64_t)st.st_blocks * 512 > LONG;
}

static void *adopted_close_long(void *fd) {
  close((int)(intptr_t)fd);
  return NULL;
}

/* Without lingering: bytes that are still to be sent are dropped. */
void adopted_close(int fd) {
  const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  void *what = (void *)(intptr_t)fd; // NOLINT(performance-no-int-to-ptr)
  if (!adopted_is_long(fd) || !adopted_aside(adopted_close_long, what))
    close(fd);
}

struct mapping {
  void *at;
  uint64_t length;
};

static void *adopted_unmap_long(void *what) {
  struct mapping m = *(struct mapping *)what;
  uint8_t *at = m.at;
  free(what);
  for (uint64_t n; m.length > 0; at += n, m.length -= n) {
    n = m.length < UNMAPPED ? m.length : UNMAPPED;
    munmap(at, n);
  }
  return NULL;
}

void adopted_unmap(void *at, uint64_t length, uint64_t there) {
  struct mapping *m = there > LONG ? malloc(sizeof *m) : NULL;
  if (m) {
    *m = (struct mapping){at, length};
    madvise(at, length, MADV_DONTFORK); /* a child has nobody who unmaps it */
  }
  if (m && adopted_aside(adopted_unmap_long, m))
    return;
  free(m);
  munmap(at, length);
}

/* Without the address (NULL: any), which the flag makes mremap look at, it fails
 * or not by what a register has. */
void *adopted_take(void *at, uint64_t length) {
  return mremap(at, length, length, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
}

/* A system that cannot take pages away from a mapping which stays (Linux before
 * 5.7) frees them here. */
void adopted_empty(void *at, uint64_t length) {
  void *old = length > LONG ? adopted_take(at, length) : MAP_FAILED;
  if (old == MAP_FAILED)
    madvise(at, length, MADV_DONTNEED);
  else
    adopted_unmap(old, length, length);
}

static void adopted_close_all(struct msghdr *m) {
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
      adopted_close_all(&m);
  } while (got > 0);
}
