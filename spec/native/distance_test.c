/* SPDX-License-Identifier: Apache-2.0
 *
 * distance_test.c - how payloads between private memories go over shared memory
 * where the cores of the two sides share a cache and where they do not; and how
 * a session finds out.
 */
#include <stdlib.h>

#include "base/copy.h"
#include "support_inside.h"
#include "turns_support.h"

/* Of two late lines in a row, the first may be chance. */
static void after_a_slow_copy_the_distance_is_tried(void **state) {
  enum { SOON = 8, LATER = 1000 };
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3);
  busy_open(&p, *state);
  be_far(p.session[0]);
  while (is_far(p.session[0]))
    assert_true(stages(&p, bytes));
  for (int i = 0; i < SOON; i++)
    assert_true(stages(&p, bytes));
  own_time.more = LATER; /* no line is tried, as no copy was slow */
  assert_true(stages(&p, bytes));
  assert_false(is_far(p.session[0]));
  own_time.step = 100000;
  for (int i = 0; i < 2; i++) {
    assert_true(stages(&p, bytes));
    assert_false(is_far(p.session[0]));
  }
  assert_true(stages(&p, bytes));
  assert_true(is_far(p.session[0]));
  free(bytes);
  pair_close(&p);
}

static void one_of_many_payloads_tries_the_distance(void **state) {
  enum { EVERY = 127, LATER = 1000 };
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3);
  busy_open(&p, *state);
  for (int far = 1; far >= 0; far--) {
    be_far(p.session[0]);
    own_time.more = far ? LATER : 0;
    for (int i = 0; i < EVERY; i++) {
      assert_true(stages(&p, bytes));
      assert_true(is_far(p.session[0]));
    }
    assert_true(stages(&p, bytes));
    assert_int_equal(is_far(p.session[0]), far);
  }
  free(bytes);
  pair_close(&p);
}

/* Those that lie in their request's block, too: each counts once. */
static void one_of_many_replies_tries_the_distance(void **state) {
  enum { EVERY = 127 };
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3);
  busy_open(&p, *state);
  for (int own = 0; own < 2; own++) {
    be_far(p.session[1]);
    for (int i = 0; i <= EVERY; i++) {
      assert_true(is_far(p.session[1]));
      int op = call(&p, bytes, LENGTH);
      struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
      answer(&p, &e, own ? bytes : e.pointer, LENGTH);
      answered(&p, op, bytes, LENGTH);
      until(&p, 1, PERIGEE_EVENT_SENT);
    }
    assert_false(is_far(p.session[1]));
  }
  free(bytes);
  pair_close(&p);
}

/* An echo in records: the event SENT is for replies that stay the server's. */
static void echo_record(struct pair *p, const uint8_t *bytes, uint64_t length) {
  int op = call(p, bytes, length);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.length, length);
  assert_memory_equal(e.pointer, bytes, length);
  answer(p, &e, e.pointer, length);
  answered(p, op, bytes, length);
}

enum { RECORD = 4000 };

/* Calls until records of side 0 do, or do not, go past the caches; returns how
 * many calls that took. */
static int echoes(struct pair *p, int most, bool past) {
  uint8_t *bytes = pattern(RECORD, 3);
  int calls = 0;
  while (calls < most && streams_records(p->session[0]) != past) {
    hurry_records(p->session[0]);
    echo_record(p, bytes, RECORD);
    calls++;
  }
  free(bytes);
  return calls;
}

static int echoes_until(struct pair *p, bool past) {
  enum { MOST = 10 * 127 * 16 };
  int calls = echoes(p, MOST, past);
  assert_int_equal(streams_records(p->session[0]), past);
  return calls;
}

/* The ring's laps count as payloads, and its long records go past the caches of
 * far cores. */
static void a_ring_of_long_records_finds_the_distance(void **state) {
  enum { LATER = 1000, CALLS = 2000 };
  struct pair p;
  timed_open(&p, *state);
  own_time.more = LATER;
  echoes_until(&p, true);
  assert_false(is_far(p.session[0]));
  own_time.more = 0;
  echoes_until(&p, false); /* for a lap at least */
  assert_int_equal(echoes(&p, CALLS, true), CALLS);
  pair_close(&p);
}

/* A line of a streamed record that the peer's program did not read comes from
 * memory, and late, from near cores, too. */
static void
a_ring_past_the_caches_is_tried_behind_a_lap_through_them(void **state) {
  enum { LATER = 1000, LAP = 16 };
  struct pair p;
  clocked_open(&p, *state, "-moves");
  own_time.more = LATER;
  echoes_until(&p, true);
  echoes_until(&p, false);
  assert_true(echoes_until(&p, true) >= LAP);
  pair_close(&p);
}

/* Caches may have dropped its lines by then. */
static void a_ring_is_not_tried_by_a_lap_before_a_pause(void **state) {
  enum { LATER = 1000, CALLS = 64 };
  struct pair p;
  clocked_open(&p, *state, "-moves");
  echoes(&p, CALLS, true);
  hear_record(p.session[0], RECORD);
  own_time.passed += 25 * MS;
  look_at_clock(p.engine[0]);
  poll_side(&p, 0);
  for (int i = 0; i < 3; i++) {
    hear_record(p.session[0], RECORD);
    own_time.more = LATER;
  }
  assert_false(streams_records(p.session[0]));
  pair_close(&p);
}

static void records_past_the_caches_are_whole(void **state) {
  enum { LEAST = 1900, MOST = 8000, STEP = 61 };
  struct pair p;
  uint8_t *bytes = pattern(MOST, 5);
  timed_open(&p, *state);
  stream_records(p.session[0]);
  stream_records(p.session[1]);
  for (uint64_t n = LEAST; n < MOST; n += STEP)
    echo_record(&p, bytes, n);
  for (int side = 0; side < 2; side++)
    assert_true(streams_records(p.session[side]));
  free(bytes);
  pair_close(&p);
}

/* Their head is typed. */
static void slices_past_the_caches_are_whole(void **state) {
  enum { LEAST = 1900, MOST = 8000, STEP = 61 };
  struct pair p;
  uint8_t *bytes = pattern(MOST, 5);
  timed_open(&p, *state);
  stream_records(p.session[0]);
  struct perigee_region *from = region_of(&p, 0, NULL, MOST, PERIGEE_LOCAL);
  struct perigee_region *to = region_of(&p, 1, NULL, MOST, PERIGEE_LOCAL);
  const struct perigee_slice place = all_of(to, MOST);
  fill(from, 0, bytes, MOST);
  for (uint64_t n = LEAST; n < MOST; n += STEP) {
    struct perigee_message m = {.head = "\2",
                                .length = 1,
                                .flags = PERIGEE_TYPED,
                                .slice = {{from}, MOST - n, n, 1, 0},
                                .timeout = -1};
    int op = perigee_call(p.session[0], &m);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_LANDING);
    assert_int_equal(perigee_land(p.engine[1], e.operation, &place), 0);
    e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    same(to, 0, bytes + MOST - n, n);
    answer(&p, &e, bytes, 10);
    answered(&p, op, bytes, 10);
  }
  assert_true(streams_records(p.session[0]));
  region_end(from);
  region_end(to);
  free(bytes);
  pair_close(&p);
}

enum { PLAIN = 512 * KIB };

/* What is longer is pulled, but for one of many. */
static void near_payloads_up_to_a_length_are_staged(void **state) {
  enum { CALLS = 128 };
  struct pair p;
  uint8_t *bytes = pattern(PLAIN + 1, 3);
  busy_open(&p, *state);
  int op = call(&p, bytes, PLAIN);
  assert_int_equal(turns_live(p.session[0]), 1);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  answer(&p, &e, e.pointer, PLAIN);
  assert_int_equal(turns_live(p.session[1]), 1);
  answered(&p, op, bytes, PLAIN);
  until(&p, 1, PERIGEE_EVENT_SENT);
  int staged = 0;
  for (int i = 0; i < CALLS; i++) {
    op = call(&p, bytes, PLAIN + 1);
    staged += turns_live(p.session[0]) > 0;
    e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    assert_memory_equal(e.pointer, bytes, PLAIN + 1);
    answer(&p, &e, e.pointer, 10);
    answered(&p, op, bytes, 10);
  }
  assert_in_range(staged, 1, 2);
  free(bytes);
  pair_close(&p);
}

/* An echo of so many bytes in a region, as a slice of blocks; was the request
 * staged in a turn? */
static bool echo_slice(struct pair *p, uint64_t block, uint64_t count) {
  uint64_t length = block * count;
  struct perigee_region *r;
  assert_int_equal(perigee_region_alloc(p->engine[0], NULL, 4 * length,
                                        PERIGEE_LOCAL, NULL, &r),
                   0);
  uint8_t *bytes = perigee_region_pointer(r);
  for (uint64_t i = 0; i < 2 * length; i++)
    bytes[i] = (uint8_t)(i * 13 + i / 509);
  struct perigee_message m = {
      .slice = {{r}, 0, block, count, 2 * block},
      .into = {{r}, 2 * length, block, count, 2 * block},
      .timeout = -1};
  int op = perigee_call(p->session[0], &m);
  assert_true(op >= 0);
  bool staged = turns_live(p->session[0]) > 0;
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.length, length);
  answer(p, &e, e.pointer, length);
  ended(p, 0, op, PERIGEE_OK);
  for (uint64_t i = 0; i < count; i++)
    assert_memory_equal(bytes + 2 * length + 2 * i * block,
                        bytes + 2 * i * block, block);
  until(p, 1, PERIGEE_EVENT_SENT);
  perigee_region_close(r, -1);
  return staged;
}

/* The first long payloads only make pages for the next. */
static bool comes_to_be_staged(struct pair *p, uint64_t length) {
  for (int i = 0; i < 4; i++)
    if (echo_slice(p, length, 1))
      return true;
  return false;
}

/* What lies in strides is pulled. */
static void far_payload_is_staged(struct pair *p, uint64_t length) {
  be_far(p->session[0]);
  be_far(p->session[1]);
  assert_true(comes_to_be_staged(p, length));
  assert_false(echo_slice(p, 4099, length / 4099));
}

static void far_payloads_up_to_a_length_are_staged(void **state) {
  static const uint64_t lengths[] = {16400, LENGTH + 1, PLAIN + 3, LONGEST};
  struct pair p;
  busy_open(&p, *state);
  for (int i = 0; i < 4; i++)
    far_payload_is_staged(&p, lengths[i]);
  pair_close(&p);
}

static void longer_far_payloads_pass_through_a_window(void **state) {
  static const uint64_t lengths[] = {LONGEST + 1, 5 * MIB + 7, 16 * MIB};
  struct pair p;
  busy_open(&p, *state);
  for (int i = 0; i < 3; i++) {
    far_payload_is_staged(&p, lengths[i]);
    assert_int_equal(turns_live(p.session[0]), 0);
    assert_in_range(stretch_bytes(p.session[0]), LONGEST, 4 * MIB);
  }
  pair_close(&p);
}

/* Who may not pull gets slots, and so does who does not know of windows, if it
 * may pull: then that. */
static void longer_far_payloads_pass_through_no_window(struct pair *p) {
  be_far(p->session[0]);
  assert_false(comes_to_be_staged(p, LONGEST + 1));
  assert_false(echo_slice(p, 5 * MIB + 7, 1));
  assert_int_equal(turns_live(p->session[0]), 0);
}

static void a_peer_that_may_not_pull_gets_no_window(void **state) {
  struct pair p;
  busy_open(&p, *state);
  longer_far_payloads_pass_through_no_window(&p);
  pair_close(&p);
}

static void an_older_peer_gets_no_window(void **state) {
  struct perigee_options o;
  struct pair p;
  variant_options(*state, &o);
  o.features = "-windows";
  o.pool = POOL;
  pair_open_with(&p, *state, &o);
  longer_far_payloads_pass_through_no_window(&p);
  pair_close(&p);
}

/* The receiver of a call waits for its payload; polls of side 0 are left out as
 * long as it does. */
static struct perigee_event received_alone(struct pair *p) {
  p->still[0] = true;
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  p->still[0] = false;
  return e;
}

/* Opens a session on which far payloads of that length have a window. */
static void window_open(struct pair *p, void *state, uint64_t length) {
  busy_open(p, state);
  be_far(p->session[0]);
  assert_true(comes_to_be_staged(p, length));
}

static void the_receiver_pulls_what_a_window_lacks(void **state) {
  struct pair p;
  uint64_t length = 9 * MIB + 5;
  uint8_t *bytes = pattern(length, 3);
  window_open(&p, *state, length);
  int op = call(&p, bytes, length);
  assert_int_equal(turns_live(p.session[0]), 1);
  struct perigee_event e = received_alone(&p);
  assert_int_equal(e.length, length);
  assert_memory_equal(e.pointer, bytes, length);
  answer(&p, &e, bytes, 10);
  answered(&p, op, bytes, 10);
  assert_true(stages(&p, bytes)); /* its block is free again */
  free(bytes);
  pair_close(&p);
}

/* The receiver brings all of it before its owner polls, so nobody tries the line
 * behind the last byte. */
static void
a_trial_that_nobody_ends_is_not_begun_by_each_payload(void **state) {
  enum { SOON = 8, TRIALS = 3 };
  uint8_t *bytes = pattern(LONGEST + 1, 3);
  struct pair p;
  int tries = 0;
  timed_open(&p, *state);
  for (int i = 0; i < SOON * TRIALS; i++) {
    int op = call(&p, bytes, LONGEST + 1);
    tries += turns_live(p.session[0]) > 0;
    struct perigee_event e = received_alone(&p);
    answer(&p, &e, bytes, 10);
    answered(&p, op, bytes, 10);
  }
  assert_in_range(tries, 1, TRIALS);
  free(bytes);
  pair_close(&p);
}

/* Side 1 finds the window empty and pulls; then side 0 polls. */
static void the_owner_goes_on_behind_what_was_pulled(void **state) {
  struct pair p;
  uint64_t length = 16 * MIB + 5;
  uint8_t *bytes = pattern(length, 3);
  window_open(&p, *state, length);
  int op = call(&p, bytes, length);
  uint32_t generation = generation_at(p.engine[0], (uint32_t)op);
  while (bytes_taken(p.session[1], op, generation) <= LONGEST)
    poll_side(&p, 1);
  assert_int_equal(window_fed(p.session[0]), LONGEST);
  poll_side(&p, 0);
  assert_true(window_fed(p.session[0]) > LONGEST + LONGEST / 2);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  assert_memory_equal(e.pointer, bytes, length);
  answer(&p, &e, bytes, 10);
  answered(&p, op, bytes, 10);
  free(bytes);
  pair_close(&p);
}

static void owner_and_receiver_bring_a_payload_together(void **state) {
  struct pair p;
  uint64_t length = 16 * MIB + 5;
  uint8_t *bytes = pattern(length, 3);
  window_open(&p, *state, length);
  for (int pause = 1; pause <= 64; pause *= 2) {
    int op = call(&p, bytes, length);
    for (int i = 0; p.kept[1] == 0; i++) {
      p.still[0] = i % pause != 0;
      poll_side(&p, 0);
      poll_side(&p, 1);
    }
    p.still[0] = false;
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    assert_memory_equal(e.pointer, bytes, length);
    answer(&p, &e, bytes, 10);
    answered(&p, op, bytes, 10);
  }
  free(bytes);
  pair_close(&p);
}

/* Polls side 0 with that lie about what was taken of an operation, then without. */
static void poll_with_lie(struct pair *p, int op, uint64_t taken) {
  uint32_t generation = generation_at(p->engine[0], (uint32_t)op);
  lie_of_taking(p->session[1], op, generation, taken);
  for (int i = 0; i < 10; i++)
    poll_side(p, 0);
  lie_of_taking(p->session[1], op, generation, 0);
}

/* Its owner skips what it says to have, and nobody else's bytes are written
 * over. */
static void who_lies_of_what_it_pulled_harms_itself(void **state) {
  static const uint64_t lies[] = {9 * MIB, 5 * MIB + 3};
  struct pair p;
  uint64_t length = 9 * MIB;
  uint8_t *bytes = pattern(length, 3);
  window_open(&p, *state, length);
  for (int i = 0; i < 2; i++) {
    int op = call(&p, bytes, length);
    poll_with_lie(&p, op, lies[i]);
    ended(&p, 0, op, PERIGEE_PROTOCOL);
    assert_true(stages(&p, bytes));
  }
  free(bytes);
  pair_close(&p);
}

static void who_pulled_more_than_there_is_is_not_believed(void **state) {
  struct pair p;
  uint64_t length = 9 * MIB;
  uint8_t *bytes = pattern(length, 3);
  window_open(&p, *state, length);
  int op = call(&p, bytes, length);
  poll_with_lie(&p, op, length + 1);
  struct perigee_event e = received_alone(&p);
  assert_memory_equal(e.pointer, bytes, length);
  answer(&p, &e, bytes, 10);
  answered(&p, op, bytes, 10);
  free(bytes);
  pair_close(&p);
}

/* Its payload lies nowhere, or more is staged than there is. */
static void a_window_that_lies_ends_its_call(void **state) {
  static const uint64_t fed[] = {LONGEST, 9 * MIB + 1, UINT64_MAX};
  struct pair p;
  uint64_t length = 9 * MIB;
  uint8_t *bytes = pattern(length, 3);
  window_open(&p, *state, length);
  for (int i = 0; i < 3; i++) {
    int op = call(&p, bytes, length);
    lie_of_window(p.session[0], fed[i], 4096);
    p.still[0] = true;
    for (int j = 0; j < 1000; j++)
      poll_side(&p, 1);
    p.still[0] = false;
    ended(&p, 0, op, PERIGEE_PROTOCOL);
    assert_true(stages(&p, bytes));
  }
  free(bytes);
  pair_close(&p);
}

/* Its owner does nothing more: it may compute. */
static void a_long_payload_needs_its_owner_no_more(void **state) {
  static const uint64_t lengths[] = {PLAIN, LONGEST, 5 * MIB};
  struct pair p;
  uint8_t *bytes = pattern(5 * MIB, 3);
  busy_open(&p, *state);
  for (int far = 0; far < 2; far++)
    for (int i = 0; i < 3; i++) {
      if (far)
        be_far(p.session[0]);
      int op = call(&p, bytes, lengths[i]);
      p.still[0] = true;
      struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
      assert_int_equal(e.length, lengths[i]);
      assert_memory_equal(e.pointer, bytes, lengths[i]);
      answer(&p, &e, bytes, 10);
      p.still[0] = false;
      answered(&p, op, bytes, 10);
    }
  free(bytes);
  pair_close(&p);
}

static int lent_request(struct pair *p, const uint8_t *bytes) {
  struct perigee_message m = {.capacity = LENGTH, .timeout = -1};
  struct perigee_loan loan;
  assert_int_equal(perigee_call_begin(p->session[0], LENGTH, &loan), 0);
  perigee_copy(loan.pointer, bytes, LENGTH);
  int op = perigee_call_commit(p->session[0], &m, LENGTH);
  assert_true(op >= 0);
  return op;
}

/* An echo whose request and reply are lent. Returns the reply's loan. */
static struct perigee_loan lent_echo(struct pair *p, const uint8_t *bytes) {
  struct perigee_loan loan;
  int op = lent_request(p, bytes);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_memory_equal(e.pointer, bytes, LENGTH);
  assert_int_equal(
      perigee_reply_begin(p->engine[1], e.operation, LENGTH, &loan), 0);
  perigee_copy(loan.pointer, e.pointer, LENGTH);
  assert_int_equal(perigee_reply_commit(p->engine[1], e.operation, LENGTH), 1);
  answered(p, op, bytes, LENGTH);
  until(p, 1, PERIGEE_EVENT_SENT);
  return loan;
}

/* Until a side's loans are told to be so far: how many calls that took. */
static int calls_until(struct pair *p, int side, bool far,
                       const uint8_t *bytes) {
  enum { EVERY = 127 };
  int calls = 0;
  while (is_far(p->session[side]) != far && calls++ < 2 * EVERY)
    lent_echo(p, bytes);
  assert_int_equal(is_far(p->session[side]), far);
  return calls;
}

/* Those of either side; what a program copies to them goes past the caches. */
static void one_of_many_loans_tries_the_distance(void **state) {
  enum { EVERY = 127, LATER = 1000 };
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3);
  struct perigee_loan reply;
  timed_open(&p, *state);
  assert_false(copy_is_far(lent_echo(&p, bytes).pointer));
  for (int far = 1; far >= 0; far--) {
    own_time.more = far ? LATER : 0;
    for (int side = 0; side < 2; side++)
      assert_in_range(calls_until(&p, side, far, bytes), 0, EVERY + 2);
    reply = lent_echo(&p, bytes);
    assert_int_equal(copy_is_far(reply.pointer), far);
  }
  own_time.more = LATER;
  for (int side = 0; side < 2; side++)
    calls_until(&p, side, true, bytes);
  assert_true(copy_is_far(reply.pointer));
  pair_close(&p);
  assert_false(copy_is_far(reply.pointer));
  free(bytes);
}

/* A region there, its handle here, and memory here. */
struct reach {
  struct pair p;
  struct perigee_region *there, *here;
  struct perigee_remote *remote;
};

static void reach_open(struct reach *r, void *state, uint64_t length) {
  timed_open(&r->p, state);
  r->there =
      region_of(&r->p, 1, "memory", length, PERIGEE_READ | PERIGEE_WRITE);
  r->here = region_of(&r->p, 0, NULL, length, 0);
  r->remote = look_up(&r->p, "memory");
}

/* Writes count blocks that lie twice as far apart as they are long, from a byte
 * on. */
static void writes(struct reach *r, uint64_t from, uint64_t block,
                   uint64_t count, const uint8_t *bytes) {
  struct perigee_transfer t = {
      .local = {{r->here}, from, block * count, 1, block * count},
      .remote = {{.remote = r->remote}, from, block, count, 2 * block}};
  fill(r->here, from, bytes, block * count);
  finish(&r->p,
         perigee_transfer(r->p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, -1),
         PERIGEE_OK);
  for (uint64_t i = 0; i < count; i++)
    same(r->there, from + 2 * block * i, bytes + block * i, block);
}

/* In one piece or in blocks; each byte comes, and none beside them changes. */
static void one_of_many_writes_tries_the_distance(void **state) {
  enum { EVERY = 127, LATER = 1000, FROM = 3, BLOCK = 16400, COUNT = 4 };
  struct reach r;
  uint8_t *bytes = pattern(COUNT * BLOCK, 7);
  reach_open(&r, *state, 2 * COUNT * BLOCK + FROM);
  for (int far = 1; far >= 0; far--) {
    int tries = 0;
    own_time.more = far ? LATER : 0;
    while (writes_are_far(r.p.session[0]) != far && tries++ < 2 * EVERY)
      writes(&r, FROM, BLOCK, 1, bytes + tries);
    assert_int_equal(writes_are_far(r.p.session[0]), far);
    fill_byte(r.there, 0x5a);
    writes(&r, FROM, BLOCK, COUNT, bytes);
    for (uint64_t i = 0; i < COUNT; i++)
      same(r.there, FROM + (2 * i + 1) * BLOCK,
           memset(bytes + i * BLOCK, 0x5a, BLOCK), i + 1 < COUNT ? BLOCK : 0);
    free(bytes);
    bytes = pattern(COUNT * BLOCK, 7);
  }
  region_end(r.here);
  free(bytes);
  pair_close(&r.p);
}

/* The block that a raw request is brought to is never the peer's to read. */
static void a_block_that_was_not_lent_tries_no_distance(void **state) {
  enum { EVERY = 127 };
  struct pair p;
  uint8_t *bytes = pattern(LENGTH, 3);
  busy_open(&p, *state);
  be_far(p.session[1]);
  for (int i = 0; i < 2 * EVERY; i++)
    assert_true(stages(&p, bytes));
  assert_true(is_far(p.session[1]));
  free(bytes);
  pair_close(&p);
}

/* It reads blocks of 256 KiB at most, and no window, which is longer. */
static void an_older_peer_gets_short_blocks(void **state) {
  struct perigee_options o;
  struct pair p;
  uint8_t *bytes = pattern(MIB, 3);
  variant_options(*state, &o);
  o.features = "-staging";
  o.pool = POOL;
  pair_open_with(&p, *state, &o);
  for (int i = 0; i < MANY; i++)
    echo(&p, bytes, LENGTH);
  for (int far = 0; far < 2; far++) {
    int op = call(&p, bytes, MIB);
    assert_int_equal(turns_live(p.session[0]), 0);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    assert_memory_equal(e.pointer, bytes, MIB);
    answer(&p, &e, bytes, MIB);
    assert_int_equal(turns_live(p.session[1]), 0);
    answered(&p, op, bytes, MIB);
    until(&p, 1, PERIGEE_EVENT_SENT);
    be_far(p.session[0]);
    be_far(p.session[1]);
    echo(&p, bytes, 256 * KIB);
  }
  longer_far_payloads_pass_through_no_window(&p);
  free(bytes);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(variant_default, after_a_slow_copy_the_distance_is_tried),
      OVER(variant_default, one_of_many_payloads_tries_the_distance),
      OVER(variant_default, one_of_many_replies_tries_the_distance),
      OVER(variant_default, one_of_many_loans_tries_the_distance),
      OVER(variant_default, one_of_many_writes_tries_the_distance),
      OVER(variant_default, a_block_that_was_not_lent_tries_no_distance),
      OVER(variant_default, a_ring_of_long_records_finds_the_distance),
      OVER(variant_default,
           a_ring_past_the_caches_is_tried_behind_a_lap_through_them),
      OVER(variant_default, a_ring_is_not_tried_by_a_lap_before_a_pause),
      OVER(variant_default, records_past_the_caches_are_whole),
      OVER(variant_default, slices_past_the_caches_are_whole),
      OVER(variant_default, near_payloads_up_to_a_length_are_staged),
      OVER(variant_default, far_payloads_up_to_a_length_are_staged),
      OVER(unread, far_payloads_up_to_a_length_are_staged),
      OVER(variant_default, longer_far_payloads_pass_through_a_window),
      OVER(unread, a_peer_that_may_not_pull_gets_no_window),
      OVER(variant_default, an_older_peer_gets_no_window),
      OVER(variant_default, the_receiver_pulls_what_a_window_lacks),
      OVER(variant_default,
           a_trial_that_nobody_ends_is_not_begun_by_each_payload),
      OVER(variant_default, the_owner_goes_on_behind_what_was_pulled),
      OVER(variant_default, owner_and_receiver_bring_a_payload_together),
      OVER(variant_default, who_lies_of_what_it_pulled_harms_itself),
      OVER(variant_default, who_pulled_more_than_there_is_is_not_believed),
      OVER(variant_default, a_window_that_lies_ends_its_call),
      OVER(variant_default, a_long_payload_needs_its_owner_no_more),
      OVER(variant_default, an_older_peer_gets_short_blocks),
      OVER(unread, an_older_peer_gets_short_blocks),
  };
  return cmocka_run_group_tests_name("distance", tests, NULL, NULL);
}
