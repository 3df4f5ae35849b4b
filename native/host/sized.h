/* SPDX-License-Identifier: Apache-2.0
 *
 * sized.h - the length of files that this process makes. The system ends a
 * process by SIGXFSZ that makes a file, also one in memory, longer than its limit
 * (RLIMIT_FSIZE); so the limit is looked at first.
 */
#ifndef SIZED_H
#define SIZED_H

#include <stdbool.h>
#include <stdint.h>

#define SIZED_NOT                                                              \
  "this process may make no file that long, nor share as much memory "         \
  "(RLIMIT_FSIZE, ulimit -f)"

bool sized_may(uint64_t length);
/* Gives a file this length; false: it may not have it, or there is no room. */
bool sized(int fd, uint64_t length);

#endif
