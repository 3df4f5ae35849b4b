/* SPDX-License-Identifier: Apache-2.0
 *
 * failures_test.c - the data of a failed call: a text that C reads, and typed
 * values behind it for languages that decode them. None of it is written to the
 * reply's destination.
 */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "operation/operations.h"

enum { PLACE = 4096 };

/* Makes a call whose reply would land in `into` (NULL: nowhere), answered
 * with r. */
static struct perigee_event failed(struct pair *p, struct perigee_region *into,
                                   const struct perigee_message *r,
                                   int status) {
  struct perigee_message m = {.head = "?", .length = 1, .timeout = 60000 * MS};
  if (into)
    m.into = all_of(into, PLACE);
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  int sent = perigee_reply(p->engine[1], e.operation, r);
  assert_true(sent >= 0 || sent == status);
  e = ended(p, 0, call, status);
  assert_int_equal(e.kind, PERIGEE_EVENT_REPLY);
  assert_int_equal(e.flags, 0);
  if (sent == 1)
    until(p, 1, PERIGEE_EVENT_SENT);
  return e;
}

static void fails_with(struct pair *p, uint64_t length) {
  struct perigee_region *into = region_of(p, 0, NULL, PLACE, 0);
  uint8_t *text = pattern(length, 9);
  struct perigee_message r = {
      .status = PERIGEE_DENIED, .head = text, .length = length, .code = 77};
  fill_byte(into, 0xee);
  for (int named = 0; named <= 1; named++) {
    struct perigee_event e = failed(p, named ? into : NULL, &r, PERIGEE_DENIED);
    assert_int_equal(e.code, 77);
    assert_int_equal(e.length, length);
    assert_int_equal(e.slice, 0);
    if (length > 0)
      assert_memory_equal(e.pointer, text, length);
  }
  settle(p);
  all_byte(into, 0xee);
  free(text);
  region_end(into);
}

static void a_failure_is_a_text_of_any_length(void **state) {
  static const uint64_t lengths[] = {
      0, 1, 70, 8191, 8192, 8193, 16384, 16385, 100 * KIB, FAILURE_MOST};
  struct pair p;
  pair_open(&p, *state);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
    fails_with(&p, lengths[i]);
  pair_close(&p);
}

/* The text, a zero, and so many typed values (true). */
static uint8_t *with_values(uint64_t text, uint64_t values) {
  uint8_t *head = malloc(text + 1 + values);
  memset(head, 'x', text);
  head[text] = 0;
  memset(head + text + 1, 2, values);
  return head;
}

static void tells_values(struct pair *p, uint64_t text, uint64_t values) {
  uint8_t *head = with_values(text, values);
  struct perigee_message r = {.status = PERIGEE_REMOTE,
                              .flags = PERIGEE_TYPED,
                              .head = head,
                              .length = text + 1 + values};
  struct perigee_event e = failed(p, NULL, &r, PERIGEE_REMOTE);
  assert_int_equal(e.length, text);
  assert_int_equal(e.slice, values);
  assert_memory_equal(e.pointer, head, text + 1 + values);
  settle(p);
  free(head);
}

static void what_is_behind_the_text_is_told_apart(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i <= 20; i += 10) {
    tells_values(&p, 0, i);
    tells_values(&p, 11, i);
    tells_values(&p, 300, i);
    tells_values(&p, 9000, i);
    tells_values(&p, 70000, i);
  }
  pair_close(&p);
}

static void refuses(struct pair *p, int status, const void *head,
                    uint64_t length) {
  struct perigee_message r = {.status = PERIGEE_REMOTE,
                              .flags = PERIGEE_TYPED,
                              .head = head,
                              .length = length};
  assert_int_equal(failed(p, NULL, &r, status).slice, 0);
  settle(p);
}

static void what_is_no_text_with_values_is_not_looked_at(void **state) {
  static uint8_t no_zero[300], pointer[300];
  struct pair p;
  pair_open(&p, *state);
  memset(no_zero, 'x', sizeof no_zero);
  memset(pointer, 5, sizeof pointer);
  pointer[9] = 0;
  for (uint64_t length = 100; length <= 300; length += 200) {
    refuses(&p, PERIGEE_PROTOCOL, no_zero, length);
    refuses(&p, PERIGEE_PROTOCOL, pointer, length);
  }
  uint8_t *much = with_values(5, 16 * KIB + 1);
  refuses(&p, PERIGEE_PROTOCOL, much, 16 * KIB + 7);
  refuses(&p, PERIGEE_TOO_LARGE, much, 6 + 251);
  free(much);
  pair_close(&p);
}

static void too_long_a_text_does_not_travel(void **state) {
  struct pair p;
  pair_open(&p, *state);
  uint8_t *text = pattern(FAILURE_MOST + 1, 9);
  struct perigee_message r = {
      .status = PERIGEE_REMOTE, .head = text, .length = FAILURE_MOST + 1};
  struct perigee_event e = failed(&p, NULL, &r, PERIGEE_TOO_LARGE);
  assert_non_null(memmem(e.pointer, e.length, "131073 bytes", 12));
  settle(&p);
  free(text);
  pair_close(&p);
}

static void a_reply_that_went_well_is_not_read_as_a_failure(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_message m = {.timeout = 60000 * MS};
  struct perigee_message r = {
      .flags = PERIGEE_TYPED, .head = "\2\2", .length = 2};
  int call = perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(perigee_reply(p.engine[1], e.operation, &r), 0);
  e = ended(&p, 0, call, PERIGEE_OK);
  assert_int_equal(e.flags, PERIGEE_TYPED);
  assert_int_equal(e.length, 2);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_failure_is_a_text_of_any_length),
      cmocka_unit_test(what_is_behind_the_text_is_told_apart),
      cmocka_unit_test(what_is_no_text_with_values_is_not_looked_at),
      cmocka_unit_test(too_long_a_text_does_not_travel),
      cmocka_unit_test(a_reply_that_went_well_is_not_read_as_a_failure),
  };
  return run_matrix("failures", tests, sizeof tests / sizeof *tests);
}
