/* SPDX-License-Identifier: Apache-2.0
 *
 * thread_test.c - an engine's own thread (option progress), seen from outside:
 * which waits it wakes, and what peers are told. eventfd_write is replaced by a
 * function that counts. And an engine without one, which two threads use.
 */
#include "session/sessions.h"
#include "support.h"
#include "transport/tcp/tcp.h"

#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STRANGERS = 8 };

static atomic_int wakes;

int eventfd_write(int fd, eventfd_t value) {
  wakes++;
  return write(fd, &value, sizeof value) == sizeof value ? 0 : -1;
}

static struct perigee_engine *engine_with_thread(void) {
  struct perigee_engine *engine;
  struct perigee_options o;
  perigee_options_init(&o, sizeof o);
  o.secret = "sixteen letters of secret";
  o.progress = 1;
  assert_int_equal(perigee_engine_open(&o, &engine), 0);
  return engine;
}

/* Longer than the thread waits before it takes over and sleeps. */
static void let_it_sleep(void) {
  const struct timespec t = {0, 50 * MS};
  nanosleep(&t, NULL);
}

/* A connection that is no peer comes and is refused. */
static void stranger(int port) {
  struct sockaddr_in in = {.sin_family = AF_INET,
                           .sin_port = htons((uint16_t)port),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  char byte;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof in), 0);
  assert_int_equal(send(fd, "\n\n\n\n\n\n\n\n", 8, MSG_NOSIGNAL), 8);
  while (recv(fd, &byte, 1, 0) > 0)
    ;
  close(fd);
}

/* The thread would do nothing for a moment then, as if the program were
 * there. */
static void it_does_not_wake_itself(void **state) {
  (void)state;
  struct perigee_engine *engine = engine_with_thread();
  struct perigee_listener *listener;
  assert_int_equal(perigee_listen(engine, "tcp://127.0.0.1:0", &listener), 0);
  int port = atoi(strrchr(perigee_listener_address(listener), ':') + 1);
  let_it_sleep();
  int before = wakes;
  for (int i = 0; i < STRANGERS; i++) {
    stranger(port);
    let_it_sleep();
  }
  assert_int_equal(perigee_counters(engine, NULL)->refused, STRANGERS);
  assert_int_equal(wakes, before);
  perigee_engine_close(engine);
  assert_true(wakes > before);
}

/* ---- What went wrong in a turn of the thread's ------------------------------- */

enum { CALLS = 60, MOST = MIB, EAGER = 8 * KIB };

/* The second has a thread. */
static void open_beside_one(struct pair *p, void *state) {
  struct perigee_options o;
  variant_options(state, &o);
  *p = (struct pair){.variant = state};
  o.message = MOST;
  o.eager = EAGER;
  o.ring = 64 * KIB;
  assert_int_equal(perigee_engine_open(&o, &p->engine[0]), 0);
  o.progress = 1;
  assert_int_equal(perigee_engine_open(&o, &p->engine[1]), 0);
  pair_listen(p);
  pair_dial(p, p->session);
}

static void call_often(struct pair *p) {
  struct perigee_message m = {.timeout = -1};
  for (int i = 0; i < CALLS; i++)
    assert_true(perigee_call(p->session[0], &m) >= 0);
}

static struct perigee_event request(struct pair *p) {
  struct perigee_event e;
  do {
    poll_side(p, 0);
    poll_side(p, 1);
  } while (!taken(p, 1, &e) || e.kind != PERIGEE_EVENT_REQUEST);
  return e;
}

/* The caller's ring is full of short replies, so the long ones wait. */
static void answer_at_length(struct pair *p, const uint8_t *bytes) {
  for (int i = 0; i < CALLS; i++) {
    struct perigee_event e = request(p);
    struct perigee_message r = {.head = bytes,
                                .length = i < CALLS / 2 ? EAGER : MOST + 1};
    assert_true(perigee_reply(p->engine[1], e.operation, &r) >= 0);
  }
}

/* The program's own errors are not reported to the peer. */
static void peers_are_told_what_went_wrong_with_their_calls(void **state) {
  struct perigee_listener *none;
  struct perigee_event e;
  struct pair p;
  open_beside_one(&p, *state);
  uint8_t *bytes = pattern(MOST + 1, 1);
  call_often(&p);
  p.still[0] = true;
  answer_at_length(&p, bytes);
  assert_true(perigee_listen(p.engine[1], "the program's own", &none) < 0);
  p.still[0] = false;
  p.still[1] = true;
  for (int i = 0; i < CALLS; i++) {
    while (!taken(&p, 0, &e))
      poll_side(&p, 0);
    if (i < CALLS / 2) {
      assert_int_equal(e.status, PERIGEE_OK);
      continue;
    }
    assert_int_equal(e.status, PERIGEE_TOO_LARGE);
    assert_memory_equal(e.pointer, "1048577 bytes are more", 22);
  }
  free(bytes);
  pair_drop(&p);
}

/* ---- What the program was shown ---------------------------------------------- */

enum { LONG = 64 * KIB };

static int call_with(struct pair *p, const uint8_t *bytes) {
  struct perigee_message m = {.head = bytes, .length = LONG, .timeout = -1};
  int op = perigee_call(p->session[0], &m);
  assert_true(op >= 0);
  return op;
}

/* Is it read where the socket's read put it? */
static bool is_in_place(const struct pair *p, const struct perigee_event *e) {
  if (strcmp(p->variant->transport, "tcp") != 0)
    return false;
  const struct perigee_session *s = perigee_session(p->engine[1], e->session);
  for (int i = 0; i < TCP_AHEADS; i++)
    if (s->lane->aheads[i].lent && s->lane->aheads[i].at == e->pointer)
      return true;
  return false;
}

/* Returns a request that is. Others like it came before. */
static struct perigee_event in_place(struct pair *p, const uint8_t *bytes) {
  struct perigee_message r = {.head = bytes, .length = 8};
  for (int i = 0; i < 100; i++) {
    int op = call_with(p, bytes);
    struct perigee_event e = request(p);
    if (is_in_place(p, &e))
      return e;
    assert_true(perigee_reply(p->engine[1], e.operation, &r) >= 0);
    ended(p, 0, op, PERIGEE_OK);
  }
  fail_msg("no request was read in place");
  return (struct perigee_event){0};
}

enum { OTHERS = 3 };
enum answer { SHORT, AS_LONG, BY_LOAN, ANSWERS };

static void answer_by(struct pair *p, const struct perigee_event *e,
                      enum answer how, const uint8_t *bytes) {
  struct perigee_message r = {.head = bytes, .length = how == SHORT ? 8 : LONG};
  struct perigee_loan loan;
  if (how != BY_LOAN) {
    assert_true(perigee_reply(p->engine[1], e->operation, &r) >= 0);
    return;
  }
  assert_int_equal(perigee_reply_begin(p->engine[1], e->operation, LONG, &loan),
                   0);
  memcpy(loan.pointer, bytes, LONG);
  assert_true(perigee_reply_commit(p->engine[1], e->operation, LONG) >= 0);
}

/* Answers a request, which has these bytes. The thread receives others like it
 * meanwhile, and the request has its bytes still. */
static void stays(struct pair *p, const struct perigee_event *e,
                  enum answer how, uint8_t *const bytes[2]) {
  answer_by(p, e, how, bytes[1]);
  p->still[1] = true;
  until(p, 0, PERIGEE_EVENT_REPLY);
  poll_side(p, 0);
  let_it_sleep();
  uint64_t served = perigee_counters(p->engine[1], NULL)->served;
  for (int i = 0; i < OTHERS; i++)
    call_with(p, bytes[1]);
  while (perigee_counters(p->engine[1], NULL)->served < served + OTHERS)
    poll_side(p, 0);
  assert_memory_equal(e->pointer, bytes[0], LONG);
}

/* All blocks are given back once the program polls. */
static void all_is_given_back(struct pair *p, const uint8_t *bytes) {
  p->still[1] = false;
  for (int i = 0; i < OTHERS; i++) {
    struct perigee_event e = request(p);
    assert_memory_equal(e.pointer, bytes, LONG);
    answer_by(p, &e, SHORT, bytes);
  }
  for (int i = 0; i < OTHERS; i++)
    until(p, 0, PERIGEE_EVENT_REPLY);
  pair_close(p);
}

static void
a_request_stays_until_the_program_polls_however_it_is_answered(void **state) {
  uint8_t *bytes[] = {pattern(LONG, 1), pattern(LONG, 2)};
  for (int how = 0; how < ANSWERS; how++) {
    struct pair p;
    open_beside_one(&p, *state);
    call_with(&p, bytes[0]);
    struct perigee_event e = request(&p);
    assert_false(is_in_place(&p, &e));
    stays(&p, &e, how, bytes);
    all_is_given_back(&p, bytes[1]);
  }
  free(bytes[0]);
  free(bytes[1]);
}

/* The thread receives so many calls, and copies what they bring. */
static void short_calls_come(struct pair *p, const char *text, uint32_t count) {
  uint64_t served = perigee_counters(p->engine[1], NULL)->served;
  struct perigee_message m = {
      .head = text, .length = strlen(text), .timeout = -1};
  for (uint32_t i = 0; i < count; i++)
    assert_true(perigee_call(p->session[0], &m) >= 0);
  while (perigee_counters(p->engine[1], NULL)->served < served + count)
    let_it_sleep();
}

/* The caller's ring is full, so the reply is copied. */
static void a_request_stays_while_its_reply_waits(void **state) {
  struct pair p;
  struct perigee_event e;
  uint8_t *bytes = pattern(EAGER, 1);
  struct perigee_message r = {.head = bytes, .length = EAGER};
  open_beside_one(&p, *state);
  p.still[0] = true;
  short_calls_come(&p, "first", CALLS / 2);
  for (int i = 0; i < CALLS / 2; i++) {
    e = request(&p);
    assert_true(perigee_reply(p.engine[1], e.operation, &r) >= 0);
  }
  short_calls_come(&p, "later", CALLS / 2);
  assert_memory_equal(e.pointer, "first", 5);
  free(bytes);
  pair_drop(&p);
}

static void a_request_in_place_stays_until_the_program_polls(void **state) {
  uint8_t *bytes[] = {pattern(LONG, 1), pattern(LONG, 2)};
  for (int how = 0; how < ANSWERS; how++) {
    struct pair p;
    open_beside_one(&p, *state);
    struct perigee_event e = in_place(&p, bytes[0]);
    stays(&p, &e, how, bytes);
    all_is_given_back(&p, bytes[1]);
  }
  free(bytes[0]);
  free(bytes[1]);
}

/* ---- Threads of the program ------------------------------------------------ */

static void *wait_long(void *engine) {
  struct perigee_engine *e = engine;
  perigee_wait(&e, 1, 10000 * (int64_t)MS);
  return NULL;
}

/* Uses the engine while another thread sleeps in it, as a program may not. It is
 * told by the one of the two that comes while the other is there. */
static void use_it_together(struct perigee_engine *engine, int says) {
  pthread_t other;
  struct perigee_event event;
  dup2(says, 2);
  signal(SIGABRT, SIG_DFL);
  alarm(30);
  if (pthread_create(&other, NULL, wait_long, engine))
    _exit(1);
  for (;;) {
    let_it_sleep();
    perigee_poll(engine, &event, 1);
  }
}

static void two_threads_at_the_same_time_are_told(void **state) {
  (void)state;
#ifndef PERIGEE_DEBUG
  skip();
#endif
  int said[2], status;
  char text[200] = "";
  assert_int_equal(pipe(said), 0);
  pid_t child = fork();
  if (child == 0) {
    struct perigee_engine *engine;
    if (perigee_engine_open(NULL, &engine) == 0)
      use_it_together(engine, said[1]);
    _exit(1);
  }
  close(said[1]);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  assert_true(read(said[0], text, sizeof text - 1) > 0);
  assert_non_null(strstr(text, "two threads use one engine"));
  close(said[0]);
}

static void *poll_once(void *engine) {
  struct perigee_event event;
  perigee_poll(engine, &event, 1);
  return NULL;
}

static void threads_may_take_turns(void **state) {
  (void)state;
  struct perigee_engine *engine;
  assert_int_equal(perigee_engine_open(NULL, &engine), 0);
  for (int i = 0; i < 3; i++) {
    pthread_t other;
    poll_once(engine);
    assert_int_equal(pthread_create(&other, NULL, poll_once, engine), 0);
    pthread_join(other, NULL);
  }
  perigee_engine_close(engine);
}

static const struct variant over_tcp = {"tcp", "tcp", "host", 1, NULL};

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(it_does_not_wake_itself),
      cmocka_unit_test(two_threads_at_the_same_time_are_told),
      cmocka_unit_test(threads_may_take_turns),
      OVER(variant_default, peers_are_told_what_went_wrong_with_their_calls),
      OVER(variant_default,
           a_request_stays_until_the_program_polls_however_it_is_answered),
      OVER(over_tcp,
           a_request_stays_until_the_program_polls_however_it_is_answered),
      OVER(variant_default, a_request_stays_while_its_reply_waits),
      OVER(over_tcp, a_request_in_place_stays_until_the_program_polls),
  };
  return cmocka_run_group_tests_name("thread", tests, NULL, NULL);
}
