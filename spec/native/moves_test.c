/* SPDX-License-Identifier: Apache-2.0
 *
 * moves_test.c - rings that move to a block of their writer's when many long
 * records pass, and come back when it is quiet; and peers that lie about it.
 */
#include <stdlib.h>
#include <string.h>

#include "support_inside.h"
#include "transport/shm/shm.h"
#include "turns_support.h"

enum { SHORT = 256, MID = 4 * KIB, LAP = 64 * KIB, MOST = 4096, UNDER = 12 };

static const struct variant moving = {
    .name = "shm", .transport = "shm", .memory = "host", .pull = 1};

static struct lane *lane_of(struct pair *p, int side) {
  return p->session[side]->lane;
}

/* Side 0 writes the requests, side 1 the replies. */
static enum move_state state_of_ring(struct pair *p, int side) {
  return lane_of(p, side)->moves[side].state;
}

static bool both_are(struct pair *p, enum move_state state) {
  return state_of_ring(p, 0) == state && state_of_ring(p, 1) == state;
}

static bool reads_home(struct pair *p, int side) {
  const struct lane *lane = lane_of(p, side);
  bool home = true;
  for (int i = 0; i < RINGS; i++)
    home &= lane->in[i].bytes == lane->inbox + i * lane->options.ring;
  return home;
}

static uint64_t staged(struct pair *p, int side) {
  return p->session[side]->account.share->used[SHARE_STAGED];
}

static void look_around(struct pair *p) {
  for (int side = 0; side < 2; side++) {
    look_at_clock(p->engine[side]);
    poll_side(p, side);
  }
}

/* Records hold the bytes of short calls, so nothing is told of them. */
static void takes(struct pair *p, const uint8_t *bytes, uint64_t length) {
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  struct perigee_message m = {.head = bytes, .length = length};
  assert_int_equal(e.length, length);
  assert_memory_equal(e.pointer, bytes, length);
  assert_true(perigee_reply(p->engine[1], e.operation, &m) >= 0);
}

static void gets(struct pair *p, int op, const uint8_t *bytes,
                 uint64_t length) {
  struct perigee_event e = ended(p, 0, op, PERIGEE_OK);
  assert_int_equal(e.length, length);
  assert_memory_equal(e.pointer, bytes, length);
}

static void echoes(struct pair *p, const uint8_t *bytes, uint64_t length) {
  int op = call(p, bytes, length);
  takes(p, bytes, length);
  gets(p, op, bytes, length);
}

/* Makes calls that lie `apart`, each with other bytes, until both rings are
 * away; false: they are not after MOST calls. */
static bool move_both(struct pair *p, uint64_t length, int64_t apart) {
  uint8_t *bytes = pattern(length + MOST, 3);
  int calls = 0;
  for (; calls < MOST && !both_are(p, MOVE_AWAY); calls++) {
    echoes(p, bytes + calls, length);
    own_time.passed += apart;
    look_around(p);
  }
  free(bytes);
  return calls < MOST;
}

static void rest(struct pair *p, int64_t time) {
  for (int64_t passed = 0; passed < time; passed += 10 * MS) {
    own_time.passed += 10 * MS;
    look_around(p);
  }
}

static void away_open(struct pair *p, void *state) {
  timed_open(p, state);
  assert_true(move_both(p, MID, 0));
}

/* ---- There and back -------------------------------------------------------- */

/* Both moves lie in the ring when it reads again, in a poll for many events. */
static void a_reader_that_was_away_over_both_moves_goes_on(void **state) {
  struct pair p;
  timed_open(&p, *state);
  uint8_t *bytes = pattern(MID, 3);
  int op = -1;
  for (int i = 0; i < MOST && state_of_ring(&p, 0) != MOVE_AWAY; i++) {
    if (op >= 0) {
      takes(&p, bytes, MID);
      gets(&p, op, bytes, MID);
      look_around(&p);
    }
    op = call(&p, bytes, MID);
  }
  assert_int_equal(state_of_ring(&p, 0), MOVE_AWAY);
  p.still[1] = true;
  rest(&p, 2000 * MS);
  p.still[1] = false;
  p.kept[1] = perigee_poll(p.engine[1], p.inbox[1], INBOX);
  takes(&p, bytes, MID);
  gets(&p, op, bytes, MID);
  rest(&p, 3000 * MS);
  assert_true(both_are(&p, MOVE_HOME));
  free(bytes);
  pair_close(&p);
}

static void both_rings_move_while_long_records_pass(void **state) {
  struct pair p;
  away_open(&p, *state);
  assert_false(reads_home(&p, 0));
  assert_false(reads_home(&p, 1));
  assert_int_equal(staged(&p, 0), 2 * MIB);
  assert_true(move_both(&p, MID, 0));
  for (uint64_t length = 0; length < 8 * KIB; length += 511) {
    uint8_t *bytes = pattern(length, 5);
    echoes(&p, bytes, length);
    free(bytes);
  }
  pair_close(&p);
}

/* Long ones pass for two laps and more of the ring that was moved. */
static void calls_under_way_keep_their_bytes_and_order(void **state) {
  struct pair p;
  timed_open(&p, *state);
  uint8_t *bytes = pattern(MID + MOST, 9);
  for (int i = 0; i < MOST / UNDER; i++) {
    int ops[UNDER];
    for (int n = 0; n < UNDER; n++)
      ops[n] = call(&p, bytes + i + n, MID);
    for (int n = 0; n < UNDER; n++)
      takes(&p, bytes + i + n, MID);
    for (int n = 0; n < UNDER; n++)
      gets(&p, ops[n], bytes + i + n, MID);
    look_around(&p);
  }
  assert_true(both_are(&p, MOVE_AWAY));
  free(bytes);
  pair_close(&p);
}

static void they_come_back_when_it_is_quiet(void **state) {
  struct pair p;
  away_open(&p, *state);
  for (int turn = 0; turn < 3; turn++) {
    rest(&p, 2000 * MS);
    assert_true(both_are(&p, MOVE_HOME));
    for (int side = 0; side < 2; side++) {
      assert_true(reads_home(&p, side));
      assert_null(lane_of(&p, side)->in[RING_REQUEST].other);
      assert_null(lane_of(&p, side)->in[RING_REPLY].other);
      assert_non_null(lane_of(&p, side)->head.in);
      assert_int_equal(staged(&p, side), 0);
      assert_int_equal(lane_of(&p, side)->made, 0);
      assert_int_equal(lane_of(&p, side)->peer_arena.count, 0);
      assert_int_equal(lendable(p.session[side]), POOL);
    }
    assert_true(move_both(&p, MID, 0));
  }
  pair_close(&p);
}

static void they_come_back_while_only_short_records_pass(void **state) {
  struct pair p;
  uint8_t *bytes = pattern(MID, 1);
  away_open(&p, *state);
  for (int i = 0; i < 2000; i++) {
    echoes(&p, bytes, 100);
    rest(&p, 10 * MS);
  }
  assert_true(both_are(&p, MOVE_HOME));
  echoes(&p, bytes, MID);
  free(bytes);
  pair_close(&p);
}

/* The block is the reader's to read until it has released all that lies there. */
static void a_request_in_the_block_stays_while_it_is_read(void **state) {
  struct pair p;
  away_open(&p, *state);
  uint8_t *bytes = pattern(MID, 7);
  int op = call(&p, bytes, MID);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  p.still[1] = true;
  for (int i = 0; i < 200; i++) {
    own_time.passed += 10 * MS;
    look_at_clock(p.engine[0]);
    poll_side(&p, 0);
  }
  assert_int_equal(state_of_ring(&p, 0), MOVE_BACK);
  assert_memory_equal(e.pointer, bytes, MID);
  p.still[1] = false;
  struct perigee_message m = {.head = bytes, .length = MID};
  assert_true(perigee_reply(p.engine[1], e.operation, &m) >= 0);
  gets(&p, op, bytes, MID);
  assert_true(move_both(&p, MID, MS / 10) || move_both(&p, MID, MS / 10));
  free(bytes);
  pair_close(&p);
}

static void a_request_in_the_block_outlives_its_writer(void **state) {
  struct pair p;
  away_open(&p, *state);
  uint8_t *bytes = pattern(MID, 8);
  call(&p, bytes, MID);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  p.still[1] = true;
  perigee_session_free(p.session[0]);
  p.session[0] = NULL;
  for (int i = 0; i < 100; i++)
    poll_side(&p, 0);
  assert_memory_equal(e.pointer, bytes, MID);
  p.still[1] = false;
  free(bytes);
  pair_drop(&p);
}

/* Two requests, between which the ring has moved, are read in one poll, and their
 * writer leaves. */
static void both_outlive_their_writer(struct pair *p, const uint8_t *bytes,
                                      uint64_t second) {
  p->still[1] = true;
  assert_int_equal(perigee_poll(p->engine[1], p->inbox[1], INBOX), 2);
  perigee_session_free(p->session[0]);
  p->session[0] = NULL;
  for (int i = 0; i < 100; i++)
    poll_side(p, 0);
  assert_memory_equal(p->inbox[1][0].pointer, bytes, SHORT);
  assert_memory_equal(p->inbox[1][1].pointer, bytes, second);
  pair_drop(p);
}

static void a_request_before_the_ring_left_outlives_its_writer(void **state) {
  struct pair p;
  timed_open(&p, *state);
  uint8_t *bytes = pattern(MID, 9);
  for (int i = 0; i < MOST; i++) {
    int ops[] = {call(&p, bytes, SHORT), call(&p, bytes, MID)};
    if (state_of_ring(&p, 0) == MOVE_AWAY)
      break;
    takes(&p, bytes, SHORT);
    gets(&p, ops[0], bytes, SHORT);
    takes(&p, bytes, MID);
    gets(&p, ops[1], bytes, MID);
    look_around(&p);
  }
  assert_int_equal(state_of_ring(&p, 0), MOVE_AWAY);
  both_outlive_their_writer(&p, bytes, MID);
  free(bytes);
}

static void a_request_behind_the_way_back_outlives_its_writer(void **state) {
  struct pair p;
  away_open(&p, *state);
  uint8_t *bytes = pattern(MID, 9);
  call(&p, bytes, SHORT);
  p.still[1] = true;
  rest(&p, 2000 * MS);
  assert_int_equal(state_of_ring(&p, 0), MOVE_BACK);
  call(&p, bytes, SHORT);
  both_outlive_their_writer(&p, bytes, SHORT);
  free(bytes);
}

/* ---- Who stays ------------------------------------------------------------- */

static void rings_stay_for_short_records_and_for_few_long_ones(void **state) {
  struct pair p;
  timed_open(&p, *state);
  assert_false(move_both(&p, KIB, 0));
  assert_false(move_both(&p, MID, MS));
  assert_int_equal(staged(&p, 0), 0);
  pair_close(&p);
}

static void rings_stay_with_a_peer_that_does_not_follow(void **state) {
  struct perigee_options o;
  struct pair p;
  variant_options(*state, &o);
  o.features = "-moves";
  pair_open_with(&p, *state, &o);
  assert_false(move_both(&p, MID, 0));
  struct shm_moves_word w = {.kind = MOVES_BACK};
  struct lane *lane = lane_of(&p, 1);
  assert_int_equal(lane_table(lane)->heard(lane, &w, sizeof w, -1),
                   PERIGEE_PROTOCOL);
  pair_close(&p);
}

static void rings_stay_once_the_share_is_used_up(void **state) {
  struct pair p;
  timed_open(&p, *state);
  for (int side = 0; side < 2; side++)
    limit_staging(p.engine[side], 2 * MIB - 1);
  assert_false(move_both(&p, MID, 0));
  assert_int_equal(lendable(p.session[0]), POOL);
  pair_close(&p);
}

static void long_rings_stay(void **state) {
  struct perigee_options o;
  struct pair p;
  variant_options(*state, &o);
  o.ring = 2 * MIB;
  pair_open_with(&p, *state, &o);
  assert_false(move_both(&p, MID, 0));
  pair_close(&p);
}

/* ---- Peers that lie -------------------------------------------------------- */

static int hears(struct pair *p, struct shm_moves_word w) {
  struct lane *lane = lane_of(p, 1);
  return lane_table(lane)->heard(lane, &w, sizeof w, -1);
}

static void frames_that_no_peer_sends_break_the_protocol(void **state) {
  const struct shm_moves_word wrong[] = {
      {.kind = MOVES_SHUT + 1},
      {.kind = MOVES_OPEN, .ring = RINGS, .size = MIB},
      {.kind = MOVES_READY, .ring = UINT32_MAX},
      {.kind = MOVES_OPEN, .size = 0},
      {.kind = MOVES_OPEN, .size = MIB + 4096},
      {.kind = MOVES_OPEN, .size = LAP / 2},
      {.kind = MOVES_OPEN, .size = 32 * MIB},
      {.kind = MOVES_OPEN, .size = UINT64_C(1) << 63},
      {.kind = MOVES_OPEN, .size = MIB, .address = 64},
      {.kind = MOVES_OPEN, .size = MIB, .address = (UINT64_C(1) << 47)},
      {.kind = MOVES_OPEN, .size = MIB, .address = 2 * (uint64_t)POOL}};
  struct pair p;
  timed_open(&p, *state);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_int_equal(hears(&p, wrong[i]), PERIGEE_PROTOCOL);
  pair_close(&p);
}

/* It would pay for the pages. */
static void a_block_without_pages_is_not_followed(void **state) {
  struct pair p;
  timed_open(&p, *state);
  struct shm_moves_word open = {.kind = MOVES_OPEN, .size = MIB};
  assert_int_equal(hears(&p, open), PERIGEE_OK);
  assert_null(lane_of(&p, 1)->in[RING_REQUEST].other);
  struct lane *writer = lane_of(&p, 0);
  int64_t block = arena_take(writer, MIB);
  assert_true(block >= 0);
  memset(writer->arena + block, 1, MIB - SHM_PAGE);
  look_around(&p);
  open.address = arena_address(writer, (uint64_t)block);
  assert_int_equal(hears(&p, open), PERIGEE_OK);
  assert_null(lane_of(&p, 1)->in[RING_REQUEST].other);
  writer->arena[block + MIB - 1] = 1;
  assert_int_equal(hears(&p, open), PERIGEE_OK);
  assert_non_null(lane_of(&p, 1)->in[RING_REQUEST].other);
  assert_int_equal(hears(&p, open), PERIGEE_PROTOCOL);
  quiet(&p, 100); /* nobody asked for "ready" */
  assert_int_equal(state_of_ring(&p, 0), MOVE_HOME);
  arena_give(writer, (uint64_t)block);
  pair_close(&p);
}

static void memory_that_holds_a_ring_cannot_be_shut(void **state) {
  struct pair p;
  away_open(&p, *state);
  assert_int_equal(hears(&p, (struct shm_moves_word){.kind = MOVES_SHUT}),
                   PERIGEE_PROTOCOL);
  pair_close(&p);
}

static void back_may_be_said_at_any_time(void **state) {
  struct pair p;
  uint8_t *bytes = pattern(MID, 2);
  timed_open(&p, *state);
  for (int away = 0; away < 2; away++) {
    assert_int_equal(hears(&p, (struct shm_moves_word){.kind = MOVES_BACK}),
                     PERIGEE_OK);
    echoes(&p, bytes, MID);
    assert_true(move_both(&p, MID, 0));
  }
  rest(&p, 2000 * MS);
  assert_non_null(lane_of(&p, 1)->head.in);
  free(bytes);
  pair_close(&p);
}

#define MOVING(test) OVER(moving, test)

int main(void) {
  const struct CMUnitTest tests[] = {
      MOVING(both_rings_move_while_long_records_pass),
      MOVING(a_reader_that_was_away_over_both_moves_goes_on),
      MOVING(calls_under_way_keep_their_bytes_and_order),
      MOVING(they_come_back_when_it_is_quiet),
      MOVING(they_come_back_while_only_short_records_pass),
      MOVING(a_request_in_the_block_stays_while_it_is_read),
      MOVING(a_request_in_the_block_outlives_its_writer),
      MOVING(a_request_before_the_ring_left_outlives_its_writer),
      MOVING(a_request_behind_the_way_back_outlives_its_writer),
      MOVING(rings_stay_for_short_records_and_for_few_long_ones),
      MOVING(rings_stay_with_a_peer_that_does_not_follow),
      MOVING(rings_stay_once_the_share_is_used_up),
      MOVING(long_rings_stay),
      MOVING(frames_that_no_peer_sends_break_the_protocol),
      MOVING(a_block_without_pages_is_not_followed),
      MOVING(memory_that_holds_a_ring_cannot_be_shut),
      MOVING(back_may_be_said_at_any_time),
  };
  return cmocka_run_group_tests_name("moves", tests, NULL, NULL);
}
