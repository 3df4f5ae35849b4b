/* SPDX-License-Identifier: Apache-2.0
 *
 * held_test.c - typed heads that are longer than options.hold. What follows a
 * request waits until the request has started; the caller keeps a reply. Long
 * heads are scanned in portions, while other sessions go on.
 */
#include <stdlib.h>
#include <string.h>

#include "support.h"

enum { HOLD = 100, LONG_HEAD = 400 * KIB };

/* A text as string.buffer writes it, of so many bytes in all. */
static uint8_t *typed_text(uint32_t length) {
  uint8_t *bytes = malloc(length);
  uint32_t tag = 32 + length - 5;
  memset(bytes, 'x', length);
  if (32 + length - 1 < 0xe0) {
    bytes[0] = (uint8_t)(32 + length - 1);
  } else if (32 + length - 2 < 0x1fe0) {
    bytes[0] = (uint8_t)(0xe0 | (32 + length - 2 - 0xe0) >> 8);
    bytes[1] = (uint8_t)(32 + length - 2 - 0xe0);
  } else {
    bytes[0] = 0xff;
    memcpy(bytes + 1, &tag, 4);
  }
  return bytes;
}

/* A list of numbers, which takes long to scan. */
static uint8_t *typed_list(uint64_t length) {
  uint8_t *bytes = malloc(length);
  uint32_t n = (uint32_t)(length - 6) / 5;
  bytes[0] = 10;
  bytes[1] = 0xff;
  memcpy(bytes + 2, &n, 4);
  for (uint32_t i = 0; i < n; i++) {
    bytes[6 + 5 * i] = 6;
    memcpy(bytes + 7 + 5 * i, &i, 4);
  }
  memset(bytes + 6 + 5 * n, 0, length - 6 - 5 * n);
  return bytes;
}

static void held_open(struct pair *p, void *state) {
  struct perigee_options options;
  variant_options(state, &options);
  options.hold = HOLD;
  pair_open_with(p, state, &options);
}

static int ask(struct perigee_session *session, uint16_t method, bool typed,
               const void *head, uint64_t length) {
  struct perigee_message m = {.method = method,
                              .flags = typed ? PERIGEE_TYPED : 0,
                              .head = head,
                              .length = length,
                              .timeout = 60000 * MS};
  int call = perigee_call(session, &m);
  assert_true(call >= 0);
  return call;
}

static struct perigee_event request(struct pair *p, int method, bool held) {
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.method, method);
  assert_int_equal(!!(e.flags & PERIGEE_HELD), held);
  return e;
}

static void answer(struct pair *p, const struct perigee_event *e) {
  struct perigee_message r = {.head = "yes", .length = 3};
  assert_int_equal(perigee_reply(p->engine[1], e->operation, &r), 0);
}

/* ---- Requests ------------------------------------------------------------ */

static void what_comes_after_a_held_request_waits_until_it_started(void **s) {
  struct pair p;
  uint8_t *text = typed_text(1000);
  held_open(&p, *s);
  int first = ask(p.session[0], 1, true, text, 1000);
  int second = ask(p.session[0], 2, false, "raw", 3);
  int third = ask(p.session[0], 3, true, text, 1000);
  struct perigee_event a = request(&p, 1, true);
  quiet(&p, 50);
  assert_memory_equal(a.pointer, text, 1000);
  perigee_started(p.engine[1], a.operation);
  struct perigee_event b = request(&p, 2, false), c = request(&p, 3, true);
  assert_memory_equal(a.pointer, text, 1000);
  answer(&p, &c);
  answer(&p, &b);
  answer(&p, &a);
  for (int i = 0; i < 3; i++)
    assert_int_equal(until(&p, 0, PERIGEE_EVENT_REPLY).status, 0);
  assert_true(first != second && second != third);
  free(text);
  pair_close(&p);
}

static void a_reply_lets_them_come_too(void **state) {
  struct pair p;
  uint8_t *text = typed_text(1000);
  held_open(&p, *state);
  for (uint16_t i = 0; i < 5; i++)
    ask(p.session[0], i, true, text, 1000);
  for (int i = 0; i < 5; i++) {
    struct perigee_event e = request(&p, i, true);
    quiet(&p, 20);
    answer(&p, &e);
    until(&p, 0, PERIGEE_EVENT_REPLY);
  }
  free(text);
  pair_close(&p);
}

/* The caller has not read it yet. */
static void a_long_reply_by_a_loan_lets_them_come_too(void **state) {
  struct pair p;
  struct perigee_loan loan;
  uint8_t *text = typed_text(1000);
  held_open(&p, *state);
  ask(p.session[0], 1, true, text, 1000);
  ask(p.session[0], 2, false, "raw", 3);
  struct perigee_event a = request(&p, 1, true);
  quiet(&p, 50);
  assert_int_equal(perigee_reply_begin(p.engine[1], a.operation, MIB, &loan),
                   0);
  assert_int_equal(perigee_reply_commit(p.engine[1], a.operation, MIB), 1);
  p.still[0] = true;
  struct perigee_event b = request(&p, 2, false);
  p.still[0] = false;
  answer(&p, &b);
  for (int i = 0; i < 2; i++)
    assert_int_equal(until(&p, 0, PERIGEE_EVENT_REPLY).status, 0);
  assert_int_equal(until(&p, 1, PERIGEE_EVENT_SENT).status, 0);
  free(text);
  pair_close(&p);
}

static void none_but_its_own_session_waits(void **state) {
  struct pair p;
  struct perigee_session *other[2];
  uint8_t *text = typed_text(1000);
  held_open(&p, *state);
  pair_dial(&p, other);
  ask(p.session[0], 1, true, text, 1000);
  struct perigee_event a = request(&p, 1, true);
  ask(other[0], 2, true, text, 1000);
  struct perigee_event b = request(&p, 2, true);
  answer(&p, &b);
  until(&p, 0, PERIGEE_EVENT_REPLY);
  perigee_started(p.engine[1], b.operation); /* over: nothing */
  perigee_started(p.engine[1], -1);
  perigee_started(p.engine[1], 1 << 20);
  ask(p.session[0], 3, false, "raw", 3);
  quiet(&p, 50);
  answer(&p, &a);
  a = request(&p, 3, false);
  answer(&p, &a);
  for (int i = 0; i < 2; i++)
    until(&p, 0, PERIGEE_EVENT_REPLY);
  perigee_session_close(other[0]);
  free(text);
  pair_drop(&p);
}

static void a_callers_end_leaves_a_held_request_to_be_answered(void **state) {
  struct pair p;
  uint8_t *text = typed_text(1000);
  held_open(&p, *state);
  ask(p.session[0], 1, true, text, 1000);
  struct perigee_event a = request(&p, 1, true);
  assert_false(perigee_served_cancelled(p.engine[1], a.operation));
  perigee_session_close(p.session[0]);
  until(&p, 1, PERIGEE_EVENT_LOST);
  assert_true(perigee_served_cancelled(p.engine[1], a.operation));
  assert_memory_equal(a.pointer, text, 1000);
  perigee_started(p.engine[1], a.operation);
  struct perigee_message r = {.head = "yes", .length = 3};
  assert_int_equal(perigee_reply(p.engine[1], a.operation, &r),
                   PERIGEE_PEER_LOST);
  free(text);
  pair_drop(&p);
}

/* ---- Replies ------------------------------------------------------------- */

static struct perigee_event replied(struct pair *p, const uint8_t *head,
                                    uint64_t length) {
  ask(p->session[0], 1, false, "raw", 3);
  struct perigee_event e = request(p, 1, false);
  struct perigee_message r = {
      .flags = PERIGEE_TYPED, .head = head, .length = length};
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  assert_true(sent >= 0);
  struct perigee_event back = until(p, 0, PERIGEE_EVENT_REPLY);
  assert_int_equal(back.length, length);
  assert_memory_equal(back.pointer, head, length);
  if (sent == 1)
    assert_int_equal(until(p, 1, PERIGEE_EVENT_SENT).status, 0);
  return back;
}

static void long_replies_are_the_callers_until_it_gives_them_back(void **s) {
  static const uint32_t lengths[] = {101, 1000, 20000, 40000, MIB - 100};
  struct pair p;
  held_open(&p, *s);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    uint8_t *text = typed_text(lengths[i]), *other = typed_text(lengths[i]);
    uint8_t *small = typed_text(10);
    other[lengths[i] - 1] = 'y';
    struct perigee_event e = replied(&p, text, lengths[i]);
    assert_int_equal(e.flags, PERIGEE_TYPED | PERIGEE_HELD);
    assert_true(e.remaining > 0 && e.remaining <= 60000 * MS);
    assert_int_equal(replied(&p, small, 10).flags, PERIGEE_TYPED);
    struct perigee_event next = replied(&p, other, lengths[i]);
    quiet(&p, 20);
    assert_memory_equal(e.pointer, text, lengths[i]);
    perigee_pool_free(p.engine[0], (uint8_t *)(uintptr_t)e.pointer);
    perigee_pool_free(p.engine[0], (uint8_t *)(uintptr_t)next.pointer);
    free(small);
    free(other);
    free(text);
  }
  pair_close(&p);
}

/* ---- Long heads ---------------------------------------------------------- */

/* A large ring, so that a long head is sent in it: then the scan is what
 * takes polls. */
static void wide_open(struct pair *p, void *state) {
  const struct variant *v = state;
  struct perigee_options options;
  variant_options(v, &options);
  if (strcmp(v->transport, "inproc") != 0) {
    options.ring = 2 * MIB;
    options.eager = 512 * KIB - 128;
  }
  pair_open_with(p, state, &options);
}

/* The number of polls of side 1 until the request of a method comes. */
static int polls_until(struct pair *p, int method, struct perigee_event *e) {
  int polls = 0;
  while (!taken(p, 1, e)) {
    poll_side(p, 0);
    poll_side(p, 1);
    assert_true(++polls < 100000);
  }
  assert_int_equal(e->kind, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e->method, method);
  return polls;
}

static void others_come_while_a_long_request_is_scanned(void **state) {
  struct pair p;
  struct perigee_session *other[2];
  struct perigee_event a, b;
  uint8_t *list = typed_list(LONG_HEAD);
  wide_open(&p, *state);
  pair_dial(&p, other);
  ask(other[0], 2, false, "raw", 3);
  int usual = polls_until(&p, 2, &b);
  ask(p.session[0], 1, true, list, LONG_HEAD);
  assert_true(polls_until(&p, 1, &a) >= usual + 10);
  assert_memory_equal(a.pointer, list, LONG_HEAD);
  answer(&p, &b);
  answer(&p, &a);
  for (int i = 0; i < 2; i++)
    until(&p, 0, PERIGEE_EVENT_REPLY);
  free(list);
  pair_drop(&p);
}

/* A lane may learn late that its operation has ended. */
static void answered_if_it_came(struct pair *p) {
  struct perigee_event e;
  for (int i = 0; i < 100; i++) {
    poll_side(p, 0);
    poll_side(p, 1);
    if (taken(p, 1, &e))
      answer(p, &e);
  }
}

static void a_call_that_ends_while_it_is_scanned_leaves_nothing(void **state) {
  struct pair p;
  uint8_t *list = typed_list(LONG_HEAD);
  wide_open(&p, *state);
  for (int polls = 0; polls < 12; polls++) {
    int call = ask(p.session[0], 1, true, list, LONG_HEAD);
    for (int i = 0; i < polls; i++)
      poll_side(&p, 1);
    perigee_cancel(p.engine[0], call);
    ended(&p, 0, call, PERIGEE_CANCELLED);
    answered_if_it_came(&p);
    settle(&p);
  }
  free(list);
  pair_close(&p);
}

static void long_replies_are_scanned_in_portions(void **state) {
  struct pair p;
  uint8_t *list = typed_list(LONG_HEAD);
  wide_open(&p, *state);
  for (int way = 0; way < 2; way++) {
    int call = ask(p.session[0], 1, false, "raw", 3), polls = 0;
    struct perigee_event e = request(&p, 1, false), end;
    struct perigee_message r = {
        .flags = PERIGEE_TYPED, .head = list, .length = LONG_HEAD};
    int sent = perigee_reply(p.engine[1], e.operation, &r);
    assert_true(sent >= 0);
    for (; !taken(&p, 0, &end); polls++) {
      poll_side(&p, 0);
      poll_side(&p, 1);
      if (way == 1 && polls == 3)
        perigee_cancel(p.engine[0], call);
    }
    assert_int_equal(end.status, way ? PERIGEE_CANCELLED : 0);
    assert_true(way || polls > 10);
    if (sent == 1)
      until(&p, 1, PERIGEE_EVENT_SENT);
    settle(&p);
  }
  free(list);
  pair_drop(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_comes_after_a_held_request_waits_until_it_started),
      cmocka_unit_test(a_reply_lets_them_come_too),
      cmocka_unit_test(a_long_reply_by_a_loan_lets_them_come_too),
      cmocka_unit_test(none_but_its_own_session_waits),
      cmocka_unit_test(a_callers_end_leaves_a_held_request_to_be_answered),
      cmocka_unit_test(long_replies_are_the_callers_until_it_gives_them_back),
      cmocka_unit_test(others_come_while_a_long_request_is_scanned),
      cmocka_unit_test(a_call_that_ends_while_it_is_scanned_leaves_nothing),
      cmocka_unit_test(long_replies_are_scanned_in_portions),
  };
  return RUN_MATRIX("held", tests);
}
