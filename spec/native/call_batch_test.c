/* SPDX-License-Identifier: Apache-2.0
 *
 * call_batch_test.c - batches of calls: one event for all, an answer for each.
 */
#include "support.h"

#include <stdlib.h>
#include <string.h>

enum { CALLS = 24, SLOT = 4096, POISON = 77 };

/* Calls of a batch: the request of call i has `length` bytes of the byte i, and
 * its reply has room for as many. */
struct calls {
  struct pair p;
  struct perigee_region *from, *into;
  struct perigee_message messages[CALLS];
  struct perigee_answer answers[CALLS];
  uint64_t length;
};

static struct perigee_slice slot(struct perigee_region *region, int i,
                                 uint64_t length) {
  return (struct perigee_slice){
      {region}, (uint64_t)i * SLOT, length, 1, length};
}

static void calls_name(struct calls *c, uint64_t length) {
  c->length = length;
  for (int i = 0; i < CALLS; i++) {
    uint8_t bytes[SLOT];
    memset(bytes, i + 1, sizeof bytes);
    fill(c->from, (uint64_t)i * SLOT, bytes, length);
    c->messages[i] = (struct perigee_message){.method = (uint16_t)(i + 1),
                                              .slice = slot(c->from, i, length),
                                              .into = slot(c->into, i, length),
                                              .timeout = 60000 * MS};
    c->answers[i] = (struct perigee_answer){POISON, POISON};
  }
  fill_byte(c->into, 0xee);
}

static void calls_open_with(struct calls *c, void *state,
                            const struct perigee_options *options) {
  pair_open_with(&c->p, state, options);
  c->from = region_of(&c->p, 0, NULL, CALLS * SLOT, 0);
  c->into = region_of(&c->p, 0, NULL, CALLS * SLOT, 0);
  calls_name(c, 64);
}

static void calls_open(struct calls *c, void *state) {
  struct perigee_options o;
  perigee_options_init(&o, sizeof o);
  variant_options(state, &o);
  calls_open_with(c, state, &o);
}

/* Memory of replies is free again. */
static void calls_sent(struct calls *c) {
  struct perigee_event e;
  do {
    poll_side(&c->p, 0);
    poll_side(&c->p, 1);
    while (taken(&c->p, 1, &e))
      assert_int_equal(e.kind, PERIGEE_EVENT_SENT);
  } while (operations(&c->p, 1) > 0);
}

static void calls_close(struct calls *c) {
  calls_sent(c);
  settle(&c->p);
  region_end(c->from);
  region_end(c->into);
  pair_close(&c->p);
}

static int calls_post(struct calls *c, uint32_t count) {
  int op = perigee_call_batch(c->p.session[0], c->messages, count, c->answers);
  assert_true(op >= 0);
  return op;
}

/* The next request; SENT of replies may come before. */
static struct perigee_event request_next(struct calls *c) {
  struct perigee_event e;
  do
    e = any_event(&c->p, 1);
  while (e.kind == PERIGEE_EVENT_SENT);
  assert_int_equal(e.kind, PERIGEE_EVENT_REQUEST);
  return e;
}

/* Answers it with its own bytes, and checks which it is. */
static void reply_next(struct calls *c, int i) {
  struct perigee_event e = request_next(c);
  assert_int_equal(e.method, i + 1);
  struct perigee_message r = {.head = e.pointer, .length = e.length};
  assert_true(perigee_reply(c->p.engine[1], e.operation, &r) >= 0);
}

static void answered(struct calls *c, int i, int status, uint64_t length) {
  assert_int_equal(c->answers[i].status, status);
  assert_int_equal(c->answers[i].length, length);
}

static void landed(struct calls *c, int i) {
  uint8_t bytes[SLOT];
  memset(bytes, i + 1, sizeof bytes);
  same(c->into, (uint64_t)i * SLOT, bytes, c->length);
  answered(c, i, PERIGEE_OK, c->length);
}

/* ---- Ends ---------------------------------------------------------------- */

static void batches_of_every_length_come_back(void **state) {
  static const uint64_t lengths[] = {1, 64, 200, SLOT};
  struct calls c;
  calls_open(&c, *state);
  for (int k = 0; k < 4; k++) {
    calls_name(&c, lengths[k]);
    int op = calls_post(&c, CALLS);
    for (int i = 0; i < CALLS; i++)
      reply_next(&c, i);
    struct perigee_event e = ended(&c.p, 0, op, PERIGEE_OK);
    assert_int_equal(e.kind, PERIGEE_EVENT_DONE);
    assert_int_equal(e.length, CALLS * lengths[k]);
    for (int i = 0; i < CALLS; i++)
      landed(&c, i);
    calls_sent(&c);
  }
  calls_close(&c);
}

static void a_batch_of_none_ends_at_once(void **state) {
  struct calls c;
  calls_open(&c, *state);
  int op = calls_post(&c, 0);
  assert_int_equal(ended(&c.p, 0, op, PERIGEE_OK).length, 0);
  calls_close(&c);
}

/* Requests are kept back until all have come, and are answered last first. */
static void replies_may_come_in_any_order(void **state) {
  struct calls c;
  int served[CALLS];
  calls_open(&c, *state);
  int op = calls_post(&c, CALLS);
  for (int i = 0; i < CALLS; i++)
    served[i] = request_next(&c).operation;
  for (int i = CALLS; i-- > 0;) {
    uint8_t byte = (uint8_t)(i + 1);
    struct perigee_message r = {.head = &byte, .length = 1};
    assert_int_equal(perigee_reply(c.p.engine[1], served[i], &r), 0);
  }
  assert_int_equal(ended(&c.p, 0, op, PERIGEE_OK).length, CALLS);
  c.length = 1;
  for (int i = 0; i < CALLS; i++)
    landed(&c, i);
  calls_close(&c);
}

static void fail_next(struct calls *c, int i, const char *text) {
  struct perigee_event e = request_next(c);
  assert_int_equal(e.method, i + 1);
  struct perigee_message r = {.status = PERIGEE_REMOTE,
                              .head = text,
                              .length = strlen(text),
                              .code = (uint64_t)i};
  perigee_reply(c->p.engine[1], e.operation, &r);
}

/* The event of a call that has failed. */
static struct perigee_event failed(struct calls *c, int op, int i, int status) {
  struct perigee_event e = until(&c->p, 0, PERIGEE_EVENT_REPLY);
  assert_int_equal(e.operation, op);
  assert_int_equal(e.status, status);
  assert_int_equal(e.capacity, i);
  return e;
}

static void each_failure_is_told(void **state) {
  struct calls c;
  calls_open(&c, *state);
  for (int round = 0; round < 2; round++) {
    calls_name(&c, 64);
    int op = calls_post(&c, 5);
    reply_next(&c, 0);
    reply_next(&c, 1);
    fail_next(&c, 2, "the third");
    reply_next(&c, 3);
    fail_next(&c, 4, "the fifth");
    struct perigee_event e = failed(&c, op, 2, PERIGEE_REMOTE);
    assert_int_equal(e.code, 2);
    assert_int_equal(e.length, strlen("the third"));
    assert_memory_equal(e.pointer, "the third", e.length);
    assert_in_range(e.remaining, 1, 60000 * MS);
    e = failed(&c, op, 4, PERIGEE_REMOTE);
    assert_memory_equal(e.pointer, "the fifth", e.length);
    e = ended(&c.p, 0, op, PERIGEE_REMOTE);
    assert_int_equal(e.kind, PERIGEE_EVENT_DONE);
    assert_int_equal(e.length, 0);
    landed(&c, 0);
    landed(&c, 1);
    answered(&c, 2, PERIGEE_REMOTE, 0);
    landed(&c, 3);
    answered(&c, 4, PERIGEE_REMOTE, 0);
  }
  const struct perigee_counters *n =
      perigee_counters(c.p.engine[0], c.p.session[0]);
  assert_int_equal(n->calls, 10);
  assert_int_equal(n->replies, 10);
  assert_int_equal(n->failures, 4);
  calls_close(&c);
}

/* Its handler's error can be read as of any call. */
static void what_a_failure_carries_can_be_read(void **state) {
  struct calls c;
  struct perigee_failure f;
  calls_open(&c, *state);
  int op = calls_post(&c, 2);
  assert_true(perigee_fail_call(c.p.engine[1], request_next(&c).operation,
                                PERIGEE_REMOTE, "on purpose", NULL, true) >= 0);
  reply_next(&c, 1);
  struct perigee_event e = failed(&c, op, 0, PERIGEE_REMOTE);
  assert_int_equal(perigee_failure_read(&e, &f, sizeof f), 0);
  assert_int_equal(f.ran, 1);
  assert_memory_equal(f.text, "on purpose", 10);
  ended(&c.p, 0, op, PERIGEE_REMOTE);
  calls_close(&c);
}

static void a_typed_reply_has_no_place_in_a_batch(void **state) {
  static const uint8_t nil[] = {0};
  struct calls c;
  calls_open(&c, *state);
  int op = calls_post(&c, 2);
  struct perigee_message r = {
      .flags = PERIGEE_TYPED, .head = nil, .length = sizeof nil};
  int served = request_next(&c).operation;
  assert_int_equal(perigee_reply(c.p.engine[1], served, &r), 0);
  reply_next(&c, 1);
  failed(&c, op, 0, PERIGEE_PROTOCOL);
  ended(&c.p, 0, op, PERIGEE_PROTOCOL);
  answered(&c, 0, PERIGEE_PROTOCOL, 0);
  landed(&c, 1);
  calls_close(&c);
}

static void a_call_times_out_alone(void **state) {
  struct calls c;
  calls_open(&c, *state);
  c.messages[1].timeout = 0;
  int op = calls_post(&c, 2);
  reply_next(&c, 0);
  int late = request_next(&c).operation;
  failed(&c, op, 1, PERIGEE_TIMEOUT);
  ended(&c.p, 0, op, PERIGEE_TIMEOUT);
  landed(&c, 0);
  answered(&c, 1, PERIGEE_TIMEOUT, 0);
  perigee_reply(c.p.engine[1], late, &(struct perigee_message){0});
  calls_close(&c);
}

/* The number of one of its calls may be an old one of the program's. A join by that
 * must not wait. */
static void a_batch_and_its_calls_are_not_joined(void **state) {
  struct calls c;
  struct perigee_event e;
  calls_open(&c, *state);
  int op = calls_post(&c, 3);
  for (int number = op; number < op + 8; number++)
    assert_int_equal(perigee_join(c.p.engine[0], number, &e), PERIGEE_INVALID);
  for (int i = 0; i < 3; i++)
    reply_next(&c, i);
  ended(&c.p, 0, op, PERIGEE_OK);
  calls_close(&c);
}

/* Answers what was asked by calls that have timed out. */
static void settle_late(struct calls *c) {
  struct perigee_event e;
  for (int i = 0; i < 200; i++) {
    poll_side(&c->p, 0);
    poll_side(&c->p, 1);
    while (taken(&c->p, 1, &e))
      if (e.kind == PERIGEE_EVENT_REQUEST)
        perigee_reply(c->p.engine[1], e.operation,
                      &(struct perigee_message){0});
  }
}

/* Posts a batch of two, and has a wait find the event of the first, which fails.
 * Returns the served number of the second. */
static int failed_and_found(struct calls *c, int *op) {
  *op = calls_post(c, 2);
  fail_next(c, 0, "the first");
  int second = request_next(c).operation;
  for (int i = 0; i < 50; i++)
    poll_side(&c->p, 1);
  assert_int_equal(perigee_wait(&c->p.engine[0], 1, 10000 * MS), 1);
  return second;
}

/* A join leaves the event of a failed call, which a wait has found, to the next
 * poll, whether the batch ends meanwhile or later. */
static void a_join_keeps_the_event_of_a_failed_call(void **state) {
  struct perigee_message none = {0}, late = {.method = 10, .timeout = 0};
  for (int early = 0; early < 2; early++) {
    struct calls c;
    struct perigee_event e;
    int op;
    calls_open(&c, *state);
    int second = failed_and_found(&c, &op);
    if (early)
      perigee_reply(c.p.engine[1], second, &none);
    for (int i = 0; i < 50; i++)
      poll_side(&c.p, 1);
    assert_int_equal(perigee_join(c.p.engine[0], op, &e), PERIGEE_INVALID);
    for (int i = 0; i < 5; i++)
      assert_int_equal(perigee_call_wait(c.p.session[0], &late, &e),
                       PERIGEE_TIMEOUT);
    e = failed(&c, op, 0, PERIGEE_REMOTE);
    assert_int_equal(e.length, strlen("the first"));
    assert_memory_equal(e.pointer, "the first", e.length);
    if (!early)
      perigee_reply(c.p.engine[1], second, &none);
    assert_int_equal(ended(&c.p, 0, op, PERIGEE_REMOTE).kind,
                     PERIGEE_EVENT_DONE);
    answered(&c, 0, PERIGEE_REMOTE, 0);
    answered(&c, 1, PERIGEE_OK, 0);
    settle_late(&c);
    calls_close(&c);
  }
}

/* ---- Stopped ------------------------------------------------------------- */

static void a_cancelled_batch_ends_all_its_calls(void **state) {
  struct calls c;
  calls_open(&c, *state);
  int op = calls_post(&c, 4);
  reply_next(&c, 0);
  int late[2];
  for (int i = 0; i < 2; i++)
    late[i] = request_next(&c).operation;
  fail_next(&c, 3, "before that");
  failed(&c, op, 3, PERIGEE_REMOTE);
  perigee_cancel(c.p.engine[0], op);
  struct perigee_event e = ended(&c.p, 0, op, PERIGEE_CANCELLED);
  assert_null(e.pointer);
  answered(&c, 1, PERIGEE_CANCELLED, 0);
  answered(&c, 2, PERIGEE_CANCELLED, 0);
  for (int i = 0; i < 2; i++)
    perigee_reply(c.p.engine[1], late[i],
                  &(struct perigee_message){.head = "x", .length = 1});
  quiet(&c.p, 50);
  answered(&c, 1, PERIGEE_CANCELLED, 0);
  uint8_t untouched[SLOT];
  memset(untouched, 0xee, sizeof untouched);
  same(c.into, SLOT, untouched, SLOT);
  calls_close(&c);
}

static void a_batch_ends_with_its_session(void **state) {
  struct calls c;
  calls_open(&c, *state);
  int op = calls_post(&c, CALLS);
  reply_next(&c, 0);
  perigee_session_close(c.p.session[1]);
  struct perigee_event e = ended(&c.p, 0, op, PERIGEE_PEER_LOST);
  assert_int_equal(e.kind, PERIGEE_EVENT_DONE);
  assert_true(e.length > 0);
  for (int i = 1; i < CALLS; i++)
    answered(&c, i, PERIGEE_PEER_LOST, 0);
  region_end(c.from);
  region_end(c.into);
  pair_drop(&c.p);
}

/* ---- Submitting ---------------------------------------------------------- */

static void what_has_no_place_for_its_reply_is_refused(void **state) {
  struct calls c;
  calls_open(&c, *state);
  struct perigee_session *s = c.p.session[0];
  c.messages[3].into.region = NULL;
  assert_int_equal(perigee_call_batch(s, c.messages, CALLS, c.answers),
                   PERIGEE_INVALID);
  assert_string_equal(perigee_detail(c.p.engine[0]),
                      "call 3 of a batch is typed, or names no place for its "
                      "reply (into)");
  calls_name(&c, 64);
  c.messages[0].flags = PERIGEE_TYPED;
  assert_int_equal(perigee_call_batch(s, c.messages, CALLS, c.answers),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_call_batch(s, NULL, 1, c.answers), PERIGEE_INVALID);
  assert_int_equal(perigee_call_batch(s, c.messages, 1, NULL), PERIGEE_INVALID);
  assert_int_equal(perigee_call_batch(s, c.messages, UINT32_MAX, c.answers),
                   PERIGEE_INVALID);
  quiet(&c.p, 20);
  answered(&c, 0, POISON, POISON);
  calls_close(&c);
}

static void a_slice_that_is_none_is_its_calls_answer_alone(void **state) {
  struct calls c;
  calls_open(&c, *state);
  c.messages[1].slice.offset = CALLS * SLOT;
  c.messages[2].into.length = CALLS * SLOT;
  int op = calls_post(&c, 4);
  reply_next(&c, 0);
  reply_next(&c, 3);
  ended(&c.p, 0, op, PERIGEE_RANGE);
  landed(&c, 0);
  answered(&c, 1, PERIGEE_RANGE, 0);
  answered(&c, 2, PERIGEE_RANGE, 0);
  landed(&c, 3);
  calls_close(&c);
}

static void calls_beyond_the_operations_are_refused(void **state) {
  struct perigee_options o;
  struct calls c;
  perigee_options_init(&o, sizeof o);
  variant_options(*state, &o);
  o.operations = CALLS;
  calls_open_with(&c, *state, &o);
  int op = calls_post(&c, CALLS), sent = 0;
  while (sent < CALLS && c.answers[sent].status == POISON)
    sent++;
  assert_in_range(sent, 1, CALLS - 1);
  for (int i = 0; i < sent; i++)
    reply_next(&c, i);
  ended(&c.p, 0, op, PERIGEE_NO_MEMORY);
  for (int i = 0; i < CALLS; i++)
    if (i < sent)
      landed(&c, i);
    else
      answered(&c, i, PERIGEE_NO_MEMORY, 0);
  calls_close(&c);
}

static void replies_land_in_lists(void **state) {
  struct calls c;
  calls_open(&c, *state);
  struct perigee_slice parts[2] = {slot(c.into, 0, 10), slot(c.into, 5, 54)};
  c.messages[0].into = perigee_list(parts, 2);
  int op = calls_post(&c, 2);
  reply_next(&c, 0);
  reply_next(&c, 1);
  assert_int_equal(ended(&c.p, 0, op, PERIGEE_OK).length, 128);
  uint8_t ones[64];
  memset(ones, 1, sizeof ones);
  same(c.into, 0, ones, 10);
  same(c.into, 5 * SLOT, ones, 54);
  landed(&c, 1);
  calls_close(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(batches_of_every_length_come_back),
      cmocka_unit_test(a_batch_of_none_ends_at_once),
      cmocka_unit_test(replies_may_come_in_any_order),
      cmocka_unit_test(each_failure_is_told),
      cmocka_unit_test(what_a_failure_carries_can_be_read),
      cmocka_unit_test(a_typed_reply_has_no_place_in_a_batch),
      cmocka_unit_test(a_call_times_out_alone),
      cmocka_unit_test(a_batch_and_its_calls_are_not_joined),
      cmocka_unit_test(a_join_keeps_the_event_of_a_failed_call),
      cmocka_unit_test(a_cancelled_batch_ends_all_its_calls),
      cmocka_unit_test(a_batch_ends_with_its_session),
      cmocka_unit_test(what_has_no_place_for_its_reply_is_refused),
      cmocka_unit_test(a_slice_that_is_none_is_its_calls_answer_alone),
      cmocka_unit_test(calls_beyond_the_operations_are_refused),
      cmocka_unit_test(replies_land_in_lists),
  };
  return RUN_MATRIX("call batches", tests);
}
