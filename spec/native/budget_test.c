/* SPDX-License-Identifier: Apache-2.0
 *
 * budget_test.c - how much one poll copies. Where memory is slow, as before
 * anybody has touched it, a poll does less. The clock is made up: it tells how
 * long each piece took.
 */
#include "base/budget.h"
#include "core/engine.h"
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LONG = 8 << 20, FEW = 24 };

static const struct variant shm = {"shm", "shm", "host", 1, NULL},
                            tcp = {"tcp", "tcp", "host", 1, NULL};

static int64_t now, step; /* ns */

static int64_t clock_of_test(void *context) {
  (void)context;
  return now += step;
}

static void open_pair(struct pair *p, void **state) {
  struct perigee_options o;
  variant_options(*state, &o);
  o.clock = clock_of_test;
  o.streams = 1;
  now = step = 1000;
  pair_open_with(p, *state, &o);
}

/* The polls of side 0 until its operation ends. */
static int polls_of(struct pair *p, int op) {
  struct perigee_event e;
  int polls = 0;
  assert_true(op >= 0);
  while (!taken(p, 0, &e)) {
    poll_side(p, 1);
    poll_side(p, 0);
    polls++;
  }
  assert_int_equal(e.operation, op);
  assert_int_equal(e.status, PERIGEE_OK);
  return polls;
}

static int transferred(struct pair *p, int operation,
                       struct perigee_remote *remote,
                       struct perigee_region *here) {
  struct perigee_transfer t = {.local = all_of(here, LONG)};
  t.remote = (struct perigee_slice){
      .remote = remote, .length = LONG, .count = 1, .stride = LONG};
  return polls_of(p, perigee_transfer(p->session[0], operation, &t, 1, 0, -1));
}

static int received(struct pair *p, struct perigee_region *here,
                    struct perigee_region *there) {
  struct perigee_slice to = all_of(here, LONG), from = all_of(there, LONG);
  int op = perigee_recv(p->session[0], &to, -1);
  int sent = perigee_send(p->session[1], &from, -1);
  int polls = polls_of(p, op);
  ended(p, 1, sent, PERIGEE_OK);
  same(here, 0, perigee_region_pointer(there), LONG);
  return polls;
}

static int replied(struct pair *p, struct perigee_region *here,
                   struct perigee_region *there) {
  struct perigee_message m = {.into = all_of(here, LONG), .timeout = -1},
                         reply = {.slice = all_of(there, LONG)};
  int op = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(perigee_reply(p->engine[1], e.operation, &reply), 1);
  int polls = polls_of(p, op);
  until(p, 1, PERIGEE_EVENT_SENT);
  same(here, 0, perigee_region_pointer(there), LONG);
  return polls;
}

enum way { READ, WRITE, RECEIVE, REPLY };

/* The polls that a payload takes: quick memory, slow memory, and quick memory
 * again. */
static void goes(void **state, enum way way) {
  enum { QUICK, SLOW, AGAIN, TIMES };
  struct pair p;
  int polls[TIMES];
  open_pair(&p, state);
  struct perigee_region *here = region_of(&p, 0, NULL, LONG, 0),
                        *there = region_of(&p, 1, "there", LONG,
                                           PERIGEE_READ | PERIGEE_WRITE);
  struct perigee_remote *remote = look_up(&p, "there");
  fill_byte(there, 7);
  for (int i = 0; i < TIMES; i++) {
    step = i == SLOW ? BUDGET_TIME : 0;
    polls[i] =
        way == RECEIVE ? received(&p, here, there)
        : way == REPLY
            ? replied(&p, here, there)
            : transferred(&p, way == READ ? PERIGEE_OP_READ : PERIGEE_OP_WRITE,
                          remote, here);
  }
  step = 0;
  assert_true(polls[SLOW] >= LONG / PIECE_LEAST / 4);
  if (p.variant != &tcp) { /* there the socket's room counts, too */
    assert_true(polls[QUICK] <= LONG / BUDGET + FEW);
    assert_true(polls[AGAIN] <= LONG / BUDGET + FEW);
  }
  region_end(here);
  region_end(there);
  pair_close(&p);
}

static void a_read_of_slow_memory_takes_more_polls(void **state) {
  goes(state, READ);
}

static void so_does_a_write(void **state) {
  goes(state, WRITE);
}

static void so_does_a_message(void **state) {
  goes(state, RECEIVE);
}

static void so_does_a_reply(void **state) {
  goes(state, REPLY);
}

/* Each takes the system as long as a page, however short it is. */
static void a_pull_of_many_short_blocks_takes_more_polls(void **state) {
  enum { BLOCK = 8, COUNT = 96 << 10, A_POLL = BUDGET / 4096 };
  struct pair p;
  open_pair(&p, state);
  struct perigee_region *here = region_of(&p, 0, NULL, BLOCK * COUNT, 0),
                        *there = region_of(&p, 1, NULL, 2 * BLOCK * COUNT, 0);
  struct perigee_message m = {.into = all_of(here, BLOCK * COUNT),
                              .timeout = -1},
                         reply = {
                             .slice = {{there}, 0, BLOCK, COUNT, 2 * BLOCK}};
  fill_byte(there, 7);
  step = 0;
  int op = perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(perigee_reply(p.engine[1], e.operation, &reply), 1);
  int polls = polls_of(&p, op);
  if (polls < COUNT / A_POLL / 2)
    fail_msg("%d blocks came in %d polls", COUNT, polls);
  until(&p, 1, PERIGEE_EVENT_SENT);
  same(here, 0, perigee_region_pointer(there), BLOCK * COUNT);
  region_end(here);
  region_end(there);
  pair_close(&p);
}

/* ---- A wait beside it ----------------------------------------------------- */

/* A wait whose time is over after one piece polls once. */
static void a_wait_looks_at_its_time_behind_each_piece(void **state) {
  struct pair p;
  open_pair(&p, state);
  struct perigee_region *here = region_of(&p, 0, NULL, LONG, 0),
                        *there = region_of(&p, 1, "there", LONG, PERIGEE_READ);
  struct perigee_remote *remote = look_up(&p, "there");
  fill_byte(there, 7);
  step = 0;
  poll_side(&p, 0);
  struct perigee_transfer t = {.local = all_of(here, LONG)};
  t.remote = (struct perigee_slice){
      .remote = remote, .length = LONG, .count = 1, .stride = LONG};
  assert_true(perigee_transfer(p.session[0], PERIGEE_OP_READ, &t, 1, 0, -1) >=
              0);
  step = BUDGET_TIME;
  uint64_t before = p.engine[0]->counters->polls;
  assert_int_equal(perigee_wait(&p.engine[0], 1, BUDGET_TIME / 2), 0);
  assert_int_equal(p.engine[0]->counters->polls - before, 1);
  step = 0;
  struct perigee_event e;
  while (!taken(&p, 0, &e))
    poll_side(&p, 0);
  assert_int_equal(e.status, PERIGEE_OK);
  region_end(here);
  region_end(there);
  pair_close(&p);
}

/* ---- Pages that are made in one go ---------------------------------------- */

static void a_page_that_took_the_threads_own_time_is_slow(void **state) {
  (void)state;
  struct budget b;
  budget_open(&b);
  budget_begin_own(&b, 5, 1);
  budget_look(&b, 5 + PAGE_TIME - 1, 1);
  assert_false(b.slow_pages);
  budget_look(&b, 5 + 2 * PAGE_TIME, 2); /* the program's own time */
  assert_false(b.slow_pages);
  budget_look(&b, 5 + 3 * PAGE_TIME, 2);
  assert_true(b.slow_pages);
}

static void burn(int64_t for_ns) {
  struct timespec t;
  int64_t end = INT64_MAX, own;
  do {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    own = t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
    end = end == INT64_MAX ? own + for_ns : end;
  } while (own < end);
}

/* A handler computes, and then says where the slice lands. */
static void a_handlers_own_time_is_no_pages(void **state) {
  struct pair p;
  open_pair(&p, state);
  struct perigee_region *from = region_of(&p, 0, NULL, LONG, 0),
                        *to = region_of(&p, 1, NULL, LONG, 0);
  struct perigee_slice place = all_of(to, LONG);
  struct perigee_message m = {.flags = PERIGEE_TYPED,
                              .slice = all_of(from, LONG),
                              .timeout = -1},
                         reply = {.head = "", .length = 0};
  struct perigee_event e;
  fill_byte(from, 7);
  fill_byte(to, 0);
  step = 0;
  int op = perigee_call(p.session[0], &m);
  do {
    poll_side(&p, 0);
    p.engine[1]->moved = true; /* the poll that gives it begins to look */
    poll_side(&p, 1);
  } while (!taken(&p, 1, &e));
  assert_int_equal(e.kind, PERIGEE_EVENT_LANDING);
  burn(2 * PAGE_TIME);
  uint32_t looks = p.engine[1]->budget.looks;
  assert_int_equal(perigee_land(p.engine[1], e.operation, &place), PERIGEE_OK);
  assert_true(p.engine[1]->budget.looks < looks);
  assert_false(p.engine[1]->budget.slow_pages);
  e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  perigee_reply(p.engine[1], e.operation, &reply);
  ended(&p, 0, op, PERIGEE_OK);
  region_end(from);
  region_end(to);
  pair_close(&p);
}

/* What others did meanwhile is a reason to look, and nothing else. */
static void a_long_piece_is_a_reason_to_look(void **state) {
  (void)state;
  struct budget b;
  budget_open(&b);
  for (int i = 0; i < PAGE_LOOKS; i++)
    budget_look(&b, 0, 1);
  assert_int_equal(b.looks, 0);
  budget_begin(&b, 0);
  budget_is_over(&b, PAGE_TIME - 1);
  assert_int_equal(b.looks, 0);
  budget_is_over(&b, 2 * PAGE_TIME);
  assert_int_equal(b.looks, PAGE_LOOKS);
  assert_false(b.slow_pages);
}

/* Has the mapping that begins at this address the flag (proc(5), VmFlags)? */
static bool mapping_has(const uint8_t *at, const char *flag) {
  char line[512];
  bool here = false, has = false;
  FILE *f = fopen("/proc/self/smaps", "re");
  assert_non_null(f);
  while (fgets(line, sizeof line, f)) {
    unsigned long from, to;
    if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
      here = (uintptr_t)at >= from && (uintptr_t)at < to;
    else if (here && strncmp(line, "VmFlags:", 8) == 0)
      has = strstr(line, flag) != NULL;
  }
  fclose(f);
  return has;
}

static void slow_pages_are_asked_for_no_more_for_a_second(void **state) {
  struct pair p;
  open_pair(&p, state);
  struct perigee_region *seen = region_of(&p, 0, "seen", LONG, PERIGEE_READ),
                        *own = region_of(&p, 0, NULL, LONG, 0);
  bool known = mapping_has(perigee_region_pointer(own), " hg");
  p.engine[0]->budget.slow_pages = true;
  for (int i = 0; i < 1000; i++)
    poll_side(&p, 0);
  struct perigee_region *later = region_of(&p, 0, NULL, LONG, 0);
  bool small = mapping_has(perigee_region_pointer(seen), " nh") &&
               mapping_has(perigee_region_pointer(own), " nh") &&
               mapping_has(perigee_region_pointer(later), " nh");
  now += 1000000000;
  struct perigee_region *last = region_of(&p, 0, NULL, LONG, 0);
  bool large = mapping_has(perigee_region_pointer(last), " hg");
  region_end(seen);
  region_end(own);
  region_end(later);
  region_end(last);
  pair_close(&p);
  if (!known)
    skip(); /* a kernel without large pages */
  assert_true(small);
  assert_true(large);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(shm, a_read_of_slow_memory_takes_more_polls),
      OVER(shm, so_does_a_write),
      OVER(shm, so_does_a_message),
      OVER(tcp, so_does_a_message),
      OVER(shm, so_does_a_reply),
      OVER(tcp, so_does_a_reply),
      OVER(shm, a_pull_of_many_short_blocks_takes_more_polls),
      OVER(shm, a_wait_looks_at_its_time_behind_each_piece),
      cmocka_unit_test(a_page_that_took_the_threads_own_time_is_slow),
      OVER(shm, a_handlers_own_time_is_no_pages),
      cmocka_unit_test(a_long_piece_is_a_reason_to_look),
      OVER(shm, slow_pages_are_asked_for_no_more_for_a_second),
  };
  return cmocka_run_group_tests_name("budget", tests, NULL, NULL);
}
