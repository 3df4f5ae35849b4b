/* SPDX-License-Identifier: Apache-2.0
 *
 * join_test.c - perigee_join and perigee_call_wait: the wait for one operation.
 * join_meanwhile_test.c has what comes meanwhile.
 */
#include "partner.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- One after the other ------------------------------------------------- */

static void calls_of_every_length_are_waited_for(void **state) {
  static const uint64_t lengths[] = {0,       1,        64,       5000,
                                     9 * KIB, 16 * KIB, 17 * KIB, LONG};
  struct play t;
  play_open(&t, *state);
  for (int i = 0; i < 14; i++) { /* also if they ask for a landing */
    t.flags = i / 7 ? PERIGEE_ASKS : 0;
    play_echo(&t, ECHO, lengths[i % 7]);
  }
  play_none_waits(&t);
  play_close(&t);
}

/* Rings are much shorter than all replies, and nobody polls. */
static void a_program_may_never_poll(void **state) {
  struct play t;
  play_open(&t, *state);
  for (int i = 0; i < MANY; i++)
    play_echo(&t, ECHO, (uint64_t)(i % 3) * 1000);
  assert_true(operations(&t.pair, 0) <= 1);
  play_none_waits(&t);
  play_close(&t);
}

static void a_failure_has_its_text(void **state) {
  struct play t;
  struct perigee_event e;
  play_open_with(&t, *state, 0);
  perigee_drain(t.pair.engine[1]);
  partner_begin(&t.partner, &t.pair);
  struct perigee_message m = play_message(ECHO, t.bytes, 10);
  struct perigee_failure f;
  struct perigee_listener *none;
  assert_true(perigee_listen(t.engine, "nowhere", &none) < 0);
  assert_int_equal(perigee_call_wait(t.session, &m, &e), PERIGEE_DRAINING);
  assert_int_equal(perigee_failure_read(&e, &f, sizeof f), 0);
  assert_int_equal(strlen(perigee_detail(t.engine)), f.text_length);
  assert_memory_equal(perigee_detail(t.engine), f.text, f.text_length);
  play_close(&t);
}

static void every_kind_of_operation_is_joined(void **state) {
  struct play t;
  struct perigee_event e;
  play_open_with(&t, *state, 0);
  struct perigee_region *there = region_of(&t.pair, 1, "there", LONG, RW);
  struct perigee_region *here = region_of(&t.pair, 0, NULL, LONG, 0);
  t.partner.region = there;
  fill(there, 0, t.bytes, LONG);
  partner_begin(&t.partner, &t.pair);
  int op = perigee_lookup(t.session, "there", 20 * SECOND);
  assert_int_equal(perigee_join(t.engine, op, &e), 0);
  struct perigee_transfer item = {
      .local = all_of(here, LONG),
      .remote = {{.remote = (struct perigee_remote *)(uintptr_t)e.pointer},
                 0,
                 LONG,
                 1,
                 LONG}};
  op = perigee_transfer(t.session, PERIGEE_OP_READ, &item, 1, 0, 20 * SECOND);
  assert_int_equal(perigee_join(t.engine, op, &e), 0);
  same(here, 0, t.bytes, LONG);
  fill_byte(here, 0);
  struct perigee_slice to = all_of(here, LONG);
  int receive = perigee_recv(t.session, &to, 20 * SECOND);
  play_echo(&t, SEND, 0);
  assert_int_equal(perigee_join(t.engine, receive, &e), 0);
  assert_int_equal(e.kind, PERIGEE_EVENT_DONE);
  assert_int_equal(e.length, LONG);
  same(here, 0, t.bytes, LONG);
  partner_end(&t.partner, &t.pair);
  play_settle(&t);
  region_end(here);
  region_end(there);
  pair_drop(&t.pair);
  free(t.bytes);
}

static void a_connect_is_joined(void **state) {
  struct play t;
  struct perigee_event e;
  play_open(&t, *state);
  int op = perigee_connect(t.engine, t.pair.address, t.pair.variant->transport,
                           20 * SECOND);
  assert_int_equal(perigee_join(t.engine, op, &e), 0);
  assert_int_equal(e.kind, PERIGEE_EVENT_CONNECTED);
  struct perigee_session *second = perigee_session(t.engine, e.session);
  struct perigee_message m = play_message(ECHO, t.bytes, 64);
  assert_int_equal(perigee_call_wait(second, &m, &e), 0);
  perigee_session_free(second);
  op = perigee_connect(t.engine, "unix:/nowhere/at-all", NULL, SECOND);
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_NOT_FOUND);
  play_drop(&t);
}

/* ---- Ends that are no success -------------------------------------------- */

static void a_timeout_ends_it(void **state) {
  struct play t;
  struct perigee_event e;
  play_open(&t, *state);
  struct perigee_message m = play_message(SILENT, NULL, 0);
  m.timeout = 20 * MS;
  assert_int_equal(perigee_call_wait(t.session, &m, &e), PERIGEE_TIMEOUT);
  assert_int_equal(e.status, PERIGEE_TIMEOUT);
  play_echo(&t, ECHO, 64);
  play_close(&t);
}

static void a_cancelled_one_ends(void **state) {
  struct play t;
  struct perigee_event e;
  play_open(&t, *state);
  struct perigee_message m = play_message(SILENT, NULL, 0);
  int op = perigee_call(t.session, &m);
  perigee_cancel(t.engine, op);
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_CANCELLED);
  play_close(&t);
}

static void a_session_that_ends_ends_it(void **state) {
  struct play t;
  struct perigee_event e;
  play_open(&t, *state);
  struct perigee_message m = play_message(SILENT, NULL, 0);
  m.timeout = -1;
  int op = perigee_call(t.session, &m);
  m = play_message(LEAVE, NULL, 0);
  m.timeout = -1;
  assert_int_equal(perigee_call_wait(t.session, &m, &e), PERIGEE_PEER_LOST);
  assert_int_equal(e.kind, PERIGEE_EVENT_REPLY);
  assert_true(e.length > 0); /* why */
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_PEER_LOST);
  assert_int_equal(play_next(&t).kind, PERIGEE_EVENT_LOST);
  assert_true(perigee_call_wait(t.session, &m, &e) < 0);
  assert_int_equal(e.kind, PERIGEE_EVENT_NONE);
  play_drop(&t);
}

static void what_is_not_under_way_is_refused(void **state) {
  struct play t;
  struct perigee_event e;
  play_open(&t, *state);
  assert_int_equal(perigee_join(t.engine, 12345, &e), PERIGEE_INVALID);
  assert_int_equal(perigee_join(t.engine, 70000, &e), PERIGEE_INVALID);
  assert_int_equal(e.kind, PERIGEE_EVENT_NONE);
  assert_non_null(strstr(perigee_detail(t.engine), "70000"));
  struct perigee_message m = play_message(ECHO, t.bytes, 10);
  int op = perigee_call(t.session, &m);
  assert_int_equal(perigee_join(t.engine, op, &e), 0);
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_INVALID);
  op = perigee_lookup(t.session, "none", 20 * SECOND);
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_NOT_FOUND);
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_INVALID);
  op = perigee_call(t.session, &m);
  e = play_next(&t);
  assert_int_equal(e.operation, op);
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_INVALID);
  partner_back_alike(&t.partner, 1, 0);
  play_echo(&t, BACK, 1);
  e = play_next(&t);
  assert_int_equal(e.kind, PERIGEE_EVENT_REQUEST);
  struct perigee_event none;
  assert_int_equal(perigee_join(t.engine, e.operation, &none), PERIGEE_INVALID);
  struct perigee_message r = {.code = 1000};
  assert_int_equal(perigee_reply(t.engine, e.operation, &r), 0);
  play_echo(&t, ECHO, 1);
  play_close(&t);
}

/* The peer may still read the loan that the request was, so the number is in
 * use, but its event is over. */
static void a_call_whose_loan_is_left_is_refused(void **state) {
  struct play t;
  struct perigee_event e;
  struct perigee_loan loan;
  play_open(&t, *state);
  assert_int_equal(perigee_call_begin(t.session, LONG, &loan), 0);
  memset(loan.pointer, 1, LONG);
  struct perigee_message m = {.method = SILENT, .timeout = 20 * MS};
  int op = perigee_call_commit(t.session, &m, LONG);
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_TIMEOUT);
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_INVALID);
  play_drop(&t);
}

static void numbers_that_are_none_come_back(void **state) {
  struct play t;
  struct perigee_event e;
  static const struct perigee_event zeros;
  play_open(&t, *state);
  memset(&e, 1, sizeof e);
  assert_int_equal(perigee_join(t.engine, PERIGEE_INLINE, &e), 0);
  assert_memory_equal(&e, &zeros, sizeof e);
  memset(&e, 1, sizeof e);
  assert_int_equal(perigee_join(t.engine, PERIGEE_DENIED, &e), PERIGEE_DENIED);
  assert_memory_equal(&e, &zeros, sizeof e);
  play_close(&t);
}

static void a_child_is_refused(void **state) {
  struct play t;
  int status;
  play_open_with(&t, *state, 0);
  pid_t child = fork();
  if (child == 0) {
    struct perigee_event e;
    _exit(perigee_join(t.engine, 1, &e) == PERIGEE_FORKED ? 0 : 1);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  pair_close(&t.pair);
  free(t.bytes);
}

/* ---- Sleeping ------------------------------------------------------------ */

/* Each sleep takes a few polls; a wait that does not sleep takes thousands in a
 * moment. */
static void it_sleeps_while_events_are_kept(void **state) {
  struct play t;
  struct perigee_event e;
  int fds[2];
  play_open(&t, *state);
  assert_int_equal(pipe(fds), 0);
  assert_int_equal(write(fds[1], "x", 1), 1);
  assert_int_equal(perigee_watch(t.engine, fds[0], PERIGEE_READABLE, 77), 0);
  partner_back_in_all_lengths(&t.partner, 12);
  play_echo(&t, BACK, 64);
  struct perigee_message m = play_message(SILENT, NULL, 0);
  m.timeout = 400 * MS;
  uint64_t before = play_polls(&t);
  uint64_t slept = perigee_counters(t.engine, NULL)->sleeps;
  assert_int_equal(perigee_call_wait(t.session, &m, &e), PERIGEE_TIMEOUT);
  assert_true(play_polls(&t) - before < 20000);
  assert_true(perigee_counters(t.engine, NULL)->sleeps > slept);
  assert_int_equal(perigee_unwatch(t.engine, fds[0]), 0);
  play_serve_all(&t, 12);
  play_echo(&t, ECHO, 64);
  close(fds[0]);
  close(fds[1]);
  play_close(&t);
}

static void arm_tells_of_kept_events(void **state) {
  struct play t;
  play_open(&t, *state);
  partner_back_in_all_lengths(&t.partner, 2);
  play_echo(&t, BACK, 64);
  int64_t timeout;
  assert_int_equal(perigee_arm(t.engine, &timeout), 1);
  play_echo(&t, ECHO, 64);
  assert_int_equal(perigee_wait(&t.engine, 1, -1), 1);
  play_serve_all(&t, 2);
  play_echo(&t, ECHO, 64);
  play_close(&t);
}

/* It is told of afterwards, to whoever sleeps next. */
static void a_signal_does_not_end_it(void **state) {
  struct play t;
  struct perigee_event e;
  play_open_with(&t, *state, 0); /* the peer does nothing */
  assert_int_equal(perigee_signals_begin(), 0);
  raise(SIGINT);
  struct perigee_message m = play_message(SILENT, NULL, 0);
  m.timeout = 100 * MS;
  uint64_t before = play_polls(&t);
  assert_int_equal(perigee_call_wait(t.session, &m, &e), PERIGEE_TIMEOUT);
  assert_true(play_polls(&t) - before < 20000);
  while (perigee_poll(t.engine, &e, 1) > 0)
    ;
  assert_int_equal(perigee_wait(&t.engine, 1, -1), PERIGEE_AGAIN);
  assert_int_equal(perigee_signals_noted(), SIGINT);
  perigee_signals_end();
  pair_drop(&t.pair);
  free(t.bytes);
}

/* ---- Two that wait for each other ---------------------------------------- */

/* Calls and is called in turns. Returns how many calls went wrong. */
static int take_turns(struct perigee_engine *engine,
                      struct perigee_session *session, bool first) {
  uint8_t bytes[64];
  struct perigee_event e;
  int wrong = 0;
  for (int i = 0; i < MANY; i++) {
    struct perigee_message m = play_message(ECHO, bytes, sizeof bytes);
    memset(bytes, i + first, sizeof bytes);
    if ((i % 2 == 0) == first) {
      wrong += perigee_call_wait(session, &m, &e) != 0 || e.length != 64 ||
               memcmp(e.pointer, bytes, 64) != 0;
      continue;
    }
    while (perigee_poll(engine, &e, 1) == 0 || e.kind == PERIGEE_EVENT_SENT)
      perigee_wait(&engine, 1, 10 * MS);
    struct perigee_message r = {.head = e.pointer, .length = e.length};
    wrong += e.kind != PERIGEE_EVENT_REQUEST ||
             perigee_reply(engine, e.operation, &r) < 0;
  }
  do /* the last reply may wait for room, or its reader just fall asleep */
    perigee_poll(engine, &e, 1);
  while (perigee_counters(engine, NULL)->operations > 0);
  return wrong;
}

static void *other_turns(void *context) {
  struct partner *w = context;
  w->wrong = take_turns(w->engine, w->session, false);
  return NULL;
}

static void two_threads_call_each_other(void **state) {
  struct play t;
  play_open_with(&t, *state, 0);
  struct partner *w = &t.partner;
  w->engine = t.pair.engine[1];
  w->session = t.pair.session[1];
  assert_int_equal(pthread_create(&w->thread, NULL, other_turns, w), 0);
  int wrong = take_turns(t.engine, t.session, true);
  assert_int_equal(pthread_join(w->thread, NULL), 0);
  assert_int_equal(wrong + w->wrong, 0);
  pair_close(&t.pair);
  free(t.bytes);
}

static void *wait_in_vain(void *context) {
  struct partner *w = context;
  struct perigee_message m = {.method = ECHO, .timeout = 200 * MS};
  struct perigee_event e;
  w->wrong = perigee_call_wait(w->session, &m, &e) != PERIGEE_TIMEOUT;
  return NULL;
}

/* Both calls end, and both sides find the other's afterwards. */
static void two_that_only_wait_time_out(void **state) {
  struct play t;
  play_open_with(&t, *state, 0);
  struct partner *w = &t.partner, self = {0};
  w->session = t.pair.session[1];
  self.session = t.session;
  assert_int_equal(pthread_create(&w->thread, NULL, wait_in_vain, w), 0);
  wait_in_vain(&self);
  assert_int_equal(pthread_join(w->thread, NULL), 0);
  assert_int_equal(self.wrong + w->wrong, 0);
  int served[2];
  for (int side = 0; side < 2; side++)
    served[side] = until(&t.pair, side, PERIGEE_EVENT_REQUEST).operation;
  for (int side = 0; side < 2; side++) {
    struct perigee_message r = {0};
    while (!perigee_served_cancelled(t.pair.engine[side], served[side]))
      quiet(&t.pair, 1);
    perigee_reply(t.pair.engine[side], served[side], &r);
  }
  pair_close(&t.pair);
  free(t.bytes);
}

/* Memory that only its owner accesses: both sides read the other's at once. */
struct reader {
  struct perigee_engine *engine;
  struct perigee_session *session;
  struct perigee_region *here;
  atomic_int *done; /* how many have read all */
  int wrong;
};

static void *read_on(void *context) {
  struct reader *r = context;
  struct perigee_event e;
  int op = perigee_lookup(r->session, "own", 20 * SECOND);
  r->wrong += perigee_join(r->engine, op, &e) != 0;
  struct perigee_transfer item = {
      .local = {{r->here}, 0, 4096, 1, 4096},
      .remote = {{.remote = (struct perigee_remote *)(uintptr_t)e.pointer},
                 0,
                 4096,
                 1,
                 4096}};
  for (int i = 0; i < 300; i++) {
    op =
        perigee_transfer(r->session, PERIGEE_OP_READ, &item, 1, 0, 20 * SECOND);
    r->wrong += perigee_join(r->engine, op, &e) != 0;
  }
  /* The other may still read, and its last answer may still be on its way. */
  struct perigee_message m = {.method = ECHO, .timeout = 50 * MS};
  bool all = false;
  atomic_fetch_add(r->done, 1);
  while (!all) {
    all = atomic_load(r->done) == 2;
    r->wrong += perigee_call_wait(r->session, &m, &e) != PERIGEE_TIMEOUT;
  }
  return NULL;
}

static void both_serve_each_others_reads(void **state) {
  static uint8_t own[2][4096];
  struct play t;
  struct reader r[2] = {{0}};
  atomic_int done = 0;
  struct perigee_region *shared[2];
  pthread_t thread;
  play_open_with(&t, *state, 0);
  for (int i = 0; i < 2; i++) {
    r[i].engine = t.pair.engine[i];
    r[i].session = t.pair.session[i];
    r[i].here = region_of(&t.pair, i, NULL, 4096, 0);
    r[i].done = &done;
    assert_int_equal(perigee_region_register(r[i].engine, "own", own[i], 4096,
                                             RW, NULL, &shared[i]),
                     0);
  }
  assert_int_equal(pthread_create(&thread, NULL, read_on, &r[1]), 0);
  read_on(&r[0]);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(r[0].wrong + r[1].wrong, 0);
  pair_drop(&t.pair);
  free(t.bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(calls_of_every_length_are_waited_for),
      cmocka_unit_test(a_program_may_never_poll),
      cmocka_unit_test(a_failure_has_its_text),
      cmocka_unit_test(every_kind_of_operation_is_joined),
      cmocka_unit_test(a_connect_is_joined),
      cmocka_unit_test(a_timeout_ends_it),
      cmocka_unit_test(a_cancelled_one_ends),
      cmocka_unit_test(a_session_that_ends_ends_it),
      cmocka_unit_test(what_is_not_under_way_is_refused),
      cmocka_unit_test(a_call_whose_loan_is_left_is_refused),
      cmocka_unit_test(numbers_that_are_none_come_back),
      cmocka_unit_test(a_child_is_refused),
      cmocka_unit_test(it_sleeps_while_events_are_kept),
      cmocka_unit_test(arm_tells_of_kept_events),
      cmocka_unit_test(a_signal_does_not_end_it),
      cmocka_unit_test(two_threads_call_each_other),
      cmocka_unit_test(two_that_only_wait_time_out),
      cmocka_unit_test(both_serve_each_others_reads),
  };
  /* inproc is for one thread */
  setenv("PERIGEE_TEST_TRANSPORTS", "shm,tcp", 0);
  return RUN_MATRIX("join", tests);
}
