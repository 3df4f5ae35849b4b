/* SPDX-License-Identifier: Apache-2.0
 *
 * room_flow_test.c - calls that need blocks which other calls have, both ways,
 * for their heads and for their replies: none waits for ever.
 */
#include <stdlib.h>

#include "room.h"

/* ---- Both ways ----------------------------------------------------------- */

struct flow {
  struct pair *p;
  uint64_t length, capacity;
  int wanted, sent[2], served[2], ended[2], refused[2];
};

/* Makes as many loans as are possible now. */
static void lend(struct flow *f, int side) {
  struct perigee_session *s = f->p->session[side];
  struct perigee_loan loan;
  struct perigee_message m = {.timeout = -1, .capacity = f->capacity};
  while (f->sent[side] < f->wanted &&
         perigee_call_begin(s, f->length, &loan) == PERIGEE_OK) {
    memset(loan.pointer, side, f->length);
    if (perigee_call_commit(s, &m, f->length) < 0)
      return;
    f->sent[side]++;
  }
}

/* Answers with a loan of all that the caller takes, or with a byte if there
 * is none. */
static void serve(struct flow *f, int side, const struct perigee_event *e) {
  struct perigee_engine *engine = f->p->engine[side];
  struct perigee_message r = {.head = "x", .length = 1};
  struct perigee_loan loan;
  f->served[side]++;
  assert_int_equal(e->pointer[e->length - 1], 1 - side);
  if (perigee_reply_begin(engine, e->operation, e->capacity, &loan) == 0)
    perigee_reply_commit(engine, e->operation, e->capacity);
  else
    perigee_reply(engine, e->operation, &r);
}

static void flow_both_ways(struct flow *f) {
  struct perigee_event e;
  int64_t end = clock_now() + 20000 * MS;
  while (f->ended[0] + f->ended[1] < 2 * f->wanted)
    for (int side = 0; side < 2; side++) {
      lend(f, side);
      bool any = next(f->p, side, &e);
      if (any && e.kind == PERIGEE_EVENT_REQUEST)
        serve(f, side, &e);
      else if (any)
        f->refused[side] += e.status != PERIGEE_OK || e.length < f->capacity;
      f->ended[side] += any && e.kind == PERIGEE_EVENT_REPLY;
      if (clock_now() > end)
        fail_msg("%d and %d calls served, %d and %d ended of %d", f->served[0],
                 f->served[1], f->ended[0], f->ended[1], f->wanted);
    }
  drain(f->p);
}

/* Each side would fill the pool with loans if it could. */
static void calls_both_ways_find_room_for_their_replies(void **state) {
  struct pair p;
  open(&p, state);
  struct flow f = {
      .p = &p, .length = LARGE / 4, .capacity = LARGE / 4, .wanted = 64};
  flow_both_ways(&f);
  assert_int_equal(f.refused[0] + f.refused[1], 0);
  pair_close(&p);
}

/* Each side has lent the other a little of the memory that the other's reply
 * needs as a whole. */
static void rooms_that_what_is_lent_keeps_are_not_waited_for(void **state) {
  struct pair p;
  open(&p, state);
  struct flow f = {
      .p = &p, .length = LARGE / 4, .capacity = POOL / 2 + 1, .wanted = 8};
  flow_both_ways(&f);
  pair_close(&p);
}

/* Nor do staged requests (whose caller's memory cannot be read by peers)
 * take the blocks that replies need. */
static void staged_calls_both_ways_find_room_for_their_replies(void **state) {
  enum { STAGED = 16 };
  struct pair p;
  struct perigee_event e;
  int ends = 0;
  open(&p, state);
  uint8_t *bytes = pattern(LARGE / 8, 1);
  for (int i = 0; i < 2 * STAGED; i++) {
    struct perigee_message m = {.head = bytes,
                                .length = LARGE / 8,
                                .capacity = LARGE / 4,
                                .timeout = -1};
    assert_true(perigee_call(p.session[i % 2], &m) >= 0);
  }
  for (int64_t end = clock_now() + 20000 * MS; ends < 2 * STAGED;)
    for (int side = 0; side < 2; side++) {
      assert_true(clock_now() < end);
      if (!next(&p, side, &e))
        continue;
      ends += e.kind == PERIGEE_EVENT_REPLY;
      if (e.kind == PERIGEE_EVENT_REQUEST) {
        assert_memory_equal(e.pointer, bytes, LARGE / 8);
        perigee_reply_begin(p.engine[side], e.operation, e.capacity,
                            &(struct perigee_loan){0});
        assert_true(
            perigee_reply_commit(p.engine[side], e.operation, e.capacity) >= 0);
      } else {
        assert_int_equal(e.status, PERIGEE_OK);
      }
    }
  free(bytes);
  drain(&p);
  pair_close(&p);
}

/* Half of the pool is for that. */
static void a_request_that_would_leave_no_room_is_not_lent(void **state) {
  struct perigee_loan loan;
  struct pair p;
  open(&p, state);
  assert_int_equal(perigee_call_begin(p.session[0], POOL / 2 + 1, &loan),
                   PERIGEE_TOO_LARGE);
  assert_int_equal(perigee_call_begin(p.session[0], POOL / 2, &loan), 0);
  assert_int_equal(perigee_call_abort(p.session[0]), 0);
  pair_close(&p);
}

/* ---- Heads that are pulled ------------------------------------------------ */

static int call_with(struct perigee_session *s, uint64_t head, uint64_t room) {
  static uint8_t bytes[POOL];
  struct perigee_message m = {
      .head = bytes, .length = head, .capacity = room, .timeout = -1};
  int op = perigee_call(s, &m);
  assert_true(op >= 0);
  return op;
}

static void until_answered(struct pair *p, int calls) {
  struct perigee_message r = {.head = "x", .length = 1};
  struct perigee_event e;
  for (int64_t end = clock_now() + 20000 * MS; calls > 0;) {
    assert_true(clock_now() < end);
    if (next(p, 1, &e))
      perigee_reply(p->engine[1], e.operation, &r);
    if (next(p, 0, &e))
      calls -= e.kind == PERIGEE_EVENT_REPLY;
  }
  drain(p);
}

/* The head and the reply may each have a block, but not both at once. */
static void no_request_waits_for_itself(void **state) {
  static const uint64_t head[] = {MIB,     MIB,     MIB + MIB / 2,
                                  2 * MIB, 3 * MIB, 64},
                        room[] = {MIB,     2 * MIB + 1, 2 * MIB,
                                  2 * MIB, 64,          3 * MIB};
  struct pair p;
  open(&p, state);
  for (int i = 0; i < 6; i++) {
    call_with(p.session[0], head[i], room[i]);
    until_answered(&p, 1);
  }
  pair_close(&p);
}

/* Neither of two calls gets room for its reply while it waits for its
 * head's, though the other's would do. */
static void no_sessions_wait_for_each_other(void **state) {
  struct perigee_message r = {.head = "x", .length = 1};
  struct perigee_session *s[2][2];
  struct perigee_event first;
  struct pair p;
  open(&p, state);
  call(&p, LARGE, -1);
  first = request(&p);
  for (int i = 0; i < 2; i++)
    pair_dial(&p, s[i]);
  for (int i = 0; i < 2; i++)
    call_with(s[i][0], LARGE + LARGE / 2, LARGE);
  nothing(&p);
  perigee_reply(p.engine[1], first.operation, &r);
  until_answered(&p, 3);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(calls_both_ways_find_room_for_their_replies),
      cmocka_unit_test(rooms_that_what_is_lent_keeps_are_not_waited_for),
      cmocka_unit_test(staged_calls_both_ways_find_room_for_their_replies),
      cmocka_unit_test(a_request_that_would_leave_no_room_is_not_lent),
      cmocka_unit_test(no_request_waits_for_itself),
      cmocka_unit_test(no_sessions_wait_for_each_other),
  };
  return RUN_MATRIX("room_flow", tests);
}
