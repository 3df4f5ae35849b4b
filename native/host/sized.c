/* SPDX-License-Identifier: Apache-2.0 */
#include "sized.h"

#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

bool sized_may(uint64_t length) {
  struct rlimit limit;
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || length <= limit.rlim_cur;
}

bool sized(int fd, uint64_t length) {
  if (sized_may(length))
    return ftruncate(fd, (off_t)length) == 0;
  errno = EFBIG;
  return false;
}
