/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz.h - for fuzzers of a whole engine: input that is read piece by piece, an
 * engine with a repeatable clock and randomness, and its allocated memory.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../native/hand.h"
#include "operation/loan.h"

extern const struct perigee_memory perigee_memory_opaque;
int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void *,
                                                       size_t),
                                              void (*)(const volatile void *));
size_t __sanitizer_get_allocated_size(const volatile void *);

#define require(holds) ((holds) ? (void)0 : broken(#holds, __LINE__))

static inline void broken(const char *what, int line) {
  fprintf(stderr, "line %d: not so: %s\n", line, what);
  abort();
}

/* ---- Input --------------------------------------------------------------- */

struct input {
  const uint8_t *data;
  size_t size;
};

/* Reads the next bytes, as far as there are any; returns how many. */
static inline size_t take(struct input *in, void *to, size_t length) {
  size_t n = length < in->size ? length : in->size;
  memset(to, 0, length);
  if (n == 0)
    return 0;
  memcpy(to, in->data, n);
  in->data += n;
  in->size -= n;
  return n;
}

static inline uint8_t take8(struct input *in) {
  uint8_t value;
  take(in, &value, sizeof value);
  return value;
}

static inline uint16_t take16(struct input *in) {
  uint16_t value;
  take(in, &value, sizeof value);
  return value;
}

/* A number at or near some limit, or any short one. */
static inline uint64_t take_edge(struct input *in) {
  static const uint64_t edges[] = {0,
                                   64,
                                   512,
                                   4096,
                                   16 << 10,
                                   64 << 10,
                                   256 << 10,
                                   512 << 10,
                                   1 << 20,
                                   UINT64_C(1) << 31,
                                   UINT64_C(1) << 32,
                                   UINT64_C(1) << 40,
                                   UINT64_C(1) << 63,
                                   0};
  enum { EDGES = sizeof edges / sizeof *edges };
  uint8_t kind = take8(in);
  if (kind >= 16 * EDGES)
    return take16(in);
  return edges[kind / 16] + (uint64_t)(kind % 16) - 8;
}

/* ---- Engines ------------------------------------------------------------- */

struct world {
  int64_t now;
  uint64_t seed;
};

static inline int64_t world_clock(void *context) {
  return ((struct world *)context)->now;
}

static inline int world_random(void *context, void *bytes, uint64_t length) {
  struct world *w = context;
  uint8_t *to = bytes;
  for (uint64_t i = 0; i < length; i++) {
    w->seed = w->seed * UINT64_C(6364136223846793005) + 1442695040888963407;
    to[i] = (uint8_t)(w->seed >> 56);
  }
  return PERIGEE_OK;
}

static inline struct perigee_engine *
engine_of(struct world *w, const char *secret, bool encrypt) {
  struct perigee_engine *engine = NULL;
  struct perigee_options o;
  static const struct perigee_memory *const memories[] = {
      &perigee_memory_opaque, NULL};
  perigee_options_init(&o, sizeof o);
  o.operations = 64;
  o.sessions = 8;
  o.regions = 8;
  o.hellos = 4;
  o.ring = 4096;
  o.eager = 512;
  o.pool = 1 << 20;
  o.typed = 64 << 10;
  o.serving = 16;
  o.secret = secret;
  o.faults = "";
  o.memories = memories;
  o.dead_after = INT64_MAX / 4;
  o.encrypt = encrypt;
  o.clock = world_clock;
  o.random = world_random;
  o.context = w;
  require(perigee_engine_open(&o, &engine) == PERIGEE_OK);
  return engine;
}

/* Bytes that this thread has allocated and not freed: the fuzzer has others. */
static _Thread_local bool counted;
static int64_t counted_bytes;

static inline void count_malloc(const volatile void *at, size_t bytes) {
  if (counted && at)
    counted_bytes += (int64_t)bytes;
}

static inline void count_free(const volatile void *at) {
  if (counted && at)
    counted_bytes -= (int64_t)__sanitizer_get_allocated_size(at);
}

/* What was allocated before the first call does not count. */
static inline int64_t allocated_here(void) {
  if (!counted)
    require(__sanitizer_install_malloc_and_free_hooks(count_malloc,
                                                      count_free) > 0);
  counted = true;
  return counted_bytes;
}

/* The same without what the engine keeps for reuse. */
static inline int64_t allocated_by(const struct perigee_engine *engine) {
  int64_t bytes = allocated_here();
  for (const struct part *p = engine->parts; p; p = p->free)
    bytes -= (int64_t)sizeof *p;
  for (const struct stage *s = engine->stages; s; s = s->next)
    bytes -= (int64_t)sizeof *s;
  return bytes;
}

#endif
