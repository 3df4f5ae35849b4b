/* SPDX-License-Identifier: Apache-2.0
 *
 * bounded_test.c - how much work one poll returns. The program handles all
 * events of a poll before other sessions have their turn, so long work comes in
 * parts.
 */
#include "support.h"

static const int64_t PATIENCE = 10000; /* ms */

/* What each end brings on takes time, for which others wait. */
static void a_poll_tells_of_few_ends(void **state) {
  enum { SESSIONS = 40, FEW = 8 };
  struct pair p;
  struct perigee_session *session[2];
  struct perigee_event e[SESSIONS];
  int lost = 0;
  pair_open(&p, *state);
  for (int i = 1; i < SESSIONS; i++)
    pair_dial(&p, session);
  perigee_engine_close(p.engine[0]);
  int64_t end = clock_now() + PATIENCE * MS;
  while (lost < SESSIONS && clock_now() < end) {
    int n = perigee_poll(p.engine[1], e, SESSIONS);
    assert_in_range(n, 0, FEW);
    lost += n;
  }
  assert_int_equal(lost, SESSIONS);
  perigee_engine_close(p.engine[1]);
}

enum { CALLS = 32 };

/* The largest number of requests that one poll returned, of so many calls. */
static int most_at_once(struct pair *p, uint64_t capacity) {
  struct perigee_message m = {.capacity = capacity, .timeout = -1};
  struct perigee_event e[CALLS];
  int most = 0, served = 0, replies = 0;
  for (int i = 0; i < CALLS; i++)
    assert_true(perigee_call(p->session[0], &m) >= 0);
  int64_t end = clock_now() + PATIENCE * MS;
  while (replies < CALLS && clock_now() < end) {
    int n = perigee_poll(p->engine[1], e, CALLS);
    for (int i = 0; i < n; i++)
      perigee_reply(p->engine[1], e[i].operation, &m);
    most = n > most ? n : most;
    served += n;
    if (n == 0) /* all calls have arrived before */
      replies += perigee_poll(p->engine[0], e, CALLS);
  }
  assert_int_equal(replies, CALLS);
  return most;
}

static void a_poll_tells_of_few_requests_for_long_replies(void **state) {
  struct pair p;
  pair_open(&p, *state);
  assert_int_equal(most_at_once(&p, MIB), 1);
  assert_int_equal(most_at_once(&p, 4 * MIB), 1);
  assert_in_range(most_at_once(&p, 256 * KIB), 1, 4);
  pair_drop(&p);
}

static void short_replies_are_asked_for_at_once(void **state) {
  struct pair p;
  pair_open(&p, *state);
  assert_in_range(most_at_once(&p, 0), 5, CALLS);
  assert_in_range(most_at_once(&p, 64), 5, CALLS);
  pair_drop(&p);
}

static const struct variant shm = {"shm", "shm", "host", 1, NULL},
                            tcp = {"tcp", "tcp", "host", 1, NULL};

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(shm, a_poll_tells_of_few_ends),
      OVER(shm, a_poll_tells_of_few_requests_for_long_replies),
      OVER(tcp, a_poll_tells_of_few_requests_for_long_replies),
      OVER(shm, short_replies_are_asked_for_at_once),
  };
  return cmocka_run_group_tests_name("bounded", tests, NULL, NULL);
}
