/* SPDX-License-Identifier: Apache-2.0 */
#include "turns_support.h"

#include <stdlib.h>

#include "support_inside.h"

struct own_time own_time;

const struct variant unread = {
    .name = "shm without pulling", .transport = "shm", .memory = "host"};

static int64_t own_clock(void *context) {
  (void)context;
  return own_time.passed += own_time.step += own_time.more;
}

void clocked_open(struct pair *p, void *state, const char *features) {
  struct perigee_options o;
  variant_options(state, &o);
  o.clock = own_clock;
  o.pool = POOL;
  o.features = features;
  own_time.step = 10;
  own_time.more = 0;
  pair_open_with(p, state, &o);
}

void learning_open(struct pair *p, void *state) {
  clocked_open(p, state, NULL);
}

void timed_open(struct pair *p, void *state) {
  learning_open(p, state);
  for (int side = 0; side < 2; side++)
    learn_no_ways(p->session[side]);
}

int call(struct pair *p, const uint8_t *bytes, uint64_t length) {
  struct perigee_message m = {.head = bytes, .length = length, .timeout = -1};
  int op = perigee_call(p->session[0], &m);
  assert_true(op >= 0);
  return op;
}

void answer(struct pair *p, const struct perigee_event *e, const void *bytes,
            uint64_t length) {
  struct perigee_message m = {.head = bytes, .length = length};
  assert_true(perigee_reply(p->engine[1], e->operation, &m) >= 0);
}

struct perigee_event answered(struct pair *p, int op, const uint8_t *bytes,
                              uint64_t length) {
  struct perigee_event e = ended(p, 0, op, PERIGEE_OK);
  assert_int_equal(e.length, length);
  assert_memory_equal(e.pointer, bytes, length);
  perigee_pool_free(p->engine[0], e.landed);
  return e;
}

void echo(struct pair *p, const uint8_t *bytes, uint64_t length) {
  int op = call(p, bytes, length);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.length, length);
  assert_memory_equal(e.pointer, bytes, length);
  answer(p, &e, bytes, length);
  answered(p, op, bytes, length);
  until(p, 1, PERIGEE_EVENT_SENT);
}

void busy_open(struct pair *p, void *state) {
  uint8_t *bytes = pattern(LENGTH, 1);
  timed_open(p, state);
  for (int i = 0; i < MANY; i++)
    echo(p, bytes, LENGTH);
  for (int side = 0; side < 2; side++)
    assert_true(stretch_bytes(p->session[side]) > 0);
  free(bytes);
}

bool is_staged(struct pair *p, const uint8_t *bytes, uint64_t length) {
  int op = call(p, bytes, length);
  bool staged = turns_live(p->session[0]) > 0;
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_memory_equal(e.pointer, bytes, length);
  answer(p, &e, bytes, 10);
  answered(p, op, bytes, 10);
  return staged;
}

bool stages(struct pair *p, const uint8_t *bytes) {
  return is_staged(p, bytes, LENGTH);
}
