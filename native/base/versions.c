/* SPDX-License-Identifier: Apache-2.0 */
#include "versions.h"

#include <string.h>

#include "least.h"
#include "status.h"

bool version_size_is_right(const char *structure, uint64_t size) {
  if (size >= VERSION_LEAST && size <= VERSION_MOST)
    return true;
  detail_fail(PERIGEE_INVALID,
              "a struct %s of %llu bytes is of no version of perigee.h: its "
              "size is sizeof(struct %s)",
              structure, (unsigned long long)size, structure);
  return false;
}

void version_give(void *theirs, uint64_t size, const void *ours,
                  uint64_t our_size) {
  uint64_t both = least(size, our_size);
  memcpy(theirs, ours, both);
  memset((uint8_t *)theirs + both, 0, size - both);
}

bool version_take(void *ours, uint64_t our_size, const void *theirs,
                  uint64_t size) {
  uint64_t both = least(size, our_size);
  memcpy(ours, theirs, both);
  const uint8_t *bytes = theirs;
  for (uint64_t i = both; i < size; i++)
    if (bytes[i])
      return false;
  return true;
}
