/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions that a transport must have, and the defaults for those it
 * lacks.
 */
#include "transport/transport.h"

#include "support.h"

static struct perigee_transport lacking;

static int opened(void) {
  const struct perigee_transport *const transports[] = {&lacking, NULL};
  struct perigee_engine *engine = NULL;
  struct perigee_options o;
  perigee_options_init(&o, sizeof o);
  o.transports = transports;
  int status = perigee_engine_open(&o, &engine);
  if (status == PERIGEE_OK)
    perigee_engine_close(engine);
  return status;
}

static void one_that_carries_no_session_is_refused(void **state) {
  (void)state;
  lacking = perigee_transport_inproc;
  assert_int_equal(opened(), PERIGEE_OK);
  lacking.records = NULL;
  assert_int_equal(opened(), PERIGEE_INVALID);
  lacking = perigee_transport_inproc;
  lacking.payloads = NULL;
  assert_int_equal(opened(), PERIGEE_INVALID);
  lacking = perigee_transport_inproc;
  lacking.loans = NULL;
  assert_int_equal(opened(), PERIGEE_INVALID);
}

static void one_without_sockets_has_frames_of_its_own(void **state) {
  (void)state;
  lacking = perigee_transport_inproc;
  lacking.frames = NULL;
  assert_int_equal(opened(), PERIGEE_INVALID);
  lacking.alone = NULL; /* then the session keeps its socket */
  assert_int_equal(opened(), PERIGEE_OK);
}

static void a_lane_that_wakes_by_itself_wants_no_wake_up(void **state) {
  (void)state;
  struct lane_head head = {.transport = NULL};
  struct lane *lane = (struct lane *)(void *)&head;
  lacking = perigee_transport_inproc;
  lacking.sleep = NULL;
  lane_by(lane, &lacking);
  lane_sleep(lane)->arm(lane);
  assert_false(lane_sleep(lane)->wanted(lane));
  lane_sleep(lane)->disarm(lane);
}

static void facts_are_told_as_a_line(void **state) {
  (void)state;
  struct lane_facts facts = {0};
  char line[64];
  facts_line(&facts, line, sizeof line);
  assert_string_equal(line, "");
  fact_text(&facts, "device", "%s/%d", "rxe_0", 1);
  fact_number(&facts, "queue_pairs", 4);
  facts_line(&facts, line, sizeof line);
  assert_string_equal(line, "device: rxe_0/1, 4 queue pairs");
}

static void facts_without_room_are_left_out_or_cut_off(void **state) {
  (void)state;
  struct lane_facts facts = {0};
  char line[24];
  for (int i = 0; i < 2 * FACTS; i++)
    fact_text(&facts, "text", "%100d", i);
  assert_true(facts.count < FACTS);
  assert_true(facts.used <= sizeof facts.texts);
  for (int i = 0; i < 2 * FACTS; i++)
    fact_number(&facts, "number", (uint64_t)i);
  assert_int_equal(facts.count, FACTS);
  for (size_t room = 1; room <= sizeof line; room++) {
    memset(line, 'x', sizeof line);
    facts_line(&facts, line, room);
    assert_true(strnlen(line, room) < room);
    for (size_t i = room; i < sizeof line; i++)
      assert_int_equal(line[i], 'x');
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_that_carries_no_session_is_refused),
      cmocka_unit_test(one_without_sockets_has_frames_of_its_own),
      cmocka_unit_test(a_lane_that_wakes_by_itself_wants_no_wake_up),
      cmocka_unit_test(facts_are_told_as_a_line),
      cmocka_unit_test(facts_without_room_are_left_out_or_cut_off),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
