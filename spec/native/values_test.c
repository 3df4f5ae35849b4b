/* SPDX-License-Identifier: Apache-2.0
 *
 * values_test.c - typed values that C writes and reads: the bytes, what is
 * refused, and data that were damaged. values_spec.lua compares both with
 * LuaJIT's own encoder and decoder.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/typed.h"
#include "perigee.h"

/* ---- Encoding ------------------------------------------------------------ */

static uint8_t room[4096];

static struct perigee_encoder fresh(void) {
  struct perigee_encoder e;
  memset(room, 0xaa, sizeof room);
  perigee_encode_begin(&e, room, sizeof room);
  return e;
}

static void gives(struct perigee_encoder *e, const char *bytes, int length) {
  assert_int_equal(perigee_encode_end(e), length);
  assert_memory_equal(room, bytes, length);
  assert_int_equal(perigee_encode_end(e), length);
}
#define GIVES(e, bytes) gives(e, bytes, sizeof(bytes) - 1)

static void refused(struct perigee_encoder *e, int status, const char *why) {
  assert_int_equal(perigee_encode_end(e), status);
  if (!strstr(perigee_detail(NULL), why))
    fail_msg("not so: %s", perigee_detail(NULL));
}

static void plain_values_have_luajit_s_bytes(void **state) {
  (void)state;
  struct perigee_encoder e = fresh();
  perigee_encode_nil(&e);
  perigee_encode_boolean(&e, true);
  perigee_encode_boolean(&e, false);
  perigee_encode_number(&e, 1);
  perigee_encode_number(&e, -0.0);
  perigee_encode_int64(&e, -2);
  perigee_encode_uint64(&e, UINT64_MAX);
  perigee_encode_string(&e, "a\0b", 3);
  perigee_encode_text(&e, "text");
  perigee_encode_string(&e, NULL, 0);
  assert_int_equal(e.values, 10);
  GIVES(&e, "\0\2\1\7\0\0\0\0\0\0\xf0\x3f\7\0\0\0\0\0\0\0\x80"
            "\x10\xfe\xff\xff\xff\xff\xff\xff\xff"
            "\x11\xff\xff\xff\xff\xff\xff\xff\xff"
            "\x23"
            "a\0b\x24text\x20");
}

static void tables_are_told_before_their_items(void **state) {
  (void)state;
  struct perigee_encoder e = fresh();
  perigee_encode_table(&e, 0, 0);
  perigee_encode_table(&e, 2, 1);
  perigee_encode_nil(&e);
  perigee_encode_value(&e, &(struct perigee_value){.kind = PERIGEE_VALUE_TABLE,
                                                   .from_zero = 1,
                                                   .length = 1});
  perigee_encode_boolean(&e, true);
  perigee_encode_text(&e, "k");
  assert_int_equal(e.owed, 1);
  perigee_encode_table(&e, 0, 1);
  perigee_encode_boolean(&e, true);
  perigee_encode_text(&e, "");
  assert_int_equal(e.owed, 0);
  assert_int_equal(e.values, 2);
  GIVES(&e, "\x8\xd\3\1\0\xa\1\2\x21k\x9\1\2\x20");
}

static void numbers_of_all_lengths(void **state) {
  (void)state;
  static const struct {
    uint32_t length;
    const char *tag;
    int bytes;
  } tags[] = {{191, "\xdf", 1},
              {192, "\xe0\0", 2},
              {8127, "\xfe\xff", 2},
              {8128, "\xff\xe0\x1f\0\0", 5}};
  static uint8_t large[9000];
  static char text[9000];
  for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
    struct perigee_encoder e;
    perigee_encode_begin(&e, large, sizeof large);
    perigee_encode_string(&e, text, tags[i].length);
    assert_int_equal(perigee_encode_end(&e), tags[i].length + tags[i].bytes);
    assert_memory_equal(large, tags[i].tag, tags[i].bytes);
  }
}

static void a_slice_has_its_place_behind_the_values(void **state) {
  (void)state;
  struct perigee_encoder e = fresh();
  perigee_encode_boolean(&e, true);
  perigee_encode_slice(&e);
  perigee_encode_boolean(&e, true);
  assert_int_equal(e.place, 2);
  GIVES(&e, "\2\0\2\7\0\0\0\0\0\0\0\x40");
  assert_int_equal(e.values, 4);
}

static void what_cannot_travel_is_refused(void **state) {
  (void)state;
  struct perigee_encoder e = fresh();
  perigee_encode_slice(&e);
  perigee_encode_slice(&e);
  refused(&e, PERIGEE_INVALID, "value 2, of 1 bytes so far: a second slice");
  e = fresh();
  perigee_encode_table(&e, 1, 0);
  perigee_encode_slice(&e);
  refused(&e, PERIGEE_INVALID, "a slice in a table");
  e = fresh();
  perigee_encode_table(&e, 1, 1);
  perigee_encode_nil(&e);
  perigee_encode_text(&e, "key");
  refused(&e, PERIGEE_INVALID, "its tables lack");
  e = fresh();
  perigee_encode_text(&e, NULL);
  perigee_encode_text(&e, "never");
  refused(&e, PERIGEE_INVALID, "a text that is NULL");
  e = fresh();
  perigee_encode_string(&e, NULL, 1);
  refused(&e, PERIGEE_INVALID, "a string that is NULL");
  e = fresh();
  perigee_encode_value(&e, &(struct perigee_value){.kind = 8});
  refused(&e, PERIGEE_INVALID, "a kind that there is not");
  e = fresh();
  perigee_encode_end(&e);
  perigee_encode_nil(&e);
  refused(&e, PERIGEE_INVALID, "after perigee_encode_end");
}

static void keys_that_cannot_be_are_refused(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++) {
    struct perigee_encoder e = fresh();
    perigee_encode_table(&e, 0, 1);
    if (i == 0)
      perigee_encode_nil(&e);
    else
      perigee_encode_number(&e, i == 1 ? NAN : 1);
    if (i == 2)
      perigee_encode_nil(&e);
    else
      perigee_encode_boolean(&e, true);
    refused(&e, PERIGEE_INVALID, "a key that is nil or NaN");
  }
}

static void depth_is_at_most_64(void **state) {
  (void)state;
  for (int depth = 64; depth <= 65; depth++) {
    struct perigee_encoder e = fresh();
    for (int i = 1; i < depth; i++)
      perigee_encode_table(&e, 1, 0);
    perigee_encode_table(&e, 0, 0);
    if (depth == 64)
      assert_int_equal(perigee_encode_end(&e), 63 * 2 + 1);
    else
      refused(&e, PERIGEE_INVALID, "64 tables deep");
  }
}

static void values_are_at_most_250(void **state) {
  (void)state;
  for (int values = 249; values <= 251; values++)
    for (int slice = 0; slice <= 1; slice++) {
      struct perigee_encoder e = fresh();
      if (slice)
        perigee_encode_slice(&e);
      for (int i = slice; i < values; i++)
        perigee_encode_number(&e, i);
      if (values + slice <= 250)
        assert_int_equal(perigee_encode_end(&e), 9 * values + slice);
      else
        refused(&e, PERIGEE_TOO_LARGE, "more than 250 values");
    }
}

static void too_small_a_capacity_tells_what_is_needed(void **state) {
  (void)state;
  for (uint64_t capacity = 0; capacity <= 33; capacity++) {
    struct perigee_encoder e = fresh();
    perigee_encode_begin(&e, room, capacity);
    perigee_encode_table(&e, 1, 0);
    perigee_encode_text(&e, "one two three");
    perigee_encode_slice(&e);
    perigee_encode_boolean(&e, true);
    perigee_encode_int64(&e, 7);
    int64_t length = perigee_encode_end(&e);
    assert_int_equal(e.length, 36);
    assert_int_equal(length, PERIGEE_TOO_LARGE);
    assert_non_null(strstr(perigee_detail(NULL), "capacity is too small"));
    for (uint64_t i = capacity; i < sizeof room; i++)
      assert_int_equal(room[i], 0xaa);
  }
  struct perigee_encoder e;
  perigee_encode_begin(&e, NULL, 4096);
  perigee_encode_text(&e, "only counted");
  refused(&e, PERIGEE_TOO_LARGE, "too small");
  assert_int_equal(e.length, 13);
}

static void lengths_beyond_luajit_s_are_refused(void **state) {
  (void)state;
  static const uint64_t lengths[] = {UINT64_C(1) << 31, UINT64_MAX};
  for (int i = 0; i < 2; i++) {
    struct perigee_encoder e = fresh();
    perigee_encode_string(&e, "?", lengths[i]);
    refused(&e, PERIGEE_TOO_LARGE, "a string of more than");
    e = fresh();
    perigee_encode_table(&e, lengths[i], 0);
    refused(&e, PERIGEE_TOO_LARGE, "a table of 2^26");
    e = fresh();
    perigee_encode_table(&e, 0, lengths[i]);
    refused(&e, PERIGEE_TOO_LARGE, "a table of 2^26");
  }
  struct perigee_encoder e;
  perigee_encode_begin(&e, NULL, 0);
  for (int i = 0; i < 2; i++)
    perigee_encode_string(&e, "?", INT32_MAX - 32);
  refused(&e, PERIGEE_TOO_LARGE, "more than 2^31 - 1 bytes");
}

/* ---- Decoding ------------------------------------------------------------ */

/* Begins to read a copy of the exact length, so that a sanitizer notices an
 * access behind it. */
static uint8_t *begun(struct perigee_decoder *d, const void *data,
                      uint64_t length) {
  uint8_t *copy = malloc(length ? length : 1);
  memcpy(copy, data, length);
  assert_int_equal(perigee_decode_begin(d, copy, length), PERIGEE_OK);
  return copy;
}

static struct perigee_value next(struct perigee_decoder *d, uint32_t kind) {
  struct perigee_value v;
  assert_int_equal(perigee_decode(d, &v), 1);
  assert_int_equal(v.kind, kind);
  return v;
}

static void at_end(struct perigee_decoder *d) {
  struct perigee_value v;
  assert_int_equal(perigee_decode(d, &v), 0);
  assert_int_equal(perigee_decode(d, &v), 0);
}

static void is_text(const struct perigee_value *v, const char *text) {
  assert_int_equal(v->kind, PERIGEE_VALUE_STRING);
  assert_int_equal(v->length, strlen(text));
  assert_memory_equal(v->string, text, v->length);
}

static void plain_values_come_back(void **state) {
  (void)state;
  static const char data[] = "\0\2\1\6\xfe\xff\xff\xff\7\0\0\0\0\0\0\0\x80"
                             "\x10\xfe\xff\xff\xff\xff\xff\xff\xff"
                             "\x11\xff\xff\xff\xff\xff\xff\xff\xff"
                             "\x24text\x20";
  struct perigee_decoder d;
  uint8_t *copy = begun(&d, data, sizeof data - 1);
  next(&d, PERIGEE_VALUE_NIL);
  assert_true(next(&d, PERIGEE_VALUE_BOOLEAN).boolean);
  assert_false(next(&d, PERIGEE_VALUE_BOOLEAN).boolean);
  assert_true(next(&d, PERIGEE_VALUE_NUMBER).number == -2);
  assert_true(signbit(next(&d, PERIGEE_VALUE_NUMBER).number));
  assert_int_equal(next(&d, PERIGEE_VALUE_INT64).int64, -2);
  assert_int_equal(next(&d, PERIGEE_VALUE_UINT64).uint64, UINT64_MAX);
  struct perigee_value v = next(&d, PERIGEE_VALUE_STRING);
  is_text(&v, "text");
  assert_ptr_equal(v.string, copy + d.at - 4);
  assert_int_equal(next(&d, PERIGEE_VALUE_STRING).length, 0);
  assert_int_equal(d.values, 9);
  at_end(&d);
  free(copy);
}

/* {true, nil, true, k = {x = 1, [true] = {}, y = "z"}}, "end" */
static uint64_t sample(void) {
  struct perigee_encoder e = fresh();
  perigee_encode_table(&e, 3, 1);
  perigee_encode_boolean(&e, true);
  perigee_encode_nil(&e);
  perigee_encode_boolean(&e, true);
  perigee_encode_text(&e, "k");
  perigee_encode_table(&e, 0, 3);
  perigee_encode_text(&e, "x");
  perigee_encode_number(&e, 1);
  perigee_encode_boolean(&e, true);
  perigee_encode_table(&e, 0, 0);
  perigee_encode_text(&e, "y");
  perigee_encode_text(&e, "z");
  perigee_encode_text(&e, "end");
  return (uint64_t)perigee_encode_end(&e);
}

static void tables_are_entered_and_passed_over(void **state) {
  (void)state;
  struct perigee_decoder d, outside;
  uint8_t *copy = begun(&d, room, sample());
  struct perigee_value table = next(&d, PERIGEE_VALUE_TABLE);
  assert_int_equal(table.length, 3);
  assert_int_equal(table.pairs, 1);
  assert_int_equal(table.from_zero, 0);
  assert_int_equal(d.owed, 5);
  outside = d;
  next(&d, PERIGEE_VALUE_BOOLEAN);
  next(&d, PERIGEE_VALUE_NIL);
  next(&d, PERIGEE_VALUE_BOOLEAN);
  struct perigee_value v = next(&d, PERIGEE_VALUE_STRING);
  assert_int_equal(perigee_decode_skip(&d, &v), PERIGEE_OK);
  v = next(&d, PERIGEE_VALUE_TABLE);
  assert_int_equal(perigee_decode_skip(&d, &v), PERIGEE_OK);
  v = next(&d, PERIGEE_VALUE_STRING);
  is_text(&v, "end");
  at_end(&d);
  assert_int_equal(perigee_decode_skip(&outside, &table), PERIGEE_OK);
  assert_int_equal(outside.owed, 0);
  v = next(&outside, PERIGEE_VALUE_STRING);
  is_text(&v, "end");
  free(copy);
}

static void fields_are_found_by_their_keys(void **state) {
  (void)state;
  struct perigee_decoder d, inner;
  uint8_t *copy = begun(&d, room, sample());
  struct perigee_value table = next(&d, PERIGEE_VALUE_TABLE), k, v;
  inner = d;
  assert_int_equal(perigee_decode_field(&inner, &table, "k", &k), 1);
  assert_int_equal(k.kind, PERIGEE_VALUE_TABLE);
  struct perigee_decoder at = inner;
  assert_int_equal(perigee_decode_field(&at, &k, "y", &v), 1);
  is_text(&v, "z");
  v = next(&at, PERIGEE_VALUE_STRING);
  is_text(&v, "end");
  at = inner;
  assert_int_equal(perigee_decode_field(&at, &k, "x", &v), 1);
  assert_true(v.number == 1);
  assert_int_equal(perigee_decode_field(&inner, &k, "z", &v),
                   PERIGEE_NOT_FOUND);
  v = next(&inner, PERIGEE_VALUE_STRING);
  is_text(&v, "end");
  assert_int_equal(perigee_decode_field(&inner, &v, "z", &v),
                   PERIGEE_NOT_FOUND);
  assert_int_equal(perigee_decode_field(&d, &table, "kk", &v),
                   PERIGEE_NOT_FOUND);
  v = next(&d, PERIGEE_VALUE_STRING);
  is_text(&v, "end");
  free(copy);
}

static void a_table_that_was_not_given_last_is_refused(void **state) {
  (void)state;
  struct perigee_decoder d;
  uint8_t *copy = begun(&d, room, sample());
  struct perigee_value table = next(&d, PERIGEE_VALUE_TABLE);
  next(&d, PERIGEE_VALUE_BOOLEAN);
  struct perigee_decoder at = d;
  assert_int_equal(perigee_decode_skip(&at, &table), PERIGEE_INVALID);
  assert_int_equal(perigee_decode(&at, &table), PERIGEE_INVALID);
  assert_int_equal(perigee_decode_field(&d, &table, "k", &table),
                   PERIGEE_INVALID);
  free(copy);
}

/* ---- Events -------------------------------------------------------------- */

static struct perigee_event event_of(uint64_t length, int flags) {
  return (struct perigee_event){.kind = PERIGEE_EVENT_REQUEST,
                                .flags = (uint8_t)flags,
                                .pointer = room,
                                .length = length,
                                .slice = flags & PERIGEE_SLICE ? 77 : 0};
}

static void the_slice_of_an_event_is_in_its_place(void **state) {
  (void)state;
  struct perigee_encoder e = fresh();
  perigee_encode_table(&e, 1, 0);
  perigee_encode_boolean(&e, true);
  perigee_encode_slice(&e);
  perigee_encode_text(&e, "end");
  struct perigee_event event =
      event_of((uint64_t)perigee_encode_end(&e), PERIGEE_TYPED | PERIGEE_SLICE);
  struct perigee_decoder d;
  assert_int_equal(perigee_decode_event(&d, &event), PERIGEE_OK);
  assert_int_equal(d.place, 2);
  next(&d, PERIGEE_VALUE_TABLE);
  next(&d, PERIGEE_VALUE_BOOLEAN);
  assert_int_equal(next(&d, PERIGEE_VALUE_SLICE).length, 77);
  struct perigee_value v = next(&d, PERIGEE_VALUE_STRING);
  is_text(&v, "end");
  at_end(&d);
}

/* Values that end with a number, which is the place of a slice: or is none. */
static int with_place(const struct perigee_value *last, int values) {
  struct perigee_encoder e = fresh();
  for (int i = 0; i < values; i++)
    perigee_encode_nil(&e);
  if (last)
    perigee_encode_value(&e, last);
  struct perigee_event event =
      event_of((uint64_t)perigee_encode_end(&e), PERIGEE_TYPED | PERIGEE_SLICE);
  struct perigee_decoder d;
  return perigee_decode_event(&d, &event);
}

static int with_number(double place, int values) {
  struct perigee_value v = {.kind = PERIGEE_VALUE_NUMBER, .number = place};
  return with_place(&v, values);
}

static void a_place_is_a_number_of_a_value(void **state) {
  (void)state;
  assert_int_equal(with_number(1, 1), PERIGEE_OK);
  assert_int_equal(with_number(249, 249), PERIGEE_OK);
  assert_int_equal(with_number(0, 1), PERIGEE_PROTOCOL);
  assert_int_equal(with_number(2, 1), PERIGEE_PROTOCOL);
  assert_int_equal(with_number(1.5, 3), PERIGEE_PROTOCOL);
  assert_int_equal(with_number(-1, 3), PERIGEE_PROTOCOL);
  assert_int_equal(with_number(NAN, 3), PERIGEE_PROTOCOL);
  assert_int_equal(with_number(INFINITY, 3), PERIGEE_PROTOCOL);
  assert_int_equal(with_number(1, 0), PERIGEE_PROTOCOL);
  assert_int_equal(with_place(NULL, 0), PERIGEE_PROTOCOL);
  assert_int_equal(with_place(NULL, 2), PERIGEE_PROTOCOL);
  struct perigee_value one = {.kind = PERIGEE_VALUE_INT64, .int64 = 1};
  assert_int_equal(with_place(&one, 1), PERIGEE_PROTOCOL);
}

static void another_value_in_the_place_is_refused(void **state) {
  (void)state;
  struct perigee_encoder e = fresh();
  perigee_encode_boolean(&e, true);
  perigee_encode_number(&e, 1);
  struct perigee_event event =
      event_of((uint64_t)perigee_encode_end(&e), PERIGEE_TYPED | PERIGEE_SLICE);
  struct perigee_decoder d;
  struct perigee_value v;
  assert_int_equal(perigee_decode_event(&d, &event), PERIGEE_OK);
  assert_int_equal(perigee_decode(&d, &v), PERIGEE_PROTOCOL);
  assert_int_equal(perigee_decode(&d, &v), PERIGEE_PROTOCOL);
}

static void only_typed_events_have_values(void **state) {
  (void)state;
  struct perigee_decoder d;
  struct perigee_event event = event_of(0, PERIGEE_TYPED);
  event.pointer = NULL;
  assert_int_equal(perigee_decode_event(&d, &event), PERIGEE_OK);
  at_end(&d);
  event.flags = 0;
  assert_int_equal(perigee_decode_event(&d, &event), PERIGEE_PROTOCOL);
  event.kind = PERIGEE_EVENT_REPLY;
  event.status = PERIGEE_TIMEOUT;
  assert_int_equal(perigee_decode_event(&d, &event), PERIGEE_TIMEOUT);
  event.kind = PERIGEE_EVENT_DONE;
  assert_int_equal(perigee_decode_event(&d, &event), PERIGEE_INVALID);
}

/* ---- Damage -------------------------------------------------------------- */

/* Walks over any bytes, scanned or not, to the end or to PROTOCOL. Returns how
 * it ends. */
static int walked(const void *data, uint64_t length, bool scanned) {
  uint8_t *copy = malloc(length ? length : 1);
  memcpy(copy, data, length);
  struct perigee_decoder d = {.data = copy, .length = length};
  struct perigee_value v;
  int status = scanned ? perigee_decode_begin(&d, copy, length) : PERIGEE_OK;
  uint64_t items = 0;
  while (status >= 0 && (status = perigee_decode(&d, &v)) == 1) {
    assert_true(++items <= length);
    if (v.kind == PERIGEE_VALUE_STRING && v.length > 0) {
      assert_true((const uint8_t *)v.string >= copy);
      assert_true((const uint8_t *)v.string + v.length <= copy + length);
    }
  }
  free(copy);
  return status;
}

static void damaged(const uint8_t *data, uint64_t length) {
  int scan = perigee_typed_scan(data, length);
  int status = walked(data, length, true);
  assert_int_equal(status, scan < 0 ? scan : 0);
  status = walked(data, length, false);
  assert_true(status == 0 || status == PERIGEE_PROTOCOL);
  if (scan >= 0)
    assert_int_equal(status, 0);
}

static void damaged_data_end_in_protocol(void **state) {
  (void)state;
  uint8_t data[256];
  uint64_t length = sample();
  memcpy(data, room, length);
  for (uint64_t cut = 0; cut <= length; cut++)
    damaged(data, cut);
  for (uint64_t i = 0; i < length; i++) {
    for (int byte = 0; byte < 256; byte++) {
      data[i] = (uint8_t)byte;
      damaged(data, length);
    }
    data[i] = room[i];
  }
}

static void bad_data_are_told(void **state) {
  (void)state;
  struct perigee_decoder d;
  struct perigee_value v;
  assert_int_equal(perigee_decode_begin(&d, "\x2", 1), PERIGEE_OK);
  d.data = (const uint8_t *)"\x3";
  assert_int_equal(perigee_decode(&d, &v), PERIGEE_PROTOCOL);
  assert_non_null(strstr(perigee_detail(NULL), "value 1, byte 1"));
  d = (struct perigee_decoder){.data = (const uint8_t *)"\xff\x20\0\0\0",
                               .length = 5};
  assert_int_equal(perigee_decode(&d, &v), PERIGEE_PROTOCOL);
  d = (struct perigee_decoder){.data = (const uint8_t *)"\xa\3\0\0",
                               .length = 4};
  assert_int_equal(perigee_decode(&d, &v), PERIGEE_PROTOCOL);
  assert_int_equal(perigee_decode_begin(&d, "\x3", 1), PERIGEE_PROTOCOL);
  assert_int_equal(perigee_decode_begin(&d, NULL, 1), PERIGEE_INVALID);
  assert_int_equal(perigee_decode(&d, &v), PERIGEE_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plain_values_have_luajit_s_bytes),
      cmocka_unit_test(tables_are_told_before_their_items),
      cmocka_unit_test(numbers_of_all_lengths),
      cmocka_unit_test(a_slice_has_its_place_behind_the_values),
      cmocka_unit_test(what_cannot_travel_is_refused),
      cmocka_unit_test(keys_that_cannot_be_are_refused),
      cmocka_unit_test(depth_is_at_most_64),
      cmocka_unit_test(values_are_at_most_250),
      cmocka_unit_test(too_small_a_capacity_tells_what_is_needed),
      cmocka_unit_test(lengths_beyond_luajit_s_are_refused),
      cmocka_unit_test(plain_values_come_back),
      cmocka_unit_test(tables_are_entered_and_passed_over),
      cmocka_unit_test(fields_are_found_by_their_keys),
      cmocka_unit_test(a_table_that_was_not_given_last_is_refused),
      cmocka_unit_test(the_slice_of_an_event_is_in_its_place),
      cmocka_unit_test(a_place_is_a_number_of_a_value),
      cmocka_unit_test(another_value_in_the_place_is_refused),
      cmocka_unit_test(only_typed_events_have_values),
      cmocka_unit_test(damaged_data_end_in_protocol),
      cmocka_unit_test(bad_data_are_told),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
