/* SPDX-License-Identifier: Apache-2.0
 *
 * status.h - the sentence that explains a status, where no engine keeps it, and
 * the status of a failed system call.
 */
#ifndef STATUS_H
#define STATUS_H

#include <stdbool.h>
#include <stddef.h>

/* ---- The sentence that explains a status --------------------------------- */

enum { DETAIL = 256 };

/* Returns the thread's buffer of DETAIL bytes. */
char *detail_here(void);
/* Formats the sentence into that buffer and returns the status. */
int detail_fail(int status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- Failed system calls ------------------------------------------------- */

#define NO_DESCRIPTORS "there are too few descriptors left (ulimit -n)"

/* Did the call want a descriptor, of which there are none left? */
bool system_scarce(int error);
/* Returns NO_MEMORY where descriptors or memory are used up, else SYSTEM. */
int system_status(int error);
/* Returns a part of a sentence that says what happened. */
const char *system_text(int error);

#endif
