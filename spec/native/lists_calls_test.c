/* SPDX-License-Identifier: Apache-2.0
 *
 * lists_calls_test.c - calls, replies, landings and messages whose memory is a
 * list of slices.
 */
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "support.h"
#include "support_inside.h"
#include "transport/shm/shm.h"

/* {7} as string.buffer writes it. */
static const uint8_t seven[] = {7, 0, 0, 0, 0, 0, 0, 28, 64};

enum { PIECES = 200 };

/* Pieces of a region of twice their length, from its end to its begin. */
struct pieces {
  struct perigee_region *region;
  struct perigee_slice list[PIECES];
  uint64_t count, length;
};

static void pieces_open(struct pair *p, struct pieces *s, int side,
                        uint64_t length, uint64_t count) {
  *s = (struct pieces){region_of(p, side, NULL, 2 * length + 64, 0),
                       .count = count, .length = length};
  uint64_t given = 0, at = 2 * length;
  for (uint64_t i = 0; i < count; i++) {
    uint64_t n = i + 1 == count ? length - given : length / count;
    at -= n + n / 2;
    s->list[i] = (struct perigee_slice){{s->region}, at, n, 1, n};
    given += n;
  }
}

static void pieces_fill(const struct pieces *s, const uint8_t *bytes) {
  for (uint64_t i = 0; i < s->count; bytes += s->list[i++].length)
    fill(s->region, s->list[i].offset, bytes, s->list[i].length);
}

static void pieces_same(const struct pieces *s, const uint8_t *bytes) {
  for (uint64_t i = 0; i < s->count; bytes += s->list[i++].length)
    same(s->region, s->list[i].offset, bytes, s->list[i].length);
}

static struct perigee_slice all(const struct pieces *s) {
  return perigee_list(s->list, s->count);
}

/* The array of a list is the program's again when the function returns. */
static void pieces_forget(struct pieces *s, struct perigee_slice *kept) {
  memcpy(kept, s->list, sizeof s->list);
  memset(s->list, 0xee, sizeof s->list);
}

static void all_sent(struct pair *p, int reply) {
  assert_true(reply >= 0);
  if (reply == 1)
    assert_int_equal(until(p, 1, PERIGEE_EVENT_SENT).status, 0);
}

static void called(struct pair *p, uint64_t length, uint64_t count) {
  struct pieces from, to, back;
  struct perigee_slice kept[3][PIECES];
  uint8_t *bytes = pattern(length, 19);
  pieces_open(p, &from, 0, length, count);
  pieces_open(p, &back, 0, length, count);
  pieces_open(p, &to, 1, length, count + 1);
  pieces_fill(&from, bytes);
  struct perigee_message m = {.flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = all(&from),
                              .into = all(&back),
                              .timeout = -1};
  int call = perigee_call(p->session[0], &m);
  assert_true(call >= 0);
  pieces_forget(&from, kept[0]);
  pieces_forget(&back, kept[1]);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_LANDING);
  struct perigee_slice short_of = perigee_list(to.list, 1), there = all(&to);
  assert_int_equal(perigee_land(p->engine[1], e.operation, &short_of),
                   PERIGEE_TOO_LARGE);
  assert_int_equal(to.region->users, 0);
  assert_int_equal(perigee_land(p->engine[1], e.operation, &there), 0);
  pieces_forget(&to, kept[2]);
  e = until(p, 1, PERIGEE_EVENT_REQUEST);
  memcpy(to.list, kept[2], sizeof kept[2]);
  pieces_same(&to, bytes);
  struct perigee_message r = {.flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = all(&to)};
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  pieces_forget(&to, kept[2]);
  e = ended(p, 0, call, 0);
  assert_int_equal(e.slice, length);
  memcpy(back.list, kept[1], sizeof kept[1]);
  pieces_same(&back, bytes);
  all_sent(p, sent);
  settle(p);
  region_end(from.region);
  region_end(back.region);
  region_end(to.region);
  free(bytes);
}

static const uint64_t lengths[] = {64, 4000, 8192, 100000, 3 * MIB + 7};

static void slices_of_calls_may_be_lists(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < 5; i++)
    for (uint64_t count = 2; count <= 32; count *= 4)
      called(&p, lengths[i], count);
  called(&p, 3 * MIB + 7, 100); /* more than a fetch looks at in one step */
  pair_close(&p);
}

/* A raw call: its payload, and the reply's place. */
static void raw_called(struct pair *p, uint64_t length, uint64_t count) {
  struct pieces from, back;
  uint8_t *bytes = pattern(length, 23);
  pieces_open(p, &from, 0, length, count);
  pieces_open(p, &back, 0, length, count);
  pieces_fill(&from, bytes);
  struct perigee_message m = {
      .slice = all(&from), .into = all(&back), .timeout = -1};
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.length, length);
  assert_memory_equal(e.pointer, bytes, length);
  struct perigee_message r = {.head = e.pointer, .length = e.length};
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  e = ended(p, 0, call, 0);
  assert_int_equal(e.slice, length);
  pieces_same(&back, bytes);
  all_sent(p, sent);
  settle(p);
  region_end(from.region);
  region_end(back.region);
  free(bytes);
}

static void so_may_those_of_raw_calls(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < 5; i++)
    for (uint64_t count = 2; count <= 32; count *= 4)
      raw_called(&p, lengths[i], count);
  pair_close(&p);
}

static void messages_may_be_lists(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < 5; i++) {
    struct pieces from, to;
    uint8_t *bytes = pattern(lengths[i], 29);
    pieces_open(&p, &from, 0, lengths[i], 7);
    pieces_open(&p, &to, 1, lengths[i], 5);
    pieces_fill(&from, bytes);
    struct perigee_slice out = all(&from), in = all(&to);
    int recv = perigee_recv(p.session[1], &in, -1);
    int send = perigee_send(p.session[0], &out, -1);
    assert_true(recv >= 0 && send >= 0);
    assert_int_equal(until(&p, 1, PERIGEE_EVENT_DONE).length, lengths[i]);
    ended(&p, 0, send, 0);
    pieces_same(&to, bytes);
    settle(&p);
    region_end(from.region);
    region_end(to.region);
    free(bytes);
  }
  pair_close(&p);
}

/* A message that is a list, between sides with these features; `lent`: is a block
 * in use for it? */
static void sent_by(const char *features, uint64_t count, bool lent) {
  enum { LENGTH = 600 * KIB };
  struct perigee_options o;
  struct pair p;
  struct pieces from, to;
  uint8_t *bytes = pattern(LENGTH, 37);
  variant_options((void *)(uintptr_t)&variant_default, &o);
  o.features = features;
  pair_open_with(&p, (void *)(uintptr_t)&variant_default, &o);
  pieces_open(&p, &from, 0, LENGTH, count);
  pieces_open(&p, &to, 1, LENGTH, 5);
  pieces_fill(&from, bytes);
  struct perigee_slice out = all(&from), in = all(&to);
  int send = perigee_send(p.session[0], &out, -1);
  assert_int_equal(lent_bytes(p.session[0]) > 0, lent);
  assert_true(perigee_recv(p.session[1], &in, -1) >= 0);
  until(&p, 1, PERIGEE_EVENT_DONE);
  ended(&p, 0, send, 0);
  pieces_same(&to, bytes);
  settle(&p);
  region_end(from.region);
  region_end(to.region);
  free(bytes);
  pair_close(&p);
}

static void older_peers_get_lists_in_a_block(void **state) {
  (void)state;
  sent_by(NULL, 7, false);
  sent_by("-places", 7, true);
}

/* Of 600 KiB 100 pieces are long, and 200 are short. */
static void short_places_travel_in_a_block(void **state) {
  (void)state;
  sent_by(NULL, 100, false);
  sent_by(NULL, 200, true);
}

/* Takes so many replies of these bytes, and the SENT of as many replies as are to
 * have one. */
static void all_come(struct pair *p, int replies, int sent, const void *bytes,
                     uint64_t length) {
  struct perigee_event e;
  while (replies > 0 || sent > 0) {
    for (int side = 0; side < 2; side++)
      poll_side(p, side);
    if (taken(p, 0, &e)) {
      assert_int_equal(e.kind, PERIGEE_EVENT_REPLY);
      assert_int_equal(e.length, length);
      assert_memory_equal(e.pointer, bytes, length);
      replies--;
    }
    if (taken(p, 1, &e)) {
      assert_int_equal(e.kind, PERIGEE_EVENT_SENT);
      sent--;
    }
  }
}

/* Replies fill the ring before one of a list; nobody has its array any more when
 * its turn comes. */
static void arrays_may_go_while_their_replies_wait(void **state) {
  enum { CALLS = 12, BYTES = 8000 };
  struct pair p;
  struct pieces from;
  int served[CALLS], sent = 1;
  uint8_t *bytes = pattern(BYTES, 29);
  struct perigee_message m = {.timeout = -1};
  pair_open(&p, *state);
  pieces_open(&p, &from, 1, BYTES, 100);
  pieces_fill(&from, bytes);
  for (int i = 0; i < CALLS; i++) {
    assert_true(perigee_call(p.session[0], &m) >= 0);
    served[i] = until(&p, 1, PERIGEE_EVENT_REQUEST).operation;
  }
  struct perigee_message plain = {.head = bytes, .length = BYTES};
  for (int i = 0; i < CALLS - 1; i++)
    sent += perigee_reply(p.engine[1], served[i], &plain);
  void *array = mmap(NULL, sizeof from.list, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(array, MAP_FAILED);
  memcpy(array, from.list, sizeof from.list);
  struct perigee_message list = {.slice = perigee_list(array, from.count)};
  assert_int_equal(perigee_reply(p.engine[1], served[CALLS - 1], &list), 1);
  munmap(array, sizeof from.list);
  all_come(&p, CALLS, sent, bytes, BYTES);
  settle(&p);
  region_end(from.region);
  pair_close(&p);
  free(bytes);
}

/* A peer that ends has its list no more, which breaks no protocol. What was freed
 * is written over, so that none is found there by chance. */
static void lists_may_go_at_any_time(void **state) {
  struct pair p;
  struct pieces from;
  pair_open(&p, *state);
  pieces_open(&p, &from, 1, 8 * MIB, 100);
  struct perigee_message m = {.flags = PERIGEE_TYPED | PERIGEE_POOLED,
                              .head = seven,
                              .length = sizeof seven,
                              .timeout = -1};
  int call = perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  m.slice = all(&from);
  assert_true(perigee_reply(p.engine[1], e.operation, &m) >= 0);
  mallopt(M_PERTURB, 0x5a);
  perigee_session_free(p.session[1]);
  p.session[1] = NULL;
  for (int i = 0; i < 2; i++)
    perigee_poll(p.engine[1], &e, 1);
  mallopt(M_PERTURB, 0);
  ended(&p, 0, call, PERIGEE_PEER_LOST);
  pair_drop(&p);
}

static void ticks(int signal) {
  (void)signal;
}

/* Looks at the process that is read, while signals come all the time. */
static void signals_are_no_end_of_a_process(void **state) {
  (void)state;
  static const uint64_t probe[2] = {17, 19};
  struct lane_options o = {.probe = {17, 19},
                           .peer_pid = getpid(),
                           .peer_pidfd =
                               (int)syscall(SYS_pidfd_open, getpid(), 0)};
  struct sigaction old, action = {.sa_handler = ticks};
  struct itimerval often = {{0, 20}, {0, 20}}, never = {{0, 0}, {0, 0}};
  int lost = 0;
  assert_int_equal(sigaction(SIGALRM, &action, &old), 0);
  setitimer(ITIMER_REAL, &often, NULL);
  for (int i = 0; i < 100000; i++)
    lost += !shm_probe(&o, (uintptr_t)probe);
  setitimer(ITIMER_REAL, &never, NULL);
  assert_int_equal(sigaction(SIGALRM, &old, NULL), 0);
  close(o.peer_pidfd);
  assert_int_equal(lost, 0);
}

/* A list is refused before anything is sent, and its memory is not in use. */
static void bad_lists_are_refused_at_once(void **state) {
  struct pair p;
  struct pieces s;
  pair_open(&p, *state);
  pieces_open(&p, &s, 0, 1000, 4);
  s.list[2].offset = 2064;
  struct perigee_slice list = all(&s);
  assert_int_equal(perigee_send(p.session[0], &list, -1), PERIGEE_RANGE);
  assert_int_equal(perigee_recv(p.session[0], &list, -1), PERIGEE_RANGE);
  struct perigee_message m = {.slice = list, .timeout = -1};
  assert_int_equal(perigee_call(p.session[0], &m), PERIGEE_RANGE);
  m = (struct perigee_message){.into = list, .timeout = -1};
  assert_int_equal(perigee_call(p.session[0], &m), PERIGEE_RANGE);
  struct perigee_loan loan;
  assert_int_equal(perigee_call_begin(p.session[0], 64, &loan), 0);
  assert_int_equal(perigee_call_commit(p.session[0], &m, 1), PERIGEE_RANGE);
  assert_int_equal(s.region->users, 0);
  assert_int_equal(operations(&p, 0), 0);
  settle(&p);
  region_end(s.region);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest alone[] = {
      cmocka_unit_test(signals_are_no_end_of_a_process),
      cmocka_unit_test(older_peers_get_lists_in_a_block),
      cmocka_unit_test(short_places_travel_in_a_block),
  };
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(slices_of_calls_may_be_lists),
      cmocka_unit_test(so_may_those_of_raw_calls),
      cmocka_unit_test(messages_may_be_lists),
      cmocka_unit_test(arrays_may_go_while_their_replies_wait),
      cmocka_unit_test(lists_may_go_at_any_time),
      cmocka_unit_test(bad_lists_are_refused_at_once),
  };
  int failed = cmocka_run_group_tests_name("lists of calls", alone, NULL, NULL);
  return failed + RUN_MATRIX("lists of calls", tests);
}
