/* SPDX-License-Identifier: Apache-2.0
 *
 * errors.h - a status, and a sentence that says more.
 */
#ifndef ERRORS_H
#define ERRORS_H

#include <stdbool.h>

#include "perigee.h"

/* Keeps the sentence for perigee_detail and returns the status. engine NULL, or
 * in a turn of its own thread: the sentence is that of the calling thread. */
int fail(struct perigee_engine *engine, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The sentence that fail kept last, for whoever noted it just now. */
const char *fail_detail(const struct perigee_engine *engine);

/* A status as a peer told it: one that has a name. */
static inline int status_of_peer(int status) {
  bool known = status <= PERIGEE_OK && status >= PERIGEE_FORKED;
  return known ? status : PERIGEE_PROTOCOL;
}

#endif
