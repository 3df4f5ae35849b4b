/* SPDX-License-Identifier: Apache-2.0
 *
 * trim_test.c - memory used in a flood goes back to the system, and only that:
 * the end of the table of operations, blocks of the pool, buffers of sealed
 * streams, and malloc's free memory.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support.h"
#include "support_inside.h"

static const struct variant tcp = {.name = "tcp", .transport = "tcp"};
static const struct variant sealed = {
    .name = "sealed", .transport = "tcp", .how = "sealed"};

enum { LOW = 1024, MANY = 3000, LENGTH = MIB, CALLS = 24 };

static bool next(struct pair *p, int side, struct perigee_event *e) {
  bool any;
  poll_side(p, side);
  while ((any = taken(p, side, e)) && e->kind == PERIGEE_EVENT_SENT)
    ;
  return any;
}

static void rest(struct pair *p, int64_t time) {
  struct perigee_event e;
  int64_t end = clock_now() + time;
  do {
    for (int side = 0; side < 2; side++)
      assert_false(next(p, side, &e));
    usleep(1000);
  } while (clock_now() < end);
}

static struct perigee_event until_any(struct pair *p, int side) {
  struct perigee_event e;
  while (!next(p, side, &e))
    ;
  return e;
}

/* ---- Operations ---------------------------------------------------------- */

/* Makes so many receives, which stay pending, one after the other in the
 * table from `first` on. */
static void fill_table(struct pair *p, int op[MANY]) {
  for (int i = 0; i < MANY; i++) {
    op[i] = perigee_recv_imm(p->session[0], -1);
    assert_true(op[i] >= 0);
  }
}

static void empty_table(struct pair *p, const int op[MANY]) {
  for (int i = 0; i < MANY; i++)
    perigee_cancel(p->engine[0], op[i]);
  for (int i = 0; i < MANY; i++)
    assert_int_equal(until(p, 0, PERIGEE_EVENT_DONE).status, PERIGEE_CANCELLED);
}

static void until_low(struct pair *p) {
  for (int i = 0; i < 200 && table_touched(p->engine[0]) > LOW; i++)
    rest(p, 100 * MS);
  assert_true(table_touched(p->engine[0]) <= LOW);
}

/* Nor is a number used twice in one generation: a late reply to its earlier
 * operation would be taken for one to the present operation. */
static void generations_go_on_where_the_table_was_given_back(void **state) {
  static int op[MANY];
  static uint32_t seen[MANY];
  struct pair p;
  pair_open(&p, *state);
  for (int round = 0; round < 3; round++) {
    fill_table(&p, op);
    assert_true(table_touched(p.engine[0]) >= MANY);
    for (uint32_t i = 0; i < MANY; i++) {
      assert_true(generation_at(p.engine[0], i) > seen[i]);
      seen[i] = generation_at(p.engine[0], i);
    }
    empty_table(&p, op);
    until_low(&p);
    for (uint32_t i = 0; i < MANY; i++)
      assert_true(generation_at(p.engine[0], i) >= seen[i]);
  }
  pair_close(&p);
}

/* This lets the end of the table become free. */
static void low_numbers_are_given_first(void **state) {
  static int op[MANY];
  struct pair p;
  pair_open(&p, *state);
  fill_table(&p, op);
  empty_table(&p, op);
  quiet(&p, 3);
  for (int i = 0; i < LOW / 2; i++) {
    op[i] = perigee_recv_imm(p.session[0], -1);
    assert_true(op[i] >= 0 && op[i] < LOW);
  }
  until_low(&p);
  for (int i = 0; i < LOW / 2; i++)
    perigee_cancel(p.engine[0], op[i]);
  for (int i = 0; i < LOW / 2; i++)
    until(&p, 0, PERIGEE_EVENT_DONE);
  pair_close(&p);
}

/* If the end of the table is in use, it stays, with everything before it. */
static void what_is_in_use_is_not_given_back(void **state) {
  static int op[MANY];
  struct pair p;
  pair_open(&p, *state);
  fill_table(&p, op);
  for (int i = 0; i < MANY - 1; i++)
    perigee_cancel(p.engine[0], op[i]);
  for (int i = 0; i < MANY - 1; i++)
    until(&p, 0, PERIGEE_EVENT_DONE);
  rest(&p, 700 * MS);
  assert_true(table_touched(p.engine[0]) >= MANY);
  perigee_cancel(p.engine[0], op[MANY - 1]);
  ended(&p, 0, op[MANY - 1], PERIGEE_CANCELLED);
  until_low(&p);
  pair_close(&p);
}

/* One behind all free operations, of a session that is gone. The program has
 * answered it, and may still read its head, which the thread copied. */
static struct pair shown(void *state) {
  struct perigee_message m = {.head = "x", .length = 1, .timeout = -1};
  struct perigee_event e;
  struct perigee_options o;
  struct pair p;
  variant_options(state, &o);
  o.progress = 1;
  pair_open_with(&p, state, &o);
  for (int i = 0; i < LOW; i++)
    assert_true(perigee_recv_imm(p.session[1], -1) >= 0);
  perigee_call(p.session[0], &m);
  usleep(50000); /* longer than the thread waits before it takes over */
  int served = until(&p, 1, PERIGEE_EVENT_REQUEST).operation;
  assert_true(served >= LOW);
  perigee_session_close(p.session[0]);
  do
    e = until_any(&p, 1);
  while (e.kind != PERIGEE_EVENT_LOST);
  perigee_session_free(p.session[1]);
  p.session[1] = NULL;
  poll_side(&p, 1);
  assert_int_equal(perigee_reply(p.engine[1], served, &m), PERIGEE_PEER_LOST);
  return p;
}

static void what_was_shown_is_given_back_with_its_block(void **state) {
  struct pair p = shown(*state);
  for (int i = 0; i < 100 && table_touched(p.engine[1]) > LOW; i++)
    usleep(10000);
  poll_side(&p, 1);
  assert_int_equal(perigee_counters(p.engine[1], NULL)->pooled, 0);
  pair_drop(&p);
}

/* ---- The pool ------------------------------------------------------------ */

static uint64_t kept(struct pair *p) {
  return perigee_counters(p->engine[0], NULL)->kept;
}

/* Asks for so many replies at once, which arrive in pooled blocks. */
static void replies(struct pair *p, const uint8_t *bytes, int count) {
  struct perigee_message m = {.head = "?", .length = 1, .timeout = -1};
  struct perigee_message r = {.head = bytes, .length = LENGTH};
  struct perigee_event e;
  for (int i = 0; i < count; i++)
    assert_true(perigee_call(p->session[0], &m) >= 0);
  for (int ended = 0; ended < count;) {
    if (next(p, 1, &e))
      assert_true(perigee_reply(p->engine[1], e.operation, &r) >= 0);
    if (next(p, 0, &e)) {
      assert_int_equal(e.status, PERIGEE_OK);
      ended++;
    }
  }
}

/* A poll may come late, and with it that the last replies were sent. */
static void end(struct pair *p, uint8_t *bytes) {
  for (int i = 0; i < 20000 && operations(p, 0) + operations(p, 1) > 0; i++)
    rest(p, 0);
  free(bytes);
  pair_close(p);
}

static void blocks_that_nobody_takes_go_back(void **state) {
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3);
  pair_open(&p, *state);
  for (int round = 0; round < 2; round++) {
    replies(&p, bytes, CALLS);
    rest(&p, 10 * MS);
    assert_true(kept(&p) > 4 * LENGTH);
    for (int i = 0; i < 200 && kept(&p) > MIB; i++)
      rest(&p, 100 * MS);
    assert_true(kept(&p) <= MIB);
  }
  end(&p, bytes);
}

static void blocks_that_are_taken_by_turns_stay(void **state) {
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3);
  pair_open(&p, *state);
  replies(&p, bytes, CALLS);
  rest(&p, 10 * MS);
  uint64_t had = kept(&p);
  for (int64_t end = clock_now() + 1000 * MS; clock_now() < end;) {
    replies(&p, bytes, CALLS);
    rest(&p, 10 * MS);
    assert_true(kept(&p) >= had / 2);
  }
  end(&p, bytes);
}

/* ---- Sealed streams ------------------------------------------------------ */

static void note_kept(struct pair *p, uint64_t most[2]) {
  for (int side = 0; side < 2; side++)
    if (most[side] < kept_bytes(p->session[side]))
      most[side] = kept_bytes(p->session[side]);
}

static void sealed_streams_that_are_quiet_keep_a_page(void **state) {
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3);
  pair_open(&p, *state);
  for (int round = 0; round < 2; round++) {
    uint64_t most[2] = {0, 0};
    for (int i = 0; i < 3; i++) {
      replies(&p, bytes, CALLS);
      note_kept(&p, most);
    }
    for (int side = 0; side < 2; side++) {
      assert_true(most[side] > 0);
      for (int i = 0; i < 200 && kept_bytes(p.session[side]) > 0; i++)
        rest(&p, 100 * MS);
      assert_int_equal(kept_bytes(p.session[side]), 0);
    }
  }
  end(&p, bytes);
}

static int64_t pages_fetched(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return u.ru_minflt;
}

/* To wipe buffers that were never used, each end would fetch 128 pages. */
static void sealed_sessions_end_without_fetching_memory(void **state) {
  enum { SESSIONS = 32, PAGES = 16 };
  struct perigee_session *more[2];
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < SESSIONS; i++)
    pair_dial(&p, more);
  rest(&p, 10 * MS);
  int64_t before = pages_fetched();
  pair_close(&p);
  assert_true(pages_fetched() - before < 2 * SESSIONS * PAGES);
}

/* ---- Malloc -------------------------------------------------------------- */

/* At once when the engine sleeps. */
static void the_heap_is_asked_before_a_sleep(void **state) {
  struct pair p;
  pair_open(&p, *state);
  sessions_ended(p.engine[0], 1000);
  assert_true(heap_waits(p.engine[0]));
  for (int i = 0; i < 100 && heap_waits(p.engine[0]); i++)
    perigee_wait(&p.engine[0], 1, 20 * MS);
  assert_false(heap_waits(p.engine[0]));
  pair_close(&p);
}

/* Soon if the engine never sleeps. */
static void the_heap_is_asked_of_who_never_sleeps(void **state) {
  struct pair p;
  pair_open(&p, *state);
  sessions_ended(p.engine[0], 1000);
  int64_t end = clock_now() + 20000 * MS;
  while (heap_waits(p.engine[0]) && clock_now() < end)
    quiet(&p, 1);
  assert_false(heap_waits(p.engine[0]));
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(variant_default, generations_go_on_where_the_table_was_given_back),
      OVER(variant_default, low_numbers_are_given_first),
      OVER(variant_default, what_is_in_use_is_not_given_back),
      OVER(variant_default, what_was_shown_is_given_back_with_its_block),
      OVER(tcp, blocks_that_nobody_takes_go_back),
      OVER(tcp, blocks_that_are_taken_by_turns_stay),
      OVER(sealed, sealed_streams_that_are_quiet_keep_a_page),
      OVER(sealed, sealed_sessions_end_without_fetching_memory),
      OVER(variant_default, the_heap_is_asked_before_a_sleep),
      OVER(variant_default, the_heap_is_asked_of_who_never_sleeps),
  };
  return cmocka_run_group_tests_name("trim", tests, NULL, NULL);
}
