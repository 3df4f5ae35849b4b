/* SPDX-License-Identifier: Apache-2.0
 *
 * bulk_test.c - large copies have every byte, and touch none beside theirs,
 * whatever way they take: small, tried, and streamed, from and to any offset in
 * a line; one piece, or blocks of which several are copied at a time.
 */
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "support.h"

enum { ROOM = 2 << 20, EDGE = 128, MARK = 0xa5 };

static uint8_t *from, *to;

static int open_memory(void **state) {
  (void)state;
  from = malloc(ROOM + 2 * EDGE);
  to = malloc(ROOM + 2 * EDGE);
  if (!from || !to)
    return -1;
  for (size_t i = 0; i < ROOM + 2 * EDGE; i++)
    from[i] = (uint8_t)(i * 7 + i / 251);
  return 0;
}

static int close_memory(void **state) {
  (void)state;
  free(from);
  free(to);
  return 0;
}

static void copies(size_t a, size_t b, size_t n, size_t total) {
  memset(to, MARK, ROOM + 2 * EDGE);
  uint8_t way = BULK_UNKNOWN;
  bulk_copy(to + EDGE + a, from + b, n, total, &way);
  assert_memory_equal(to + EDGE + a, from + b, n);
  for (size_t i = 0; i < EDGE + a; i++)
    assert_int_equal(to[i], MARK);
  for (size_t i = EDGE + a + n; i < EDGE + a + n + EDGE / 2; i++)
    assert_int_equal(to[i], MARK);
}

static void streams(size_t a, size_t b, size_t n) {
  memset(to, MARK, ROOM + 2 * EDGE);
  bulk_stream(to + EDGE + a, from + b, n);
  assert_memory_equal(to + EDGE + a, from + b, n);
  for (size_t i = 0; i < EDGE + a; i++)
    assert_int_equal(to[i], MARK);
  for (size_t i = EDGE + a + n; i < EDGE + a + n + EDGE / 2; i++)
    assert_int_equal(to[i], MARK);
}

static void every_way(void **state) {
  static const size_t sizes[] = {1,
                                 63,
                                 64,
                                 4096,
                                 32 * KIB,
                                 64 * KIB + 65,
                                 512 * KIB - 1,
                                 512 * KIB + 17,
                                 ROOM - 64};
  static const size_t offsets[] = {0, 1, 16, 63};
  (void)state;
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    for (size_t o = 0; o < sizeof offsets / sizeof *offsets; o++) {
      copies(offsets[o], 0, sizes[s], sizes[s]);
      copies(offsets[o], offsets[3 - o], sizes[s], 64 * MIB);
      if (sizes[s] >= 64)
        streams(offsets[o], offsets[3 - o], sizes[s]);
    }
}

/* Streaming is the faster way to lines that no cache has. */
static void leave_caches(void) {
#if defined(__x86_64__)
  for (size_t i = 0; i < ROOM + 2 * EDGE; i += 64)
    __builtin_ia32_clflush(to + i);
  __builtin_ia32_mfence();
#endif
}

/* Little or nothing is left of a piece once both ways were tried. */
static void pieces_that_the_tries_use_up(void **state) {
  static const size_t more[] = {0, 1, 63};
  (void)state;
  for (int i = 0; i < 60; i++) {
    size_t n = BULK_PIECE + more[i % 3];
    uint8_t way = BULK_UNKNOWN;
    memset(to, MARK, ROOM + 2 * EDGE);
    leave_caches();
    bulk_copy(to + EDGE + 14, from, n, BULK_LEAST, &way);
    assert_memory_equal(to + EDGE + 14, from, n);
    assert_int_equal(to[EDGE + 14 + n], MARK);
  }
}

/* ---- Blocks that are part of a long payload --------------------------------- */

enum { LONG = 17 << 20, GAP = 192, EXTENTS = 7 };

/* Copies all in pieces, as a poll does, and compares it with what `at` says of
 * each byte: where it belongs. */
static void moves(struct payload *into, const uint8_t *begin, uint64_t room,
                  uint64_t (*at)(const struct payload *, uint64_t)) {
  uint8_t *bytes = malloc(into->total), *map = calloc(1, room);
  struct payload whole;
  assert_true(bytes && map);
  for (uint64_t i = 0; i < into->total; i++)
    bytes[i] = (uint8_t)(i * 7 + i / 251);
  payload_bytes(&whole, bytes, into->total);
  while (into->done < into->total)
    assert_true(payload_copy(into, &whole, 100001 + into->done % 70) > 0);
  for (uint64_t i = 0; i < into->total; i++) {
    uint64_t place = at(into, i);
    map[place] = 1;
    if (begin[place] != bytes[i])
      fail_msg("byte %llu is another", (unsigned long long)i);
  }
  for (uint64_t i = 0; i < room; i++)
    if (!map[i] && begin[i] != MARK)
      fail_msg("byte %llu was touched", (unsigned long long)i);
  free(map);
  free(bytes);
}

static uint64_t shape_at(const struct payload *p, uint64_t i) {
  return i / p->block * p->stride + i % p->block;
}

/* vast: they are parts of a long batch, and short themselves. */
static void shapes_of(uint64_t bytes, bool vast) {
  static const uint64_t blocks[] = {4096, 4099, 16384, 70001};
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
    uint64_t block = blocks[i], count = bytes / block + 1;
    uint64_t stride = block + GAP + i, room = count * stride;
    uint8_t *memory = malloc(room);
    assert_non_null(memory);
    memset(memory, MARK, room);
    struct payload p = {.memory = &memory_host,
                        .base = memory,
                        .block = block,
                        .count = count,
                        .stride = stride,
                        .total = block * count,
                        .vast = vast};
    moves(&p, memory, room, shape_at);
    free(memory);
  }
}

static void shapes_of_long_payloads(void **state) {
  (void)state;
  shapes_of(LONG, false);
}

static void shapes_of_long_batches(void **state) {
  (void)state;
  shapes_of(LONG / 16, true);
}

static uint64_t extents_at(const struct payload *p, uint64_t i) {
  const struct extent *e = &p->extents[extent_number(p->extents, p->count, i)];
  uint64_t within = i - e->begin;
  return (uint64_t)(e->base - p->base) + within / e->block * e->stride +
         within % e->block;
}

/* Of several lengths, some of one block, some of many, in no order. */
static void extents_of_long_payloads(void **state) {
  static const uint64_t blocks[EXTENTS] = {5000, 4096,  100,  1 << 20,
                                           7001, 40000, 16384};
  enum { ALL = 80 * EXTENTS };
  static struct extent extents[ALL];
  uint64_t total = 0, room = 0;
  (void)state;
  for (uint64_t i = 0; i < ALL; i++) {
    uint64_t block = blocks[i % EXTENTS], count = i % 3 ? 1 : 1 + i % 5;
    extents[i] = (struct extent){.block = block,
                                 .count = count,
                                 .stride = count > 1 ? block + GAP : block,
                                 .begin = total};
    total += block * count;
    room += count * (block + GAP) + i % 64;
  }
  uint8_t *memory = malloc(room), *next = memory;
  assert_non_null(memory);
  memset(memory, MARK, room);
  for (uint64_t i = 0; i < ALL; i++) {
    struct extent *e = &extents[i * 3 % ALL];
    e->base = next;
    next += e->count * (e->block + GAP) + i % 64 * (i < ALL / 2);
  }
  struct payload p = {.memory = &memory_host,
                      .base = memory,
                      .block = total / ALL,
                      .count = ALL,
                      .total = total,
                      .extents = extents};
  assert_true(total >= LONG);
  moves(&p, memory, room, extents_at);
  free(memory);
}

static void a_program_copies_any_length(void **state) {
  (void)state;
  assert_in_range(bulk_vast, 8 * MIB, 16 * MIB);
  const uint64_t lengths[] = {
      0, 1, 4097, 2 * MIB + 1, bulk_vast - 1, bulk_vast + 65};
  uint64_t room = bulk_vast + 65 + 2 * EDGE;
  uint8_t *source = malloc(room), *target = malloc(room);
  assert_true(source && target);
  for (uint64_t i = 0; i < room; i++)
    source[i] = (uint8_t)(i * 11 + i / 509);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    memset(target, MARK, room);
    perigee_copy(target + EDGE + 3, source + i, lengths[i]);
    assert_memory_equal(target + EDGE + 3, source + i, lengths[i]);
    assert_int_equal(target[EDGE + 2], MARK);
    assert_int_equal(target[EDGE + 3 + lengths[i]], MARK);
  }
  free(source);
  free(target);
}

/* So often that a thread tries each way, holds one, and tries anew. Most copies
 * are not looked at, as that takes longer than to copy. */
static void copies_again_and_again(bool far) {
  enum { TIMES = 640, TRIES = 60, SOME = 16 };
  uint64_t room = bulk_vast + 2 * EDGE;
  uint8_t *source = malloc(room), *target = malloc(room);
  assert_true(source && target);
  for (uint64_t i = 0; i < room; i++)
    source[i] = (uint8_t)(i * 11 + i / 509);
  if (far)
    assert_true(copy_far(target, room));
  for (size_t i = 0; i < TIMES; i++) {
    uint8_t *there = target + EDGE - i % EDGE, *here = source + 3 * i % EDGE;
    bool seen = i < TRIES || i % SOME == 0;
    if (seen)
      memset(target, MARK, room);
    perigee_copy(there, here, bulk_vast + i % 70);
    if (!seen)
      continue;
    assert_memory_equal(there, here, bulk_vast + i % 70);
    assert_int_equal(there[-1], MARK);
    assert_int_equal(there[bulk_vast + i % 70], MARK);
  }
  if (far)
    copy_near(target);
  free(source);
  free(target);
}

static void a_program_copies_much_again_and_again(void **state) {
  (void)state;
  copies_again_and_again(false);
}

static void a_program_copies_much_for_a_far_core(void **state) {
  (void)state;
  copies_again_and_again(true);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(pieces_that_the_tries_use_up, open_memory,
                                      close_memory),
      cmocka_unit_test_setup_teardown(every_way, open_memory, close_memory),
      cmocka_unit_test(shapes_of_long_payloads),
      cmocka_unit_test(shapes_of_long_batches),
      cmocka_unit_test(extents_of_long_payloads),
      cmocka_unit_test(a_program_copies_any_length),
      cmocka_unit_test(a_program_copies_much_again_and_again),
      cmocka_unit_test(a_program_copies_much_for_a_far_core),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
