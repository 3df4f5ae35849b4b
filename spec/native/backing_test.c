/* SPDX-License-Identifier: Apache-2.0
 *
 * backing_test.c - the limit of memory, by the machine and by the control
 * groups of this process, of either version. The groups are made up, in a
 * child's own namespace, if the system permits one. And huge pages.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/backing.h"
#include "support.h"

enum { FINE, DIFFERS, NOT_TO_BE_HAD };
static const uint64_t LENGTH = 64 * MIB;

/* ---- Made-up groups --------------------------------------------------------- */

static bool put(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ssize_t length = (ssize_t)strlen(text);
  bool fine = fd >= 0 && write(fd, text, (size_t)length) == length;
  if (fd >= 0)
    close(fd);
  return fine;
}

static bool in_group(const char *folder, const char *file, const char *text) {
  char path[128];
  snprintf(path, sizeof path, "/sys/fs/cgroup%s", folder);
  mkdir(path, 0700);
  snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", folder, file);
  return put(path, text);
}

/* Mounts that hide the real groups, and what this process is told of its
 * own. */
static bool made_up(const char *own) {
  char user[32], group[32];
  snprintf(user, sizeof user, "0 %d 1", geteuid());
  snprintf(group, sizeof group, "0 %d 1", getegid());
  return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 &&
         put("/proc/self/setgroups", "deny") &&
         put("/proc/self/uid_map", user) && put("/proc/self/gid_map", group) &&
         mount("none", "/sys/fs/cgroup", "tmpfs", 0, NULL) == 0 &&
         put("/sys/fs/cgroup/own", own) &&
         mount("/sys/fs/cgroup/own", "/proc/self/cgroup", NULL, MS_BIND,
               NULL) == 0;
}

static bool can_be_populated(void) {
  uint8_t *p = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bool fine = backing_populate(p, LENGTH);
  if (!fine && errno != ENOMEM)
    _exit(DIFFERS);
  munmap(p, LENGTH);
  return fine;
}

static void with_groups(const char *own, bool (*test)(void)) {
  int status;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0)
    _exit(!made_up(own) ? NOT_TO_BE_HAD : test() ? FINE : DIFFERS);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  if (WEXITSTATUS(status) == NOT_TO_BE_HAD)
    skip();
  assert_int_equal(WEXITSTATUS(status), FINE);
}

/* ---- Tests ------------------------------------------------------------------ */

static bool of_version_2(void) {
  bool made = in_group("/a", "memory.max", "1073741824\n") &&
              in_group("/a", "memory.current", "1040187392\n") && /* 32 left */
              in_group("/a/b", "memory.max", "max\n") &&
              in_group("/a/b", "memory.current", "4096\n");
  bool refused = !can_be_populated();
  in_group("/a", "memory.stat", "anon 7\ninactive_file 536870912\n");
  bool cached = can_be_populated();
  in_group("/a/b", "memory.max", "33554432\n");
  bool own = !can_be_populated();
  in_group("/a/b", "memory.max", "268435456\n");
  return made && refused && cached && own && can_be_populated();
}

static void what_a_group_or_one_above_it_has_used_is_not_there(void **state) {
  (void)state;
  with_groups("12:cpu:/\n0::/a/b\n", of_version_2);
}

static bool of_version_1(void) {
  bool made =
      in_group("/memory", "memory.limit_in_bytes", "9223372036854771712") &&
      in_group("/memory/a", "memory.limit_in_bytes", "1073741824") &&
      in_group("/memory/a", "memory.usage_in_bytes", "1040187392");
  bool refused = !can_be_populated();
  in_group("/memory/a", "memory.stat",
           "inactive_file 7\ntotal_inactive_file 536870912\n");
  return made && refused && can_be_populated();
}

static void so_it_is_by_the_older_version(void **state) {
  (void)state;
  with_groups("4:hugetlb,memory:/a/b\n0::/\n", of_version_1);
}

/* Where address space is short, memory lies anywhere. */
static void what_begins_between_huge_pages_is_not_all_huge(void **state) {
  (void)state;
  uint8_t *p = mmap(NULL, 4 * HUGE_PAGE, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uint8_t *at = p + (-(uintptr_t)p & (HUGE_PAGE - 1));
  assert_true(backing_populate(at, 3 * HUGE_PAGE));
  assert_false(backing_make_huge(at + 4096, 2 * HUGE_PAGE));
  bool makes = backing_make_huge(at, 2 * HUGE_PAGE + 4096);
  munmap(p, 4 * HUGE_PAGE);
  if (!makes)
    skip(); /* the system makes none */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_a_group_or_one_above_it_has_used_is_not_there),
      cmocka_unit_test(so_it_is_by_the_older_version),
      cmocka_unit_test(what_begins_between_huge_pages_is_not_all_huge),
  };
  return cmocka_run_group_tests_name("backing", tests, NULL, NULL);
}
