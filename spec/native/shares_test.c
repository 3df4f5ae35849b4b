/* SPDX-License-Identifier: Apache-2.0
 *
 * shares_test.c - a server and a process that makes it hold as much as it can
 * (hog.c). An honest client that was there before and one that comes later are
 * served, and so are the server's own calls. When the hog is gone, nothing of
 * it is left.
 */
#include "hog.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct stage {
  struct pair p; /* 0: the honest client, 1: the server */
  struct hog hog;
  bool hogged; /* the hog has done what it does */
  int sessions, refused;
};

enum { EVENTS = 64 };

/* ---- The server ---------------------------------------------------------- */

static void reply(struct stage *t, const struct perigee_event *e) {
  struct perigee_engine *engine = t->p.engine[1];
  struct perigee_message m = {.head = e->pointer, .length = e->length};
  struct perigee_loan loan;
  if (e->flags & PERIGEE_POOLED)
    perigee_pool_free(engine, e->landed);
  if (e->method == METHOD_FILL) {
    int status = perigee_reply_begin(engine, e->operation, e->capacity, &loan);
    if (status == PERIGEE_OK) {
      memset(loan.pointer, 7, e->capacity);
      perigee_reply_commit(engine, e->operation, e->capacity);
      return;
    }
    m = (struct perigee_message){.status = status};
  }
  perigee_reply(engine, e->operation, &m);
}

static void land(struct stage *t, const struct perigee_event *e) {
  struct perigee_slice none = {0};
  int status = perigee_land(t->p.engine[1], e->operation, &none);
  struct perigee_message m = {.status = status};
  t->refused += status < 0;
  if (status < 0)
    perigee_reply(t->p.engine[1], e->operation, &m);
}

static void serve(struct stage *t) {
  struct perigee_event e[EVENTS];
  int n = perigee_poll(t->p.engine[1], e, EVENTS);
  for (int i = 0; i < n; i++) {
    if (e[i].kind == PERIGEE_EVENT_REQUEST)
      reply(t, &e[i]);
    else if (e[i].kind == PERIGEE_EVENT_LANDING)
      land(t, &e[i]);
    else if (e[i].kind == PERIGEE_EVENT_LOST)
      perigee_session_free(perigee_session(t->p.engine[1], e[i].session));
    t->sessions += (e[i].kind == PERIGEE_EVENT_ACCEPTED) -
                   (e[i].kind == PERIGEE_EVENT_LOST);
  }
  t->hogged = t->hogged || hog_is_done(&t->hog);
}

/* ---- The honest client ---------------------------------------------------- */

static struct perigee_event await(struct stage *t, int operation) {
  struct perigee_event e;
  int64_t end = clock_now() + 10000 * MS;
  assert_true(operation >= 0);
  while (clock_now() < end) {
    serve(t);
    if (perigee_poll(t->p.engine[0], &e, 1) == 1 && e.operation == operation)
      return e;
  }
  fail_msg("operation %d does not end", operation);
  return e;
}

static void is_served(struct stage *t, struct perigee_session *s,
                      uint64_t reply) {
  static const uint8_t head[64] = {1, 2, 3};
  struct perigee_message m = {.method = reply ? METHOD_FILL : METHOD_ECHO,
                              .head = head,
                              .length = sizeof head,
                              .capacity = reply,
                              .timeout = -1};
  struct perigee_event e = await(t, perigee_call(s, &m));
  assert_int_equal(e.status, PERIGEE_OK);
  assert_int_equal(e.length, reply ? reply : sizeof head);
  assert_int_equal(e.pointer[e.length - 1], reply ? 7 : 0);
}

static void slice_is_served(struct stage *t, uint64_t length) {
  struct perigee_region *r = region_of(&t->p, 0, NULL, length, 0);
  struct perigee_message m = {.flags = PERIGEE_TYPED,
                              .method = METHOD_ECHO,
                              .slice = all_of(r, length),
                              .timeout = -1};
  struct perigee_event e = await(t, perigee_call(t->p.session[0], &m));
  assert_int_equal(e.status, PERIGEE_OK);
  perigee_poll(t->p.engine[0], &e, 0);
  region_end(r);
}

static struct perigee_session *newcomer(struct stage *t) {
  struct perigee_event e =
      await(t, perigee_connect(t->p.engine[0], t->p.address,
                               t->p.variant->transport, 5000 * MS));
  assert_int_equal(e.status, PERIGEE_OK);
  return perigee_session(t->p.engine[0], e.session);
}

/* The server's own operations to the client find room. */
static void server_calls(struct stage *t) {
  struct perigee_message m = {.head = "x", .length = 1, .timeout = -1};
  struct perigee_event e;
  int call = perigee_call(t->p.session[1], &m);
  assert_true(call >= 0);
  perigee_cancel(t->p.engine[1], call);
  while (perigee_poll(t->p.engine[1], &e, 1) != 1 || e.operation != call)
    ;
  assert_int_equal(e.status, PERIGEE_CANCELLED);
  for (int i = 0; i < 100; i++) /* refuses what came of it */
    if (perigee_poll(t->p.engine[0], &e, 1) == 1)
      perigee_reply(t->p.engine[0], e.operation, &m);
}

/* ---- An attack ------------------------------------------------------------ */

static struct perigee_shares held(struct stage *t) {
  struct perigee_shares s;
  perigee_shares_read(t->p.engine[1], NULL, &s, sizeof s);
  return s;
}

static void stage_open(struct stage *t, void *state, enum hog_kind kind) {
  const struct variant *v = state;
  *t = (struct stage){0};
  hog_fork(&t->hog, kind, v->transport);
  pair_open(&t->p, state);
  hog_begin(&t->hog, t->p.address);
}

static void until_hogged(struct stage *t) {
  int64_t end = clock_now() + 60000 * MS; /* a busy machine takes long */
  while (!t->hogged && clock_now() < end)
    is_served(t, t->p.session[0], 0);
  assert_true(t->hogged);
  for (int i = 0; i < 2000; i++)
    is_served(t, t->p.session[0], 0);
}

/* What honest peers must be able to do meanwhile. */
static void others_are_served(struct stage *t) {
  struct perigee_session *late = newcomer(t);
  for (int i = 0; i < 100; i++) {
    is_served(t, t->p.session[0], 0);
    is_served(t, late, 0);
  }
  is_served(t, late, 4 * MIB);
  is_served(t, t->p.session[0], 4 * MIB);
  slice_is_served(t, 4 * MIB);
  server_calls(t);
  perigee_session_free(late);
}

static void stage_close(struct stage *t) {
  int64_t end = clock_now() + 60000 * MS; /* a busy machine takes long */
  hog_end(&t->hog);
  while ((t->sessions > 0 || held(t).operations.used > 0) &&
         clock_now() < end) {
    struct perigee_event e;
    serve(t);
    perigee_poll(t->p.engine[0], &e, 1);
  }
  is_served(t, t->p.session[0], 0);
  struct perigee_shares all = held(t), own;
  perigee_shares_read(t->p.engine[1], t->p.session[1], &own, sizeof own);
  assert_int_equal(all.operations.used, 0);
  assert_int_equal(all.exposed.used, 0);
  assert_int_equal(all.pooled.used, own.pooled.used);
  assert_int_equal(all.mapped.used, own.mapped.used);
  assert_int_equal(all.sessions.used, 1);
  assert_int_equal(all.descriptors.used, own.descriptors.used);
  pair_drop(&t->p);
}

static void messages_that_nobody_receives(void **state) {
  struct stage t;
  stage_open(&t, *state, HOG_SENDS);
  until_hogged(&t);
  struct perigee_shares s = held(&t);
  assert_true(s.operations.used > 1024);
  assert_true(s.operations.used <= s.operations.most / 2);
  others_are_served(&t);
  stage_close(&t);
}

static void slices_that_never_come(void **state) {
  struct stage t;
  stage_open(&t, *state, HOG_SLICES);
  until_hogged(&t);
  struct perigee_shares s = held(&t);
  assert_true(s.pooled.used > 5 * (uint64_t)HOG_SLICE);
  assert_true(s.pooled.used < s.pooled.most * 4 / 5);
  assert_true(t.refused > 0);
  others_are_served(&t);
  stage_close(&t);
}

static void replies_that_are_never_taken(void **state) {
  struct stage t;
  stage_open(&t, *state, HOG_REPLIES);
  until_hogged(&t);
  struct perigee_shares s = held(&t);
  assert_true(s.exposed.used > 16 * MIB);
  /* 128 MiB for all peers together, and what was asked for before that limit
   * was known. */
  assert_true(s.exposed.used < 256 * MIB);
  assert_true(s.operations.used < 16 * 128);
  others_are_served(&t);
  stage_close(&t);
}

static void outboxes_of_nothing(void **state) {
  struct stage t;
  stage_open(&t, *state, HOG_OUTBOXES);
  until_hogged(&t);
  struct perigee_shares s = held(&t);
  assert_true(s.mapped.used > s.mapped.most / 4);
  assert_true(s.mapped.used <= s.mapped.most * 2 / 3);
  assert_true(t.sessions < 46);
  others_are_served(&t);
  stage_close(&t);
}

static void sessions_without_end(void **state) {
  struct stage t;
  stage_open(&t, *state, HOG_SESSIONS);
  until_hogged(&t);
  struct perigee_shares s = held(&t);
  assert_true(s.sessions.used < s.sessions.most);
  others_are_served(&t);
  stage_close(&t);
}

/* Slices are staged by their owner only where the peer cannot pull. */
static const struct variant shm = {"shm", "shm", "host", 1, NULL},
                            staged = {"staged", "shm", "host", 0, NULL},
                            tcp = {"tcp", "tcp", "host", 1, NULL};

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(shm, messages_that_nobody_receives),
      OVER(tcp, messages_that_nobody_receives),
      OVER(staged, slices_that_never_come),
      OVER(tcp, slices_that_never_come),
      OVER(shm, replies_that_are_never_taken),
      OVER(tcp, replies_that_are_never_taken),
      OVER(shm, outboxes_of_nothing),
      OVER(shm, sessions_without_end),
      OVER(tcp, sessions_without_end),
  };
  return cmocka_run_group_tests_name("shares", tests, NULL, NULL);
}
