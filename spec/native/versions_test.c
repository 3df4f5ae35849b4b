/* SPDX-License-Identifier: Apache-2.0
 *
 * versions_test.c - programs that were built with an older or a newer header:
 * structures that are shorter or longer than the library's are filled and read
 * as far as both know them, and sizes of no version are refused.
 */
#include <string.h>

#include "fake_sysfs.h"
#include "support.h"

enum { ROOM = 4096, GUARD = 0xa5 };

/* A program's structure, with room for a later version's. */
static union {
  uint8_t bytes[ROOM];
  struct perigee_options options;
  struct perigee_session_info info;
  struct perigee_shares shares;
  struct perigee_device device[1];
} theirs;

static void guard(void) {
  memset(&theirs, GUARD, sizeof theirs);
}

/* Are the bytes from there on untouched? */
static void assert_untouched(uint64_t from) {
  for (uint64_t i = from; i < ROOM; i++)
    if (theirs.bytes[i] != GUARD)
      fail_msg("byte %llu was written, beyond the program's structure",
               (unsigned long long)i);
}

static void assert_zero(uint64_t from, uint64_t to) {
  for (uint64_t i = from; i < to; i++)
    if (theirs.bytes[i])
      fail_msg("byte %llu, of a later version, is not zero",
               (unsigned long long)i);
}

static int opened(void) {
  struct perigee_engine *engine = NULL;
  int status = perigee_engine_open(&theirs.options, &engine);
  perigee_engine_close(engine);
  return status;
}

/* ---- Options --------------------------------------------------------------- */

static void options_of_an_older_program_have_defaults_beyond(void **state) {
  (void)state;
  uint64_t size = offsetof(struct perigee_options, ring);
  guard();
  assert_int_equal(perigee_options_init(&theirs.options, size), 0);
  assert_untouched(size);
  assert_int_equal(theirs.options.operations, 16384);
  assert_int_equal(opened(), PERIGEE_OK);
}

static void options_of_a_newer_program_may_be_at_zero(void **state) {
  (void)state;
  uint64_t known = sizeof(struct perigee_options), size = known + 24;
  guard();
  assert_int_equal(perigee_options_init(&theirs.options, size), 0);
  assert_zero(known, size);
  assert_untouched(size);
  assert_int_equal(opened(), PERIGEE_OK);
  theirs.bytes[size - 1] = 1;
  assert_int_equal(opened(), PERIGEE_UNSUPPORTED);
  assert_non_null(strstr(perigee_detail(NULL), "newer"));
}

static void options_have_a_size_of_some_version(void **state) {
  (void)state;
  uint64_t wrong[] = {0, 7, (64 << 10) + 1, UINT64_C(1) << 31, UINT64_MAX};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    guard();
    assert_int_equal(perigee_options_init(&theirs.options, wrong[i]),
                     PERIGEE_INVALID);
    assert_untouched(0);
    assert_non_null(strstr(perigee_detail(NULL), "sizeof"));
  }
}

static void options_have_been_filled_in(void **state) {
  (void)state;
  guard();
  assert_int_equal(opened(), PERIGEE_INVALID);
  assert_non_null(strstr(perigee_detail(NULL), "perigee_options_init"));
  memset(&theirs, 0, sizeof theirs);
  assert_int_equal(opened(), PERIGEE_INVALID);
}

/* ---- What the library tells ------------------------------------------------- */

/* Has a function fill the structure at several sizes. `known` is the library's;
 * the function returns its status. */
static void filled(int (*fill)(struct pair *, uint64_t), struct pair *p,
                   uint64_t known) {
  uint64_t sizes[] = {8, known / 2, known, known + 40};
  for (int i = 0; i < 4; i++) {
    guard();
    assert_int_equal(fill(p, sizes[i]), PERIGEE_OK);
    assert_untouched(sizes[i]);
    if (sizes[i] > known)
      assert_zero(known, sizes[i]);
  }
  assert_int_equal(fill(p, 0), PERIGEE_INVALID);
  assert_int_equal(fill(p, UINT64_C(1) << 31), PERIGEE_INVALID);
}

static int fill_info(struct pair *p, uint64_t size) {
  return perigee_session_describe(p->session[0], &theirs.info, size);
}

static int fill_shares(struct pair *p, uint64_t size) {
  return perigee_shares_read(p->engine[0], p->session[0], &theirs.shares, size);
}

static void what_is_told_fits_the_programs_structure(void **state) {
  struct pair p;
  pair_open(&p, *state);
  filled(fill_info, &p, sizeof(struct perigee_session_info));
  guard();
  fill_info(&p, sizeof(struct perigee_session_info) + 8);
  assert_int_equal(theirs.info.id, perigee_session_id(p.session[0]));
  filled(fill_shares, &p, sizeof(struct perigee_shares));
  pair_close(&p);
}

static void counters_tell_how_many_there_are(void **state) {
  struct pair p;
  pair_open(&p, *state);
  assert_int_equal(perigee_counters(p.engine[0], NULL)->size,
                   sizeof(struct perigee_counters));
  assert_int_equal(perigee_counters(p.engine[0], p.session[0])->size,
                   sizeof(struct perigee_counters));
  pair_close(&p);
}

/* ---- Lists ------------------------------------------------------------------ */

static void lists_have_the_programs_distance(void **state) {
  (void)state;
  enum { EACH = sizeof(struct perigee_device) + 16 };
  fake_roce("a", "100 Gb/sec");
  fake_roce("b", "10 Gb/sec");
  guard();
  assert_int_equal(perigee_devices(fake_root, theirs.device, EACH, 2), 2);
  assert_string_equal((char *)theirs.bytes, "a");
  assert_string_equal((char *)theirs.bytes + EACH, "b");
  assert_zero(sizeof(struct perigee_device), EACH);
  assert_untouched(2 * EACH);
  guard();
  assert_int_equal(perigee_devices(fake_root, theirs.device, 64, 2), 2);
  assert_string_equal((char *)theirs.bytes + 64, "b");
  assert_untouched(128);
  assert_int_equal(perigee_devices(fake_root, theirs.device, 0, 2),
                   PERIGEE_INVALID);
}

int main(void) {
  const struct CMUnitTest alone[] = {
      cmocka_unit_test(options_of_an_older_program_have_defaults_beyond),
      cmocka_unit_test(options_of_a_newer_program_may_be_at_zero),
      cmocka_unit_test(options_have_a_size_of_some_version),
      cmocka_unit_test(options_have_been_filled_in),
      cmocka_unit_test_setup_teardown(lists_have_the_programs_distance,
                                      fake_make, fake_remove),
  };
  const struct CMUnitTest pairs[] = {
      cmocka_unit_test(what_is_told_fits_the_programs_structure),
      cmocka_unit_test(counters_tell_how_many_there_are),
  };
  int failed = cmocka_run_group_tests_name("versions", alone, NULL, NULL);
  return failed + RUN_MATRIX("versions of", pairs);
}
