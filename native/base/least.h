/* SPDX-License-Identifier: Apache-2.0
 *
 * least.h - the smaller and the larger of two numbers.
 */
#ifndef LEAST_H
#define LEAST_H

#include <stdint.h>

static inline uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

static inline uint64_t greatest(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

#endif
