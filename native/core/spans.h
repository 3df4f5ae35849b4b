/* SPDX-License-Identifier: Apache-2.0
 *
 * spans.h - the spans that calls of sampled traces leave in the stats file
 * (perigee_stats_span).
 *
 * Ownership. A call has the row that it has taken (op->span) until another one
 * takes it: the rows are a ring. So each function looks whether the row is still
 * the call's. What is not there any more is not written.
 *
 * Cost. Calls without a trace context get here by one branch of their own, when
 * they are served, and if their replies land: a context is looked for anyway, and
 * whether a call is measured, too.
 */
#ifndef SPANS_H
#define SPANS_H

#include "core/engine.h"
#include "core/operation.h"

/* Is the call's end to be told to span_end? */
static inline bool span_has(const struct operation *op) {
  return op->traced & TRACE_SPAN;
}

/* Returns a new span id, never 0. */
uint64_t span_next(struct perigee_engine *engine);
/* Begins the span of an own call, in which op->trace is the context that travels,
 * or of a served one, with op->came. parent: the span that makes an own call. */
void span_begin(struct operation *op, struct stats_row method,
                const uint8_t parent[8]);
/* The request is in the ring, with so many bytes. */
void span_sent(struct operation *op, uint64_t bytes);
/* The reply is there, and its bytes are being brought. Only the first time is
 * noted. */
void span_landing(struct operation *op);
/* The program gets a served call, of so many bytes; at that time. */
void span_service(struct operation *op, int64_t now, uint64_t bytes);
/* It has ended, at that time: an own call with what the operation has, a served one
 * with that status and so many bytes. Only the first end is noted. */
void span_end(struct operation *op, int64_t now, int status, uint64_t replied);
/* The same, now, if the call has a span: the program never got it, or cannot
 * answer it any more. */
__attribute__((noinline)) void span_lost(struct operation *op, int status);

#endif
