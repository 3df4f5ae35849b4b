/* SPDX-License-Identifier: Apache-2.0
 *
 * core_test.c - two engines in one process and one thread, polled in turn:
 * the core's operations, one by one, without Lua.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "perigee.h"

enum { LIMIT = 2000000, MIB = 1 << 20 };

struct pair {
  struct perigee_engine *engine[2]; /* 0 dials, 1 listens */
  struct perigee_session *session[2];
  struct perigee_listener *listener;
  struct perigee_event inbox[2];
  int kept[2];
  char path[64];
};

/* Polls both until the wanted event of one side, in order; what the other
 * side gets meanwhile is kept for it. */
static struct perigee_event until(struct pair *p, int side, int kind) {
  for (int i = 0; i < LIMIT && p->kept[side] == 0; i++)
    for (int j = 0; j < 2; j++)
      if (j == side || p->kept[j] == 0)
        p->kept[j] += perigee_poll(p->engine[j], &p->inbox[j], 1);
  if (p->kept[side] == 0 || p->inbox[side].kind != kind)
    fail_msg("event %d, not %d, on side %d",
             p->kept[side] ? p->inbox[side].kind : 0, kind, side);
  p->kept[side] = 0;
  return p->inbox[side];
}

static void open_pair(struct pair *p, const struct perigee_options *options) {
  static int number;
  char address[80];
  *p = (struct pair){0};
  snprintf(p->path, sizeof p->path, "/tmp/perigee-core-%d-%d", getpid(),
           number++);
  snprintf(address, sizeof address, "unix:%s", p->path);
  for (int i = 0; i < 2; i++)
    assert_int_equal(perigee_engine_open(options, &p->engine[i]), 0);
  assert_int_equal(perigee_listen(p->engine[1], address, &p->listener), 0);
  int dial = perigee_connect(p->engine[0], address, NULL, -1);
  assert_true(dial >= 0);
  struct perigee_event up = until(p, 1, PERIGEE_EVENT_ACCEPTED);
  p->session[1] = perigee_session(p->engine[1], up.session);
  struct perigee_event e = until(p, 0, PERIGEE_EVENT_CONNECTED);
  assert_int_equal(e.status, 0);
  assert_int_equal(e.operation, dial);
  p->session[0] = perigee_session(p->engine[0], e.session);
}

static void close_pair(struct pair *p) {
  perigee_engine_close(p->engine[0]);
  perigee_engine_close(p->engine[1]);
}

static uint8_t *pattern(uint64_t length, uint8_t seed) {
  uint8_t *bytes = malloc(length + 1);
  for (uint64_t i = 0; i < length; i++)
    bytes[i] = (uint8_t)(i * 7 + (i >> 8) + seed);
  return bytes;
}

/* Echoes one raw call of this length by returning the request's own view. */
static void echo(struct pair *p, uint64_t length) {
  uint8_t *bytes = pattern(length, (uint8_t)length);
  struct perigee_message m = {.method = 3, .head = bytes, .length = length,
                              .timeout = -1};
  int call = perigee_call(p->session[0], &m);
  assert_true(call >= 0);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.method, 3);
  assert_int_equal(e.length, length);
  assert_memory_equal(e.pointer, bytes, length);
  struct perigee_message r = {.head = e.pointer, .length = e.length};
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  assert_true(sent >= 0);
  struct perigee_event back = until(p, 0, PERIGEE_EVENT_REPLY);
  assert_int_equal(back.operation, call);
  assert_int_equal(back.status, 0);
  assert_int_equal(back.length, length);
  assert_memory_equal(back.pointer, bytes, length);
  if (sent == 1)
    until(p, 1, PERIGEE_EVENT_SENT);
  free(bytes);
}

static const uint64_t sizes[] = {0,     1,     63,        64,       8191,
                                 8192,  8193,  65535,     65536,    65537,
                                 MIB,   MIB + 1, 5 * MIB + 3, 16 * MIB};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void calls_of_every_size_come_back(void **state) {
  (void)state;
  struct pair p;
  open_pair(&p, NULL);
  for (int i = 0; i < SIZES; i++)
    echo(&p, sizes[i]);
  close_pair(&p);
}

static void calls_without_pulling_come_back(void **state) {
  (void)state;
  struct pair p;
  struct perigee_options o;
  perigee_options(&o);
  o.pull = 0;
  open_pair(&p, &o);
  for (int i = 0; i < SIZES; i++)
    echo(&p, sizes[i]);
  close_pair(&p);
}

/* A loaned call of this capacity, answered through a loan. */
static void loaned(struct pair *p, uint64_t length) {
  uint8_t *bytes = pattern(length, 9);
  struct perigee_loan loan;
  struct perigee_message m = {.method = 5, .capacity = length, .timeout = -1};
  assert_int_equal(perigee_call_begin(p->session[0], length, &loan), 0);
  memcpy(loan.pointer, bytes, length);
  int call = perigee_call_commit(p->session[0], &m, length);
  assert_true(call >= 0);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.capacity, length);
  assert_memory_equal(e.pointer, bytes, length);
  assert_int_equal(
      perigee_reply_begin(p->engine[1], e.operation, length, &loan), 0);
  memcpy(loan.pointer, e.pointer, length);
  int sent = perigee_reply_commit(p->engine[1], e.operation, length);
  assert_true(sent >= 0);
  struct perigee_event back = until(p, 0, PERIGEE_EVENT_REPLY);
  assert_int_equal(back.operation, call);
  assert_memory_equal(back.pointer, bytes, length);
  if (sent == 1)
    until(p, 1, PERIGEE_EVENT_SENT);
  free(bytes);
}

static void loans_go_both_ways(void **state) {
  (void)state;
  struct pair p;
  open_pair(&p, NULL);
  for (int round = 0; round < 3; round++)
    for (int i = 0; i < SIZES; i++)
      loaned(&p, sizes[i]);
  assert_int_equal(perigee_counters(p.engine[0], NULL)->pooled, 0);
  close_pair(&p);
}

static struct perigee_slice all_of(struct perigee_region *region,
                                   uint64_t length) {
  return (struct perigee_slice){{region}, 0, length, 1, length};
}

/* A typed call with a slice both ways: landing there, `into` here. */
static void landed(struct pair *p, uint64_t length) {
  static const uint8_t seven[] = {7, 0, 0, 0, 0, 0, 0, 28, 64};
  struct perigee_region *from, *to, *back;
  uint64_t room = length + 16;
  perigee_region_alloc(p->engine[0], NULL, room, 0, NULL, &from);
  perigee_region_alloc(p->engine[0], NULL, room, 0, NULL, &back);
  perigee_region_alloc(p->engine[1], NULL, room, 0, NULL, &to);
  uint8_t *bytes = pattern(length, 77);
  memcpy(perigee_region_pointer(from), bytes, length);
  struct perigee_message m = {.method = 1, .flags = PERIGEE_TYPED,
                              .head = seven, .length = sizeof seven,
                              .slice = all_of(from, length),
                              .into = all_of(back, room), .timeout = -1};
  int call = perigee_call(p->session[0], &m);
  assert_true(call >= 0);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_LANDING);
  assert_int_equal(e.slice, length);
  assert_memory_equal(e.pointer, seven, sizeof seven);
  struct perigee_slice place = all_of(to, room);
  assert_int_equal(perigee_land(p->engine[1], e.operation, &place), 0);
  e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_memory_equal(perigee_region_pointer(to), bytes, length);
  struct perigee_message r = {.flags = PERIGEE_TYPED, .head = seven,
                              .length = sizeof seven,
                              .slice = all_of(to, length)};
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  assert_true(sent >= 0);
  struct perigee_event got = until(p, 0, PERIGEE_EVENT_REPLY);
  assert_int_equal(got.status, 0);
  assert_int_equal(got.slice, length);
  assert_int_equal(got.operation, call);
  assert_memory_equal(perigee_region_pointer(back), bytes, length);
  if (sent == 1)
    until(p, 1, PERIGEE_EVENT_SENT);
  assert_int_equal(perigee_region_close(from, false), 0);
  assert_int_equal(perigee_region_close(back, false), 0);
  assert_int_equal(perigee_region_close(to, false), 0);
  free(bytes);
}

static void slices_land_where_the_receiver_says(void **state) {
  (void)state;
  struct pair p;
  open_pair(&p, NULL);
  for (int i = 0; i < SIZES; i++)
    landed(&p, sizes[i]);
  close_pair(&p);
}

static struct perigee_remote *look_up(struct pair *p, const char *name) {
  int op = perigee_lookup(p->session[0], name, -1);
  assert_true(op >= 0);
  struct perigee_event e = until(p, 0, PERIGEE_EVENT_DONE);
  assert_int_equal(e.operation, op);
  assert_int_equal(e.status, 0);
  return (struct perigee_remote *)(uintptr_t)e.pointer;
}

static void finish(struct pair *p, int op, int status) {
  if (op == PERIGEE_INLINE) {
    assert_int_equal(status, 0);
    return;
  }
  assert_true(op >= 0);
  struct perigee_event e = until(p, 0, PERIGEE_EVENT_DONE);
  assert_int_equal(e.operation, op);
  assert_int_equal(e.status, status);
}

static void one_sided(struct pair *p, const char *name, bool registered) {
  enum { SIZE = 3 * MIB };
  struct perigee_region *there, *here;
  uint8_t *memory = pattern(SIZE, 1), *bytes = pattern(SIZE, 2);
  int access = PERIGEE_READ | PERIGEE_WRITE;
  if (registered)
    perigee_region_register(p->engine[1], name, memory, SIZE, access, NULL,
                            &there);
  else
    perigee_region_alloc(p->engine[1], name, SIZE, access, NULL, &there);
  perigee_region_alloc(p->engine[0], NULL, SIZE, 0, NULL, &here);
  memcpy(perigee_region_pointer(here), bytes, SIZE);
  struct perigee_remote *remote = look_up(p, name);
  for (int i = 0; i < 12; i++) {
    struct perigee_transfer t = {.local = all_of(here, sizes[i])};
    if (sizes[i] > SIZE)
      break;
    t.remote = (struct perigee_slice){.remote = remote, .length = sizes[i],
                                      .count = 1, .offset = 11};
    if (sizes[i] + 11 > SIZE)
      break;
    memset(perigee_region_pointer(there), 0, SIZE);
    finish(p, perigee_transfer(p->session[0], PERIGEE_OP_WRITE, &t, 1, 0, -1),
           0);
    assert_memory_equal(perigee_region_pointer(there) + 11, bytes, sizes[i]);
    memset(perigee_region_pointer(here), 0, sizes[i]);
    finish(p, perigee_transfer(p->session[0], PERIGEE_OP_READ, &t, 1, 0, -1),
           0);
    assert_memory_equal(perigee_region_pointer(here), bytes, sizes[i]);
  }
  /* Gather 1000 blocks of 64, 256 bytes apart. */
  struct perigee_transfer g = {
      .local = all_of(here, 64000),
      .remote = {{.remote = remote}, 0, 64, 1000, 256}};
  memcpy(perigee_region_pointer(there), bytes, SIZE);
  finish(p, perigee_transfer(p->session[0], PERIGEE_OP_READ, &g, 1, 0, -1), 0);
  for (int i = 0; i < 1000; i++)
    assert_memory_equal(perigee_region_pointer(here) + 64 * i,
                        bytes + 256 * i, 64);
  /* Outside of it, and after its close. */
  struct perigee_transfer bad = g;
  bad.remote.count = 20000;
  bad.local.count = 20;
  assert_int_equal(
      perigee_transfer(p->session[0], PERIGEE_OP_READ, &bad, 1, 0, -1),
      PERIGEE_RANGE);
  assert_int_equal(perigee_region_close(there, false), 0);
  int op = perigee_transfer(p->session[0], PERIGEE_OP_READ, &g, 1, 0, -1);
  if (op != PERIGEE_STALE)
    finish(p, op, PERIGEE_STALE);
  assert_int_equal(perigee_region_close(here, false), 0);
  free(memory);
  free(bytes);
}

static void regions_are_read_and_written(void **state) {
  (void)state;
  struct pair p;
  open_pair(&p, NULL);
  one_sided(&p, "mapped", false);
  one_sided(&p, "registered", true);
  close_pair(&p);
}

static void messages_meet_receives_in_order(void **state) {
  (void)state;
  struct pair p;
  open_pair(&p, NULL);
  struct perigee_region *from, *to;
  perigee_region_alloc(p.engine[0], NULL, MIB, 0, NULL, &from);
  perigee_region_alloc(p.engine[1], NULL, MIB, 0, NULL, &to);
  memset(perigee_region_pointer(from), 5, MIB);
  struct perigee_slice whole = all_of(from, MIB), small = all_of(from, 10);
  struct perigee_slice into = all_of(to, MIB), tiny = all_of(to, 5);
  int a = perigee_send(p.session[0], &whole, -1);
  int b = perigee_send(p.session[0], &small, -1);
  int r = perigee_recv(p.session[1], &into, -1);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_DONE);
  assert_int_equal(e.operation, r);
  assert_int_equal(e.length, MIB);
  finish(&p, a, 0);
  r = perigee_recv(p.session[1], &tiny, -1);
  e = until(&p, 1, PERIGEE_EVENT_DONE);
  assert_int_equal(e.operation, r);
  assert_int_equal(e.status, PERIGEE_TOO_LARGE);
  finish(&p, b, PERIGEE_TOO_LARGE);
  close_pair(&p);
}

static void a_call_times_out_and_the_late_reply_is_dropped(void **state) {
  (void)state;
  struct pair p;
  struct perigee_loan loan;
  open_pair(&p, NULL);
  struct perigee_message m = {.method = 1, .timeout = 20000000};
  assert_int_equal(perigee_call_begin(p.session[0], MIB, &loan), 0);
  int call = perigee_call_commit(p.session[0], &m, MIB);
  struct perigee_event q = until(&p, 1, PERIGEE_EVENT_REQUEST);
  struct perigee_event e = until(&p, 0, PERIGEE_EVENT_REPLY);
  assert_int_equal(e.operation, call);
  assert_int_equal(e.status, PERIGEE_TIMEOUT);
  assert_true(perigee_served_cancelled(p.engine[1], q.operation));
  /* The loan is still the peer's. */
  for (int i = 0; i < 100; i++)
    perigee_poll(p.engine[0], &e, 1);
  assert_int_equal(perigee_counters(p.engine[0], NULL)->operations, 1);
  struct perigee_message r = {.head = "late", .length = 4};
  assert_int_equal(perigee_reply(p.engine[1], q.operation, &r), 0);
  for (int i = 0; i < 100; i++)
    assert_int_equal(perigee_poll(p.engine[0], &e, 1), 0);
  assert_int_equal(perigee_counters(p.engine[0], NULL)->operations, 0);
  close_pair(&p);
}

static void closing_ends_what_is_in_flight(void **state) {
  (void)state;
  struct pair p;
  open_pair(&p, NULL);
  struct perigee_message m = {.method = 1, .timeout = -1};
  int mine = perigee_call(p.session[0], &m);
  int theirs = perigee_call(p.session[1], &m);
  until(&p, 1, PERIGEE_EVENT_REQUEST);
  until(&p, 0, PERIGEE_EVENT_REQUEST);
  perigee_session_close(p.session[0]);
  struct perigee_event e = until(&p, 0, PERIGEE_EVENT_REPLY);
  assert_int_equal(e.operation, mine);
  assert_int_equal(e.status, PERIGEE_CLOSED);
  e = until(&p, 1, PERIGEE_EVENT_REPLY);
  assert_int_equal(e.operation, theirs);
  assert_int_equal(e.status, PERIGEE_PEER_LOST);
  close_pair(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(calls_of_every_size_come_back),
      cmocka_unit_test(calls_without_pulling_come_back),
      cmocka_unit_test(loans_go_both_ways),
      cmocka_unit_test(slices_land_where_the_receiver_says),
      cmocka_unit_test(regions_are_read_and_written),
      cmocka_unit_test(messages_meet_receives_in_order),
      cmocka_unit_test(a_call_times_out_and_the_late_reply_is_dropped),
      cmocka_unit_test(closing_ends_what_is_in_flight),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
