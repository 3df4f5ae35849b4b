/* SPDX-License-Identifier: Apache-2.0
 *
 * lanes_broken_test.c - sessions whose second lane breaks while something is
 * under way there, by itself or with the session.
 */
#include <string.h>

#include "lanes_support.h"

static void call_broken(void **state, int dialed) {
  struct pair p;
  struct places s;
  link_open_places(&p, *state, &s);
  int call = places_call(&p, &s);
  quiet(&p, 8);
  perigee_inproc_break(dialed);
  struct perigee_event e = ended(&p, 0, call, PERIGEE_PEER_LOST);
  assert_non_null(strstr((const char *)e.pointer, "the lane link is lost: "));
  until(&p, 1, PERIGEE_EVENT_ABANDONED);
  link_goes_on(&p);
  link_close_places(&p, &s);
}

static void a_call_ends_once_where_its_receivers_half_breaks(void **state) {
  call_broken(state, 0);
}

static void a_call_ends_once_where_its_owners_half_breaks(void **state) {
  call_broken(state, 1);
}

static void a_reply_ends_once_where_it_breaks(void **state) {
  struct pair p;
  struct places s;
  link_open_places(&p, *state, &s);
  int call = places_call(&p, &s);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  struct perigee_slice reply = all_of(s.to, LARGE);
  struct perigee_message r = typed_message(&reply, NULL);
  assert_int_equal(perigee_reply(p.engine[1], e.operation, &r), 1);
  for (int i = 0; i < 8; i++) {
    poll_side(&p, 0);
    poll_side(&p, 1);
  }
  perigee_inproc_break(1);
  ended(&p, 0, call, PERIGEE_PEER_LOST);
  until(&p, 1, PERIGEE_EVENT_SENT);
  link_goes_on(&p);
  link_close_places(&p, &s);
}

static void a_transfer_ends_once_where_it_breaks(void **state) {
  for (int dialed = 0; dialed < 2; dialed++) {
    struct pair p;
    struct sides s;
    link_open_sides(&p, *state, &s);
    struct perigee_transfer t = sides_item(&s, 0, LARGE);
    int op = perigee_transfer(p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, -1);
    quiet(&p, 8);
    perigee_inproc_break(dialed);
    ended(&p, 0, op, PERIGEE_PEER_LOST);
    fill_byte(s.there, 3);
    quiet(&p, 50);
    all_byte(s.there, 3);
    link_goes_on(&p);
    sides_move(&p, PERIGEE_OP_WRITE, &t, 1, 0); /* its owner does it */
    same(s.there, 0, s.bytes, LARGE);
    link_close_sides(&p, &s);
  }
}

static struct perigee_event any(struct pair *p, int side) {
  struct perigee_event e;
  int64_t end = clock_now() + 5000 * MS;
  while (!taken(p, side, &e)) {
    assert_true(clock_now() < end);
    poll_side(p, 0);
    poll_side(p, 1);
  }
  return e;
}

static void the_sessions_end_ends_what_is_under_way(void **state) {
  for (int closes = 0; closes < 2; closes++) {
    struct pair p;
    struct sides s;
    struct places c;
    link_open_sides(&p, *state, &s);
    places_open(&p, &c, LARGE);
    struct perigee_transfer t = sides_item(&s, 0, LARGE);
    places_call(&p, &c);
    perigee_transfer(p.session[0], PERIGEE_OP_READ, &t, 1, 0, -1);
    quiet(&p, 4);
    perigee_session_close(p.session[closes]);
    int kinds = 0; /* each comes when its own copies have ended */
    for (int i = 0; i < 2; i++) {
      struct perigee_event e = any(&p, 0);
      assert_int_equal(e.status, closes ? PERIGEE_PEER_LOST : PERIGEE_CLOSED);
      kinds |= 1 << e.kind;
    }
    assert_int_equal(kinds, 1 << PERIGEE_EVENT_DONE | 1 << PERIGEE_EVENT_REPLY);
    until(&p, 0, PERIGEE_EVENT_LOST);
    until(&p, 1, PERIGEE_EVENT_ABANDONED);
    until(&p, 1, PERIGEE_EVENT_LOST);
    sides_close(&p, &s);
    places_close(&p, &c);
    pair_close(&p);
  }
}

static void faults_are_injected_into_it_alone(void **state) {
  struct perigee_options o;
  struct pair p;
  link_options(*state, &o);
  o.faults = "delay=100us seed=3";
  pair_open_with(&p, *state, &o);
  link_round_trip(&p, LARGE);
  link_counts(&p, 1, 1, 0);
  perigee_inproc_break(0);
  link_goes_on(&p);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER_ALL(a_call_ends_once_where_its_receivers_half_breaks),
      OVER_ALL(a_call_ends_once_where_its_owners_half_breaks),
      OVER_ALL(a_reply_ends_once_where_it_breaks),
      OVER_ALL(a_transfer_ends_once_where_it_breaks),
      OVER_ALL(the_sessions_end_ends_what_is_under_way),
      OVER_ALL(faults_are_injected_into_it_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
