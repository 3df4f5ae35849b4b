/* SPDX-License-Identifier: Apache-2.0
 *
 * drain_test.c - a side that drains answers the calls that it has taken, and its
 * peer's other calls end in DRAINING, however late it hears of that; and peers
 * that lie about it.
 */
#include "net/wire.h"
#include "support.h"

#include "core/engine.h"

#include <stdlib.h>
#include <string.h>

enum { METHOD = 7, MANY = 600, LONG = 300 * KIB };

static const struct perigee_message hello = {
    .method = METHOD, .head = "hello", .length = 5, .timeout = 60000 * MS};

/* A thread may read requests before the program says that it drains. */
static bool has_thread(void) {
  return getenv("PERIGEE_TEST_PROGRESS") != NULL;
}

static int call(struct pair *p, const struct perigee_message *message) {
  int op = perigee_call(p->session[0], message);
  assert_true(op >= 0);
  return op;
}

static void answer(struct pair *p, int served) {
  struct perigee_message r = {.head = "done", .length = 4};
  assert_true(perigee_reply(p->engine[1], served, &r) >= 0);
}

static void is_refused(struct pair *p, const struct perigee_message *message) {
  assert_int_equal(perigee_call(p->session[0], message), PERIGEE_DRAINING);
  assert_non_null(strstr(perigee_detail(p->engine[0]), "draining"));
}

/* Polls until side 0 knows that the other side drains. */
static void until_told(struct pair *p) {
  int64_t end = clock_now() + 10000 * MS;
  while (!p->session[0]->drain.theirs) {
    quiet(p, 1);
    assert_true(clock_now() < end);
  }
}

/* Polls until the peer has said that no call of its is under way. */
static void until_quiet(struct pair *p) {
  int64_t end = clock_now() + 10000 * MS;
  while (perigee_drain_waits(p->engine[1]) > 0) {
    poll_side(p, 0);
    poll_side(p, 1);
    assert_true(clock_now() < end);
  }
}

static void says(struct pair *p, int side, uint32_t word, uint64_t taken) {
  struct frame f = {.type = FRAME_DRAIN, .drain = {word, 0, taken}};
  assert_true(p->session[side]->up->send(p->session[side], &f, NULL, 0));
}

static void drain(struct pair *p) {
  perigee_drain(p->engine[1]);
  perigee_drain(p->engine[1]); /* again changes nothing */
}

static void what_was_taken_is_answered_and_the_rest_is_not(void **state) {
  struct pair p;
  struct perigee_event e;
  pair_open(&p, *state);
  int first = call(&p, &hello);
  int served = until(&p, 1, PERIGEE_EVENT_REQUEST).operation;
  p.still[1] = true;
  int second = has_thread() ? -1 : call(&p, &hello);
  drain(&p);
  assert_int_equal(perigee_drain_waits(p.engine[1]), 1);
  p.still[1] = false;
  if (second >= 0) {
    e = ended(&p, 0, second, PERIGEE_DRAINING);
    assert_true(e.remaining > 0 && e.remaining <= hello.timeout);
  }
  until_told(&p);
  is_refused(&p, &hello);
  assert_int_equal(perigee_drain_waits(p.engine[1]), 1);
  answer(&p, served);
  ended(&p, 0, first, PERIGEE_OK);
  until_quiet(&p);
  pair_close(&p);
}

/* Method 0 describes. */
static void it_is_described_all_the_same(void **state) {
  struct pair p;
  struct perigee_message m = hello;
  pair_open(&p, *state);
  drain(&p);
  until_quiet(&p);
  is_refused(&p, &m);
  m.method = 0;
  int op = call(&p, &m);
  answer(&p, until(&p, 1, PERIGEE_EVENT_REQUEST).operation);
  ended(&p, 0, op, PERIGEE_OK);
  pair_close(&p);
}

/* So many calls end in DRAINING, in any order. */
static void all_end(struct pair *p, int count) {
  while (count-- > 0) {
    struct perigee_event e = until(p, 0, PERIGEE_EVENT_REPLY);
    assert_string_equal(perigee_status_name(e.status), "draining");
  }
}

/* One with a loan, and one whose payload is not in its record. */
static void begin_large(struct pair *p, const uint8_t *bytes, int op[2]) {
  struct perigee_message m = hello;
  struct perigee_loan loan;
  assert_int_equal(perigee_call_begin(p->session[0], LONG, &loan), 0);
  memset(loan.pointer, 1, LONG);
  op[0] = perigee_call_commit(p->session[0], &m, LONG);
  m.head = bytes;
  m.length = LONG;
  op[1] = call(p, &m);
  assert_true(op[0] >= 0);
}

/* Those that wait for room in the ring were never sent. */
static void all_that_wait_end(void **state) {
  struct pair p;
  int op[2];
  uint8_t *bytes = pattern(LONG, 3);
  if (has_thread())
    skip();
  pair_open(&p, *state);
  p.still[1] = true;
  begin_large(&p, bytes, op);
  for (int i = 2; i < MANY; i++)
    call(&p, &hello);
  drain(&p);
  p.still[1] = false;
  all_end(&p, MANY);
  quiet(&p, 20);
  struct perigee_loan loan;
  assert_int_equal(perigee_call_begin(p.session[0], LONG, &loan), 0);
  assert_int_equal(perigee_call_commit(p.session[0], &hello, LONG),
                   PERIGEE_DRAINING);
  settle(&p);
  until_quiet(&p);
  free(bytes);
  pair_close(&p);
}

/* The peer reads that this side drains only when the session is over. */
static void who_does_not_poll_loses_no_call(void **state) {
  struct pair p;
  if (has_thread())
    skip();
  pair_open(&p, *state);
  p.still[0] = true;
  for (int i = 0; i < 50; i++)
    poll_side(&p, 1);
  drain(&p);
  for (int i = 0; i < 50; i++)
    poll_side(&p, 1);
  call(&p, &hello);
  perigee_session_close(p.session[1]);
  int second = perigee_call(p.session[0], &hello);
  p.still[0] = false;
  all_end(&p, second >= 0 ? 2 : 1);
  until(&p, 0, PERIGEE_EVENT_LOST);
  pair_drop(&p);
}

static void later_sessions_are_told(void **state) {
  struct pair p;
  struct perigee_session *session[2];
  pair_open(&p, *state);
  drain(&p);
  until_quiet(&p);
  pair_dial(&p, session);
  quiet(&p, 50);
  until_quiet(&p);
  assert_int_equal(perigee_call(session[0], &hello), PERIGEE_DRAINING);
  pair_close(&p);
}

/* Dials another session until it is open at side 0, which then calls. Side 1 is
 * not polled any more after what made it so. Returns what perigee_call does. */
static int call_at_once(struct pair *p) {
  struct perigee_event e;
  int dial = perigee_connect(p->engine[0], p->address, p->variant->transport,
                             20000 * MS);
  int64_t end = clock_now() + 10000 * MS;
  assert_true(dial >= 0);
  for (poll_side(p, 1); !taken(p, 0, &e); poll_side(p, 0)) {
    assert_true(clock_now() < end);
    if (!p->kept[0])
      poll_side(p, 1);
  }
  assert_int_equal(e.kind, PERIGEE_EVENT_CONNECTED);
  assert_int_equal(e.status, PERIGEE_OK);
  return perigee_call(perigee_session(p->engine[0], e.session), &hello);
}

/* Side 1 has said READY, and not read that of side 0. */
static void sessions_that_are_being_opened_are_waited_for(void **state) {
  struct pair p;
  if (has_thread())
    skip();
  pair_open(&p, *state);
  int op = call_at_once(&p);
  drain(&p);
  assert_int_equal(perigee_drain_waits(p.engine[1]), 2);
  ended(&p, 0, op, PERIGEE_DRAINING);
  until_quiet(&p);
  pair_drop(&p);
}

/* The engine that drains is closed as soon as the peer can call. */
static void no_call_of_a_later_session_is_lost(void **state) {
  struct pair p;
  if (has_thread())
    skip();
  pair_open(&p, *state);
  drain(&p);
  until_quiet(&p);
  int op = call_at_once(&p);
  assert_int_equal(perigee_drain_waits(p.engine[1]), 1);
  perigee_engine_close(p.engine[1]);
  p.engine[1] = NULL;
  if (op != PERIGEE_DRAINING) /* it knew already */
    ended(&p, 0, op, PERIGEE_DRAINING);
  pair_drop(&p);
}

/* Both may drain, and each still answers the other. */
static void both_sides_may(void **state) {
  struct pair p;
  pair_open(&p, *state);
  perigee_drain(p.engine[0]);
  drain(&p);
  until_quiet(&p);
  until_told(&p);
  int64_t end = clock_now() + 10000 * MS;
  while (perigee_drain_waits(p.engine[0]) > 0 && clock_now() < end)
    quiet(&p, 1);
  assert_int_equal(perigee_drain_waits(p.engine[0]), 0);
  is_refused(&p, &hello);
  assert_int_equal(perigee_call(p.session[1], &hello), PERIGEE_DRAINING);
  pair_close(&p);
}

static void peers_without_it_are_answered_by_the_program(void **state) {
  struct perigee_options o;
  struct pair p;
  variant_options(*state, &o);
  o.features = "-drain";
  pair_open_with(&p, *state, &o);
  drain(&p);
  assert_int_equal(perigee_drain_waits(p.engine[1]), 0);
  int op = call(&p, &hello);
  answer(&p, until(&p, 1, PERIGEE_EVENT_REQUEST).operation);
  ended(&p, 0, op, PERIGEE_OK);
  says(&p, 1, DRAIN_WORD_TAKEN, 1); /* has no such feature, and says so */
  struct perigee_event e = until(&p, 0, PERIGEE_EVENT_LOST);
  assert_int_equal(e.status, PERIGEE_PROTOCOL);
  until(&p, 1, PERIGEE_EVENT_LOST);
  pair_close(&p);
}

/* What waits at a side that withholds goes on with it, or elsewhere. */
static void what_is_withheld_waits(void **state) {
  for (int drains = 0; drains < 2; drains++) {
    struct pair p;
    pair_open(&p, *state);
    perigee_withhold(p.engine[1], true);
    int op = call(&p, &hello);
    quiet(&p, 200);
    if (drains)
      drain(&p);
    if (drains)
      ended(&p, 0, op, PERIGEE_DRAINING);
    perigee_withhold(p.engine[1], false);
    if (!drains) {
      answer(&p, until(&p, 1, PERIGEE_EVENT_REQUEST).operation);
      ended(&p, 0, op, PERIGEE_OK);
    }
    pair_close(&p);
  }
}

/* With one call under way, and any number of others' in service. */
static void who_waits_for_an_answer_looks_at_no_operation(void **state) {
  struct pair p;
  if (has_thread())
    skip();
  pair_open(&p, *state);
  int op = call(&p, &hello);
  int served = until(&p, 1, PERIGEE_EVENT_REQUEST).operation;
  drain(&p);
  until_told(&p);
  struct node *all = &p.session[0]->operations.all, hidden = *all;
  int theirs = p.session[0]->drain.theirs;
  list_open(all);
  quiet(&p, 100);
  *all = hidden;
  assert_int_equal(p.session[0]->drain.theirs, theirs);
  answer(&p, served);
  ended(&p, 0, op, PERIGEE_OK);
  until_quiet(&p);
  pair_close(&p);
}

static void calls_that_were_not_made_are_not_waited_for(void **state) {
  struct perigee_options o;
  struct perigee_message m = hello;
  struct pair p;
  uint8_t *bytes = pattern(LONG, 3);
  variant_options(*state, &o);
  o.message = LONG - 1;
  pair_open_with(&p, *state, &o);
  m.head = bytes;
  m.length = LONG;
  assert_int_equal(perigee_call(p.session[0], &m), PERIGEE_TOO_LARGE);
  assert_int_equal(perigee_counters(p.engine[0], p.session[0])->calls, 0);
  drain(&p);
  until_quiet(&p);
  free(bytes);
  pair_close(&p);
}

/* ---- Lies ---------------------------------------------------------------- */

/* The last word of side 0 ends the session. */
static void is_a_lie(struct pair *p) {
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_LOST);
  assert_int_equal(e.status, PERIGEE_PROTOCOL);
  until(p, 0, PERIGEE_EVENT_LOST);
  pair_close(p);
}

static void more_than_was_sent_is_a_lie(void **state) {
  struct pair p;
  pair_open(&p, *state);
  says(&p, 0, DRAIN_WORD_TAKEN, 1);
  is_a_lie(&p);
}

static void a_second_word_is_a_lie(void **state) {
  struct pair p;
  pair_open(&p, *state);
  says(&p, 0, DRAIN_WORD_TAKEN, 0);
  says(&p, 0, DRAIN_WORD_TAKEN, 0);
  is_a_lie(&p);
  pair_open(&p, *state);
  drain(&p);
  until_quiet(&p);
  says(&p, 0, DRAIN_WORD_QUIET, 0);
  is_a_lie(&p);
}

static void an_answer_that_nobody_asked_for_is_a_lie(void **state) {
  struct pair p;
  pair_open(&p, *state);
  says(&p, 0, DRAIN_WORD_QUIET, 0);
  is_a_lie(&p);
}

static void other_words_are_no_frames(void **state) {
  for (int i = 0; i < 4; i++) {
    struct drain no[] = {{0, 0, 0},
                         {DRAIN_WORD_QUIET + 1, 0, 0},
                         {DRAIN_WORD_TAKEN, 1, 0},
                         {DRAIN_WORD_QUIET, 0, 1}};
    struct frame f = {.type = FRAME_DRAIN, .drain = no[i]};
    struct pair p;
    pair_open(&p, *state);
    assert_true(p.session[0]->up->send(p.session[0], &f, NULL, 0));
    is_a_lie(&p);
  }
}

/* Fewer than were taken: calls end that were served, and nothing else. */
static void fewer_than_were_taken_harms_only_the_liar(void **state) {
  struct pair p;
  pair_open(&p, *state);
  int op = call(&p, &hello);
  int served = until(&p, 1, PERIGEE_EVENT_REQUEST).operation;
  says(&p, 1, DRAIN_WORD_TAKEN, 0);
  ended(&p, 0, op, PERIGEE_DRAINING);
  answer(&p, served); /* it comes too late */
  pair_drop(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_was_taken_is_answered_and_the_rest_is_not),
      cmocka_unit_test(it_is_described_all_the_same),
      cmocka_unit_test(all_that_wait_end),
      cmocka_unit_test(who_does_not_poll_loses_no_call),
      cmocka_unit_test(later_sessions_are_told),
      cmocka_unit_test(sessions_that_are_being_opened_are_waited_for),
      cmocka_unit_test(no_call_of_a_later_session_is_lost),
      cmocka_unit_test(both_sides_may),
      cmocka_unit_test(peers_without_it_are_answered_by_the_program),
      cmocka_unit_test(what_is_withheld_waits),
      cmocka_unit_test(who_waits_for_an_answer_looks_at_no_operation),
      cmocka_unit_test(calls_that_were_not_made_are_not_waited_for),
      cmocka_unit_test(more_than_was_sent_is_a_lie),
      cmocka_unit_test(a_second_word_is_a_lie),
      cmocka_unit_test(an_answer_that_nobody_asked_for_is_a_lie),
      cmocka_unit_test(other_words_are_no_frames),
      cmocka_unit_test(fewer_than_were_taken_harms_only_the_liar),
  };
  return RUN_MATRIX("drain", tests);
}
