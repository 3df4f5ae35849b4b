/* SPDX-License-Identifier: Apache-2.0
 *
 * features_test.c - a session has the features that both sides have, whatever a
 * peer claims, and each feature can be turned off.
 */
#include "net/wire.h"
#include "hand.h"
#include "support.h"

#include <string.h>

static uint64_t parsed(const char *text, int status) {
  char reason[REASON] = "";
  uint64_t set;
  assert_int_equal(features_parse(text, &set, reason, sizeof reason), status);
  assert_int_equal(*reason != 0, status < 0);
  return set;
}

/* The features of an engine without an additional transport; lanes_lies_test.c
 * has others. */
static uint64_t plain(const char *text) {
  return parsed(text, PERIGEE_OK) & ~(uint64_t)FEATURE_LANES;
}

static void all_are_on_but_those_that_are_turned_off(void **state) {
  (void)state;
  uint64_t all = parsed(NULL, PERIGEE_OK);
  assert_true(all & FEATURE_TRACE);
  assert_int_equal(parsed("", PERIGEE_OK), all);
  assert_int_equal(parsed(" , ", PERIGEE_OK), all);
  assert_int_equal(parsed("-trace", PERIGEE_OK), all & ~FEATURE_TRACE);
  assert_int_equal(parsed(" -trace, -trace", PERIGEE_OK), all & ~FEATURE_TRACE);
}

static void what_is_no_feature_cannot_be_turned_off(void **state) {
  (void)state;
  const char *wrong[] = {"trace",   "-",      "--trace",     "-trac",
                         "-tracer", "+trace", "-trace -none"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    parsed(wrong[i], PERIGEE_INVALID);
  struct perigee_engine *engine;
  struct perigee_options o;
  perigee_options_init(&o, sizeof o);
  o.features = "-none";
  assert_int_equal(perigee_engine_open(&o, &engine), PERIGEE_INVALID);
  assert_non_null(strstr(perigee_detail(NULL), "-none"));
}

static void each_has_a_bit_and_a_name_of_its_own(void **state) {
  (void)state;
  uint64_t seen = 0;
  for (const struct feature *f = features; f->name; f++) {
    int bit = __builtin_ctzll(f->bit);
    assert_int_equal(f->bit & (f->bit - 1), 0);
    assert_false(seen & f->bit);
    assert_string_equal(perigee_feature_name(bit), f->name);
    seen |= f->bit;
  }
  for (int bit = -1; bit <= 64; bit++)
    if (bit < 0 || bit > 63 || !(seen >> bit & 1))
      assert_null(perigee_feature_name(bit));
}

/* The features of a session with a peer that claims these. */
static uint64_t with_peer(uint64_t has, const char *option) {
  struct perigee_session_info info;
  struct perigee_engine *engine;
  struct perigee_options o;
  struct hand h;
  perigee_options_init(&o, sizeof o);
  o.secret = "sixteen letters of secret";
  o.features = option;
  o.hello_timeout = 20000 * MS; /* an emulated, busy guest takes seconds */
  assert_int_equal(perigee_engine_open(&o, &engine), 0);
  hand_come(&h, engine, true);
  h.features = has;
  assert_true(hand_open(&h, engine->secret));
  assert_non_null(h.session);
  perigee_session_describe(h.session, &info, sizeof info);
  assert_int_equal(info.state, PERIGEE_SESSION_OPEN);
  hand_close(&h);
  perigee_engine_close(engine);
  return info.features;
}

static void a_session_has_what_both_sides_have(void **state) {
  (void)state;
  assert_int_equal(with_peer(FEATURE_TRACE, NULL), FEATURE_TRACE);
  assert_int_equal(with_peer(0, NULL), 0);
  assert_int_equal(with_peer(FEATURE_TRACE, "-trace"), 0);
}

static void bits_that_nobody_knows_are_ignored(void **state) {
  (void)state;
  assert_int_equal(with_peer(UINT64_MAX, NULL), plain(NULL));
  assert_int_equal(with_peer(UINT64_MAX, "-trace"), plain("-trace"));
}

/* Also if the session moves to another socket meanwhile. */
static void both_sides_agree(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < 2; i++) {
    struct perigee_session_info info;
    perigee_session_describe(p.session[i], &info, sizeof info);
    assert_int_equal(info.features, plain(NULL));
  }
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_are_on_but_those_that_are_turned_off),
      cmocka_unit_test(what_is_no_feature_cannot_be_turned_off),
      cmocka_unit_test(each_has_a_bit_and_a_name_of_its_own),
      cmocka_unit_test(a_session_has_what_both_sides_have),
      cmocka_unit_test(bits_that_nobody_knows_are_ignored),
      cmocka_unit_test(both_sides_agree),
  };
  return RUN_MATRIX("features", tests);
}
