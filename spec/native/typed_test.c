/* SPDX-License-Identifier: Apache-2.0
 *
 * typed_test.c - the scanner of typed payloads: what it accepts, and what it
 * refuses of the data that LuaJIT's decoder would follow.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "perigee.h"

#define NUMBER(a, b) "\x07\0\0\0\0\0\0" a b
#define NAN_NUMBER NUMBER("\xf8", "\xff")

/* clang-format off */
struct sample {
  const char *bytes;
  size_t length;
  int values;
};
#define SAMPLE(bytes, values) {bytes, sizeof(bytes) - 1, values}
#define REFUSED(bytes) SAMPLE(bytes, PERIGEE_PROTOCOL)
/* clang-format on */

/* Scans a copy of the exact length, so that a sanitizer notices an access
 * behind it. */
static int scan(const void *bytes, size_t length) {
  uint8_t *copy = malloc(length ? length : 1);
  memcpy(copy, bytes, length);
  int values = perigee_typed_scan(copy, length);
  free(copy);
  return values;
}

/* clang-format off */
static const struct sample accepted[] = {
    SAMPLE("", 0),
    SAMPLE("\x00", 1),
    SAMPLE("\x00\x01\x02", 3),
    SAMPLE("\x06\1\0\0\0", 1),
    SAMPLE(NUMBER("\xf0", "\x3f") NAN_NUMBER, 2),
    SAMPLE("\x10\1\2\3\4\5\6\7\x08\x11\1\2\3\4\5\6\7\x08", 2),
    SAMPLE("\x20\x21" "a\x23" "abc", 3),
    SAMPLE("\x08\x08", 2),
    SAMPLE("\x0a\x02\x00\x01", 1),
    SAMPLE("\x0c\x03\x01\x01\x00", 2),
    SAMPLE("\x09\x01\x21k\x01", 1),
    SAMPLE("\x0b\x01\x01\x01\x21k\x08", 1),
    SAMPLE("\x0d\x02\x01\x01\x21k\x0c\x02\x02", 1),
    SAMPLE("\x09\x02\x08\x08\x02" NAN_NUMBER, 1),
};

static const struct sample refused[] = {
    REFUSED("\x03"),                          /* null */
    REFUSED("\x04\1\2\3\4"),                  /* pointers */
    REFUSED("\x05\1\2\3\4\5\6\7\x08"),
    REFUSED("\x0e\x00\x08"),                  /* dictionaries */
    REFUSED("\x0f\x00"),
    REFUSED("\x12\1\2\3\4\5\6\7\x08\1\2\3\4\5\6\7\x08"), /* complex */
    REFUSED("\x13"), REFUSED("\x1f"),
    REFUSED("\x06\1\2\3"), REFUSED("\x07\1\2\3\4\5\6\7"),
    REFUSED("\x10\1\2\3\4\5\6\7"), REFUSED("\x22" "a"),
    REFUSED("\xe0"), REFUSED("\xff\xc0\x86\x01"),
    REFUSED("\xff\x20\0\0\0"),                /* five bytes where one does */
    REFUSED("\x0c\xff\xff\xff\xff\x0b"),      /* 1.5 GiB, if it was believed */
    REFUSED("\x09\xff\0\0\0\x04"),
    REFUSED("\x0a"), REFUSED("\x09"), REFUSED("\x0b\x01"),
    REFUSED("\x0a\x00"), REFUSED("\x09\x00"), /* none is not written so */
    REFUSED("\x0a\x02\x00"), REFUSED("\x09\x01\x02"),
    REFUSED("\x0c\x03\x00"), REFUSED("\x0d\x02\x01\x00\x02"),
    REFUSED("\x09\x01\x00\x02"),              /* keys */
    REFUSED("\x09\x01\x21k\x00"),             /* no value */
    REFUSED("\x09\x01" NAN_NUMBER "\x02"),
    REFUSED("\x0b\x01\x01\x00\x00\x01"),
};
/* clang-format on */

static void check(const struct sample *samples, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const struct sample *sample = &samples[i];
    if (scan(sample->bytes, sample->length) != sample->values)
      fail_msg("sample %zu gives %d", i, scan(sample->bytes, sample->length));
  }
}

static void what_is_sent_is_accepted(void **state) {
  (void)state;
  check(accepted, sizeof accepted / sizeof *accepted);
  assert_int_equal(perigee_typed_scan(NULL, 0), 0);
}

static void all_else_is_refused(void **state) {
  (void)state;
  check(refused, sizeof refused / sizeof *refused);
  assert_int_equal(perigee_typed_scan((const uint8_t *)"", UINT64_C(1) << 31),
                   PERIGEE_PROTOCOL);
  assert_int_equal(perigee_typed_scan(NULL, 1), PERIGEE_INVALID);
}

static void depth_ends_at_64(void **state) {
  (void)state;
  uint8_t bytes[2 * 65];
  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] = i % 2 ? 1 : 0x0a;
  bytes[126] = 8;
  assert_int_equal(scan(bytes, 127), 1);
  bytes[126] = 0x0a;
  bytes[128] = 8;
  assert_int_equal(scan(bytes, 129), PERIGEE_PROTOCOL);
}

/* ---- Payloads that are made ----------------------------------------------- */

static struct {
  uint8_t bytes[1 << 20];
  size_t length;
} made;

static void put(const void *bytes, size_t length) {
  memcpy(made.bytes + made.length, bytes, length);
  made.length += length;
}

static void put_number(uint32_t value) {
  uint8_t two[] = {(uint8_t)(0xe0 | (value - 0xe0) >> 8),
                   (uint8_t)(value - 0xe0)};
  if (value < 0xe0) {
    put(&(uint8_t){(uint8_t)value}, 1);
  } else if (value < 0x1fe0) {
    put(two, 2);
  } else {
    put("\xff", 1);
    put(&value, 4);
  }
}

static void put_table(const char *tag, uint32_t count) {
  made.length = 0;
  put(tag, 1);
  put_number(count);
}

static int scanned(void) {
  return perigee_typed_scan(made.bytes, made.length);
}

static void strings_of_every_width(void **state) {
  (void)state;
  const uint32_t lengths[] = {0, 191, 192, 8127, 8128, 100000};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    made.length = 0;
    put_number(lengths[i] + 32);
    made.length += lengths[i];
    assert_int_equal(scan(made.bytes, made.length), 1);
    if (lengths[i] > 0)
      assert_int_equal(scan(made.bytes, made.length - 1), PERIGEE_PROTOCOL);
  }
}

/* ---- What values cost ---------------------------------------------------- */

static void values_end_at_250(void **state) {
  (void)state;
  const uint8_t nils[251] = {0};
  assert_int_equal(scan(nils, 250), 250);
  assert_int_equal(scan(nils, 251), PERIGEE_TOO_LARGE);
}

static int list(uint32_t count, const char *item, size_t length) {
  put_table("\x0a", count);
  for (uint32_t i = 0; i < count; i++)
    put(item, length);
  return scanned();
}

static void memory_ends_at_eight_times(void **state) {
  (void)state;
  enum { COUNT = 0x1fe0 }; /* the least that has five bytes */
  assert_int_equal(list(COUNT, "\x08", 1), PERIGEE_TOO_LARGE);
  assert_int_equal(list(COUNT, "\x00", 1), 1);
  assert_int_equal(list(100000, "\x00", 1), 1);
  assert_int_equal(list(100000,
                        "\x21"
                        "a",
                        2),
                   1); /* one string */
  assert_int_equal(list(100000, NUMBER("\xf0", "\x3f"), 9), 1);
  assert_int_equal(list(COUNT, "\x09\x01\x21k\x01", 5), PERIGEE_TOO_LARGE);
  assert_int_equal(list(COUNT, "\x0c\x02" NUMBER("\xf0", "\x3f"), 11), 1);
}

static void many_short_strings_are_too_much(void **state) {
  (void)state;
  put_table("\x0a", 20000);
  for (uint32_t i = 0; i < 20000; i++) {
    put("\x23", 1);
    put(&i, 3);
  }
  assert_int_equal(scanned(), PERIGEE_TOO_LARGE);
}

static uint32_t turned(uint32_t value, int bits) {
  return value << bits | value >> (32 - bits);
}

/* lj_tab.c: where a number has its place. */
static uint32_t place(double key) {
  uint64_t bits;
  memcpy(&bits, &key, 8);
  uint32_t b = (uint32_t)(bits >> 32) << 1, a = (uint32_t)bits ^ b;
  b = turned(b, 14);
  a -= b;
  b = turned(b, 5) ^ a;
  return b - turned(a, 13);
}

/* A table of count pairs, whose keys all have one of the first places. */
static int pairs(uint32_t count, uint32_t places) {
  uint32_t nodes = 1;
  while (nodes < count)
    nodes *= 2;
  put_table("\x09", count);
  for (int32_t key = 1; count > 0; key++) {
    double number = key;
    if ((place(number) & (nodes - 1)) >= places)
      continue;
    put("\x07", 1);
    put(&number, 8);
    put("\x02", 1);
    count--;
  }
  return scanned();
}

static void colliding_numbers_are_too_much(void **state) {
  (void)state;
  assert_int_equal(pairs(0x1fe0, UINT32_MAX), 1);
  assert_int_equal(pairs(0x1fe0, 64), PERIGEE_TOO_LARGE);
  assert_int_equal(pairs(200, 1), PERIGEE_TOO_LARGE);
  assert_int_equal(pairs(60, 1), 1); /* few may be as they like */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_sent_is_accepted),
      cmocka_unit_test(all_else_is_refused),
      cmocka_unit_test(strings_of_every_width),
      cmocka_unit_test(depth_ends_at_64),
      cmocka_unit_test(values_end_at_250),
      cmocka_unit_test(memory_ends_at_eight_times),
      cmocka_unit_test(many_short_strings_are_too_much),
      cmocka_unit_test(colliding_numbers_are_too_much),
  };
  return cmocka_run_group_tests_name("typed", tests, NULL, NULL);
}
