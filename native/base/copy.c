/* SPDX-License-Identifier: Apache-2.0 */
#include "copy.h"

#include "least.h"

_Atomic uint32_t copy_places[COPY_PLACES];

/* Adds `more` to each place of the memory. */
static void places_count(const void *begin, uint64_t length, uint32_t more) {
  uint64_t first = (uintptr_t)begin >> COPY_PLACE_SHIFT;
  uint64_t last = ((uintptr_t)begin + length - 1) >> COPY_PLACE_SHIFT;
  uint64_t count = least(last - first + 1, COPY_PLACES);
  for (uint64_t i = 0; i < count; i++)
    atomic_fetch_add_explicit(&copy_places[(first + i) % COPY_PLACES], more,
                              memory_order_relaxed);
}

void copy_far(const void *begin, uint64_t length) {
  places_count(begin, length, 1);
}

void copy_near(const void *begin, uint64_t length) {
  places_count(begin, length, UINT32_MAX);
}

#ifdef __x86_64__
#include <immintrin.h>

enum { LINES = 128 };
/* `to` is up to so many bytes behind `from` in its page (ALIASED), or is filled
 * by a program, up to so many bytes (LOAN_MOST). */
enum { PAGE = 4096, ALIASED = 128, LOAN_MOST = 1 << 20 };

__attribute__((target("avx"))) static inline void
lines_copy_two(uint8_t *to, const uint8_t *from) {
  const __m256i *f = (const __m256i *)(const void *)from;
  __m256i a = _mm256_loadu_si256(f), b = _mm256_loadu_si256(f + 1);
  __m256i c = _mm256_loadu_si256(f + 2), d = _mm256_loadu_si256(f + 3);
  __m256i *t = (__m256i *)(void *)to;
  _mm256_storeu_si256(t, a);
  _mm256_storeu_si256(t + 1, b);
  _mm256_storeu_si256(t + 2, c);
  _mm256_storeu_si256(t + 3, d);
}

__attribute__((target("avx"))) static void
lines_copy_down(uint8_t *to, const uint8_t *from, uint64_t n) {
  for (uint64_t at = n; at > 0; at -= LINES)
    lines_copy_two(to + at - LINES, from + at - LINES);
}

void copy_lines(void *to, const void *from, uint64_t length) {
  if (!__builtin_cpu_supports("avx")) {
    memcpy(to, from, length);
    return;
  }
  uint64_t n = length & ~(uint64_t)(LINES - 1);
  memcpy((uint8_t *)to + n, (const uint8_t *)from + n, length - n);
  lines_copy_down(to, from, n);
}

void copy_long(void *to, const void *from, uint64_t length) {
  uint64_t behind = ((uintptr_t)to - (uintptr_t)from) % PAGE;
  if (behind - 1 < ALIASED && __builtin_cpu_is("amd"))
    copy_lines(to, from, length);
  else
    memcpy(to, from, length);
}

void copy_loan(void *to, const void *from, uint64_t length) {
  if (length < LOAN_MOST && __builtin_cpu_is("amd"))
    copy_lines(to, from, length);
  else
    copy_long(to, from, length);
}

#else

void copy_long(void *to, const void *from, uint64_t length) {
  memcpy(to, from, length);
}

void copy_loan(void *to, const void *from, uint64_t length) {
  memcpy(to, from, length);
}

void copy_lines(void *to, const void *from, uint64_t length) {
  memcpy(to, from, length);
}

#endif
