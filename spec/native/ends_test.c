/* SPDX-License-Identifier: Apache-2.0
 *
 * ends_test.c - an operation is stopped in every state that it can be in: it
 * ends once, in the status that fits, its memory is the caller's again from
 * then on, and nothing is left of it on either side.
 */
#include "scenes.h"

#include <stdio.h>
#include <string.h>

#include "support_inside.h"

static const int64_t LIMIT = 10000 * MS;

static void by_timeout(struct scene *s) {
  timers_begin(s->p.engine[0]);
  scene_later(2 * LIMIT);
}

static void by_cancel(struct scene *s) {
  perigee_cancel(s->p.engine[0], s->operation);
}

static void by_close(struct scene *s) {
  perigee_session_close(s->p.session[0]);
}

static void by_peers_close(struct scene *s) {
  perigee_session_close(s->p.session[1]);
}

/* Polls until the operation has ended; what else comes is done. */
static void await_end(struct scene *s) {
  int64_t end = clock_now() + 5000 * MS;
  while (s->ends == 0) {
    for (int side = 0; side < 2; side++) {
      struct perigee_event e;
      poll_side(&s->p, side);
      while (s->ends == 0 && taken(&s->p, side, &e))
        scene_answer(s, side, &e);
    }
    if (clock_now() > end)
      fail_msg("it does not end");
  }
}

/* The session goes on as if nothing had been. */
static void goes_on(struct scene *s) {
  struct perigee_message m = {.head = "on", .length = 2, .timeout = -1};
  int op = perigee_call(s->p.session[0], &m);
  struct perigee_event e = until(&s->p, 1, PERIGEE_EVENT_REQUEST);
  assert_memory_equal(e.pointer, "on", 2);
  assert_int_equal(perigee_reply(s->p.engine[1], e.operation, &m), 0);
  assert_int_equal(ended(&s->p, 0, op, 0).length, 2);
}

static void stop_one(void *state, const struct scene_kind *kind,
                     void (*stop)(struct scene *), int status) {
  struct scene s;
  bool ends_session = stop == by_close || stop == by_peers_close;
  if (kind->connecting && ends_session)
    return;
  print_message("# %s\n", kind->name);
  scene_open(&s, state, stop == by_timeout ? LIMIT : -1);
  kind->build(&s);
  stop(&s);
  if (stop == by_peers_close) /* what was said before is heard */
    s.p.still[0] = s.p.still[1] = false;
  await_end(&s);
  if (!(s.settled && s.status == PERIGEE_OK) && s.status != status)
    fail_msg("it ended in %s", perigee_status_name(s.status));
  fill_byte(s.mine, 0xcc);
  scene_wind_up(&s);
  assert_int_equal(s.ends, 1);
  all_byte(s.mine, 0xcc);
  if (!ends_session)
    goes_on(&s);
  scene_close(&s);
}

static void stop_all(void **state, void (*stop)(struct scene *), int status) {
  for (const struct scene_kind *k = scene_kinds; k->name; k++)
    stop_one(*state, k, stop, status);
}

static void operations_time_out(void **state) {
  stop_all(state, by_timeout, PERIGEE_TIMEOUT);
}

static void operations_are_cancelled(void **state) {
  stop_all(state, by_cancel, PERIGEE_CANCELLED);
}

static void operations_end_with_their_session(void **state) {
  stop_all(state, by_close, PERIGEE_CLOSED);
}

static void operations_end_with_their_peer(void **state) {
  stop_all(state, by_peers_close, PERIGEE_PEER_LOST);
}

/* A session that is freed takes its events along. */
static void freed_sessions_tell_nothing(void **state) {
  for (const struct scene_kind *k = scene_kinds; k->name; k++) {
    struct scene s;
    if (k->connecting)
      continue;
    print_message("# %s\n", k->name);
    scene_open(&s, *state, -1);
    k->build(&s);
    perigee_session_free(s.p.session[0]);
    s.p.session[0] = NULL;
    s.p.still[0] = s.p.still[1] = false;
    scene_wind_up(&s);
    assert_int_equal(s.ends, 0);
    scene_close(&s);
  }
}

/* Engines may be closed at any time; sanitizers watch. */
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
