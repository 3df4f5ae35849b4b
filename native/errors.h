/* SPDX-License-Identifier: Apache-2.0
 *
 * errors.h - a status, and a sentence that says more.
 */
#ifndef ERRORS_H
#define ERRORS_H

struct perigee_engine;

/* Keeps the sentence for perigee_detail and returns the status. engine NULL, or
 * in a turn of its own thread: the sentence is that of the calling thread. */
int fail(struct perigee_engine *engine, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
