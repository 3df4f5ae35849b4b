/* SPDX-License-Identifier: Apache-2.0
 *
 * lanes_rules_test.c - what a session keeps to towards the transport of a second
 * lane: marks, jobs, words of its half, descriptors in a forked child, and sessions that take none. A
 * transport between the two notes what it is asked for.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/engine.h"
#include "lanes_support.h"
#include "transport/transport.h"

/* ---- The transport between ------------------------------------------------- */

/* The link, which takes host memory, too. */
static struct perigee_transport noting;
static struct transport_payloads noting_payloads;
static struct transport_jobs noting_jobs;
static const char *const both_kinds[] = {"opaque", "host", NULL};
static const struct transport_additional for_both = {.memories = both_kinds,
                                                     .least = LEAST};
static const struct perigee_transport *const with_noting[] = {
    &perigee_transport_inproc, &noting, NULL};

static const struct perigee_transport *const link_of =
    &perigee_transport_inproc_additional;
static struct lane_options given[2]; /* by dialed */
static struct lane *lanes[2];

static int note_open(const struct lane_options *options, struct lane **lane,
                     struct offer *offer, char reason[REASON]) {
  int status = link_of->open(options, lane, offer, reason);
  if (status < 0)
    return status;
  lane_by(*lane, &noting);
  given[options->dialed] = *options;
  lanes[options->dialed] = *lane;
  return status;
}

/* Changes some functions before the pair is opened. */
static void noting_open(struct pair *p, const struct variant *v) {
  struct perigee_options o;
  link_options(v, &o);
  o.transports = with_noting;
  pair_open_with(p, (void *)(uintptr_t)v, &o);
}

static void noting_begin(void) {
  noting = *link_of;
  noting_payloads = *link_of->payloads;
  noting_jobs = *link_of->jobs;
  noting.payloads = &noting_payloads;
  noting.jobs = &noting_jobs;
  noting.additional = &for_both;
  noting.open = note_open;
}

/* ---- Sessions without descriptors ------------------------------------------ */

static bool distant_possible;
static bool distant_could(void) {
  return distant_possible;
}

static struct transport_additional for_distant = {.memories = both_kinds,
                                                  .least = LEAST,
                                                  .could = distant_could,
                                                  .needs = "it lacks a cable"};

static void distant_is(void *state, const char *what) {
  struct pair p;
  lanes[0] = lanes[1] = NULL;
  noting_open(&p, state);
  link_says(&p, 0, what);
  link_says(&p, 1, what);
  pair_close(&p);
}

/* One that hands descriptors has another one in its place over TCP. */
static void another_transport_has_its_place(void **state) {
  struct transport_additional for_unix = for_both;
  struct perigee_transport distant = *link_of;
  const struct variant *v = *state;
  bool tcp = v == &over_tcp;
  const char *there = "link: payloads and one-sided copies";
  distant.additional = &for_distant;
  noting_begin();
  noting.socket = SOCKET_UNIX;
  noting.additional = &for_unix;
  distant_is(*state, tcp ? "it needs a Unix socket" : there);
  for_unix.distant = &distant;
  distant_possible = false;
  distant_is(*state, tcp ? "it lacks a cable" : there);
  distant_possible = true;
  distant_is(*state, there);
  assert_true(tcp == (lanes[0] == NULL)); /* by the other one */
  for_distant.could = NULL;               /* it always could */
  distant_is(*state, there);
  for_distant.could = distant_could;
}

/* ---- Marks ----------------------------------------------------------------- */

static uint32_t marked; /* the last generation that side 0 was told */
static int exposed;     /* payloads that side 0 exposes */
static bool full;       /* no slice can be exposed now */

static void note_mark(struct lane *lane, uint16_t op, uint32_t generation) {
  if (lane == lanes[1])
    marked = generation;
  link_of->payloads->mark(lane, op, generation);
}

static int note_expose(struct lane *lane, struct exposure *exposure,
                       struct payload *payload) {
  if (full && exposure->part == 1)
    return PERIGEE_AGAIN;
  exposed += lane == lanes[1];
  return link_of->payloads->expose(lane, exposure, payload);
}

static void note_conceal(struct lane *lane, struct exposure *exposure) {
  exposed -= lane == lanes[1];
  link_of->payloads->conceal(lane, exposure);
}

/* A typed string, as LuaJIT encodes long ones: its length + 32 in 5 bytes. */
static uint8_t *typed_string(uint32_t length, uint64_t *all) {
  uint8_t *bytes = malloc(length + 5ul);
  uint32_t tag = length + 32;
  bytes[0] = 0xff;
  memcpy(bytes + 1, &tag, sizeof tag);
  memset(bytes + 5, 'p', length);
  *all = length + 5ul;
  return bytes;
}

static void a_mark_stays_while_another_part_is_exposed(void **state) {
  struct pair p;
  struct places s;
  uint64_t length;
  uint8_t *head = typed_string(LARGE, &length);
  noting_begin();
  noting_payloads.mark = note_mark;
  noting_payloads.expose = note_expose;
  noting_payloads.conceal = note_conceal;
  noting_open(&p, *state);
  places_open(&p, &s, LARGE);
  struct perigee_slice from = all_of(s.from, LARGE), to = all_of(s.to, LARGE);
  struct perigee_message m = typed_message(&from, NULL);
  m.head = head;
  m.length = length;
  exposed = 0;
  full = true;
  int call = perigee_call(p.session[0], &m);
  assert_true(call >= 0);
  assert_int_equal(exposed, 1); /* the head; the slice waits */
  assert_int_not_equal(marked, 0);
  full = false;
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_LANDING);
  assert_int_equal(perigee_land(p.engine[1], e.operation, &to), 0);
  e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.length, length);
  assert_memory_equal(e.pointer, head, length);
  same(s.to, 0, s.bytes, LARGE);
  perigee_reply(p.engine[1], e.operation,
                &(struct perigee_message){.timeout = -1});
  ended(&p, 0, call, 0);
  assert_int_equal(exposed, 0);
  assert_int_equal(marked, 0);
  free(head);
  link_close_places(&p, &s);
}

/* ---- Limits ---------------------------------------------------------------- */

static int exposures; /* payloads that either side has exposed */

static int count_expose(struct lane *lane, struct exposure *exposure,
                        struct payload *payload) {
  exposures++;
  return link_of->payloads->expose(lane, exposure, payload);
}

/* To take back what is exposed costs some transports a fence. */
static void what_is_over_the_limit_is_not_exposed(void **state) {
  struct pair p;
  struct places s;
  struct perigee_options o;
  struct perigee_message hello = {.head = "hello", .length = 5, .timeout = -1};
  noting_begin();
  noting_payloads.expose = count_expose;
  link_options(*state, &o);
  o.transports = with_noting;
  o.message = LARGE - 1;
  pair_open_with(&p, *state, &o);
  places_open(&p, &s, LARGE);
  struct perigee_slice from = all_of(s.from, LARGE), back = all_of(s.to, LARGE);
  struct perigee_message m = typed_message(&from, NULL);
  exposures = 0;
  assert_int_equal(perigee_call(p.session[0], &m), PERIGEE_TOO_LARGE);
  assert_int_equal(exposures, 0);
  int call = perigee_call(p.session[0], &hello);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  m = typed_message(&back, NULL);
  assert_int_equal(perigee_reply(p.engine[1], e.operation, &m),
                   PERIGEE_TOO_LARGE);
  ended(&p, 0, call, PERIGEE_TOO_LARGE);
  assert_int_equal(exposures, 0);
  link_close_places(&p, &s);
}

/* ---- Jobs ------------------------------------------------------------------ */

static uint32_t at_once; /* requests of one job that were under way together */

static int note_post(struct lane *lane, struct job *job,
                     const struct window *window, struct payload *remote,
                     struct payload *local, bool write) {
  int status = link_of->jobs->post(lane, job, window, remote, local, write);
  if (job->pending > at_once)
    at_once = job->pending;
  if (status == 1) /* both are the caller's again, for the next item */
    remote->base = local->base = NULL;
  return status;
}

static void items_are_posted_while_others_are_under_way(void **state) {
  struct pair p;
  struct sides s;
  noting_begin();
  noting_jobs.post = note_post;
  noting_open(&p, *state);
  sides_open(&p, &s, "kv");
  struct perigee_transfer t[] = {sides_item(&s, 0, 100000),
                                 sides_item(&s, 100000, 100000),
                                 sides_item(&s, 200000, 100000)};
  at_once = 0;
  sides_move(&p, PERIGEE_OP_WRITE, t, 3, 0);
  same(s.there, 0, s.bytes, 300000);
  assert_int_equal(at_once, 3);
  link_close_sides(&p, &s);
}

/* ---- Receives -------------------------------------------------------------- */

/* Gives up a receive while its message lands. Returns whether it has to wait
 * for a copy. */
static bool give_up(struct pair *p, struct places *s) {
  struct perigee_slice from = all_of(s->from, LARGE), to = all_of(s->to, LARGE);
  int recv = perigee_recv(p->session[1], &to, -1);
  struct operation *op = &p->engine[1]->table[recv];
  int send = perigee_send(p->session[0], &from, -1);
  while (op->arriving == 0)
    poll_side(p, 0), poll_side(p, 1);
  poll_side(p, 0);
  poll_side(p, 1);
  perigee_cancel(p->engine[1], recv);
  bool waits = op->quiet_wait;
  if (waits) /* the message ends it, and no poll has to step it */
    assert_null(op->queue.next);
  ended(p, 1, recv, PERIGEE_CANCELLED);
  perigee_cancel(p->engine[0], send);
  ended(p, 0, send, PERIGEE_CANCELLED);
  settle(p);
  return waits;
}

/* An entry of the table holds what its last operation has left in its unions. */
static void leave_traces(struct pair *p, struct places *s) {
  struct perigee_slice to = all_of(s->to, LARGE);
  int recv = perigee_recv(p->session[1], &to, -1);
  struct operation *op = &p->engine[1]->table[recv];
  perigee_cancel(p->engine[1], recv);
  ended(p, 1, recv, PERIGEE_CANCELLED);
  quiet(p, 2);
  assert_int_equal(op->kind, 0);
  memset(&op->parent, 0x7f,
         offsetof(struct operation, spreads) -
             offsetof(struct operation, parent));
}

static void a_receive_is_not_a_transfer(void **state) {
  struct pair p;
  struct places s;
  link_open_places(&p, *state, &s);
  bool waited = false;
  for (int i = 0; i < 1000 && !waited; i++) {
    leave_traces(&p, &s);
    waited = give_up(&p, &s);
  }
  assert_true(waited);
  link_close_places(&p, &s);
}

/* ---- Words ----------------------------------------------------------------- */

static int words[2]; /* by dialed: how many came there */

static int note_heard(struct lane *lane, const void *bytes, uint32_t length,
                      int fd) {
  assert_int_equal(fd, -1);
  assert_int_equal(length, 5);
  assert_memory_equal(bytes, "hello", 5);
  words[lane == lanes[1]]++;
  return PERIGEE_OK;
}

static void tell(int dialed) {
  given[dialed].tell(given[dialed].session, "hello", 5);
}

static int join_and_tell(struct lane *lane, const struct offer *offer,
                         char reason[REASON]) {
  int status = link_of->join(lane, offer, reason);
  tell(lane == lanes[1]);
  return status;
}

static void await_words(struct pair *p, int count) {
  int64_t end = clock_now() + 20000 * MS;
  while (words[0] < count || words[1] < count) {
    assert_true(clock_now() < end);
    quiet(p, 1);
  }
  assert_int_equal(words[0], count);
  assert_int_equal(words[1], count);
}

/* The first words come before READY, the second behind it. */
static void words_are_heard_before_and_after_ready(void **state) {
  struct pair p;
  words[0] = words[1] = 0;
  noting_begin();
  noting.join = join_and_tell;
  noting.heard = note_heard;
  noting_open(&p, *state);
  await_words(&p, 1);
  tell(0);
  tell(1);
  await_words(&p, 2);
  link_says(&p, 0, "link: payloads and one-sided copies");
  pair_close(&p);
}

/* The peer reads nothing meanwhile. What the lane tells is told in the midst of
 * its work, in which its session must not end. */
static void words_that_are_not_taken_end_nothing_by_themselves(void **state) {
  struct pair p;
  struct perigee_session_info info;
  int status = 0, taken = 0;
  words[0] = words[1] = 0;
  noting_begin();
  noting.heard = note_heard;
  noting_open(&p, *state);
  while (status == 0 && taken < 1000000) {
    status = given[1].tell(given[1].session, "hello", 5);
    taken += status == 0;
  }
  assert_int_equal(status, PERIGEE_AGAIN);
  perigee_session_describe(p.session[0], &info, sizeof info);
  assert_int_equal(info.state, PERIGEE_SESSION_OPEN);
  for (int64_t end = clock_now() + 20000 * MS; words[0] < taken; quiet(&p, 1))
    assert_true(clock_now() < end);
  pair_close(&p);
}

/* ---- A forked child --------------------------------------------------------- */

static int held[2]; /* by dialed: a descriptor of that half */

static int open_and_hold(const struct lane_options *options, struct lane **lane,
                         struct offer *offer, char reason[REASON]) {
  held[options->dialed] = dup(STDIN_FILENO);
  return note_open(options, lane, offer, reason);
}

static void let_go(struct lane *lane) {
  int *fd = &held[lane == lanes[1]];
  if (*fd >= 0)
    close(*fd);
  *fd = -1;
}

static void close_and_let_go(struct lane *lane) {
  let_go(lane);
  link_of->close(lane);
}

static void a_child_keeps_no_descriptor_of_it(void **state) {
  struct pair p;
  int status, before = descriptors();
  noting_begin();
  noting.open = open_and_hold;
  noting.close = close_and_let_go;
  noting.forked = let_go;
  noting_open(&p, *state);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    perigee_engine_close(p.engine[0]);
    perigee_engine_close(p.engine[1]);
    _exit(descriptors() - before);
  }
  waitpid(child, &status, 0);
  assert_int_equal(status, 0);
  assert_true(held[0] >= 0 && held[1] >= 0);
  link_round_trip(&p, LARGE); /* the parent notices nothing */
  link_counts(&p, 1, 1, 0);
  pair_close(&p);
}

#define OVER_SOME(test) OVER(over_shm, test), OVER(over_tcp, test)

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(over_shm, another_transport_has_its_place),
      OVER(over_tcp, another_transport_has_its_place),
      OVER_SOME(a_mark_stays_while_another_part_is_exposed),
      OVER_SOME(what_is_over_the_limit_is_not_exposed),
      OVER_SOME(items_are_posted_while_others_are_under_way),
      OVER_SOME(a_receive_is_not_a_transfer),
      OVER_ALL(words_are_heard_before_and_after_ready),
      OVER_SOME(words_that_are_not_taken_end_nothing_by_themselves),
      OVER_SOME(a_child_keeps_no_descriptor_of_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
