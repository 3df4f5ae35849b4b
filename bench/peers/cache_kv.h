/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the clients of other caches that mode peers of bench/cache.lua
 * compares with: PROGRAM --at SOCKET [--pin A,B] SIZE is a client on the first
 * core of a server at that Unix socket. It prints "ready", and for each line on
 * its input,
 *
 *   get SECONDS | put SECONDS
 *
 * samples, as a floor does, of values of SIZE bytes of KV_KEYS keys in turns, and
 * "end". It ends with its input. The bytes are stamped before and looked at after
 * each call, and compared whole at the end of each burst, outside of the time.
 */
#ifndef BENCH_PEERS_CACHE_KV_H
#define BENCH_PEERS_CACHE_KV_H

#include "floor.h"

enum { KV_KEYS = 3, KV_KEY = 32 };

/* Both end the program if they fail. get returns memory of the client's that
 * has the value until the next call. */
struct kv {
  void (*put)(const char *key, const uint8_t *value, size_t length);
  const uint8_t *(*get)(const char *key, size_t *length);
};

static uint8_t *kv_value;

static inline const char *kv_key(uint64_t round) {
  static char key[KV_KEY];
  snprintf(key, sizeof key, "bench.%d", (int)(round % KV_KEYS));
  return key;
}

static inline void kv_fill(size_t size, uint64_t round) {
  memset(kv_value, 1, size);
  stamp(kv_value, size, round % KV_KEYS);
}

static inline int64_t kv_get(const struct kv *kv, size_t size, uint64_t round,
                             const uint8_t **value) {
  const char *key = kv_key(round);
  size_t length = 0;
  int64_t begin = now();
  *value = kv->get(key, &length);
  int64_t took = now() - begin;
  if (length != size || check(*value, size, round % KV_KEYS))
    wrong_bytes();
  return took;
}

static inline int64_t kv_put(const struct kv *kv, size_t size, uint64_t round) {
  const char *key = kv_key(round);
  stamp(kv_value, size, round);
  int64_t begin = now();
  kv->put(key, kv_value, size);
  return now() - begin;
}

static inline void kv_whole(const struct kv *kv, size_t size, uint64_t round) {
  size_t length = 0;
  const uint8_t *value = kv->get(kv_key(round), &length);
  if (length != size || memcmp(value, kv_value, size) != 0)
    wrong_bytes();
}

static inline void kv_burst(const struct kv *kv, bool puts, double seconds,
                            size_t size, struct samples *samples) {
  int64_t span = (int64_t)(seconds * 1e9);
  const uint8_t *value;
  uint64_t round = 0;
  for (int i = 0; !puts && i < KV_KEYS; i++) {
    kv_fill(size, (uint64_t)i);
    kv->put(kv_key((uint64_t)i), kv_value, size);
  }
  for (int64_t warm = now() + span / 8; now() < warm; round++)
    puts ? kv_put(kv, size, round) : kv_get(kv, size, round, &value);
  int64_t end = now() + span;
  for (; samples->count < 3 || (now() < end && samples->count < SAMPLES);
       round++)
    samples->ns[samples->count++] =
        (double)(puts ? kv_put(kv, size, round)
                      : kv_get(kv, size, round, &value));
  if (!puts)
    kv_fill(size, round - 1);
  kv_whole(kv, size, round - 1);
}

/* Serves the bench until it closes the input. */
static inline int kv_main(int argc, char **argv,
                          void (*open)(const char *socket), struct kv kv) {
  struct options options = options_parse(argc, argv);
  size_t size = largest(argc, argv);
  struct samples samples = samples_new();
  char line[64], what[8];
  double seconds;
  if (!options.at || !size)
    usage(argv[0]);
  pin(options.pins[0]);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  kv_value = memory(size, MAP_PRIVATE);
  memset(kv_value, 1, size);
  options.samples = true;
  open(options.at);
  puts("ready");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "%7s %lf", what, &seconds) != 2)
      return 2;
    kv_burst(&kv, what[0] == 'p', seconds, size, &samples);
    report(&options, what, argv[optind], &samples);
    puts("end");
    fflush(stdout);
  }
  return 0;
}

#endif
