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
  assert_int_equal(staged(&p, 0), dropped_bytes(p.session[0]));
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
  assert_false(move_both(&p, MID, 4 * MS));
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
    limit_staging(p.engine[side], dropped_bytes(p.session[0]) - 1);
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

/* ---- Loans in a ring that has moved ---------------------------------------- */

static bool lies_in_block(struct pair *p, int side, const uint8_t *at) {
  const struct lane *lane = lane_of(p, side);
  const uint8_t *block = lane->arena + lane->moves[side].block;
  return lane->moves[side].state != MOVE_HOME && at > block &&
         at < block + dropped_bytes(p->session[side]);
}

static struct perigee_loan lend_call(struct pair *p, uint64_t capacity) {
  struct perigee_loan loan;
  assert_int_equal(perigee_call_begin(p->session[0], capacity, &loan), 0);
  return loan;
}

static int commit_call(struct pair *p, uint64_t length) {
  const struct perigee_message m = {.timeout = -1, .capacity = MID};
  int op = perigee_call_commit(p->session[0], &m, length);
  assert_true(op >= 0);
  return op;
}

/* Returns whether the reply was filled in the block. */
static bool answers_in_place(struct pair *p, const uint8_t *bytes,
                             uint64_t length) {
  struct perigee_loan loan;
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.length, length);
  assert_memory_equal(e.pointer, bytes, length);
  assert_int_equal(perigee_reply_begin(p->engine[1], e.operation, MID, &loan),
                   0);
  memcpy(loan.pointer, bytes, length);
  bool lent = lies_in_block(p, 1, loan.pointer);
  assert_true(perigee_reply_commit(p->engine[1], e.operation, length) >= 0);
  return lent;
}

/* Returns in how many of both loans the block was filled. */
static int echoes_in_place(struct pair *p, const uint8_t *bytes,
                           uint64_t length) {
  struct perigee_loan loan = lend_call(p, MID);
  memcpy(loan.pointer, bytes, length);
  int op = commit_call(p, length), lent = lies_in_block(p, 0, loan.pointer);
  lent += answers_in_place(p, bytes, length);
  gets(p, op, bytes, length);
  return lent;
}

/* Both sides lend room in their rings. */
static void lending_open(struct pair *p, void *state) {
  away_open(p, state);
  uint8_t *bytes = pattern(MID, 1);
  int calls = 0;
  while (echoes_in_place(p, bytes, MID) < 2)
    assert_true(calls++ < 100);
  free(bytes);
}

/* There is no room for it at the end of a lap. */
static void loans_are_room_in_the_ring_and_become_records(void **state) {
  enum { CALLS = 3000 };
  struct pair p;
  lending_open(&p, *state);
  uint8_t *bytes = pattern(2 * MID, 4);
  int lent = 0;
  for (uint64_t i = 0; i < CALLS; i++)
    lent +=
        echoes_in_place(&p, bytes + i % MID, MID / 2 + i * 37 % (MID / 2 + 1));
  assert_in_range(lent, 2 * CALLS * 95 / 100, 2 * CALLS - 1);
  assert_true(both_are(&p, MOVE_AWAY));
  free(bytes);
  pair_close(&p);
}

static bool is_lent_room(struct pair *p, uint64_t capacity) {
  bool lent = lies_in_block(p, 0, lend_call(p, capacity).pointer);
  assert_int_equal(perigee_call_abort(p->session[0]), 0);
  return lent;
}

static void others_are_stages(void **state) {
  struct pair p;
  uint8_t *bytes = pattern(MID, 2);
  lending_open(&p, *state);
  assert_true(is_lent_room(&p, 2 * KIB));
  assert_false(is_lent_room(&p, 2 * KIB - 1)); /* short */
  echoes_in_place(&p, bytes, 2 * KIB - 1);
  assert_false(is_lent_room(&p, MID)); /* filled with little */
  echoes_in_place(&p, bytes, 2 * KIB);
  assert_true(is_lent_room(&p, MID));
  lane_of(&p, 0)->records.far = true;
  assert_false(is_lent_room(&p, MID));
  lane_of(&p, 0)->records.far = false;
  assert_true(is_lent_room(&p, MID));
  rest(&p, 2000 * MS);
  assert_true(both_are(&p, MOVE_HOME));
  assert_false(is_lent_room(&p, MID)); /* in a ring that is home */
  free(bytes);
  pair_close(&p);
}

/* The ring leaves the room to the loan, which is copied from there. */
static void other_calls_come_before_a_loan_is_committed(void **state) {
  struct pair p;
  lending_open(&p, *state);
  uint8_t *bytes = pattern(MID + 100, 6);
  struct perigee_loan loan = lend_call(&p, MID);
  memcpy(loan.pointer, bytes, MID / 2);
  echoes(&p, bytes + 50, MID);
  assert_int_equal(state_of_ring(&p, 0), MOVE_BACK);
  echoes(&p, bytes, SHORT);
  memcpy(loan.pointer + MID / 2, bytes + MID / 2, MID / 2);
  int op = commit_call(&p, MID);
  answers_in_place(&p, bytes, MID);
  gets(&p, op, bytes, MID);
  rest(&p, 2000 * MS);
  assert_true(both_are(&p, MOVE_HOME));
  assert_true(move_both(&p, MID, 0));
  echoes_in_place(&p, bytes, MID);
  assert_false(is_lent_room(&p, MID)); /* it could happen again */
  free(bytes);
  pair_close(&p);
}

/* They fill the ring, which has left the room, and the loan waits behind them. */
static void a_loan_is_committed_behind_calls_that_wait(void **state) {
  enum { CALLS = 40 };
  struct pair p;
  int waits[CALLS];
  lending_open(&p, *state);
  uint8_t *bytes = pattern(MID, 6);
  memcpy(lend_call(&p, MID).pointer, bytes, MID);
  for (int i = 0; i < CALLS; i++)
    waits[i] = call(&p, bytes, MID);
  assert_false(list_empty(&p.session[0]->operations.backlog[RING_REQUEST]));
  int op = commit_call(&p, MID);
  for (int i = 0; i < CALLS; i++) {
    takes(&p, bytes, MID);
    gets(&p, waits[i], bytes, MID);
  }
  answers_in_place(&p, bytes, MID);
  gets(&p, op, bytes, MID);
  free(bytes);
  pair_close(&p);
}

static void another_reply_comes_before_one_is_committed(void **state) {
  struct perigee_loan loan;
  struct perigee_event e[2];
  struct pair p;
  int op[2];
  lending_open(&p, *state);
  uint8_t *bytes = pattern(MID, 6);
  for (int i = 0; i < 2; i++) {
    op[i] = call(&p, bytes, SHORT);
    e[i] = until(&p, 1, PERIGEE_EVENT_REQUEST);
  }
  assert_int_equal(perigee_reply_begin(p.engine[1], e[0].operation, MID, &loan),
                   0);
  assert_true(lies_in_block(&p, 1, loan.pointer));
  const struct perigee_message m = {.head = bytes, .length = SHORT};
  assert_true(perigee_reply(p.engine[1], e[1].operation, &m) >= 0);
  memcpy(loan.pointer, bytes, MID);
  gets(&p, op[1], bytes, SHORT);
  assert_true(perigee_reply_commit(p.engine[1], e[0].operation, MID) >= 0);
  gets(&p, op[0], bytes, MID);
  free(bytes);
  pair_close(&p);
}

/* Whatever passes meanwhile, for as long as it likes. */
static void a_loan_that_stays_open_keeps_its_bytes(void **state) {
  struct pair p;
  lending_open(&p, *state);
  uint8_t *bytes = pattern(MID, 2);
  struct perigee_loan loan = lend_call(&p, MID);
  memset(loan.pointer, 0x5a, MID);
  for (uint64_t passed = 0; passed < 8 * MIB; passed += MID)
    echoes(&p, bytes, MID);
  rest(&p, 3000 * MS);
  assert_int_equal(state_of_ring(&p, 0), MOVE_BACK);
  memset(bytes, 0x5a, MID);
  assert_memory_equal(loan.pointer, bytes, MID);
  int op = commit_call(&p, MID);
  answers_in_place(&p, bytes, MID);
  gets(&p, op, bytes, MID);
  rest(&p, 2000 * MS);
  assert_true(both_are(&p, MOVE_HOME));
  assert_int_equal(staged(&p, 0), 0);
  free(bytes);
  pair_close(&p);
}

static void a_ring_comes_back_once_its_loan_is_closed(void **state) {
  struct pair p;
  lending_open(&p, *state);
  lend_call(&p, MID);
  rest(&p, 2000 * MS);
  assert_int_equal(state_of_ring(&p, 0), MOVE_AWAY);
  assert_int_equal(perigee_call_abort(p.session[0]), 0);
  rest(&p, 2000 * MS);
  assert_true(both_are(&p, MOVE_HOME));
  pair_close(&p);
}

static void what_is_written_beyond_such_a_loan_is_not_sent(void **state) {
  const struct perigee_message m = {.timeout = -1};
  struct pair p;
  lending_open(&p, *state);
  uint8_t *bytes = pattern(MID, 3);
  struct perigee_loan loan = lend_call(&p, MID);
  memset(loan.pointer, 0x77, MID + 12);
  assert_int_equal(perigee_call_commit(p.session[0], &m, MID), PERIGEE_RANGE);
  loan = lend_call(&p, MID);
  memset(loan.pointer, 0x77, MID + 100 * KIB);
  assert_int_equal(perigee_call_abort(p.session[0]), PERIGEE_RANGE);
  echoes(&p, bytes, MID);
  free(bytes);
  pair_close(&p);
}

/* Its context would take the place of the loan's begin. */
static void a_traced_call_is_copied_from_its_loan(void **state) {
  struct perigee_message m = {.timeout = -1, .code = 5, .capacity = MID};
  struct perigee_trace trace, came;
  struct pair p;
  lending_open(&p, *state);
  uint8_t *bytes = pattern(MID, 8);
  perigee_trace_begin(p.engine[0], &trace);
  m.trace = &trace;
  memcpy(lend_call(&p, MID).pointer, bytes, MID);
  p.still[0] = true; /* it is sent at once */
  int op = perigee_call_commit(p.session[0], &m, MID);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  p.still[0] = false;
  assert_int_equal(e.length, MID);
  assert_memory_equal(e.pointer, bytes, MID);
  assert_true(perigee_served_trace(p.engine[1], e.operation, &came));
  assert_memory_equal(came.id, trace.id, sizeof trace.id);
  const struct perigee_message r = {.head = bytes, .length = MID};
  assert_true(perigee_reply(p.engine[1], e.operation, &r) >= 0);
  gets(&p, op, bytes, MID);
  assert_int_equal(state_of_ring(&p, 0), MOVE_AWAY);
  free(bytes);
  pair_close(&p);
}

static void a_session_ends_with_a_loan_open(void **state) {
  struct pair p;
  for (int side = 0; side < 2; side++) {
    lending_open(&p, *state);
    struct perigee_loan loan = lend_call(&p, MID);
    perigee_session_close(p.session[side]);
    memset(loan.pointer, 1, MID);
    if (side == 1)
      until(&p, 0, PERIGEE_EVENT_LOST);
    pair_drop(&p);
  }
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
      MOVING(loans_are_room_in_the_ring_and_become_records),
      MOVING(others_are_stages),
      MOVING(other_calls_come_before_a_loan_is_committed),
      MOVING(a_loan_is_committed_behind_calls_that_wait),
      MOVING(another_reply_comes_before_one_is_committed),
      MOVING(a_loan_that_stays_open_keeps_its_bytes),
      MOVING(a_ring_comes_back_once_its_loan_is_closed),
      MOVING(what_is_written_beyond_such_a_loan_is_not_sent),
      MOVING(a_traced_call_is_copied_from_its_loan),
      MOVING(a_session_ends_with_a_loan_open),
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
