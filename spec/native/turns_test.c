/* SPDX-License-Identifier: Apache-2.0
 *
 * turns_test.c - payloads that are staged over shared memory in blocks that are
 * used in turn: who gets one, when it is free again, what happens to those that
 * get none. What is longer is in distance_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "support_inside.h"
#include "turns_support.h"

/* The request's owner, and the reply's, do not poll while it is read. */
static void a_payload_is_whole_when_its_owner_has_sent_it(void **state) {
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3), *other = pattern(LENGTH, 5);
  busy_open(&p, *state);
  for (int i = 0; i < 3; i++) {
    int op = call(&p, bytes, LENGTH);
    p.still[0] = true;
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    assert_int_equal(e.length, LENGTH);
    assert_memory_equal(e.pointer, bytes, LENGTH);
    answer(&p, &e, other, LENGTH);
    p.still[1] = true;
    p.still[0] = false;
    answered(&p, op, other, LENGTH);
    p.still[1] = false;
    until(&p, 1, PERIGEE_EVENT_SENT);
  }
  free(bytes);
  free(other);
  pair_close(&p);
}

/* So is a reply that lies in the block of its request, which stays there. */
static void an_echo_is_staged_as_other_replies_are(void **state) {
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3);
  busy_open(&p, *state);
  int op = call(&p, bytes, LENGTH);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  answer(&p, &e, e.pointer, e.length);
  assert_int_equal(turns_live(p.session[1]), 1);
  answered(&p, op, bytes, LENGTH);
  until(&p, 1, PERIGEE_EVENT_SENT);
  free(bytes);
  pair_close(&p);
}

/* More than there is room for: the rest goes another way, and nobody waits. The
 * calls are answered from the last to the first. */
static void calls_without_a_block_go_another_way(void **state) {
  static struct perigee_event e[MANY];
  struct pair p;
  int ops[MANY];
  uint8_t *bytes[MANY];
  busy_open(&p, *state);
  for (int i = 0; i < MANY; i++) {
    bytes[i] = pattern(LENGTH, (uint8_t)i);
    ops[i] = call(&p, bytes[i], LENGTH);
  }
  uint32_t live = turns_live(p.session[0]);
  assert_true(live > 8 && live < MANY);
  for (int i = 0; i < MANY; i++)
    e[i] = until(&p, 1, PERIGEE_EVENT_REQUEST);
  for (int i = MANY - 1; i >= 0; i--) {
    assert_memory_equal(e[i].pointer, bytes[i], LENGTH);
    answer(&p, &e[i], bytes[i], 10);
    answered(&p, ops[i], bytes[i], 10);
  }
  assert_int_equal(turns_live(p.session[0]), 0);
  for (int i = 0; i < MANY; i++)
    free(bytes[i]);
  pair_close(&p);
}

/* A call that is under way; bytes NULL: none. */
struct under {
  uint8_t *bytes;
  uint64_t length;
  int op;
  struct perigee_event request;
};
enum { UNDER = 7, ROUNDS = 200, SHORT = 17000, LONG = 256 * KIB };

static void submit(struct pair *p, struct under *u, int round) {
  u->length = SHORT + any_below(LONG - SHORT + 1);
  u->bytes = pattern(u->length, (uint8_t)round);
  u->op = call(p, u->bytes, u->length);
  u->request.kind = PERIGEE_EVENT_NONE;
}

static void arrive(struct pair *p, struct under *u) {
  if (u->request.kind != PERIGEE_EVENT_NONE)
    return;
  u->request = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(u->request.length, u->length);
  assert_memory_equal(u->request.pointer, u->bytes, u->length);
}

static void end(struct pair *p, struct under *u) {
  answer(p, &u->request, u->request.pointer, u->length);
  answered(p, u->op, u->bytes, u->length);
  until(p, 1, PERIGEE_EVENT_SENT);
  free(u->bytes);
  u->bytes = NULL;
}

/* Payloads of all sizes are staged before the peer reads the first of them, and
 * end in another order. */
static void blocks_in_use_never_overlap(void **state) {
  struct under under[UNDER] = {{0}};
  struct pair p;
  busy_open(&p, *state);
  for (int round = 0; round < ROUNDS; round++) {
    bool fresh[UNDER] = {false};
    for (int i = 0; i < UNDER; i++)
      if ((fresh[i] = !under[i].bytes))
        submit(&p, &under[i], round);
    for (int i = 0; i < UNDER; i++)
      if (fresh[i])
        arrive(&p, &under[i]);
    for (uint32_t n = 1 + any_below(UNDER); n > 0; n--) {
      struct under *u = &under[any_below(UNDER)];
      if (u->bytes)
        end(&p, u);
    }
  }
  for (int i = 0; i < UNDER; i++)
    if (under[i].bytes)
      end(&p, &under[i]);
  assert_int_equal(turns_live(p.session[0]), 0);
  pair_close(&p);
}

/* The peer drops what it reads of it: other bytes may be there by then. */
static void a_call_that_ends_early_frees_its_block(void **state) {
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3), *other = pattern(LENGTH, 5);
  busy_open(&p, *state);
  int first = call(&p, bytes, LENGTH);
  assert_int_equal(turns_live(p.session[0]), 1);
  p.still[1] = true;
  perigee_cancel(p.engine[0], first);
  ended(&p, 0, first, PERIGEE_CANCELLED);
  assert_int_equal(turns_live(p.session[0]), 0);
  int op = call(&p, other, LENGTH);
  p.still[1] = false;
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  assert_memory_equal(e.pointer, other, LENGTH);
  answer(&p, &e, bytes, 10);
  answered(&p, op, bytes, 10);
  free(bytes);
  free(other);
  pair_close(&p);
}

/* Calls that lie so far apart in time get along without a stretch. */
static void pulled(struct pair *p, int64_t apart) {
  uint8_t *bytes = pattern(LENGTH, 3);
  for (int i = 0; i < MANY; i++, own_time.passed += apart) {
    look_at_clock(p->engine[0]);
    look_at_clock(p->engine[1]);
    echo(p, bytes, LENGTH);
  }
  for (int side = 0; side < 2; side++)
    assert_int_equal(stretch_bytes(p->session[side]), 0);
  free(bytes);
  pair_close(p);
}

/* No memory for staging is left for this peer. */
static void who_may_hold_nothing_is_pulled_from(void **state) {
  struct pair p;
  timed_open(&p, *state);
  for (int side = 0; side < 2; side++)
    limit_staging(p.engine[side], 0);
  pulled(&p, 0);
}

/* Sessions that call rarely keep no memory, and meet no new pages. */
static void who_calls_rarely_is_pulled_from(void **state) {
  struct pair p;
  timed_open(&p, *state);
  pulled(&p, 100 * MS);
}

/* The peer has all of its payload, so its block is free. */
static void a_call_that_runs_long_keeps_no_block(void **state) {
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3);
  busy_open(&p, *state);
  int op = call(&p, bytes, LENGTH);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  for (int i = 0; i < 2 * MANY; i++) {
    int other = call(&p, bytes, LENGTH);
    assert_true(turns_live(p.session[0]) > 0);
    struct perigee_event f = until(&p, 1, PERIGEE_EVENT_REQUEST);
    answer(&p, &f, bytes, 10);
    answered(&p, other, bytes, 10);
    assert_int_equal(turns_live(p.session[0]), 0);
  }
  answer(&p, &e, bytes, 10);
  answered(&p, op, bytes, 10);
  free(bytes);
  pair_close(&p);
}

/* Calls that need each other's blocks: those for staging come on top of what may
 * be lent. */
static void staging_takes_no_room_from_loans(void **state) {
  struct perigee_loan loan;
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3);
  busy_open(&p, *state);
  int op = call(&p, bytes, LENGTH);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  assert_true(turns_live(p.session[0]) > 0);
  for (int side = 0; side < 2; side++)
    assert_int_equal(lendable(p.session[side]), POOL);
  assert_int_equal(
      perigee_reply_begin(p.engine[1], e.operation, POOL / 2, &loan), 0);
  perigee_reply_abort(p.engine[1], e.operation);
  answer(&p, &e, bytes, 10);
  answered(&p, op, bytes, 10);
  free(bytes);
  pair_close(&p);
}

/* Requests that are pulled, each answered before the next. Without other blocks
 * the one that rests is taken, and after a while it goes back. */
static void one_call_after_the_other_gets_two_blocks_in_turn(void **state) {
  const uint8_t *at[6];
  struct pair p;
  timed_open(&p, *state);
  const uint64_t half = dropped_bytes(p.session[0]) / 2;
  uint8_t *bytes = pattern(half, 3);
  for (int i = 0; i < 6; i++) {
    int op = call(&p, bytes, half);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    at[i] = e.pointer;
    answer(&p, &e, e.pointer, half);
    answered(&p, op, bytes, half);
    until(&p, 1, PERIGEE_EVENT_SENT);
  }
  assert_ptr_not_equal(at[2], at[3]);
  assert_ptr_equal(at[2], at[4]);
  assert_ptr_equal(at[3], at[5]);
  assert_true(kept_bytes(p.session[1]) >= 2 * half);
  for (int i = 0; i < 3000; i++, own_time.passed += MS) {
    look_at_clock(p.engine[1]);
    poll_side(&p, 1);
  }
  assert_int_equal(kept_bytes(p.session[1]), 0);
  free(bytes);
  pair_close(&p);
}

/* Returns how many requests later one comes to the same block, or 0. */
static int comes_back(const uint8_t *const *at, int count, int first) {
  for (int i = first + 1; i < count; i++)
    if (at[i] == at[first])
      return i - first;
  return 0;
}

/* Short ones as well; while little passes, each comes to the block of the one
 * before, which has its pages. */
static void
short_calls_get_their_blocks_in_turn_once_much_passes(void **state) {
  enum { EACH = 64 << 10, CALLS = 128 };
  const uint8_t *at[CALLS];
  struct pair p;
  uint8_t *bytes = pattern(EACH, 3);
  timed_open(&p, *state);
  for (int i = 0; i < CALLS; i++) {
    int op = call(&p, bytes, EACH);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    at[i] = e.pointer;
    answer(&p, &e, bytes, 10);
    answered(&p, op, bytes, 10);
  }
  assert_int_equal(comes_back(at, CALLS, 10), 1);
  const int turns = (int)(dropped_bytes(p.session[0]) / EACH);
  assert_in_range(comes_back(at, CALLS, 80), turns - 1, turns + 1);
  assert_true(kept_bytes(p.session[1]) <= 4 * MIB);
  free(bytes);
  pair_close(&p);
}

/* The pages are made by a MiB at a time, as a poll holds nobody up; payloads are
 * pulled meanwhile. Short ones then take turns at the begin of it. */
static void a_long_payload_is_staged_once_its_pages_are_there(void **state) {
  enum { LONG = 5 * (MIB / 2) };
  struct pair p;
  uint8_t *bytes = pattern(LONG, 3);
  timed_open(&p, *state);
  say_ways(p.session[1], 0xaaaaaaaa); /* staged, however long */
  assert_false(is_staged(&p, bytes, LONG));
  assert_false(is_staged(&p, bytes, LONG));
  for (int i = 0; i < 3; i++)
    assert_true(is_staged(&p, bytes, LONG));
  assert_int_equal(stretch_bytes(p.session[0]), 4 * MIB);
  for (int i = 0; i < MANY; i++) {
    assert_true(is_staged(&p, bytes, LENGTH));
    assert_true(turns_is_short(p.session[0]));
  }
  free(bytes);
  pair_close(&p);
}

/* Once, and not back: payloads of both lengths come. */
static void a_stretch_becomes_as_long_as_a_payload_wants(void **state) {
  struct pair p;
  busy_open(&p, *state);
  const uint32_t length =
      (uint32_t)least(stretch_bytes(p.session[0]) + MIB / 4, LONGEST);
  uint8_t *bytes = pattern(length, 3);
  say_ways(p.session[1], 0xaaaaaaaa); /* staged, however long */
  for (int i = 0; i < 4; i++) {
    is_staged(&p, bytes, length); /* which makes the pages */
    assert_true(stretch_bytes(p.session[0]) >= length);
  }
  const uint32_t size = stretch_bytes(p.session[0]);
  assert_true(size > length);
  for (int i = 0; i < 8; i++) {
    assert_true(is_staged(&p, bytes, LENGTH));
    assert_true(is_staged(&p, bytes, length));
    assert_int_equal(stretch_bytes(p.session[0]), size);
  }
  free(bytes);
  pair_close(&p);
}

/* The stretch stays, as a longer one would be more than the peer's share. */
static void what_may_not_grow_is_kept_as_it_is(void **state) {
  enum { LONG = 5 * (MIB / 2) };
  struct pair p;
  uint8_t *bytes = pattern(LONG, 3);
  busy_open(&p, *state);
  say_ways(p.session[1], 0xaaaaaaaa); /* staged, however long */
  uint32_t size = stretch_bytes(p.session[0]);
  limit_staging(p.engine[0], size);
  for (int i = 0; i < 8; i++)
    is_staged(&p, bytes, LONG);
  assert_int_equal(stretch_bytes(p.session[0]), size);
  assert_true(stages(&p, bytes));
  free(bytes);
  pair_close(&p);
}

static void what_nobody_stages_in_goes_back(void **state) {
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3);
  busy_open(&p, *state);
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < MANY; i++)
      stages(&p, bytes);
    assert_true(stretch_bytes(p.session[0]) > 0);
    for (int i = 0; i < 3000; i++, own_time.passed += MS) {
      look_at_clock(p.engine[0]);
      poll_side(&p, 0);
    }
    assert_int_equal(stretch_bytes(p.session[0]), 0);
    assert_int_equal(kept_bytes(p.session[0]), 0);
  }
  free(bytes);
  pair_close(&p);
}

/* Polls that side once; the peer answers what comes. Returns the length of a
 * request. */
static uint64_t serve_once(struct pair *p, int side, const uint8_t *bytes) {
  struct perigee_event e;
  if (perigee_poll(p->engine[side], &e, 1) == 0 ||
      e.kind != PERIGEE_EVENT_REQUEST)
    return 0;
  if (e.length == LENGTH)
    assert_memory_equal(e.pointer, bytes, LENGTH);
  answer(p, &e, bytes, 10);
  return e.length;
}

/* Its record waits for room, so nothing was written to its block yet: that block
 * must stay, whatever the peer says of it. */
static void a_peer_cannot_free_a_block_that_is_to_be_filled(void **state) {
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3);
  busy_open(&p, *state);
  p.still[1] = true;
  while (ring_left(p.session[0]) > 64)
    call(&p, bytes, 10);
  int op = call(&p, bytes, LENGTH);
  assert_string_equal(state_of(p.engine[0], op), "queued");
  assert_int_equal(turns_live(p.session[0]), 1);
  lie_of_taking(p.session[1], op, generation_at(p.engine[0], (uint32_t)op),
                LENGTH);
  for (int i = 0; i < 3000; i++, own_time.passed += MS) {
    look_at_clock(p.engine[0]);
    poll_side(&p, 0);
  }
  assert_true(stretch_bytes(p.session[0]) > 0);
  bool came = false;
  while (operations(&p, 0) + operations(&p, 1) > 0)
    for (int side = 0; side < 2; side++)
      came |= serve_once(&p, side, bytes) == LENGTH;
  assert_true(came);
  free(bytes);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(variant_default, a_payload_is_whole_when_its_owner_has_sent_it),
      OVER(unread, a_payload_is_whole_when_its_owner_has_sent_it),
      OVER(variant_default, an_echo_is_staged_as_other_replies_are),
      OVER(variant_default, calls_without_a_block_go_another_way),
      OVER(unread, calls_without_a_block_go_another_way),
      OVER(variant_default, blocks_in_use_never_overlap),
      OVER(variant_default, a_call_that_ends_early_frees_its_block),
      OVER(variant_default, who_may_hold_nothing_is_pulled_from),
      OVER(variant_default, who_calls_rarely_is_pulled_from),
      OVER(variant_default, a_call_that_runs_long_keeps_no_block),
      OVER(variant_default, staging_takes_no_room_from_loans),
      OVER(variant_default, one_call_after_the_other_gets_two_blocks_in_turn),
      OVER(variant_default,
           short_calls_get_their_blocks_in_turn_once_much_passes),
      OVER(variant_default, a_long_payload_is_staged_once_its_pages_are_there),
      OVER(variant_default, a_stretch_becomes_as_long_as_a_payload_wants),
      OVER(variant_default, what_may_not_grow_is_kept_as_it_is),
      OVER(variant_default, what_nobody_stages_in_goes_back),
      OVER(variant_default, a_peer_cannot_free_a_block_that_is_to_be_filled),
  };
  return cmocka_run_group_tests_name("turns", tests, NULL, NULL);
}
