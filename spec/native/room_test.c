/* SPDX-License-Identifier: Apache-2.0
 *
 * room_test.c - requests that need a block while there is none: they wait for
 * it, later submissions wait behind them, and the caller's timeout decides.
 */
#include <stdlib.h>
#include <string.h>

#include "support.h"

enum { POOL = 4 * MIB, LARGE = MIB, SMALL = 100, CALLS = 12 };

static int64_t moved_on; /* ns, by a test */

static int64_t own_clock(void *context) {
  (void)context;
  return clock_now() + moved_on;
}

static void open(struct pair *p, void **state) {
  struct perigee_options o;
  variant_options(*state, &o);
  o.pool = POOL;
  o.clock = own_clock;
  pair_open_with(p, *state, &o);
}

static int seed(uint64_t capacity) {
  return (int)(capacity >> 16) + 1;
}

/* The next event of a side that does not report a reply. */
static bool next(struct pair *p, int side, struct perigee_event *e) {
  bool any;
  poll_side(p, 1 - side);
  poll_side(p, side);
  while ((any = taken(p, side, e)) && e->kind == PERIGEE_EVENT_SENT)
    ;
  return any;
}

static void nothing(struct pair *p) {
  struct perigee_event e;
  for (int i = 0; i < 100; i++)
    for (int side = 0; side < 2; side++)
      assert_false(next(p, side, &e));
}

static void drain(struct pair *p) {
  struct perigee_event e;
  while (operations(p, 0) + operations(p, 1) > 0)
    for (int side = 0; side < 2; side++)
      assert_false(next(p, side, &e));
  nothing(p);
}

static int call(struct pair *p, uint64_t capacity, int64_t timeout) {
  uint8_t bytes[SMALL];
  struct perigee_message m = {
      .head = bytes, .length = SMALL, .capacity = capacity, .timeout = timeout};
  memset(bytes, seed(capacity), SMALL);
  int op = perigee_call(p->session[0], &m);
  assert_true(op >= 0);
  return op;
}

static struct perigee_event request(struct pair *p) {
  struct perigee_event e;
  while (!next(p, 1, &e))
    ;
  assert_int_equal(e.kind, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.length, SMALL);
  assert_int_equal(e.pointer[0], seed(e.capacity));
  assert_int_equal(e.pointer[SMALL - 1], seed(e.capacity));
  return e;
}

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
  perigee_shares(p.engine[1], NULL, &shares);
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
    perigee_shares(p.engine[1], p.session[1], &shares);
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
      cmocka_unit_test(replies_beyond_the_pool_wait_for_room),
      cmocka_unit_test(it_is_no_memory_when_the_time_is_nearly_over),
      cmocka_unit_test(who_gives_up_makes_way),
      cmocka_unit_test(room_that_comes_back_is_theirs),
      cmocka_unit_test(room_that_is_not_used_is_given_back),
      cmocka_unit_test(replies_that_were_taken_do_not_pile_up),
      cmocka_unit_test(who_has_no_deadline_does_not_wait_for_ever),
      cmocka_unit_test(time_before_a_call_is_none_of_its_own),
      cmocka_unit_test(nor_is_it_time_that_was_waited_for_room),
      cmocka_unit_test(calls_both_ways_find_room_for_their_replies),
      cmocka_unit_test(rooms_that_what_is_lent_keeps_are_not_waited_for),
      cmocka_unit_test(staged_calls_both_ways_find_room_for_their_replies),
      cmocka_unit_test(a_request_that_would_leave_no_room_is_not_lent),
      cmocka_unit_test(no_request_waits_for_itself),
      cmocka_unit_test(no_sessions_wait_for_each_other),
  };
  return RUN_MATRIX("room", tests);
}
