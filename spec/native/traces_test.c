/* SPDX-License-Identifier: Apache-2.0
 *
 * traces_test.c - calls that belong to a trace: its context reaches the server,
 * by every way that a request takes.
 */
#include "support.h"

#include <stdlib.h>
#include <string.h>

static const struct perigee_trace given = {
    {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
    {17, 18, 19, 20, 21, 22, 23, 24},
    1};

/* The event of a call that has arrived; its trace, if it has one. */
static bool arrives(struct pair *p, struct perigee_trace *came,
                    struct perigee_event *e) {
  *e = until(p, 1, PERIGEE_EVENT_REQUEST);
  int has = perigee_served_trace(p->engine[1], e->operation, came);
  assert_int_equal(has, (e->flags & PERIGEE_TRACED) != 0);
  return has == 1;
}

static void answer(struct pair *p, int call, const struct perigee_event *e) {
  struct perigee_message none = {.length = 0};
  struct perigee_trace gone;
  assert_int_equal(perigee_reply(p->engine[1], e->operation, &none), 0);
  ended(p, 0, call, 0);
  settle(p);
  assert_int_equal(perigee_served_trace(p->engine[1], e->operation, &gone), 0);
}

static void comes_with(struct pair *p, uint64_t length) {
  uint8_t *bytes = pattern(length, 5);
  struct perigee_trace came, trace = given;
  struct perigee_message m = {
      .head = bytes, .length = length, .timeout = -1, .trace = &trace};
  struct perigee_event e;
  int call = perigee_call(p->session[0], &m);
  memset(&trace, 0, sizeof trace); /* it was copied */
  assert_true(arrives(p, &came, &e));
  assert_memory_equal(&came, &given, sizeof given);
  assert_int_equal(e.length, length);
  assert_memory_equal(e.pointer, bytes, length);
  answer(p, call, &e);
  free(bytes);
}

static void heads_of_every_size_come_with_their_trace(void **state) {
  static const uint64_t sizes[] = {0, 1, 64, 8191, 8192, 8193, 65536, 3 * MIB};
  struct pair p;
  pair_open(&p, *state);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    comes_with(&p, sizes[i]);
  pair_close(&p);
}

static void lent(struct pair *p, uint64_t length) {
  struct perigee_message m = {.timeout = -1, .trace = &given, .code = 7};
  struct perigee_trace came;
  struct perigee_event e;
  struct perigee_loan loan;
  assert_int_equal(perigee_call_begin(p->session[0], length, &loan), 0);
  memset(loan.pointer, 0x5a, length);
  int call = perigee_call_commit(p->session[0], &m, length);
  assert_true(arrives(p, &came, &e));
  assert_memory_equal(&came, &given, sizeof given);
  assert_int_equal(e.length, length);
  assert_int_equal(e.code, 7);
  assert_int_equal(e.pointer[length - 1], 0x5a);
  answer(p, call, &e);
}

static void loans_come_with_their_trace(void **state) {
  struct pair p;
  pair_open(&p, *state);
  lent(&p, 64);
  lent(&p, 8192);
  lent(&p, 100000);
  pair_close(&p);
}

static void calls_without_one_have_none(void **state) {
  struct perigee_message m = {.timeout = -1};
  struct perigee_trace came;
  struct perigee_event e;
  struct pair p;
  pair_open(&p, *state);
  comes_with(&p, 64); /* an operation that had one is used again */
  int call = perigee_call(p.session[0], &m);
  assert_false(arrives(&p, &came, &e));
  answer(&p, call, &e);
  pair_close(&p);
}

/* The span derived from a given one. */
static struct perigee_trace sent_on(struct pair *p, struct perigee_trace trace,
                                    int flags) {
  struct perigee_message m = {
      .timeout = -1, .flags = (uint16_t)flags, .trace = &trace};
  struct perigee_trace came;
  struct perigee_event e;
  int call = perigee_call(p->session[0], &m);
  assert_true(arrives(p, &came, &e));
  answer(p, call, &e);
  assert_memory_equal(came.id, trace.id, sizeof trace.id);
  assert_int_equal(came.flags, trace.flags);
  return came;
}

static void what_is_carried_on_has_a_new_span(void **state) {
  struct perigee_trace none = given;
  struct pair p;
  memset(none.span, 0, sizeof none.span);
  pair_open(&p, *state);
  struct perigee_trace one = sent_on(&p, given, PERIGEE_CARRIED);
  struct perigee_trace two = sent_on(&p, given, PERIGEE_CARRIED);
  struct perigee_trace three = sent_on(&p, none, 0);
  assert_memory_not_equal(one.span, given.span, sizeof given.span);
  assert_memory_not_equal(one.span, two.span, sizeof given.span);
  assert_memory_not_equal(three.span, none.span, sizeof given.span);
  pair_close(&p);
}

static void an_id_of_zeros_is_refused(void **state) {
  struct perigee_trace trace = given;
  struct perigee_message m = {.timeout = -1, .trace = &trace};
  struct pair p;
  memset(trace.id, 0, sizeof trace.id);
  pair_open(&p, *state);
  assert_int_equal(perigee_call(p.session[0], &m), PERIGEE_INVALID);
  pair_close(&p);
}

/* As with an older version. */
static void without_the_feature_only_what_is_carried_goes(void **state) {
  struct perigee_message m = {.timeout = -1, .trace = &given};
  struct perigee_options o;
  struct perigee_trace came;
  struct perigee_event e;
  struct perigee_loan loan;
  struct pair p;
  variant_options(*state, &o);
  o.features = "-trace";
  pair_open_with(&p, *state, &o);
  uint64_t sent = perigee_counters(p.engine[0], p.session[0])->calls;
  assert_int_equal(perigee_call(p.session[0], &m), PERIGEE_UNSUPPORTED);
  assert_non_null(strstr(perigee_detail(p.engine[0]), "\"trace\""));
  assert_int_equal(perigee_call_begin(p.session[0], 64, &loan), 0);
  assert_int_equal(perigee_call_commit(p.session[0], &m, 64),
                   PERIGEE_UNSUPPORTED);
  assert_int_equal(perigee_counters(p.engine[0], p.session[0])->calls, sent);
  m.flags = PERIGEE_CARRIED;
  int call = perigee_call(p.session[0], &m);
  assert_false(arrives(&p, &came, &e));
  answer(&p, call, &e);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(heads_of_every_size_come_with_their_trace),
      cmocka_unit_test(loans_come_with_their_trace),
      cmocka_unit_test(calls_without_one_have_none),
      cmocka_unit_test(what_is_carried_on_has_a_new_span),
      cmocka_unit_test(an_id_of_zeros_is_refused),
      cmocka_unit_test(without_the_feature_only_what_is_carried_goes),
  };
  return RUN_MATRIX("traces", tests);
}
