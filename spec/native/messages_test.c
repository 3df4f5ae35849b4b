/* SPDX-License-Identifier: Apache-2.0
 *
 * messages_test.c - sends and receives, immediates, and all of these at once.
 */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const uint64_t sizes[] = {
    0,     1,     63,    64,           8191, 8192,       8193,
    16384, 16385, 65536, 64 * KIB + 1, MIB,  5 * MIB + 3};
enum { SIZES = sizeof sizes / sizeof *sizes, ROOM = 6 * MIB };

struct two {
  struct pair p;
  struct perigee_region *from, *to;
  uint8_t *bytes;
};

static void two_open(struct two *t, void *state) {
  pair_open(&t->p, state);
  t->from = region_of(&t->p, 0, NULL, ROOM, 0);
  t->to = region_of(&t->p, 1, NULL, ROOM, 0);
  t->bytes = pattern(ROOM, 21);
  fill(t->from, 0, t->bytes, ROOM);
}

static void two_close(struct two *t) {
  settle(&t->p);
  region_end(t->from);
  region_end(t->to);
  pair_close(&t->p);
  free(t->bytes);
}

static int message_send(struct two *t, uint64_t offset, uint64_t length) {
  struct perigee_slice s = {{t->from}, offset, length, 1, length};
  return perigee_send(t->p.session[0], &s, -1);
}

static int receive(struct two *t, uint64_t offset, uint64_t room) {
  struct perigee_slice s = {{t->to}, offset, room, 1, room};
  return perigee_recv(t->p.session[1], &s, -1);
}

static void messages_of_every_size_arrive(void **state) {
  struct two t;
  two_open(&t, *state);
  for (int i = 0; i < 2 * SIZES; i++) {
    uint64_t length = sizes[i / 2];
    int r = 0, s;
    fill_byte(t.to, 0);
    if (i % 2) /* the receive comes first, or the message */
      r = receive(&t, 3, length + 5);
    s = message_send(&t, (uint64_t)i, length);
    quiet(&t.p, 1 - i % 2);
    if (i % 2 == 0)
      r = receive(&t, 3, length + 5);
    assert_int_equal(ended(&t.p, 1, r, 0).length, length);
    same(t.to, 3, t.bytes + i, length);
    same(t.to, 3 + length, "\0\0\0\0\0", 5);
    ended(&t.p, 0, s, 0);
  }
  two_close(&t);
}

enum { MANY = 40, ROW = 100000 };

static int number(const int *operations, int operation) {
  int i = 0;
  while (i < MANY && operations[i] != operation)
    i++;
  assert_true(i < MANY);
  return i;
}

static void messages_meet_receives_in_order(void **state) {
  struct two t;
  int sends[MANY], receives[MANY];
  two_open(&t, *state);
  for (int i = 0; i < MANY; i++)
    sends[i] = message_send(&t, (uint64_t)i, 1 + (uint64_t)i * 2500);
  for (int i = 0; i < MANY; i++)
    receives[i] = receive(&t, (uint64_t)i * ROW, ROW);
  for (int i = 0; i < MANY; i++) {
    struct perigee_event e = until(&t.p, 1, PERIGEE_EVENT_DONE);
    int at = number(receives, e.operation);
    assert_int_equal(e.status, 0);
    assert_int_equal(e.length, 1 + at * 2500);
    same(t.to, (uint64_t)at * ROW, t.bytes + at, e.length);
  }
  for (int i = 0; i < MANY; i++) {
    struct perigee_event e = until(&t.p, 0, PERIGEE_EVENT_DONE);
    number(sends, e.operation);
    assert_int_equal(e.status, 0);
  }
  two_close(&t);
}

static void a_message_that_is_too_long_ends_both(void **state) {
  struct two t;
  two_open(&t, *state);
  fill_byte(t.to, 8);
  for (int i = 1; i < SIZES; i++) {
    int s = message_send(&t, 0, sizes[i]), r = receive(&t, 0, sizes[i] - 1);
    ended(&t.p, 1, r, PERIGEE_TOO_LARGE);
    ended(&t.p, 0, s, PERIGEE_TOO_LARGE);
  }
  all_byte(t.to, 8);
  two_close(&t);
}

/* More immediates than a ring holds, before and after the receives for them. */
static void immediates_come_in_order(void **state) {
  enum { IMMEDIATES = 3000 };
  struct two t;
  two_open(&t, *state);
  struct perigee_region *there =
      region_of(&t.p, 1, "there", 64, PERIGEE_READ | PERIGEE_WRITE);
  struct perigee_remote *remote = look_up(&t.p, "there");
  struct perigee_transfer none = {.local = all_of(t.from, 0),
                                  .remote = {{.remote = remote}, 0, 0, 1, 0}};
  int waiting = 0;
  for (int i = 0; i < IMMEDIATES; i++) {
    int op = perigee_transfer(t.p.session[0], PERIGEE_OP_WRITE_IMM, &none, 1,
                              (uint64_t)i + 1, -1);
    assert_true(op >= 0);
    waiting += op != PERIGEE_INLINE;
  }
  for (int i = 0; i < IMMEDIATES; i++) {
    int r = perigee_recv_imm(t.p.session[1], -1);
    assert_int_equal(ended(&t.p, 1, r, 0).immediate, i + 1);
  }
  for (; waiting > 0; waiting--)
    assert_int_equal(until(&t.p, 0, PERIGEE_EVENT_DONE).status, 0);
  settle(&t.p);
  region_end(there);
  two_close(&t);
}

/* More messages than a session keeps, without any receive: the rest waits at
 * the sender. */
static void immediates_that_nobody_asks_for_wait(void **state) {
  enum { IMMEDIATES = (1 << 16) + 300, BURST = 37 };
  struct two t;
  struct perigee_event e;
  two_open(&t, *state);
  struct perigee_region *there =
      region_of(&t.p, 1, "there", 64, PERIGEE_READ | PERIGEE_WRITE);
  struct perigee_remote *remote = look_up(&t.p, "there");
  struct perigee_transfer none = {.local = all_of(t.from, 0),
                                  .remote = {{.remote = remote}, 0, 0, 1, 0}};
  int waiting = 0;
  for (int i = 0; i < IMMEDIATES; i++) {
    int op = perigee_transfer(t.p.session[0], PERIGEE_OP_WRITE_IMM, &none, 1,
                              (uint64_t)i + 1, -1);
    assert_true(op >= 0);
    waiting += op != PERIGEE_INLINE;
    for (int polls = i % BURST ? 0 : 6 * BURST; polls > 0; polls--) {
      perigee_poll(t.p.engine[1], &e, 1);
      waiting -= perigee_poll(t.p.engine[0], &e, 1);
    }
  }
  struct perigee_session_info info;
  perigee_session_describe(t.p.session[1], &info, sizeof info);
  assert_int_equal(info.state, PERIGEE_SESSION_OPEN);
  for (int i = 0; i < IMMEDIATES; i++) {
    int r = perigee_recv_imm(t.p.session[1], -1);
    while (perigee_poll(t.p.engine[1], &e, 1) == 0)
      waiting -= perigee_poll(t.p.engine[0], &e, 1);
    assert_int_equal(e.operation, r);
    assert_int_equal(e.immediate, i + 1);
  }
  for (; waiting > 0; waiting--)
    assert_int_equal(until(&t.p, 0, PERIGEE_EVENT_DONE).status, 0);
  settle(&t.p);
  region_end(there);
  two_close(&t);
}

/* ---- Everything at once ------------------------------------------------- */

enum { SLOTS = 32, LONGEST = 200000 };

struct call {
  int operation; /* -1: free */
  uint64_t length;
  uint8_t seed, *bytes;
};

struct mix {
  struct pair p;
  struct call calls[2][SLOTS];
  int open[2], served, ended;
};

static void mix_call(struct mix *m, int side) {
  struct call *c = m->calls[side];
  while (c->operation >= 0)
    c++;
  c->length = (uint64_t)rand() % (rand() % 4 ? 300 : LONGEST);
  c->seed = (uint8_t)rand();
  c->bytes = pattern(c->length, c->seed);
  struct perigee_message q = {
      .head = c->bytes, .length = c->length, .method = c->seed, .timeout = -1};
  c->operation = perigee_call(m->p.session[side], &q);
  assert_true(c->operation >= 0);
  m->open[side]++;
}

static void mix_serve(struct mix *m, int side, const struct perigee_event *e) {
  uint8_t *bytes = pattern(e->length, (uint8_t)e->method);
  assert_memory_equal(e->pointer, bytes, e->length);
  free(bytes);
  struct perigee_message r = {.head = e->pointer, .length = e->length};
  assert_true(perigee_reply(m->p.engine[side], e->operation, &r) >= 0);
  m->served++;
}

static void mix_end(struct mix *m, int side, const struct perigee_event *e) {
  struct call *c = m->calls[side];
  while (c->operation != e->operation)
    c++;
  assert_int_equal(e->status, 0);
  assert_int_equal(e->length, c->length);
  assert_memory_equal(e->pointer, c->bytes, c->length);
  free(c->bytes);
  c->operation = -1;
  m->open[side]--;
  m->ended++;
}

static void mix_poll(struct mix *m, int side) {
  struct perigee_event e[8];
  int n = perigee_poll(m->p.engine[side], e, 1 + rand() % 8);
  for (int i = 0; i < n; i++) {
    if (e[i].kind == PERIGEE_EVENT_REQUEST)
      mix_serve(m, side, &e[i]);
    else if (e[i].kind == PERIGEE_EVENT_REPLY)
      mix_end(m, side, &e[i]);
    else
      assert_int_equal(e[i].kind, PERIGEE_EVENT_SENT);
  }
}

/* Both sides call, at random sizes, and never wait for each other. */
static void calls_both_ways_at_once(void **state) {
  struct mix m = {0};
  unsigned seed = (unsigned)time(NULL);
  printf("# seed %u\n", seed);
  srand(seed);
  pair_open(&m.p, *state);
  for (int i = 0; i < 2 * SLOTS; i++)
    m.calls[i / SLOTS][i % SLOTS].operation = -1;
  while (m.ended < 2000)
    for (int side = 0; side < 2; side++) {
      for (int n = rand() % 4; n > 0 && m.open[side] < SLOTS; n--)
        mix_call(&m, side);
      mix_poll(&m, rand() % 2);
    }
  while (m.open[0] + m.open[1] > 0)
    for (int side = 0; side < 2; side++)
      mix_poll(&m, side);
  assert_int_equal(m.ended, m.served);
  for (int i = 0; i < 2000; i++)
    mix_poll(&m, i % 2); /* what was still to be SENT */
  pair_close(&m.p);
}

/* Tells which of two messages the memory holds whole. */
static int message_at(struct two *t, uint64_t length) {
  uint8_t *got = malloc(length);
  assert_int_equal(perigee_region_read(t->to, 0, got, length), 0);
  int n = 0;
  while (n < 2 && memcmp(got, t->bytes + (uint64_t)n * length, length) != 0)
    n++;
  free(got);
  return n;
}

/* Memory may copy on its own time: the rest of a cancelled message must not
 * overwrite the one that the receive now holds. */
static void a_message_given_up_leaves_the_next_alone(void **state) {
  enum { LENGTH = 100 * KIB };
  struct two t;
  two_open(&t, *state);
  for (int polls = 0; polls < 24; polls++) {
    int r = receive(&t, 0, LENGTH), first = message_send(&t, 0, LENGTH);
    for (int i = 0; i < polls; i++)
      poll_side(&t.p, i % 2);
    perigee_cancel(t.p.engine[0], first);
    int second = message_send(&t, LENGTH, LENGTH);
    assert_int_equal(until(&t.p, 0, PERIGEE_EVENT_DONE).operation, first);
    ended(&t.p, 1, r, 0);
    int which = message_at(&t, LENGTH);
    assert_in_range(which, 0, 1);
    if (which == 0) /* it was there when it was given up */
      ended(&t.p, 1, receive(&t, 0, LENGTH), 0);
    ended(&t.p, 0, second, 0);
    assert_int_equal(message_at(&t, LENGTH), 1);
  }
  two_close(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(messages_of_every_size_arrive),
      cmocka_unit_test(messages_meet_receives_in_order),
      cmocka_unit_test(a_message_that_is_too_long_ends_both),
      cmocka_unit_test(immediates_come_in_order),
      cmocka_unit_test(immediates_that_nobody_asks_for_wait),
      cmocka_unit_test(calls_both_ways_at_once),
      cmocka_unit_test(a_message_given_up_leaves_the_next_alone),
  };
  return RUN_MATRIX("messages", tests);
}
