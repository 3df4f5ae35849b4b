/* SPDX-License-Identifier: Apache-2.0
 *
 * room.h - two sides with small pools, and calls for whose replies there may be
 * no room.
 */
#ifndef ROOM_H
#define ROOM_H

#include <string.h>

#include "support.h"

enum { POOL = 4 * MIB, LARGE = MIB, SMALL = 100 };

static int64_t moved_on; /* ns, by a test */

static inline int64_t own_clock(void *context) {
  (void)context;
  return clock_now() + moved_on;
}

static inline void open(struct pair *p, void **state) {
  struct perigee_options o;
  variant_options(*state, &o);
  o.pool = POOL;
  o.clock = own_clock;
  pair_open_with(p, *state, &o);
}

static inline int seed(uint64_t capacity) {
  return (int)(capacity >> 16) + 1;
}

/* The next event of a side that does not report a reply. */
static inline bool next(struct pair *p, int side, struct perigee_event *e) {
  bool any;
  poll_side(p, 1 - side);
  poll_side(p, side);
  while ((any = taken(p, side, e)) && e->kind == PERIGEE_EVENT_SENT)
    ;
  return any;
}

static inline void nothing(struct pair *p) {
  struct perigee_event e;
  for (int i = 0; i < 100; i++)
    for (int side = 0; side < 2; side++)
      assert_false(next(p, side, &e));
}

static inline void drain(struct pair *p) {
  struct perigee_event e;
  while (operations(p, 0) + operations(p, 1) > 0)
    for (int side = 0; side < 2; side++)
      assert_false(next(p, side, &e));
  nothing(p);
}

static inline int call(struct pair *p, uint64_t capacity, int64_t timeout) {
  uint8_t bytes[SMALL];
  struct perigee_message m = {
      .head = bytes, .length = SMALL, .capacity = capacity, .timeout = timeout};
  memset(bytes, seed(capacity), SMALL);
  int op = perigee_call(p->session[0], &m);
  assert_true(op >= 0);
  return op;
}

static inline struct perigee_event request(struct pair *p) {
  struct perigee_event e;
  while (!next(p, 1, &e))
    ;
  assert_int_equal(e.kind, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.length, SMALL);
  assert_int_equal(e.pointer[0], seed(e.capacity));
  assert_int_equal(e.pointer[SMALL - 1], seed(e.capacity));
  return e;
}

#endif
