/* SPDX-License-Identifier: Apache-2.0
 *
 * bytes.c - see bytes.h.
 */
#include "control/bytes.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST = 4096 };

size_t bytes_length(const struct bytes *bytes) {
  return bytes->last - bytes->first;
}

const char *bytes_begin(const struct bytes *bytes) {
  return bytes->at ? bytes->at + bytes->first : NULL;
}

static bool make_room(struct bytes *bytes, size_t length) {
  size_t kept = bytes_length(bytes);
  if (bytes->first > 0)
    memmove(bytes->at, bytes->at + bytes->first, kept);
  bytes->first = 0;
  bytes->last = kept;
  size_t wanted = bytes->capacity ? bytes->capacity : LEAST;
  while (wanted < kept + length)
    wanted *= 2;
  if (wanted == bytes->capacity)
    return true;
  char *grown = realloc(bytes->at, wanted);
  if (!grown)
    return false;
  bytes->at = grown;
  bytes->capacity = wanted;
  return true;
}

bool bytes_add(struct bytes *bytes, const char *from, size_t length) {
  if (bytes->capacity - bytes->last < length && !make_room(bytes, length))
    return false;
  if (length > 0)
    memcpy(bytes->at + bytes->last, from, length);
  bytes->last += length;
  return true;
}

void bytes_drop(struct bytes *bytes, size_t length) {
  if (length < bytes_length(bytes))
    bytes->first += length;
  else
    bytes->first = bytes->last = 0;
}

void bytes_free(struct bytes *bytes) {
  free(bytes->at);
  *bytes = (struct bytes){0};
}
