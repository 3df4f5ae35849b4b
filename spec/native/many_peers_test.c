/* SPDX-License-Identifier: Apache-2.0
 *
 * many_peers_test.c - a server's table of operations, filled by many peers
 * together: each has little more than its share, and none gives anything back.
 * New peers are served, and so are older ones.
 */
#include "base/shares.h"
#include "support.h"

#include <string.h>

enum { PEERS = 120, EACH = 64, TABLE = 1024 };
static const int64_t PATIENCE = 10000; /* ms */

static const struct variant tcp = {"tcp", "tcp", "host", 1, NULL};

struct crowd {
  struct pair p; /* 0: who is honest, 1: the server */
  struct perigee_engine *peer[PEERS + 1];
  struct perigee_session *session[PEERS + 1];
  struct perigee_region *region[PEERS + 1];
  int count, refused;           /* messages that came back */
  struct perigee_event refusal; /* the last */
  struct perigee_event lost;    /* of the server, the last */
};

static void options_of(struct perigee_options *o) {
  variant_options(&tcp, o);
  o->operations = TABLE;
  o->hello_timeout = PATIENCE * MS; /* the process may have no core for long */
  o->pool = 64 * MIB;
}

/* Each peer is an agent of its own, since this host has only one address. */
static void serve(struct crowd *c) {
  struct perigee_event e;
  while (perigee_poll(c->p.engine[1], &e, 1) == 1) {
    struct perigee_message m = {.head = e.pointer, .length = e.length};
    if (e.kind == PERIGEE_EVENT_REQUEST)
      perigee_reply(c->p.engine[1], e.operation, &m);
    else if (e.kind == PERIGEE_EVENT_LOST)
      c->lost = e;
  }
}

static void sends(struct crowd *c, int i, int count) {
  struct perigee_slice s = all_of(c->region[i], 8);
  for (int k = 0; k < count; k++)
    assert_true(perigee_send(c->session[i], &s, -1) >= 0);
}

/* Sends a refused message again. */
static void hear(struct crowd *c, int i) {
  struct perigee_event e;
  while (perigee_poll(c->peer[i], &e, 1) == 1) {
    assert_true(e.kind != PERIGEE_EVENT_CONNECTED || e.status == PERIGEE_OK);
    if (e.kind == PERIGEE_EVENT_CONNECTED)
      c->session[i] = perigee_session(c->peer[i], e.session);
    if (e.kind != PERIGEE_EVENT_DONE)
      continue;
    c->refusal = e;
    c->refused++;
    sends(c, i, 1);
  }
}

static void turn(struct crowd *c, int first) {
  serve(c);
  for (int i = first; i < c->count; i++)
    hear(c, i);
}

/* Polls until the condition holds, for at most PATIENCE. */
#define TURNS_UNTIL(c, first, holds)                                           \
  for (int64_t end = clock_now() + PATIENCE * MS;                              \
       !(holds) && clock_now() < end;)                                         \
  turn(c, first)

static void one_comes(struct crowd *c, const struct perigee_options *o) {
  int i = c->count++;
  assert_int_equal(perigee_engine_open(o, &c->peer[i]), 0);
  assert_int_equal(
      perigee_region_alloc(c->peer[i], NULL, 8, 0, NULL, &c->region[i]), 0);
  assert_true(perigee_connect(c->peer[i], c->p.address, "tcp", -1) >= 0);
  TURNS_UNTIL(c, i, c->session[i]);
  assert_non_null(c->session[i]);
}

static void crowd_open(struct crowd *c) {
  struct perigee_options o;
  memset(c, 0, sizeof *c);
  options_of(&o);
  pair_open_with(&c->p, (void *)(uintptr_t)&tcp, &o);
}

static void crowd_close(struct crowd *c) {
  for (int i = 0; i < c->count; i++)
    perigee_engine_close(c->peer[i]);
  pair_drop(&c->p);
}

static uint64_t held(const struct crowd *c) {
  struct perigee_shares s;
  perigee_shares_read(c->p.engine[1], NULL, &s, sizeof s);
  return s.operations.used;
}

/* The peers come one after the other, and each sends all that it may. */
static void all_come(struct crowd *c, int first) {
  struct perigee_options o;
  options_of(&o);
  while (c->count < PEERS) {
    one_comes(c, &o);
    sends(c, c->count - 1, EACH);
    turn(c, first);
  }
  TURNS_UNTIL(c, first, held(c) > TABLE * 3 / 4);
  assert_true(held(c) > TABLE * 3 / 4);
}

static void is_served(struct crowd *c, struct perigee_engine *engine,
                      struct perigee_session *session, int first) {
  struct perigee_message m = {.head = "honest", .length = 6, .timeout = -1};
  struct perigee_event e = {0};
  int call = perigee_call(session, &m);
  assert_true(call >= 0);
  TURNS_UNTIL(c, first, perigee_poll(engine, &e, 1) == 1);
  assert_int_equal(e.kind, PERIGEE_EVENT_REPLY);
  assert_int_equal(e.operation, call);
  assert_int_equal(e.status, PERIGEE_OK);
  assert_memory_equal(e.pointer, "honest", 6);
}

static void who_was_there_is_served(void **state) {
  (void)state;
  struct crowd c;
  crowd_open(&c);
  all_come(&c, 0);
  for (int i = 0; i < 20; i++)
    is_served(&c, c.p.engine[0], c.p.session[0], 0);
  assert_int_equal(c.lost.kind, 0);
  crowd_close(&c);
}

static void who_comes_then_is_served(void **state) {
  (void)state;
  struct crowd c;
  struct perigee_options o;
  crowd_open(&c);
  all_come(&c, 0);
  options_of(&o);
  one_comes(&c, &o);
  c.count--; /* it is not one of them */
  is_served(&c, c.peer[PEERS], c.session[PEERS], 0);
  perigee_engine_close(c.peer[PEERS]);
  crowd_close(&c);
}

/* Each peer takes all that it may, one after the other; none gives any back. */
static void the_reserve_outlasts_many_newcomers(void **state) {
  (void)state;
  enum { NEWCOMERS = 15, RESERVE = 100, LEAST = 20 };
  struct shares all = {.quota[SHARE_OPERATIONS] = {.limit = 1000,
                                                   .reserve = RESERVE,
                                                   .least = LEAST,
                                                   .factor = 1,
                                                   .part = 3}};
  all.engine =
      (struct share){.all = &all, .used[SHARE_OPERATIONS] = 1000 - RESERVE};
  struct share peer[NEWCOMERS], own[NEWCOMERS];
  for (int i = 0; i < NEWCOMERS; i++) {
    peer[i] = (struct share){.all = &all, .parent = &all.engine};
    own[i] = (struct share){.all = &all, .parent = &peer[i]};
    while (share_may(&own[i], SHARE_OPERATIONS, 1))
      share_add(&own[i], SHARE_OPERATIONS, 1);
    assert_in_range(own[i].used[SHARE_OPERATIONS], 1, LEAST);
  }
}

static void who_gives_way_is_told(void **state) {
  (void)state;
  struct crowd c;
  crowd_open(&c);
  all_come(&c, 0);
  TURNS_UNTIL(&c, 0, c.refused > 0);
  assert_int_equal(c.refusal.kind, PERIGEE_EVENT_DONE);
  assert_int_equal(c.refusal.status, PERIGEE_NO_MEMORY);
  crowd_close(&c);
}

/* It sends much, and then receives nothing any more. */
static void who_hears_no_refusal_loses_the_session(void **state) {
  (void)state;
  struct crowd c;
  struct perigee_options o;
  crowd_open(&c);
  options_of(&o);
  o.ring = 4096; /* for replies to it */
  o.eager = 512;
  one_comes(&c, &o);
  sends(&c, 0, 8 * EACH);
  TURNS_UNTIL(&c, 0, held(&c) > 4 * EACH);
  all_come(&c, 1);
  TURNS_UNTIL(&c, 1, c.lost.kind);
  assert_int_equal(c.lost.kind, PERIGEE_EVENT_LOST);
  assert_int_equal(c.lost.status, PERIGEE_NO_MEMORY);
  is_served(&c, c.p.engine[0], c.p.session[0], 1);
  crowd_close(&c);
}

/* One message of a peer is less than all that the others have. */
static void the_modest_give_nothing(void **state) {
  (void)state;
  struct crowd c;
  struct perigee_options o;
  struct perigee_event e;
  crowd_open(&c);
  options_of(&o);
  one_comes(&c, &o);
  sends(&c, 0, 1);
  TURNS_UNTIL(&c, 0, held(&c) == 1);
  all_come(&c, 1);
  TURNS_UNTIL(&c, 1, c.refused > 100);
  assert_true(c.refused > 100);
  for (int i = 0; i < 1000; i++)
    assert_int_equal(perigee_poll(c.peer[0], &e, 1), 0);
  crowd_close(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(who_was_there_is_served),
      cmocka_unit_test(who_comes_then_is_served),
      cmocka_unit_test(the_reserve_outlasts_many_newcomers),
      cmocka_unit_test(who_gives_way_is_told),
      cmocka_unit_test(who_hears_no_refusal_loses_the_session),
      cmocka_unit_test(the_modest_give_nothing),
  };
  return cmocka_run_group_tests_name("many_peers", tests, NULL, NULL);
}
