/* SPDX-License-Identifier: Apache-2.0
 *
 * loans_test.c - the guard behind memory that is lent to be filled, and what
 * happens to programs that write there.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

enum { EAGER = 8 * KIB };

static const uint64_t capacities[] = {0, 1, 63, 100, EAGER, EAGER + 1, 100000};
enum { CAPACITIES = sizeof capacities / sizeof *capacities };

static void overrun(const struct perigee_loan *loan, uint64_t capacity) {
  memset(loan->pointer, 0x77, capacity + 12);
}

static void a_request_beyond_its_loan_is_not_sent(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < CAPACITIES; i++) {
    struct perigee_message m = {.timeout = -1};
    struct perigee_loan loan;
    assert_int_equal(perigee_call_begin(p.session[0], capacities[i], &loan), 0);
    overrun(&loan, capacities[i]);
    assert_int_equal(perigee_call_commit(p.session[0], &m, capacities[i]),
                     PERIGEE_RANGE);
    assert_int_equal(perigee_call_begin(p.session[0], capacities[i], &loan), 0);
    overrun(&loan, capacities[i]);
    assert_int_equal(perigee_call_abort(p.session[0]), PERIGEE_RANGE);
    assert_int_equal(perigee_call_abort(p.session[0]), PERIGEE_OK);
  }
  pair_close(&p);
}

/* Such a slice may name a region that is gone. */
static void a_request_that_was_lent_uses_no_slice_of_its_message(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < CAPACITIES; i++) {
    struct perigee_region *region = region_of(&p, 0, NULL, 64, 0);
    struct perigee_message m = {.slice = all_of(region, 64), .timeout = -1};
    struct perigee_message r = {.head = "x", .length = 1};
    struct perigee_loan loan;
    assert_int_equal(perigee_call_begin(p.session[0], capacities[i], &loan), 0);
    int call = perigee_call_commit(p.session[0], &m, capacities[i]);
    assert_true(call >= 0);
    assert_int_equal(perigee_region_close(region, false), 0);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    assert_int_equal(e.length, capacities[i]);
    assert_int_equal(perigee_reply(p.engine[1], e.operation, &r), 0);
    assert_int_equal(ended(&p, 0, call, 0).length, 1);
  }
  pair_close(&p);
}

static void a_reply_beyond_its_loan_is_still_to_be_made(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < CAPACITIES; i++) {
    struct perigee_message m = {.timeout = -1}, r = {.head = "x", .length = 1};
    struct perigee_loan loan;
    int call = perigee_call(p.session[0], &m);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    assert_int_equal(
        perigee_reply_begin(p.engine[1], e.operation, capacities[i], &loan), 0);
    overrun(&loan, capacities[i]);
    assert_int_equal(
        perigee_reply_commit(p.engine[1], e.operation, capacities[i]),
        PERIGEE_RANGE);
    assert_int_equal(perigee_reply(p.engine[1], e.operation, &r), 0);
    assert_int_equal(ended(&p, 0, call, 0).length, 1);
  }
  pair_close(&p);
}

/* There is one loan at a time: a refused caller gets no part of it. */
static void loans_of_replies_are_not_taken_over(void **state) {
  struct perigee_message m = {.timeout = -1}, r = {.head = "b", .length = 1};
  struct perigee_loan loan, other;
  struct perigee_event e[2];
  int call[2];
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < 2; i++) {
    call[i] = perigee_call(p.session[0], &m);
    e[i] = until(&p, 1, PERIGEE_EVENT_REQUEST);
  }
  assert_int_equal(perigee_reply_begin(p.engine[1], e[0].operation, 9, &loan),
                   0);
  memcpy(loan.pointer, "that of a", 9);
  assert_int_equal(perigee_reply_begin(p.engine[1], e[1].operation, 9, &other),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_reply_commit(p.engine[1], e[1].operation, 9),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_reply_abort(p.engine[1], e[1].operation), 0);
  assert_int_equal(perigee_reply_commit(p.engine[1], e[0].operation, 9), 0);
  assert_memory_equal(ended(&p, 0, call[0], 0).pointer, "that of a", 9);
  assert_int_equal(perigee_reply(p.engine[1], e[1].operation, &r), 0);
  assert_memory_equal(ended(&p, 0, call[1], 0).pointer, "b", 1);
  pair_close(&p);
}

/* A program that cannot fill its loan answers with a failure at once. */
static void a_reply_by_message_ends_the_loan_of_its_call(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < CAPACITIES; i++) {
    struct perigee_message m = {.timeout = -1};
    struct perigee_message r = {.head = "no", .length = 2, .status = -7};
    struct perigee_loan loan;
    int call = perigee_call(p.session[0], &m);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    assert_int_equal(
        perigee_reply_begin(p.engine[1], e.operation, capacities[i], &loan), 0);
    memset(loan.pointer, 1, capacities[i]);
    assert_int_equal(perigee_reply(p.engine[1], e.operation, &r), 0);
    assert_memory_equal(ended(&p, 0, call, -7).pointer, "no", 2);
    call = perigee_call(p.session[0], &m);
    e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    assert_int_equal(
        perigee_reply_begin(p.engine[1], e.operation, capacities[i], &loan), 0);
    overrun(&loan, capacities[i]);
    assert_int_equal(perigee_reply(p.engine[1], e.operation, &r),
                     PERIGEE_RANGE);
    ended(&p, 0, call, PERIGEE_RANGE);
  }
  pair_close(&p);
}

/* Its number is no other call's until the program has answered. */
static void a_call_whose_caller_is_gone_is_still_to_be_answered(void **state) {
  struct perigee_message m = {.timeout = -1}, r = {.head = "b", .length = 1};
  struct perigee_session *other[2];
  struct perigee_loan loan;
  struct pair p;
  pair_open(&p, *state);
  pair_dial(&p, other);
  perigee_call(p.session[0], &m);
  int lost = until(&p, 1, PERIGEE_EVENT_REQUEST).operation;
  perigee_session_close(p.session[0]);
  assert_int_equal(until(&p, 0, PERIGEE_EVENT_REPLY).status, PERIGEE_CLOSED);
  until(&p, 0, PERIGEE_EVENT_LOST);
  until(&p, 1, PERIGEE_EVENT_LOST);
  assert_int_equal(perigee_reply_begin(p.engine[1], lost, 9, &loan),
                   PERIGEE_PEER_LOST);
  int call = perigee_call(other[0], &m);
  int next = until(&p, 1, PERIGEE_EVENT_REQUEST).operation;
  assert_int_not_equal(next, lost);
  assert_int_equal(perigee_reply(p.engine[1], lost, &r), PERIGEE_PEER_LOST);
  assert_int_equal(perigee_reply(p.engine[1], next, &r), 0);
  assert_memory_equal(ended(&p, 0, call, 0).pointer, "b", 1);
  pair_close(&p);
}

/* No memory of the engine's follows what it lends. A child, which may die of
 * it, writes there up to the fault, and no other loan changes. */
static void far_beyond_a_loan_is_nothing(void **state) {
  enum { BEHIND = (2 << 20) - 4096 };
  struct pair p;
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    struct perigee_loan loan, other;
    pair_open(&p, *state);
    perigee_call_begin(p.session[1], 64, &other);
    memset(other.pointer, 1, 64);
    perigee_call_begin(p.session[0], 64, &loan);
    memset(loan.pointer, 0x77, 1 << 20);
    for (int i = 0; i < 64; i++)
      if (other.pointer[i] != 1)
        _exit(1);
    if (perigee_call_abort(p.session[0]) != PERIGEE_RANGE ||
        perigee_call_abort(p.session[1]) != PERIGEE_OK)
      _exit(2);
    signal(SIGSEGV, SIG_DFL);
    perigee_call_begin(p.session[0], 64, &loan);
    memset(loan.pointer, 0x77, BEHIND); /* ends in the guard, not behind it */
    _exit(3);                           /* the fault did not come */
  }
  int how;
  waitpid(child, &how, 0);
  assert_true(WIFSIGNALED(how));
  assert_int_equal(WTERMSIG(how), SIGSEGV);
}

/* A loan that is staged and waits for room was copied. */
static void stages_are_lent_again_while_requests_wait(void **state) {
  enum { CALLS = 400, LENGTH = 1000 };
  struct pair p;
  struct perigee_loan loan;
  pair_open(&p, *state);
  for (int i = 0; i < CALLS; i++) {
    struct perigee_message m = {.timeout = -1};
    assert_int_equal(perigee_call_begin(p.session[0], LENGTH, &loan), 0);
    memset(loan.pointer, i & 255, LENGTH);
    assert_true(perigee_call_commit(p.session[0], &m, LENGTH) >= 0);
  }
  for (int seen = 0, ends = 0; ends < CALLS;)
    for (int side = 0; side < 2; side++) {
      struct perigee_event e;
      poll_side(&p, side);
      if (!taken(&p, side, &e))
        continue;
      ends += side == 0;
      if (side == 0)
        continue;
      assert_int_equal(e.length, LENGTH);
      assert_int_equal(e.pointer[0], seen & 255);
      assert_int_equal(e.pointer[LENGTH - 1], seen++ & 255);
      assert_int_equal(
          perigee_reply_begin(p.engine[1], e.operation, LENGTH, &loan), 0);
      memset(loan.pointer, 7, LENGTH);
      assert_true(perigee_reply_commit(p.engine[1], e.operation, LENGTH) >= 0);
    }
  settle(&p);
  assert_int_equal(perigee_counters(p.engine[0], NULL)->pooled, 0);
  pair_close(&p);
}

static int served(struct pair *p) {
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  return e.operation;
}

/* The side that called reads the other's end before the replies: a read takes
 * one frame with a descriptor. */
static void reads_all_frames(struct pair *p) {
  for (int64_t end = clock_now() + 10000 * MS; p->kept[0] == 0;) {
    perigee_arm(p->engine[0], NULL); /* the poll looks at the sockets */
    poll_side(p, 0);
    assert_true(clock_now() < end);
  }
}

/* A long loan is looked at in many polls. The peer has closed the session by
 * then, with all of its replies written. */
static void what_was_answered_before_the_end_is_told(void **state) {
  enum { LENGTH = 100 * MIB, SHORT = 3 };
  const struct perigee_message m = {.timeout = -1},
                               r = {.head = "abc", .length = SHORT};
  struct perigee_loan loan;
  struct pair p;
  int call[2], of[2];
  pair_open(&p, *state);
  for (int i = 0; i < 2; i++) {
    call[i] = perigee_call(p.session[0], &m);
    of[i] = served(&p);
  }
  p.still[0] = true;
  assert_int_equal(perigee_reply_begin(p.engine[1], of[0], LENGTH, &loan), 0);
  memset(loan.pointer, 0x5a, LENGTH);
  assert_true(perigee_reply_commit(p.engine[1], of[0], LENGTH) >= 0);
  assert_true(perigee_reply(p.engine[1], of[1], &r) >= 0);
  perigee_session_close(p.session[1]);
  p.still[0] = false;
  reads_all_frames(&p);
  struct perigee_event e = ended(&p, 0, call[0], PERIGEE_OK);
  assert_int_equal(e.length, LENGTH);
  assert_int_equal(e.pointer[LENGTH - 1], 0x5a);
  assert_int_equal(ended(&p, 0, call[1], PERIGEE_OK).length, SHORT);
  assert_int_equal(until(&p, 0, PERIGEE_EVENT_LOST).status, PERIGEE_PEER_LOST);
  pair_drop(&p);
}

static void huge_capacities_are_refused(void **state) {
  struct pair p;
  struct perigee_loan loan;
  const uint64_t huge[] = {UINT64_C(1) << 41, UINT64_C(1) << 63, UINT64_MAX};
  pair_open(&p, *state);
  for (int i = 0; i < 3; i++)
    assert_int_equal(perigee_call_begin(p.session[0], huge[i], &loan),
                     PERIGEE_TOO_LARGE);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_request_beyond_its_loan_is_not_sent),
      cmocka_unit_test(a_request_that_was_lent_uses_no_slice_of_its_message),
      cmocka_unit_test(a_reply_beyond_its_loan_is_still_to_be_made),
      cmocka_unit_test(loans_of_replies_are_not_taken_over),
      cmocka_unit_test(a_reply_by_message_ends_the_loan_of_its_call),
      cmocka_unit_test(a_call_whose_caller_is_gone_is_still_to_be_answered),
      cmocka_unit_test(far_beyond_a_loan_is_nothing),
      cmocka_unit_test(stages_are_lent_again_while_requests_wait),
      cmocka_unit_test(huge_capacities_are_refused),
  };
  const struct CMUnitTest mapped[] = {
      OVER(variant_default, what_was_answered_before_the_end_is_told),
  };
  int failed = cmocka_run_group_tests_name("mapped", mapped, NULL, NULL);
  return failed + RUN_MATRIX("loans", tests);
}
