/* SPDX-License-Identifier: Apache-2.0
 *
 * payload.c - walking over user memory, and copying it.
 */
#include "base/least.h"
#include "memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* ---- Copies, the large ones past the caches where that is faster --------- */

/* An ordinary store first fetches its line. If another core has the line, as
 * the reader of the last transfer has, the store waits for that core; if no
 * cache has it, memory is read in vain. A streaming store does neither. But if
 * this core's caches have the line, an ordinary store is the faster one, and so
 * are later loads.
 *
 * bulk_vast bytes and more leave the caches anyway: an echo has four buffers as
 * long, so this is a quarter of the last cache. But what virtual machines are
 * told of that means little, so it is within what was measured: VAST_LEAST on an
 * EPYC with 32 MiB, where 4 MiB lose, and VAST_MOST on an Intel with 260. For
 * less, nobody here knows who has the lines: a piece is copied in each way, and
 * the rest is streamed if that took less than half the time. Among lines of this
 * core it takes longer, among those of another one a third of the time or less
 * (bench/history/tried.md).
 *
 * Memory is read fast only once the processor has seen a run of lines: it then
 * asks for lines ahead, which it does anew for each run: mostly for each page.
 * So long blocks of bulk_vast bytes, and what is streamed of one piece, are
 * copied in several places at a time, some lines of each in turn. */

enum { LINE = 64, TRIED = 32 << 10 };
enum { STREAM_LEAST = 4096 }; /* below that fences cost too much */
enum { VAST_LEAST = 8 << 20, VAST_MOST = 16 << 20 };
/* Blocks that are copied at a time, and the most bytes of each; its bytes in
 * one turn. */
enum { BUNDLE = 8, BUNDLE_MOST = 32 << 10, BUNDLE_TURN = 256 };

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

struct bundle {
  uint64_t n; /* of each block: whole lines */
  uint32_t count;
  struct {
    uint8_t *to; /* begins a line */
    const uint8_t *from;
  } block[BUNDLE];
};

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

/* Copies what is no whole line, of at least a line. Returns the bytes before the
 * first whole line, and those in whole lines (*lines). */
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
static void bundle_end_16(const struct bundle *b) {
  for (uint64_t at = 0; at < b->n; at += BUNDLE_TURN)
    for (uint32_t i = 0; i < b->count; i++)
      bulk_lines_16(b->block[i].to + at, b->block[i].from + at,
                    least(BUNDLE_TURN, b->n - at));
}

__attribute__((target("avx"))) static void
bundle_end_32(const struct bundle *b) {
  for (uint64_t at = 0; at < b->n; at += BUNDLE_TURN)
    for (uint32_t i = 0; i < b->count; i++)
      bulk_lines_32(b->block[i].to + at, b->block[i].from + at,
                    least(BUNDLE_TURN, b->n - at));
}

static void bundle_end(struct bundle *b) {
  if (__builtin_cpu_supports("avx"))
    bundle_end_32(b);
  else
    bundle_end_16(b);
  b->count = 0;
}

static void bundle_add_lines(struct bundle *b, uint8_t *to, const uint8_t *from,
                             uint64_t n) {
  if (b->count == BUNDLE || b->n != n)
    bundle_end(b);
  b->n = n;
  b->block[b->count].to = to;
  b->block[b->count++].from = from;
}

/* Adds a block of at least a line, which is copied by now or by bundle_end.
 * Fences are the caller's. */
static void bundle_add(struct bundle *b, uint8_t *to, const uint8_t *from,
                       uint64_t n) {
  uint64_t lines, at = bulk_ends(to, from, n, &lines), some;
  for (; lines > 0; lines -= some, at += some) {
    some = least(lines, BUNDLE_MOST);
    bundle_add_lines(b, to + at, from + at, some);
  }
}

/* As bulk_stream, of a piece that is long enough for a bundle. */
static void bulk_stream_apart(uint8_t *to, const uint8_t *from, uint64_t n) {
  struct bundle bundle;
  bundle.n = bundle.count = 0;
  bulk_fence();
  bundle_add(&bundle, to, from, n);
  bundle_end(&bundle);
  bulk_fence();
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

static void bulk_copy_large(uint8_t *to, const uint8_t *from, uint64_t n,
                            uint64_t total, uint8_t *way) {
  if (total >= bulk_vast)
    *way = BULK_STREAMED;
  if (*way == BULK_UNKNOWN) {
    *way = bulk_try_both(to, from) ? BULK_STREAMED : BULK_CACHED;
    to += 2 * TRIED, from += 2 * TRIED, n -= 2 * TRIED;
  }
  if (*way == BULK_STREAMED && n >= LINE) /* the tries may have left less */
    bulk_stream_apart(to, from, n);
  else
    copy_long(to, from, n);
}

#else

static void bulk_fence(void) {}

static void bundle_add(struct bundle *b, uint8_t *to, const uint8_t *from,
                       uint64_t n) {
  (void)b;
  memcpy(to, from, n);
}

static void bundle_end(struct bundle *b) {
  (void)b;
}

void bulk_stream(uint8_t *to, const uint8_t *from, uint64_t n) {
  memcpy(to, from, n);
}

static void bulk_copy_large(uint8_t *to, const uint8_t *from, uint64_t n,
                            uint64_t total, uint8_t *way) {
  (void)total, (void)way;
  memcpy(to, from, n);
}

#endif

void bulk_copy_long(uint8_t *to, const uint8_t *from, uint64_t n,
                    uint64_t total, uint8_t *way) {
  uint64_t piece = total < 2 * bulk_vast ? BULK_PIECE : BULK_SHORT;
  if (total < BULK_LEAST || n < piece)
    copy_long(to, from, n);
  else
    bulk_copy_large(to, from, n, total, way);
}

void perigee_copy(void *to, const void *from, uint64_t n) {
  uint8_t way = BULK_STREAMED;
  if (n == 0) /* then they may be NULL */
    return;
  if (n < COPY_BY_LINES)
    memcpy(to, from, n);
  else if (n >= bulk_vast)
    bulk_copy_large(to, from, n, n, &way);
  else if (n >= STREAM_LEAST && copy_is_far(to))
    bulk_stream(to, from, n);
  else
    copy_loan(to, from, n);
}

/* ---- Payloads ------------------------------------------------------------ */

void payload_bytes(struct payload *p, const void *bytes, uint64_t length) {
  *p = (struct payload){.memory = &memory_host,
                        .base = (uint8_t *)(uintptr_t)bytes,
                        .block = length,
                        .count = 1,
                        .stride = length,
                        .total = length};
}

/* ---- Extents -------------------------------------------------------------- */

static bool extent_has(const struct extent *extents, uint64_t count, uint64_t i,
                       uint64_t at) {
  return extents[i].begin <= at &&
         (i + 1 == count || extents[i + 1].begin > at);
}

/* Extents are mostly as long as each other, so the first look is at the one that
 * has the byte then. */
uint64_t extent_number(const struct extent *extents, uint64_t count,
                       uint64_t at) {
  uint64_t low = 0, high = count;
  uint64_t mean = count > 1 ? extents[count - 1].begin / (count - 1) : 0;
  uint64_t likely = mean > 0 ? least(at / mean, count - 1) : 0;
  if (extent_has(extents, count, likely, at))
    return likely;
  while (high - low > 1) {
    uint64_t middle = low + (high - low) / 2;
    if (extents[middle].begin <= at)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* Returns the extent with byte `at`. */
static const struct extent *extent_with(const struct payload *p, uint64_t at) {
  return &p->extents[extent_number(p->extents, p->count, at)];
}

/* The extent as a payload, at the payload's byte `at`. It ends where the payload
 * does, which may be before the last extent is over. */
static struct payload extent_alone(const struct payload *p,
                                   const struct extent *e, uint64_t at) {
  uint64_t total = e->block * e->count;
  return (struct payload){.memory = p->memory,
                          .area = e->area,
                          .base = e->base,
                          .block = e->block,
                          .count = e->count,
                          .stride = e->stride,
                          .total = least(total, p->total - e->begin),
                          .done = at - e->begin};
}

static struct payload payload_extent_at(const struct payload *p, uint64_t at) {
  return extent_alone(p, extent_with(p, at), at);
}

struct payload payload_extent(const struct payload *p) {
  return payload_extent_at(p, p->done);
}

struct area *payload_area(const struct payload *p, uint64_t at, uint64_t *end) {
  *end = p->total;
  if (p->area || !p->extents || at >= p->total)
    return p->area;
  const struct extent *e = extent_with(p, at);
  *end = least(p->total, e->begin + e->block * e->count);
  return e->area;
}

/* A position in a payload that may have extents, and the shape that is there. */
struct cursor {
  const struct payload *of;
  const struct extent *extent;
  struct payload here;
};

static void cursor_set(struct cursor *c, const struct payload *p, uint64_t at) {
  c->of = p;
  c->extent = p->extents ? extent_with(p, at) : NULL;
  if (c->extent) {
    c->here = extent_alone(p, c->extent, at);
  } else {
    c->here = *p;
    c->here.done = at;
  }
}

static uint64_t cursor_left(const struct cursor *c) {
  return c->here.total - c->here.done;
}

/* Goes on by n bytes, which are not more than are left here; there are bytes
 * behind them. */
static void cursor_forward(struct cursor *c, uint64_t n) {
  c->here.done += n;
  if (!c->extent || cursor_left(c) > 0)
    return;
  c->extent++;
  c->here = extent_alone(c->of, c->extent, c->extent->begin);
}

/* ---- Runs ----------------------------------------------------------------- */

static inline uint8_t *payload_run_at(const struct payload *p, uint64_t at,
                                      uint64_t *length);

/* Of what is not one piece, or has ended. */
static __attribute__((noinline)) uint8_t *
payload_run_apart(const struct payload *p, uint64_t at, uint64_t *length) {
  if (at >= p->total) {
    *length = 0;
    return p->base;
  }
  if (p->extents) {
    struct payload here = payload_extent_at(p, at);
    return payload_run_at(&here, here.done, length);
  }
  uint64_t block = at / p->block, within = at % p->block;
  *length = least(p->block - within, p->total - at);
  return p->base + block * p->stride + within;
}

static inline uint8_t *payload_run_at(const struct payload *p, uint64_t at,
                                      uint64_t *length) {
  if (p->count != 1 || at >= p->total)
    return payload_run_apart(p, at, length);
  *length = p->total - at;
  return p->base + at;
}

uint8_t *payload_run(const struct payload *p, uint64_t *length) {
  return payload_run_at(p, p->done, length);
}

/* ---- By the CPU ----------------------------------------------------------- */

/* A place in a payload: the bytes left in its block, and the gap to the next,
 * which is less than 0 where blocks overlap. */
struct place {
  uint8_t *at;
  uint64_t left, block;
  int64_t gap;
};

static struct place payload_place(const struct payload *p, uint64_t at) {
  uint64_t left;
  uint8_t *run = payload_run_at(p, at, &left);
  uint64_t stride = p->count > 1 ? p->stride : p->block; /* else it is any */
  return (struct place){run, left, p->block, (int64_t)(stride - p->block)};
}

static bool place_at_block(const struct place *p, uint64_t n) {
  return p->left == n && p->block == n;
}

/* Returns the number of whole blocks of n bytes ahead, and their distance
 * (*step). */
static uint64_t place_ahead(const struct place *p, uint64_t n, uint64_t rest,
                            uint64_t *step) {
  bool blocks = place_at_block(p, n);
  *step = blocks ? n + (uint64_t)p->gap : n;
  return (blocks || rest < p->left ? rest : p->left) / n;
}

/* Copies blocks; those of a cache line here, as a call would cost as much. Long
 * ones go by the bundle, if there is one. */
static void payload_copy_blocks(uint8_t *to, uint64_t to_step,
                                const uint8_t *from, uint64_t from_step,
                                uint64_t n, uint64_t count,
                                struct bundle *bundle) {
  if (n == 64)
    for (; count > 0; count--, to += to_step, from += from_step)
      __builtin_memcpy(to, from, 64);
  else if (bundle && n >= STREAM_LEAST)
    for (; count > 0; count--, to += to_step, from += from_step)
      bundle_add(bundle, to, from, n);
  else
    for (; count > 0; count--, to += to_step, from += from_step)
      copy_any(to, from, n);
}

/* Moves the place past count blocks of n bytes. */
static void place_forward(struct place *p, uint64_t n, uint64_t step,
                          uint64_t count) {
  p->at += step * count;
  if (place_at_block(p, n))
    return;
  p->left -= n * count;
  if (p->left == 0) {
    p->at += p->gap;
    p->left = p->block;
  }
}

/* Returns the bytes of rest that were not copied: 0 with checked shapes. */
static uint64_t payload_copy_shapes(const struct payload *to,
                                    const struct payload *from, uint64_t rest,
                                    struct bundle *bundle) {
  struct place a = payload_place(to, to->done),
               b = payload_place(from, from->done);
  while (rest > 0) {
    uint64_t n = least(least(a.left, b.left), rest), a_step, b_step;
    if (n == 0)
      break;
    uint64_t k = place_ahead(&a, n, rest, &a_step);
    k = least(k, place_ahead(&b, n, rest, &b_step));
    payload_copy_blocks(a.at, a_step, b.at, b_step, n, k, bundle);
    rest -= n * k;
    if (rest == 0)
      break;
    place_forward(&a, n, a_step, k);
    place_forward(&b, n, b_step, k);
  }
  return rest;
}

/* The same where a side has extents: one shape after another. */
static uint64_t payload_copy_extents(struct payload *to,
                                     const struct payload *from, uint64_t rest,
                                     struct bundle *bundle) {
  struct cursor a, b;
  cursor_set(&a, to, to->done);
  cursor_set(&b, from, from->done);
  while (rest > 0) {
    uint64_t n = least(rest, least(cursor_left(&a), cursor_left(&b)));
    if (n == 0)
      break;
    if (a.here.count == 1 && b.here.count == 1 && bundle && n >= STREAM_LEAST)
      bundle_add(bundle, a.here.base + a.here.done, b.here.base + b.here.done,
                 n);
    else if (a.here.count == 1 && b.here.count == 1)
      bulk_copy(a.here.base + a.here.done, b.here.base + b.here.done, n,
                to->total, &to->way);
    else if (payload_copy_shapes(&a.here, &b.here, n, bundle) > 0)
      break;
    rest -= n;
    if (rest == 0)
      break;
    cursor_forward(&a, n);
    cursor_forward(&b, n);
  }
  return rest;
}

/* Copies what is not one piece on both sides. */
static __attribute__((noinline)) uint64_t
payload_copy_apart(struct payload *to, const struct payload *from,
                   uint64_t rest) {
  struct bundle blocks, *bundle = NULL;
  if (to->total >= bulk_vast || to->vast) {
    blocks.n = blocks.count = 0;
    bundle = &blocks;
    bulk_fence();
  }
  rest = to->extents || from->extents
             ? payload_copy_extents(to, from, rest, bundle)
             : payload_copy_shapes(to, from, rest, bundle);
  if (bundle) {
    bundle_end(bundle);
    bulk_fence();
  }
  return rest;
}

uint64_t payload_copy(struct payload *to, struct payload *from,
                      uint64_t limit) {
  uint64_t rest =
      least(limit, least(to->total - to->done, from->total - from->done));
  if (rest == 0)
    return 0;
  if (to->done % BULK_TRY == 0)
    to->way = BULK_UNKNOWN;
  if (to->count == 1 && from->count == 1)
    bulk_copy(to->base + to->done, from->base + from->done, rest, to->total,
              &to->way);
  else
    rest -= payload_copy_apart(to, from, rest);
  to->done += rest;
  from->done += rest;
  return rest;
}

/* ---- On the memory's own time -------------------------------------------- */

/* Makes the largest copy possible of at most rest bytes ahead. It first ends a
 * block that was begun; whole blocks follow. So many blocks take three copies
 * at most, whatever the shape of either side. */
static uint64_t copies_cut(const struct place *to, const struct place *from,
                           uint64_t rest, struct memory_copy *copy) {
  bool inside = !copy->to_memory->direct && !copy->from_memory->direct;
  uint64_t n = least(least(to->left, from->left), rest);
  if (n == 0)
    return 0;
  uint64_t k = place_ahead(to, n, rest, &copy->to_stride);
  uint64_t l = place_ahead(from, n, rest, &copy->from_stride);
  copy->to = to->at;
  copy->from = from->at;
  copy->block = n;
  copy->count = least(least(k, l), inside ? COPY_BLOCKS : k);
  return copy->block * copy->count;
}

/* Returns how many bytes the kind takes in one copy from or to there. Only what
 * is in one piece can be more than usual. */
static uint64_t copies_most(const struct memory_context *by,
                            const struct cursor *host, uint64_t on,
                            const uint8_t *at) {
  uint64_t end;
  struct area *area = payload_area(host->of, host->of->done + on, &end);
  return area && area->pins && host->here.count == 1 && by->kind->copies->most
             ? by->kind->copies->most(by, area, at)
             : COPY_PIECE;
}

uint64_t payload_copy_ahead(const struct payload *to,
                            const struct payload *from, uint64_t on,
                            uint64_t limit, struct memory_copy *copy) {
  struct cursor a, b;
  cursor_set(&a, to, to->done + on);
  cursor_set(&b, from, from->done + on);
  limit = least(limit, least(cursor_left(&a), cursor_left(&b)));
  struct place to_place = payload_place(&a.here, a.here.done),
               from_place = payload_place(&b.here, b.here.done);
  copy->to_memory = to->memory;
  copy->from_memory = from->memory;
  limit = least(limit, to->memory->direct
                           ? copies_most(from->memory, &a, on, to_place.at)
                       : from->memory->direct
                           ? copies_most(to->memory, &b, on, from_place.at)
                           : COPY_LONG);
  return copies_cut(&to_place, &from_place, limit, copy);
}

/* Asks for one copy of at most limit bytes, `on` bytes past the positions.
 * Returns its bytes, 0 (no more now) or a status. */
static int64_t copies_ask_one(struct copies *c, const struct payload *to,
                              const struct payload *from, uint64_t on,
                              uint64_t limit) {
  struct memory_copy copy;
  uint64_t length = payload_copy_ahead(to, from, on, limit, &copy);
  if (length == 0)
    return 0;
  copy.waited_for = c->waited_for;
  const struct memory_context *by =
      to->memory->direct ? from->memory : to->memory;
  struct copy_ticket *t = &c->tickets[(c->first + c->count) % COPIES_MOST];
  int status = by->kind->copies->copy(by, &copy, &t->ticket);
  c->again = status == PERIGEE_AGAIN;
  if (status < 0)
    return c->again ? 0 : status;
  t->by = by;
  t->length = length;
  c->count++;
  c->asked += length;
  return (int64_t)length;
}

/* Asks for those of the next limit bytes that were not asked for yet. */
static void copies_ask(struct payload *p, const struct payload *to,
                       const struct payload *from, uint64_t limit) {
  struct copies *c = p->copies;
  int64_t n = 1;
  while (n > 0 && c->count < COPIES_MOST && c->asked - p->done < limit) {
    uint64_t on = c->asked - p->done;
    n = copies_ask_one(c, to, from, on, limit - on);
  }
  if (n < 0)
    c->status = (int)n;
}

/* Takes back the first copy if it has ended: returns its bytes, 0 or a
 * status. */
static int64_t copies_take_first(struct copies *c) {
  const struct copy_ticket *t = &c->tickets[c->first];
  int state = t->by->kind->copies->finished(t->by, t->ticket);
  if (state == 0)
    return 0;
  c->first = (uint8_t)((c->first + 1) % COPIES_MOST);
  c->count--;
  return state < 0 ? state : (int64_t)t->length;
}

/* Returns the bytes that have arrived, in order, or the status of a failed
 * copy. */
static int64_t copies_collect(struct copies *c) {
  uint64_t moved = 0;
  int64_t n = 1;
  while (c->count > 0 && c->status == 0 && (n = copies_take_first(c)) > 0)
    moved += (uint64_t)n;
  if (n < 0)
    c->status = (int)n;
  return moved > 0 ? (int64_t)moved : c->status;
}

static int64_t payload_move_async(struct payload *to, struct payload *from,
                                  uint64_t limit) {
  struct payload *p = to->memory->direct ? from : to;
  limit = least(limit, least(to->total - to->done, from->total - from->done));
  if (limit == 0)
    return 0;
  if (!p->copies) /* its owner did not set them */
    return PERIGEE_INVALID;
  if (p->copies->status == 0)
    copies_ask(p, to, from, limit);
  int64_t moved = copies_collect(p->copies);
  if (moved > 0) {
    to->done += (uint64_t)moved;
    from->done += (uint64_t)moved;
  }
  return moved;
}

bool payload_quiet(struct payload *p) {
  struct copies *c = p->copies;
  if (!c)
    return true;
  c->again = false;
  while (c->count > 0 && copies_take_first(c) != 0)
    ;
  return c->count == 0;
}

/* ---- Both ------------------------------------------------------------------ */

int64_t payload_move(struct payload *to, struct payload *from, uint64_t limit) {
  if (to->memory->direct && from->memory->direct)
    return (int64_t)payload_copy(to, from, limit);
  if (!to->memory->direct && !from->memory->direct &&
      to->memory->kind != from->memory->kind)
    return PERIGEE_UNSUPPORTED;
  return payload_move_async(to, from, limit);
}

/* Returns whether the CPU can move the bytes as one piece, the common case. */
static inline bool payload_in_one_piece(const struct payload *p,
                                        uint64_t length) {
  return p->memory->direct && p->count == 1 && length > 0 &&
         length <= p->total - p->done;
}

int64_t payload_put(struct payload *p, const uint8_t *from, uint64_t length) {
  struct payload bytes;
  if (payload_in_one_piece(p, length)) {
    copy_any(p->base + p->done, from, length);
    p->done += length;
    return (int64_t)length;
  }
  payload_bytes(&bytes, from, length);
  return payload_move(p, &bytes, length);
}

int64_t payload_stream(struct payload *p, uint8_t *to, uint64_t length) {
  if (length < STREAM_LEAST || !payload_in_one_piece(p, length))
    return payload_take(p, to, length);
  bulk_stream(to, p->base + p->done, length);
  p->done += length;
  return (int64_t)length;
}

int64_t payload_take(struct payload *p, uint8_t *to, uint64_t length) {
  struct payload bytes;
  if (payload_in_one_piece(p, length)) {
    copy_any(to, p->base + p->done, length);
    p->done += length;
    return (int64_t)length;
  }
  payload_bytes(&bytes, to, length);
  return payload_move(&bytes, p, length);
}
