/* SPDX-License-Identifier: Apache-2.0
 *
 * sparse.c - to be preloaded: the core's rings are made as an older build
 * made them, sealed for good and without a page in them.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))
enum { POPULATE_WRITE = 23 };

static int change(int fd, int command, long value) {
  if (command == F_ADD_SEALS && !(value & F_SEAL_FUTURE_WRITE))
    value |= F_SEAL_SEAL;
  return (int)syscall(SYS_fcntl, fd, command, value);
}

SHOWN int fcntl(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  long value = va_arg(list, long);
  va_end(list);
  return change(fd, command, value);
}

SHOWN int fcntl64(int fd, int command, ...) __attribute__((alias("fcntl")));

SHOWN int madvise(void *at, size_t length, int advice) {
  return advice == POPULATE_WRITE
             ? 0
             : (int)syscall(SYS_madvise, at, length, advice);
}
