/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_file.c - what a read of 1 MiB from a cache's file costs over a bare
 * pread of as much of the same file: cache_file PATH [ROUNDS] makes a file of
 * 512 MiB, fills it, and reads from it at random, in turns: a bare pread with
 * O_DIRECT; a read by io_uring, and by threads, until its end was polled, the
 * thread asleep meanwhile; each of these with the check of its checksum.
 */
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "cache/cache.h"
#include "core.h"

enum { MIB = 1 << 20, FILE_MIB = 512, VALUES = 400, WAYS = 3 };

static struct perigee_cache_file *file;
static uint8_t *memory;

static int64_t next_end(void) {
  struct perigee_cache_file_end end;
  struct pollfd p = {.fd = perigee_cache_file_descriptor(file),
                     .events = POLLIN};
  while (perigee_cache_file_poll(file, now_of(CLOCK_MONOTONIC),
                                 now_of(CLOCK_REALTIME), &end, 1) == 0)
    poll(&p, 1, 1000);
  return end.status;
}

static void wait_ready(void) {
  struct perigee_cache_file_state state = {.ready = 0};
  struct pollfd p = {.fd = perigee_cache_file_descriptor(file),
                     .events = POLLIN};
  while (!state.ready) {
    perigee_cache_file_poll(file, now_of(CLOCK_MONOTONIC),
                            now_of(CLOCK_REALTIME), NULL, 0);
    perigee_cache_file_state(file, &state);
    if (!state.ready)
      poll(&p, 1, 1000);
  }
}

static void file_open(const char *path, int by_threads) {
  struct perigee_cache_file_options o = {.path = path,
                                         .size = (uint64_t)FILE_MIB * MIB,
                                         .by_threads = (uint8_t)by_threads};
  struct perigee_cache_file_state state;
  char reason[256];
  if (perigee_cache_file_open(&o, NULL, now_of(CLOCK_MONOTONIC),
                              now_of(CLOCK_REALTIME), &file, reason,
                              sizeof reason) < 0) {
    fprintf(stderr, "cache_file: %s\n", reason);
    exit(1);
  }
  int64_t began = now_of(CLOCK_MONOTONIC);
  wait_ready();
  perigee_cache_file_state(file, &state);
  printf("%s, %s; ready after %.1f ms\n", state.ring ? "io_uring" : "threads",
         state.direct ? "O_DIRECT" : "by the page cache",
         (double)(now_of(CLOCK_MONOTONIC) - began) / 1e6);
}

static void file_close(void) {
  while (perigee_cache_file_close(file) == -18) {
    struct pollfd p = {.fd = perigee_cache_file_descriptor(file),
                       .events = POLLIN};
    poll(&p, 1, 1000);
    perigee_cache_file_poll(file, now_of(CLOCK_MONOTONIC),
                            now_of(CLOCK_REALTIME), NULL, 0);
  }
}

static void fill(void) {
  for (int i = 0; i < VALUES; i++) {
    for (int k = 0; k < MIB / 8; k++)
      ((uint64_t *)memory)[k] = (uint64_t)(i * 131071 + k) * 2654435761;
    check(perigee_cache_file_write(file, (char *)&i, sizeof i, memory, MIB, 1,
                                   perigee_cache_sum(memory, MIB, 0), 0, 0),
          "write");
    check(next_end(), "the end of a write");
  }
}

/* ---- What is measured -------------------------------------------------- */

struct samples {
  double *bare, *read, *checked;
};

static uint64_t roll(uint64_t *dice, uint64_t below) {
  *dice = *dice * UINT64_C(6364136223846793005) + 1442695040888963407;
  return (*dice >> 20) % below;
}

static double read_bare(int bare, uint64_t *dice) {
  off_t at = (off_t)(16 + roll(dice, VALUES)) * MIB;
  int64_t began = now_of(CLOCK_MONOTONIC);
  if (pread(bare, memory, MIB, at) != MIB)
    check(-errno, "pread");
  return (double)(now_of(CLOCK_MONOTONIC) - began) / 1e3;
}

static double read_value(uint64_t *dice, int checked) {
  struct perigee_cache_place place;
  int key = (int)roll(dice, VALUES);
  int64_t began = now_of(CLOCK_MONOTONIC);
  check(perigee_cache_file_read(file, (char *)&key, sizeof key, memory, MIB, 0,
                                &place),
        "read");
  check(next_end(), "the end of a read");
  if (checked && perigee_cache_sum(memory, MIB, 0) != place.checksum)
    check(-1, "the checksum");
  int64_t took = now_of(CLOCK_MONOTONIC) - began;
  if (!checked && perigee_cache_sum(memory, MIB, 0) != place.checksum)
    check(-1, "the checksum");
  return (double)took / 1e3;
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void tell(const char *what, double *us, int rounds, double p50,
                 double p99) {
  qsort(us, (size_t)rounds, sizeof *us, by_size);
  double half = us[rounds / 2], most = us[rounds * 99 / 100];
  printf("  %-22s p50 %8.1f us %5.2f x   p99 %8.1f us %5.2f x\n", what, half,
         half / (p50 > 0 ? p50 : half), most, most / (p99 > 0 ? p99 : most));
}

static void measure(int bare, int rounds) {
  double *us = calloc((size_t)rounds * WAYS, sizeof *us);
  double *read = us + rounds, *checked = read + rounds;
  uint64_t dice = 1;
  for (int i = 0; i < rounds; i++) {
    us[i] = read_bare(bare, &dice);
    read[i] = read_value(&dice, 0);
    checked[i] = read_value(&dice, 1);
  }
  tell("a bare pread", us, rounds, 0, 0);
  double p50 = us[rounds / 2], p99 = us[rounds * 99 / 100];
  tell("a value", read, rounds, p50, p99);
  tell("a value, and its sum", checked, rounds, p50, p99);
  free(us);
}

int main(int argc, char **argv) {
  int rounds = argc > 2 ? atoi(argv[2]) : 1000;
  if (argc < 2 || rounds < 100) {
    fprintf(stderr, "cache_file PATH [ROUNDS, 100 or more]\n");
    return 2;
  }
  memory = aligned_alloc(4096, MIB);
  file_open(argv[1], 0);
  fill();
  for (int by_threads = 0; by_threads < 2; by_threads++) {
    int bare = open(argv[1], O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (bare < 0)
      bare = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (by_threads)
      file_open(argv[1], 1);
    measure(bare, rounds);
    file_close();
    close(bare);
  }
  unlink(argv[1]);
  free(memory);
  return 0;
}
