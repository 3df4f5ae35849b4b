/* SPDX-License-Identifier: Apache-2.0
 *
 * brief.h - copies of few bytes. A call of memcpy() costs more than such a copy:
 * the caller first stores all that it has in registers.
 */
#ifndef BRIEF_H
#define BRIEF_H

#include <stdint.h>
#include <string.h>

enum { BRIEF_HALF = 16, BRIEF_MOST = 4 * BRIEF_HALF };

/* As memcpy(). From 16 to 64 bytes take two or four pieces, which may overlap. */
static inline __attribute__((always_inline)) void
copy_brief(uint8_t *to, const uint8_t *from, uint64_t length) {
  if (length - BRIEF_HALF > BRIEF_MOST - BRIEF_HALF) {
    memcpy(to, from, length);
    return;
  }
  uint64_t last = length - BRIEF_HALF;
  memcpy(to, from, BRIEF_HALF);
  if (length > 2 * BRIEF_HALF) {
    memcpy(to + BRIEF_HALF, from + BRIEF_HALF, BRIEF_HALF);
    memcpy(to + last - BRIEF_HALF, from + last - BRIEF_HALF, BRIEF_HALF);
  }
  memcpy(to + last, from + last, BRIEF_HALF);
}

#endif
