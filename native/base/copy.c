/* SPDX-License-Identifier: Apache-2.0 */
#include "copy.h"

#include <stdatomic.h>

/* Memory that is far. begin 0: the entry is free; its length is 0 then. Readers are
 * relaxed, as no other memory depends on an entry, and one that is read half
 * written has a copy take another way, which costs time alone. An entry has one
 * owner, who has made its begin from 0: acquire, and release when it becomes 0
 * again, so that the length of the next owner comes after the last one's. */
static struct far_memory {
  _Atomic uintptr_t begin;
  _Atomic uint64_t length;
} far_memory[COPY_FAR];

/* Entries from this one on were never used. */
static _Atomic uint32_t far_end;

static void far_reach(uint32_t end) {
  uint32_t is = atomic_load_explicit(&far_end, memory_order_relaxed);
  while (is < end &&
         !atomic_compare_exchange_weak_explicit(
             &far_end, &is, end, memory_order_relaxed, memory_order_relaxed))
    ;
}

bool copy_far(const void *begin, uint64_t length) {
  for (uint32_t i = 0; i < COPY_FAR; i++) {
    uintptr_t none = 0;
    if (!atomic_compare_exchange_strong_explicit(
            &far_memory[i].begin, &none, (uintptr_t)begin, memory_order_acquire,
            memory_order_relaxed))
      continue;
    atomic_store_explicit(&far_memory[i].length, length, memory_order_relaxed);
    far_reach(i + 1);
    return true;
  }
  return false;
}

void copy_near(const void *begin) {
  for (uint32_t i = 0; i < COPY_FAR; i++) {
    struct far_memory *m = &far_memory[i];
    if (atomic_load_explicit(&m->begin, memory_order_relaxed) !=
        (uintptr_t)begin)
      continue;
    atomic_store_explicit(&m->length, 0, memory_order_relaxed);
    atomic_store_explicit(&m->begin, 0, memory_order_release);
    return;
  }
}

bool copy_is_far(const void *to) {
  uint32_t end = atomic_load_explicit(&far_end, memory_order_relaxed);
  for (uint32_t i = 0; i < end; i++) {
    const struct far_memory *m = &far_memory[i];
    uint64_t length = atomic_load_explicit(&m->length, memory_order_relaxed);
    if ((uintptr_t)to - atomic_load_explicit(&m->begin, memory_order_relaxed) <
        length)
      return true;
  }
  return false;
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
