/* SPDX-License-Identifier: Apache-2.0
 *
 * matrix.c - every test of a suite over every transport and kind of memory.
 */
#include <stdio.h>

#include "support.h"

static const struct variant variants[] = {
    {"shm, host", "shm", "host", 1},
    {"shm, opaque", "shm", "opaque", 1},
    {"shm without pulling, host", "shm", "host", 0},
    {"shm without pulling, opaque", "shm", "opaque", 0},
    {"inproc, host", "inproc", "host", 1},
    {"inproc, opaque", "inproc", "opaque", 1},
};
enum { VARIANTS = sizeof variants / sizeof *variants, TESTS = 64, NAME = 160 };

static int before;

static int set_up(void **state) {
  (void)state;
  before = descriptors();
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  int now = descriptors();
  if (now != before)
    fprintf(stderr, "%d descriptors before, %d after\n", before, now);
  return now != before;
}

int run_matrix(const char *suite, const struct CMUnitTest *tests, int count) {
  static struct CMUnitTest all[TESTS * VARIANTS];
  static char names[TESTS * VARIANTS][NAME];
  int n = 0;
  for (int v = 0; v < VARIANTS; v++)
    for (int i = 0; i < count; i++, n++) {
      snprintf(names[n], NAME, "%s (%s)", tests[i].name, variants[v].name);
      all[n] = tests[i];
      all[n].name = names[n];
      all[n].setup_func = set_up;
      all[n].teardown_func = tear_down;
      all[n].initial_state = (void *)(uintptr_t)&variants[v];
    }
  return _cmocka_run_group_tests(suite, all, (size_t)n, NULL, NULL);
}
