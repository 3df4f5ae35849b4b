/* SPDX-License-Identifier: Apache-2.0
 *
 * found_test.c - an event that a wait has found, and no poll has given yet: an
 * await takes it, if it is its own.
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

static int find_reply(struct pair *p) {
  struct perigee_message m = {.method = 3, .timeout = 20000 * MS};
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  perigee_reply(p->engine[1], e.operation, &(struct perigee_message){0});
  find(p);
  return call;
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

int main(void) {
  static const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_await_takes_its_own),
      cmocka_unit_test(an_await_leaves_that_of_others),
  };
  return RUN_MATRIX("found", tests);
}
