/* SPDX-License-Identifier: Apache-2.0
 *
 * bulk_test.c - large copies have every byte, and touch none beside theirs,
 * whatever way they take: small, tried, and streamed, from and to any offset in
 * a line.
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(pieces_that_the_tries_use_up, open_memory,
                                      close_memory),
      cmocka_unit_test_setup_teardown(every_way, open_memory, close_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
