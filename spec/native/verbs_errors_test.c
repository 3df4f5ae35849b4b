/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_errors_test.c - queue pairs that go to the error state while both sides
 * are busy. A queue pair for data is made again, which only costs time. If the
 * one for control fails, the session ends, once, and the next one works.
 */
#include <stdio.h>
#include <string.h>

#include "load.h"
#include "verbs_inside.h"

static const struct variant one = {"one pair", "verbs", "host", 1, "qps=1"};
static const struct variant three = {"three pairs", "verbs", "host", 1,
                                     "qps=3 stripe=32K depth=32"};
static const struct variant plain = {"no windows", "verbs", "host", 1,
                                     "qps=2 windows=0"};

static void is_open(struct load *l) {
  struct perigee_session_info info;
  for (int side = 0; side < 2; side++) {
    perigee_session_describe(l->p.session[side], &info, sizeof info);
    if (info.state != PERIGEE_SESSION_OPEN)
      fail_msg("side %d: %s", side, info.reason);
  }
}

static uint64_t resets(const struct load *l) {
  return resets_of(l->p.session[0]) + resets_of(l->p.session[1]);
}

/* A queue pair that is being made again is ready soon. */
static void break_pair(struct load *l, int side, int pair) {
  int64_t limit = clock_now() + 5000 * MS;
  while (!pair_to_error(l->p.session[side], pair)) {
    load_run(l, MS);
    assert_true(clock_now() < limit);
  }
}

static void a_data_pair_in_error_is_made_anew(void **state) {
  static struct load l;
  load_open(&l, *state);
  load_run(&l, 100 * MS);
  int pairs = pairs_of(l.p.session[0]);
  for (int round = 0; round < 30; round++) {
    break_pair(&l, round % 2, 1 + round / 2 % (pairs - 1));
    load_run(&l, (round % 5) * 10 * MS);
  }
  load_stop(&l);
  is_open(&l);
  assert_true(resets(&l) >= 30);
  uint64_t done = load_done(&l);
  load_run(&l, 100 * MS);
  load_stop(&l);
  assert_true(load_done(&l) > done);
  load_close(&l);
}

static void all_data_pairs_at_once_are(void **state) {
  static struct load l;
  load_open(&l, *state);
  for (int round = 0; round < 8; round++) {
    load_run(&l, 30 * MS);
    for (int side = 0; side < 2; side++)
      for (int i = 1; i < pairs_of(l.p.session[side]); i++)
        break_pair(&l, side, i);
  }
  load_stop(&l);
  is_open(&l);
  load_close(&l);
}

static int read_peer(struct load *l) {
  struct perigee_transfer *t = &l->side[0].transfers[0];
  t->local = all_of(l->side[0].own, LOAD_SIZE);
  t->remote = (struct perigee_slice){
      {.remote = l->side[0].peer_source}, 0, LOAD_SIZE, 1, LOAD_SIZE};
  return perigee_transfer(l->p.session[0], PERIGEE_OP_READ, t, 1, 0,
                          10000 * MS);
}

/* Its owner has nothing there that could fail, and learns of it from its
 * peer. */
static void one_that_its_owner_does_not_use_is(void **state) {
  static struct load l;
  load_open(&l, *state);
  for (int side = 0; side < 2; side++)
    for (int i = 1; i < pairs_of(l.p.session[side]); i++) {
      break_pair(&l, side, i);
      load_run(&l, 20 * MS);
      load_stop(&l);
      is_open(&l);
    }
  for (int round = 0; round < 3; round++) {
    break_pair(&l, 1, 1);
    finish(&l.p, read_peer(&l), PERIGEE_OK);
    is_open(&l);
  }
  load_close(&l);
}

static void the_control_pair_in_error_ends_the_session(void **state) {
  static struct load l;
  struct perigee_session_info info;
  load_open(&l, *state);
  for (int round = 0; round < 4; round++) {
    load_run(&l, 50 * MS);
    l.losing = true;
    break_pair(&l, round % 2, 0);
    int64_t start = clock_now();
    while (!l.side[0].lost || !l.side[1].lost) {
      load_run(&l, 0);
      load_run(&l, MS);
      assert_true(clock_now() - start < 5000 * MS);
    }
    load_stop(&l);
    for (int side = 0; side < 2; side++) {
      perigee_session_describe(l.p.session[side], &info, sizeof info);
      assert_int_equal(info.status, PERIGEE_PEER_LOST);
      assert_true(strlen(info.reason) > 10);
      print_message("# side %d: %s\n", side, info.reason);
      assert_int_equal(l.side[side].lost, 1);
      assert_int_equal(operations(&l.p, side), 0);
    }
    load_again(&l);
  }
  load_run(&l, 50 * MS);
  load_close(&l);
}

static void a_wrong_key_is_refused_and_the_next_right_one_works(void **state) {
  static struct load l;
  load_open(&l, *state);
  finish(&l.p, read_peer(&l), PERIGEE_OK); /* all keys have been told */
  for (int round = 0; round < 5; round++) {
    load_run(&l, 20 * MS);
    load_stop(&l);
    keys_spoil(l.p.session[0], l.side[0].peer_source);
    finish(&l.p, read_peer(&l), PERIGEE_STALE);
    keys_spoil(l.p.session[0], l.side[0].peer_source);
    finish(&l.p, read_peer(&l), PERIGEE_OK);
    is_open(&l);
  }
  load_close(&l);
}

/* ---- A peer that sends more than it may ---------------------------------- */

/* Two sessions of the same engines. */
struct flood {
  struct pair p;
  struct perigee_session *other[2];
  struct perigee_region *here, *there;
};

static void flood_open(struct flood *f, void *state) {
  pair_open(&f->p, state);
  pair_dial(&f->p, f->other);
  f->here = region_of(&f->p, 0, NULL, 64, 0);
  f->there = region_of(&f->p, 1, NULL, 64, 0);
}

static void flood_close(struct flood *f) {
  region_end(f->here);
  region_end(f->there);
  pair_close(&f->p);
}

static void begins_to_send(struct flood *f) {
  struct perigee_slice from = all_of(f->here, 64), to = all_of(f->there, 64);
  assert_true(perigee_recv(f->other[1], &to, -1) >= 0);
  assert_true(perigee_send(f->other[0], &from, -1) >= 0);
}

/* Polls both until the flooded session has ended at the receiver, and the other
 * one has carried what was sent. */
static void flood_await(struct flood *f, struct perigee_session_info *flooded) {
  struct perigee_event e;
  int64_t limit = clock_now() + 20000 * MS;
  do {
    for (int side = 0; side < 2; side++) {
      poll_side(&f->p, side);
      while (taken(&f->p, side, &e))
        if (e.kind == PERIGEE_EVENT_DONE && e.status != PERIGEE_OK)
          fail_msg("the other session: %s", perigee_detail(f->p.engine[side]));
    }
    perigee_session_describe(f->p.session[1], flooded, sizeof *flooded);
    assert_true(clock_now() < limit);
  } while (flooded->state != PERIGEE_SESSION_ENDED ||
           operations(&f->p, 0) + operations(&f->p, 1) > 0);
}

/* It gives room back for 16 notes at once, so room for some is not given back when
 * the next ones come. */
static void more_notes_than_may_be_end_their_session(void **state) {
  static struct flood f;
  struct perigee_session_info flooded;
  flood_open(&f, *state);
  notes_flood(f.p.session[0], 64 + 7);
  for (int i = 0; i < 100; i++)
    poll_side(&f.p, 1);
  notes_flood(f.p.session[0], 64 + 7);
  begins_to_send(&f);
  flood_await(&f, &flooded);
  assert_non_null(strstr(flooded.reason, "more notes than it was given room"));
  assert_int_equal(flooded.status, PERIGEE_PROTOCOL);
  flood_close(&f);
}

/* The receiver is busy meanwhile, for longer than a sender waits for one that is
 * not ready. */
static void a_flood_takes_no_room_of_other_sessions(void **state) {
  static struct flood f;
  struct perigee_session_info flooded;
  flood_open(&f, *state);
  notes_flood(f.p.session[0], 10000);
  begins_to_send(&f);
  for (int64_t end = clock_now() + 400 * MS; clock_now() < end;)
    poll_side(&f.p, 0);
  flood_await(&f, &flooded);
  flood_close(&f);
}

static void link_layers_that_differ_are_told(void **state) {
  static struct load l;
  char reason[REASON_TEXT] = "";
  load_open(&l, *state);
  int status = joined_over_other_links(l.p.session[0], reason);
  assert_int_equal(status, PERIGEE_UNSUPPORTED);
  assert_non_null(strstr(reason, "is Ethernet and the peer's NIC is not"));
  assert_non_null(strstr(reason, "nics="));
  load_run(&l, 20 * MS);
  load_close(&l);
}

static void a_peer_of_one_queue_pair_does_not_join(void **state) {
  static struct pair p;
  char reason[REASON_TEXT] = "";
  pair_open(&p, *state);
  assert_int_equal(joined_by_one_pair(p.session[0], reason), PERIGEE_PROTOCOL);
  pair_close(&p);
}

/* ---- A peer that does not read its socket ---------------------------------- */

/* The grant's windows are not bound yet when it is taken back: a queue pair is
 * reset, which cannot be told. */
static void a_region_closes_though_no_reset_can_be_told(void **state) {
  static struct pair p;
  struct perigee_session_info info;
  pair_open(&p, *state);
  struct perigee_region *region = region_of(&p, 1, "r", MIB, PERIGEE_READ);
  look_up(&p, "r");
  grant_anew(p.session[1], region);
  socket_fill(p.session[1]);
  assert_int_equal(perigee_region_close(region, true), PERIGEE_OK);
  perigee_session_describe(p.session[1], &info, sizeof info);
  assert_int_equal(info.state, PERIGEE_SESSION_OPEN);
  assert_int_equal(until(&p, 1, PERIGEE_EVENT_LOST).status, PERIGEE_PROTOCOL);
  perigee_session_describe(p.session[1], &info, sizeof info);
  assert_non_null(strstr(info.reason, "does not take what it is told"));
  pair_drop(&p);
}

/* ---- Devices that fail ------------------------------------------------------ */

static void a_device_that_fails_before_the_peer_joins_is_told(void **state) {
  static struct pair p;
  char reason[REASON_TEXT] = "";
  pair_open(&p, *state);
  assert_int_equal(joined_without_device(p.session[0], reason),
                   PERIGEE_PEER_LOST);
  assert_non_null(strstr(reason, "it is being removed"));
  pair_close(&p);
}

/* ---- Ports that change --------------------------------------------------- */

static void a_port_that_is_down_carries_no_new_session(void **state) {
  static struct pair p;
  char reason[REASON_TEXT] = "";
  pair_open(&p, *state);
  assert_int_equal(ports_usable(p.session[0], reason), PERIGEE_OK);
  ports_down(p.session[0], true);
  assert_int_equal(ports_usable(p.session[0], reason), PERIGEE_UNSUPPORTED);
  assert_non_null(strstr(reason, "is not active"));
  ports_down(p.session[0], false);
  assert_int_equal(ports_usable(p.session[0], reason), PERIGEE_OK);
  pair_close(&p);
}

static void a_session_uses_the_address_that_a_port_has_now(void **state) {
  static struct flood f;
  flood_open(&f, *state);
  for (int side = 0; side < 2; side++) {
    struct perigee_event e;
    ports_forget_address(f.p.session[side]);
    pair_dial(&f.p, f.other);
    begins_to_send(&f);
    for (int i = 0; operations(&f.p, 0) + operations(&f.p, 1) > 0; i = !i) {
      poll_side(&f.p, i);
      while (taken(&f.p, i, &e))
        assert_int_equal(e.status, PERIGEE_OK);
    }
  }
  flood_close(&f);
}

/* The engine has chosen its port itself; then a faster one came up. */
static void another_port_that_is_better_now_does_not_matter(void **state) {
  static struct pair p;
  struct perigee_session_info info;
  char how[80], reason[REASON_TEXT] = "";
  struct variant v = *(const struct variant *)*state;
  const char *name = port_of_second_choice();
  if (!name) {
    skip();
    return;
  }
  snprintf(how, sizeof how, "nics=%s", name);
  v.how = how;
  pair_open(&p, &v);
  ports_outdone(p.session[0]);
  ports_forget_address(p.session[0]);
  if (ports_usable(p.session[0], reason) < 0)
    fail_msg("%s", reason);
  perigee_session_describe(p.session[0], &info, sizeof info);
  assert_non_null(strstr(info.carrier, name)); /* it is that port still */
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(one, a_data_pair_in_error_is_made_anew),
      OVER(three, a_data_pair_in_error_is_made_anew),
      OVER(plain, a_data_pair_in_error_is_made_anew),
      OVER(one, all_data_pairs_at_once_are),
      OVER(three, all_data_pairs_at_once_are),
      OVER(one, one_that_its_owner_does_not_use_is),
      OVER(three, one_that_its_owner_does_not_use_is),
      OVER(one, a_wrong_key_is_refused_and_the_next_right_one_works),
      OVER(three, a_wrong_key_is_refused_and_the_next_right_one_works),
      OVER(plain, a_wrong_key_is_refused_and_the_next_right_one_works),
      OVER(one, link_layers_that_differ_are_told),
      OVER(one, more_notes_than_may_be_end_their_session),
      OVER(one, a_flood_takes_no_room_of_other_sessions),
      OVER(one, a_port_that_is_down_carries_no_new_session),
      OVER(one, a_session_uses_the_address_that_a_port_has_now),
      OVER(one, another_port_that_is_better_now_does_not_matter),
      OVER(one, a_peer_of_one_queue_pair_does_not_join),
      OVER(one, a_region_closes_though_no_reset_can_be_told),
      OVER(one, a_device_that_fails_before_the_peer_joins_is_told),
      OVER(one, the_control_pair_in_error_ends_the_session),
      OVER(three, the_control_pair_in_error_ends_the_session),
  };
  const char *why = no_device();
  if (why) {
    printf("skipped: %s\n", why);
    return 77;
  }
  return cmocka_run_group_tests_name("queue pair errors", tests, NULL, NULL);
}
