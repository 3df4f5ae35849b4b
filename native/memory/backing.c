/* SPDX-License-Identifier: Apache-2.0
 *
 * backing.c - how much memory a region could have, as far as the kernel tells.
 * The kernel grants address space freely and kills processes that touch more
 * memory than there is, so a request that cannot be met is refused at once. And
 * mappings that guard pages follow.
 */
#include <errno.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "backing.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

enum { PAGE = 4096 };
/* Smaller requests are not checked. */
static const uint64_t LITTLE = 16 << 20;

/* ---- Control groups ------------------------------------------------------ */

/* Control groups of version 2, and the memory controller's of version 1: their
 * root, and their files for the limit, the use, and (in memory.stat) the part
 * of the use that the kernel reclaims when needed. */
struct groups {
  const char *root, *limit, *used, *idle;
};
static const struct groups groups[] = {
    {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "},
    {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file "},
};
enum { VERSION_1 = 1, VERSIONS = 2 };

static FILE *group_file(const struct groups *g, const char *folder,
                        const char *name) {
  char path[PATH_MAX];
  int n = snprintf(path, sizeof path, "%s%s/%s", g->root, folder, name);
  return n > 0 && n < PATH_MAX ? fopen(path, "re") : NULL;
}

/* Returns the number after a key at the beginning of a line. */
static uint64_t group_number(FILE *f, const char *key, uint64_t otherwise) {
  char line[128];
  unsigned long long found = otherwise;
  size_t length = strlen(key);
  while (f && fgets(line, sizeof line, f))
    if (strncmp(line, key, length) == 0) {
      if (sscanf(line + length, "%llu", &found) != 1)
        found = otherwise; /* "max" */
      break;
    }
  if (f)
    fclose(f);
  return found;
}

static uint64_t group_limit(const struct groups *g, const char *folder) {
  return group_number(group_file(g, folder, g->limit), "", UINT64_MAX);
}

static uint64_t group_left(const struct groups *g, const char *folder) {
  uint64_t limit = group_limit(g, folder);
  if (limit == UINT64_MAX)
    return limit;
  uint64_t used = group_number(group_file(g, folder, g->used), "", 0);
  uint64_t idle =
      group_number(group_file(g, folder, "memory.stat"), g->idle, 0);
  used -= idle < used ? idle : used;
  return limit > used ? limit - used : 0;
}

/* Parses "0::PATH", or "4:memory:PATH" with a list that contains memory. */
static const char *group_path(char *line, int version) {
  char *names = strchr(line, ':'),
       *path = names ? strchr(names + 1, ':') : NULL;
  if (!path)
    return NULL;
  *path++ = 0;
  path[strcspn(path, "\n")] = 0;
  bool fits = version == VERSION_1 ? strstr(names + 1, "memory") != NULL
                                   : strcmp(line, "0:") == 0;
  return fits && *path == '/' ? path : NULL;
}

static bool group_own(int version, char path[PATH_MAX]) {
  char line[PATH_MAX];
  const char *found = NULL;
  FILE *f = fopen("/proc/self/cgroup", "re");
  while (f && !found && fgets(line, sizeof line, f))
    found = group_path(line, version);
  if (f)
    fclose(f);
  if (found)
    snprintf(path, PATH_MAX, "%s", found);
  return found;
}

/* Returns the least value of this process's control group and its ancestors. */
static uint64_t group_least(uint64_t (*of)(const struct groups *,
                                           const char *)) {
  char path[PATH_MAX], *end;
  uint64_t least = UINT64_MAX;
  for (int version = 0; version < VERSIONS; version++) {
    if (!group_own(version, path))
      continue;
    do {
      uint64_t n = of(&groups[version], path);
      least = n < least ? n : least;
      if ((end = strrchr(path, '/')))
        *end = 0;
    } while (end);
  }
  return least;
}

/* ---- The machine --------------------------------------------------------- */

uint64_t backing_most(void) {
  struct sysinfo s;
  if (sysinfo(&s) != 0)
    return UINT64_MAX;
  uint64_t all = ((uint64_t)s.totalram + s.totalswap) * s.mem_unit;
  uint64_t group = group_least(group_limit);
  if (group > UINT64_MAX - (uint64_t)s.totalswap * s.mem_unit)
    return all;
  group += (uint64_t)s.totalswap * s.mem_unit;
  return group < all ? group : all;
}

/* Returns the bytes that are available now without taking memory from
 * others. */
static uint64_t backing_available(void) {
  uint64_t kib = group_number(fopen("/proc/meminfo", "re"),
                              "MemAvailable:", UINT64_MAX >> 10);
  uint64_t group = group_least(group_left);
  return kib << 10 < group ? kib << 10 : group;
}

bool backing_possible(uint64_t length) {
  return length <= LITTLE || length <= backing_most();
}

/* The files of control groups that are not there leave another errno. */
bool backing_populate(uint8_t *memory, uint64_t length) {
  if (length > LITTLE && length > backing_available()) {
    errno = ENOMEM;
    return false;
  }
  if (madvise(memory, length, MADV_POPULATE_WRITE) == 0)
    return true;
  if (errno != EINVAL)
    return false;
  for (uint64_t at = 0; at < length; at += PAGE) /* an older kernel */
    *(volatile uint8_t *)(memory + at) = 0;
  return true;
}

/* Collapsing needs no leave of the system's settings, but the pages have to be
 * there, and the mapping must not be advised against it. The system passes over
 * what comes before the first multiple of a huge page. */
bool backing_make_huge(uint8_t *memory, uint64_t length) {
  return (uintptr_t)memory % HUGE_PAGE == 0 && length >= HUGE_PAGE &&
         madvise(memory, length, MADV_HUGEPAGE) == 0 &&
         madvise(memory, length, MADV_COLLAPSE) == 0;
}

/* A node that is full is no reason to end the process, so it is preferred only.
 */
bool backing_place(uint8_t *memory, uint64_t length, uint32_t node) {
  enum { BITS = 8 * sizeof(unsigned long) };
  unsigned long nodes[NODES / BITS] = {0};
  nodes[node / BITS] = 1UL << node % BITS;
  return syscall(SYS_mbind, memory, length, MPOL_PREFERRED, nodes, NODES + 1,
                 0) == 0;
}

/* ---- Guard pages --------------------------------------------------------- */

/* A long copy may write some pages ahead of a fault, so the guard is long. */
enum { GUARD = 1 << 20 };

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
