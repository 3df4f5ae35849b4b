/* SPDX-License-Identifier: Apache-2.0
 *
 * stamp.c - the file that stamps go to; nothing without PERIGEE_ANATOMY.
 */
#include "stamp.h"

#ifdef PERIGEE_ANATOMY
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STAMPS = 4 << 20 };

uint64_t *perigee_stamps_next, *perigee_stamps_end;

/* The pages are touched here, so that no stamp waits for one. */
void perigee_stamps_open(void) {
  const char *folder = getenv("PERIGEE_ANATOMY");
  size_t length = STAMPS * sizeof(uint64_t);
  char path[512];
  if (!folder || perigee_stamps_next)
    return;
  snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  void *at = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, (off_t)length) == 0)
    at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd >= 0)
    close(fd);
  if (at == MAP_FAILED) {
    perror(path);
    exit(1);
  }
  memset(at, 0, length);
  perigee_stamps_next = at;
  perigee_stamps_end = perigee_stamps_next + STAMPS;
}

void perigee_stamp(int point) {
  STAMP(point);
}

uint64_t perigee_ticks(void) {
  return stamp_ticks();
}
#endif
