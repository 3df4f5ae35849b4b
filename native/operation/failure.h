/* SPDX-License-Identifier: Apache-2.0
 *
 * failure.h - the head of a failed call's reply: a text and, if
 * PERIGEE_TYPED is set, a zero and typed values behind it, for callers that
 * can decode them (in Lua: traceback, code, whether a handler ran). C
 * programs read the text.
 */
#ifndef FAILURE_H
#define FAILURE_H

#include "perigee.h"

/* The most bytes of the typed values, few enough to decode at once, and of
 * all. */
enum { FAILURE_MORE = 16 << 10, FAILURE_MOST = 128 << 10 };

/* Finds the zero that ends the text: head[*text]; the typed values follow.
 * PROTOCOL if there is no zero, or if what follows is longer than FAILURE_MORE
 * or no typed values; otherwise as perigee_typed_scan. */
int failure_split(const uint8_t *head, uint64_t length, uint64_t *text);

#endif
