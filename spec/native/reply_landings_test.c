/* SPDX-License-Identifier: Apache-2.0
 *
 * reply_landings_test.c - calls that ask where their reply lands, once it has
 * come: a slice or raw bytes, of every size; places that are refused; calls that
 * end meanwhile; joins. ends_test.c and rows_test.c stop such calls in each
 * state.
 */
#include <stdlib.h>
#include <string.h>

#include "support.h"
#include "support_inside.h"

static const uint64_t sizes[] = {0,     1,     63,    64,          8191,
                                 8192,  8193,  16384, 16385,       65535,
                                 65536, 65537, MIB,   5 * MIB + 3, 8 * MIB};
enum { SIZES = sizeof sizes / sizeof *sizes, HOLD = 100, ROOM = 64 * KIB };
static const uint64_t CODE = 0x1234567812345678;

/* ---- A call and its reply -------------------------------------------------- */

/* What side 0 calls, side 1 answers, and side 0 gets. */
struct talk {
  struct pair p;
  struct perigee_region *from, *to; /* of side 1, of side 0 */
  uint8_t *bytes;                   /* in `from` */
  uint64_t length;                  /* of the reply */
  bool raw;
  uint8_t head[1000]; /* typed, with the slice's place */
  uint64_t head_length;
  int call, sent;
};

/* Some text, and behind it the slice. */
static void encode_head(struct talk *t, uint64_t text) {
  char letters[sizeof t->head];
  struct perigee_encoder e;
  memset(letters, 'k', sizeof letters);
  perigee_encode_begin(&e, t->head, sizeof t->head);
  perigee_encode_string(&e, letters, text);
  perigee_encode_slice(&e);
  t->head_length = (uint64_t)perigee_encode_end(&e);
}

static void talk_with(struct talk *t, uint64_t most) {
  t->from = region_of(&t->p, 1, NULL, most, 0);
  t->to = region_of(&t->p, 0, NULL, most + 16, 0);
  t->bytes = pattern(most, 43);
  fill(t->from, 0, t->bytes, most);
  encode_head(t, 3);
}

static void talk_open(struct talk *t, void *state, uint64_t most) {
  *t = (struct talk){0};
  pair_open(&t->p, state);
  talk_with(t, most);
}

static void talk_close(struct talk *t) {
  settle(&t->p);
  quiet(&t->p, 2);
  region_end(t->from);
  region_end(t->to);
  free(t->bytes);
  pair_close(&t->p);
}

/* Calls, and returns the served call. */
static int talk_call(struct talk *t, uint16_t more) {
  struct perigee_message m = {.flags = PERIGEE_ASKS | more, .timeout = -1};
  t->call = perigee_call(t->p.session[0], &m);
  assert_true(t->call >= 0);
  return until(&t->p, 1, PERIGEE_EVENT_REQUEST).operation;
}

static void talk_reply(struct talk *t, int served) {
  struct perigee_message m = {.code = CODE,
                              .slice = all_of(t->from, t->length)};
  if (!t->raw) {
    m.flags = PERIGEE_TYPED;
    m.head = t->head;
    m.length = t->head_length;
  }
  t->sent = perigee_reply(t->p.engine[1], served, &m);
  assert_true(t->sent >= 0);
}

static void talk_expect_asked(const struct talk *t,
                              const struct perigee_event *e) {
  struct perigee_decoder d;
  struct perigee_value value;
  assert_int_equal(e->operation, t->call);
  assert_int_equal(e->session, perigee_session_id(t->p.session[0]));
  assert_int_equal(e->status, PERIGEE_OK);
  assert_int_equal(e->slice, t->length);
  assert_int_equal(e->code, CODE);
  assert_int_equal(e->remaining, -1);
  assert_int_equal(e->capacity, 0);
  assert_int_equal(e->length, t->raw ? 0 : t->head_length);
  assert_int_equal(e->flags & ~PERIGEE_HELD,
                   t->raw ? 0 : PERIGEE_TYPED | PERIGEE_SLICE);
  if (t->raw) {
    assert_null(e->pointer);
    return;
  }
  assert_memory_equal(e->pointer, t->head, t->head_length);
  assert_int_equal(perigee_decode_event(&d, e), 0);
  assert_int_equal(perigee_decode(&d, &value), 1);
  assert_int_equal(value.kind, PERIGEE_VALUE_STRING);
  assert_int_equal(perigee_decode(&d, &value), 1);
  assert_int_equal(value.kind, PERIGEE_VALUE_SLICE);
  assert_int_equal(value.length, t->length);
}

/* Calls, and gets the reply's length. */
static struct perigee_event talk_ask(struct talk *t, bool raw,
                                     uint64_t length) {
  t->raw = raw;
  t->length = length;
  talk_reply(t, talk_call(t, 0));
  struct perigee_event e = until(&t->p, 0, PERIGEE_EVENT_REPLY_LANDING);
  talk_expect_asked(t, &e);
  return e;
}

static int land(struct talk *t, struct perigee_slice place) {
  return perigee_land_reply(t->p.engine[0], t->call, &place);
}

static void talk_expect_sent(struct talk *t) {
  if (t->sent == 1)
    assert_int_equal(until(&t->p, 1, PERIGEE_EVENT_SENT).status, 0);
}

/* The reply has landed in its place. */
static void talk_expect_landed(struct talk *t) {
  struct perigee_event e = ended(&t->p, 0, t->call, 0);
  assert_int_equal(e.slice, t->length);
  assert_int_equal(e.code, CODE);
  assert_int_equal(e.flags, t->raw ? 0 : PERIGEE_TYPED | PERIGEE_SLICE);
  if (!t->raw)
    assert_memory_equal(e.pointer, t->head, t->head_length);
  same(t->to, 0, t->bytes, t->length);
  talk_expect_sent(t);
  assert_int_equal(t->to->users, 0);
}

/* It is in a pooled block. */
static void expect_pooled(struct talk *t, const struct perigee_event *e) {
  if (t->raw) {
    assert_int_equal(e->flags, 0);
    assert_int_equal(e->length, t->length);
    assert_int_equal(e->slice, 0);
    assert_memory_equal(e->pointer, t->bytes, t->length);
    return;
  }
  assert_int_equal(e->flags, PERIGEE_TYPED | PERIGEE_SLICE | PERIGEE_POOLED);
  assert_int_equal(e->slice, t->length);
  assert_memory_equal(e->pointer, t->head, t->head_length);
  assert_memory_equal(e->landed, t->bytes, t->length);
  perigee_pool_free(t->p.engine[0], e->landed);
}

static void talk_expect_pooled(struct talk *t) {
  struct perigee_event e = ended(&t->p, 0, t->call, 0);
  expect_pooled(t, &e);
  talk_expect_sent(t);
}

/* ---- Where they land -------------------------------------------------------- */

static void land_in_place(struct talk *t, bool raw, uint64_t length) {
  fill_byte(t->to, 0xaa);
  talk_ask(t, raw, length);
  quiet(&t->p, 3); /* nothing happens before it is told where */
  if (length > 0)
    assert_int_equal(land(t, all_of(t->to, length - 1)), PERIGEE_TOO_LARGE);
  assert_int_equal(land(t, all_of(t->to, length + 16)), 0);
  if (strcmp(state_of(t->p.engine[0], t->call), "fetching") == 0)
    assert_int_equal(t->to->users, 1);
  talk_expect_landed(t);
  same(t->to, length, "\xaa\xaa\xaa\xaa", 4);
}

static void replies_land_where_the_caller_says(void **state) {
  struct talk t;
  talk_open(&t, *state, sizes[SIZES - 1]);
  for (int i = 0; i < 2 * SIZES; i++)
    land_in_place(&t, i % 2, sizes[i / 2]);
  talk_close(&t);
}

static void replies_without_a_place_are_pooled(void **state) {
  struct talk t;
  struct perigee_slice none = {0};
  talk_open(&t, *state, sizes[SIZES - 1]);
  for (int i = 0; i < 4 * SIZES; i++) {
    talk_ask(&t, i % 2, sizes[i / 4]);
    assert_int_equal(
        perigee_land_reply(t.p.engine[0], t.call, i / 2 % 2 ? &none : NULL), 0);
    talk_expect_pooled(&t);
  }
  talk_close(&t);
}

static void a_landing_may_be_a_list(void **state) {
  static const uint64_t some[] = {1, 100, 8193, 16385, 65537, MIB};
  struct talk t;
  talk_open(&t, *state, MIB);
  for (int i = 0; i < 10; i++) {
    uint64_t length = some[i / 2], half = length / 2, rest = length - half;
    struct perigee_slice list[2] = {{{t.to}, half, rest, 1, rest},
                                    {{t.to}, 0, half, 1, half}};
    struct perigee_slice short_of = perigee_list(list + 1, 1);
    talk_ask(&t, i % 2, length);
    assert_int_equal(land(&t, short_of), PERIGEE_TOO_LARGE);
    assert_int_equal(t.to->users, 0);
    assert_int_equal(land(&t, perigee_list(list, 2)), 0);
    memset(list, 0xee, sizeof list); /* it was read */
    ended(&t.p, 0, t.call, 0);
    same(t.to, half, t.bytes, rest);
    same(t.to, 0, t.bytes + rest, half);
    talk_expect_sent(&t);
    assert_int_equal(t.to->users, 0);
  }
  talk_close(&t);
}

static void strides_are_kept(void **state) {
  struct talk t;
  talk_open(&t, *state, MIB);
  for (int raw = 0; raw < 2; raw++) {
    fill_byte(t.to, 0xaa);
    talk_ask(&t, raw, 300000);
    struct perigee_slice place = {{t.to}, 0, 1000, 300, 2000};
    assert_int_equal(land(&t, place), 0);
    ended(&t.p, 0, t.call, 0);
    for (uint64_t i = 0; i < 300; i++) {
      same(t.to, i * 2000, t.bytes + i * 1000, 1000);
      same(t.to, i * 2000 + 1000, "\xaa\xaa\xaa\xaa", 4);
    }
    talk_expect_sent(&t);
  }
  talk_close(&t);
}

/* The reply is filled in place; short and long. */
static void replies_of_loans_land_too(void **state) {
  struct talk t;
  struct perigee_loan loan;
  talk_open(&t, *state, MIB);
  for (int i = 0; i < 4; i++) {
    t.raw = true;
    t.length = i % 2 ? MIB : 500;
    struct perigee_message m = {
        .flags = PERIGEE_ASKS, .capacity = MIB, .timeout = -1};
    assert_int_equal(perigee_call_begin(t.p.session[0], MIB, &loan), 0);
    t.call = perigee_call_commit(t.p.session[0], &m, i / 2 ? MIB : 10);
    int served = until(&t.p, 1, PERIGEE_EVENT_REQUEST).operation;
    assert_int_equal(perigee_reply_begin(t.p.engine[1], served, MIB, &loan), 0);
    memcpy(loan.pointer, t.bytes, t.length);
    t.sent = perigee_reply_commit(t.p.engine[1], served, t.length);
    struct perigee_event e = until(&t.p, 0, PERIGEE_EVENT_REPLY_LANDING);
    assert_int_equal(e.slice, t.length);
    assert_int_equal(land(&t, all_of(t.to, t.length)), 0);
    ended(&t.p, 0, t.call, 0);
    same(t.to, 0, t.bytes, t.length);
    talk_expect_sent(&t);
  }
  talk_close(&t);
}

/* Long heads are scanned, and maybe pulled, before the program is asked. They
 * are the caller's from REPLY on. */
static void held_heads_come_before(void **state) {
  struct talk t = {0};
  struct perigee_options options;
  variant_options(*state, &options);
  options.hold = HOLD;
  pair_open_with(&t.p, *state, &options);
  talk_with(&t, MIB);
  encode_head(&t, 900);
  for (int i = 0; i < 4; i++) {
    struct perigee_event e = talk_ask(&t, false, i % 2 ? MIB : 20);
    assert_true(e.flags & PERIGEE_HELD);
    quiet(&t.p, 3);
    assert_memory_equal(e.pointer, t.head, t.head_length);
    if (i < 2)
      assert_int_equal(land(&t, all_of(t.to, MIB)), 0);
    else
      perigee_cancel(t.p.engine[0], t.call);
    struct perigee_event r =
        ended(&t.p, 0, t.call, i < 2 ? 0 : PERIGEE_CANCELLED);
    if (t.sent == 1)
      until(&t.p, 1, PERIGEE_EVENT_SENT);
    if (i >= 2)
      continue;
    assert_ptr_equal(r.pointer, e.pointer);
    quiet(&t.p, 3);
    assert_memory_equal(r.pointer, t.head, t.head_length);
    perigee_pool_free(t.p.engine[0], (uint8_t *)(uintptr_t)r.pointer);
  }
  talk_close(&t);
}

/* Two replies that came: the second one lands first. */
static void calls_are_asked_apart(void **state) {
  static const uint64_t some[] = {100, 8193, 16385, MIB};
  struct talk t, u;
  talk_open(&t, *state, MIB);
  u = t;
  u.to = region_of(&t.p, 0, NULL, MIB, 0);
  for (int i = 0; i < 3; i++) {
    t.raw = i % 2;
    u.raw = !t.raw;
    t.length = some[i];
    u.length = some[2 - i];
    talk_reply(&t, talk_call(&t, 0));
    until(&t.p, 0, PERIGEE_EVENT_REPLY_LANDING);
    u.p = t.p;
    talk_reply(&u, talk_call(&u, 0));
    until(&u.p, 0, PERIGEE_EVENT_REPLY_LANDING);
    assert_int_equal(land(&u, all_of(u.to, u.length)), 0);
    ended(&u.p, 0, u.call, 0);
    same(u.to, 0, u.bytes, u.length);
    talk_expect_sent(&u);
    t.p = u.p;
    assert_int_equal(land(&t, all_of(t.to, t.length)), 0);
    talk_expect_landed(&t);
  }
  settle(&t.p);
  region_end(u.to);
  talk_close(&t);
}

/* ---- Nothing is asked ------------------------------------------------------- */

static void reply_with(struct talk *t, const struct perigee_message *m) {
  int served = talk_call(t, 0);
  assert_int_equal(perigee_reply(t->p.engine[1], served, m), 0);
}

static void what_does_not_land_is_told_at_once(void **state) {
  struct talk t;
  talk_open(&t, *state, 64);
  reply_with(&t, &(struct perigee_message){
                     .status = PERIGEE_REMOTE, .head = "no", .length = 2});
  assert_memory_equal(ended(&t.p, 0, t.call, PERIGEE_REMOTE).pointer, "no", 2);
  reply_with(&t, &(struct perigee_message){
                     .flags = PERIGEE_TYPED, .head = "\0", .length = 1});
  assert_int_equal(ended(&t.p, 0, t.call, 0).length, 1);
  talk_close(&t);
}

static void a_place_that_was_named_is_used(void **state) {
  struct talk t;
  talk_open(&t, *state, MIB);
  for (int i = 0; i < 4; i++) {
    t.raw = i % 2;
    t.length = i / 2 ? MIB : 100;
    struct perigee_message m = {
        .flags = PERIGEE_ASKS, .into = all_of(t.to, MIB), .timeout = -1};
    t.call = perigee_call(t.p.session[0], &m);
    talk_reply(&t, until(&t.p, 1, PERIGEE_EVENT_REQUEST).operation);
    ended(&t.p, 0, t.call, 0);
    same(t.to, 0, t.bytes, t.length);
    talk_expect_sent(&t);
  }
  talk_close(&t);
}

/* ---- Places that are none, and answers to nothing ---------------------------- */

static void places_that_are_none_are_refused(void **state) {
  struct talk t;
  talk_open(&t, *state, MIB);
  for (int i = 0; i < 4; i++) {
    struct perigee_region *closed = region_of(&t.p, 0, NULL, MIB, 0);
    struct perigee_slice twice[2] = {all_of(t.to, MIB), all_of(t.to, MIB)};
    talk_ask(&t, i % 2, i / 2 ? MIB : 100);
    struct perigee_slice outside = all_of(t.to, t.length);
    outside.offset = MIB;
    region_end(closed);
    closed = region_of(&t.p, 0, NULL, MIB, 0);
    struct perigee_slice of_closed = all_of(closed, MIB);
    closed->users++; /* so that the handle stays */
    perigee_region_close(closed, 0);
    for (int again = 0; again < 5; again++) {
      assert_int_equal(land(&t, outside), PERIGEE_RANGE);
      assert_int_equal(land(&t, of_closed), PERIGEE_STALE);
      assert_int_equal(land(&t, perigee_list(twice, 2)), PERIGEE_INVALID);
      assert_int_equal(land(&t, perigee_list(twice, 0)), PERIGEE_INVALID);
    }
    assert_int_equal(t.to->users, 0);
    closed->users--;
    assert_int_equal(land(&t, all_of(t.to, t.length)), 0);
    talk_expect_landed(&t);
    region_end(closed);
  }
  talk_close(&t);
}

static void only_what_asks_is_answered(void **state) {
  struct talk t;
  talk_open(&t, *state, MIB);
  struct perigee_engine *e = t.p.engine[0];
  assert_int_equal(perigee_land_reply(e, -1, NULL), PERIGEE_INVALID);
  assert_int_equal(perigee_land_reply(e, 65535, NULL), PERIGEE_INVALID);
  for (int i = 0; i < 4; i++) {
    t.raw = i % 2;
    t.length = i / 2 ? MIB : 100;
    int served = talk_call(&t, 0);
    assert_int_equal(perigee_land_reply(e, t.call, NULL), PERIGEE_INVALID);
    assert_int_equal(perigee_land_reply(t.p.engine[1], served, NULL),
                     PERIGEE_INVALID);
    talk_reply(&t, served);
    until(&t.p, 0, PERIGEE_EVENT_REPLY_LANDING);
    assert_int_equal(perigee_land(e, t.call, NULL), PERIGEE_INVALID);
    assert_int_equal(land(&t, all_of(t.to, MIB)), 0);
    assert_int_equal(land(&t, all_of(t.to, MIB)), PERIGEE_INVALID);
    assert_int_equal(perigee_land_reply(e, t.call, NULL), PERIGEE_INVALID);
    talk_expect_landed(&t);
    settle(&t.p);
    assert_int_equal(perigee_land_reply(e, t.call, NULL), PERIGEE_INVALID);
  }
  int receive = perigee_recv_imm(t.p.session[0], -1);
  assert_int_equal(perigee_land_reply(e, receive, NULL), PERIGEE_INVALID);
  perigee_cancel(e, receive);
  ended(&t.p, 0, receive, PERIGEE_CANCELLED);
  talk_close(&t);
}

/* ---- It ends meanwhile ------------------------------------------------------- */

/* A join keeps all other events. */
static void join_other(struct talk *t) {
  struct perigee_event e;
  int other = perigee_recv_imm(t->p.session[0], MS);
  assert_int_equal(perigee_join(t->p.engine[0], other, &e), PERIGEE_TIMEOUT);
}

/* told: the program has got REPLY_LANDING; else that comes no more. */
static void cancelled(struct talk *t, bool raw, uint64_t length, bool told) {
  fill_byte(t->to, 0xcc);
  t->raw = raw;
  t->length = length;
  talk_reply(t, talk_call(t, 0));
  if (told)
    until(&t->p, 0, PERIGEE_EVENT_REPLY_LANDING);
  while (strcmp(state_of(t->p.engine[0], t->call), "asked") != 0) {
    join_other(t);
    poll_side(&t->p, 1);
  }
  perigee_cancel(t->p.engine[0], t->call);
  assert_int_equal(land(t, all_of(t->to, length)), PERIGEE_CANCELLED);
  assert_non_null(strstr(perigee_detail(t->p.engine[0]), "has ended"));
  ended(&t->p, 0, t->call, PERIGEE_CANCELLED);
  if (t->sent == 1)
    until(&t->p, 1, PERIGEE_EVENT_SENT);
  settle(&t->p);
  all_byte(t->to, 0xcc);
  assert_int_equal(t->to->users, 0);
}

static void a_call_may_end_while_it_asks(void **state) {
  static const uint64_t some[] = {0, 100, 8193, 16385, MIB};
  struct talk t;
  talk_open(&t, *state, MIB);
  for (int i = 0; i < 16; i++)
    cancelled(&t, i % 2, some[i / 4], i / 2 % 2);
  talk_close(&t);
}

/* A wait has found that the call asks, which no poll has told yet. */
static void found(struct talk *t, int i, uint64_t length) {
  t->raw = i % 2;
  t->length = length;
  talk_reply(t, talk_call(t, 0));
  while (strcmp(state_of(t->p.engine[0], t->call), "asked") != 0) {
    perigee_wait(&t->p.engine[0], 1, MS);
    poll_side(&t->p, 1);
  }
}

static void a_call_that_ended_asks_nothing_that_a_wait_found(void **state) {
  struct talk t;
  talk_open(&t, *state, ROOM);
  for (int i = 0; i < 8; i++) {
    found(&t, i, i / 4 ? ROOM : 100);
    perigee_cancel(t.p.engine[0], t.call);
    if (i / 2 % 2)
      join_other(&t);
    ended(&t.p, 0, t.call, PERIGEE_CANCELLED);
    talk_expect_sent(&t);
  }
  talk_close(&t);
}

static void an_await_passes_over_what_an_ended_call_asked(void **state) {
  struct talk t;
  struct perigee_event e;
  talk_open(&t, *state, ROOM);
  for (int i = 0; i < 4; i++) {
    found(&t, i, i / 2 ? ROOM : 100);
    perigee_cancel(t.p.engine[0], t.call);
    assert_int_equal(perigee_await(t.p.engine[0], t.call, &e, MS), 1);
    assert_int_equal(e.kind, PERIGEE_EVENT_REPLY);
    assert_int_equal(e.status, PERIGEE_CANCELLED);
    talk_expect_sent(&t);
  }
  talk_close(&t);
}

static void a_freed_session_asks_nothing_that_a_wait_found(void **state) {
  for (int i = 0; i < 4; i++) {
    struct talk t;
    struct perigee_event e;
    talk_open(&t, *state, ROOM);
    found(&t, i, i / 2 ? ROOM : 100);
    perigee_session_free(t.p.session[0]);
    t.p.session[0] = NULL;
    for (int n = 0; n < 10; n++)
      assert_int_equal(perigee_poll(t.p.engine[0], &e, 1), 0);
    if (t.sent == 1)
      until(&t.p, 1, PERIGEE_EVENT_SENT);
    region_end(t.from);
    region_end(t.to);
    free(t.bytes);
    pair_drop(&t.p);
  }
}

/* A pool without room for a short slice ends the call, as without the flag; a
 * long one needs none before its place is named. */
static void a_full_pool_is_told(void **state) {
  struct talk t = {0};
  struct perigee_options options;
  variant_options(*state, &options);
  options.pool = 8 * MIB;
  pair_open_with(&t.p, *state, &options);
  talk_with(&t, MIB);
  uint8_t *blocks[512];
  int n = 0;
  t.length = MIB;
  talk_reply(&t, talk_call(&t, 0));
  until(&t.p, 0, PERIGEE_EVENT_REPLY_LANDING);
  while ((blocks[n] = take_block(t.p.session[0], 64 * KIB)))
    assert_true(++n < 512);
  assert_int_equal(perigee_land_reply(t.p.engine[0], t.call, NULL),
                   PERIGEE_NO_MEMORY);
  assert_int_equal(perigee_land_reply(t.p.engine[0], t.call, NULL),
                   PERIGEE_NO_MEMORY);
  while (n > 0)
    perigee_pool_free(t.p.engine[0], blocks[--n]);
  assert_int_equal(land(&t, all_of(t.to, MIB)), 0);
  talk_expect_landed(&t);
  talk_close(&t);
}

/* ---- Joins -------------------------------------------------------------------- */

/* The reply is on its way; polls of the joining side find it. */
static void replied(struct talk *t, int i, uint64_t length) {
  t->raw = i % 2;
  t->length = length;
  talk_reply(t, talk_call(t, 0));
}

static void joined(struct talk *t) {
  struct perigee_event e;
  assert_int_equal(perigee_join(t->p.engine[0], t->call, &e), 0);
  assert_int_equal(e.kind, PERIGEE_EVENT_REPLY);
  expect_pooled(t, &e);
  talk_expect_sent(t);
}

/* A join never asks: neither before nor after the program was asked, nor if a
 * wait has found that. join_test.c has long replies, for which the peer works. */
static void joins_ask_nothing(void **state) {
  static const uint64_t some[] = {0, 100, 4000};
  struct talk t;
  struct perigee_event e;
  talk_open(&t, *state, ROOM);
  region_end(t.from); /* a device's memory wants that its owner polls, too */
  assert_int_equal(
      perigee_region_alloc(t.p.engine[1], NULL, ROOM, 0, NULL, &t.from), 0);
  fill(t.from, 0, t.bytes, ROOM);
  for (int i = 0; i < 6; i++) {
    replied(&t, i, some[i / 2]);
    joined(&t);
    replied(&t, i, some[i / 2]);
    until(&t.p, 0, PERIGEE_EVENT_REPLY_LANDING);
    joined(&t);
    replied(&t, i, some[i / 2]);
    while (perigee_wait(&t.p.engine[0], 1, MS) != 1)
      poll_side(&t.p, 1);
    joined(&t);
    assert_int_equal(perigee_poll(t.p.engine[0], &e, 1), 0);
  }
  talk_close(&t);
}

/* A wait has found that a call asks, and another operation is joined: what was
 * found stays, until it is polled. */
static void joins_of_others_keep_what_asks(void **state) {
  struct talk t;
  struct perigee_event e;
  talk_open(&t, *state, ROOM);
  for (int i = 0; i < 4; i++) {
    replied(&t, i, i / 2 ? ROOM : 100);
    while (perigee_wait(&t.p.engine[0], 1, MS) != 1)
      poll_side(&t.p, 1);
    join_other(&t);
    e = until(&t.p, 0, PERIGEE_EVENT_REPLY_LANDING);
    talk_expect_asked(&t, &e);
    assert_int_equal(land(&t, all_of(t.to, ROOM)), 0);
    talk_expect_landed(&t);
  }
  talk_close(&t);
}

/* perigee_await gives either event of the call. */
static void an_await_gives_both_events(void **state) {
  struct talk t;
  struct perigee_event e;
  talk_open(&t, *state, ROOM);
  for (int i = 0; i < 4; i++) {
    replied(&t, i, i / 2 ? ROOM : 100);
    while (perigee_await(t.p.engine[0], t.call, &e, MS) != 1)
      poll_side(&t.p, 1);
    assert_int_equal(e.kind, PERIGEE_EVENT_REPLY_LANDING);
    talk_expect_asked(&t, &e);
    assert_int_equal(land(&t, all_of(t.to, ROOM)), 0);
    while (perigee_await(t.p.engine[0], t.call, &e, MS) != 1)
      poll_side(&t.p, 1);
    assert_int_equal(e.kind, PERIGEE_EVENT_REPLY);
    assert_int_equal(e.status, 0);
    same(t.to, 0, t.bytes, t.length);
    talk_expect_sent(&t);
  }
  talk_close(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(replies_land_where_the_caller_says),
      cmocka_unit_test(replies_without_a_place_are_pooled),
      cmocka_unit_test(a_landing_may_be_a_list),
      cmocka_unit_test(strides_are_kept),
      cmocka_unit_test(replies_of_loans_land_too),
      cmocka_unit_test(held_heads_come_before),
      cmocka_unit_test(calls_are_asked_apart),
      cmocka_unit_test(what_does_not_land_is_told_at_once),
      cmocka_unit_test(a_place_that_was_named_is_used),
      cmocka_unit_test(places_that_are_none_are_refused),
      cmocka_unit_test(only_what_asks_is_answered),
      cmocka_unit_test(a_call_may_end_while_it_asks),
      cmocka_unit_test(a_call_that_ended_asks_nothing_that_a_wait_found),
      cmocka_unit_test(an_await_passes_over_what_an_ended_call_asked),
      cmocka_unit_test(a_freed_session_asks_nothing_that_a_wait_found),
      cmocka_unit_test(a_full_pool_is_told),
      cmocka_unit_test(joins_ask_nothing),
      cmocka_unit_test(joins_of_others_keep_what_asks),
      cmocka_unit_test(an_await_gives_both_events),
  };
  return RUN_MATRIX("landings of replies", tests);
}
