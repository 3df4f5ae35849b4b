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

static void poll_both(struct scene *s) {
  for (int side = 1; side >= 0; side--) {
    struct perigee_event e;
    poll_side(&s->p, side);
    while (taken(&s->p, side, &e))
      scene_answer(s, side, &e);
  }
}

static void begin(struct scene *s, void *state, const struct scene_kind *kind,
                  int polls) {
  scene_open(s, state, -1);
  kind->build(s);
  for (int i = 0; i < polls && s->ends == 0; i++)
    poll_both(s);
}

static uint64_t dropped(const struct scene *s) {
  return perigee_counters(s->p.engine[0], NULL)->dropped;
}

/* Memory that copies on its own time is in use until a copy has ended. */
static void await_copies(struct scene *s) {
  bool host = strcmp(s->p.variant->memory, "host") == 0;
  while (!host && s->mine->users > 0)
    poll_both(s);
}

static void free_after(void *state, const struct scene_kind *kind, int polls) {
  struct scene s;
  begin(&s, state, kind, polls);
  uint64_t ends = s.ends;
  perigee_session_free(s.p.session[0]);
  s.p.session[0] = NULL;
  s.p.still[0] = s.p.still[1] = false;
  await_copies(&s);
  fill_byte(s.mine, 0xcc);
  scene_wind_up(&s);
  assert_int_equal(s.ends, ends);
  assert_int_equal(dropped(&s) > 0, ends == 0);
  all_byte(s.mine, 0xcc);
  scene_close(&s);
}

/* Freeing a session discards its events. The memory of its operations is free at
 * once, but for a copy that is under way. */
static void freed_sessions_tell_nothing(void **state) {
  for (const struct scene_kind *k = scene_kinds; k->name; k++)
    for (int polls = 0; polls < 4 && !k->connecting; polls++) {
      print_message("# %s, %d polls on\n", k->name, polls);
      free_after(*state, k, polls);
    }
}

/* Polls until the session has settled, which this side or the peer closed. */
static void await_settled(struct scene *s, int side) {
  int64_t end = clock_now() + 20000 * MS;
  s->p.still[side] = false;
  while (!perigee_session_settled(s->p.session[side])) {
    poll_both(s);
    if (clock_now() > end)
      fail_msg("the session does not settle");
  }
}

static void settle_after(void *state, const struct scene_kind *kind,
                         int polls) {
  struct scene s;
  begin(&s, state, kind, polls);
  assert_int_equal(perigee_session_settled(s.p.session[0]), 0);
  perigee_session_close(s.p.session[0]);
  await_settled(&s, 0);
  assert_int_equal(s.ends, 1);
  await_settled(&s, 1);
  perigee_session_free(s.p.session[0]);
  s.p.session[0] = NULL;
  scene_wind_up(&s);
  assert_int_equal(s.ends, 1);
  assert_int_equal(dropped(&s), 0);
  scene_close(&s);
}

/* A session that has settled has told all, so freeing it drops nothing. */
static void settled_sessions_have_told_all(void **state) {
  for (const struct scene_kind *k = scene_kinds; k->name; k++)
    for (int polls = 0; polls < 4 && !k->connecting; polls += 3) {
      print_message("# %s, %d polls on\n", k->name, polls);
      settle_after(*state, k, polls);
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
      cmocka_unit_test(settled_sessions_have_told_all),
      cmocka_unit_test(engines_close_over_everything),
  };
  return RUN_MATRIX("ends", tests);
}
