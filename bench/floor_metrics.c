/* SPDX-License-Identifier: Apache-2.0
 *
 * The floor of `perigee metrics`: reads stats files and prints as many series of
 * their agents and methods, in C, without a limit of series, checks, labels that
 * need escapes, or families in groups.
 *
 *   floor_metrics TURNS FILE...      prints a line for each turn: its time in ns
 *                                    of this process, series, bytes of text
 */
#include "stats.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BINS = 21, COUNTERS = 20 };

/* Powers of two of ns. */
static const int bounds[BINS - 1] = {8,  10, 11, 12, 13, 14, 15, 16, 17, 18,
                                     19, 20, 22, 24, 26, 28, 30, 32, 34, 36};

static struct {
  struct perigee_stats_head head;
  struct perigee_counters counters;
  struct perigee_stats_session sessions[PERIGEE_STATS_SESSIONS];
  struct perigee_stats_operation operations[PERIGEE_STATS_OPERATIONS];
  struct perigee_stats_method methods[PERIGEE_STATS_METHODS];
  struct perigee_stats_histogram histograms[PERIGEE_STATS_METHODS];
} in;

static long series;

static void load(int file, const struct perigee_stats_table *at, void *into,
                 size_t room, uint32_t rows) {
  size_t length = (size_t)at->row * rows;
  if (length > room ||
      pread(file, into, length, (off_t)at->offset) != (ssize_t)length) {
    fprintf(stderr, "a file is not as this program knows it\n");
    exit(1);
  }
}

#define LOAD(file, table, rows)                                                \
  load(file, &in.head.table, in.table, sizeof in.table, rows)

/* So many rows of methods are in use. */
static uint32_t read_file(const char *path) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0 || pread(file, &in.head, sizeof in.head, 0) < 0) {
    perror(path);
    exit(1);
  }
  struct perigee_stats_table counters = in.head.counters;
  counters.row = sizeof in.counters;
  load(file, &counters, &in.counters, sizeof in.counters, 1);
  LOAD(file, sessions, PERIGEE_STATS_SESSIONS);
  LOAD(file, operations, PERIGEE_STATS_OPERATIONS);
  LOAD(file, methods, PERIGEE_STATS_METHODS);
  uint32_t used = 0;
  while (used < PERIGEE_STATS_METHODS && in.methods[used].used)
    used++;
  LOAD(file, histograms, used);
  close(file);
  return used;
}

static void put(FILE *out, const char *what, const char *labels,
                const char *more, double value) {
  fprintf(out, "perigee_%s{%s%s} %.14g\n", what, labels, more, value);
  series++;
}

static void put_histogram(FILE *out, const char *labels,
                          const struct perigee_stats_histogram *h) {
  uint64_t sum = 0;
  uint32_t at = 0;
  for (int bin = 0; bin < BINS; bin++) {
    uint32_t end = bin == BINS - 1 ? PERIGEE_STATS_BUCKETS
                                   : (uint32_t)(bounds[bin] - 6) * 16;
    for (; at < end; at++)
      sum += h->buckets[at];
    if (bin == BINS - 1)
      fprintf(out, "perigee_call_duration_seconds_bucket{%s,le=\"+Inf\"} ",
              labels);
    else
      fprintf(out, "perigee_call_duration_seconds_bucket{%s,le=\"%.12g\"} ",
              labels, (double)(UINT64_C(1) << bounds[bin]) / 1e9);
    fprintf(out, "%" PRIu64 "\n", sum);
    series++;
  }
  put(out, "call_duration_seconds_sum", labels, "", (double)h->sum / 1e9);
  put(out, "call_duration_seconds_count", labels, "", (double)sum);
}

static void put_method(FILE *out, const struct perigee_stats_method *m,
                       const struct perigee_stats_histogram *h) {
  char labels[1024], kind[32];
  uint64_t calls = 0;
  snprintf(labels, sizeof labels,
           "scope=\"%s\",agent=\"%s\",side=\"%s\",service=\"%s\",method=\"%s\"",
           in.head.scope, in.head.name, m->used == 1 ? "client" : "server",
           m->service, m->method);
  for (int i = 0; i < PERIGEE_STATS_STATUSES; i++) {
    calls += m->ends[i];
    snprintf(kind, sizeof kind, ",kind=\"%d\"", i);
    if (i && m->ends[i])
      put(out, "call_failures_total", labels, kind, (double)m->ends[i]);
  }
  if (!calls)
    return;
  put(out, "calls_total", labels, "", (double)calls);
  put(out, "call_sent_bytes_total", labels, "", (double)m->bytes_out);
  put(out, "call_received_bytes_total", labels, "", (double)m->bytes_in);
  put(out, "call_longest_seconds", labels, "", (double)m->longest / 1e9);
  put_histogram(out, labels, h);
}

/* As many series of an agent as perigee metrics has. */
static void put_agent(FILE *out) {
  char labels[512];
  uint64_t words[sizeof in.counters / 8];
  uint64_t oldest = UINT64_MAX;
  snprintf(labels, sizeof labels, "scope=\"%s\",agent=\"%s\"", in.head.scope,
           in.head.name);
  memcpy(words, &in.counters, sizeof words);
  for (int i = 0; i < PERIGEE_STATS_SESSIONS; i++) {
    uint64_t more[sizeof in.counters / 8];
    memcpy(more, &in.sessions[i].counters, sizeof more);
    for (int k = 1; in.sessions[i].id && k <= COUNTERS; k++)
      words[k] += more[k];
  }
  for (int i = 0; i < PERIGEE_STATS_OPERATIONS; i++)
    if (in.operations[i].began && in.operations[i].began < oldest)
      oldest = in.operations[i].began;
  for (int i = 1; i <= COUNTERS; i++)
    put(out, "counter_total", labels, "", (double)words[i]);
  for (int i = 0; i < 9; i++)
    put(out, "up", labels, ",state=\"asleep\"", (double)oldest);
}

static int64_t cpu_time(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static size_t turn(int files, char **paths) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  if (!out)
    exit(1);
  for (int i = 0; i < files; i++) {
    uint32_t used = read_file(paths[i]);
    put_agent(out);
    for (uint32_t k = 0; k < used; k++)
      put_method(out, &in.methods[k], &in.histograms[k]);
  }
  fclose(out);
  free(text);
  return length;
}

int main(int argc, char **argv) {
  if (argc < 3)
    return 2;
  for (int turns = atoi(argv[1]); turns > 0; turns--) {
    series = 0;
    int64_t began = cpu_time();
    size_t length = turn(argc - 2, argv + 2);
    printf("%" PRId64 " %ld %zu\n", cpu_time() - began, series, length);
  }
  return 0;
}
