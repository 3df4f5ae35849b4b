/* SPDX-License-Identifier: Apache-2.0
 *
 * flags_test.c - the meaning of a record's flags to its receiver, who finds
 * them in the ring.
 */
#include "support.h"

#include "base/record.h"
#include "core/lanes.h"
#include "core/session.h"

static uint8_t flags_that_came(struct pair *p) {
  struct lane *lane = p->session[1]->lane;
  const uint8_t *bytes;
  uint64_t length;
  struct record record = {0};
  assert_int_equal(
      lane_records(lane)->peek(lane, RING_REQUEST, &bytes, &length), 1);
  assert_int_equal(record_decode(bytes, length, &record), PERIGEE_OK);
  return record.flags;
}

static void typed_is_said_of_typed_heads_only(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_region *region = region_of(&p, 0, NULL, 64, PERIGEE_LOCAL);
  struct perigee_slice slice = all_of(region, 64);
  struct perigee_message typed = {.flags = PERIGEE_TYPED,
                                  .head = "\2",
                                  .length = 1,
                                  .slice = slice,
                                  .timeout = -1};
  struct perigee_message raw = {.slice = slice, .timeout = -1};
  assert_true(perigee_send(p.session[0], &slice, -1) >= 0);
  assert_int_equal(flags_that_came(&p), RECORD_SLICE);
  assert_true(perigee_call(p.session[0], &typed) >= 0);
  assert_int_equal(flags_that_came(&p), RECORD_TYPED | RECORD_SLICE);
  assert_true(perigee_call(p.session[0], &raw) >= 0);
  assert_int_equal(flags_that_came(&p), 0);
  pair_drop(&p); /* what was sent is left unanswered */
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(
      typed_is_said_of_typed_heads_only, (void *)(uintptr_t)&variant_default)};
  return cmocka_run_group_tests_name("flags", tests, NULL, NULL);
}
