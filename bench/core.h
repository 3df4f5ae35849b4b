/* SPDX-License-Identifier: Apache-2.0
 *
 * core.h - shared by the programs that measure the cache's core by itself: a
 * clock, and the end of a program whose call has failed.
 */
#ifndef BENCH_CORE_H
#define BENCH_CORE_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline int64_t now_of(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static inline int64_t check(int64_t status, const char *what) {
  if (status < 0) {
    fprintf(stderr, "%s: %s: %d\n", program_invocation_short_name, what,
            (int)status);
    exit(1);
  }
  return status;
}

#endif
