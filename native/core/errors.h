/* SPDX-License-Identifier: Apache-2.0
 *
 * errors.h - a status, and the sentence that explains it.
 */
#ifndef ERRORS_H
#define ERRORS_H

#include <stdbool.h>

#include "perigee.h"

/* Keeps the sentence for perigee_detail and returns the status. If engine is
 * NULL, or in the engine's own thread, the sentence belongs to the calling
 * thread. */
int fail(struct perigee_engine *engine, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* PERIGEE_INVALID: the program gave NULL in place of that. */
int fail_missing(struct perigee_engine *engine, const char *what);
/* Returns the sentence that fail has just kept. */
const char *fail_detail(const struct perigee_engine *engine);

/* Returns a status that a peer sent, or PERIGEE_PROTOCOL if it has no name. */
static inline int status_of_peer(int status) {
  bool known = status <= PERIGEE_OK && status >= PERIGEE_DRAINING;
  return known ? status : PERIGEE_PROTOCOL;
}

#endif
