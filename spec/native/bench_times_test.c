/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_times_test.c - what benches in C have between two readings of the
 * clock, so that what is compared is compared fairly: bytes are changed before
 * the time of a call and looked at after it, as in Lua, unless the reply is to
 * be read in place.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../../bench/floor.h"
#include "perigee.h"

/* What was done, a letter each: (s)tamp, (t)ime, > a call, < its reply,
 * (c)heck. */
static char done[64];
static uint8_t bytes[2][2 * PAGE]; /* what goes out, and what comes */

static void note(char what) {
  size_t n = strlen(done);
  assert_true(n + 1 < sizeof done);
  done[n] = what;
}

static void noted_stamp(uint8_t *at, size_t length, uint64_t round) {
  note('s');
  stamp(at, length, round);
}

static unsigned noted_check(const uint8_t *at, size_t length, uint64_t round) {
  note('c');
  return check(at, length, round);
}

static int64_t noted_now(void) {
  note('t');
  return now();
}

static void echo(void) {
  memcpy(bytes[1], bytes[0], sizeof bytes[1]);
}

static int noted_call(struct perigee_session *session,
                      const struct perigee_message *message,
                      struct perigee_event *event) {
  (void)session;
  (void)message;
  note('>');
  echo();
  event->slice = sizeof bytes[1];
  return PERIGEE_OK;
}

#define stamp noted_stamp
#define check noted_check
#define now noted_now
#define perigee_call_wait noted_call
#define main c_caller_main
#include "../../bench/c_caller.c" /* NOLINT */
#include "../../bench/echoes.h"
#undef main

static void submit(void *context, int slot, size_t length) {
  (void)context;
  (void)slot;
  (void)length;
  note('>');
  echo();
}

static int collect(void *context, size_t length, const uint8_t **reply) {
  (void)context;
  (void)length;
  note('<');
  *reply = bytes[1];
  return 0;
}

/* Three rounds of one slot, the least that are made. */
static void three_rounds(bool in_place) {
  static struct caller caller;
  double ns[3];
  caller = (struct caller){.window = 1,
                           .in_place = in_place,
                           .buffers = {bytes[0]},
                           .submit = submit,
                           .collect = collect};
  memset(done, 0, sizeof done);
  assert_int_equal(caller_rounds(&caller, sizeof bytes[0], ns, 0), 3);
}

static void an_echo_is_over_when_the_reply_is_there(void **state) {
  (void)state;
  three_rounds(false);
  assert_string_equal(done, "tst><tcst><tcst><tc");
}

static void an_echo_in_place_is_over_when_the_reply_was_read(void **state) {
  (void)state;
  three_rounds(true);
  assert_string_equal(done, "tst><ctst><ctst><ct");
}

static void a_call_from_c_has_its_bytes_outside_of_its_time(void **state) {
  (void)state;
  struct side side = {
      .bytes = bytes[0], .length = sizeof bytes[0], .raw = true};
  double ns;
  memset(done, 0, sizeof done);
  assert_int_equal(measure(&side, &ns, 0), 1);
  assert_string_equal(done, "st>tc");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_echo_is_over_when_the_reply_is_there),
      cmocka_unit_test(an_echo_in_place_is_over_when_the_reply_was_read),
      cmocka_unit_test(a_call_from_c_has_its_bytes_outside_of_its_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
