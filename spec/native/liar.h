/* SPDX-License-Identifier: Apache-2.0
 *
 * liar.h - a process that sets up sessions as anybody would and then breaks
 * every rule that memory lets it break. It runs in a child that was forked
 * before its parent had an engine.
 */
#ifndef LIAR_H
#define LIAR_H

#include <stdint.h>

enum lie {
  LIE_SCRIBBLE, /* random bytes over all that both sides map */
  LIE_RECORDS,  /* records whose every field is at some limit */
  LIE_REPLIES,  /* the same as replies to what is live */
  LIE_WORDS,    /* marks, acks, positions and generations that jump */
  LIE_KEYS,     /* keys of regions, and descriptors, that are none */
  LIES
};

/* Sessions, one after another, for this long; then the process ends. */
_Noreturn void liar_run(const char *address, enum lie lie, uint64_t seed,
                        int64_t nanoseconds);

#endif
