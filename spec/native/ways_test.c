/* SPDX-License-Identifier: Apache-2.0
 *
 * ways_test.c - whether payloads are staged or pulled over shared memory is
 * learned by who receives them; and peers that lie about what they prefer.
 */
#include <stdlib.h>

#include "support_inside.h"
#include "turns_support.h"

/* How long a reading of the clock takes while a payload of either way comes. */
struct costs {
  int64_t staged, pulled;
};

static const struct costs staged_is_quick = {10, 1000};
static const struct costs pulled_is_quick = {1000, 10};

/* A request of so many bytes: was it staged? */
static bool comes_staged(struct pair *p, const uint8_t *bytes, uint64_t length,
                         const struct costs *costs) {
  int op = call(p, bytes, length);
  bool staged = turns_live(p->session[0]) > 0;
  own_time.step = staged ? costs->staged : costs->pulled;
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  own_time.step = 10;
  assert_memory_equal(e.pointer, bytes, length);
  answer(p, &e, bytes, 10);
  answered(p, op, bytes, 10);
  return staged;
}

static void answer_next(struct pair *p, const uint8_t *bytes, int op) {
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  answer(p, &e, bytes, 10);
  answered(p, op, bytes, 10);
}

/* A reply to a slice, of other bytes or, without these, of those that lie in the
 * request's block: was it staged? */
static bool returns_staged(struct pair *p, struct perigee_region *r,
                           const uint8_t *other, const struct costs *costs) {
  struct perigee_message m = {.slice = {{r}, 0, LENGTH, 1, LENGTH},
                              .into = {{r}, LENGTH, LENGTH, 1, LENGTH},
                              .timeout = -1};
  int op = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  answer(p, &e, other ? other : e.pointer, LENGTH);
  bool staged = turns_live(p->session[1]) > 0;
  own_time.step = staged ? costs->staged : costs->pulled;
  ended(p, 0, op, PERIGEE_OK);
  own_time.step = 10;
  until(p, 1, PERIGEE_EVENT_SENT);
  return staged;
}

/* How many of so many requests were staged? */
static int staged_of(struct pair *p, int calls, const uint8_t *bytes,
                     const struct costs *costs) {
  int staged = 0;
  for (int i = 0; i < calls; i++)
    staged += comes_staged(p, bytes, LENGTH, costs);
  return staged;
}

/* So many calls of LENGTH bytes, or of a third, are enough to learn. */
enum { LEARN = 300, LEARN_SHORT = 900, CALLS = 200, TRIALS = 16 };

static void requests_go_the_quicker_way(void **state) {
  uint8_t *bytes = pattern(LENGTH, 3);
  for (int pulled = 0; pulled < 2; pulled++) {
    const struct costs *c = pulled ? &pulled_is_quick : &staged_is_quick;
    struct pair p;
    learning_open(&p, *state);
    staged_of(&p, LEARN, bytes, c);
    int staged = staged_of(&p, CALLS, bytes, c);
    assert_in_range(pulled ? staged : CALLS - staged, 0, TRIALS);
    pair_close(&p);
  }
  free(bytes);
}

/* A length that has a window if it is staged, and how many calls are enough to
 * learn of it. */
enum { LONG = LONGEST + MIB, LEARN_LONG = 40 };

static void
requests_too_long_to_be_staged_have_a_window_if_that_is_quicker(void **state) {
  uint8_t *bytes = pattern(LONG, 3);
  for (int pulled = 0; pulled < 2; pulled++) {
    const struct costs *c = pulled ? &pulled_is_quick : &staged_is_quick;
    struct pair p;
    int staged = 0;
    learning_open(&p, *state);
    for (int i = 0; i < 2 * LEARN_LONG; i++)
      staged += comes_staged(&p, bytes, LONG, c) && i >= LEARN_LONG;
    assert_in_range(pulled ? staged : LEARN_LONG - staged, 0, TRIALS);
    pair_close(&p);
  }
  free(bytes);
}

/* Its owner would copy for both in place of one that only receives. */
static void a_request_beside_another_has_no_window(void **state) {
  uint8_t *bytes = pattern(LONG, 3);
  struct pair p;
  learning_open(&p, *state);
  for (int i = 0; i < LEARN_LONG; i++)
    comes_staged(&p, bytes, LONG, &staged_is_quick);
  say_ways(p.session[1], 0xaaaa5555); /* LENGTH is pulled, LONG is not */
  int first = call(&p, bytes, LENGTH), second = call(&p, bytes, LONG);
  assert_int_equal(turns_live(p.session[0]), 0);
  answer_next(&p, bytes, first);
  answer_next(&p, bytes, second);
  int third = call(&p, bytes, LONG);
  assert_int_equal(turns_live(p.session[0]), 1);
  answer_next(&p, bytes, third);
  free(bytes);
  pair_close(&p);
}

/* Returns a region for returns_staged. */
static struct perigee_region *learning_open_slices(struct pair *p,
                                                   void *state) {
  struct perigee_region *r;
  learning_open(p, state);
  assert_int_equal(perigee_region_alloc(p->engine[0], NULL, 2 * LENGTH,
                                        PERIGEE_LOCAL, NULL, &r),
                   0);
  return r;
}

static void replies_go_the_quicker_way(void **state) {
  for (int lent = 0; lent < 2; lent++) {
    const struct costs *c = lent ? &pulled_is_quick : &staged_is_quick;
    struct pair p;
    struct perigee_region *r = learning_open_slices(&p, *state);
    int staged = 0;
    for (int i = 0; i < LEARN + CALLS; i++)
      staged += returns_staged(&p, r, NULL, c) && i >= LEARN;
    assert_in_range(lent ? staged : CALLS - staged, 0, TRIALS);
    perigee_region_close(r, -1);
    pair_close(&p);
  }
}

/* Copies of what was lent take no time here, and pulls the most. */
static void what_is_lent_tells_nothing_of_what_is_pulled(void **state) {
  uint8_t *other = pattern(LENGTH, 7);
  const struct costs lent = {100, 1}, own = {100, 1000};
  struct pair p;
  struct perigee_region *r = learning_open_slices(&p, *state);
  int staged = 0;
  for (int i = 0; i < 2 * LEARN + CALLS; i++) {
    returns_staged(&p, r, NULL, &lent);
    staged += returns_staged(&p, r, other, &own) && i >= 2 * LEARN;
  }
  assert_in_range(CALLS - staged, 0, 2 * TRIALS);
  perigee_region_close(r, -1);
  free(other);
  pair_close(&p);
}

/* Pulls are tried; then all that would be pulled is lent. */
static void a_trial_that_meets_only_what_is_lent_is_given_up(void **state) {
  uint8_t *other = pattern(LENGTH, 7);
  struct pair p;
  struct perigee_region *r = learning_open_slices(&p, *state);
  int staged = 0;
  for (int i = 0; i < LEARN; i++)
    returns_staged(&p, r, other, &staged_is_quick);
  for (int i = 0; i < 4 * CALLS; i++)
    staged += returns_staged(&p, r, NULL, &staged_is_quick);
  assert_true(staged > CALLS);
  perigee_region_close(r, -1);
  free(other);
  pair_close(&p);
}

static void a_way_that_becomes_quicker_is_found(void **state) {
  enum { ROUNDS = 60 };
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3);
  int rounds = 0;
  learning_open(&p, *state);
  staged_of(&p, 3 * LEARN, bytes, &staged_is_quick);
  while (staged_of(&p, CALLS, bytes, &pulled_is_quick) > CALLS / 2)
    assert_true(++rounds < ROUNDS);
  while (staged_of(&p, CALLS, bytes, &staged_is_quick) < CALLS / 2)
    assert_true(++rounds < 2 * ROUNDS);
  free(bytes);
  pair_close(&p);
}

static void lengths_are_learned_apart(void **state) {
  enum { SHORT = 20 * KIB };
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3);
  learning_open(&p, *state);
  for (int i = 0; i < LEARN_SHORT; i++) {
    comes_staged(&p, bytes, SHORT, &staged_is_quick);
    comes_staged(&p, bytes, LENGTH, &pulled_is_quick);
  }
  int shorts = 0, longs = 0;
  for (int i = 0; i < CALLS; i++) {
    shorts += comes_staged(&p, bytes, SHORT, &staged_is_quick);
    longs += comes_staged(&p, bytes, LENGTH, &pulled_is_quick);
  }
  assert_true(shorts > CALLS * 9 / 10);
  assert_true(longs < CALLS / 10);
  free(bytes);
  pair_close(&p);
}

/* As a word is said for lengths that differ by up to a factor of two, all of
 * them are asked for here. */
static void whatever_a_peer_prefers_all_bytes_come(void **state) {
  static const uint32_t words[] = {0, UINT32_MAX, 0x55555555, 0xaaaaaaaa,
                                   0xdeadbeef};
  struct pair p;
  uint8_t *bytes = pattern(2 * LONGEST, 5);
  timed_open(&p, *state);
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    for (uint64_t length = 17 * KIB; length <= 2 * LONGEST;
         length += length / 3) {
      say_ways(p.session[0], words[i]);
      say_ways(p.session[1], words[i]);
      echo(&p, bytes, length);
    }
  free(bytes);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(variant_default, requests_go_the_quicker_way),
      OVER(variant_default,
           requests_too_long_to_be_staged_have_a_window_if_that_is_quicker),
      OVER(variant_default, a_request_beside_another_has_no_window),
      OVER(variant_default, replies_go_the_quicker_way),
      OVER(variant_default, what_is_lent_tells_nothing_of_what_is_pulled),
      OVER(variant_default, a_trial_that_meets_only_what_is_lent_is_given_up),
      OVER(variant_default, a_way_that_becomes_quicker_is_found),
      OVER(variant_default, lengths_are_learned_apart),
      OVER(variant_default, whatever_a_peer_prefers_all_bytes_come),
      OVER(unread, whatever_a_peer_prefers_all_bytes_come),
  };
  return cmocka_run_group_tests_name("ways", tests, NULL, NULL);
}
