/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the floors: options, two pinned processes over touched memory, a
 * clock, and samples. A floor is the least time that the hardware lets any
 * program need for the same result, written without a protocol, errors or
 * waiting.
 *
 * All floors take   [--pin A,B] [--seconds S] [--samples] ... SIZE...
 * and print one line for each size: what, size, p50, mean, p99 in ns, count;
 * with --json as an object. A size may end in K, M or G. With --samples they
 * print "sample WHAT SIZE NS COUNT" lines instead, which the Lua driver merges
 * over several bursts.
 */
#ifndef BENCH_FLOOR_H
#define BENCH_FLOOR_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, HUGE = 2 << 20, LINE = 64, SAMPLES = 1 << 20 };

struct options {
  int pins[2];
  double seconds; /* for each size */
  bool samples, json;
  int copies; /* echo: 2, or 3 with a copy into the caller's buffer */
  int window; /* echo: messages under way at once */
  long count; /* memcpy, cuda: blocks, and the distance of their starts */
  long stride;
  int devices[2];    /* cuda: of this side and of the other */
  const char *how;   /* tcp, cuda: which of their floors */
  const char *at;    /* tcp: where the server listens */
  const char *netns; /* tcp: and in which network namespace */
  long chunk;        /* tcp, seal: bytes of a send, or sealed at once */
};

struct samples {
  double *ns; /* sorted by report() */
  long count;
};

static inline void die(const char *what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

static inline void wrong_bytes(void) {
  fputs("wrong bytes\n", stderr);
  exit(1);
}

static inline int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static inline void pin(int core) {
  cpu_set_t set;
  if (core < 0)
    return;
  CPU_ZERO(&set);
  CPU_SET((unsigned)core, &set);
  if (sched_setaffinity(0, sizeof set, &set))
    die("sched_setaffinity");
}

/* Returns zeroed memory with every page touched; flags: MAP_SHARED or
 * MAP_PRIVATE. It asks for huge pages, as Perigee does. */
static inline void *memory(size_t length, int flags) {
  size_t whole = (length + HUGE - 1) / HUGE * HUGE;
  void *at =
      mmap(NULL, whole, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    die("mmap");
  madvise(at, whole, MADV_HUGEPAGE);
  memset(at, 1, whole);
  memset(at, 0, whole);
  return at;
}

/* Faults in the pages that a fork left unmapped. */
static inline void touch(const volatile char *at, size_t length) {
  for (size_t i = 0; i < length; i += PAGE)
    (void)at[i];
}

/* Round r changes one byte of each page, at an offset that moves. */
static inline size_t stamp_offset(size_t length, uint64_t round) {
  return round % (length < PAGE ? length : PAGE);
}

static inline void stamp(uint8_t *at, size_t length, uint64_t round) {
  for (size_t i = stamp_offset(length, round), page = 0; i < length;
       i += PAGE, page++)
    at[i] = (uint8_t)(round + page);
}

/* Reads a byte of each page; returns 0 if each is that of this round. */
static inline unsigned check(const volatile uint8_t *at, size_t length,
                             uint64_t round) {
  unsigned bad = 0;
  for (size_t i = stamp_offset(length, round), page = 0; i < length;
       i += PAGE, page++)
    bad |= at[i] ^ (uint8_t)(round + page);
  return bad;
}

static inline void child_ended(int signal) {
  (void)signal;
  _exit(1);
}

/* Forks; the child runs serve(context) on the second core and exits. If one of
 * the two dies early, so does the other. The child starts on the second core,
 * because under SCHED_FIFO a polling parent would never let it move there. */
static inline pid_t start(const struct options *options, void (*serve)(void *),
                          void *context) {
  signal(SIGCHLD, child_ended);
  pin(options->pins[1]);
  pid_t pid = fork();
  if (pid < 0)
    die("fork");
  if (pid > 0) {
    pin(options->pins[0]);
    return pid;
  }
  signal(SIGCHLD, SIG_DFL);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  serve(context);
  _exit(0);
}

/* Called before the child is told to end, so that its end is not an error. */
static inline void ending(void) {
  signal(SIGCHLD, SIG_DFL);
}

/* The room is touched here, so that no sample waits for a page. */
static inline struct samples samples_new(void) {
  static double room[SAMPLES];
  memset(room, 1, sizeof room);
  return (struct samples){room, 0};
}

static inline int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static inline void report_samples(const char *what, const char *size,
                                  const struct samples *samples) {
  for (long i = 0, end; i < samples->count; i = end) {
    for (end = i; end < samples->count; end++)
      if (samples->ns[end] > samples->ns[i])
        break;
    printf("sample %s %s %.2f %ld\n", what, size, samples->ns[i], end - i);
  }
}

static inline void report_line(const struct options *options, const char *what,
                               const char *size,
                               const struct samples *samples) {
  static const char *const forms[] = {
      "%-8s %12s  p50 %12.2f  mean %12.2f  p99 %12.2f ns  %ld rounds\n",
      "{\"floor\":\"%s\",\"size\":%s,\"p50_ns\":%.2f,\"mean_ns\":%.2f,"
      "\"p99_ns\":%.2f,\"count\":%ld}\n"};
  double sum = 0;
  for (long i = 0; i < samples->count; i++)
    sum += samples->ns[i];
  printf(forms[options->json], what, size, samples->ns[samples->count / 2],
         sum / (double)samples->count,
         samples->ns[samples->count - 1 - samples->count / 100],
         samples->count);
}

static inline void report(const struct options *options, const char *what,
                          const char *size, struct samples *samples) {
  qsort(samples->ns, (size_t)samples->count, sizeof(double), compare);
  if (options->samples)
    report_samples(what, size, samples);
  else if (samples->count)
    report_line(options, what, size, samples);
  fflush(stdout);
  samples->count = 0;
}

static inline void usage(const char *program) {
  fprintf(stderr,
          "usage: %s [--pin A,B] [--seconds S] [--samples] [--json] "
          "[--copies 2|3] [--window N] [--count N] [--stride N] "
          "[--devices A,B] [--how WORD] [--at ADDRESS] [--netns FILE] "
          "[--chunk N] SIZE...\n",
          program);
  exit(2);
}

/* Returns a size as a number of bytes, which all others read; NULL: it is none. */
static inline char *size_plain(char *text) {
  static const char units[] = "KMG";
  char *end, *plain;
  unsigned long long size = strtoull(text, &end, 10);
  const char *unit = strchr(units, *end);
  if (end == text || !unit || (*end && end[1]))
    return NULL;
  if (*end)
    size <<= 10 * (unit - units + 1);
  return asprintf(&plain, "%llu", size) < 0 ? NULL : plain;
}

static inline struct options options_parse(int argc, char **argv) {
  static const struct option known[] = {
      {"pin", required_argument, NULL, 'p'},
      {"seconds", required_argument, NULL, 's'},
      {"samples", no_argument, NULL, 'm'},
      {"json", no_argument, NULL, 'j'},
      {"copies", required_argument, NULL, 'c'},
      {"window", required_argument, NULL, 'w'},
      {"count", required_argument, NULL, 'n'},
      {"stride", required_argument, NULL, 't'},
      {"devices", required_argument, NULL, 'd'},
      {"how", required_argument, NULL, 'h'},
      {"at", required_argument, NULL, 'a'},
      {"netns", required_argument, NULL, 'N'},
      {"chunk", required_argument, NULL, 'k'},
      {NULL, 0, NULL, 0}};
  struct options options = {
      .pins = {0, 1}, .seconds = 1, .copies = 2, .window = 1, .count = 1};
  for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
    switch (c) {
    case 'p':
      if (sscanf(optarg, "%d,%d", &options.pins[0], &options.pins[1]) != 2)
        usage(argv[0]);
      break;
    case 's':
      options.seconds = atof(optarg);
      break;
    case 'm':
      options.samples = true;
      break;
    case 'j':
      options.json = true;
      break;
    case 'd':
      if (sscanf(optarg, "%d,%d", &options.devices[0], &options.devices[1]) !=
          2)
        usage(argv[0]);
      break;
    case 'c':
      options.copies = atoi(optarg);
      break;
    case 'w':
      options.window = atoi(optarg);
      break;
    case 'n':
      options.count = atol(optarg);
      break;
    case 't':
      options.stride = atol(optarg);
      break;
    case 'h':
      options.how = optarg;
      break;
    case 'a':
      options.at = optarg;
      break;
    case 'N':
      options.netns = optarg;
      break;
    case 'k':
      options.chunk = atol(optarg);
      break;
    default:
      usage(argv[0]);
    }
  }
  if (optind == argc || options.window < 1 || options.count < 1)
    usage(argv[0]);
  for (int i = optind; i < argc; i++)
    if (!(argv[i] = size_plain(argv[i])))
      usage(argv[0]);
  return options;
}

static inline size_t largest(int argc, char **argv) {
  size_t most = 0;
  for (int i = optind; i < argc; i++) {
    size_t size = strtoull(argv[i], NULL, 10);
    if (!size)
      usage(argv[0]);
    most = size > most ? size : most;
  }
  return most;
}

#endif
