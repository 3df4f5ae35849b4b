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

enum { RING = 4096, QUARTER = RING / RING_SHARE, RECORDS = 200000 };
enum { LARGEST = QUARTER + RING_HEAD };
static const uint64_t KEY = 0x1234567890abcdef;

static _Alignas(64) uint8_t bytes[RING];
static _Atomic uint64_t consumed;
static struct ring_out out;
static struct ring_in in;

static int setup(void **state) {
  (void)state;
  memset(bytes, 0, sizeof bytes);
  consumed = 0;
  ring_begin(&out, bytes, RING, KEY, &consumed);
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
  while (ring_reserve(&out, QUARTER)) {
    ring_publish(&out, QUARTER);
    assert_true(++count <= RING_SHARE);
  }
  assert_int_equal(count, RING_SHARE);
  assert_null(ring_reserve(&out, 1));
}

/* Whatever came before, and wherever the ring is at. */
static void who_read_all_has_room_for_two_of_the_largest(void **state) {
  (void)state;
  const uint8_t *record;
  uint64_t got;
  for (uint32_t i = 0; i < 10000; i++) {
    uint64_t length = length_of(i);
    assert_non_null(ring_reserve(&out, length));
    ring_publish(&out, length);
    assert_int_equal(ring_peek(&in, &record, &got), 1);
    ring_release(&in);
    struct ring_out later = out;
    for (int two = 0; two < 2; two++) {
      assert_non_null(ring_reserve(&later, LARGEST));
      later.head += ring_units(LARGEST) * RING_UNIT;
    }
  }
}

static void consumed_is_not_believed_blindly(void **state) {
  (void)state;
  const uint64_t lies[] = {UINT64_MAX, RING + 1, RING * 2, 1ull << 63};
  while (ring_reserve(&out, QUARTER))
    ring_publish(&out, QUARTER);
  for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
    consumed = lies[i];
    assert_null(ring_reserve(&out, 1));
  }
  consumed = QUARTER;
  assert_non_null(ring_reserve(&out, QUARTER));
  consumed = 0;
  ring_publish(&out, QUARTER);
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
  ring_advance(&in, RING - RING_UNIT);
  word(in.tail, 2);
  assert_int_equal(ring_peek(&in, &record, &length), PERIGEE_PROTOCOL);
}

/* ---- Laps that end early --------------------------------------------------- */

enum { WIDE = 64 << 10, SHORT = 1000 };
static _Alignas(64) uint8_t wide[WIDE];

static int setup_wide(void **state) {
  (void)state;
  memset(wide, 0, sizeof wide);
  consumed = 0;
  ring_begin(&out, wide, WIDE, KEY, &consumed);
  ring_open(&in, wide, WIDE, KEY, &consumed);
  return 0;
}

/* Sends a record of that length; read: it is read as well. Returns where in the
 * ring it ends, 0 without room. */
static uint64_t pass(uint64_t length, bool read) {
  static uint8_t mark;
  const uint8_t *record;
  uint64_t got;
  uint8_t *room = ring_reserve(&out, length);
  if (!room)
    return 0;
  memset(room + 8, ++mark, length - 8);
  ring_publish(&out, length);
  if (read) {
    assert_int_equal(ring_peek(&in, &record, &got), 1);
    assert_int_equal(got, ring_units(length) * RING_UNIT);
    for (uint64_t i = 8; i < length; i++)
      assert_int_equal(record[i], mark);
    ring_release(&in);
  }
  return (uint64_t)(room - wide) + ring_units(length) * RING_UNIT;
}

/* Returns where the farthest of so many records ends that are read at once. */
static uint64_t farthest(int count, uint64_t length) {
  uint64_t most = 0;
  for (int i = 0; i < count; i++) {
    uint64_t end = pass(length, true);
    assert_true(end > 0);
    most = end > most ? end : most;
  }
  return most;
}

static void what_is_read_at_once_stays_at_the_start(void **state) {
  (void)state;
  assert_in_range(farthest(1000, SHORT), RING_LAP / 2, RING_LAP);
  assert_in_range(farthest(1000, 64), RING_LAP / 2, RING_LAP);
  assert_in_range(farthest(100, RING_LONG), RING_LAP / 2, RING_LAP);
  uint64_t used = out.head - out.left_out;
  assert_true(used < 1000 * (SHORT + 2 * 64 + RING_LAP / 8) + 200 * RING_LONG);
}

static void long_records_use_all_of_the_ring(void **state) {
  (void)state;
  assert_in_range(farthest(100, RING_LONG + 1), WIDE - 2 * RING_LONG, WIDE);
  assert_int_equal(out.left_out, 0);
  assert_in_range(farthest(100, SHORT), RING_LAP / 2, WIDE);
  assert_in_range(farthest(100, SHORT), RING_LAP / 2, RING_LAP);
}

static void what_is_not_read_uses_all_of_the_ring(void **state) {
  (void)state;
  uint64_t end, most = 0;
  while ((end = pass(SHORT, false)) > 0)
    most = end;
  assert_in_range(most, WIDE - 2 * SHORT, WIDE);
  assert_int_equal(out.left_out, 0);
}

/* Many may come at once again. */
static void after_a_full_ring_some_laps_are_whole(void **state) {
  (void)state;
  const uint8_t *record;
  uint64_t got;
  const int lap = WIDE / (int)(ring_units(SHORT) * RING_UNIT);
  while (pass(SHORT, false) > 0)
    ;
  while (ring_peek(&in, &record, &got) == 1)
    ring_release(&in);
  for (int i = 0; i < RING_WHOLE - 2; i++)
    assert_in_range(farthest(lap, SHORT), WIDE - 2 * SHORT, WIDE);
  farthest(4 * lap, SHORT);
  assert_in_range(farthest(lap, SHORT), RING_LAP / 2, RING_LAP);
}

/* It tells what it has read after a quarter of the ring. */
static void to_a_reader_that_seldom_tells_laps_are_whole(void **state) {
  (void)state;
  in.tell = WIDE / RING_SHARE;
  assert_in_range(farthest(1000, SHORT), WIDE - 2 * SHORT, WIDE);
}

static void records_are_whole_however_laps_end(void **state) {
  (void)state;
  const uint8_t *record;
  uint64_t got, waiting = 0;
  uint32_t dice = 1;
  for (int i = 0; i < 200000; i++) {
    dice = dice * 1664525 + 1013904223;
    uint64_t length = 8 + (dice >> 8) % (dice >> 31 ? 200 : 4000);
    bool fits = pass(length, waiting == 0 && dice >> 29 > 1) > 0;
    waiting += fits && (waiting > 0 || dice >> 29 <= 1);
    if (fits && (dice >> 20) % (i % 20000 < 10000 ? 2 : 40) > 0)
      continue;
    for (; waiting > 0; waiting--)
      assert_int_equal(ring_peek(&in, &record, &got), 1);
    ring_release(&in);
  }
  assert_true(out.left_out > 10 * WIDE);
}

/* ---- Moves ------------------------------------------------------------------ */

static _Alignas(64) uint8_t more[4 * RING];

static int setup_other(void **state) {
  setup(state);
  memset(more, 0, sizeof more);
  in.other = more;
  in.other_size = sizeof more;
  return 0;
}

static bool away(void) {
  return out.bytes == more;
}

static bool move(void) {
  return away() ? ring_move(&out, bytes, RING)
                : ring_move(&out, more, sizeof more);
}

/* Moves come at all positions, with records of both sides of them unread. */
static void records_go_on_where_the_ring_moves(void **state) {
  (void)state;
  uint32_t sent = 0, got = 0;
  uint64_t count = 0, left = 0;
  while (got < 20000) {
    bool put_one = false;
    while (put(sent)) {
      put_one = true;
      sent++;
      if (sent % 7 == 0 && ring_is_behind(&out, left) && move()) {
        left = out.head;
        count++;
      }
    }
    assert_true(put_one || sent > got);
    while (get(got))
      got++;
    assert_int_equal(got, sent);
    assert_ptr_equal(in.bytes, out.bytes);
  }
  assert_true(count > 1000);
}

static void a_move_is_told_at_the_next_release(void **state) {
  (void)state;
  assert_true(put(0));
  assert_true(move());
  assert_false(ring_is_behind(&out, out.head));
  assert_true(get(0));
  assert_false(get(1));
  assert_true(ring_release(&in));
  assert_true(ring_is_behind(&out, out.head));
}

static void a_full_ring_does_not_move(void **state) {
  (void)state;
  while (ring_reserve(&out, QUARTER))
    ring_publish(&out, QUARTER);
  assert_false(move());
  assert_false(away());
}

static void only_a_peer_that_lies_moves_again_before_that(void **state) {
  (void)state;
  const uint8_t *record;
  uint64_t length;
  assert_true(move());
  assert_int_equal(ring_peek(&in, &record, &length), 0);
  assert_true(move());
  assert_int_equal(ring_peek(&in, &record, &length), PERIGEE_PROTOCOL);
}

static void nobody_follows_without_other_memory(void **state) {
  (void)state;
  const uint8_t *record;
  uint64_t length;
  in.other = NULL;
  assert_true(move());
  assert_int_equal(ring_peek(&in, &record, &length), PERIGEE_PROTOCOL);
}

static void longs(struct ring_out *ring, uint64_t length, void *context) {
  assert_int_equal(length, RING_LONG + RING_UNIT);
  assert_ptr_equal(ring, &out);
  ++*(int *)context;
}

/* A short one asks nobody; nor does one for which there is room for sure. */
static void long_records_ask_a_few_times_a_lap(void **state) {
  (void)state;
  static _Alignas(64) uint8_t large[32 * RING];
  int asked = 0;
  ring_begin(&out, large, sizeof large, KEY, &consumed);
  out.longs = longs;
  out.context = &asked;
  for (int i = 0; i < 1000; i++) {
    assert_non_null(ring_reserve(&out, RING_LONG));
    ring_publish(&out, RING_LONG);
    consumed = out.head;
  }
  assert_int_equal(asked, 0);
  for (int i = 0; i < 1000; i++) {
    assert_non_null(ring_reserve(&out, RING_LONG + 1));
    ring_publish(&out, RING_LONG + 1);
    consumed = out.head;
  }
  assert_in_range(asked, 15, 3 * 17);
}

/* ---- Room that is lent ------------------------------------------------------ */

enum { LONGEST = WIDE / RING_SHARE, WIDER = 4 * WIDE };
static _Alignas(64) uint8_t wider[WIDER];
static uint64_t left; /* the position behind the last move */
static uint32_t leaves;

static bool lends_from(void) {
  return out.bytes == wider;
}

static bool goes(uint8_t *to, uint64_t size) {
  bool may = ring_is_behind(&out, left) && ring_move(&out, to, size);
  if (may)
    left = out.head;
  return may;
}

static bool stays;

static bool leave(struct ring_out *ring, void *context) {
  (void)context;
  assert_ptr_equal(ring, &out);
  leaves++;
  return !stays && goes(wide, WIDE);
}

/* A ring that has moved to where it lends room, with a reader that has told that
 * it followed. */
static int setup_lent(void **state) {
  setup_wide(state);
  memset(wider, 0, sizeof wider);
  out.leave = leave;
  in.other = wider;
  in.other_size = WIDER;
  left = leaves = 0;
  const uint8_t *record;
  uint64_t length;
  assert_true(goes(wider, WIDER));
  assert_int_equal(ring_peek(&in, &record, &length), 0);
  ring_release(&in);
  return 0;
}

static uint64_t long_of(uint32_t number) {
  return RING_LONG + 1 + number * 2654435761u % (LONGEST - RING_LONG);
}

static void fill(uint8_t *room, uint32_t number, uint64_t length) {
  memset(room + RING_UNIT, (uint8_t)number, length - RING_UNIT);
}

static bool is_filled(const uint8_t *room, uint32_t number, uint64_t length) {
  bool fine = true;
  for (uint64_t i = RING_UNIT; i < length; i++)
    fine &= room[i] == (uint8_t)number;
  return fine;
}

/* What stands in the first line is the ring's, until it is published. */
static uint8_t *lend(uint32_t number) {
  uint8_t *room = ring_lend(&out, long_of(number));
  if (room)
    fill(room, number, long_of(number));
  return room;
}

static bool put_long(uint32_t number) {
  uint8_t *room = ring_reserve(&out, long_of(number));
  if (!room)
    return false;
  fill(room, number, long_of(number));
  ring_publish(&out, long_of(number));
  return true;
}

static bool get_long(uint32_t number) {
  const uint8_t *record;
  uint64_t length;
  int got = ring_peek(&in, &record, &length);
  assert_in_range(got, 0, 1);
  if (got == 0)
    return false;
  assert_int_equal(length, ring_units(long_of(number)) * RING_UNIT);
  assert_true(is_filled(record, number, long_of(number)));
  ring_release(&in);
  return true;
}

static void publish_lent(uint32_t number) {
  assert_true(out.lends);
  ring_unlend(&out);
  ring_publish(&out, long_of(number));
}

/* There is none at the end of a lap, which is in every fourth at most. */
static void lent_room_becomes_the_record_where_it_is(void **state) {
  (void)state;
  uint32_t lent = 0;
  for (uint32_t i = 0; i < 1000; i++) {
    uint8_t *room = lend(i);
    lent += room != NULL;
    if (room) {
      assert_false(get_long(i));
      publish_lent(i);
      assert_ptr_equal(room, in.next);
    } else {
      assert_true(put_long(i));
    }
    assert_true(get_long(i));
  }
  assert_in_range(lent, 900, 999);
  assert_int_equal(leaves, 0);
}

static void room_that_is_given_back_holds_the_next_record(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 1000; i++) {
    uint8_t *room = lend(i);
    ring_unlend(&out);
    if (room)
      assert_ptr_equal(ring_reserve(&out, long_of(i)), room);
    assert_true(put_long(i));
    assert_true(get_long(i));
  }
}

static void short_room_is_not_lent(void **state) {
  (void)state;
  assert_null(ring_lend(&out, RING_LONG));
  assert_null(ring_lend(&out, ring_most(WIDER) + 1));
  assert_non_null(ring_lend(&out, RING_LONG + 1));
}

/* What a program writes beyond its room, before that is found, harms nobody. */
static void behind_lent_room_there_is_no_record(void **state) {
  (void)state;
  enum { READ = 12 };
  uint32_t sent = 0, seen = 0, lent = 0;
  for (; sent < READ; sent++, seen++) {
    assert_true(put_long(sent));
    assert_true(get_long(seen));
  }
  for (uint8_t *room; (room = lend(sent)) || put_long(sent); sent++) {
    if (!room)
      continue;
    memset(room + long_of(sent), 0xff, RING_STRAY);
    publish_lent(sent);
    lent++;
  }
  assert_in_range(lent, 1, sent - READ - 1);
  while (seen < sent)
    assert_true(get_long(seen++));
}

static void nobody_else_moves_a_ring_that_lends(void **state) {
  (void)state;
  assert_non_null(lend(0));
  assert_false(ring_move(&out, wide, WIDE));
  ring_unlend(&out);
  assert_true(ring_move(&out, wide, WIDE));
}

/* The room stays as it is, however much passes elsewhere. */
static void a_record_that_comes_first_has_the_ring_leave(void **state) {
  (void)state;
  enum { LENT = 7 };
  uint8_t *room = lend(LENT);
  assert_non_null(room);
  for (uint32_t i = 0; i < 1000; i++) {
    assert_true(put_long(i));
    assert_false(lends_from());
    assert_true(get_long(i));
  }
  assert_int_equal(leaves, 1);
  assert_true(is_filled(room, LENT, long_of(LENT)));
}

/* As that of this tree always can: but then nobody writes to the room. */
static void a_ring_that_cannot_leave_its_room_is_full(void **state) {
  (void)state;
  assert_non_null(lend(0));
  stays = true;
  assert_false(put_long(1));
  stays = false;
  assert_true(out.lends);
  publish_lent(0);
  assert_true(put_long(1));
  assert_true(get_long(0));
  assert_true(get_long(1));
}

/* The next number is lent, or not; and published where it is, or put. Another
 * comes first at times. */
static uint32_t some_lent(uint32_t sent, uint32_t dice, uint32_t *lent) {
  bool lends =
      dice >> 31 && lends_from() && ring_is_behind(&out, left) && lend(sent);
  if (!lends || dice >> 28 & 1) /* another comes first, or none is lent */
    return sent + put_long(sent);
  if (dice >> 27 & 1)
    publish_lent(sent);
  else
    ring_unlend(&out);
  *lent += dice >> 27 & 1;
  return sent + (dice >> 27 & 1);
}

static void records_are_whole_wherever_room_is_lent(void **state) {
  (void)state;
  uint32_t sent = 0, got = 0, dice = 1, lent = 0;
  while (sent < 50000) {
    dice = dice * 1664525 + 1013904223;
    sent = some_lent(sent, dice, &lent);
    while (dice >> 25 & 1 && get_long(got))
      got++;
    if (!lends_from() && dice >> 20 & 1)
      goes(wider, WIDER);
  }
  while (get_long(got))
    got++;
  assert_int_equal(got, sent);
  assert_true(lent > 1000 && leaves > 1000);
}

static bool moves; /* the producer does */
static uint32_t moved;

static void *produce(void *unused) {
  (void)unused;
  uint64_t left = 0;
  for (uint32_t sent = 0; sent < RECORDS;) {
    if (!put(sent))
      sched_yield();
    else if (++sent % 100 == 0 && moves && ring_is_behind(&out, left) &&
             move()) {
      left = out.head;
      moved++;
    }
  }
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

static void two_threads_and_a_ring_that_moves(void **state) {
  moves = true;
  two_threads(state);
  moves = false;
  assert_true(moved > 10);
}

static void *produce_lent(void *unused) {
  (void)unused;
  uint32_t dice = 1, lent = 0;
  for (uint32_t sent = 0; sent < RECORDS / 10;) {
    dice = dice * 1664525 + 1013904223;
    uint32_t before = sent;
    sent = some_lent(sent, dice, &lent);
    if (sent == before)
      sched_yield();
    else if (!lends_from() && dice >> 20 & 1)
      goes(wider, WIDER);
  }
  return NULL;
}

static void two_threads_and_room_that_is_lent(void **state) {
  (void)state;
  pthread_t producer;
  assert_int_equal(pthread_create(&producer, NULL, produce_lent, NULL), 0);
  for (uint32_t got = 0; got < RECORDS / 10;)
    if (get_long(got))
      got++;
    else
      sched_yield();
  pthread_join(producer, NULL);
  assert_true(leaves > 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(empty_gives_nothing, setup),
      cmocka_unit_test_setup(records_come_in_order_and_whole, setup),
      cmocka_unit_test_setup(full_takes_no_more, setup),
      cmocka_unit_test_setup(who_read_all_has_room_for_two_of_the_largest,
                             setup),
      cmocka_unit_test_setup(consumed_is_not_believed_blindly, setup),
      cmocka_unit_test_setup(wrong_words_are_not_records, setup),
      cmocka_unit_test_setup(two_threads, setup),
      cmocka_unit_test_setup(what_is_read_at_once_stays_at_the_start,
                             setup_wide),
      cmocka_unit_test_setup(long_records_use_all_of_the_ring, setup_wide),
      cmocka_unit_test_setup(what_is_not_read_uses_all_of_the_ring, setup_wide),
      cmocka_unit_test_setup(after_a_full_ring_some_laps_are_whole, setup_wide),
      cmocka_unit_test_setup(to_a_reader_that_seldom_tells_laps_are_whole,
                             setup_wide),
      cmocka_unit_test_setup(records_are_whole_however_laps_end, setup_wide),
      cmocka_unit_test_setup(records_go_on_where_the_ring_moves, setup_other),
      cmocka_unit_test_setup(a_move_is_told_at_the_next_release, setup_other),
      cmocka_unit_test_setup(a_full_ring_does_not_move, setup_other),
      cmocka_unit_test_setup(only_a_peer_that_lies_moves_again_before_that,
                             setup_other),
      cmocka_unit_test_setup(nobody_follows_without_other_memory, setup_other),
      cmocka_unit_test_setup(long_records_ask_a_few_times_a_lap, setup),
      cmocka_unit_test_setup(two_threads_and_a_ring_that_moves, setup_other),
      cmocka_unit_test_setup(lent_room_becomes_the_record_where_it_is,
                             setup_lent),
      cmocka_unit_test_setup(room_that_is_given_back_holds_the_next_record,
                             setup_lent),
      cmocka_unit_test_setup(short_room_is_not_lent, setup_lent),
      cmocka_unit_test_setup(behind_lent_room_there_is_no_record, setup_lent),
      cmocka_unit_test_setup(nobody_else_moves_a_ring_that_lends, setup_lent),
      cmocka_unit_test_setup(a_record_that_comes_first_has_the_ring_leave,
                             setup_lent),
      cmocka_unit_test_setup(a_ring_that_cannot_leave_its_room_is_full,
                             setup_lent),
      cmocka_unit_test_setup(records_are_whole_wherever_room_is_lent,
                             setup_lent),
      cmocka_unit_test_setup(two_threads_and_room_that_is_lent, setup_lent),
  };
  return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
