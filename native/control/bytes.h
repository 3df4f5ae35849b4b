/* SPDX-License-Identifier: Apache-2.0
 *
 * bytes.h - a queue of bytes in one piece of memory: added at its end, taken
 * from its beginning.
 */
#ifndef PERIGEE_CONTROL_BYTES_H
#define PERIGEE_CONTROL_BYTES_H

#include <stdbool.h>
#include <stddef.h>

/* All zero: empty. The bytes are at[first] to at[last - 1]. */
struct bytes {
  char *at;
  size_t first, last, capacity;
};

size_t bytes_length(const struct bytes *bytes);
/* Returns the first byte; NULL if nothing was ever added. */
const char *bytes_begin(const struct bytes *bytes);
/* Returns false if there is no memory; then nothing has changed. */
bool bytes_add(struct bytes *bytes, const char *from, size_t length);
/* Takes at most that many bytes away. */
void bytes_drop(struct bytes *bytes, size_t length);
void bytes_free(struct bytes *bytes);

#endif
