/* SPDX-License-Identifier: Apache-2.0
 *
 * status_test.c - every status has a name of its own and a sentence.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "perigee.h"

static void every_status_has_both(void **state) {
  (void)state;
  for (int status = PERIGEE_OK; status >= PERIGEE_DRAINING; status--) {
    assert_string_not_equal(perigee_status_name(status), "unknown");
    const char *text = perigee_status_text(status);
    assert_true(strlen(text) > 0 && text[strlen(text) - 1] != '.');
    for (int other = PERIGEE_OK; other > status; other--)
      assert_string_not_equal(perigee_status_name(status),
                              perigee_status_name(other));
  }
  assert_string_equal(perigee_status_name(PERIGEE_TIMEOUT), "timeout");
  assert_string_equal(perigee_status_name(PERIGEE_NOT_FOUND), "not_found");
}

static void others_are_unknown(void **state) {
  (void)state;
  const int others[] = {1, PERIGEE_DRAINING - 1, INT32_MIN, PERIGEE_INLINE};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    assert_string_equal(perigee_status_name(others[i]), "unknown");
    assert_non_null(perigee_status_text(others[i]));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_status_has_both),
      cmocka_unit_test(others_are_unknown),
  };
  return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}
