/* SPDX-License-Identifier: Apache-2.0
 *
 * host.c - host memory: anonymous pages. Regions that a peer on the same host
 * may map are made from memfds by region.c instead. */
#include <sys/mman.h>

#include "memory.h"

static int host_allocate(uint64_t length, uint8_t **pointer, void **context) {
  void *p = mmap(NULL, length, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return PERIGEE_NO_MEMORY;
  *pointer = p;
  *context = NULL;
  return PERIGEE_OK;
}

static void host_release(uint8_t *pointer, uint64_t length, void *context) {
  (void)context;
  munmap(pointer, length);
}

const struct perigee_memory memory_host = {
    .name = "host",
    .direct = true,
    .allocate = host_allocate,
    .release = host_release,
};
