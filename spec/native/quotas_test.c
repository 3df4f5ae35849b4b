/* SPDX-License-Identifier: Apache-2.0
 *
 * quotas_test.c - room for others (shares.h): however many peers take all that
 * they may, the next one gets some; and two sides that each hold much of the
 * other still serve each other.
 */
#include "core/accounts.h"
#include "session/sessions.h"
#include "support.h"

#include <stdio.h>
#include <string.h>

/* ---- Newcomers ------------------------------------------------------------- */

static struct perigee_session *newcomer(struct perigee_engine *engine) {
  char reason[REASON];
  static const struct alone_class without_socket;
  struct perigee_session *s = session_new(engine, -1);
  s->alone = &without_socket; /* each is a peer of its own */
  assert_int_equal(accounts_join(s, reason, sizeof reason), PERIGEE_OK);
  return s;
}

/* Takes as much as it may, in ever smaller pieces. */
static void takes_all(struct share *s, enum share_kind kind) {
  for (uint64_t n = UINT64_C(1) << 40; n > 0; n /= 2)
    while (share_take(s, kind, n))
      ;
}

static void gives_all(struct share *s, enum share_kind kind) {
  share_give(s, kind, s->used[kind]);
}

static struct perigee_engine *engine_of(uint32_t sessions) {
  struct perigee_options o;
  struct perigee_engine *engine;
  perigee_options_init(&o, sizeof o);
  o.sessions = sessions;
  assert_int_equal(perigee_engine_open(&o, &engine), 0);
  return engine;
}

static void who_comes_next_finds_some(void **state) {
  (void)state;
  enum { PEERS = 128 };
  static const enum share_kind kinds[] = {SHARE_OPERATIONS, SHARE_KEPT,
                                          SHARE_POOLED,     SHARE_EXPOSED,
                                          SHARE_MAPPED,     SHARE_SEGMENTS};
  static const uint64_t wanted[SHARES] = {
      [SHARE_OPERATIONS] = 1,    [SHARE_KEPT] = 1,
      [SHARE_POOLED] = 16 * KIB, [SHARE_EXPOSED] = 16 * KIB,
      [SHARE_MAPPED] = 16 * MIB, [SHARE_SEGMENTS] = 1};
  struct perigee_engine *engine = engine_of(1024);
  struct share *peers[PEERS];
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    for (int i = 0; i < PEERS; i++) {
      peers[i] = newcomer(engine)->account.share;
      if (!share_may(peers[i], kinds[k], wanted[kinds[k]]))
        fail_msg("of kind %d nothing is left for peer %d", kinds[k], i);
      takes_all(peers[i], kinds[k]);
    }
    for (int i = 0; i < PEERS; i++)
      gives_all(peers[i], kinds[k]);
  }
  perigee_engine_close(engine);
}

/* share_most() tells exactly what a peer can take. */
static void the_most_is_what_can_be_had(void **state) {
  (void)state;
  struct perigee_engine *engine = engine_of(1024);
  struct share *peers[8];
  for (int i = 0; i < 8; i++) {
    peers[i] = newcomer(engine)->account.share;
    uint64_t most = share_most(peers[i], SHARE_POOLED);
    takes_all(peers[i], SHARE_POOLED);
    assert_int_equal(peers[i]->used[SHARE_POOLED], most);
    assert_int_equal(share_most(peers[i], SHARE_POOLED), most);
  }
  for (int i = 0; i < 8; i++)
    gives_all(peers[i], SHARE_POOLED);
  perigee_engine_close(engine);
}

/* ---- Two that keep much of each other -------------------------------------- */

enum { SERVING = 4, CALLS = 2 * SERVING, LONG = 64 * KIB };

/* The calls that one side makes, and those it serves. */
struct asked {
  int own[CALLS], requests[CALLS], count, over;
};

/* Makes loans as long as it gets them. */
static void calls(struct perigee_session *s, int own[CALLS]) {
  struct perigee_message m = {.method = 1, .timeout = -1};
  struct perigee_loan loan;
  for (int i = 0; i < CALLS; i++) {
    assert_int_equal(perigee_call_begin(s, LONG, &loan), 0);
    memset(loan.pointer, i, LONG);
    assert_true((own[i] = perigee_call_commit(s, &m, LONG)) >= 0);
  }
}

static void poll_sides(struct pair *p, struct asked asked[2], int64_t end) {
  for (int side = 0; side < 2; side++) {
    struct perigee_event e;
    p->engine[side]->sockets_due = true;
    if (perigee_poll(p->engine[side], &e, 1) == 0)
      continue;
    asked[side].over += e.kind == PERIGEE_EVENT_REPLY;
    if (e.kind == PERIGEE_EVENT_REQUEST)
      asked[side].requests[asked[side].count++] = e.operation;
  }
  assert_true(clock_now() < end);
}

/* Makes calls on both sides until as many requests as may be in service have
 * come; these are kept until all calls are over. */
static void are_given_up(struct pair *p, struct asked asked[2]) {
  int64_t end = clock_now() + 60000 * MS;
  while (asked[0].count < SERVING || asked[1].count < SERVING)
    poll_sides(p, asked, end);
  for (int side = 0; side < 2; side++)
    for (int i = 0; i < CALLS; i++)
      perigee_cancel(p->engine[side], asked[side].own[i]);
  while (asked[0].over + asked[1].over < 2 * CALLS)
    poll_sides(p, asked, end);
}

static void answers(struct pair *p, int side, int request) {
  struct perigee_message m = {.status = PERIGEE_OK};
  perigee_reply(p->engine[side], request, &m);
}

/* Polls until no operation is left on either side. */
static void both_serve_all(struct pair *p, const char *otherwise) {
  for (int64_t end = clock_now() + 10000 * MS;
       operations(p, 0) + operations(p, 1) > 0;) {
    struct perigee_event e;
    for (int side = 0; side < 2; side++)
      if (perigee_poll(p->engine[side], &e, 1) == 1 &&
          e.kind == PERIGEE_EVENT_REQUEST)
        answers(p, side, e.operation);
    if (clock_now() > end)
      fail_msg("%s", otherwise);
  }
}

static void two_that_keep_much_of_each_other_go_on(void **state) {
  struct perigee_options o;
  struct pair p;
  struct asked asked[2] = {{.count = 0}, {.count = 0}};
  variant_options(*state, &o);
  o.serving = SERVING;
  o.operations = 64;
  pair_open_with(&p, *state, &o);
  for (int side = 0; side < 2; side++)
    calls(p.session[side], asked[side].own);
  are_given_up(&p, asked);
  for (int side = 0; side < 2; side++) {
    assert_int_equal(asked[side].count, SERVING);
    assert_true(p.engine[side]->shares.engine.used[SHARE_KEPT] > 0);
    for (int i = 0; i < SERVING; i++)
      answers(&p, side, asked[side].requests[i]);
  }
  both_serve_all(&p, "neither side serves any more");
  pair_close(&p);
}

/* A table full of own calls on both sides, whatever its size. */
static void two_that_ask_all_they_can_are_served(void **state) {
  static const uint32_t sizes[] = {16, 64, 128, 256};
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    struct perigee_options o;
    struct pair p;
    struct perigee_message m = {.method = 1, .timeout = -1};
    char text[64];
    variant_options(*state, &o);
    o.operations = sizes[k];
    o.serving = o.serving < sizes[k] ? o.serving : sizes[k];
    pair_open_with(&p, *state, &o);
    for (int side = 0; side < 2; side++)
      while (perigee_call(p.session[side], &m) >= 0)
        ;
    snprintf(text, sizeof text, "with %u operations neither serves", sizes[k]);
    both_serve_all(&p, text);
    pair_close(&p);
  }
}

/* The server's program polls for many events, and never waits. Returns a bit for
 * each session of the last requests. */
static uint32_t answers_some(struct pair *p) {
  struct perigee_event e[64];
  uint32_t seen = 0;
  int count = perigee_poll(p->engine[1], e, 64);
  for (int i = 0; i < count; i++) {
    assert_int_equal(e[i].kind, PERIGEE_EVENT_REQUEST);
    seen |= UINT32_C(1) << e[i].session % 32;
    answers(p, 1, e[i].operation);
  }
  return seen;
}

/* More requests at once than the table has entries left, between a few and what
 * one poll may read. */
static void a_burst_beyond_what_is_free_waits_in_its_ring(void **state) {
  static const uint32_t sizes[] = {64, 256}, left[] = {14, 30};
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    struct perigee_options o;
    struct pair p;
    struct perigee_event e;
    struct perigee_message m = {.method = 1, .timeout = -1};
    variant_options(*state, &o);
    o.operations = sizes[k];
    pair_open_with(&p, *state, &o);
    struct perigee_region *r = region_of(&p, 1, NULL, 64, 0);
    struct perigee_slice slice = all_of(r, 1);
    for (uint32_t i = 0; i < sizes[k] - left[k]; i++)
      assert_true(perigee_recv(p.session[1], &slice, -1) >= 0);
    uint32_t over = 0, asked = 0;
    for (; asked < sizes[k] / 2; asked++)
      assert_true(perigee_call(p.session[0], &m) >= 0);
    for (int64_t end = clock_now() + 10000 * MS; over < asked;) {
      answers_some(&p);
      if (perigee_poll(p.engine[0], &e, 1) == 1) {
        assert_int_equal(e.status, PERIGEE_OK);
        over++;
      }
      assert_true(clock_now() < end);
    }
    pair_drop(&p);
  }
}

/* ---- Sessions of one peer --------------------------------------------------- */

enum { OTHERS = 6, ASKS = 8, LEFT = 256 * KIB };

/* The server's next request; false: none comes. */
static bool asked(struct pair *p, struct perigee_event *e, int polls) {
  for (int i = 0; i < polls; i++)
    if (perigee_poll(p->engine[1], e, 1) == 1 &&
        e->kind == PERIGEE_EVENT_REQUEST)
      return true;
  return false;
}

/* Asks for long replies, and never reads them. */
static void leave_lying(struct pair *p) {
  struct perigee_message m = {.capacity = LEFT, .timeout = -1};
  struct perigee_event e;
  struct perigee_loan loan;
  struct perigee_session *s[OTHERS][2];
  for (int i = 0; i < OTHERS; i++)
    pair_dial(p, s[i]);
  for (int i = 0; i < OTHERS * ASKS; i++)
    assert_true(perigee_call(s[i % OTHERS][0], &m) >= 0);
  while (asked(p, &e, 1000)) {
    assert_int_equal(
        perigee_reply_begin(p->engine[1], e.operation, LEFT, &loan), 0);
    assert_true(perigee_reply_commit(p->engine[1], e.operation, LEFT) >= 0);
  }
}

/* All of these are held up, except for one that is unrelated. */
static void what_a_peer_leaves_lying_does_not_silence_all_of_it(void **state) {
  struct perigee_message m = {.head = "x", .length = 1, .timeout = -1};
  struct perigee_options o;
  struct perigee_event e;
  struct pair p;
  variant_options(*state, &o);
  o.untaken = MIB;
  pair_open_with(&p, *state, &o);
  leave_lying(&p);
  assert_true(p.session[1]->account.share->parent->unread_replies >= 4 * MIB);
  assert_true(perigee_call(p.session[0], &m) >= 0);
  assert_true(asked(&p, &e, 100000));
  assert_int_equal(e.session, perigee_session_id(p.session[1]));
  pair_drop(&p);
}

/* Each of its requests alone asks for as much as a poll gives, and one waits at
 * each poll. */
static void one_is_greedy(struct pair *p, struct perigee_session *greedy,
                          struct perigee_session *other, uint32_t seen_as) {
  enum { TURNS = 1000, UNDER_WAY = 8 };
  struct perigee_message asks = {.capacity = 2 * MIB, .timeout = -1},
                         m = {.head = "x", .length = 1, .timeout = -1};
  struct perigee_event e;
  uint32_t seen = 0;
  for (int i = 0; i < UNDER_WAY; i++)
    assert_true(perigee_call(greedy, &asks) >= 0);
  assert_true(perigee_call(other, &m) >= 0);
  for (int i = 0; i < TURNS && !(seen >> seen_as % 32 & 1); i++) {
    seen |= answers_some(p);
    while (perigee_poll(p->engine[0], &e, 1) == 1)
      if (e.session == perigee_session_id(greedy))
        assert_true(perigee_call(greedy, &asks) >= 0);
  }
  if (!(seen >> seen_as % 32 & 1))
    fail_msg("no request of the other session was read");
}

/* Whichever of them a poll begins with. */
static void who_asks_for_long_replies_stops_no_other_session(void **state) {
  for (int first = 0; first < 2; first++) {
    struct perigee_session *s[2][2];
    struct pair p;
    pair_open(&p, *state);
    pair_dial(&p, s[0]);
    pair_dial(&p, s[1]);
    one_is_greedy(&p, s[first][0], s[!first][0],
                  perigee_session_id(s[!first][1]));
    pair_drop(&p);
  }
}

static const struct variant shm = {"shm", "shm", "host", 1, NULL},
                            tcp = {"tcp", "tcp", "host", 1, NULL};

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(who_comes_next_finds_some),
      cmocka_unit_test(the_most_is_what_can_be_had),
      OVER(shm, what_a_peer_leaves_lying_does_not_silence_all_of_it),
      OVER(shm, who_asks_for_long_replies_stops_no_other_session),
      OVER(shm, a_burst_beyond_what_is_free_waits_in_its_ring),
      OVER(tcp, a_burst_beyond_what_is_free_waits_in_its_ring),
      OVER(shm, two_that_keep_much_of_each_other_go_on),
      OVER(shm, two_that_ask_all_they_can_are_served),
      OVER(tcp, two_that_ask_all_they_can_are_served),
  };
  return cmocka_run_group_tests_name("quotas", tests, NULL, NULL);
}
