/* SPDX-License-Identifier: Apache-2.0
 *
 * detail.h - the sentence that explains a status. It belongs to the calling
 * thread, for functions that have no engine to keep it in.
 */
#ifndef DETAIL_H
#define DETAIL_H

#include <stddef.h>

enum { DETAIL = 256 };

/* Returns the thread's buffer of DETAIL bytes. */
char *detail_here(void);
/* Formats the sentence into that buffer and returns the status. */
int detail_fail(int status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
