/* SPDX-License-Identifier: Apache-2.0
 *
 * liar.h - a process that sets up sessions like an honest peer and then breaks
 * every rule that memory lets it break. It runs in a child that was forked
 * before its parent had an engine.
 */
#ifndef LIAR_H
#define LIAR_H

#include <stdint.h>

enum lie {
  LIE_SCRIBBLE, /* random bytes over all memory that both sides map */
  LIE_RECORDS,  /* records with every field at some limit */
  LIE_REPLIES,  /* the same, as replies to live operations */
  LIE_WORDS,    /* words of the shared memory that jump */
  LIE_KEYS,     /* keys of regions, and descriptors, that are invalid */
  LIES
};

/* Opens one session after another for this time; then the process ends. */
_Noreturn void liar_run(const char *address, enum lie lie, uint64_t seed,
                        int64_t nanoseconds);

#endif
