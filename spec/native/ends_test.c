/* SPDX-License-Identifier: Apache-2.0
 *
 * ends_test.c - an operation is stopped in every state that it can be in. It
 * ends once, in the status that fits; from then on its memory belongs to the
 * caller again, and nothing is left of it on either side.
 */
#include "scenes.h"

#include <stdio.h>
#include <string.h>

#include "support_inside.h"

static void stop_all(void **state, void (*stop)(struct scene *), int status) {
  for (const struct scene_kind *k = scene_kinds; k->name; k++)
    scene_stop(*state, k, stop, status);
}

static void operations_time_out(void **state) {
  stop_all(state, scene_by_timeout, PERIGEE_TIMEOUT);
}

static void operations_are_cancelled(void **state) {
  stop_all(state, scene_by_cancel, PERIGEE_CANCELLED);
}

static void operations_end_with_their_session(void **state) {
  stop_all(state, scene_by_close, PERIGEE_CLOSED);
}

static void operations_end_with_their_peer(void **state) {
  stop_all(state, scene_by_peers_close, PERIGEE_PEER_LOST);
}

static void free_after(void *state, const struct scene_kind *kind, int polls) {
  struct scene s;
  scene_open(&s, state, -1);
  kind->build(&s);
  for (int i = 0; i < polls && s.ends == 0; i++)
    for (int side = 1; side >= 0; side--) {
      struct perigee_event e;
      poll_side(&s.p, side);
      while (taken(&s.p, side, &e))
        scene_answer(&s, side, &e);
    }
  uint64_t ends = s.ends;
  perigee_session_free(s.p.session[0]);
  s.p.session[0] = NULL;
  fill_byte(s.mine, 0xcc);
  s.p.still[0] = s.p.still[1] = false;
  scene_wind_up(&s);
  assert_int_equal(s.ends, ends);
  all_byte(s.mine, 0xcc);
  scene_close(&s);
}

/* Freeing a session discards its events. The memory of its operations is
 * free at once, even if it copies on its own time. */
static void freed_sessions_tell_nothing(void **state) {
  for (const struct scene_kind *k = scene_kinds; k->name; k++)
    for (int polls = 0; polls < 4 && !k->connecting; polls++) {
      print_message("# %s, %d polls on\n", k->name, polls);
      free_after(*state, k, polls);
    }
}

/* An engine may be closed at any time; sanitizers watch. */
static void engines_close_over_everything(void **state) {
  for (const struct scene_kind *k = scene_kinds; k->name; k++)
    for (int first = 0; first < 2; first++) {
      struct scene s;
      print_message("# %s\n", k->name);
      scene_open(&s, *state, -1);
      k->build(&s);
      perigee_engine_close(s.p.engine[first]);
      s.p.engine[first] = NULL;
      pair_drop(&s.p);
      scene_drop(&s);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(operations_time_out),
      cmocka_unit_test(operations_are_cancelled),
      cmocka_unit_test(operations_end_with_their_session),
      cmocka_unit_test(operations_end_with_their_peer),
      cmocka_unit_test(freed_sessions_tell_nothing),
      cmocka_unit_test(engines_close_over_everything),
  };
  return RUN_MATRIX("ends", tests);
}
