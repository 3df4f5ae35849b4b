/* SPDX-License-Identifier: Apache-2.0
 *
 * record_test.c - records byte by byte as record.h draws them, cut at every
 * length, and with every flag and limit that is to be refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/record.h"

static const struct source source = {3, 4096, 64, 1000, 256};

static struct record full(void) {
  return (struct record){.kind = RECORD_REPLY,
                         .flags = RECORD_TYPED | RECORD_SLICE | RECORD_CODE |
                                  RECORD_CAPACITY,
                         .codec = 1,
                         .method = 0x0203,
                         .operation = 0x0405,
                         .status = PERIGEE_REMOTE,
                         .generation = 0x06070809,
                         .remaining = RECORD_NO_LIMIT,
                         .code = 77,
                         .capacity = 88,
                         .head_length = 5,
                         .slice_length = 9};
}

/* A copy of the exact length, so that a sanitizer notices an access behind
 * it. */
static uint8_t *encode(const struct record *record) {
  uint8_t *bytes = calloc(1, record_size(record));
  uint8_t *head = record_head(record, bytes);
  uint8_t *slice = record_slice(record, bytes);
  record_encode(record, bytes);
  if (head)
    memcpy(head, "hello", record->head_length);
  if (slice)
    memcpy(slice, "the slice", record->slice_length);
  return bytes;
}

static int decode(const uint8_t *bytes, uint64_t length,
                  struct record *record) {
  uint8_t *copy = malloc(length ? length : 1);
  memcpy(copy, bytes, length);
  int status = record_decode(copy, length, record);
  free(copy);
  return status;
}

static void layout_is_as_drawn(void **state) {
  (void)state;
  static const uint8_t drawn[] = {
      0,   0,   0,   0,   0,   0,   0,   0,   /* word */
      2,   51,  3,   2,   4,   0,   5,   4,   /* kind to operation */
      9,   8,   7,   6,   5,   0,   0,   0,   /* generation, head */
      255, 255, 255, 255, 1,   0,   0,   0,   /* remaining, codec */
      77,  0,   0,   0,   0,   0,   0,   0,   /* code */
      88,  0,   0,   0,   0,   0,   0,   0,   /* capacity */
      'h', 'e', 'l', 'l', 'o', 0,   0,   0,   /* head */
      9,   0,   0,   0,   0,   0,   0,   0,   /* length of the slice */
      't', 'h', 'e', ' ', 's', 'l', 'i', 'c', /* slice */
      'e', 0,   0,   0,   0,   0,   0,   0,
  };
  struct record record = full();
  assert_int_equal(record_size(&record), sizeof drawn);
  uint8_t *bytes = encode(&record);
  assert_memory_equal(bytes, drawn, sizeof drawn);
  free(bytes);
}

static void decoded_is_as_encoded(void **state) {
  (void)state;
  struct record sent = full(), got = {0};
  uint8_t *bytes = encode(&sent);
  assert_int_equal(record_decode(bytes, record_size(&sent), &got), PERIGEE_OK);
  assert_int_equal(got.status, PERIGEE_REMOTE);
  assert_int_equal(got.method, sent.method);
  assert_int_equal(got.operation, sent.operation);
  assert_int_equal(got.generation, sent.generation);
  assert_int_equal(got.code, 77);
  assert_int_equal(got.capacity, 88);
  assert_int_equal(got.head_length, 5);
  assert_memory_equal(got.head, "hello", 5);
  assert_int_equal(got.slice_length, 9);
  assert_memory_equal(got.slice, "the slice", 9);
  free(bytes);
}

static void sources_travel(void **state) {
  (void)state;
  struct record got = {0}, sent = {.kind = RECORD_REQUEST,
                                   .flags = RECORD_HEAD_BULK | RECORD_SLICE |
                                            RECORD_SLICE_BULK,
                                   .head_source = source,
                                   .slice_source = source};
  uint8_t *bytes = encode(&sent);
  assert_int_equal(record_decode(bytes, record_size(&sent), &got), PERIGEE_OK);
  assert_memory_equal(&got.head_source, &source, sizeof source);
  assert_memory_equal(&got.slice_source, &source, sizeof source);
  assert_int_equal(got.head_length, 64000);
  assert_int_equal(got.slice_length, 64000);
  free(bytes);
}

static void every_cut_is_refused(void **state) {
  (void)state;
  struct record sent = full(), got = {0};
  uint8_t *bytes = encode(&sent);
  for (uint64_t length = 0; length < record_size(&sent); length++)
    assert_int_equal(decode(bytes, length, &got), PERIGEE_PROTOCOL);
  free(bytes);
}

static int with_source(struct source wrong) {
  struct record got = {0}, sent = {.kind = RECORD_SEND,
                                   .flags = RECORD_SLICE | RECORD_SLICE_BULK,
                                   .slice_source = wrong};
  uint8_t *bytes = encode(&sent);
  int status = decode(bytes, record_size(&sent), &got);
  free(bytes);
  return status;
}

static void shapes_are_limited(void **state) {
  (void)state;
  const struct source wrong[] = {
      {1, 0, PAYLOAD_MAX + 1, 1, 0}, {1, 0, 1, PAYLOAD_MAX + 1, 0},
      {1, 0, UINT64_MAX, 2, 0},      {1, 0, UINT64_C(1) << 33, 1u << 31, 0},
      {1, 0, 1, 1, PAYLOAD_MAX + 1}, {1, 0, 0, UINT64_MAX, 0}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_int_equal(with_source(wrong[i]), PERIGEE_PROTOCOL);
  assert_int_equal(with_source((struct source){1, 0, PAYLOAD_MAX, 1, 0}),
                   PERIGEE_OK);
  assert_int_equal(shape_total(0, UINT64_MAX), 0);
}

/* The record with one byte set to a value. */
static int patched(size_t at, uint8_t value) {
  struct record got = {0}, sent = full();
  uint8_t *bytes = encode(&sent);
  bytes[at] = value;
  int status = decode(bytes, record_size(&sent), &got);
  free(bytes);
  return status;
}

static void unknown_is_unsupported(void **state) {
  (void)state;
  assert_int_equal(patched(8, 0), PERIGEE_UNSUPPORTED);
  assert_int_equal(patched(8, RECORD_KINDS), PERIGEE_UNSUPPORTED);
  assert_int_equal(patched(9, 64), PERIGEE_UNSUPPORTED);
  assert_int_equal(patched(9, 128), PERIGEE_UNSUPPORTED);
}

static void lengths_beyond_the_bytes_are_refused(void **state) {
  (void)state;
  assert_int_equal(patched(21, 1), PERIGEE_PROTOCOL); /* head */
  assert_int_equal(patched(23, 255), PERIGEE_PROTOCOL);
  assert_int_equal(patched(29, 200), PERIGEE_PROTOCOL); /* extension */
  assert_int_equal(patched(57, 1), PERIGEE_PROTOCOL);   /* slice */
  assert_int_equal(patched(63, 255), PERIGEE_PROTOCOL);
}

static int with_capacity(uint64_t capacity) {
  struct record got = {0}, sent = full();
  sent.capacity = capacity;
  uint8_t *bytes = encode(&sent);
  int status = decode(bytes, record_size(&sent), &got);
  free(bytes);
  return status;
}

/* So that those of many requests can be added. */
static void capacities_beyond_any_payload_are_refused(void **state) {
  (void)state;
  assert_int_equal(with_capacity(PAYLOAD_MAX), PERIGEE_OK);
  assert_int_equal(with_capacity(PAYLOAD_MAX + 1), PERIGEE_PROTOCOL);
  assert_int_equal(with_capacity(UINT64_MAX), PERIGEE_PROTOCOL);
}

/* ---- Extensions ---------------------------------------------------------- */

static const struct perigee_trace trace = {
    {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
    {17, 18, 19, 20, 21, 22, 23, 24},
    1};

/* A request with these words between its header and "hello". */
static int with_words(const uint64_t *words, uint8_t count,
                      struct record *got) {
  struct record sent = {.kind = RECORD_REQUEST, .head_length = 5};
  uint64_t length = record_size(&sent) + 8u * count;
  uint8_t *plain = encode(&sent), *bytes = malloc(length);
  memcpy(bytes, plain, RECORD_HEADER);
  bytes[29] = count;
  memcpy(bytes + RECORD_HEADER, words, 8u * count);
  memcpy(bytes + RECORD_HEADER + 8u * count, plain + RECORD_HEADER, 8);
  int status = record_decode(bytes, length, got);
  if (status == PERIGEE_OK) {
    assert_int_equal(got->head_length, 5);
    assert_memory_equal(got->head, "hello", 5);
  }
  got->head = NULL;
  free(bytes);
  free(plain);
  return status;
}

/* Type and length. */
#define EXTENSION(type, words) ((type) | UINT64_C(words) << 16)

static void extensions_of_other_types_are_skipped(void **state) {
  (void)state;
  const uint64_t words[] = {EXTENSION(0xeeee, 1), EXTENSION(0, 3), ~0ull, 0,
                            EXTENSION(2, 1)};
  struct record got = {0};
  for (uint8_t n = 0; n <= 5; n += n == 1 ? 3 : 1) {
    assert_int_equal(with_words(words, n, &got), PERIGEE_OK);
    assert_null(got.trace);
  }
}

static void extensions_fill_their_area(void **state) {
  (void)state;
  const uint64_t words[][3] = {{0, 0, 0},
                               {EXTENSION(7, 0), 0, 0},
                               {EXTENSION(7, 4), 0, 0},
                               {EXTENSION(7, 65535), 0, 0},
                               {EXTENSION(7, 2), 0, EXTENSION(7, 2)}};
  struct record got = {0};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    assert_int_equal(with_words(words[i], 3, &got), PERIGEE_PROTOCOL);
}

static void a_trace_comes_once_and_whole(void **state) {
  (void)state;
  const uint64_t once[] = {EXTENSION(RECORD_TRACE, 4), 0, 0, 0};
  const uint64_t longer[] = {EXTENSION(RECORD_TRACE, 5), 0, 0, 0, 0};
  const uint64_t shorter[] = {EXTENSION(RECORD_TRACE, 3), 0, 0};
  const uint64_t twice[] = {EXTENSION(RECORD_TRACE, 4), 0, 0, 0,
                            EXTENSION(RECORD_TRACE, 4), 0, 0, 0};
  struct record got = {0};
  assert_int_equal(with_words(once, 4, &got), PERIGEE_OK);
  assert_non_null(got.trace);
  assert_int_equal(with_words(longer, 5, &got), PERIGEE_OK);
  assert_int_equal(with_words(shorter, 3, &got), PERIGEE_PROTOCOL);
  assert_int_equal(with_words(twice, 8, &got), PERIGEE_PROTOCOL);
}

/* Of the exact length. */
static uint8_t *encode_traced(const struct record *r) {
  uint8_t *bytes = calloc(1, record_size(r) + RECORD_TRACED);
  uint8_t *head = record_head(r, bytes + RECORD_TRACED);
  uint8_t *slice = record_slice(r, bytes + RECORD_TRACED);
  record_encode_traced(r, bytes, &trace);
  if (head)
    memcpy(head, "hello", r->head_length);
  if (slice)
    memcpy(slice, "the slice", r->slice_length);
  return bytes;
}

static void a_trace_lies_as_drawn(void **state) {
  (void)state;
  static const uint8_t drawn[] = {
      1,  0,  4,  0,  1,  2,  3,  4,  /* type, words, id */
      5,  6,  7,  8,  9,  10, 11, 12, /* */
      13, 14, 15, 16, 17, 18, 19, 20, /* span */
      21, 22, 23, 24, 1,  0,  0,  0,  /* flags, zeros */
  };
  struct record record = full();
  uint8_t *plain = encode(&record), *bytes = encode_traced(&record);
  assert_int_equal(bytes[29], 4);
  bytes[29] = 0;
  assert_memory_equal(bytes, plain, RECORD_HEADER + 16);
  assert_memory_equal(bytes + RECORD_HEADER + 16, drawn, sizeof drawn);
  assert_memory_equal(bytes + RECORD_HEADER + 16 + sizeof drawn,
                      plain + RECORD_HEADER + 16,
                      record_size(&record) - RECORD_HEADER - 16);
  free(plain);
  free(bytes);
}

static void a_trace_travels_with_all_else(void **state) {
  (void)state;
  struct record got = {0}, sent = full();
  uint8_t *bytes = encode_traced(&sent);
  uint64_t length = record_size(&sent) + RECORD_TRACED;
  assert_int_equal(record_decode(bytes, length, &got), PERIGEE_OK);
  assert_memory_equal(got.trace, &trace, sizeof trace);
  assert_int_equal(got.code, 77);
  assert_int_equal(got.capacity, 88);
  assert_memory_equal(got.head, "hello", 5);
  assert_memory_equal(got.slice, "the slice", 9);
  while (length-- > 0)
    assert_int_equal(decode(bytes, length, &got), PERIGEE_PROTOCOL);
  free(bytes);
  sent = (struct record){.kind = RECORD_REQUEST,
                         .flags = RECORD_HEAD_BULK | RECORD_SLICE |
                                  RECORD_SLICE_BULK,
                         .head_source = source,
                         .slice_source = source};
  bytes = encode_traced(&sent);
  length = record_size(&sent) + RECORD_TRACED;
  assert_int_equal(record_decode(bytes, length, &got), PERIGEE_OK);
  assert_memory_equal(&got.head_source, &source, sizeof source);
  assert_memory_equal(&got.slice_source, &source, sizeof source);
  free(bytes);
}

/* With each pair of the words that may stand before the head. */
static void
the_head_of_a_lent_record_begins_behind_its_first_line(void **state) {
  (void)state;
  enum { LENGTH = 5 };
  for (int words = 0; words < 4; words++) {
    uint8_t bytes[RECORD_LENT + 8] = {0};
    struct record got = {0}, sent = {.kind = RECORD_REQUEST,
                                     .flags = (words & 1 ? RECORD_CODE : 0) |
                                              (words & 2 ? RECORD_CAPACITY : 0),
                                     .codec = 3,
                                     .method = 0x0203,
                                     .operation = 0x0405,
                                     .generation = 0x06070809,
                                     .remaining = 1000,
                                     .code = words & 1 ? 77 : 0,
                                     .capacity = words & 2 ? 88 : 0,
                                     .head_length = LENGTH};
    memcpy(bytes + RECORD_LENT, "hello", LENGTH);
    record_encode_lent(&sent, bytes);
    assert_int_equal(record_decode(bytes, sizeof bytes, &got), PERIGEE_OK);
    assert_ptr_equal(got.head, bytes + RECORD_LENT);
    assert_memory_equal(got.head, "hello", LENGTH);
    assert_int_equal(got.head_length, LENGTH);
    assert_int_equal(got.method, sent.method);
    assert_int_equal(got.operation, sent.operation);
    assert_int_equal(got.generation, sent.generation);
    assert_int_equal(got.remaining, sent.remaining);
    assert_int_equal(got.codec, sent.codec);
    assert_int_equal(got.code, sent.code);
    assert_int_equal(got.capacity, sent.capacity);
    assert_null(got.trace);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_head_of_a_lent_record_begins_behind_its_first_line),
      cmocka_unit_test(layout_is_as_drawn),
      cmocka_unit_test(decoded_is_as_encoded),
      cmocka_unit_test(sources_travel),
      cmocka_unit_test(every_cut_is_refused),
      cmocka_unit_test(shapes_are_limited),
      cmocka_unit_test(unknown_is_unsupported),
      cmocka_unit_test(lengths_beyond_the_bytes_are_refused),
      cmocka_unit_test(capacities_beyond_any_payload_are_refused),
      cmocka_unit_test(extensions_of_other_types_are_skipped),
      cmocka_unit_test(extensions_fill_their_area),
      cmocka_unit_test(a_trace_comes_once_and_whole),
      cmocka_unit_test(a_trace_lies_as_drawn),
      cmocka_unit_test(a_trace_travels_with_all_else),
  };
  return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
