/* SPDX-License-Identifier: Apache-2.0
 *
 * arena_test.c - memory of blocks that are lent over shared memory. It is added
 * when needed, unused memory goes back to the system, and peers that lie about
 * their memory harm only themselves.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"
#include "support_inside.h"

enum { LENGTH = MIB / 2, CALLS = 24 };

/* MiB of shared memory that this process has touched, in all its mappings. */
static long shared(void) {
  char line[128];
  long kib = -1;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    sscanf(line, "RssShmem: %ld", &kib);
  if (f)
    fclose(f);
  return kib >> 10;
}

static uint64_t kept(struct pair *p) {
  return perigee_counters(p->engine[0], NULL)->kept +
         perigee_counters(p->engine[1], NULL)->kept;
}

static void lend(struct pair *p, int byte) {
  struct perigee_message m = {.timeout = -1, .capacity = LENGTH};
  struct perigee_loan loan;
  assert_int_equal(perigee_call_begin(p->session[0], LENGTH, &loan), 0);
  memset(loan.pointer, byte, LENGTH);
  assert_true(perigee_call_commit(p->session[0], &m, LENGTH) >= 0);
}

static void check(const struct perigee_event *e, int byte) {
  assert_int_equal(e->status, PERIGEE_OK);
  assert_int_equal(e->length, LENGTH);
  assert_int_equal(e->pointer[0], byte);
  assert_int_equal(e->pointer[LENGTH - 1], byte);
}

static void answer(struct pair *p, const struct perigee_event *e, int byte) {
  struct perigee_loan loan;
  check(e, byte);
  assert_int_equal(
      perigee_reply_begin(p->engine[1], e->operation, LENGTH, &loan), 0);
  memset(loan.pointer, byte + 1, LENGTH);
  assert_true(perigee_reply_commit(p->engine[1], e->operation, LENGTH) >= 0);
}

static bool next(struct pair *p, int side, struct perigee_event *e) {
  bool any;
  poll_side(p, side);
  while ((any = taken(p, side, e)) && e->kind == PERIGEE_EVENT_SENT)
    ;
  return any;
}

/* Makes so many calls at once; each carries its own bytes both ways. */
static void echo(struct pair *p, int count, int first) {
  struct perigee_event e;
  for (int i = 0; i < count; i++)
    lend(p, first + i);
  for (int served = 0, ended = 0; ended < count;) {
    if (next(p, 1, &e))
      answer(p, &e, first + served++);
    if (next(p, 0, &e))
      check(&e, first + 1 + ended++);
  }
}

/* Time is the test's own: a little passes whenever an engine looks at the clock,
 * and all else in rest(). So no test depends on how fast the machine is. */
static _Atomic int64_t passed;

static int64_t own_clock(void *context) {
  (void)context;
  return atomic_fetch_add(&passed, 10000);
}

static void timed_open_with(struct pair *p, void *state, uint64_t pool) {
  struct perigee_options o;
  variant_options(state, &o);
  o.clock = own_clock;
  o.pool = pool ? pool : o.pool;
  pair_open_with(p, state, &o);
}

static void timed_open(struct pair *p, void *state) {
  timed_open_with(p, state, 0);
}

/* Engines read the clock at every 66th poll, or more often. */
enum { POLLS = 100 };

/* Lets so much time pass, while no events but SENT come. */
static void rest(struct pair *p, int64_t time) {
  struct perigee_event e;
  for (; time > 0; time -= MS, passed += MS)
    for (int i = 0; i < 2 * POLLS; i++)
      assert_false(next(p, i % 2, &e));
}

/* The events that are still to come are SENT. */
static void timed_close(struct pair *p) {
  int64_t end = clock_now() + 20000 * MS;
  while (operations(p, 0) + operations(p, 1) > 0) {
    rest(p, MS);
    assert_true(clock_now() < end);
  }
  pair_close(p);
}

/* Lets time pass until both engines keep no memory for blocks. `before`: what
 * the process had of it before the first block. */
static void until_all_is_back(struct pair *p, long before) {
  int64_t end = clock_now() + 20000 * MS;
  while (kept(p) > 0 || shared() - before >= 2) {
    rest(p, 100 * MS);
    assert_true(clock_now() < end);
  }
}

static void what_nobody_uses_goes_back(void **state) {
  struct pair p;
  timed_open(&p, *state);
  long before = shared();
  for (int round = 0; round < 3; round++) {
    echo(&p, CALLS, 10 * round);
    assert_true(kept(&p) > 0);
    assert_true(shared() - before > CALLS / 2);
    until_all_is_back(&p, before);
  }
  timed_close(&p);
}

static void what_is_used_stays(void **state) {
  struct pair p;
  timed_open(&p, *state);
  for (int i = 0; i < 60; i++) {
    echo(&p, 1, i);
    rest(&p, 20 * MS);
    assert_true(kept(&p) > 0);
  }
  for (int side = 0; side < 2; side++)
    assert_int_equal(segments_said(p.session[side]), 1);
  timed_close(&p);
}

/* ---- Blocks that rest ------------------------------------------------------ */

enum { POOL = 8 * MIB };

/* Opens a session of which side 0 has blocks that rest. */
static void resting_open(struct pair *p, void *state) {
  timed_open_with(p, state, POOL);
  for (int i = 0; i < 6; i++)
    echo(p, 1, i);
  rest(p, MS); /* the last call is over */
  assert_true(resting_bytes(p->session[0]) > 0);
}

static uint64_t bytes_lent(const struct perigee_session *session) {
  uint64_t bytes = 0;
  while (lends(session, LENGTH))
    bytes += LENGTH;
  return bytes;
}

static void what_rests_is_lent_before_a_loan_fails(void **state) {
  struct pair p;
  resting_open(&p, *state);
  assert_int_equal(bytes_lent(p.session[0]), POOL);
  assert_int_equal(resting_bytes(p.session[0]), 0);
  pair_drop(&p);
}

/* There may be no second segment. */
static void what_rests_is_lent_if_no_more_memory_may_be_made(void **state) {
  struct pair p;
  resting_open(&p, *state);
  assert_int_equal(segments_said(p.session[0]), 1);
  limit_segments(p.engine[0], 0);
  assert_int_equal(bytes_lent(p.session[0]), segment_bytes(p.session[0]));
  assert_int_equal(segments_said(p.session[0]), 1);
  pair_drop(&p);
}

/* A long block lies in several segments. */
static void long_blocks_come_and_go(void **state) {
  const uint64_t length = 37 * MIB;
  struct perigee_event e;
  struct perigee_loan loan;
  struct pair p;
  timed_open(&p, *state);
  long before = shared();
  for (int round = 0; round < 2; round++) {
    struct perigee_message m = {.timeout = -1};
    assert_int_equal(perigee_call_begin(p.session[0], length, &loan), 0);
    for (uint64_t at = 0; at < length; at += 4096)
      loan.pointer[at] = (uint8_t)(at >> 16);
    int op = perigee_call_commit(p.session[0], &m, length);
    while (!next(&p, 1, &e))
      poll_side(&p, 0);
    assert_int_equal(e.length, length);
    for (uint64_t at = 0; at < length; at += 4096)
      assert_int_equal(e.pointer[at], (uint8_t)(at >> 16));
    struct perigee_message r = {.head = "x", .length = 1};
    perigee_reply(p.engine[1], e.operation, &r);
    ended(&p, 0, op, PERIGEE_OK);
    until_all_is_back(&p, before);
  }
  timed_close(&p);
}

/* ---- Peers that lie ------------------------------------------------------ */

static int memory(uint64_t length, int seals) {
  int fd = memfd_create("lie", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_true(fd >= 0);
  assert_int_equal(ftruncate(fd, (off_t)length), 0);
  assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}

static void ends_the_session(void *state, uint32_t segment, uint32_t there,
                             int fd) {
  struct pair p;
  struct perigee_event e;
  pair_open(&p, state);
  assert_true(say_segment(p.session[0], segment, there, fd));
  if (fd >= 0)
    close(fd);
  while (!next(&p, 1, &e))
    ;
  assert_int_equal(e.kind, PERIGEE_EVENT_LOST);
  assert_int_equal(e.status, PERIGEE_PROTOCOL);
  pair_drop(&p);
}

static void words_that_are_wrong_end_the_session(void **state) {
  enum { SIZE = F_SEAL_SHRINK | F_SEAL_GROW, ALL = SIZE | F_SEAL_FUTURE_WRITE };
  struct pair p;
  pair_open(&p, *state);
  uint64_t size = segment_bytes(p.session[0]);
  pair_close(&p);
  ends_the_session(*state, 0, 1, -1);
  ends_the_session(*state, 0, 0, memory(size, ALL));
  ends_the_session(*state, 0, 2, -1);
  ends_the_session(*state, 256, 1, memory(size, ALL));
  ends_the_session(*state, UINT32_MAX, 1, memory(size, ALL));
  ends_the_session(*state, UINT32_MAX, 0, -1);
  ends_the_session(*state, 0, 1, memory(size, SIZE));
  ends_the_session(*state, 0, 1, memory(size, F_SEAL_SHRINK));
  ends_the_session(*state, 0, 1, memory(size - 4096, ALL));
  ends_the_session(*state, 0, 1, memory(2 * size, ALL));
  ends_the_session(*state, 0, 1, open("/dev/null", O_RDWR | O_CLOEXEC));
}

static long mappings(void) {
  FILE *f = fopen("/proc/self/maps", "r");
  long count = 0;
  for (int c; f && (c = getc(f)) != EOF;)
    count += c == '\n';
  fclose(f);
  return count;
}

/* The peer sends one file many times: it holds little memory and makes many
 * mappings. */
static void segments_without_end_end_the_session(void **state) {
  enum { ALL = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE, MOST = 64 };
  struct perigee_session *liar[2];
  struct perigee_event e = {.kind = 0};
  struct pair p;
  timed_open(&p, *state);
  limit_segments(p.engine[1], MOST);
  pair_dial(&p, liar);
  long before = mappings();
  int fd = memory(segment_bytes(liar[0]), ALL);
  for (uint32_t i = 0; i < 256 && e.kind == 0; i += 2) {
    assert_true(say_segment(liar[0], i, 1, fd));
    look_at_clock(p.engine[1]);
    next(&p, 1, &e);
    assert_true(mappings() - before <= 2 * MOST);
  }
  assert_int_equal(e.kind, PERIGEE_EVENT_LOST);
  assert_int_equal(e.status, PERIGEE_NO_MEMORY);
  assert_non_null(strstr((const char *)e.pointer, "max_map_count"));
  close(fd);
  until(&p, 0, PERIGEE_EVENT_LOST);
  perigee_session_free(liar[0]);
  perigee_session_free(liar[1]);
  echo(&p, CALLS, 1); /* its memory is free again */
  timed_close(&p);
}

/* No segment is available to stage a long reply. */
static void what_cannot_be_staged_is_read_where_it_lies(void **state) {
  enum { LONG = 5 * MIB };
  struct perigee_message m = {.head = "x", .length = 1, .timeout = -1};
  struct perigee_event e;
  struct pair p;
  uint8_t *bytes = pattern(LONG, 3);
  pair_open(&p, *state);
  limit_segments(p.engine[1], 0);
  int op = perigee_call(p.session[0], &m);
  e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  m = (struct perigee_message){.head = bytes, .length = LONG};
  assert_true(perigee_reply(p.engine[1], e.operation, &m) >= 0);
  e = ended(&p, 0, op, PERIGEE_OK);
  assert_int_equal(e.length, LONG);
  assert_memory_equal(e.pointer, bytes, LONG);
  assert_int_equal(segments_said(p.session[1]), 0);
  perigee_pool_free(p.engine[0], e.landed);
  until(&p, 1, PERIGEE_EVENT_SENT);
  free(bytes);
  pair_close(&p);
}

/* The process has used all descriptors that it may have. */
static void use_up_mappings(void) {
  enum { PAGES = 1 << 18, PAGE = 4096 };
  char *p = mmap(NULL, (size_t)PAGES * PAGE, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (size_t i = 1; i < PAGES; i += 2)
    if (mprotect(p + i * PAGE, PAGE, PROT_READ) != 0)
      return;
}

/* The peer did not lie. */
static int without_mappings(void *state) {
  enum { ALL = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE };
  static struct pair p;
  struct perigee_event e;
  pair_open(&p, state);
  int fd = memory(segment_bytes(p.session[0]), ALL);
  use_up_mappings();
  if (!say_segment(p.session[0], 7, 1, fd))
    return 1;
  while (!next(&p, 1, &e))
    look_at_clock(p.engine[1]);
  return e.kind == PERIGEE_EVENT_LOST && e.status == PERIGEE_NO_MEMORY &&
                 strstr((const char *)e.pointer, "max_map_count")
             ? 0
             : 2;
}

static void who_can_map_no_more_says_so(void **state) {
  int status;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0)
    _exit(without_mappings(*state));
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
}

/* The accessed pages read as zeros, without a fault. */
static void memory_that_goes_too_early_is_zeros(void **state) {
  struct perigee_message r = {.head = "x", .length = 1};
  struct perigee_event e;
  struct pair p;
  timed_open(&p, *state);
  lend(&p, 7);
  while (!next(&p, 1, &e))
    ;
  check(&e, 7);
  assert_true(say_segment(p.session[0], 0, 0, -1));
  look_at_clock(p.engine[1]);
  quiet(&p, 1);
  check(&e, 0);
  perigee_reply(p.engine[1], e.operation, &r);
  until(&p, 0, PERIGEE_EVENT_REPLY);
  timed_close(&p);
}

/* ---- Words that are late --------------------------------------------------- */

/* Polls the second side once; returns the event's kind, 0 for none. */
static int one_poll(struct pair *p, struct perigee_event *e) {
  return perigee_poll(p->engine[1], e, 1) ? e->kind : 0;
}

/* A block of many segments is announced in as many messages, which are read
 * one by one: no poll reads all of them, and records of the other ring do
 * not wait. */
static void words_are_read_in_one_look_a_poll(void **state) {
  enum { SEGMENTS = 16 };
  struct perigee_message m = {.timeout = -1}, r = {.head = "x", .length = 1};
  struct perigee_loan loan;
  struct perigee_event e;
  struct pair p;
  pair_open(&p, *state);
  const uint64_t length = SEGMENTS * segment_bytes(p.session[0]);
  int call = perigee_call(p.session[1], &m);
  int asked = until(&p, 0, PERIGEE_EVENT_REQUEST).operation;
  uint32_t heard = segments_heard(p.session[1]);
  assert_int_equal(perigee_call_begin(p.session[0], length, &loan), 0);
  memset(loan.pointer, 7, length);
  int lent = perigee_call_commit(p.session[0], &m, length);
  perigee_reply(p.engine[0], asked, &r);
  assert_int_equal(one_poll(&p, &e), PERIGEE_EVENT_REPLY);
  assert_int_equal(e.operation, call);
  int polls = 1;
  while (one_poll(&p, &e) != PERIGEE_EVENT_REQUEST) {
    polls++;
    assert_true(segments_heard(p.session[1]) - heard <= (uint32_t)polls * 2);
    assert_true(polls <= 2 * SEGMENTS); /* some are for looking at it */
  }
  assert_true(polls > SEGMENTS / 4);
  assert_int_equal(e.length, length);
  assert_int_equal(e.pointer[length - 1], 7);
  perigee_reply(p.engine[1], e.operation, &r);
  ended(&p, 0, lent, PERIGEE_OK);
  pair_close(&p);
}

/* A peer that never announces a segment but keeps talking is waited for only
 * as long as reading what it had sent by then takes. */
static void talkers_are_heard_no_further_than_their_record(void **state) {
  struct perigee_event e = {0};
  struct pair p;
  pair_open(&p, *state);
  assert_true(fill_socket(p.session[0]) > 0);
  refer_unheard(p.session[0], false);
  for (int i = 0; one_poll(&p, &e) != PERIGEE_EVENT_REQUEST; i++) {
    assert_true(i < 100);
    assert_true(fill_socket(p.session[0]) > 0);
  }
  assert_int_equal(e.length, 100);
  assert_int_equal(e.pointer[99], 0);
  pair_drop(&p);
}

/* Looking for the announcement of one ring's record may end the session. */
static void nothing_is_read_of_who_has_ended(void **state) {
  struct perigee_event e = {0};
  struct pair p;
  pair_open(&p, *state);
  perigee_call(p.session[0], &(struct perigee_message){.timeout = -1});
  assert_true(say_segment(p.session[0], 0, 2, -1));
  refer_unheard(p.session[0], true);
  while (one_poll(&p, &e) == 0)
    ;
  assert_int_equal(e.kind, PERIGEE_EVENT_LOST);
  assert_int_equal(e.status, PERIGEE_PROTOCOL);
  pair_drop(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(variant_default, what_nobody_uses_goes_back),
      OVER(variant_default, what_is_used_stays),
      OVER(variant_default, what_rests_is_lent_before_a_loan_fails),
      OVER(variant_default, what_rests_is_lent_if_no_more_memory_may_be_made),
      OVER(variant_default, long_blocks_come_and_go),
      OVER(variant_default, words_that_are_wrong_end_the_session),
      OVER(variant_default, segments_without_end_end_the_session),
      OVER(variant_default, what_cannot_be_staged_is_read_where_it_lies),
      OVER(variant_default, who_can_map_no_more_says_so),
      OVER(variant_default, memory_that_goes_too_early_is_zeros),
      OVER(variant_default, words_are_read_in_one_look_a_poll),
      OVER(variant_default, talkers_are_heard_no_further_than_their_record),
      OVER(variant_default, nothing_is_read_of_who_has_ended),
  };
  return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
