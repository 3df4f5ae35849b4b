/* SPDX-License-Identifier: Apache-2.0
 *
 * lanes_test.c - sessions with a second lane, which carries payloads and
 * one-sided copies of opaque memory beside shared memory, TCP or the in-process
 * transport: what goes over it, and which side chooses.
 */
#include <stdlib.h>
#include <string.h>

#include "lanes_support.h"

static void payloads_go_over_it_both_ways(void **state) {
  struct pair p;
  link_open(&p, *state);
  link_round_trip(&p, LARGE);
  link_counts(&p, 0, 1, 0);
  link_counts(&p, 1, 1, 0);
  link_says(&p, 0,
            "link: payloads and one-sided copies of opaque memory, from 4096 "
            "bytes on;");
  pair_close(&p);
}

static void short_payloads_and_those_of_the_host_take_the_first(void **state) {
  struct pair p;
  link_open(&p, *state);
  link_round_trip(&p, LEAST - 1);
  link_counts(&p, 1, 0, 0);
  link_round_trip(&p, LEAST);
  link_counts(&p, 1, 1, 0);
  const struct variant host = {"host", p.variant->transport, "host", 1,
                               p.variant->how};
  p.variant = &host;
  link_round_trip(&p, LARGE);
  link_counts(&p, 1, 1, 0);
  pair_close(&p);
}

static void messages_go_over_it(void **state) {
  struct pair p;
  struct places s;
  link_open_places(&p, *state, &s);
  struct perigee_slice from = all_of(s.from, LARGE), to = all_of(s.to, LARGE);
  int recv = perigee_recv(p.session[1], &to, -1);
  int send = perigee_send(p.session[0], &from, -1);
  ended(&p, 0, send, 0);
  assert_int_equal(ended(&p, 1, recv, 0).length, LARGE);
  same(s.to, 0, s.bytes, LARGE);
  link_counts(&p, 1, 1, 0);
  link_close_places(&p, &s);
}

/* ---- One-sided ----------------------------------------------------------- */

static void transfers_go_over_it_both_ways(void **state) {
  struct pair p;
  struct sides s;
  link_open_sides(&p, *state, &s);
  struct perigee_transfer t = sides_item(&s, 0, LARGE);
  sides_move(&p, PERIGEE_OP_WRITE, &t, 1, 0);
  same(s.there, 0, s.bytes, LARGE);
  fill_byte(s.here, 0);
  sides_move(&p, PERIGEE_OP_READ, &t, 1, 0);
  same(s.here, 0, s.bytes, LARGE);
  link_counts(&p, 0, 0, 2);
  link_close_sides(&p, &s);
}

/* Three remote places get the bytes of four local ones. The last one is too short
 * for the link: its owner writes it. */
static void lists_go_over_it_place_by_place(void **state) {
  struct pair p;
  struct sides s;
  link_open_sides(&p, *state, &s);
  const uint64_t from[4][2] = {
      {200000, 9000}, {0, 5000}, {100, 30000}, {50000, 6000}};
  const uint64_t to[3][2] = {{100000, 20000}, {1, 27000}, {60000, 3000}};
  struct perigee_slice local[4], remote[3];
  uint8_t *want = calloc(1, LARGE), *row = malloc(50000);
  struct perigee_transfer t = sides_item(&s, 0, 0);
  for (int i = 0, at = 0; i < 4; at += (int)from[i++][1]) {
    local[i] =
        (struct perigee_slice){{s.here}, from[i][0], from[i][1], 1, from[i][1]};
    memcpy(row + at, s.bytes + from[i][0], from[i][1]);
  }
  for (int i = 0, at = 0; i < 3; at += (int)to[i++][1]) {
    remote[i] = t.remote;
    remote[i].offset = to[i][0];
    remote[i].length = remote[i].stride = to[i][1];
    memcpy(want + to[i][0], row + at, to[i][1]);
  }
  t.local = perigee_list(local, 4);
  t.remote = perigee_list(remote, 3);
  fill_byte(s.there, 0);
  sides_move(&p, PERIGEE_OP_WRITE, &t, 1, 0);
  same(s.there, 0, want, LARGE);
  link_counts(&p, 0, 0, 2);
  free(want);
  free(row);
  link_close_sides(&p, &s);
}

static void strides_and_offsets_mean_what_they_say(void **state) {
  struct pair p;
  struct sides s;
  link_open_sides(&p, *state, &s);
  fill_byte(s.there, 1);
  struct perigee_transfer t = sides_item(&s, 0, 0);
  t.local = (struct perigee_slice){{s.here}, 100, 1000, 10, 2000};
  t.remote.offset = 7;
  t.remote.length = 2500;
  t.remote.count = 4;
  t.remote.stride = 3000;
  sides_move(&p, PERIGEE_OP_WRITE, &t, 1, 0);
  for (uint64_t i = 0; i < 10000; i += 500)
    same(s.there, 7 + i / 2500 * 3000 + i % 2500,
         s.bytes + 100 + i / 1000 * 2000 + i % 1000, 500);
  link_counts(&p, 0, 0, 1);
  link_close_sides(&p, &s);
}

/* One batch whose items go over the second lane, the first, and by the
 * owner. */
static void a_batch_takes_all_of_them(void **state) {
  struct pair p;
  struct sides s, h;
  link_open_sides(&p, *state, &s);
  const struct variant host = {"host", p.variant->transport, "host", 1, NULL};
  const struct variant *opaque = p.variant;
  p.variant = &host;
  sides_open(&p, &h, "host");
  p.variant = opaque;
  struct perigee_transfer t[] = {
      sides_item(&s, 0, 100000), sides_item(&h, 0, 100000),
      sides_item(&s, 100000, 100), sides_item(&s, 100100, 100000),
      sides_item(&h, 200000, 9)};
  sides_move(&p, PERIGEE_OP_WRITE, t, 5, 0);
  same(s.there, 0, s.bytes, 200100);
  same(h.there, 0, h.bytes, 100000);
  same(h.there, 200000, h.bytes + 200000, 9);
  link_counts(&p, 0, 0, 2);
  sides_close(&p, &s);
  sides_close(&p, &h);
  pair_close(&p);
}

static void a_region_that_was_closed_is_stale(void **state) {
  struct pair p;
  struct sides s;
  link_open_sides(&p, *state, &s);
  struct perigee_transfer t = sides_item(&s, 0, LARGE);
  int op = perigee_transfer(p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, -1);
  assert_int_equal(perigee_region_close(s.there, false), PERIGEE_AGAIN);
  ended(&p, 0, op, 0); /* it waited for this, as a fence does */
  assert_int_equal(perigee_region_close(s.there, false), 0);
  sides_move(&p, PERIGEE_OP_WRITE, &t, 1, PERIGEE_STALE);
  region_end(s.here);
  free(s.bytes);
  pair_close(&p);
}

static void what_is_given_up_leaves_memory_alone(void **state) {
  struct pair p;
  struct sides s;
  link_open_sides(&p, *state, &s);
  struct perigee_transfer t = sides_item(&s, 0, LARGE);
  int op = perigee_transfer(p.session[0], PERIGEE_OP_READ, &t, 1, 0, -1);
  quiet(&p, 8);
  perigee_cancel(p.engine[0], op);
  ended(&p, 0, op, PERIGEE_CANCELLED);
  fill_byte(s.here, 3);
  quiet(&p, 50);
  all_byte(s.here, 3);
  sides_close(&p, &s);

  struct places c;
  places_open(&p, &c, LARGE);
  fill_byte(c.from, 1);
  int call = places_call(&p, &c);
  quiet(&p, 8);
  perigee_cancel(p.engine[0], call);
  ended(&p, 0, call, PERIGEE_CANCELLED);
  fill_byte(c.from, 200);
  until(&p, 1, PERIGEE_EVENT_ABANDONED);
  none_byte(c.to, 200);
  places_close(&p, &c);
  pair_close(&p);
}

static void what_of_an_ended_session_is_under_way_has_ended(void **state) {
  for (int i = 0; i < 4; i++) {
    struct pair p;
    struct sides s;
    link_open_sides(&p, *state, &s);
    int side = i & 1, operation = 1 + i / 2;
    struct perigee_transfer t = sides_item(&s, 0, LARGE);
    assert_true(perigee_transfer(p.session[0], operation, &t, 1, 0, -1) >= 0);
    quiet(&p, 8);
    perigee_session_free(p.session[side]);
    if (side == 0) /* the list is ours again */
      memset(&t, 0xdd, sizeof t);
    region_end(side ? s.there : s.here);
    pair_drop(&p);
    free(s.bytes);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER_ALL(payloads_go_over_it_both_ways),
      OVER_ALL(short_payloads_and_those_of_the_host_take_the_first),
      OVER_ALL(messages_go_over_it),
      OVER_ALL(transfers_go_over_it_both_ways),
      OVER_ALL(lists_go_over_it_place_by_place),
      OVER_ALL(strides_and_offsets_mean_what_they_say),
      OVER_ALL(a_batch_takes_all_of_them),
      OVER_ALL(a_region_that_was_closed_is_stale),
      OVER_ALL(what_is_given_up_leaves_memory_alone),
      OVER_ALL(what_of_an_ended_session_is_under_way_has_ended),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
