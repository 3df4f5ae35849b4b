/* SPDX-License-Identifier: Apache-2.0 */
#include "guarded.h"

#include <stddef.h>
#include <sys/mman.h>

/* A long copy may write some pages ahead of a fault, so the guard is long. */
enum { PAGE = 4096, GUARD = 1 << 20 };

static uint64_t guarded_whole(uint64_t length) {
  return ((length + PAGE - 1) & ~(uint64_t)(PAGE - 1)) + GUARD;
}

void *guarded_reserve(uint64_t length) {
  void *p = mmap(NULL, guarded_whole(length), PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

void *guarded_map(uint64_t length, int fd) {
  int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void *p = guarded_reserve(length);
  if (!p)
    return NULL;
  if (mmap(p, length, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE | MAP_FIXED,
           fd, 0) == MAP_FAILED) {
    munmap(p, guarded_whole(length));
    return NULL;
  }
  madvise(p, guarded_whole(length), MADV_DONTFORK);
  return p;
}

void guarded_unmap(void *mapped, uint64_t length) {
  if (mapped)
    munmap(mapped, guarded_whole(length));
}
