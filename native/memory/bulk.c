/* SPDX-License-Identifier: Apache-2.0
 *
 * bulk.c - copies of large memory, past the caches where that is faster
 *
 * An ordinary store first fetches its line. If another core has the line, as
 * the reader of the last transfer has, the store waits for that core; if no
 * cache has it, memory is read in vain. A streaming store does neither. But if
 * this core's caches have the line, an ordinary store is the faster one, and so
 * are later loads.
 *
 * Of less than bulk_vast bytes, nobody here knows who has the lines: a piece is
 * copied in each way, and the rest is streamed if that took less than half the
 * time. Among lines of this core it takes longer, among those of another one a
 * third of the time or less (bench/history/tried.md).
 *
 * bulk_vast bytes and more may leave the caches anyway: an echo has four
 * buffers as long, so this is a quarter of the last cache. But what virtual
 * machines are told of that means little, so it is within what was measured:
 * VAST_LEAST on an EPYC with 32 MiB, where 4 MiB lose, and VAST_MOST on an
 * Intel with 260. Which way is faster from there on depends on the processor. A
 * short try does not tell: the lines that it leaves in the caches are written
 * back later, at the cost of other copies. So each thread learns it.
 *
 * It also learns how to stream. Memory is read fast only once the processor has
 * seen a run of lines: it then asks for lines ahead, which it does anew for
 * each run: mostly for each page. Some processors are faster if several places
 * are copied at a time, some lines of each in turn (a bundle), others if all is
 * one run. Blocks of lists are always bundled.
 */
#include "base/least.h"
#include "memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LINE = 64, TRIED = 32 << 10 };
enum { VAST_LEAST = 8 << 20, VAST_MOST = 16 << 20 };
/* The most bytes of a block of a bundle; its bytes in one turn. */
enum { BUNDLE_MOST = 32 << 10, BUNDLE_TURN = 256 };

uint64_t bulk_vast = VAST_MOST;

/* The C library tells the sum of all such caches of some processors. */
__attribute__((constructor)) static void bulk_vast_learn(void) {
  FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
  unsigned kib;
  if (!file)
    return;
  if (fscanf(file, "%9uK", &kib) == 1)
    bulk_vast = greatest(VAST_LEAST, least((uint64_t)kib << 8, VAST_MOST));
  fclose(file);
}

/* Sanitizers do not see what streaming stores write. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) &&                   \
    !defined(__SANITIZE_THREAD__)
#include <immintrin.h>
#include <x86intrin.h>

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
static void bulk_fence(void) {
  _mm_sfence();
}

static void bulk_lines(uint8_t *to, const uint8_t *from, uint64_t n) {
  if (__builtin_cpu_supports("avx"))
    bulk_lines_32(to, from, n);
  else
    bulk_lines_16(to, from, n);
}

/* Copies what is no whole line, of at least a line. Returns the bytes before
 * the first whole line, and those in whole lines (*lines). */
static uint64_t bulk_ends(uint8_t *to, const uint8_t *from, uint64_t n,
                          uint64_t *lines) {
  uint64_t head = -(uintptr_t)to % LINE;
  *lines = (n - head) & ~(uint64_t)(LINE - 1);
  uint64_t rest = head + *lines;
  memcpy(to, from, head);
  memcpy(to + rest, from + rest, n - rest);
  return head;
}

void bulk_stream(uint8_t *to, const uint8_t *from, uint64_t n) {
  uint64_t lines, head;
  bulk_fence();
  head = bulk_ends(to, from, n, &lines);
  bulk_lines(to + head, from + head, lines);
  bulk_fence();
}

/* Copies the blocks that were added, by stores of 16 bytes or of 32. */
static void bundle_copy_16(const struct bundle *b) {
  for (uint64_t at = 0; at < b->n; at += BUNDLE_TURN)
    for (uint32_t i = 0; i < b->count; i++)
      bulk_lines_16(b->block[i].to + at, b->block[i].from + at,
                    least(BUNDLE_TURN, b->n - at));
}

__attribute__((target("avx"))) static void
bundle_copy_32(const struct bundle *b) {
  for (uint64_t at = 0; at < b->n; at += BUNDLE_TURN)
    for (uint32_t i = 0; i < b->count; i++)
      bulk_lines_32(b->block[i].to + at, b->block[i].from + at,
                    least(BUNDLE_TURN, b->n - at));
}

static void bundle_copy(struct bundle *b) {
  if (__builtin_cpu_supports("avx"))
    bundle_copy_32(b);
  else
    bundle_copy_16(b);
  b->count = 0;
}

static void bundle_add_lines(struct bundle *b, uint8_t *to, const uint8_t *from,
                             uint64_t n) {
  if (b->count == BUNDLE || b->n != n)
    bundle_copy(b);
  b->n = n;
  b->block[b->count].to = to;
  b->block[b->count++].from = from;
}

void bundle_begin(struct bundle *b) {
  b->n = b->count = 0;
  bulk_fence();
}

void bundle_add(struct bundle *b, uint8_t *to, const uint8_t *from,
                uint64_t n) {
  uint64_t lines, at = bulk_ends(to, from, n, &lines), some;
  for (; lines > 0; lines -= some, at += some) {
    some = least(lines, BUNDLE_MOST);
    bundle_add_lines(b, to + at, from + at, some);
  }
}

void bundle_end(struct bundle *b) {
  bundle_copy(b);
  bulk_fence();
}

static uint64_t bulk_ticks(void) {
  return __rdtsc();
}

#else

void bulk_stream(uint8_t *to, const uint8_t *from, uint64_t n) {
  memcpy(to, from, n);
}

void bundle_begin(struct bundle *b) {
  (void)b;
}

void bundle_add(struct bundle *b, uint8_t *to, const uint8_t *from,
                uint64_t n) {
  (void)b;
  memcpy(to, from, n);
}

void bundle_end(struct bundle *b) {
  (void)b;
}

/* All ways are the same one. */
static uint64_t bulk_ticks(void) {
  return 0;
}

#endif

/* As bulk_stream, of a piece that is long enough for a bundle. */
static void bulk_bundle(uint8_t *to, const uint8_t *from, uint64_t n) {
  struct bundle bundle;
  bundle_begin(&bundle);
  bundle_add(&bundle, to, from, n);
  bundle_end(&bundle);
}

/* ---- What a thread learns ------------------------------------------------ */

/* The ways of large copies: past the caches by bundles or in one run, or by
 * memcpy(). */
enum large_way { BY_BUNDLES, IN_ONE_RUN, BY_CACHES, WAYS };

/* A thread learns the way of each size apart. Size 0 has the copies that are
 * streamed in any case, and does without BY_CACHES: those of less than
 * bulk_vast bytes, and loans to a far core. Sizes 1 to 4 begin at 1, 2, 4 and 8
 * times bulk_vast.
 *
 * state      ends after   then
 * trying     one leg      trying the next way; after the last, holding the
 *                         quickest
 * holding    `hold` legs  trying the first way; `hold` is twice as long the
 *                         next time if the same way is the quickest
 *
 * A leg is counted in units of as many bytes as the size begins with. Its first
 * units (learned_settle) find the caches as the way before has left them. Of
 * the others the quickest counts, as a thread may lose its core in any. */
enum { SIZES = 5, HOLD_LEAST = 32, HOLD_MOST = 512 };

static _Thread_local struct learned {
  bool holds;
  uint8_t way, best, held; /* now; the best one tried; the last one held */
  uint16_t hold;
  uint32_t units;        /* of this state */
  uint64_t bytes, ticks; /* of the unit that has not ended */
  /* Ticks a KiB: of this way, and of the best one; or 0. */
  uint64_t quickest, record;
} learned_sizes[SIZES];

/* Returns the size's number; *unit: bytes of its units. */
static uint32_t learned_size(uint64_t total, uint64_t *unit) {
  uint32_t i = 0;
  *unit = bulk_vast;
  while (i + 1 < SIZES && total >> i >= bulk_vast)
    *unit = bulk_vast << i++;
  return i;
}

/* So many units have eight times bulk_vast bytes. */
static uint32_t learned_settle(uint32_t size) {
  return 8U >> (size > 0 ? size - 1 : 0);
}

/* Begins to hold the way. */
static void learned_hold(struct learned *l) {
  l->hold = l->way == l->held
                ? least(greatest(2 * l->hold, HOLD_LEAST), HOLD_MOST)
                : HOLD_LEAST;
  l->held = l->way;
  l->holds = true;
}

static void learned_go_on(struct learned *l, uint32_t ways) {
  if (l->holds) {
    l->holds = false;
    l->way = 0, l->record = 0;
  } else {
    if (l->record == 0 || l->quickest < l->record) {
      l->record = l->quickest;
      l->best = l->way;
    }
    if (++l->way == ways) {
      l->way = l->best;
      learned_hold(l);
    }
  }
  l->quickest = l->units = 0;
}

/* n bytes were copied in the size's present way, in so many ticks. */
static void learned_add(uint32_t size, uint64_t unit, uint64_t n,
                        uint64_t ticks) {
  struct learned *l = &learned_sizes[size];
  uint32_t settle = learned_settle(size), leg = 2 * settle + 1;
  l->bytes += n, l->ticks += ticks;
  if (l->bytes < unit)
    return;
  uint64_t cost = greatest(l->ticks / (l->bytes >> 10), 1);
  l->bytes = l->ticks = 0;
  if (++l->units > settle && (l->quickest == 0 || cost < l->quickest))
    l->quickest = cost;
  if (l->units == (l->holds ? l->hold * leg : leg))
    learned_go_on(l, size > 0 ? WAYS : WAYS - 1);
}

/* ---- Either way ---------------------------------------------------------- */

/* Copies two pieces, one in each way; the first one suffers most from a cold
 * start. Returns whether streaming is much faster. A wrong answer, as after an
 * interrupt, costs time only. */
static bool bulk_try_both(uint8_t *to, const uint8_t *from) {
  uint64_t begin = bulk_ticks();
  bulk_stream(to, from, TRIED);
  uint64_t middle = bulk_ticks();
  memcpy(to + TRIED, from + TRIED, TRIED);
  return (middle - begin) * 2 < bulk_ticks() - middle;
}

_Static_assert(2 * TRIED <= BULK_PIECE, "a piece is long enough");

static void bulk_copy_in(enum large_way way, uint8_t *to, const uint8_t *from,
                         uint64_t n) {
  if (way == BY_BUNDLES)
    bulk_bundle(to, from, n);
  else if (way == IN_ONE_RUN)
    bulk_stream(to, from, n);
  else
    copy_long(to, from, n);
}

/* n bytes, at least a line, of a copy of total bytes. total 0: a copy that is
 * streamed in any case. */
static void bulk_copy_learned(uint8_t *to, const uint8_t *from, uint64_t n,
                              uint64_t total) {
  uint64_t unit, begin = bulk_ticks();
  uint32_t size = learned_size(total, &unit);
  bulk_copy_in(learned_sizes[size].way, to, from, n);
  learned_add(size, unit, n, bulk_ticks() - begin);
}

static void bulk_copy_large(uint8_t *to, const uint8_t *from, uint64_t n,
                            uint64_t total, uint8_t *way) {
  if (*way == BULK_UNKNOWN) {
    *way = bulk_try_both(to, from) ? BULK_STREAMED : BULK_CACHED;
    to += 2 * TRIED, from += 2 * TRIED, n -= 2 * TRIED;
  }
  if (*way == BULK_STREAMED && n >= LINE) /* the tries may have left less */
    bulk_copy_learned(to, from, n, total);
  else
    copy_long(to, from, n);
}

void bulk_copy_long(uint8_t *to, const uint8_t *from, uint64_t n,
                    uint64_t total, uint8_t *way) {
  uint64_t piece = total < 2 * bulk_vast ? BULK_PIECE : BULK_SHORT;
  if (total < BULK_LEAST || n < piece)
    copy_long(to, from, n);
  else if (total >= bulk_vast)
    bulk_copy_learned(to, from, n, total);
  else
    bulk_copy_large(to, from, n, total, way);
}

void perigee_copy(void *to, const void *from, uint64_t n) {
  if (n == 0) /* then they may be NULL */
    return;
  bool far = n >= STREAM_LEAST && copy_is_far(to);
  if (n < COPY_BY_LINES)
    memcpy(to, from, n);
  else if (n >= bulk_vast)
    bulk_copy_learned(to, from, n, far ? 0 : n);
  else if (far)
    bulk_stream(to, from, n);
  else
    copy_loan(to, from, n);
}
