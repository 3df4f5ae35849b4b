/* SPDX-License-Identifier: Apache-2.0
 *
 * service.h - what services of peers (service.c) and an agent's own (serving.c)
 * have in common: what may be a method, and how one is described.
 */
#ifndef SERVICE_H
#define SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "perigee.h"

/* METHODS_MOST: of a service, so that its description is read at once.
 * NUMBERS_MOST: of an agent's methods; NUMBER_NONE is that of no method. */
enum { METHODS_MOST = 1024, NUMBERS_MOST = 65534, NUMBER_NONE = 65535 };
enum { METHOD_NAME_MOST = 255, SERVICE_NAME_MOST = 255, METHOD_KINDS = 3 };
/* The largest number that a double of Lua's counts exactly. */
#define COUNT_MOST (UINT64_C(1) << 53)

/* "typed", "raw" and "inplace", by enum perigee_method_kind. */
extern const char *const method_kinds[METHOD_KINDS];

/* May a method have this name? Every proxy of Lua's has methods that are called
 * with, async and close. */
bool method_name_is_valid(const char *name, uint64_t length);
/* The order of methods by their names, for qsort and bsearch. */
int method_order(const void *a, const void *b);

/* Writes "a, b and c" of structures whose first field is a name, sorted
 * already; "none" without any. A text that does not fit is cut off. */
void names_said(const void *list, size_t each, uint32_t count, char *text,
                size_t room);

#endif
