/* SPDX-License-Identifier: Apache-2.0
 *
 * calls_test.c - calls and their replies: heads of every size, loans, slices
 * that land where the receiver says, and what is refused.
 */
#include "support.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t sizes[] = {0,    1,           63,     64,    8191,
                                 8192, 8193,        65535,  65536, 65537,
                                 MIB,  5 * MIB + 3, 8 * MIB};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* {7} as string.buffer writes it. */
static const uint8_t seven[] = {7, 0, 0, 0, 0, 0, 0, 28, 64};

static void all_sent(struct pair *p, int reply) {
  assert_true(reply >= 0);
  if (reply == 1)
    assert_int_equal(until(p, 1, PERIGEE_EVENT_SENT).status, 0);
}

/* ---- Raw heads ---------------------------------------------------------- */

/* Answered with the request's own view. */
static void echo(struct pair *p, uint64_t length) {
  uint8_t *bytes = pattern(length, (uint8_t)length);
  struct perigee_message m = {.method = 3,
                              .head = bytes,
                              .length = length,
                              .code = length + 1,
                              .timeout = 60000 * MS};
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.method, 3);
  assert_int_equal(e.code, length + 1);
  assert_int_equal(e.length, length);
  assert_true(e.remaining > 0 && e.remaining <= 60000 * MS);
  assert_memory_equal(e.pointer, bytes, length);
  struct perigee_message r = {
      .head = e.pointer, .length = e.length, .code = 99};
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  struct perigee_event back = ended(p, 0, call, 0);
  assert_int_equal(back.length, length);
  assert_int_equal(back.code, 99);
  assert_memory_equal(back.pointer, bytes, length);
  all_sent(p, sent);
  free(bytes);
}

static void calls_of_every_size_come_back(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < SIZES; i++)
    echo(&p, sizes[i]);
  pair_close(&p);
}

/* A raw reply lands in `into`; a raw head may be a slice. */
static void raw_into(struct pair *p, uint64_t length) {
  struct perigee_region *from = region_of(p, 0, NULL, length, 0);
  struct perigee_region *into = region_of(p, 0, NULL, length + 8, 0);
  uint8_t *bytes = pattern(length, 3);
  fill(from, 0, bytes, length);
  fill_byte(into, 0xee);
  struct perigee_message m = {.slice = all_of(from, length),
                              .into = all_of(into, length + 8),
                              .timeout = -1};
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.length, length);
  assert_memory_equal(e.pointer, bytes, length);
  struct perigee_message r = {.head = e.pointer, .length = e.length};
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  e = ended(p, 0, call, 0);
  assert_int_equal(e.slice, length);
  all_sent(p, sent);
  same(into, 0, bytes, length);
  same(into, length, "\xee\xee\xee\xee\xee\xee\xee\xee", 8);
  settle(p);
  region_end(from);
  region_end(into);
  free(bytes);
}

static void raw_slices_come_back_into_place(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < SIZES; i++)
    raw_into(&p, sizes[i]);
  pair_close(&p);
}

/* ---- Loans -------------------------------------------------------------- */

static void loaned(struct pair *p, uint64_t length) {
  uint8_t *bytes = pattern(length, 9);
  struct perigee_loan loan;
  struct perigee_message m = {.method = 5, .capacity = length, .timeout = -1};
  assert_int_equal(perigee_call_begin(p->session[0], length, &loan), 0);
  memcpy(loan.pointer, bytes, length);
  int call = perigee_call_commit(p->session[0], &m, length);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.capacity, length);
  assert_memory_equal(e.pointer, bytes, length);
  assert_int_equal(
      perigee_reply_begin(p->engine[1], e.operation, length, &loan), 0);
  memcpy(loan.pointer, e.pointer, length);
  int sent = perigee_reply_commit(p->engine[1], e.operation, length);
  struct perigee_event back = ended(p, 0, call, 0);
  assert_memory_equal(back.pointer, bytes, length);
  all_sent(p, sent);
  free(bytes);
}

static void loans_go_both_ways(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int round = 0; round < 3; round++)
    for (int i = 0; i < SIZES; i++)
      loaned(&p, sizes[i]);
  pair_close(&p);
}

static void loans_can_be_given_back(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_loan loan, other;
  for (int i = 0; i < SIZES; i++) {
    assert_int_equal(perigee_call_begin(p.session[0], sizes[i], &loan), 0);
    assert_int_equal(perigee_call_begin(p.session[0], 1, &other),
                     PERIGEE_INVALID);
    perigee_call_abort(p.session[0]);
    echo(&p, sizes[i]);
  }
  struct perigee_message m = {.timeout = -1}, r = {.head = "x", .length = 1};
  for (int i = 0; i < SIZES; i++) {
    int call = perigee_call(p.session[0], &m);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    assert_int_equal(
        perigee_reply_begin(p.engine[1], e.operation, sizes[i], &loan), 0);
    perigee_reply_abort(p.engine[1], e.operation);
    assert_int_equal(perigee_reply(p.engine[1], e.operation, &r), 0);
    assert_int_equal(ended(&p, 0, call, 0).length, 1);
  }
  pair_close(&p);
}

/* ---- Slices ------------------------------------------------------------- */

struct places {
  struct perigee_region *from, *to, *back;
  uint64_t room;
};

static void places_open(struct pair *p, struct places *s, uint64_t length,
                        const uint8_t *bytes) {
  s->room = length + 16;
  s->from = region_of(p, 0, NULL, s->room, 0);
  s->back = region_of(p, 0, NULL, s->room, 0);
  s->to = region_of(p, 1, NULL, s->room, 0);
  fill(s->from, 0, bytes, length);
}

static void places_close(struct pair *p, struct places *s) {
  settle(p);
  region_end(s->from);
  region_end(s->back);
  region_end(s->to);
}

/* A typed call with a slice both ways: landing there, `into` here. */
static void landed(struct pair *p, uint64_t length) {
  struct places s;
  uint8_t *bytes = pattern(length, 77);
  places_open(p, &s, length, bytes);
  struct perigee_message m = {.method = 1,
                              .flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = all_of(s.from, length),
                              .into = all_of(s.back, s.room),
                              .timeout = -1};
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_LANDING);
  assert_int_equal(e.slice, length);
  assert_memory_equal(e.pointer, seven, sizeof seven);
  struct perigee_slice place = all_of(s.to, s.room), tiny = all_of(s.to, 0);
  if (length > 0)
    assert_int_equal(perigee_land(p->engine[1], e.operation, &tiny),
                     PERIGEE_TOO_LARGE);
  assert_int_equal(perigee_land(p->engine[1], e.operation, &place), 0);
  e = until(p, 1, PERIGEE_EVENT_REQUEST);
  same(s.to, 0, bytes, length);
  struct perigee_message r = {.flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = all_of(s.to, length)};
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  e = ended(p, 0, call, 0);
  assert_int_equal(e.slice, length);
  same(s.back, 0, bytes, length);
  all_sent(p, sent);
  places_close(p, &s);
  free(bytes);
}

static void slices_land_where_the_receiver_says(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < SIZES; i++)
    landed(&p, sizes[i]);
  pair_close(&p);
}

/* Nobody names a place on either side. */
static void pooled(struct pair *p, uint64_t length) {
  struct places s;
  uint8_t *bytes = pattern(length, 41);
  places_open(p, &s, length, bytes);
  struct perigee_message m = {.flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = all_of(s.from, length),
                              .timeout = -1};
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_LANDING);
  struct perigee_slice none = {0};
  assert_int_equal(perigee_land(p->engine[1], e.operation, &none), 0);
  e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_true(e.flags & PERIGEE_POOLED);
  assert_int_equal(e.slice, length);
  assert_memory_equal(e.landed, bytes, length);
  perigee_pool_free(p->engine[1], e.landed);
  fill(s.to, 0, bytes, length);
  struct perigee_message r = {.flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = all_of(s.to, length)};
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  e = ended(p, 0, call, 0);
  assert_true(e.flags & PERIGEE_POOLED);
  assert_memory_equal(e.landed, bytes, length);
  perigee_pool_free(p->engine[0], e.landed);
  all_sent(p, sent);
  places_close(p, &s);
  free(bytes);
}

static void slices_without_a_place_are_pooled(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < SIZES; i++)
    pooled(&p, sizes[i]);
  pair_close(&p);
}

/* Blocks with holes on both sides; the holes stay. */
static void strided(struct pair *p, uint64_t block, uint64_t count) {
  struct places s;
  uint64_t total = block * count;
  uint8_t *bytes = pattern(2 * total, 5);
  places_open(p, &s, 2 * total, bytes);
  fill_byte(s.to, 0xaa);
  struct perigee_message m = {.flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .timeout = -1,
                              .slice = {{s.from}, 0, block, count, 2 * block}};
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_LANDING);
  struct perigee_slice place = {{s.to}, 0, block / 2, 2 * count, block};
  assert_int_equal(perigee_land(p->engine[1], e.operation, &place), 0);
  e = until(p, 1, PERIGEE_EVENT_REQUEST);
  for (uint64_t i = 0; i < 2 * count; i++) {
    uint64_t at = i / 2 * 2 * block + i % 2 * (block / 2);
    same(s.to, i * block, bytes + at, block / 2);
    same(s.to, i * block + block / 2, "\xaa\xaa\xaa\xaa", 4);
  }
  struct perigee_message r = {.status = PERIGEE_REMOTE};
  all_sent(p, perigee_reply(p->engine[1], e.operation, &r));
  ended(p, 0, call, PERIGEE_REMOTE);
  places_close(p, &s);
  free(bytes);
}

static void strided_slices_land_in_strides(void **state) {
  struct pair p;
  pair_open(&p, *state);
  strided(&p, 64, 10);
  strided(&p, 64, 1000);
  strided(&p, 30000, 100);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(calls_of_every_size_come_back),
      cmocka_unit_test(raw_slices_come_back_into_place),
      cmocka_unit_test(loans_go_both_ways),
      cmocka_unit_test(loans_can_be_given_back),
      cmocka_unit_test(slices_land_where_the_receiver_says),
      cmocka_unit_test(slices_without_a_place_are_pooled),
      cmocka_unit_test(strided_slices_land_in_strides),
  };
  return RUN_MATRIX("calls", tests);
}
