/* SPDX-License-Identifier: Apache-2.0
 *
 * failure.h - what the reply of a call that failed tells: a text, which C sees
 * as it is, and where PERIGEE_TYPED says so a zero behind it, and typed values
 * for whoever can decode them (of Lua: traceback, code, whether a handler ran).
 */
#ifndef FAILURE_H
#define FAILURE_H

#include "perigee.h"

/* Bytes, at most: of these values, few enough to be decoded at once; of all. */
enum { FAILURE_MORE = 16 << 10, FAILURE_MOST = 128 << 10 };

/* Where the text of such a head ends: head[*text] is the zero, and all behind it
 * are typed values. PROTOCOL if there is no zero, or what is behind it is no
 * such values, or more than FAILURE_MORE; or as perigee_typed_scan. */
int failure_split(const uint8_t *head, uint64_t length, uint64_t *text);

#endif
