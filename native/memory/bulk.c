/* SPDX-License-Identifier: Apache-2.0
 *
 * bulk.c - copies, the large ones past the caches where that is faster.
 *
 * An ordinary store first fetches its line. If another core has the line, as
 * the reader of the last transfer has, the store waits for that core; if no
 * cache has it, memory is read in vain. A streaming store does neither. But if
 * this core's caches have the line, an ordinary store is the faster one, and so
 * are later loads.
 *
 * HUGE bytes and more leave the caches anyway. For less, nobody here knows who
 * has the lines: a piece is copied in each way, and the rest is streamed if
 * that took less than half the time. Among lines of this core it takes longer,
 * among those of another one a third of the time or less (bench/tried.md).
 */
#include "bulk.h"

#include <stdbool.h>
#include <string.h>

/* Sanitizers do not see what streaming stores write. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) &&                   \
    !defined(__SANITIZE_THREAD__)
#include <immintrin.h>
#include <x86intrin.h>

enum { LINE = 64, TRIED = 32 << 10, HUGE = 16 << 20 };

/* n is a multiple of LINE, and `to` begins a line. */
static void bulk_lines_16(uint8_t *to, const uint8_t *from, uint64_t n) {
  for (uint64_t at = 0; at < n; at += LINE) {
    const __m128i *f = (const __m128i *)(const void *)(from + at);
    __m128i a = _mm_loadu_si128(f), b = _mm_loadu_si128(f + 1);
    __m128i c = _mm_loadu_si128(f + 2), d = _mm_loadu_si128(f + 3);
    __m128i *t = (__m128i *)(void *)(to + at);
    _mm_stream_si128(t, a);
    _mm_stream_si128(t + 1, b);
    _mm_stream_si128(t + 2, c);
    _mm_stream_si128(t + 3, d);
  }
}

__attribute__((target("avx"))) static void
bulk_lines_32(uint8_t *to, const uint8_t *from, uint64_t n) {
  for (uint64_t at = 0; at < n; at += LINE) {
    const __m256i *f = (const __m256i *)(const void *)(from + at);
    __m256i a = _mm256_loadu_si256(f), b = _mm256_loadu_si256(f + 1);
    __m256i *t = (__m256i *)(void *)(to + at);
    _mm256_stream_si256(t, a);
    _mm256_stream_si256(t + 1, b);
  }
}

/* Streaming stores are ordered by fences only: behind older stores (a mark that
 * was cleared before its memory is used again), and before a release store. */
void bulk_stream(uint8_t *to, const uint8_t *from, uint64_t n) {
  uint64_t head = -(uintptr_t)to % LINE;
  uint64_t lines = (n - head) & ~(uint64_t)(LINE - 1);
  _mm_sfence();
  memcpy(to, from, head);
  if (__builtin_cpu_supports("avx"))
    bulk_lines_32(to + head, from + head, lines);
  else
    bulk_lines_16(to + head, from + head, lines);
  _mm_sfence();
  head += lines;
  memcpy(to + head, from + head, n - head);
}

/* Copies two pieces, one in each way; the first one suffers most from a cold
 * start. Returns whether streaming is much faster. A wrong answer, as after an
 * interrupt, costs time only. */
static bool bulk_try_both(uint8_t *to, const uint8_t *from) {
  uint64_t begin = __rdtsc();
  bulk_stream(to, from, TRIED);
  uint64_t middle = __rdtsc();
  memcpy(to + TRIED, from + TRIED, TRIED);
  return (middle - begin) * 2 < __rdtsc() - middle;
}

_Static_assert(2 * TRIED <= BULK_PIECE, "a piece is long enough");

void bulk_copy_large(uint8_t *to, const uint8_t *from, uint64_t n,
                     uint64_t total, uint8_t *way) {
  if (total >= HUGE)
    *way = BULK_STREAMED;
  if (*way == BULK_UNKNOWN) {
    *way = bulk_try_both(to, from) ? BULK_STREAMED : BULK_CACHED;
    to += 2 * TRIED, from += 2 * TRIED, n -= 2 * TRIED;
  }
  if (*way == BULK_STREAMED && n >= LINE) /* the tries may have left less */
    bulk_stream(to, from, n);
  else
    memcpy(to, from, n);
}

#else

void bulk_stream(uint8_t *to, const uint8_t *from, uint64_t n) {
  memcpy(to, from, n);
}

void bulk_copy_large(uint8_t *to, const uint8_t *from, uint64_t n,
                     uint64_t total, uint8_t *way) {
  (void)total, (void)way;
  memcpy(to, from, n);
}

#endif
