/* SPDX-License-Identifier: Apache-2.0
 *
 * room_test.c - requests that need a block while there is none: they wait for
 * it, later submissions wait behind them, and the caller's timeout decides.
 * room_flow_test.c has calls that wait for each other.
 */
#include "room.h"

enum { CALLS = 12 };

static void answer(struct pair *p, const struct perigee_event *e) {
  struct perigee_loan loan;
  assert_int_equal(
      perigee_reply_begin(p->engine[1], e->operation, e->capacity, &loan), 0);
  memset(loan.pointer, 7, e->capacity);
  assert_true(perigee_reply_commit(p->engine[1], e->operation, e->capacity) >=
              0);
}

/* Each request given to the program has room for its reply, however many
 * come. */
static void replies_beyond_the_pool_wait_for_room(void **state) {
  struct pair p;
  open(&p, state);
  /* What has to be copied to the caller takes its pool, too. */
  bool copied = strcmp(p.variant->transport, "tcp") == 0;
  const uint64_t length = copied ? POOL / CALLS / 2 : LARGE;
  for (int i = 0; i < CALLS; i++)
    call(&p, length, -1);
  for (int served = 0, ended = 0; ended < CALLS;)
    for (int side = 0; side < 2; side++) {
      struct perigee_event e;
      if (!next(&p, side, &e))
        continue;
      if (side == 1 && e.kind == PERIGEE_EVENT_REQUEST) {
        answer(&p, &e);
        served++;
      } else if (side == 0) {
        assert_int_equal(e.status, PERIGEE_OK);
        assert_int_equal(e.length, length);
        assert_int_equal(e.pointer[0], 7);
        assert_int_equal(e.pointer[length - 1], 7);
        assert_true(++ended <= served);
      }
    }
  drain(&p);
  pair_close(&p);
}

/* Unanswered calls, whose replies have taken all the room. */
static int fill_up(struct pair *p, struct perigee_event served[CALLS]) {
  int n = 0, op[CALLS];
  for (int i = 0; i < CALLS; i++)
    op[i] = call(p, LARGE, -1);
  for (int i = 0; i < 200; i++)
    n += next(p, 1, &served[n]);
  assert_true(n > 0 && n < CALLS);
  for (int i = n; i < CALLS; i++) {
    perigee_cancel(p->engine[0], op[i]);
    ended(p, 0, op[i], PERIGEE_CANCELLED);
  }
  nothing(p);
  return n;
}

static void empty(struct pair *p, const struct perigee_event *served, int n) {
  struct perigee_event e;
  for (int i = 0; i < n; i++) {
    answer(p, &served[i]);
    while (!next(p, 0, &e))
      ;
  }
  drain(p);
}

static void it_is_no_memory_when_the_time_is_nearly_over(void **state) {
  struct perigee_event served[CALLS];
  struct pair p;
  open(&p, state);
  int n = fill_up(&p, served);
  int op = call(&p, LARGE, 100000 * MS);
  nothing(&p);
  moved_on += 80000 * MS;
  nothing(&p);
  moved_on += 10000 * MS;
  struct perigee_event e = until(&p, 0, PERIGEE_EVENT_REPLY);
  assert_int_equal(e.operation, op);
  assert_int_equal(e.status, PERIGEE_NO_MEMORY);
  assert_true(e.length > 0);
  empty(&p, served, n);
  pair_close(&p);
}

/* Nor does a call that needs no room wait behind one that has given up. */
static void who_gives_up_makes_way(void **state) {
  struct perigee_event served[CALLS];
  struct pair p;
  open(&p, state);
  int n = fill_up(&p, served);
  int large = call(&p, LARGE, -1), small = call(&p, 0, -1);
  nothing(&p);
  perigee_cancel(p.engine[0], large);
  ended(&p, 0, large, PERIGEE_CANCELLED);
  struct perigee_event e = request(&p);
  struct perigee_message r = {.head = "x", .length = 1};
  perigee_reply(p.engine[1], e.operation, &r);
  ended(&p, 0, small, PERIGEE_OK);
  empty(&p, served, n);
  pair_close(&p);
}

/* The waiting call is the first to get room, and all its data arrives. */
static void room_that_comes_back_is_theirs(void **state) {
  struct perigee_event served[CALLS];
  struct pair p;
  open(&p, state);
  int n = fill_up(&p, served);
  int waits = call(&p, LARGE, -1);
  nothing(&p);
  answer(&p, &served[0]);
  until(&p, 0, PERIGEE_EVENT_REPLY);
  struct perigee_event e = request(&p);
  answer(&p, &e);
  assert_int_equal(until(&p, 0, PERIGEE_EVENT_REPLY).operation, waits);
  empty(&p, served + 1, n - 1);
  pair_close(&p);
}

/* A program may answer in other ways; if it asks for more than there is, it
 * is refused. */
static void room_that_is_not_used_is_given_back(void **state) {
  struct perigee_message r = {.head = "x", .length = 1};
  struct perigee_loan loan;
  struct pair p;
  open(&p, state);
  for (int i = 0; i < 4 * CALLS; i++) {
    int op = call(&p, LARGE, -1);
    struct perigee_event e = request(&p);
    if (i % 2) {
      assert_int_equal(
          perigee_reply_begin(p.engine[1], e.operation, LARGE, &loan), 0);
      assert_int_equal(perigee_reply_abort(p.engine[1], e.operation), 0);
    }
    assert_int_equal(perigee_reply(p.engine[1], e.operation, &r), 0);
    assert_int_equal(ended(&p, 0, op, PERIGEE_OK).length, 1);
  }
  int op = call(&p, 2 * POOL, -1);
  struct perigee_event e = request(&p);
  if (strcmp(p.variant->transport, "inproc") != 0) /* it has no limit */
    assert_true(perigee_reply_begin(p.engine[1], e.operation, 2 * POOL, &loan) <
                0);
  else
    perigee_reply_abort(p.engine[1], e.operation);
  perigee_reply(p.engine[1], e.operation, &r);
  ended(&p, 0, op, PERIGEE_OK);
  drain(&p);
  struct perigee_shares shares;
  perigee_shares_read(p.engine[1], NULL, &shares, sizeof shares);
  assert_int_equal(shares.exposed.used, 0);
  pair_close(&p);
}

/* Memory released by callers comes back after the next reply: what is in use
 * is what the callers have under way, however busy the server is. */
static void replies_that_were_taken_do_not_pile_up(void **state) {
  struct perigee_shares shares;
  struct perigee_event e;
  struct pair p;
  uint64_t most = 0;
  pair_open(&p, *state);
  for (int i = 0; i < 100; i++) {
    call(&p, LARGE, -1);
    e = request(&p);
    answer(&p, &e);
    perigee_shares_read(p.engine[1], p.session[1], &shares, sizeof shares);
    most = shares.exposed.used > most ? shares.exposed.used : most;
    until(&p, 0, PERIGEE_EVENT_REPLY);
    poll_side(&p, 0);
  }
  assert_true(most <= 4 * LARGE);
  drain(&p);
  pair_close(&p);
}

static void who_has_no_deadline_does_not_wait_for_ever(void **state) {
  struct perigee_event served[CALLS], e;
  struct pair p;
  open(&p, state);
  int n = fill_up(&p, served), op = call(&p, LARGE, -1);
  nothing(&p);
  for (int s = 0; s < 20; s++) {
    moved_on += 1000 * MS;
    nothing(&p);
  }
  moved_on += 11000 * MS;
  e = until(&p, 0, PERIGEE_EVENT_REPLY);
  assert_int_equal(e.operation, op);
  assert_int_equal(e.status, PERIGEE_NO_MEMORY);
  empty(&p, served, n);
  pair_close(&p);
}

/* Nor does a call time out while its server did other work before it came. */
static void time_before_a_call_is_none_of_its_own(void **state) {
  struct perigee_message r = {.head = "x", .length = 1};
  struct pair p;
  open(&p, state);
  nothing(&p);
  moved_on += 200000 * MS;
  call(&p, LARGE, 100000 * MS);
  struct perigee_event e = request(&p);
  assert_true(perigee_served_remaining(p.engine[1], e.operation) > 0);
  perigee_reply(p.engine[1], e.operation, &r);
  until(&p, 0, PERIGEE_EVENT_REPLY);
  pair_close(&p);
}

static void nor_is_it_time_that_was_waited_for_room(void **state) {
  struct perigee_event served[CALLS], e;
  struct pair p;
  open(&p, state);
  int n = fill_up(&p, served);
  moved_on += 40000 * MS;
  int op = call(&p, LARGE, -1);
  nothing(&p);
  perigee_cancel(p.engine[0], op);
  e = until(&p, 0, PERIGEE_EVENT_REPLY);
  assert_int_equal(e.status, PERIGEE_CANCELLED);
  empty(&p, served, n);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(replies_beyond_the_pool_wait_for_room),
      cmocka_unit_test(it_is_no_memory_when_the_time_is_nearly_over),
      cmocka_unit_test(who_gives_up_makes_way),
      cmocka_unit_test(room_that_comes_back_is_theirs),
      cmocka_unit_test(room_that_is_not_used_is_given_back),
      cmocka_unit_test(replies_that_were_taken_do_not_pile_up),
      cmocka_unit_test(who_has_no_deadline_does_not_wait_for_ever),
      cmocka_unit_test(time_before_a_call_is_none_of_its_own),
      cmocka_unit_test(nor_is_it_time_that_was_waited_for_room),
  };
  return RUN_MATRIX("room", tests);
}
