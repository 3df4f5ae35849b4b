/* SPDX-License-Identifier: Apache-2.0
 *
 * calls_test.c - calls and their replies: heads of every size, loans.
 */
#include "support.h"
#include "support_inside.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t sizes[] = {0,     1,     63,    64,          8191,
                                 8192,  8193,  16384, 16385,       65535,
                                 65536, 65537, MIB,   5 * MIB + 3, 8 * MIB};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void all_sent(struct pair *p, int reply) {
  assert_true(reply >= 0);
  if (reply == 1)
    assert_int_equal(until(p, 1, PERIGEE_EVENT_SENT).status, 0);
}

/* ---- Raw heads ---------------------------------------------------------- */

/* The reply is the request's own memory. */
static void echo(struct pair *p, uint64_t length) {
  uint8_t *bytes = pattern(length, (uint8_t)length);
  struct perigee_message m = {.method = 3,
                              .head = bytes,
                              .length = length,
                              .code = length + 1,
                              .timeout = 60000 * MS};
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.method, 3);
  assert_int_equal(e.code, length + 1);
  assert_int_equal(e.length, length);
  assert_true(e.remaining > 0 && e.remaining <= 60000 * MS);
  assert_memory_equal(e.pointer, bytes, length);
  struct perigee_message r = {
      .head = e.pointer, .length = e.length, .code = 99};
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  struct perigee_event back = ended(p, 0, call, 0);
  assert_int_equal(back.length, length);
  assert_int_equal(back.code, 99);
  assert_memory_equal(back.pointer, bytes, length);
  all_sent(p, sent);
  free(bytes);
}

static void calls_of_every_size_come_back(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < SIZES; i++)
    echo(&p, sizes[i]);
  pair_close(&p);
}

/* A raw reply lands in `into`; a raw head may be a slice. */
static void raw_into(struct pair *p, uint64_t length) {
  struct perigee_region *from = region_of(p, 0, NULL, length, 0);
  struct perigee_region *into = region_of(p, 0, NULL, length + 8, 0);
  uint8_t *bytes = pattern(length, 3);
  fill(from, 0, bytes, length);
  fill_byte(into, 0xee);
  struct perigee_message m = {.slice = all_of(from, length),
                              .into = all_of(into, length + 8),
                              .timeout = -1};
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.length, length);
  assert_memory_equal(e.pointer, bytes, length);
  struct perigee_message r = {.head = e.pointer, .length = e.length};
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  e = ended(p, 0, call, 0);
  assert_int_equal(e.slice, length);
  all_sent(p, sent);
  same(into, 0, bytes, length);
  same(into, length, "\xee\xee\xee\xee\xee\xee\xee\xee", 8);
  settle(p);
  region_end(from);
  region_end(into);
  free(bytes);
}

static void raw_slices_come_back_into_place(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < SIZES; i++)
    raw_into(&p, sizes[i]);
  pair_close(&p);
}

/* Those that fit into the ring take pieces of several sizes. */
static void short_ones_of_each_length_come_back(void **state) {
  enum { MOST = 160 };
  struct pair p;
  pair_open(&p, *state);
  for (uint64_t length = 1; length <= MOST; length++) {
    echo(&p, length);
    raw_into(&p, length);
  }
  pair_close(&p);
}

static void slice_is_closed(struct pair *p, uint64_t length, int status) {
  struct perigee_region *from = region_of(p, 0, NULL, length, 0);
  struct perigee_message m = {.slice = all_of(from, length), .timeout = -1};
  struct perigee_message none = {.length = 0};
  bool host = strcmp(perigee_region_kind(from, NULL), "host") == 0;
  fill_byte(from, 1);
  int call = perigee_call(p->session[0], &m);
  if (!host)
    status = PERIGEE_AGAIN;
  assert_int_equal(perigee_region_close(from, false), status);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  int sent = perigee_reply(p->engine[1], e.operation, &none);
  ended(p, 0, call, 0);
  all_sent(p, sent);
  settle(p);
  if (status == PERIGEE_AGAIN)
    region_end(from);
}

static void a_slice_that_was_sent_whole_is_free_at_once(void **state) {
  struct pair p;
  pair_open(&p, *state);
  slice_is_closed(&p, 64, PERIGEE_OK);
  slice_is_closed(&p, MIB, PERIGEE_AGAIN);
  pair_close(&p);
}

/* The first ones end before the clock is read, so their timers never start. */
static void entries_that_are_used_again_time_out(void **state) {
  enum { RECEIVES = 8 };
  int receives[RECEIVES], out[RECEIVES] = {0};
  struct pair p;
  pair_open(&p, *state);
  struct perigee_region *into = region_of(&p, 0, NULL, 64, 0);
  struct perigee_slice slice = all_of(into, 64);
  for (int i = 0; i < RECEIVES; i++)
    receives[i] = perigee_recv(p.session[0], &slice, 60000 * MS);
  for (int i = 0; i < RECEIVES; i++) {
    perigee_cancel(p.engine[0], receives[i]);
    ended(&p, 0, receives[i], PERIGEE_CANCELLED);
  }
  for (int i = 0; i < RECEIVES; i++)
    receives[i] = perigee_recv(p.session[0], &slice, 5 * MS);
  for (int ends = 0; ends < RECEIVES; ends++) {
    struct perigee_event e = until(&p, 0, PERIGEE_EVENT_DONE);
    assert_int_equal(e.status, PERIGEE_TIMEOUT);
    for (int i = 0; i < RECEIVES; i++)
      out[i] += e.operation == receives[i];
  }
  for (int i = 0; i < RECEIVES; i++)
    assert_int_equal(out[i], 1);
  settle(&p);
  region_end(into);
  pair_close(&p);
}

/* More than a socket takes or the transport buffers: the rest waits. */
static void bursts_wait_their_turn(void **state) {
  enum { CALLS = 1200, EACH = 8000 };
  static uint8_t bytes[EACH];
  struct perigee_message m = {.head = bytes, .length = EACH, .timeout = -1};
  struct perigee_message none = {.length = 0};
  struct perigee_options o;
  struct pair p;
  variant_options(*state, &o);
  o.ring = 16 * MIB;
  o.operations = 2048;
  pair_open_with(&p, *state, &o);
  for (int i = 0; i < CALLS; i++)
    assert_true(perigee_call(p.session[0], &m) >= 0);
  for (int ends = 0; ends < CALLS;)
    for (int side = 0; side < 2; side++) {
      struct perigee_event e;
      poll_side(&p, side);
      if (!taken(&p, side, &e))
        continue;
      assert_int_equal(e.kind,
                       side ? PERIGEE_EVENT_REQUEST : PERIGEE_EVENT_REPLY);
      assert_int_equal(
          side ? perigee_reply(p.engine[1], e.operation, &none) : e.status, 0);
      ends += side == 0;
    }
  pair_close(&p);
}

/* ---- Answers before the request was read --------------------------------- */

/* Memory that copies on its own time may still be read for the first call
 * when its answer comes. The second call's answer lands in the same place. */
static void answered_early(struct pair *p, struct perigee_region *from) {
  static const char *texts[] = {"the first answer", "the other answer"};
  struct perigee_message m = {
      .flags = PERIGEE_TYPED, .slice = all_of(from, MIB), .timeout = -1};
  struct perigee_message other = {.timeout = -1};
  int first = perigee_call(p->session[0], &m);
  perigee_call(p->session[0], &other);
  for (int i = 0; i < 2; i++) {
    int kind = i == 0 ? PERIGEE_EVENT_LANDING : PERIGEE_EVENT_REQUEST;
    struct perigee_event e = until(p, 1, kind);
    struct perigee_message r = {.head = texts[i], .length = 16};
    perigee_reply(p->engine[1], e.operation, &r);
  }
  for (int i = 0; i < 2; i++) {
    struct perigee_event e = until(p, 0, PERIGEE_EVENT_REPLY);
    assert_int_equal(e.length, 16);
    assert_memory_equal(e.pointer, texts[e.operation != first], 16);
  }
}

static void early_answers_stay_until_they_are_given(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_region *from = region_of(&p, 0, NULL, MIB, 0);
  for (int i = 0; i < 50; i++)
    answered_early(&p, from);
  settle(&p);
  region_end(from);
  pair_close(&p);
}

/* ---- Loans -------------------------------------------------------------- */

static void loaned(struct pair *p, uint64_t length) {
  uint8_t *bytes = pattern(length, 9);
  struct perigee_loan loan;
  struct perigee_message m = {.method = 5, .capacity = length, .timeout = -1};
  assert_int_equal(perigee_call_begin(p->session[0], length, &loan), 0);
  memcpy(loan.pointer, bytes, length);
  int call = perigee_call_commit(p->session[0], &m, length);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.capacity, length);
  assert_memory_equal(e.pointer, bytes, length);
  assert_int_equal(
      perigee_reply_begin(p->engine[1], e.operation, length, &loan), 0);
  memcpy(loan.pointer, e.pointer, length);
  int sent = perigee_reply_commit(p->engine[1], e.operation, length);
  struct perigee_event back = ended(p, 0, call, 0);
  assert_memory_equal(back.pointer, bytes, length);
  all_sent(p, sent);
  free(bytes);
}

static void loans_go_both_ways(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int round = 0; round < 3; round++)
    for (int i = 0; i < SIZES; i++)
      loaned(&p, sizes[i]);
  pair_close(&p);
}

static void loans_can_be_given_back(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_loan loan, other;
  for (int i = 0; i < SIZES; i++) {
    assert_int_equal(perigee_call_begin(p.session[0], sizes[i], &loan), 0);
    assert_int_equal(perigee_call_begin(p.session[0], 1, &other),
                     PERIGEE_INVALID);
    perigee_call_abort(p.session[0]);
    echo(&p, sizes[i]);
  }
  struct perigee_message m = {.timeout = -1}, r = {.head = "x", .length = 1};
  for (int i = 0; i < SIZES; i++) {
    int call = perigee_call(p.session[0], &m);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    assert_int_equal(
        perigee_reply_begin(p.engine[1], e.operation, sizes[i], &loan), 0);
    perigee_reply_abort(p.engine[1], e.operation);
    assert_int_equal(perigee_reply(p.engine[1], e.operation, &r), 0);
    assert_int_equal(ended(&p, 0, call, 0).length, 1);
  }
  pair_close(&p);
}

/* When payloads are sent over sockets, a loan whose call has ended, answered
 * or not, is not read by the peer. Otherwise the late answer gives it back. */
static void loans_of_cancelled_calls_are_used_again(void **state) {
  const struct variant *v = *state;
  bool pushes = strcmp(v->transport, "tcp") == 0;
  struct perigee_message r = {.head = "late", .length = 4};
  struct perigee_options o;
  struct perigee_loan loan;
  struct pair p;
  variant_options(v, &o);
  o.pool = 32 * MIB; /* half of it for own requests */
  pair_open_with(&p, *state, &o);
  for (int i = 0; i < 8; i++) {
    struct perigee_message m = {.timeout = -1};
    assert_int_equal(perigee_call_begin(p.session[0], 4 * MIB, &loan), 0);
    memset(loan.pointer, i, MIB);
    int call = perigee_call_commit(p.session[0], &m, MIB);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    perigee_cancel(p.engine[0], call);
    ended(&p, 0, call, PERIGEE_CANCELLED);
    if (pushes)
      continue;
    perigee_reply(p.engine[1], e.operation, &r);
    settle(&p);
  }
  pair_drop(&p);
}

/* Its number may be cancelled again. */
static void what_has_ended_is_not_cancelled_again(void **state) {
  struct perigee_message m = {.timeout = -1}, r = {.head = "late", .length = 4};
  struct perigee_loan loan;
  struct pair p;
  pair_open(&p, *state);
  assert_int_equal(perigee_call_begin(p.session[0], MIB, &loan), 0);
  int call = perigee_call_commit(p.session[0], &m, MIB);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  perigee_cancel(p.engine[0], call);
  ended(&p, 0, call, PERIGEE_CANCELLED);
  quiet(&p, 2);
  uint64_t lent = lent_bytes(p.session[0]), left = operations(&p, 0);
  perigee_cancel(p.engine[0], call);
  assert_int_equal(operations(&p, 0), left);
  assert_int_equal(lent_bytes(p.session[0]), lent);
  perigee_reply(p.engine[1], e.operation, &r);
  pair_close(&p);
}

/* How a program that misses an end tells where it is. */
static void an_operation_is_told_as_text(void **state) {
  struct perigee_message m = {.timeout = -1}, r = {.head = "x", .length = 1};
  char text[256];
  struct pair p;
  pair_open(&p, *state);
  assert_true(perigee_operation_text(p.engine[0], 0, text, sizeof text) > 0);
  int call = perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  perigee_operation_text(p.engine[0], call, text, sizeof text);
  assert_non_null(strstr(text, "a call in state "));
  perigee_operation_text(p.engine[1], e.operation, text, sizeof text);
  assert_non_null(strstr(text, "a request of the peer in state "));
  perigee_reply(p.engine[1], e.operation, &r);
  ended(&p, 0, call, 0);
  quiet(&p, 2);
  for (int i = -1; i < 2; i++) {
    perigee_operation_text(p.engine[0], i ? i * 70000 : call, text,
                           sizeof text);
    assert_string_equal(text, "there is none");
  }
  assert_int_equal(
      perigee_operation_text(p.engine[0], call, text, sizeof "there"), 13);
  assert_string_equal(text, "there");
  pair_close(&p);
}

static void capacities_beyond_any_payload_are_refused(void **state) {
  const uint64_t most = UINT64_C(1) << 40;
  struct perigee_message m = {.timeout = -1, .capacity = most};
  struct perigee_loan loan;
  struct pair p;
  pair_open(&p, *state);
  int call = perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.capacity, most);
  perigee_reply(p.engine[1], e.operation, &(struct perigee_message){0});
  ended(&p, 0, call, PERIGEE_OK);
  for (m.capacity = most + 1; m.capacity > most; m.capacity *= 2) {
    assert_int_equal(perigee_call(p.session[0], &m), PERIGEE_TOO_LARGE);
    assert_int_equal(perigee_call_begin(p.session[0], 100, &loan), 0);
    assert_int_equal(perigee_call_commit(p.session[0], &m, 100),
                     PERIGEE_TOO_LARGE);
  }
  pair_close(&p);
}

/* Each engine numbers its operations. Frames about an operation that has
 * ended carry its number and the 32-bit count of that number's uses. */
static void short_calls_for_long(struct pair *p, uint32_t calls, int times) {
  for (int i = 0; i < times; i++) {
    for (int side = 0; side < 2; side++)
      operations_age(p->engine[side], calls / (uint32_t)times);
    echo(p, 64);
  }
}

static void numbers_of_operations_are_used_without_end(void **state) {
  struct perigee_message m = {.timeout = -1}, r = {.head = "x", .length = 1};
  struct pair p;
  pair_open(&p, *state);
  int call = perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  perigee_cancel(p.engine[0], call);
  ended(&p, 0, call, PERIGEE_CANCELLED);
  perigee_reply(p.engine[1], e.operation, &r);
  settle(&p);
  for (int times = 8; times > 0; times /= 2) {
    short_calls_for_long(&p, 3u << 30, times);
    echo(&p, MIB);
  }
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(calls_of_every_size_come_back),
      cmocka_unit_test(raw_slices_come_back_into_place),
      cmocka_unit_test(short_ones_of_each_length_come_back),
      cmocka_unit_test(a_slice_that_was_sent_whole_is_free_at_once),
      cmocka_unit_test(entries_that_are_used_again_time_out),
      cmocka_unit_test(bursts_wait_their_turn),
      cmocka_unit_test(early_answers_stay_until_they_are_given),
      cmocka_unit_test(loans_go_both_ways),
      cmocka_unit_test(loans_can_be_given_back),
      cmocka_unit_test(loans_of_cancelled_calls_are_used_again),
      cmocka_unit_test(what_has_ended_is_not_cancelled_again),
      cmocka_unit_test(an_operation_is_told_as_text),
      cmocka_unit_test(capacities_beyond_any_payload_are_refused),
      cmocka_unit_test(numbers_of_operations_are_used_without_end),
  };
  return RUN_MATRIX("calls", tests);
}
