/* SPDX-License-Identifier: Apache-2.0
 *
 * sum.c - checksums of values, by libxxhash's header alone.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "cache/cache.h"
#include "cache/sum.h"

static uint64_t sum_piece(const uint8_t *bytes, uint64_t length,
                          uint64_t seed) {
#ifdef SUM_WIDE
  if (__builtin_cpu_supports("avx2"))
    return sum_wide(bytes, length, seed);
#endif
  return XXH3_64bits_withSeed(bytes, length, seed);
}

uint64_t perigee_cache_sum(const void *value, uint64_t length,
                           uint64_t before) {
  const uint8_t *bytes = value;
  uint64_t sum = before;
  while (length > 0) {
    uint64_t part =
        length < PERIGEE_CACHE_SUM_PIECE ? length : PERIGEE_CACHE_SUM_PIECE;
    sum = sum_piece(bytes, part, sum);
    sum += sum == 0;
    bytes += part;
    length -= part;
  }
  return sum;
}
