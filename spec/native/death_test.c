/* SPDX-License-Identifier: Apache-2.0
 *
 * death_test.c - a peer that is killed or stopped in the middle of everything:
 * long replies, pulled, staged and lent, a long request, one-sided access of
 * both kinds, a send and a receive, all at once. The moment of the kill is
 * random; PERIGEE_SEED=n repeats a run as far as possible.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "worker.h"

enum { OPERATIONS = 9, ALL = WORKER_SIZE };
/* All operations have ended long before, unless only a timeout ends them;
 * the rest is for busy machines. */
static const int64_t BOUND = 2000 * MS;

static const uint8_t seven[] = {7, 0, 0, 0, 0, 0, 0, 28, 64};

struct work {
  struct worker w;
  struct perigee_region *mine[OPERATIONS]; /* one for each */
  struct perigee_remote *mapped, *asked;
  struct perigee_transfer transfers[4];
  int operations[OPERATIONS];
  int statuses[OPERATIONS]; /* 1: not ended */
  int lost, left;
};

/* ---- Beginning all of it -------------------------------------------------- */

static int call(struct work *k, int method, struct perigee_slice slice,
                struct perigee_slice into, int64_t timeout) {
  struct perigee_message m = {.method = (uint16_t)method,
                              .flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = slice,
                              .into = into,
                              .timeout = timeout};
  return perigee_call(k->w.session, &m);
}

static int copy(struct work *k, int i, struct perigee_remote *remote,
                int operation, int64_t timeout) {
  struct perigee_transfer *t = &k->transfers[i - 5];
  *t =
      (struct perigee_transfer){.local = all_of(k->mine[i], ALL),
                                .remote = {{.remote = remote}, 0, ALL, 1, ALL}};
  return perigee_transfer(k->w.session, operation, t, 1, 0, timeout);
}

static int begin(struct work *k, int i, int64_t timeout) {
  struct perigee_slice all = all_of(k->mine[i], ALL), none = {0};
  switch (i) {
  case 0:
    return call(k, WORKER_LONG_REPLY, none, all, timeout);
  case 1:
    return call(k, WORKER_SHORT_REPLY, none, all, timeout);
  case 2:
    return call(k, WORKER_LOAN, none, all, timeout);
  case 3:
    return call(k, WORKER_SHORT_REPLY, all, none, timeout);
  case 4:
    return perigee_send(k->w.session, &all, timeout);
  case 5:
    return copy(k, i, k->mapped, PERIGEE_OP_READ, timeout);
  case 6:
    return copy(k, i, k->asked, PERIGEE_OP_WRITE, timeout);
  case 7:
    return copy(k, i, k->asked, PERIGEE_OP_READ, timeout);
  default:
    return perigee_recv(k->w.session, &all, timeout);
  }
}

static void work_open(struct work *k, const struct variant *v) {
  *k = (struct work){.left = 0};
  worker_start(&k->w, v);
  for (int i = 0; i < OPERATIONS; i++)
    assert_int_equal(
        perigee_region_alloc(k->w.engine, NULL, ALL, 0, v->memory, &k->mine[i]),
        0);
}

static void work_begin(struct work *k, int64_t timeout) {
  k->mapped = worker_region(&k->w, "mapped");
  k->asked = worker_region(&k->w, "asked");
  for (int i = 0; i < OPERATIONS; i++) {
    k->operations[i] = begin(k, i, timeout);
    assert_true(k->operations[i] >= 0);
    k->statuses[i] = 1;
  }
  k->left = OPERATIONS;
}

/* ---- Ending --------------------------------------------------------------- */

static void take_end(struct work *k, const struct perigee_event *e) {
  if (e->flags & PERIGEE_POOLED)
    perigee_pool_free(k->w.engine, e->landed);
  if (e->kind == PERIGEE_EVENT_LOST) {
    assert_int_equal(k->left, 0);
    assert_int_equal(k->lost++, 0);
    return;
  }
  int i = 0;
  while (i < OPERATIONS && k->operations[i] != e->operation)
    i++;
  assert_true(i < OPERATIONS);
  assert_int_equal(k->statuses[i], 1);
  k->statuses[i] = e->status;
  k->left--;
}

static void work_poll(struct work *k) {
  struct perigee_event e[4];
  int n = perigee_poll(k->w.engine, e, 4);
  for (int i = 0; i < n; i++)
    take_end(k, &e[i]);
}

static void work_for(struct work *k, int64_t time) {
  for (int64_t end = clock_now() + time; clock_now() < end;)
    work_poll(k);
}

static void work_close(struct work *k) {
  for (int i = 0; i < OPERATIONS; i++)
    assert_int_equal(perigee_region_close(k->mine[i], false), 0);
  assert_int_equal(perigee_counters(k->w.engine, NULL)->operations, 0);
  assert_int_equal(perigee_counters(k->w.engine, NULL)->pooled, 0);
  worker_end(&k->w);
}

/* ---- Killed ----------------------------------------------------------------*/

static void killed_after(const struct variant *v, int64_t time) {
  struct work k;
  work_open(&k, v);
  work_begin(&k, -1);
  work_for(&k, time);
  int before = k.left;
  kill(k.w.pid, SIGKILL);
  waitpid(k.w.pid, NULL, 0);
  int64_t start = clock_now();
  while (k.left > 0 || !k.lost) {
    work_poll(&k);
    if (clock_now() - start > BOUND)
      fail_msg("%d of %d operations wait for the dead", k.left, before);
  }
  for (int i = 0; i < OPERATIONS; i++)
    if (k.statuses[i] != PERIGEE_OK && k.statuses[i] != PERIGEE_PEER_LOST)
      fail_msg("operation %d ended in %s", i,
               perigee_status_name(k.statuses[i]));
  print_message("# %d in flight, all ended in %d us\n", before,
                (int)((clock_now() - start) / 1000));
  work_poll(&k);
  work_close(&k);
}

static void all_ends_when_the_peer_is_killed(void **state) {
  const char *given = getenv("PERIGEE_SEED");
  unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL);
  print_message("# PERIGEE_SEED=%u\n", seed);
  srand(seed);
  for (int i = 0; i < 4; i++)
    killed_after(*state, (i * 12 + rand() % 12) * MS);
}

/* ---- Stopped --------------------------------------------------------------- */

static void all_times_out_when_the_peer_is_stopped(void **state) {
  struct work k;
  work_open(&k, *state);
  work_begin(&k, 60 * MS);
  work_for(&k, 3 * MS);
  kill(k.w.pid, SIGSTOP);
  waitpid(k.w.pid, NULL, WUNTRACED);
  int64_t start = clock_now();
  while (k.left > 0) {
    work_poll(&k);
    if (clock_now() - start > BOUND)
      fail_msg("%d operations wait for the stopped", k.left);
  }
  for (int i = 0; i < OPERATIONS; i++) {
    if (k.statuses[i] != PERIGEE_OK)
      assert_int_equal(k.statuses[i], PERIGEE_TIMEOUT);
    fill_byte(k.mine[i], 0xcc);
  }
  kill(k.w.pid, SIGCONT);
  work_for(&k, 100 * MS);
  for (int i = 0; i < OPERATIONS; i++)
    all_byte(k.mine[i], 0xcc);
  /* Nor did the peer read what we wrote since: its memory has old bytes. */
  struct perigee_transfer t = {.local = all_of(k.mine[0], ALL),
                               .remote = {{.remote = k.asked}, 0, ALL, 1, ALL}};
  int op = perigee_transfer(k.w.session, PERIGEE_OP_READ, &t, 1, 0, -1);
  assert_int_equal(worker_await(&k.w, op).status, PERIGEE_OK);
  none_byte(k.mine[0], 0xcc);
  work_for(&k, MS);
  work_close(&k);
}

/* The system knows it, without a poll. */
static void who_does_not_poll_can_ask_for_the_peer(void **state) {
  struct worker w;
  worker_start(&w, *state);
  assert_int_equal(perigee_session_alive(w.session), 1);
  kill(w.pid, SIGSTOP);
  waitpid(w.pid, NULL, WUNTRACED);
  assert_int_equal(perigee_session_alive(w.session), 1);
  kill(w.pid, SIGKILL);
  while (perigee_session_alive(w.session))
    usleep(1000);
  struct perigee_session_info info;
  assert_int_equal(perigee_session_describe(w.session, &info, sizeof info), 0);
  assert_int_equal(info.state, PERIGEE_SESSION_OPEN);
  worker_end(&w);
}

int main(void) {
  static const struct variant staged = {"staged", "shm", "host", 0, NULL};
  static const struct variant opaque = {"opaque", "shm", "opaque", 1, NULL};
  const struct CMUnitTest tests[] = {
      OVER(variant_default, all_ends_when_the_peer_is_killed),
      OVER(staged, all_ends_when_the_peer_is_killed),
      OVER(opaque, all_ends_when_the_peer_is_killed),
      OVER(variant_default, all_times_out_when_the_peer_is_stopped),
      OVER(staged, all_times_out_when_the_peer_is_stopped),
      OVER(opaque, all_times_out_when_the_peer_is_stopped),
      OVER(variant_default, who_does_not_poll_can_ask_for_the_peer),
  };
  return cmocka_run_group_tests_name("death", tests, NULL, NULL);
}
