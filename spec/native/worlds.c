/* SPDX-License-Identifier: Apache-2.0
 *
 * worlds.c - the seeds of a run, and the child processes that run their worlds.
 */
#include "worlds.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support.h"

enum { WORLDS = 100000, FRESH_A_DAY = WORLDS / 5, DAY = 86400 };
enum { CHILDREN = 16, FOR_ONE = 60, FAILURES = 16 };

/* Which worlds: seeds 1 to `fixed`, and `fresh` more from `first` on. */
struct seeds {
  uint64_t fixed, first, fresh;
};

/* A process that runs every so many worlds. */
struct child {
  pid_t pid; /* 0: it has run all of its */
  volatile uint64_t at;
  uint64_t seen;
  int64_t since;
};

/* ---- Which --------------------------------------------------------------- */

static uint64_t count_of(const struct seeds *s) {
  return s->fixed + s->fresh;
}

static uint64_t seed_at(const struct seeds *s, uint64_t at) {
  return at < s->fixed ? at + 1 : s->first + (at - s->fixed);
}

static struct seeds seeds_named(const char *text) {
  char *dash;
  uint64_t first = strtoull(text, &dash, 10);
  uint64_t last = *dash == '-' ? strtoull(dash + 1, NULL, 10) : first;
  if (first == 0 || last < first)
    fail_msg("PERIGEE_SEEDS is not n-m, but %s", text);
  return (struct seeds){.first = first, .fresh = last - first + 1};
}

/* A fifth of a run that is not whole is fresh. */
static struct seeds seeds_of_day(int64_t day) {
  const char *text = getenv("PERIGEE_SPEC_SCALE");
  double scale = text ? atof(text) : 0.02;
  uint64_t all = scale > 0.0002 ? (uint64_t)(WORLDS * scale) : 20;
  uint64_t fresh = all < WORLDS ? all / 5 : FRESH_A_DAY;
  return (struct seeds){.fixed = all < WORLDS ? all - fresh : all,
                        .first = WORLDS + 1 + (uint64_t)day * FRESH_A_DAY,
                        .fresh = fresh};
}

static struct seeds seeds_chosen(void) {
  const char *named = getenv("PERIGEE_SEEDS");
  struct seeds s =
      named ? seeds_named(named) : seeds_of_day((int64_t)time(NULL) / DAY);
  uint64_t last = s.first + s.fresh - 1;
  if (s.fixed > 0)
    fprintf(stderr, "seeds 1 to %llu, and fresh ones; these again: ",
            (unsigned long long)s.fixed);
  fprintf(stderr, "PERIGEE_SEEDS=%llu-%llu %s\n", (unsigned long long)s.first,
          (unsigned long long)last, program_invocation_name);
  return s;
}

/* ---- Children ------------------------------------------------------------ */

static void run_child(world_run *run, const struct seeds *seeds,
                      struct child *c, uint64_t step) {
  int before = descriptors();
  for (; c->at < count_of(seeds); c->at += step) {
    uint64_t seed = seed_at(seeds, c->at);
    run(seed);
    if (descriptors() != before) {
      fprintf(stderr, "seed %llu leaves descriptors open\n",
              (unsigned long long)seed);
      exit(1);
    }
  }
  exit(0);
}

static void start(world_run *run, const struct seeds *seeds, struct child *c,
                  uint64_t at, uint64_t step) {
  c->at = c->seen = at;
  c->since = clock_now();
  c->pid = 0;
  if (at >= count_of(seeds))
    return;
  pid_t pid = fork();
  if (pid == 0)
    run_child(run, seeds, c, step);
  assert_true(pid > 0);
  c->pid = pid; /* not by the child, which shares it */
}

/* Returns what went wrong, or NULL; a child that has ended has no pid. */
static const char *watch(struct child *c) {
  int status;
  if (c->seen != c->at) {
    c->seen = c->at;
    c->since = clock_now();
  }
  if (waitpid(c->pid, &status, WNOHANG) == c->pid) {
    c->pid = 0;
    return status == 0 ? NULL : WIFSIGNALED(status) ? "dies" : "fails";
  }
  if (clock_now() - c->since < FOR_ONE * 1000 * MS)
    return NULL;
  kill(c->pid, SIGKILL);
  waitpid(c->pid, &status, 0);
  c->pid = 0;
  return "hangs";
}

static void blame(uint64_t seed, const char *what) {
  fprintf(stderr, "seed %llu %s; again, alone: PERIGEE_SEED=%llu %s\n",
          (unsigned long long)seed, what, (unsigned long long)seed,
          program_invocation_name);
}

/* Watches all children until they have ended. After a world that fails its
 * child goes on with the next, unless there are many. */
static int watch_all(world_run *run, const struct seeds *seeds,
                     struct child *children, uint64_t n) {
  int failures = 0;
  for (uint64_t left = n; left > 0;) {
    left = 0;
    for (uint64_t i = 0; i < n; i++) {
      struct child *c = &children[i];
      const char *wrong = c->pid ? watch(c) : NULL;
      if (wrong)
        blame(seed_at(seeds, c->at), wrong);
      if (wrong && ++failures < FAILURES)
        start(run, seeds, c, c->at + n, n);
      left += c->pid != 0;
    }
    nanosleep(&(struct timespec){0, 5000000}, NULL);
  }
  return failures;
}

int worlds_run(world_run *run) {
  struct seeds seeds = seeds_chosen();
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  int n = cores < 1 ? 1 : cores > CHILDREN ? CHILDREN : (int)cores;
  struct child *children =
      mmap(NULL, sizeof *children * CHILDREN, PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(children != MAP_FAILED);
  for (int i = 0; i < n; i++)
    start(run, &seeds, &children[i], (uint64_t)i, (uint64_t)n);
  int failures = watch_all(run, &seeds, children, (uint64_t)n);
  munmap(children, sizeof *children * CHILDREN);
  return failures;
}

bool worlds_fail(world_run *run, uint64_t first, uint64_t last) {
  int status;
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    assert_non_null(freopen("/dev/null", "w", stderr));
    for (uint64_t seed = first; seed <= last; seed++)
      run(seed);
    exit(0);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

uint64_t worlds_alone(void) {
  const char *text = getenv("PERIGEE_SEED");
  return text ? strtoull(text, NULL, 10) : 0;
}

uint64_t dice_next(uint64_t *state) { /* splitmix64 */
  uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

uint64_t dice_below(uint64_t *state, uint64_t n) {
  return n ? dice_next(state) % n : 0;
}

bool dice_happens(uint64_t *state, double chance) {
  return (double)(dice_next(state) >> 11) < chance * 0x1p53;
}
