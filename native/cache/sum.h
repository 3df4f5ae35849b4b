/* SPDX-License-Identifier: Apache-2.0
 *
 * sum.h - XXH3 by instructions that not every x86-64 has, which GCC alone turns
 * on for a single file. It takes less than half of the time.
 */
#ifndef SUM_H
#define SUM_H

#include <stdint.h>

#if defined(__x86_64__) && !defined(__clang__)
#define SUM_WIDE
uint64_t sum_wide(const uint8_t *bytes, uint64_t length, uint64_t seed);
#endif

#endif
