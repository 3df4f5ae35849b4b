/* SPDX-License-Identifier: Apache-2.0
 *
 * stress_mix_test.c - two engines in two threads of one process that call each
 * other, lend, send, receive, read and write at the same time, and sleep when
 * there is nothing to do. ThreadSanitizer watches; every byte is checked.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support.h"

enum { AREA = 256 * KIB, UNDER_WAY = 8, OFTEN = 10 };

enum work { IDLE, CALL, LOAN, SEND, READ, WRITE, JOBS };

struct side {
  const struct variant *variant;
  const char *address;
  pthread_t thread;
  struct perigee_engine *engine;
  struct perigee_session *session;
  struct perigee_region *own, *exported, *inbox;
  struct perigee_remote *remote;
  struct perigee_transfer transfers[UNDER_WAY];
  struct {
    enum work job;
    int operation;
    uint64_t length;
  } work[UNDER_WAY];
  bool dials, through, over;
  int open, receive;
  unsigned seed;
  uint64_t done[JOBS], served, received;
  int64_t since;
};

static atomic_bool listening;
static atomic_int found, ready, through; /* sides that are as far as that */

/* cmocka's assertions work only in the main thread. */
static void must(bool holds, const char *what, int line) {
  if (holds)
    return;
  fprintf(stderr, "stress_mix_test.c:%d: %s\n", line, what);
  abort();
}
#define MUST(expression) must(expression, #expression, __LINE__)

/* The bytes of a payload of this length, on both sides. */
static uint8_t byte_of(uint64_t length, uint64_t at) {
  return (uint8_t)(length * 31 + at * 7 + (at >> 9));
}

static void write_bytes(uint8_t *to, uint64_t length) {
  for (uint64_t i = 0; i < length; i++)
    to[i] = byte_of(length, i);
}

static void check_bytes(const uint8_t *from, uint64_t length) {
  for (uint64_t i = 0; i < length; i++)
    if (from[i] != byte_of(length, i))
      MUST(!"bytes as they were sent");
}

/* ---- Beginning ------------------------------------------------------------- */

static uint8_t *place(struct side *s, int i) {
  return perigee_region_pointer(s->own) + (uint64_t)i * AREA;
}

static struct perigee_slice part(struct perigee_region *region, int i,
                                 uint64_t length) {
  return (struct perigee_slice){
      {region}, (uint64_t)i * AREA, length, 1, length};
}

static int call(struct side *s, int i, uint64_t length) {
  struct perigee_message m = {.slice = part(s->own, i, length), .timeout = -1};
  write_bytes(place(s, i), length);
  return perigee_call(s->session, &m);
}

static int lend(struct side *s, uint64_t length) {
  struct perigee_message m = {.timeout = -1};
  struct perigee_loan loan;
  int status = perigee_call_begin(s->session, length, &loan);
  if (status < 0)
    return status;
  write_bytes(loan.pointer, length);
  return perigee_call_commit(s->session, &m, length);
}

/* Each place in the exported region has one user. */
static int move(struct side *s, int i, int operation, uint64_t length) {
  struct perigee_transfer *t = &s->transfers[i];
  *t = (struct perigee_transfer){
      .local = part(s->own, i, length),
      .remote = {{.remote = s->remote}, (uint64_t)i * AREA, length, 1, length}};
  if (operation == PERIGEE_OP_WRITE)
    write_bytes(place(s, i), length);
  return perigee_transfer(s->session, operation, t, 1, 0, -1);
}

static void finished(struct side *s, int i) {
  /* The next read of the same place reads what was written there. */
  s->done[s->work[i].job]++;
  s->work[i].job = IDLE;
  s->open--;
}

static void begin(struct side *s, int i) {
  enum work job = CALL + (enum work)(rand_r(&s->seed) % 5);
  uint64_t length =
      (uint64_t)rand_r(&s->seed) % (rand_r(&s->seed) % 16 ? 500 : AREA);
  struct perigee_slice slice = part(s->own, i, length);
  int op = PERIGEE_AGAIN;
  if (job == CALL)
    op = call(s, i, length);
  else if (job == LOAN)
    op = lend(s, length);
  else if (job == SEND) {
    write_bytes(place(s, i), length);
    op = perigee_send(s->session, &slice, -1);
  } else
    op = move(s, i, job == READ ? PERIGEE_OP_READ : PERIGEE_OP_WRITE, length);
  if (op == PERIGEE_AGAIN)
    return;
  MUST(op >= 0);
  s->work[i].job = job;
  s->work[i].operation = op;
  s->work[i].length = length;
  s->open++;
  if (op == PERIGEE_INLINE)
    finished(s, i);
}

static void receive(struct side *s) {
  struct perigee_slice all = {{s->inbox}, 0, AREA, 1, AREA};
  s->receive = perigee_recv(s->session, &all, -1);
}

/* ---- Serving and ending ------------------------------------------------------ */

static void answer(struct side *s, const struct perigee_event *e) {
  struct perigee_message r = {.head = e->pointer, .length = e->length};
  check_bytes(e->pointer, e->length);
  MUST(perigee_reply(s->engine, e->operation, &r) >= 0);
  s->served++;
}

static void done(struct side *s, const struct perigee_event *e) {
  if (e->operation == s->receive) {
    if (e->status == PERIGEE_OK) {
      check_bytes(perigee_region_pointer(s->inbox), e->length);
      s->received++;
      receive(s);
    }
    return;
  }
  int i = 0;
  while (i < UNDER_WAY &&
         (!s->work[i].job || s->work[i].operation != e->operation))
    i++;
  MUST(i < UNDER_WAY);
  MUST(e->status == PERIGEE_OK || s->over);
  if (e->kind == PERIGEE_EVENT_REPLY && e->status == PERIGEE_OK) {
    MUST(e->length == s->work[i].length);
    check_bytes(e->pointer, e->length);
  }
  finished(s, i);
}

static void handle(struct side *s, const struct perigee_event *e) {
  switch (e->kind) {
  case PERIGEE_EVENT_REQUEST:
    answer(s, e);
    break;
  case PERIGEE_EVENT_REPLY:
  case PERIGEE_EVENT_DONE:
    done(s, e);
    break;
  case PERIGEE_EVENT_LOST:
    s->over = true;
    break;
  default:
    break;
  }
}

/* ---- A side ------------------------------------------------------------------ */

static struct perigee_event event(struct side *s) {
  struct perigee_event e;
  while (perigee_poll(s->engine, &e, 1) == 0)
    perigee_wait(&s->engine, 1, 5000 * MS);
  return e;
}

static struct perigee_region *region(struct side *s, const char *name,
                                     int access) {
  struct perigee_region *region;
  MUST(perigee_region_alloc(s->engine, name, (uint64_t)UNDER_WAY * AREA, access,
                            NULL, &region) == 0);
  return region;
}

static void meet(struct side *s) {
  struct perigee_options o;
  struct perigee_listener *listener;
  variant_options(s->variant, &o);
  o.spin = 10000;
  MUST(perigee_engine_open(&o, &s->engine) == 0);
  s->own = region(s, NULL, 0);
  s->inbox = region(s, NULL, 0);
  s->exported = region(s, "exported", PERIGEE_READ | PERIGEE_WRITE);
  if (s->dials) {
    while (!atomic_load(&listening))
      usleep(1000);
    MUST(perigee_connect(s->engine, s->address, "shm", -1) >= 0);
  } else {
    MUST(perigee_listen(s->engine, s->address, &listener) == 0);
    atomic_store(&listening, true);
  }
  struct perigee_event e = event(s);
  MUST(e.status == 0);
  s->session = perigee_session(s->engine, e.session);
  MUST(perigee_lookup(s->session, "exported", -1) >= 0);
  e = event(s);
  MUST(e.kind == PERIGEE_EVENT_DONE && e.status == 0);
  s->remote = (struct perigee_remote *)(uintptr_t)e.pointer;
  /* Neither side begins before both have found what they need. */
  atomic_fetch_add(&found, 1);
  while (atomic_load(&found) < 2)
    MUST(perigee_poll(s->engine, &e, 1) == 0);
  atomic_fetch_add(&ready, 1);
  while (atomic_load(&ready) < 2)
    usleep(100);
  receive(s);
}

/* For how long new ones are begun: until each was done OFTEN enough. */
static bool goes_on(const struct side *s) {
  int64_t passed = clock_now() - s->since;
  bool often = true;
  for (int job = CALL; job < JOBS; job++)
    often = often && s->done[job] > OFTEN;
  return passed < 1500 * MS || (!often && passed < 60000 * MS);
}

static void *live(void *context) {
  struct side *s = context;
  meet(s);
  s->since = clock_now();
  while (!s->over) {
    struct perigee_event e[8];
    bool going = goes_on(s);
    for (int i = 0; going && i < UNDER_WAY; i++)
      if (s->work[i].job == IDLE && rand_r(&s->seed) % 4 == 0)
        begin(s, i);
    int n = perigee_poll(s->engine, e, 8);
    for (int i = 0; i < n; i++)
      handle(s, &e[i]);
    if (n == 0 && rand_r(&s->seed) % 16 == 0)
      perigee_wait(&s->engine, 1, 10 * MS);
    if (!going && s->open == 0 && !s->through) {
      s->through = true;
      atomic_fetch_add(&through, 1);
    }
    /* The dialer stays until the other's operations have ended. */
    if (s->dials && atomic_load(&through) == 2)
      perigee_session_close(s->session);
  }
  perigee_engine_close(s->engine);
  return NULL;
}

static void two_threads_do_everything_at_once(void **state) {
  static struct side sides[2];
  memset(sides, 0, sizeof sides);
  atomic_store(&listening, false);
  atomic_store(&found, 0);
  atomic_store(&ready, 0);
  atomic_store(&through, 0);
  for (int i = 0; i < 2; i++) {
    sides[i].variant = *state;
    sides[i].address = "";
    sides[i].dials = i == 0;
    sides[i].seed = (unsigned)clock_now() + (unsigned)i;
  }
  char address[80];
  snprintf(address, sizeof address, "unix:/tmp/perigee-mix-%d", getpid());
  unlink(address + strlen("unix:")); /* left by one that was killed */
  for (int i = 0; i < 2; i++) {
    sides[i].address = address;
    assert_int_equal(pthread_create(&sides[i].thread, NULL, live, &sides[i]),
                     0);
  }
  for (int i = 0; i < 2; i++) {
    struct side *s = &sides[i];
    pthread_join(s->thread, NULL);
    print_message("# %d calls, %d loans, %d sends, %d reads, %d writes, %d "
                  "served, %d received\n",
                  (int)s->done[CALL], (int)s->done[LOAN], (int)s->done[SEND],
                  (int)s->done[READ], (int)s->done[WRITE], (int)s->served,
                  (int)s->received);
    for (int job = CALL; job < JOBS; job++)
      assert_true(s->done[job] > OFTEN);
    assert_int_equal(s->open, 0);
  }
}

int main(void) {
  static const struct variant staged = {"staged", "shm", "host", 0, NULL};
  const struct CMUnitTest tests[] = {
      OVER(variant_default, two_threads_do_everything_at_once),
      OVER(staged, two_threads_do_everything_at_once),
  };
  return cmocka_run_group_tests_name("mix", tests, NULL, NULL);
}
