/* SPDX-License-Identifier: Apache-2.0
 *
 * detail.h - the sentence that says more about a status, of what has no engine:
 * of the calling thread.
 */
#ifndef DETAIL_H
#define DETAIL_H

#include <stddef.h>

enum { DETAIL = 256 };

/* DETAIL bytes. */
char *detail_here(void);
/* Keeps the sentence, and returns the status. */
int detail_fail(int status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
