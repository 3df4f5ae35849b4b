/* SPDX-License-Identifier: Apache-2.0
 *
 * typed_calls_test.c - typed values and failures of C programs on their way
 * between two engines: what perigee_decode_event and perigee_failure_read make
 * of real events.
 */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "operation/operations.h"

static void is_bytes(const char *text, uint64_t length, const char *expected) {
  if (length != strlen(expected) || memcmp(text, expected, length) != 0)
    fail_msg("not \"%s\" but \"%.*s\"", expected, (int)length, text);
}

static void is_string(const struct perigee_value *v, const char *expected) {
  assert_int_equal(v->kind, PERIGEE_VALUE_STRING);
  is_bytes(v->string, v->length, expected);
}

/* ---- Values -------------------------------------------------------------- */

static struct perigee_value given(struct perigee_decoder *d, uint32_t kind) {
  struct perigee_value v = {.kind = PERIGEE_VALUE_NIL};
  assert_int_equal(perigee_decode(d, &v), 1);
  assert_int_equal(v.kind, kind);
  return v;
}

/* Encodes a slice between two values, and names it. */
static void encoded(struct perigee_message *m, uint8_t bytes[64],
                    struct perigee_slice slice) {
  struct perigee_encoder e;
  perigee_encode_begin(&e, bytes, 64);
  perigee_encode_text(&e, "before");
  if (slice.region)
    perigee_encode_slice(&e);
  perigee_encode_number(&e, 7);
  m->length = (uint64_t)perigee_encode_end(&e);
  m->head = bytes;
  m->flags = PERIGEE_TYPED | PERIGEE_CHECKED;
  m->slice = slice;
}

static void decoded(const struct perigee_event *e, uint64_t slice) {
  struct perigee_decoder d;
  struct perigee_value v;
  assert_int_equal(perigee_decode_event(&d, e), PERIGEE_OK);
  v = given(&d, PERIGEE_VALUE_STRING);
  is_string(&v, "before");
  if (slice)
    assert_int_equal(given(&d, PERIGEE_VALUE_SLICE).length, slice);
  assert_true(given(&d, PERIGEE_VALUE_NUMBER).number == 7);
  assert_int_equal(perigee_decode(&d, &v), 0);
}

/* A call with a slice of so many bytes, which comes back; 0: with none. */
static void to_and_fro(struct pair *p, uint64_t length) {
  struct perigee_region *from = region_of(p, 0, NULL, length + 1, 0),
                        *back = region_of(p, 1, NULL, length + 1, 0);
  struct perigee_message m = {.timeout = 60000 * MS}, r = {.method = 0};
  struct perigee_slice none = {{NULL}, 0, 0, 0, 0};
  uint8_t bytes[2][64];
  encoded(&m, bytes[0], length ? all_of(from, length) : none);
  encoded(&r, bytes[1], length ? all_of(back, length) : none);
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e;
  if (length) {
    e = until(p, 1, PERIGEE_EVENT_LANDING);
    decoded(&e, length);
    struct perigee_slice pooled = {{NULL}, 0, 0, 0, 0};
    assert_int_equal(perigee_land(p->engine[1], e.operation, &pooled), 0);
  }
  e = until(p, 1, PERIGEE_EVENT_REQUEST);
  decoded(&e, length);
  if (e.flags & PERIGEE_POOLED)
    perigee_pool_free(p->engine[1], e.landed);
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  assert_true(sent >= 0);
  e = ended(p, 0, call, PERIGEE_OK);
  decoded(&e, length);
  if (e.flags & PERIGEE_POOLED)
    perigee_pool_free(p->engine[0], e.landed);
  if (sent == 1)
    until(p, 1, PERIGEE_EVENT_SENT);
  settle(p);
  region_end(from);
  region_end(back);
}

static void values_and_a_slice_go_to_and_fro(void **state) {
  struct pair p;
  pair_open(&p, *state);
  to_and_fro(&p, 0);
  to_and_fro(&p, 100);
  to_and_fro(&p, 100 * KIB);
  pair_close(&p);
}

static void a_call_without_values_is_typed_too(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_message m = {.flags = PERIGEE_TYPED | PERIGEE_CHECKED,
                              .timeout = 60000 * MS};
  int call = perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  struct perigee_decoder d;
  struct perigee_value v;
  assert_int_equal(perigee_decode_event(&d, &e), PERIGEE_OK);
  assert_int_equal(perigee_decode(&d, &v), 0);
  assert_int_equal(perigee_reply(p.engine[1], e.operation, &m), 0);
  e = ended(&p, 0, call, PERIGEE_OK);
  assert_int_equal(perigee_decode_event(&d, &e), PERIGEE_OK);
  assert_int_equal(perigee_decode(&d, &v), 0);
  pair_close(&p);
}

/* The result of a failed encoder is among what programs send unseen. */
static void data_that_are_none_are_named(void **state) {
  struct pair p;
  struct perigee_encoder failed;
  uint8_t bytes[8] = {0xff};
  pair_open(&p, *state);
  perigee_encode_begin(&failed, bytes + 1, 7);
  perigee_encode_table(&failed, 1, 0);
  const uint64_t lengths[] = {1, (uint64_t)perigee_encode_end(&failed)};
  for (int i = 0; i < 2; i++) {
    struct perigee_message m = {.flags = PERIGEE_TYPED | PERIGEE_CHECKED * i,
                                .head = bytes,
                                .length = lengths[i]};
    char said[32];
    snprintf(said, sizeof said, " %llu bytes", (unsigned long long)lengths[i]);
    assert_int_equal(perigee_call(p.session[0], &m), PERIGEE_PROTOCOL);
    assert_non_null(strstr(perigee_detail(p.engine[0]), said));
  }
  pair_close(&p);
}

/* ---- Failures ------------------------------------------------------------ */

struct failing {
  int status;
  const char *text;
  const struct perigee_value *code;
  bool ran;
  int gets; /* the status of the caller's event */
};

static struct perigee_failure read_of(const struct perigee_event *e) {
  struct perigee_failure f;
  assert_int_equal(perigee_failure_read(e, &f, sizeof f), PERIGEE_OK);
  return f;
}

/* Has a call answered so, and returns the caller's event. */
static struct perigee_event answered(struct pair *p, const struct failing *f) {
  struct perigee_message m = {.timeout = 60000 * MS};
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(perigee_fail_call(p->engine[1], e.operation, f->status,
                                     f->text, f->code, f->ran),
                   0);
  return ended(p, 0, call, f->gets);
}

static void failures_arrive_as_they_were_told(void **state) {
  static const struct perigee_value text = {
      .kind = PERIGEE_VALUE_STRING, .string = "E1", .length = 2};
  static const struct perigee_value number = {.kind = PERIGEE_VALUE_NUMBER,
                                              .number = 7};
  static const struct perigee_value nil = {.kind = PERIGEE_VALUE_NIL};
  static const struct failing failures[] = {
      {PERIGEE_REMOTE, "no luck", NULL, true, PERIGEE_REMOTE},
      {PERIGEE_REMOTE, "", &text, true, PERIGEE_REMOTE},
      {PERIGEE_NOT_FOUND, "there is none", &number, true, PERIGEE_REMOTE},
      {PERIGEE_TIMEOUT, NULL, &nil, true, PERIGEE_REMOTE},
      {PERIGEE_NO_METHOD, "x has no y", NULL, false, PERIGEE_NO_METHOD},
      {PERIGEE_CLOSED, "draining", &text, false, PERIGEE_CLOSED},
      {PERIGEE_REMOTE, "its landing failed", NULL, false, PERIGEE_REMOTE},
  };
  struct pair p;
  pair_open(&p, *state);
  for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
    const struct failing *told = &failures[i];
    struct perigee_event e = answered(&p, told);
    struct perigee_failure f = read_of(&e);
    bool has_text = told->text && *told->text;
    assert_int_equal(f.status, told->status);
    assert_int_equal(f.ran, told->ran);
    assert_null(f.traceback);
    is_bytes(f.text, f.text_length,
             has_text ? told->text : perigee_status_text(told->status));
    assert_int_equal(f.code.kind, told->code ? told->code->kind : 0);
    if (f.code.kind == PERIGEE_VALUE_STRING)
      is_string(&f.code, "E1");
    if (f.code.kind == PERIGEE_VALUE_NUMBER)
      assert_true(f.code.number == 7);
  }
  pair_close(&p);
}

static void statuses_without_a_kind_are_remote(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int status = PERIGEE_DRAINING; status <= PERIGEE_AGAIN; status++) {
    struct failing own = {status, "?", NULL, true, PERIGEE_REMOTE};
    struct perigee_event e = answered(&p, &own);
    assert_int_equal(read_of(&e).status, PERIGEE_REMOTE);
  }
  struct failing drains = {PERIGEE_DRAINING, "?", NULL, false,
                           PERIGEE_DRAINING};
  struct perigee_event e = answered(&p, &drains);
  struct perigee_failure f = read_of(&e);
  assert_int_equal(f.ran, 0);
  is_string(&f.code, "draining");
  pair_close(&p);
}

static void wrong_failures_leave_the_call_unanswered(void **state) {
  static const struct perigee_value codes[] = {
      {.kind = PERIGEE_VALUE_TABLE},
      {.kind = PERIGEE_VALUE_INT64},
      {.kind = PERIGEE_VALUE_STRING, .string = NULL, .length = 1}};
  struct pair p;
  pair_open(&p, *state);
  struct perigee_message m = {.timeout = 60000 * MS};
  int call = perigee_call(p.session[0], &m);
  int served = until(&p, 1, PERIGEE_EVENT_REQUEST).operation;
  struct perigee_engine *engine = p.engine[1];
  assert_int_equal(perigee_fail_call(engine, served, 0, "?", NULL, true),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_fail_call(engine, served, -99, "?", NULL, true),
                   PERIGEE_INVALID);
  for (int i = 0; i < 3; i++)
    assert_int_equal(
        perigee_fail_call(engine, served, PERIGEE_REMOTE, "?", &codes[i], true),
        PERIGEE_INVALID);
  assert_int_equal(
      perigee_fail_call(engine, served, PERIGEE_REMOTE, "?", NULL, true), 0);
  ended(&p, 0, call, PERIGEE_REMOTE);
  assert_int_equal(
      perigee_fail_call(engine, served, PERIGEE_REMOTE, "?", NULL, true),
      PERIGEE_INVALID);
  pair_close(&p);
}

/* Engines with so small an eager limit. A long text in letters of two bytes. */
static void cut(void *state, uint64_t eager, bool with_values) {
  struct pair p;
  struct perigee_options o;
  variant_options(state, &o);
  o.eager = eager;
  pair_open_with(&p, state, &o);
  static char text[20001];
  for (int i = 0; i < 20000; i++)
    text[i] = i % 2 ? '\xbc' : '\xc3';
  struct perigee_value code = {
      .kind = PERIGEE_VALUE_STRING, .string = text, .length = 20000};
  struct failing failing = {PERIGEE_REMOTE, text, with_values ? &code : NULL,
                            true, PERIGEE_REMOTE};
  struct perigee_event e = answered(&p, &failing);
  struct perigee_failure f = read_of(&e);
  uint64_t most = eager < 8 * KIB ? eager : 8 * KIB;
  bool coded = with_values && most > 1029, sentence = most < 2;
  assert_true(e.length + e.slice <= most);
  if (!sentence)
    assert_int_equal(f.text_length % 2, 0);
  if (!sentence && !with_values)
    assert_true(f.text_length + 8 >= most);
  assert_int_equal(f.code.kind == PERIGEE_VALUE_STRING, coded);
  if (coded)
    assert_int_equal(f.code.length, 1024);
  settle(&p);
  pair_close(&p);
}

static void long_texts_are_cut_to_what_the_ring_takes(void **state) {
  static const uint64_t eager[] = {0, 1, 64, 255, 1023, 1100, 4096, 16000};
  for (size_t i = 0; i < sizeof eager / sizeof *eager; i++)
    for (int with_values = 0; with_values <= 1; with_values++)
      cut(*state, eager[i], with_values);
}

static void a_full_ring_lets_failures_wait(void **state) {
  enum { CALLS = 100 };
  struct pair p;
  pair_open(&p, *state);
  static char text[7001];
  memset(text, 'x', sizeof text - 1);
  struct perigee_message m = {.timeout = 60000 * MS};
  int calls[CALLS], served[CALLS], waiting = 0;
  for (int i = 0; i < CALLS; i++)
    calls[i] = perigee_call(p.session[0], &m);
  for (int i = 0; i < CALLS; i++)
    served[i] = until(&p, 1, PERIGEE_EVENT_REQUEST).operation;
  p.still[0] = true;
  for (int i = 0; i < CALLS; i++) {
    int status = perigee_fail_call(p.engine[1], served[i], PERIGEE_REMOTE, text,
                                   NULL, true);
    assert_true(status == 0 || status == 1);
    waiting += status;
  }
  p.still[0] = false;
  assert_true(waiting > 0);
  for (int i = 0; i < CALLS; i++) {
    struct perigee_event e = ended(&p, 0, calls[i], PERIGEE_REMOTE);
    assert_int_equal(read_of(&e).text_length, sizeof text - 1);
  }
  for (int i = 0; i < waiting; i++)
    until(&p, 1, PERIGEE_EVENT_SENT);
  settle(&p);
  pair_close(&p);
}

static void a_landing_is_refused_so(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_region *from = region_of(&p, 0, NULL, 4096, 0);
  struct perigee_message m = {.timeout = 60000 * MS};
  uint8_t bytes[64];
  encoded(&m, bytes, all_of(from, 4096));
  int call = perigee_call(p.session[0], &m);
  int served = until(&p, 1, PERIGEE_EVENT_LANDING).operation;
  assert_int_equal(perigee_fail_call(p.engine[1], served, PERIGEE_TOO_LARGE,
                                     "no room", NULL, false),
                   0);
  struct perigee_event e = ended(&p, 0, call, PERIGEE_TOO_LARGE);
  struct perigee_failure f = read_of(&e);
  assert_int_equal(f.ran, 0);
  is_bytes(f.text, f.text_length, "no room");
  settle(&p);
  region_end(from);
  pair_close(&p);
}

/* ---- What peers of any kind say ------------------------------------------ */

/* A reply with these bytes behind the text "why". */
static struct perigee_failure behind(const char *values, uint64_t length,
                                     int status) {
  static uint8_t head[256];
  memcpy(head, "why", 4);
  memcpy(head + 4, values, length);
  struct perigee_event e = {.kind = PERIGEE_EVENT_REPLY,
                            .status = status,
                            .pointer = head,
                            .length = 3,
                            .slice = length};
  struct perigee_failure f = read_of(&e);
  is_bytes(f.text, f.text_length, "why");
  return f;
}
#define BEHIND(values, status) behind(values, sizeof(values) - 1, status)

static void values_of_other_kinds_are_passed_over(void **state) {
  (void)state;
  struct perigee_failure f = BEHIND("\x22tb\x21"
                                    "c\1\x26"
                                    "denied",
                                    PERIGEE_REMOTE);
  is_bytes(f.traceback, f.traceback_length, "tb");
  is_string(&f.code, "c");
  assert_int_equal(f.ran, 0);
  assert_int_equal(f.status, PERIGEE_DENIED);
  f = BEHIND("\xd\2\1\1\x21k\1\xd\2\1\1\x21k\1\2", PERIGEE_REMOTE);
  assert_null(f.traceback);
  assert_int_equal(f.code.kind, PERIGEE_VALUE_NIL);
  assert_int_equal(f.ran, 1);
  f = BEHIND("\x20\0\x21y\2", PERIGEE_REMOTE);
  assert_int_equal(f.ran, -1);
  assert_int_equal(f.status, PERIGEE_REMOTE);
  f = BEHIND("\x20\0\2\x27invalid", PERIGEE_REMOTE);
  assert_int_equal(f.status, PERIGEE_REMOTE);
  f = BEHIND("\x20\0\2\x26"
             "denied",
             PERIGEE_CLOSED);
  assert_int_equal(f.status, PERIGEE_CLOSED);
  f = BEHIND("\x20", PERIGEE_REMOTE);
  assert_int_equal(f.ran, -1);
  f = BEHIND("\3\3\3", PERIGEE_REMOTE);
  assert_int_equal(f.ran, -1);
}

static void failures_without_values_are_read(void **state) {
  (void)state;
  struct perigee_event e = {.kind = PERIGEE_EVENT_REPLY,
                            .status = PERIGEE_TIMEOUT};
  struct perigee_failure f = read_of(&e);
  is_bytes(f.text, f.text_length, perigee_status_text(PERIGEE_TIMEOUT));
  assert_int_equal(f.ran, -1);
  e.status = PERIGEE_NO_SERVICE;
  assert_int_equal(read_of(&e).ran, 0);
  e.kind = PERIGEE_EVENT_CONNECTED;
  e.status = PERIGEE_SYSTEM;
  e.pointer = (const uint8_t *)"refused";
  e.length = 7;
  f = read_of(&e);
  is_bytes(f.text, f.text_length, "refused");
  e.status = PERIGEE_OK;
  assert_int_equal(perigee_failure_read(&e, &f, sizeof f), PERIGEE_INVALID);
  e.status = PERIGEE_SYSTEM;
  assert_int_equal(perigee_failure_read(&e, &f, 4), PERIGEE_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(values_and_a_slice_go_to_and_fro),
      cmocka_unit_test(a_call_without_values_is_typed_too),
      cmocka_unit_test(data_that_are_none_are_named),
      cmocka_unit_test(failures_arrive_as_they_were_told),
      cmocka_unit_test(statuses_without_a_kind_are_remote),
      cmocka_unit_test(wrong_failures_leave_the_call_unanswered),
      cmocka_unit_test(long_texts_are_cut_to_what_the_ring_takes),
      cmocka_unit_test(a_full_ring_lets_failures_wait),
      cmocka_unit_test(a_landing_is_refused_so),
      cmocka_unit_test(values_of_other_kinds_are_passed_over),
      cmocka_unit_test(failures_without_values_are_read),
  };
  return RUN_MATRIX("typed calls", tests);
}
