/* SPDX-License-Identifier: Apache-2.0
 *
 * ring_test.c - the ring between two sides that keep the rules, and with a
 * peer that does not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>

#include <cmocka.h>

#include "base/ring.h"
#include "perigee.h"

enum { RING = 4096, LARGEST = RING / RING_SHARE, RECORDS = 200000 };
static const uint64_t KEY = 0x1234567890abcdef;

static _Alignas(64) uint8_t bytes[RING];
static _Atomic uint64_t consumed;
static struct ring_out out;
static struct ring_in in;

static int setup(void **state) {
  (void)state;
  memset(bytes, 0, sizeof bytes);
  consumed = 0;
  out = (struct ring_out){
      .bytes = bytes, .consumed = &consumed, .size = RING, .key = KEY};
  ring_open(&in, bytes, RING, KEY, &consumed);
  return 0;
}

static uint64_t length_of(uint32_t number) {
  return 8 + number * 2654435761u % (LARGEST - 8);
}

/* All of the record's bytes, except for the word, hold its number. */
static bool put(uint32_t number) {
  uint64_t length = length_of(number);
  uint8_t *room = ring_reserve(&out, length);
  if (!room)
    return false;
  memset(room + 8, (uint8_t)number, length - 8);
  ring_publish(&out, length);
  return true;
}

static bool get(uint32_t number) {
  const uint8_t *record;
  uint64_t length;
  if (ring_peek(&in, &record, &length) != 1)
    return false;
  assert_int_equal(length, ring_units(length_of(number)) * RING_UNIT);
  for (uint64_t i = 8; i < length_of(number); i++)
    if (record[i] != (uint8_t)number)
      fail_msg("record %u is wrong at byte %d", number, (int)i);
  ring_release(&in);
  return true;
}

static void empty_gives_nothing(void **state) {
  (void)state;
  assert_false(get(0));
  assert_null(ring_reserve(&out, LARGEST + 1));
  assert_non_null(ring_reserve(&out, LARGEST));
  assert_false(get(0));
}

static void records_come_in_order_and_whole(void **state) {
  (void)state;
  uint32_t sent = 0, got = 0;
  while (got < 20000) {
    while (put(sent))
      sent++;
    assert_true(sent > got);
    while (get(got))
      got++;
    assert_int_equal(got, sent);
  }
}

static void full_takes_no_more(void **state) {
  (void)state;
  int count = 0;
  while (ring_reserve(&out, LARGEST)) {
    ring_publish(&out, LARGEST);
    assert_true(++count <= RING_SHARE);
  }
  assert_int_equal(count, RING_SHARE);
  assert_null(ring_reserve(&out, 1));
}

static void consumed_is_not_believed_blindly(void **state) {
  (void)state;
  const uint64_t lies[] = {UINT64_MAX, RING + 1, RING * 2, 1ull << 63};
  while (ring_reserve(&out, LARGEST))
    ring_publish(&out, LARGEST);
  for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
    consumed = lies[i];
    assert_null(ring_reserve(&out, 1));
  }
  consumed = LARGEST;
  assert_non_null(ring_reserve(&out, LARGEST));
  consumed = 0;
  ring_publish(&out, LARGEST);
  assert_null(ring_reserve(&out, 1));
}

static void word(uint64_t position, uint64_t units) {
  uint64_t value = ring_word(KEY, position, units);
  memcpy(bytes + position % RING, &value, sizeof value);
}

static void wrong_words_are_not_records(void **state) {
  (void)state;
  const uint8_t *record;
  uint64_t length;
  word(0, LARGEST / RING_UNIT + 1);
  assert_int_equal(ring_peek(&in, &record, &length), 0);
  word(0, 0);
  assert_int_equal(ring_peek(&in, &record, &length), PERIGEE_PROTOCOL);
  in.tail = RING - RING_UNIT;
  word(in.tail, 2);
  assert_int_equal(ring_peek(&in, &record, &length), PERIGEE_PROTOCOL);
}

static void *produce(void *unused) {
  (void)unused;
  for (uint32_t sent = 0; sent < RECORDS;)
    if (put(sent))
      sent++;
    else
      sched_yield();
  return NULL;
}

static void two_threads(void **state) {
  (void)state;
  pthread_t producer;
  assert_int_equal(pthread_create(&producer, NULL, produce, NULL), 0);
  for (uint32_t got = 0; got < RECORDS;)
    if (get(got))
      got++;
    else
      sched_yield();
  pthread_join(producer, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(empty_gives_nothing, setup),
      cmocka_unit_test_setup(records_come_in_order_and_whole, setup),
      cmocka_unit_test_setup(full_takes_no_more, setup),
      cmocka_unit_test_setup(consumed_is_not_believed_blindly, setup),
      cmocka_unit_test_setup(wrong_words_are_not_records, setup),
      cmocka_unit_test_setup(two_threads, setup),
  };
  return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
