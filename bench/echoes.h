/* SPDX-License-Identifier: Apache-2.0
 *
 * The caller's side of a checked echo with --window messages under way, for any
 * transport, so that two programs that are compared do the same work. A latency
 * is from when a slot's bytes have been changed to when the reply is there, as
 * in Lua (lib/calls.lua), and to when it was read where it is to be read in
 * place. With several under way it is from when the slot was free to when the
 * reply was checked, so that window over the mean latency is the rate.
 */
#ifndef BENCH_ECHOES_H
#define BENCH_ECHOES_H

#include "floor.h"

enum { WINDOW = 1024 };

struct caller {
  const struct options *options;
  const char *what;
  int window;    /* messages under way; each has a buffer */
  bool in_place; /* reading the reply is a part of the call */
  void *context;
  uint8_t *buffers[WINDOW]; /* one for each slot, with the bytes to go out */
  void (*submit)(void *context, int slot, size_t length);
  /* Waits for any reply: returns its slot, and where its bytes are. */
  int (*collect)(void *context, size_t length, const uint8_t **reply);
  uint64_t round, rounds[WINDOW]; /* the next round, and that of each slot */
  int64_t begun[WINDOW];
};

static inline void caller_submit(struct caller *caller, int slot, size_t length,
                                 int64_t at) {
  caller->rounds[slot] = caller->round++;
  stamp(caller->buffers[slot], length, caller->rounds[slot]);
  caller->begun[slot] = caller->window > 1 ? at : now();
  caller->submit(caller->context, slot, length);
}

static inline void caller_look(const struct caller *caller, int slot,
                               const uint8_t *reply, size_t length) {
  if (memcmp(reply, caller->buffers[slot], length) != 0)
    wrong_bytes();
}

/* Looks at one byte of each page of a reply; returns when its latency ended. */
static inline int64_t caller_check(const struct caller *caller, int slot,
                                   const uint8_t *reply, size_t length) {
  bool within = caller->in_place || caller->window > 1;
  int64_t at = within ? 0 : now();
  if (check(reply, length, caller->rounds[slot]))
    wrong_bytes();
  return within ? now() : at;
}

/* Compares all bytes of the last round, and one of each page in the others. */
static inline long caller_rounds(struct caller *caller, size_t length,
                                 double *ns, int64_t end) {
  int under = caller->window;
  long count = 0;
  for (int slot = 0; slot < under; slot++)
    caller_submit(caller, slot, length, now());
  while (under > 0) {
    const uint8_t *reply;
    int slot = caller->collect(caller->context, length, &reply);
    int64_t at = caller_check(caller, slot, reply, length);
    ns[count] = (double)(at - caller->begun[slot]);
    if (++count < SAMPLES - WINDOW && (at < end || count < 3)) {
      caller_submit(caller, slot, length, at);
      continue;
    }
    caller_look(caller, slot, reply, length);
    under--;
  }
  return count;
}

/* The first eighth of the time has no samples. */
static inline void caller_measure(struct caller *caller, const char *size,
                                  struct samples *samples) {
  size_t length = strtoull(size, NULL, 10);
  int64_t span = (int64_t)(caller->options->seconds * 1e9);
  caller_rounds(caller, length, samples->ns, now() + span / 8);
  samples->count = caller_rounds(caller, length, samples->ns, now() + span);
  report(caller->options, caller->what, size, samples);
}

#endif
