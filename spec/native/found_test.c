/* SPDX-License-Identifier: Apache-2.0
 *
 * found_test.c - an event that a wait has found, and no poll has given yet: an
 * await takes it, if it is its own, and it goes with its session.
 */
#include "support.h"

/* Side 0 waits until it has found an event. */
static void find(struct pair *p) {
  int64_t end = clock_now() + 20000 * MS;
  while (!p->engine[0]->event_pending) {
    perigee_wait(&p->engine[0], 1, MS);
    poll_side(p, 1);
    assert_true(clock_now() < end);
  }
}

static int find_reply_of(struct pair *p, const struct perigee_message *reply) {
  struct perigee_message m = {.method = 3, .timeout = 20000 * MS};
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  perigee_reply(p->engine[1], e.operation, reply);
  find(p);
  return call;
}

static int find_reply(struct pair *p) {
  return find_reply_of(p, &(struct perigee_message){0});
}

static void awaits(struct pair *p, int operation, int kind) {
  struct perigee_event e;
  assert_int_equal(perigee_await(p->engine[0], operation, &e, -1), 1);
  assert_int_equal(e.operation, operation);
  assert_int_equal(e.kind, kind);
  assert_int_equal(e.status, PERIGEE_OK);
}

static void an_await_takes_its_own(void **state) {
  struct pair p;
  pair_open(&p, *state);
  awaits(&p, find_reply(&p), PERIGEE_EVENT_REPLY);
  int op =
      perigee_connect(p.engine[0], p.address, p.variant->transport, 20000 * MS);
  find(&p);
  awaits(&p, op, PERIGEE_EVENT_CONNECTED);
  until(&p, 1, PERIGEE_EVENT_ACCEPTED);
  pair_close(&p);
}

static void an_await_leaves_that_of_others(void **state) {
  struct pair p;
  struct perigee_event e;
  pair_open(&p, *state);
  int other = perigee_recv_imm(p.session[0], -1);
  int call = find_reply(&p);
  assert_int_equal(perigee_await(p.engine[0], other, &e, MS), 0);
  ended(&p, 0, call, PERIGEE_OK);
  perigee_cancel(p.engine[0], other);
  ended(&p, 0, other, PERIGEE_CANCELLED);
  pair_close(&p);
}

/* Side 0 frees the session whose event it has found: that comes no more. */
static void freed(struct pair *p) {
  uint64_t before = perigee_counters(p->engine[0], NULL)->dropped;
  perigee_session_free(p->session[0]);
  p->session[0] = NULL;
  assert_int_equal(perigee_counters(p->engine[0], NULL)->dropped, before + 1);
  for (int i = 0; i < 10; i++)
    poll_side(p, 0);
  assert_int_equal(p->kept[0], 0);
  assert_int_equal(operations(p, 0), 0);
  assert_int_equal(perigee_counters(p->engine[0], NULL)->pooled, 0);
  pair_drop(p);
}

static void a_freed_session_gives_no_reply(void **state) {
  struct pair p;
  pair_open(&p, *state);
  find_reply(&p);
  freed(&p);
}

static void the_blocks_of_a_reply_that_is_not_given_go_back(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_region *from = region_of(&p, 1, NULL, 4 * KIB, 0);
  /* a text of one letter */
  struct perigee_message r = {.flags = PERIGEE_TYPED,
                              .head = "!a",
                              .length = 2,
                              .slice = all_of(from, 4 * KIB)};
  find_reply_of(&p, &r);
  assert_true(p.engine[0]->pending_event.flags & PERIGEE_POOLED);
  freed(&p);
}

static void a_freed_session_is_not_lost(void **state) {
  struct pair p;
  pair_open(&p, *state);
  perigee_session_close(p.session[0]);
  find(&p);
  assert_int_equal(p.engine[0]->pending_event.kind, PERIGEE_EVENT_LOST);
  freed(&p);
}

static void a_session_settles_once_its_loss_was_given(void **state) {
  struct pair p;
  struct perigee_event e;
  pair_open(&p, *state);
  perigee_session_close(p.session[0]);
  find(&p);
  assert_int_equal(perigee_session_settled(p.session[0]), 0);
  assert_int_equal(perigee_poll(p.engine[0], &e, 1), 1);
  assert_int_equal(e.kind, PERIGEE_EVENT_LOST);
  assert_int_equal(perigee_session_settled(p.session[0]), 1);
  pair_drop(&p);
}

int main(void) {
  static const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_await_takes_its_own),
      cmocka_unit_test(an_await_leaves_that_of_others),
      cmocka_unit_test(a_freed_session_gives_no_reply),
      cmocka_unit_test(the_blocks_of_a_reply_that_is_not_given_go_back),
      cmocka_unit_test(a_freed_session_is_not_lost),
      cmocka_unit_test(a_session_settles_once_its_loss_was_given),
  };
  return RUN_MATRIX("found", tests);
}
