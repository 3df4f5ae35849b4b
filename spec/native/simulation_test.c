/* SPDX-License-Identifier: Apache-2.0
 *
 * simulation_test.c - thousands of simulated worlds (simulation.h). They run
 * in child processes, as many at once as there are cores, so that one that
 * dies or hangs is told with its seed.
 *
 * PERIGEE_SEED=n runs that one alone, here, and tells all that happens in it.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "simulation.h"
#include "support.h"

enum { WORLDS = 2000, CHILDREN = 16, FOR_ONE = 60 };

/* The world that a child runs. */
struct child {
  pid_t pid;
  volatile uint64_t seed;
  uint64_t seen;
  int64_t since;
};

static uint64_t number_of(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  return text ? strtoull(text, NULL, 10) : otherwise;
}

static uint64_t worlds(void) {
  const char *scale = getenv("PERIGEE_SPEC_SCALE");
  double n = WORLDS * (scale ? atof(scale) / 0.02 : 1);
  return n < 16 ? 16 : (uint64_t)n;
}

static void run_child(struct child *c, uint64_t first, uint64_t step,
                      uint64_t last) {
  int before = descriptors();
  for (uint64_t seed = first; seed <= last; seed += step) {
    c->seed = seed;
    simulate(seed, false);
    if (descriptors() != before) {
      fprintf(stderr, "seed %llu leaves descriptors open\n",
              (unsigned long long)seed);
      exit(1);
    }
  }
  exit(0);
}

static void blame(const struct child *c, const char *what) {
  fprintf(stderr, "seed %llu %s; again, alone: PERIGEE_SEED=%llu %s\n",
          (unsigned long long)c->seed, what, (unsigned long long)c->seed,
          program_invocation_name);
}

/* True while it runs. */
static bool watch(struct child *c, bool *failed) {
  int status;
  pid_t ended = waitpid(c->pid, &status, WNOHANG);
  if (ended == c->pid) {
    *failed |= status != 0;
    if (status != 0)
      blame(c, WIFSIGNALED(status) ? "dies" : "fails");
    return false;
  }
  if (c->seen != c->seed) {
    c->seen = c->seed;
    c->since = clock_now();
  }
  if (clock_now() - c->since < FOR_ONE * 1000 * MS)
    return true;
  blame(c, "hangs");
  kill(c->pid, SIGKILL);
  waitpid(c->pid, &status, 0);
  *failed = true;
  return false;
}

static void every_world_ends_well(void **state) {
  (void)state;
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  int n = cores < 1 ? 1 : cores > CHILDREN ? CHILDREN : (int)cores;
  struct child *children =
      mmap(NULL, sizeof *children * CHILDREN, PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(children != MAP_FAILED);
  for (int i = 0; i < n; i++) {
    pid_t pid = fork();
    if (pid == 0)
      run_child(&children[i], (uint64_t)i + 1, (uint64_t)n, worlds());
    children[i].pid = pid;
    children[i].since = clock_now();
  }
  bool failed = false;
  for (int left = n; left > 0;) {
    left = 0;
    for (int i = 0; i < n; i++) {
      if (children[i].pid > 0 && !watch(&children[i], &failed))
        children[i].pid = 0;
      left += children[i].pid > 0;
    }
    nanosleep(&(struct timespec){0, 5000000}, NULL);
  }
  munmap(children, sizeof *children * CHILDREN);
  assert_false(failed);
}

static void a_world_is_the_same_each_time(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 64; seed++) {
    if (!world_is_exact(seed))
      continue;
    uint64_t first = simulate(seed, false), second = simulate(seed, false);
    if (first != second)
      fail_msg("seed %llu goes otherwise the second time",
               (unsigned long long)seed);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_world_ends_well),
      cmocka_unit_test(a_world_is_the_same_each_time),
  };
  uint64_t alone = number_of("PERIGEE_SEED", 0);
  if (alone) {
    simulate(alone, true);
    return 0;
  }
  return cmocka_run_group_tests(tests, NULL, NULL);
}
