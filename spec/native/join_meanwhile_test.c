/* SPDX-License-Identifier: Apache-2.0
 *
 * join_meanwhile_test.c - what comes while a program waits for one operation:
 * requests and ends of others, which wait for its next poll.
 */
#include "partner.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support_inside.h"

static void partner_has_replies(struct play *t, int count) {
  assert_int_equal(t->partner.replied, count);
  for (int i = 0; i < count; i++)
    assert_int_equal(t->partner.replies[i], PERIGEE_OK);
}

static void requests_wait_for_the_poll(void **state) {
  struct play t;
  play_open(&t, *state);
  partner_back_in_all_lengths(&t.partner, 24);
  play_echo(&t, BACK, 64);
  for (int i = 0; i < 200; i++) /* their bytes stay while rings are reused */
    play_echo(&t, ECHO, (uint64_t)(i % 5) * 1500);
  play_serve_all(&t, 24);
  play_echo(&t, ECHO, 64);
  play_none_waits(&t);
  play_close(&t);
  partner_has_replies(&t, 24);
}

/* Typed data of replies take the memory in which requests were scanned. */
static void typed_requests_wait_too(void **state) {
  struct play t;
  struct perigee_event e;
  uint8_t asked[] = {0x20 + 4, 'a', 'b', 'c', 'd'};
  uint8_t other[] = {0x20 + 4, 'w', 'x', 'y', 'z'};
  play_open_with(&t, *state, 0);
  uint8_t *plain = t.bytes;
  t.bytes = t.partner.bytes = asked;
  t.partner.flags = PERIGEE_TYPED;
  partner_begin(&t.partner, &t.pair);
  partner_back_alike(&t.partner, 3, sizeof asked);
  play_echo(&t, BACK, 5);
  for (int i = 0; i < 200; i++) {
    struct perigee_message m = play_message(ECHO, other, sizeof other);
    m.flags = PERIGEE_TYPED;
    assert_int_equal(perigee_call_wait(t.session, &m, &e), 0);
    assert_int_equal(e.flags, PERIGEE_TYPED);
    assert_memory_equal(e.pointer, other, sizeof other);
  }
  play_serve_all(&t, 3);
  play_echo(&t, ECHO, 5);
  t.bytes = plain;
  play_close(&t);
  partner_has_replies(&t, 3);
}

/* As many are read as may be in service; the others wait in their ring. */
static void requests_beyond_the_limit_wait_in_their_ring(void **state) {
  struct play t;
  play_open_with(&t, *state, 4);
  partner_begin(&t.partner, &t.pair);
  partner_back_alike(&t.partner, 40, 100);
  play_echo(&t, BACK, 64);
  for (int i = 0; i < 300; i++)
    play_echo(&t, ECHO, 1000);
  assert_int_equal(perigee_counters(t.engine, t.session)->served, 4);
  play_serve_all(&t, 40);
  play_echo(&t, ECHO, 64);
  play_close(&t);
  partner_has_replies(&t, 40);
}

/* The end of another operation is kept, and joined or polled later. */
static void ends_of_others_are_kept(void **state) {
  struct play t;
  struct perigee_event e;
  int ops[3];
  static const uint64_t lengths[] = {500, 8 * KIB, LONG};
  play_open(&t, *state);
  for (int way = 0; way < 2; way++) {
    for (int i = 0; i < 3; i++) {
      struct perigee_message m = play_message(ECHO, t.bytes, lengths[i]);
      ops[i] = perigee_call(t.session, &m);
      assert_true(ops[i] >= 0);
    }
    for (int i = 0; i < 100; i++)
      play_echo(&t, ECHO, 2000);
    for (int i = 0; i < 3; i++) {
      int at = way == 0 ? 2 - i : i;
      if (way == 0)
        assert_int_equal(perigee_join(t.engine, ops[at], &e), 0);
      else
        e = play_next(&t);
      assert_int_equal(e.status, 0);
      if (way == 0)
        assert_int_equal(e.operation, ops[at]);
      assert_true(e.length == lengths[at] || way == 1);
      assert_memory_equal(e.pointer, t.bytes, e.length);
    }
    play_none_waits(&t);
  }
  play_close(&t);
}

static void a_kept_end_is_polled_in_order(void **state) {
  struct play t;
  int ops[5];
  play_open(&t, *state);
  for (int i = 0; i < 5; i++) {
    struct perigee_message m = play_message(ECHO, t.bytes + i, 100);
    ops[i] = perigee_call(t.session, &m);
  }
  for (int i = 0; i < 50; i++)
    play_echo(&t, ECHO, 3000);
  for (int i = 0; i < 5; i++) {
    struct perigee_event e = play_next(&t);
    assert_int_equal(e.operation, ops[i]);
    assert_memory_equal(e.pointer, t.bytes + i, 100);
  }
  play_close(&t);
}

/* Waits until perigee_wait has found an event, which the program does not
 * poll. */
static void find(struct play *t) {
  int64_t end = clock_now() + 20 * SECOND;
  while (!t->engine->event_pending) {
    perigee_wait(&t->engine, 1, 10 * MS);
    assert_true(clock_now() < end);
  }
}

static void a_found_request_stays(void **state) {
  struct play t;
  play_open(&t, *state);
  static const uint32_t lengths[] = {0, 64, 1000, 8 * KIB, 20 * KIB, LONG};
  for (int i = 0; i < 6; i++) {
    partner_back_alike(&t.partner, 1, lengths[i]);
    struct perigee_message m = play_message(LATER, t.bytes, 1);
    int op = perigee_call(t.session, &m);
    find(&t);
    for (int k = 0; k < 100; k++)
      play_echo(&t, ECHO, 3000);
    play_serve_all(&t, 1);
    struct perigee_event e;
    assert_int_equal(perigee_join(t.engine, op, &e), 0);
    play_echo(&t, ECHO, 1);
    play_echo(&t, ECHO, 1);
  }
  play_close(&t);
}

/* Takes all that a peer may have of the pool; returns how many blocks. */
static int take_pool(struct play *t, uint8_t **blocks, int most) {
  int count = 0;
  for (uint64_t length = UINT64_C(1) << 30; length > 0; length /= 2)
    while (count < most && (blocks[count] = take_block(t->session, length)))
      count++;
  assert_in_range(count, 1, most - 1);
  return count;
}

/* An operation that nobody could join would go on, and its number be lost. */
static void nothing_begins_if_what_was_found_cannot_be_kept(void **state) {
  static const struct perigee_event zeros;
  uint8_t *blocks[1000];
  struct play t;
  struct perigee_event e;
  play_open(&t, *state);
  partner_back_alike(&t.partner, 1, 64);
  struct perigee_message m = play_message(LATER, t.bytes, 1);
  int op = perigee_call(t.session, &m), count;
  find(&t);
  const char *address = "unix:/nowhere";
  struct perigee_entry entry = {
      .name = "one", .addresses = &address, .address_count = 1};
  struct perigee_session *session;
  uint64_t before = operations(&t.pair, 0);
  m.method = ECHO;
  memset(&e, 7, sizeof e);
  count = take_pool(&t, blocks, 1000);
  assert_int_equal(perigee_call_wait(t.session, &m, &e), PERIGEE_NO_MEMORY);
  assert_memory_equal(&e, &zeros, sizeof e);
  assert_int_equal(
      perigee_entry_connect(t.engine, &entry, NULL, SECOND, &session),
      PERIGEE_NO_MEMORY);
  assert_int_equal(operations(&t.pair, 0), before);
  while (count > 0)
    perigee_pool_free(t.engine, blocks[--count]);
  play_echo(&t, ECHO, 3000);
  play_serve_all(&t, 1);
  assert_int_equal(perigee_join(t.engine, op, &e), 0);
  play_close(&t);
}

static void a_found_end_stays(void **state) {
  struct play t;
  struct perigee_event e;
  play_open(&t, *state);
  for (int way = 0; way < 2; way++) {
    struct perigee_message m = play_message(ECHO, t.bytes, 700);
    int op = perigee_call(t.session, &m);
    find(&t);
    for (int k = 0; k < 100 && way == 1; k++)
      play_echo(&t, ECHO, 3000);
    if (way == 0)
      assert_int_equal(perigee_join(t.engine, op, &e), 0);
    else
      e = play_next(&t);
    assert_int_equal(e.operation, op);
    assert_int_equal(e.length, 700);
    assert_memory_equal(e.pointer, t.bytes, 700);
    assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_INVALID);
  }
  play_none_waits(&t);
  play_close(&t);
}

/* Its session is freed while its event waits: no event follows. */
static void a_found_end_goes_with_its_session(void **state) {
  struct play t;
  struct perigee_event e;
  play_open(&t, *state);
  int op = perigee_connect(t.engine, t.pair.address, t.pair.variant->transport,
                           20 * SECOND);
  assert_int_equal(perigee_join(t.engine, op, &e), 0);
  struct perigee_session *second = perigee_session(t.engine, e.session);
  struct perigee_message m = play_message(ECHO, t.bytes, 700);
  assert_true(perigee_call(second, &m) >= 0);
  find(&t);
  play_echo(&t, ECHO, 1);
  uint64_t dropped = perigee_counters(t.engine, NULL)->dropped;
  perigee_session_free(second);
  play_echo(&t, ECHO, 1);
  assert_int_equal(perigee_counters(t.engine, NULL)->dropped, dropped + 1);
  play_none_waits(&t);
  play_drop(&t);
}

static void a_ready_descriptor_is_told_of_afterwards(void **state) {
  struct play t;
  int fds[2];
  play_open(&t, *state);
  assert_int_equal(pipe(fds), 0);
  assert_int_equal(write(fds[1], "x", 1), 1);
  for (int way = 0; way < 2; way++) {
    assert_int_equal(perigee_watch(t.engine, fds[0], PERIGEE_READABLE, 77), 0);
    if (way == 1)
      find(&t);
    struct perigee_message m = play_message(SILENT, NULL, 0);
    struct perigee_event e, all[8];
    m.timeout = 20 * MS;
    assert_int_equal(perigee_call_wait(t.session, &m, &e), PERIGEE_TIMEOUT);
    find(&t);
    assert_int_equal(perigee_poll(t.engine, all, 8), 1);
    assert_int_equal(all[0].kind, PERIGEE_EVENT_READY);
    assert_int_equal(all[0].code, 77);
    assert_int_equal(perigee_unwatch(t.engine, fds[0]), 0);
    assert_int_equal(perigee_poll(t.engine, all, 8), 0);
  }
  close(fds[0]);
  close(fds[1]);
  play_drop(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(requests_wait_for_the_poll),
      cmocka_unit_test(typed_requests_wait_too),
      cmocka_unit_test(requests_beyond_the_limit_wait_in_their_ring),
      cmocka_unit_test(ends_of_others_are_kept),
      cmocka_unit_test(a_kept_end_is_polled_in_order),
      cmocka_unit_test(a_found_request_stays),
      cmocka_unit_test(nothing_begins_if_what_was_found_cannot_be_kept),
      cmocka_unit_test(a_found_end_stays),
      cmocka_unit_test(a_found_end_goes_with_its_session),
      cmocka_unit_test(a_ready_descriptor_is_told_of_afterwards),
  };
  /* inproc is for one thread */
  setenv("PERIGEE_TEST_TRANSPORTS", "shm,tcp", 0);
  return RUN_MATRIX("join, meanwhile", tests);
}
