/* SPDX-License-Identifier: Apache-2.0
 *
 * sum_wide.c - XXH3 by AVX2, for processors that have it (sum.h).
 */
#include "cache/sum.h"

#ifdef SUM_WIDE
#pragma GCC target("avx2")
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t sum_wide(const uint8_t *bytes, uint64_t length, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes, length, seed);
}
#endif
