/* SPDX-License-Identifier: Apache-2.0
 *
 * matrix.c - every test of a suite over every transport and kind of memory.
 * PERIGEE_TEST_TRANSPORTS names the transports ("verbs"); without it they are
 * those that need no device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

static const struct variant variants[] = {
    {"shm, host", "shm", "host", 1, NULL},
    {"shm, opaque", "shm", "opaque", 1, NULL},
    {"shm without pulling, host", "shm", "host", 0, NULL},
    {"shm without pulling, opaque", "shm", "opaque", 0, NULL},
    {"inproc, host", "inproc", "host", 1, NULL},
    {"inproc, opaque", "inproc", "opaque", 1, NULL},
    {"tcp, host", "tcp", "host", 1, NULL},
    {"tcp, opaque", "tcp", "opaque", 1, NULL},
    {"tcp sealed, host", "tcp", "host", 1, "sealed"},
    {"tcp sealed by four streams, opaque", "tcp", "opaque", 1,
     "sealed streams"},
    {"verbs, host", "verbs", "host", 1, ""},
    {"verbs, opaque", "verbs", "opaque", 1, ""},
    {"verbs by three pairs, no windows, host", "verbs", "host", 1,
     "qps=3 stripe=4K depth=16 windows=0"},
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

static bool chosen(const struct variant *v) {
  const char *names = getenv("PERIGEE_TEST_TRANSPORTS");
  return strstr(names ? names : "shm,inproc,tcp", v->transport) != NULL;
}

int run_matrix(const char *suite, const struct CMUnitTest *tests, int count) {
  static struct CMUnitTest all[TESTS * VARIANTS];
  static char names[TESTS * VARIANTS][NAME];
  int n = 0;
  for (int v = 0; v < VARIANTS; v++)
    for (int i = 0; i < count && chosen(&variants[v]); i++, n++) {
      snprintf(names[n], NAME, "%s (%s)", tests[i].name, variants[v].name);
      all[n] = tests[i];
      all[n].name = names[n];
      all[n].setup_func = set_up;
      all[n].teardown_func = tear_down;
      all[n].initial_state = (void *)(uintptr_t)&variants[v];
    }
  return _cmocka_run_group_tests(suite, all, (size_t)n, NULL, NULL);
}
