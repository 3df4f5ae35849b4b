/* SPDX-License-Identifier: Apache-2.0
 *
 * forever_test.c - the longest time that a program can give is no limit.
 */
#include <unistd.h>

#include "raw_peer.h"

static const int64_t FOREVER = INT64_MAX;
enum { MEANWHILE = 40 }; /* ms */

/* What is due at once comes meanwhile. */
static void some_time(struct pair *p) {
  int64_t end = clock_now() + MEANWHILE * MS;
  while (clock_now() < end)
    quiet(p, 1);
}

static void operations_may_take_for_ever(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_message m = {.method = 3, .timeout = FOREVER};
  int op = perigee_recv_imm(p.session[0], FOREVER);
  int call = perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  some_time(&p);
  perigee_reply(p.engine[1], e.operation, &(struct perigee_message){0});
  ended(&p, 0, call, 0);
  perigee_cancel(p.engine[0], op);
  ended(&p, 0, op, PERIGEE_CANCELLED);
  op = perigee_lookup(p.session[0], "none", FOREVER);
  ended(&p, 0, op, PERIGEE_NOT_FOUND);
  pair_close(&p);
}

/* Its peer is told no longer limit, and no shorter one in place of it. */
static void
a_call_of_more_than_71_minutes_has_no_limit_at_its_peer(void **state) {
  static const int64_t SECONDS[] = {4290, 4300};
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < 2; i++) {
    struct perigee_message m = {.timeout = SECONDS[i] * 1000 * MS};
    int call = perigee_call(p.session[0], &m);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    int64_t left = perigee_served_remaining(p.engine[1], e.operation);
    int64_t least = i == 0 ? m.timeout - 60000 * MS : -1;
    int64_t most = i == 0 ? m.timeout : -1;
    assert_true(e.remaining >= least && e.remaining <= most);
    assert_true(left >= least && left <= most);
    perigee_reply(p.engine[1], e.operation, &(struct perigee_message){0});
    ended(&p, 0, call, 0);
  }
  pair_close(&p);
}

static void landings_may_wait_for_ever(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_message m = {
      .method = 3, .timeout = FOREVER, .flags = PERIGEE_ASKS};
  int call = perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  struct perigee_message r = {.head = (const uint8_t *)"bytes", .length = 5};
  perigee_reply(p.engine[1], e.operation, &r);
  e = until(&p, 0, PERIGEE_EVENT_REPLY_LANDING);
  assert_int_equal(e.operation, call);
  assert_true(e.remaining > FOREVER / 2);
  perigee_cancel(p.engine[0], call);
  ended(&p, 0, call, PERIGEE_CANCELLED);
  pair_close(&p);
}

static void sessions_may_take_for_ever(void **state) {
  struct pair p;
  struct perigee_options o;
  variant_options(*state, &o);
  o.hello_timeout = o.dead_after = o.spin = FOREVER;
  pair_open_with(&p, *state, &o);
  some_time(&p);
  int op = perigee_connect(p.engine[0], p.address, NULL, FOREVER);
  until(&p, 1, PERIGEE_EVENT_ACCEPTED);
  ended(&p, 0, op, 0);
  pair_drop(&p);
}

static void be_refused(struct pair *p) {
  uint64_t before = perigee_counters(p->engine[1], NULL)->refused;
  int fd = visit(p);
  say(fd, "garbage", 8, NULL, 0);
  while (perigee_counters(p->engine[1], NULL)->refused == before)
    poll_side(p, 1);
  close(fd);
}

static void refusals_may_be_told_once_for_ever(void **state) {
  (void)state;
  struct pair p;
  open_for_raw_peers(&p);
  perigee_tell_refused(p.engine[1], FOREVER);
  be_refused(&p);
  until(&p, 1, PERIGEE_EVENT_REFUSED);
  be_refused(&p);
  some_time(&p);
  pair_drop(&p);
}

int main(void) {
  static const struct CMUnitTest tests[] = {
      cmocka_unit_test(operations_may_take_for_ever),
      cmocka_unit_test(a_call_of_more_than_71_minutes_has_no_limit_at_its_peer),
      cmocka_unit_test(landings_may_wait_for_ever),
      cmocka_unit_test(sessions_may_take_for_ever),
      cmocka_unit_test(refusals_may_be_told_once_for_ever),
  };
  return RUN_MATRIX("forever", tests);
}
