/* SPDX-License-Identifier: Apache-2.0 */
#include "standard.h"

#include <fcntl.h>
#include <unistd.h>

/* The system gives the lowest number that is free, unless another thread has
 * opened something meanwhile. They are open in what the program executes, as
 * standard descriptors are. */
void standard_fill(void) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
    int got = fcntl(fd, F_GETFD) < 0 ? open("/dev/null", O_RDWR) : fd;
    if (got > STDERR_FILENO)
      close(got);
  }
}
