/* SPDX-License-Identifier: Apache-2.0
 *
 * copy_test.c - every way to copy brings all bytes, and touches none beside
 * them, wherever both places are in their pages. What is copied by lines on AMD
 * alone is so elsewhere in the first test; bulk_test.c streams.
 */
#include <stdlib.h>
#include <string.h>

#include "base/copy.h"
#include "support.h"

enum { ROOM = 2 * MIB, EDGE = 64, MARK = 0xa5 };

static void by_bytes(void *to, const void *from, uint64_t length) {
  copy_bytes(to, from, length);
}

static void by_program(void *to, const void *from, uint64_t length) {
  perigee_copy(to, from, length);
}

typedef void copy(void *to, const void *from, uint64_t length);

static void copies(copy *way, uint8_t *to, const uint8_t *from,
                   uint64_t length) {
  memset(to - EDGE, MARK, EDGE);
  memset(to, 0, length);
  memset(to + length, MARK, EDGE);
  way(to, from, length);
  assert_memory_equal(to, from, length);
  for (int i = 1; i <= EDGE; i++) {
    assert_int_equal(to[-i], MARK);
    assert_int_equal(to[length + (uint64_t)i - 1], MARK);
  }
}

/* So far behind the other place in its page: memcpy() is slow up to some. */
static const uint64_t behind[] = {0, 1, 8, 15, 16, 48, 127, 128, 129, 4088};

static void every_length(copy *way, uint64_t shortest, uint64_t longest) {
  uint8_t *from = aligned_alloc(4096, ROOM), *to = aligned_alloc(4096, ROOM);
  assert_true(from && to);
  for (uint64_t i = 0; i < ROOM; i++)
    from[i] = (uint8_t)(i * 7 + i / 251);
  for (uint64_t n = shortest; n <= longest; n += n / 2 + 1)
    for (size_t i = 0; i < sizeof behind / sizeof *behind; i++) {
      copies(way, to + 4096 + behind[i], from, n);
      copies(way, to + 4096 + behind[i], from + 24, n);
    }
  free(from);
  free(to);
}

static void by_lines(void **state) {
  (void)state;
  every_length(copy_lines, 128, 100000);
}

static void long_ones(void **state) {
  (void)state;
  every_length(copy_long, COPY_BY_LINES, 100000);
  every_length(copy_loan, COPY_BY_LINES, ROOM - 3 * 4096);
}

static void of_any_length(void **state) {
  (void)state;
  every_length(copy_any, 0, 100000);
  every_length(by_bytes, 0, 100000);
  every_length(by_program, 0, ROOM - 3 * 4096);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(by_lines),
      cmocka_unit_test(long_ones),
      cmocka_unit_test(of_any_length),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
