/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_core.c - what the cache's core costs by itself: cache_core [ENTRIES]
 * fills a directory with keys of 64 bytes, and says what an entry takes of
 * memory, how long a reservation with its seal is on the average, and at worst,
 * and how long a look-up by the mapped directory is beside a read of one cache
 * line, both of random ones that depend on the one before.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cache/cache.h"
#include "core.h"

enum { KEY = 64, LOOKS = 2000000, LINE = 64 };

static struct perigee_cache *cache;
static struct perigee_cache_view *view;
static char *pieces[PERIGEE_CACHE_PIECES];
static uint32_t piece_count;

static void grow(void) {
  char *p = mmap(NULL, PERIGEE_CACHE_PIECE, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (p == MAP_FAILED)
    check(-1, "mmap");
  check(perigee_cache_grow(cache, p), "grow");
  check(perigee_cache_view_piece(view, piece_count, p), "view");
  pieces[piece_count++] = p;
}

/* Values are never touched, so slabs need no memory. */
static void feed(void) {
  struct perigee_cache_want want;
  perigee_cache_wants(cache, &want);
  if (want.slab)
    check(perigee_cache_add(cache, NULL, want.slab), "add");
  if (want.pieces)
    grow();
}

static void key_of(uint64_t number, char key[KEY]) {
  memset(key, 'k', KEY);
  memcpy(key + 20, &number, sizeof number);
}

/* Returns the bytes of memory of this process. */
static uint64_t resident(void) {
  unsigned long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%*u %lu", &pages) != 1)
    check(-1, "statm");
  fclose(file);
  return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- Filling ----------------------------------------------------------- */

static void put(uint64_t number) {
  struct perigee_cache_put p = {.length = 0};
  struct perigee_cache_place place;
  char key[KEY];
  int status;
  key_of(number, key);
  while ((status = perigee_cache_reserve(cache, key, KEY, &p, 1, &place)) ==
         PERIGEE_CACHE_WANTS)
    feed();
  check(status, "reserve");
  check(perigee_cache_seal(cache, place.entry, 0, 1), "seal");
}

/* Half of them are timed one by one, by the thread's own clock, so that other
 * processes do not count. Memory is given before it is asked for, and outside
 * of these times, as a service would. */
static void fill(uint64_t entries) {
  uint64_t before = resident(), half = entries / 2;
  int64_t worst = 0, long_ones = 0, began = now_of(CLOCK_THREAD_CPUTIME_ID);
  for (uint64_t i = 0; i < half; i++)
    put(i);
  int64_t took = now_of(CLOCK_THREAD_CPUTIME_ID) - began;
  for (uint64_t i = half; i < entries; i++) {
    feed();
    began = now_of(CLOCK_THREAD_CPUTIME_ID);
    put(i);
    int64_t one = now_of(CLOCK_THREAD_CPUTIME_ID) - began;
    worst = one > worst ? one : worst;
    long_ones += one > 1000000;
  }
  struct perigee_cache_counters n;
  perigee_cache_count(cache, &n);
  printf("entries                    %llu, keys of %d bytes\n",
         (unsigned long long)n.entries, KEY);
  printf("directory                  %.1f bytes an entry, %.3f GB\n",
         (double)n.directory / (double)entries, (double)n.directory / 1e9);
  printf("memory of the process      %.1f bytes an entry, %.3f GB\n",
         (double)(resident() - before) / (double)entries,
         (double)(resident() - before) / 1e9);
  printf("reserve and seal           %.0f ns, %.2f M/s\n",
         (double)took / (double)half, (double)half / (double)took * 1e3);
  printf("the longest one            %.1f us; longer than 1 ms: %d\n",
         (double)worst / 1e3, (int)long_ones);
}

/* ---- Looking up -------------------------------------------------------- */

static uint64_t roll(uint64_t *dice) {
  *dice = *dice * UINT64_C(6364136223846793005) + 1442695040888963407;
  return *dice >> 20;
}

static double look(uint64_t entries) {
  uint64_t dice = 1;
  int64_t began = now_of(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < LOOKS; i++) {
    struct perigee_cache_place place;
    char key[KEY];
    key_of(roll(&dice) % entries, key);
    check(perigee_cache_seen(view, key, KEY, &place), "seen");
    dice += place.checksum; /* 0 */
  }
  return (double)(now_of(CLOCK_THREAD_CPUTIME_ID) - began) / LOOKS;
}

/* Reads lines of the pieces that are full, or of the only one. */
static double read_lines(void) {
  uint32_t full = piece_count > 1 ? piece_count - 1 : 1;
  uint64_t dice = 1, sum = 0,
           lines = (uint64_t)full * (PERIGEE_CACHE_PIECE / LINE);
  int64_t began = now_of(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < LOOKS; i++) {
    uint64_t at = roll(&dice) % lines;
    const char *piece = pieces[at / (PERIGEE_CACHE_PIECE / LINE)];
    uint64_t value;
    memcpy(&value, piece + at % (PERIGEE_CACHE_PIECE / LINE) * LINE,
           sizeof value);
    sum += value;
    dice += value == 1; /* the next one waits for this one */
  }
  if (sum == 1)
    puts("");
  return (double)(now_of(CLOCK_THREAD_CPUTIME_ID) - began) / LOOKS;
}

int main(int argc, char **argv) {
  uint64_t entries = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
  if (entries < 2) {
    fputs("cache_core: ENTRIES is at least 2\n", stderr);
    return 1;
  }
  struct perigee_cache_options o = {.quota = UINT64_C(1) << 50};
  view = perigee_cache_view_open();
  check(perigee_cache_open(&o, 0, &cache), "open");
  grow();
  check(perigee_cache_client(cache), "client");
  fill(entries);
  double lines = read_lines(), looks = look(entries);
  printf("a cache line               %.0f ns\n", lines);
  printf("a look-up                  %.0f ns, %.1f times as long\n", looks,
         looks / lines);
  perigee_cache_close(cache);
  perigee_cache_view_close(view);
  return 0;
}
