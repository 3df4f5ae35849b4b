/* SPDX-License-Identifier: Apache-2.0
 *
 * scope.h - scopes, and the folders of this host in which their names are.
 */
#ifndef SCOPE_H
#define SCOPE_H

#include <limits.h>

enum { SCOPE_NAME = 65, SCOPE_HOST = 256 };

/* Writes the scope that is meant: a name, or what the environment says if it
 * is NULL or "". INVALID: it cannot be a scope's name. */
int scope_choose(const char *given, char name[SCOPE_NAME]);
/* Makes or checks the folder of a scope, and writes its path. The sentence of a
 * failure is the thread's. */
int scope_make(const char *scope, char path[PATH_MAX]);
/* This host's name, or "". */
void scope_host(char name[SCOPE_HOST]);

#endif
