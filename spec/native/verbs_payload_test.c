/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_payload_test.c - what a peer may read, by RDMA, of the region that a
 * slice is sent of: the slice, until it has arrived. Only a region that peers
 * may read anyway is shown as a whole.
 */
#include <stdio.h>
#include <stdlib.h>

#include "support.h"
#include "verbs_inside.h"

enum { ROOM = 8 * MIB, SHORT = 100 * KIB, LONG = 2 * MIB + 5, MANY = 12 };

static const struct variant windows = {"windows", "verbs", "host", 1, NULL};
static const struct variant two_pairs = {"two pairs", "verbs", "host", 1,
                                         "qps=2"};
static const struct variant plain = {"no windows", "verbs", "host", 1,
                                     "windows=0"};

struct two {
  struct pair p;
  struct perigee_region *from, *to;
  uint8_t *bytes;
  uint64_t shown; /* the most that the receiver could read at a time */
};

static void two_open(struct two *t, void *state, int access) {
  pair_open(&t->p, state);
  t->from = region_of(&t->p, 0, NULL, ROOM, access);
  t->to = region_of(&t->p, 1, NULL, ROOM, 0);
  t->bytes = pattern(ROOM, 5);
  t->shown = 0;
  fill(t->from, 0, t->bytes, ROOM);
}

static void two_close(struct two *t) {
  region_end(t->from);
  region_end(t->to);
  pair_close(&t->p);
  free(t->bytes);
}

/* Polls until neither side has an operation, and each has ended well. */
static void watch(struct two *t) {
  struct perigee_event e;
  int64_t limit = clock_now() + 60000 * MS;
  while (operations(&t->p, 0) + operations(&t->p, 1) > 0) {
    for (int side = 0; side < 2; side++) {
      poll_side(&t->p, side);
      while (taken(&t->p, side, &e))
        assert_int_equal(e.status, PERIGEE_OK);
    }
    uint64_t shown = shown_of(t->p.session[0]);
    t->shown = shown > t->shown ? shown : t->shown;
    assert_true(clock_now() < limit);
  }
}

static struct perigee_slice part(struct perigee_region *region, uint64_t offset,
                                 uint64_t length) {
  return (struct perigee_slice){{region}, offset, length, 1, length};
}

static void begin(struct two *t, const struct perigee_slice *from,
                  const struct perigee_slice *to) {
  int recv = perigee_recv(t->p.session[1], to, -1);
  int send = perigee_send(t->p.session[0], from, -1);
  if (recv < 0 || send < 0)
    fail_msg("%s", perigee_detail(t->p.engine[recv < 0]));
}

static void send_part(struct two *t, uint64_t length) {
  struct perigee_slice from = part(t->from, MIB, length);
  struct perigee_slice to = part(t->to, 0, length);
  fill_byte(t->to, 0);
  begin(t, &from, &to);
  watch(t);
  same(t->to, 0, t->bytes + MIB, length);
}

static bool by_windows(const struct two *t) {
  return t->p.variant != &plain;
}

static void a_private_region_shows_what_is_sent_of_it(void **state) {
  static struct two t;
  two_open(&t, *state, 0);
  for (int round = 0; round < 3; round++) {
    t.shown = 0;
    send_part(&t, LONG);
    assert_int_equal(t.shown, by_windows(&t) ? LONG : 0);
    assert_int_equal(shown_of(t.p.session[0]), 0);
  }
  t.shown = 0;
  send_part(&t, SHORT);
  assert_int_equal(t.shown, 0); /* it is staged */
  two_close(&t);
}

static void one_that_peers_may_only_write_shows_no_more(void **state) {
  static struct two t;
  two_open(&t, *state, PERIGEE_WRITE);
  send_part(&t, LONG);
  assert_int_equal(t.shown, by_windows(&t) ? LONG : 0);
  assert_int_equal(shown_of(t.p.session[0]), 0);
  two_close(&t);
}

static void what_lies_between_blocks_is_not_shown(void **state) {
  static struct two t;
  two_open(&t, *state, 0);
  enum { BLOCK = 512 * KIB, BLOCKS = 4 };
  struct perigee_slice from = {{t.from}, 0, BLOCK, BLOCKS, 2 * BLOCK};
  struct perigee_slice to = part(t.to, 0, BLOCK * BLOCKS);
  begin(&t, &from, &to);
  watch(&t);
  for (int i = 0; i < BLOCKS; i++)
    same(t.to, (uint64_t)i * BLOCK, t.bytes + (uint64_t)i * 2 * BLOCK, BLOCK);
  assert_int_equal(t.shown, 0);
  two_close(&t);
}

static void many_at_once_show_as_much_as_they_are(void **state) {
  static struct two t;
  enum { EACH = 600 * KIB };
  two_open(&t, *state, 0);
  for (int i = 0; i < MANY; i++) {
    struct perigee_slice from = part(t.from, (uint64_t)i * 64 * KIB, EACH);
    struct perigee_slice to = part(t.to, (uint64_t)i * EACH, EACH);
    begin(&t, &from, &to);
  }
  watch(&t);
  for (uint64_t i = 0; i < MANY; i++)
    same(t.to, i * EACH, t.bytes + i * 64 * KIB, EACH);
  assert_true(t.shown <= MANY * EACH);
  assert_int_equal(shown_of(t.p.session[0]), 0);
  two_close(&t);
}

static void one_that_is_given_up_shows_nothing(void **state) {
  static struct two t;
  struct perigee_slice from;
  two_open(&t, *state, 0);
  for (int rounds = 0; rounds < 20; rounds++) {
    from = part(t.from, 0, LONG);
    int send = perigee_send(t.p.session[0], &from, -1);
    assert_true(send >= 0);
    quiet(&t.p, rounds);
    perigee_cancel(t.p.engine[0], send);
    assert_int_equal(until(&t.p, 0, PERIGEE_EVENT_DONE).status,
                     PERIGEE_CANCELLED);
    settle(&t.p);
    assert_int_equal(shown_of(t.p.session[0]), 0);
  }
  send_part(&t, LONG);
  two_close(&t);
}

/* No memory window has to be taken back by a reset. */
static void one_that_is_too_long_is_never_shown(void **state) {
  static struct two t;
  struct perigee_options o;
  variant_options(*state, &o);
  o.message = LONG - 1;
  pair_open_with(&t.p, *state, &o);
  t.from = region_of(&t.p, 0, NULL, ROOM, 0);
  struct perigee_message m = {.slice = part(t.from, 0, LONG), .timeout = -1};
  assert_int_equal(perigee_call(t.p.session[0], &m), PERIGEE_TOO_LARGE);
  assert_int_equal(resets_of(t.p.session[0]), 0);
  assert_int_equal(shown_of(t.p.session[0]), 0);
  region_end(t.from);
  pair_close(&t.p);
}

static void one_that_peers_may_read_is_shown_once_and_for_all(void **state) {
  static struct two t;
  two_open(&t, *state, PERIGEE_READ);
  send_part(&t, LONG);
  send_part(&t, SHORT);
  assert_int_equal(t.shown, ROOM);
  assert_int_equal(shown_of(t.p.session[0]), ROOM);
  two_close(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(windows, a_private_region_shows_what_is_sent_of_it),
      OVER(two_pairs, a_private_region_shows_what_is_sent_of_it),
      OVER(plain, a_private_region_shows_what_is_sent_of_it),
      OVER(windows, one_that_peers_may_only_write_shows_no_more),
      OVER(plain, one_that_peers_may_only_write_shows_no_more),
      OVER(windows, what_lies_between_blocks_is_not_shown),
      OVER(windows, many_at_once_show_as_much_as_they_are),
      OVER(two_pairs, many_at_once_show_as_much_as_they_are),
      OVER(plain, many_at_once_show_as_much_as_they_are),
      OVER(windows, one_that_is_given_up_shows_nothing),
      OVER(two_pairs, one_that_is_given_up_shows_nothing),
      OVER(windows, one_that_is_too_long_is_never_shown),
      OVER(windows, one_that_peers_may_read_is_shown_once_and_for_all),
  };
  const char *why = no_device();
  if (why) {
    printf("skipped: %s\n", why);
    return 77;
  }
  return cmocka_run_group_tests_name("RDMA payloads", tests, NULL, NULL);
}
