/* SPDX-License-Identifier: Apache-2.0
 *
 * fault_test.c - injected faults: valid scripts, and what each fault does to
 * calls and transfers. simulation_test.c mixes them all.
 */
#include <stdlib.h>
#include <string.h>

#include "support.h"
#include "transport/fault/fault.h"

/* ---- Scripts ------------------------------------------------------------- */

static void a_script_says_what_is_to_happen(void **state) {
  struct script s;
  char reason[REASON], text[SCRIPT_TEXT];
  (void)state;
  assert_int_equal(script_parse("seed=7 drop=0.01, delay=5ms\tduplicate=0.5 "
                                "truncate=1 reorder=.25 cut=0",
                                &s, reason),
                   0);
  assert_true(s.seeded && s.seed == 7 && s.delay == 5 * MS);
  assert_true(s.drop == 0.01 && s.duplicate == 0.5 && s.truncate == 1);
  assert_true(s.reorder == 0.25 && s.cut == 0);
  script_text(&s, text);
  assert_string_equal(text, "seed=7 delay=5ms drop=0.01 duplicate=0.5 "
                            "truncate=1 reorder=0.25");
  struct script again;
  assert_int_equal(script_parse(text, &again, reason), 0);
  assert_true(again.drop == s.drop && again.delay == s.delay);
}

static void delays_have_units(void **state) {
  struct script s;
  char reason[REASON];
  (void)state;
  assert_int_equal(script_parse("delay=1.5us", &s, reason), 0);
  assert_int_equal(s.delay, 1500);
  assert_int_equal(script_parse("delay=60s", &s, reason), 0);
  assert_int_equal(script_parse("delay=250ns", &s, reason), 0);
  assert_int_equal(s.delay, 250);
}

static void what_makes_no_sense_is_refused(void **state) {
  static const struct {
    const char *text, *says;
  } cases[] = {
      {"drop=1.1", "0 to 1"},
      {"drop=-1", "0 to 1"},
      {"drop=nan", "0 to 1"},
      {"drop=0.0.1", "0 to 1"},
      {"drop=", "0 to 1"},
      {"drop", "name=value"},
      {"drops=0.1", "known are seed, drop"},
      {"=1", "name=value"},
      {"drop=0.1 drop=0.1", "twice"},
      {"delay=5", "a time"},
      {"delay=61s", "at most 60s"},
      {"delay=999999999999999999s", "at most 60s"},
      {"delay=ms", "a time"},
      {"seed=x", "a number"},
      {"seed=-1", "a number"},
      {"seed=99999999999999999999", "a number"},
      {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
       "aaa"
       "=1",
       "name=value"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct script s;
    char reason[REASON] = "";
    assert_int_equal(script_parse(cases[i].text, &s, reason), PERIGEE_INVALID);
    if (!strstr(reason, cases[i].says))
      fail_msg("\"%s\": %s", cases[i].text, reason);
  }
}

static void an_engine_refuses_such_a_script(void **state) {
  struct perigee_options o;
  struct perigee_engine *engine;
  (void)state;
  perigee_options_init(&o, sizeof o);
  o.faults = "drop=2";
  assert_int_equal(perigee_engine_open(&o, &engine), PERIGEE_INVALID);
  assert_non_null(strstr(perigee_detail(NULL), "\"drop=2\""));
}

static void an_empty_option_beats_the_environment(void **state) {
  struct perigee_options o;
  struct perigee_engine *engine;
  (void)state;
  perigee_options_init(&o, sizeof o);
  assert_int_equal(setenv("PERIGEE_FAULTS", "nonsense", 1), 0);
  assert_int_equal(perigee_engine_open(&o, &engine), PERIGEE_INVALID);
  o.faults = " ";
  assert_int_equal(perigee_engine_open(&o, &engine), 0);
  perigee_engine_close(engine);
  assert_int_equal(unsetenv("PERIGEE_FAULTS"), 0);
}

/* ---- What they do -------------------------------------------------------- */

static void begin(struct pair *p, void *state, const char *faults) {
  struct perigee_options o;
  variant_options(state, &o);
  o.faults = faults;
  pair_open_with(p, state, &o);
}

static int call(struct pair *p, uint64_t code, int64_t timeout) {
  struct perigee_message m = {
      .head = "hello", .length = 5, .code = code, .timeout = timeout};
  int op = perigee_call(p->session[0], &m);
  assert_true(op >= 0);
  return op;
}

static void answer(struct pair *p, const struct perigee_event *e) {
  struct perigee_message m = {.head = "world", .length = 5};
  assert_int_equal(e->kind, PERIGEE_EVENT_REQUEST);
  assert_int_equal(perigee_reply(p->engine[1], e->operation, &m), 0);
}

static void a_dropped_request_times_out(void **state) {
  struct pair p;
  begin(&p, *state, "drop=1");
  ended(&p, 0, call(&p, 1, 20 * MS), PERIGEE_TIMEOUT);
  pair_close(&p);
}

static void a_delayed_one_comes(void **state) {
  struct pair p;
  begin(&p, *state, "delay=3ms");
  for (int i = 0; i < 5; i++) {
    int op = call(&p, 1, -1);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    answer(&p, &e);
    assert_int_equal(ended(&p, 0, op, 0).length, 5);
  }
  pair_close(&p);
}

static void a_request_that_comes_twice_is_served_once(void **state) {
  struct pair p;
  begin(&p, *state, "duplicate=1");
  for (int i = 0; i < 20; i++) {
    int op = call(&p, (uint64_t)i + 1, -1);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    assert_int_equal(e.code, i + 1);
    answer(&p, &e);
    ended(&p, 0, op, 0);
  }
  int64_t end = clock_now() + 3 * MS;
  while (clock_now() < end)
    quiet(&p, 1);
  pair_close(&p);
}

/* The missing bytes may be padding: then nothing is noticed. */
static void a_record_cut_short_ends_the_session(void **state) {
  struct pair p;
  struct perigee_event e;
  int lost[2] = {0, 0};
  begin(&p, *state, "truncate=1");
  call(&p, 1, -1);
  int64_t end = clock_now() + 10000 * MS;
  for (int side = 0; !(lost[0] && lost[1]) && clock_now() < end; side ^= 1) {
    poll_side(&p, side);
    if (!taken(&p, side, &e))
      continue;
    if (e.kind == PERIGEE_EVENT_LOST)
      lost[side] = e.status;
    else if (e.kind == PERIGEE_EVENT_REQUEST)
      answer(&p, &e);
    else if (e.status == 0)
      call(&p, 1, -1);
  }
  assert_int_equal(lost[0] + lost[1], PERIGEE_PROTOCOL + PERIGEE_PEER_LOST);
  pair_close(&p);
}

static void requests_overtake_one_another(void **state) {
  enum { CALLS = 32 };
  struct pair p;
  bool overtaken = false;
  begin(&p, *state, "reorder=0.5 seed=1");
  for (int i = 0; i < CALLS; i++)
    call(&p, (uint64_t)i + 1, -1);
  uint64_t last = 0;
  for (int i = 0; i < CALLS; i++) {
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    overtaken |= e.code < last;
    last = e.code;
    answer(&p, &e);
  }
  assert_true(overtaken);
  for (int i = 0; i < CALLS; i++)
    assert_int_equal(until(&p, 0, PERIGEE_EVENT_REPLY).status, 0);
  pair_close(&p);
}

static void a_cut_lane_is_the_end_of_a_session(void **state) {
  struct pair p;
  begin(&p, *state, "cut=1");
  int op = call(&p, 1, -1);
  assert_int_equal(until(&p, 1, PERIGEE_EVENT_LOST).status, PERIGEE_PEER_LOST);
  ended(&p, 0, op, PERIGEE_PEER_LOST);
  until(&p, 0, PERIGEE_EVENT_LOST);
  pair_close(&p);
}

/* The sender of a stalled payload gives up, in time, and so does the
 * receiver. */
static void a_payload_that_stalls_ends_with_its_caller(void **state) {
  struct pair p;
  struct perigee_event e;
  begin(&p, *state, "drop=0.5 seed=3");
  struct perigee_region *from = region_of(&p, 0, NULL, MIB, 0);
  struct perigee_message m = {.slice = all_of(from, MIB), .timeout = 20 * MS};
  for (int i = 0; i < 10; i++) {
    int op = perigee_call(p.session[0], &m);
    ended(&p, 0, op, PERIGEE_TIMEOUT);
    while (taken(&p, 1, &e))
      perigee_reply(p.engine[1], e.operation,
                    &(struct perigee_message){.status = PERIGEE_REMOTE});
  }
  settle(&p);
  region_end(from);
  pair_close(&p);
}

static void transfers_come_through_late_and_in_splinters(void **state) {
  struct pair p;
  begin(&p, *state, "reorder=0.9 delay=20us");
  struct perigee_region *mine = region_of(&p, 0, NULL, 256 * KIB, 0);
  struct perigee_region *theirs = region_of(&p, 1, "theirs", 256 * KIB, 3);
  uint8_t *bytes = pattern(256 * KIB, 5);
  fill(mine, 0, bytes, 256 * KIB);
  struct perigee_transfer t = {
      .local = all_of(mine, 256 * KIB),
      .remote = {
          {.remote = look_up(&p, "theirs")}, 0, 256 * KIB, 1, 256 * KIB}};
  finish(&p, perigee_transfer(p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, -1), 0);
  same(theirs, 0, bytes, 256 * KIB);
  fill_byte(mine, 0);
  finish(&p, perigee_transfer(p.session[0], PERIGEE_OP_READ, &t, 1, 0, -1), 0);
  same(mine, 0, bytes, 256 * KIB);
  free(bytes);
  settle(&p);
  region_end(mine);
  region_end(theirs);
  pair_close(&p);
}

static void explain_says_so(void **state) {
  struct pair p;
  struct perigee_session_info info;
  begin(&p, *state, "seed=9 drop=0.125");
  perigee_session_describe(p.session[0], &info, sizeof info);
  assert_non_null(
      strstr(info.carrier, "faults on purpose: seed=9 drop=0.125, 0 dropped"));
  pair_close(&p);
}

/* A delayed record wakes no one: the sleeper has to look by itself. */
static void who_sleeps_wakes_for_what_is_held_back(void **state) {
  struct pair p;
  struct perigee_event e;
  begin(&p, *state, "delay=20ms seed=2");
  call(&p, 1, -1);
  int64_t end = clock_now() + 10000 * MS;
  do {
    perigee_wait(&p.engine[1], 1, 20000 * MS);
    assert_true(clock_now() < end);
  } while (perigee_poll(p.engine[1], &e, 1) == 0);
  answer(&p, &e);
  do {
    perigee_wait(&p.engine[0], 1, 20000 * MS);
    assert_true(clock_now() < end);
  } while (perigee_poll(p.engine[0], &e, 1) == 0);
  assert_int_equal(e.kind, PERIGEE_EVENT_REPLY);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest scripts[] = {
      cmocka_unit_test(a_script_says_what_is_to_happen),
      cmocka_unit_test(delays_have_units),
      cmocka_unit_test(what_makes_no_sense_is_refused),
      cmocka_unit_test(an_engine_refuses_such_a_script),
      cmocka_unit_test(an_empty_option_beats_the_environment),
  };
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_dropped_request_times_out),
      cmocka_unit_test(a_delayed_one_comes),
      cmocka_unit_test(a_request_that_comes_twice_is_served_once),
      cmocka_unit_test(a_record_cut_short_ends_the_session),
      cmocka_unit_test(requests_overtake_one_another),
      cmocka_unit_test(a_cut_lane_is_the_end_of_a_session),
      cmocka_unit_test(a_payload_that_stalls_ends_with_its_caller),
      cmocka_unit_test(transfers_come_through_late_and_in_splinters),
      cmocka_unit_test(explain_says_so),
      cmocka_unit_test(who_sleeps_wakes_for_what_is_held_back),
  };
  int failed = cmocka_run_group_tests_name("scripts", scripts, NULL, NULL);
  return failed + RUN_MATRIX("faults", tests);
}
