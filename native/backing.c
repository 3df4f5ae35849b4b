/* SPDX-License-Identifier: Apache-2.0
 *
 * backing.c - how much memory a region could ever have, as far as the kernel
 * tells. It promises address space freely and kills who touches more than there
 * is; so what cannot be is refused while it is asked for.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

#include "region.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum { PAGE = 4096 };
/* Below this nobody asks: a machine has that. */
static const uint64_t LITTLE = 16 << 20;

/* The number in a file of one line: a control group's limit ("max": none). */
static uint64_t limit_in(const char *folder) {
  char path[PATH_MAX];
  unsigned long long limit = ULLONG_MAX;
  int n = snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", folder);
  FILE *f = n > 0 && n < PATH_MAX ? fopen(path, "re") : NULL;
  if (f && fscanf(f, "%llu", &limit) != 1)
    limit = ULLONG_MAX;
  if (f)
    fclose(f);
  return limit;
}

/* Of our control group (version 2) and all above it the least. */
static uint64_t group_limit(void) {
  char line[PATH_MAX] = "", *end;
  uint64_t least = UINT64_MAX;
  FILE *f = fopen("/proc/self/cgroup", "re");
  while (f && fgets(line, sizeof line, f) && strncmp(line, "0::", 3) != 0)
    line[0] = 0;
  if (f)
    fclose(f);
  if (strncmp(line, "0::/", 4) != 0)
    return least;
  line[strcspn(line, "\n")] = 0;
  do {
    uint64_t limit = limit_in(line + 3);
    least = limit < least ? limit : least;
    if ((end = strrchr(line + 3, '/')))
      *end = 0;
  } while (end);
  return least;
}

uint64_t backing_most(void) {
  struct sysinfo s;
  if (sysinfo(&s) != 0)
    return UINT64_MAX;
  uint64_t all = ((uint64_t)s.totalram + s.totalswap) * s.mem_unit;
  uint64_t group = group_limit();
  if (group > UINT64_MAX - (uint64_t)s.totalswap * s.mem_unit)
    return all;
  group += (uint64_t)s.totalswap * s.mem_unit;
  return group < all ? group : all;
}

/* What can be had now without anybody else having less. */
static uint64_t available(void) {
  char line[128];
  unsigned long long kib = ULLONG_MAX >> 10;
  FILE *f = fopen("/proc/meminfo", "re");
  while (f && fgets(line, sizeof line, f) &&
         sscanf(line, "MemAvailable: %llu", &kib) != 1)
    ;
  if (f)
    fclose(f);
  return kib << 10;
}

bool backing_possible(uint64_t length) {
  return length <= LITTLE || length <= backing_most();
}

bool backing_populate(uint8_t *memory, uint64_t length) {
  if (length > LITTLE && length > available())
    return false;
  if (madvise(memory, length, MADV_POPULATE_WRITE) == 0)
    return true;
  if (errno != EINVAL)
    return false;
  for (uint64_t at = 0; at < length; at += PAGE) /* an older kernel */
    *(volatile uint8_t *)(memory + at) = 0;
  return true;
}
