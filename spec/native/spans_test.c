/* SPDX-License-Identifier: Apache-2.0
 *
 * spans_test.c - what calls of sampled traces leave in the ring of spans of both
 * sides: ids, the times of phases, and an end for each call, however that ends.
 */
#include <stdlib.h>
#include <string.h>

#include "core/stats_file.h"
#include "support.h"

typedef const struct perigee_stats_span span_row;

static uint64_t given(struct pair *p, int side) {
  return p->engine[side]->stats.at->head.spans_given;
}

/* The side's n-th span, from 1. */
static span_row *span(struct pair *p, int side, uint64_t n) {
  span_row *row =
      &p->engine[side]->stats.at->spans[(n - 1) % PERIGEE_STATS_SPANS];
  assert_int_equal(row->sequence, n);
  return row;
}

static struct perigee_trace sampled(struct pair *p) {
  struct perigee_trace trace;
  perigee_trace_begin(p->engine[0], &trace);
  assert_int_equal(trace.flags, 1);
  return trace;
}

static int call(struct pair *p, const struct perigee_trace *trace,
                int64_t timeout) {
  struct perigee_message m = {.method = 1,
                              .head = "hello",
                              .length = 5,
                              .timeout = timeout,
                              .trace = trace};
  int op = perigee_call(p->session[0], &m);
  assert_true(op >= 0);
  return op;
}

static void answer(struct pair *p, int status) {
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  struct perigee_message reply = {
      .status = status, .head = "done!!", .length = status ? 0 : 6};
  perigee_reply(p->engine[1], e.operation, &reply);
}

static void same_id(const uint8_t *one, const uint8_t *other, size_t length) {
  assert_memory_equal(one, other, length);
}

static const uint8_t zeros[16];

static void both_sides_have_a_span_of_a_sampled_call(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_trace trace = sampled(&p);
  int64_t before = clock_now();
  int op = call(&p, &trace, 60000 * MS);
  answer(&p, 0);
  ended(&p, 0, op, 0);
  span_row *own = span(&p, 0, 1), *theirs = span(&p, 1, 1);
  same_id(own->trace, trace.id, 16);
  same_id(theirs->trace, trace.id, 16);
  same_id(own->parent, zeros, 8);
  same_id(own->wire, own->span, 8);
  same_id(theirs->parent, own->wire, 8);
  assert_memory_not_equal(theirs->span, own->span, 8);
  assert_int_equal(own->what, PERIGEE_STATS_CALL);
  assert_int_equal(theirs->what, PERIGEE_STATS_SERVED);
  assert_int_equal(own->session, perigee_session_id(p.session[0]));
  assert_true((uint64_t)before <= own->start && own->start <= own->sent &&
              own->sent <= own->end && own->landing == 0);
  assert_true(own->start <= theirs->start && theirs->start <= theirs->service &&
              theirs->service <= theirs->end && theirs->end <= own->end);
  assert_int_equal(own->bytes_out, 5);
  assert_int_equal(own->bytes_in, 6);
  assert_int_equal(theirs->bytes_in, 5);
  assert_int_equal(theirs->bytes_out, 6);
  assert_int_equal(own->status, 0);
  pair_close(&p);
}

static void others_leave_none(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_trace trace = sampled(&p);
  trace.flags = 0;
  for (int i = 0; i < 100; i++) {
    int op = call(&p, i % 2 ? &trace : NULL, 60000 * MS);
    answer(&p, 0);
    ended(&p, 0, op, 0);
  }
  assert_int_equal(given(&p, 0), 0);
  assert_int_equal(given(&p, 1), 0);
  pair_close(&p);
}

/* A program's own span travels, and is the parent of the call's. */
static void a_span_that_the_program_names_is_the_parent(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_trace trace = sampled(&p);
  memcpy(trace.span, "12345678", 8);
  for (uint64_t i = 1; i <= 2; i++) {
    int op = call(&p, &trace, 60000 * MS);
    answer(&p, 0);
    ended(&p, 0, op, 0);
    same_id(span(&p, 0, i)->parent, trace.span, 8);
    same_id(span(&p, 0, i)->wire, trace.span, 8);
    same_id(span(&p, 1, i)->parent, trace.span, 8);
    assert_memory_not_equal(span(&p, 0, i)->span, trace.span, 8);
  }
  assert_memory_not_equal(span(&p, 0, 1)->span, span(&p, 0, 2)->span, 8);
  pair_close(&p);
}

/* Its row is another call's by the time that it ends. */
static void a_call_writes_into_no_row_but_its_own(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_trace trace = sampled(&p);
  int first = call(&p, &trace, -1);
  struct perigee_event served = until(&p, 1, PERIGEE_EVENT_REQUEST);
  uint64_t count = PERIGEE_STATS_SPANS + 10;
  for (uint64_t i = 1; i < count; i++) {
    int op = call(&p, &trace, -1);
    answer(&p, 0);
    ended(&p, 0, op, 0);
  }
  struct perigee_message no = {.status = PERIGEE_DENIED, .head = ""};
  perigee_reply(p.engine[1], served.operation, &no);
  ended(&p, 0, first, PERIGEE_DENIED);
  for (int side = 0; side < 2; side++) {
    assert_int_equal(given(&p, side), count);
    for (uint64_t n = 11; n <= count; n++) {
      assert_int_equal(span(&p, side, n)->status, 0);
      assert_true(span(&p, side, n)->end >= span(&p, side, n)->start);
    }
  }
  pair_close(&p);
}

/* The caller gives up while it is served, and before that. */
static void a_call_that_ends_early_has_an_end_on_both_sides(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_trace trace = sampled(&p);
  int op = call(&p, &trace, -1);
  struct perigee_event served = until(&p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(span(&p, 1, 1)->end, 0);
  assert_int_not_equal(span(&p, 1, 1)->service, 0);
  perigee_cancel(p.engine[0], op);
  ended(&p, 0, op, PERIGEE_CANCELLED);
  assert_int_equal(span(&p, 0, 1)->status, PERIGEE_CANCELLED);
  assert_int_not_equal(span(&p, 0, 1)->end, 0);
  perigee_session_close(p.session[0]);
  until(&p, 1, PERIGEE_EVENT_LOST);
  assert_int_equal(span(&p, 1, 1)->end, 0); /* its handler still runs */
  struct perigee_message reply = {.head = "", .length = 0};
  assert_int_equal(perigee_reply(p.engine[1], served.operation, &reply),
                   PERIGEE_PEER_LOST);
  assert_int_equal(span(&p, 1, 1)->status, PERIGEE_PEER_LOST);
  assert_int_not_equal(span(&p, 1, 1)->end, 0);
  pair_drop(&p);
}

/* Typed bytes that are none: they are refused before the program gets them, a
 * short call in the poll that reads it. */
static void
a_call_that_is_refused_has_an_end_and_was_not_in_service(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_trace trace = sampled(&p);
  struct perigee_message m = {.method = 1,
                              .flags = PERIGEE_TYPED | PERIGEE_CHECKED,
                              .head = "\377\377",
                              .length = 2,
                              .timeout = 60000 * MS,
                              .trace = &trace};
  int op = perigee_call(p.session[0], &m);
  ended(&p, 0, op, PERIGEE_PROTOCOL);
  assert_int_equal(span(&p, 0, 1)->status, PERIGEE_PROTOCOL);
  assert_int_equal(span(&p, 1, 1)->status, PERIGEE_PROTOCOL);
  assert_int_not_equal(span(&p, 1, 1)->end, 0);
  assert_int_equal(span(&p, 1, 1)->service, 0);
  assert_int_equal(span(&p, 1, 1)->bytes_in, 0);
  pair_close(&p);
}

/* Large payloads both ways: what brings them is noted, over each transport. */
static void a_large_call_has_the_times_of_its_landings(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_trace trace = sampled(&p);
  uint8_t *bytes = pattern(MIB, 3);
  struct perigee_region *from = region_of(&p, 0, NULL, MIB, 0);
  fill(from, 0, bytes, MIB);
  struct perigee_message m = {.method = 1,
                              .slice = all_of(from, MIB),
                              .into = all_of(from, MIB),
                              .timeout = 60000 * MS,
                              .trace = &trace};
  int op = perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  span_row *own = span(&p, 0, 1), *theirs = span(&p, 1, 1);
  assert_true(theirs->service >= theirs->start);
  struct perigee_message reply = {.head = bytes, .length = MIB};
  int sent = perigee_reply(p.engine[1], e.operation, &reply);
  ended(&p, 0, op, 0);
  if (sent == 1)
    until(&p, 1, PERIGEE_EVENT_SENT);
  assert_int_equal(own->bytes_out, MIB);
  assert_int_equal(own->bytes_in, MIB);
  assert_int_equal(theirs->bytes_in, MIB);
  assert_int_equal(theirs->bytes_out, MIB);
  assert_true(own->landing == 0 ||
              (own->landing >= own->sent && own->landing <= own->end));
  settle(&p);
  region_end(from);
  free(bytes);
  pair_close(&p);
}

/* A head of any length that is read where the caller has put it, or brought at
 * once: the program gets the call in the poll that reads it. */
static void a_call_with_a_large_head_has_the_time_of_its_service(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_trace trace = sampled(&p);
  struct perigee_loan loan;
  struct perigee_message m = {
      .method = 1, .timeout = 60000 * MS, .trace = &trace};
  assert_int_equal(perigee_call_begin(p.session[0], MIB, &loan), 0);
  memset(loan.pointer, 7, MIB);
  int op = perigee_call_commit(p.session[0], &m, MIB);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  span_row *theirs = span(&p, 1, 1);
  assert_true(theirs->service >= theirs->start);
  assert_int_equal(theirs->bytes_in, MIB);
  struct perigee_message reply = {.head = "", .length = 0};
  perigee_reply(p.engine[1], e.operation, &reply);
  ended(&p, 0, op, 0);
  assert_true(theirs->end >= theirs->service);
  settle(&p);
  pair_close(&p);
}

/* The program is asked where the reply goes: it is there from then on. */
static void a_reply_whose_place_is_asked_for_has_a_landing(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_trace trace = sampled(&p);
  uint8_t *bytes = pattern(MIB, 3);
  struct perigee_region *to = region_of(&p, 0, NULL, MIB, 0);
  struct perigee_message m = {.method = 1,
                              .flags = PERIGEE_ASKS,
                              .timeout = 60000 * MS,
                              .trace = &trace};
  int op = perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  struct perigee_message reply = {.head = bytes, .length = MIB};
  int sent = perigee_reply(p.engine[1], e.operation, &reply);
  until(&p, 0, PERIGEE_EVENT_REPLY_LANDING);
  uint64_t asked = (uint64_t)clock_now();
  span_row *own = span(&p, 0, 1);
  struct perigee_slice place = all_of(to, MIB);
  assert_int_equal(perigee_land_reply(p.engine[0], op, &place), 0);
  ended(&p, 0, op, 0);
  if (sent == 1)
    until(&p, 1, PERIGEE_EVENT_SENT);
  assert_true(own->landing >= own->sent && own->landing <= asked);
  settle(&p);
  region_end(to);
  free(bytes);
  pair_close(&p);
}

/* The program answers when it is asked where the slice goes. */
static void a_call_that_is_answered_before_its_slice_has_an_end(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_trace trace = sampled(&p);
  struct perigee_region *from = region_of(&p, 0, NULL, MIB, 0);
  struct perigee_message m = {.method = 1,
                              .flags = PERIGEE_TYPED,
                              .head = "\0",
                              .length = 1,
                              .slice = all_of(from, MIB),
                              .timeout = 60000 * MS,
                              .trace = &trace};
  struct perigee_message no = {.status = PERIGEE_DENIED, .head = ""};
  int op = perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_LANDING);
  perigee_reply(p.engine[1], e.operation, &no);
  ended(&p, 0, op, PERIGEE_DENIED);
  assert_int_not_equal(span(&p, 1, 1)->end, 0);
  assert_int_equal(span(&p, 1, 1)->status, PERIGEE_DENIED);
  assert_int_equal(span(&p, 1, 1)->service, 0);
  settle(&p);
  region_end(from);
  pair_close(&p);
}

/* Its caller closes the session, and never hears of it any more. */
static void a_call_of_a_session_that_is_closed_has_an_end(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_trace trace = sampled(&p);
  call(&p, &trace, -1);
  until(&p, 1, PERIGEE_EVENT_REQUEST);
  perigee_session_close(p.session[0]);
  assert_int_not_equal(span(&p, 0, 1)->end, 0);
  assert_true(span(&p, 0, 1)->status < 0);
  until(&p, 1, PERIGEE_EVENT_LOST);
  pair_drop(&p);
}

/* The program frees the session before it has got the call. */
static void a_call_that_goes_with_its_session_has_an_end(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_trace trace = sampled(&p);
  struct perigee_region *from = region_of(&p, 0, NULL, 64, 0);
  struct perigee_message m = {.flags = PERIGEE_TYPED,
                              .slice = all_of(from, 64),
                              .timeout = -1,
                              .trace = &trace};
  struct perigee_slice pooled = {0};
  perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_LANDING);
  assert_int_equal(perigee_land(p.engine[1], e.operation, &pooled), 0);
  perigee_session_free(p.session[1]);
  p.session[1] = NULL;
  assert_int_equal(perigee_poll(p.engine[1], NULL, 0), 0);
  assert_int_not_equal(span(&p, 1, 1)->end, 0);
  assert_int_equal(span(&p, 1, 1)->status, PERIGEE_PEER_LOST);
  pair_drop(&p);
}

int main(void) {
  static const struct CMUnitTest tests[] = {
      cmocka_unit_test(both_sides_have_a_span_of_a_sampled_call),
      cmocka_unit_test(others_leave_none),
      cmocka_unit_test(a_span_that_the_program_names_is_the_parent),
      cmocka_unit_test(a_call_writes_into_no_row_but_its_own),
      cmocka_unit_test(a_call_that_ends_early_has_an_end_on_both_sides),
      cmocka_unit_test(
          a_call_that_is_refused_has_an_end_and_was_not_in_service),
      cmocka_unit_test(a_large_call_has_the_times_of_its_landings),
      cmocka_unit_test(a_call_with_a_large_head_has_the_time_of_its_service),
      cmocka_unit_test(a_reply_whose_place_is_asked_for_has_a_landing),
      cmocka_unit_test(a_call_that_is_answered_before_its_slice_has_an_end),
      cmocka_unit_test(a_call_of_a_session_that_is_closed_has_an_end),
      cmocka_unit_test(a_call_that_goes_with_its_session_has_an_end),
  };
  return RUN_MATRIX("spans", tests);
}
