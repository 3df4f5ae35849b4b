/* SPDX-License-Identifier: Apache-2.0
 *
 * old_kernel.h - tests that run once as on this kernel, and once as before
 * Linux 6.5, which tells the process at the other end of a socket by no pidfd.
 * Included by one file of a program.
 */
#ifndef OLD_KERNEL_H
#define OLD_KERNEL_H

#include <errno.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Replaces the system call, also for the core, to act as before Linux 6.5. */
static bool old_kernel;

int getsockopt(int fd, int level, int name, void *value, socklen_t *length) {
  enum { PEERPIDFD = 77 };
  if (!old_kernel || level != SOL_SOCKET || name != PEERPIDFD)
    return (int)syscall(SYS_getsockopt, fd, level, name, value, length);
  errno = ENOPROTOOPT;
  return -1;
}

static int on_old_kernel(void **state) {
  (void)state;
  old_kernel = true;
  return 0;
}

static int on_this_kernel(void **state) {
  (void)state;
  old_kernel = false;
  return 0;
}

#define ON_BOTH(test)                                                          \
  cmocka_unit_test_setup(test, on_this_kernel), {                              \
#test " (old kernel)", test, on_old_kernel, on_this_kernel, NULL           \
  }

#endif
