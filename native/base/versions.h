/* SPDX-License-Identifier: Apache-2.0
 *
 * versions.h - structures of a program that was built with another version of
 * perigee.h. The program says how many bytes its structure has. A later version
 * only adds fields behind those that are there, so one of two structures is the
 * beginning of the other.
 */
#ifndef VERSIONS_H
#define VERSIONS_H

#include "perigee.h"

#include <stdbool.h>
#include <stdint.h>

/* What no structure of any version is smaller or larger than. */
enum { VERSION_LEAST = 8, VERSION_MOST = 64 << 10 };

/* Returns whether a structure may have so many bytes. If not, the thread's
 * detail names the structure. */
bool version_size_is_right(const char *structure, uint64_t size);
/* Fills the program's structure: what this version does not know is zero, and
 * nothing beyond its size is written. */
void version_give(void *theirs, uint64_t size, const void *ours,
                  uint64_t our_size);
/* Reads the program's structure over ours, which has the defaults. Returns
 * false if the program has set a field that this version does not know. */
bool version_take(void *ours, uint64_t our_size, const void *theirs,
                  uint64_t size);

#endif
