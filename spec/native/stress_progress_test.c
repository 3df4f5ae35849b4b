/* SPDX-License-Identifier: Apache-2.0
 *
 * stress_progress_test.c - engines with a thread of their own. It serves peers
 * while the program does other work, takes turns with a program that polls, and
 * does not touch what the program was given.
 */
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

#ifdef __SANITIZE_THREAD__
enum { CALLS = 10000, ROUNDS = 10 };
#else
enum { CALLS = 100000, ROUNDS = 40 };
#endif
enum { LENGTH = 300 * KIB, RW = PERIGEE_READ | PERIGEE_WRITE };

static uint8_t registered[LENGTH];

static void open_pair(struct pair *p, void *state) {
  struct perigee_options o;
  variant_options(state, &o);
  o.progress = 1;
  pair_open_with(p, state, &o);
}

/* From here on the program computes. */
static void leave(struct pair *p) {
  quiet(p, 2);
  p->still[1] = true;
}

static void move(struct pair *p, int operation, struct perigee_region *local,
                 struct perigee_remote *remote, uint64_t length) {
  struct perigee_transfer t = {
      .local = all_of(local, length),
      .remote = {{.remote = remote}, 0, length, 1, length}};
  finish(p, perigee_transfer(p->session[0], operation, &t, 1, 0, 10000 * MS),
         PERIGEE_OK);
}

/* ---- While the program is away ---------------------------------------------- */

static void regions_are_found_read_and_written(void **state) {
  struct pair p;
  open_pair(&p, *state);
  struct perigee_region *own, *here = region_of(&p, 0, NULL, LENGTH, 0);
  struct perigee_region *made = region_of(&p, 1, "made", LENGTH, RW);
  assert_int_equal(perigee_region_register(p.engine[1], "own", registered,
                                           LENGTH, RW, NULL, &own),
                   0);
  leave(&p);
  const char *names[] = {"own", "made"};
  for (int i = 0; i < 2; i++) {
    struct perigee_remote *remote = look_up(&p, names[i]);
    uint64_t lengths[] = {1, 5000, LENGTH};
    for (int k = 0; k < 3; k++) {
      uint8_t *bytes = pattern(LENGTH, (uint8_t)(i + k));
      fill(here, 0, bytes, LENGTH);
      move(&p, PERIGEE_OP_WRITE, here, remote, lengths[k]);
      fill_byte(here, 0);
      move(&p, PERIGEE_OP_READ, here, remote, lengths[k]);
      same(here, 0, bytes, lengths[k]);
      free(bytes);
    }
  }
  p.still[1] = false;
  settle(&p);
  region_end(own);
  region_end(made);
  region_end(here);
  pair_close(&p);
}

static void messages_come_into_receives(void **state) {
  struct pair p;
  open_pair(&p, *state);
  struct perigee_region *here = region_of(&p, 0, NULL, LENGTH, 0);
  struct perigee_region *inbox = region_of(&p, 1, NULL, LENGTH, 0);
  struct perigee_slice from = all_of(here, LENGTH), to = all_of(inbox, LENGTH);
  uint8_t *bytes = pattern(LENGTH, 3);
  fill(here, 0, bytes, LENGTH);
  leave(&p);
  int receive = perigee_recv(p.session[1], &to, -1);
  finish(&p, perigee_send(p.session[0], &from, 10000 * MS), PERIGEE_OK);
  same(inbox, 0, bytes, LENGTH);
  p.still[1] = false;
  assert_int_equal(ended(&p, 1, receive, PERIGEE_OK).length, LENGTH);
  free(bytes);
  region_end(here);
  region_end(inbox);
  pair_close(&p);
}

/* The next request; counts what became of replies that waited for room. */
static struct perigee_event request_next(struct pair *p, int *waiting) {
  struct perigee_event e;
  do {
    e = any_event(p, 1);
    *waiting -= e.kind == PERIGEE_EVENT_SENT;
  } while (e.kind == PERIGEE_EVENT_SENT);
  assert_int_equal(e.kind, PERIGEE_EVENT_REQUEST);
  return e;
}

/* Calls that block others behind them are accepted, and wait. */
static void calls_wait_for_the_program(void **state) {
  enum { MANY = 300 };
  struct pair p;
  open_pair(&p, *state);
  struct perigee_region *here = region_of(&p, 0, NULL, 64, 0);
  struct perigee_region *own = region_of(&p, 1, "own", 64, RW);
  struct perigee_remote *remote = look_up(&p, "own");
  leave(&p);
  int numbers[MANY]; /* looked at until there is room for them */
  for (int i = 0; i < MANY; i++) {
    numbers[i] = i;
    struct perigee_message m = {
        .head = &numbers[i], .length = sizeof i, .timeout = -1};
    assert_true(perigee_call(p.session[0], &m) >= 0);
  }
  move(&p, PERIGEE_OP_READ, here, remote, 64);
  p.still[1] = false;
  int waiting = 0;
  for (int i = 0; i < MANY; i++) {
    struct perigee_event e = request_next(&p, &waiting);
    struct perigee_message r = {.head = e.pointer, .length = e.length};
    assert_int_equal(e.length, sizeof i);
    assert_memory_equal(e.pointer, &i, sizeof i);
    int waits = perigee_reply(p.engine[1], e.operation, &r);
    assert_true(waits == 0 || waits == 1);
    waiting += waits;
    assert_memory_equal(e.pointer, &i, sizeof i);
  }
  for (int i = 0; i < MANY; i++) {
    struct perigee_event e = until(&p, 0, PERIGEE_EVENT_REPLY);
    assert_memory_equal(e.pointer, &i, sizeof i);
  }
  while (waiting-- > 0)
    until(&p, 1, PERIGEE_EVENT_SENT);
  settle(&p);
  region_end(here);
  region_end(own);
  pair_close(&p);
}

/* A handler that computes for long, while its session carries more than fits
 * into a ring. */
static void what_the_program_was_shown_stays(void **state) {
  struct pair p;
  open_pair(&p, *state);
  struct perigee_region *here = region_of(&p, 0, NULL, 4096, 0);
  struct perigee_region *own = region_of(&p, 1, "own", 4096, RW);
  struct perigee_remote *remote = look_up(&p, "own");
  uint8_t *bytes = pattern(5000, 9);
  struct perigee_message m = {.head = bytes, .length = 5000, .timeout = -1};
  int call = perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  struct perigee_loan loan;
  assert_int_equal(perigee_reply_begin(p.engine[1], e.operation, 100, &loan),
                   0);
  p.still[1] = true;
  for (int i = 0; i < 200; i++) {
    memset(loan.pointer, i, 100);
    move(&p, i % 2 ? PERIGEE_OP_READ : PERIGEE_OP_WRITE, here, remote, 4096);
    assert_memory_equal(e.pointer, bytes, 5000);
  }
  assert_true(perigee_reply_commit(p.engine[1], e.operation, 100) >= 0);
  assert_memory_equal(e.pointer, bytes, 5000);
  struct perigee_event r = ended(&p, 0, call, PERIGEE_OK);
  assert_int_equal(r.length, 100);
  assert_int_equal(r.pointer[99], 199);
  p.still[1] = false;
  settle(&p);
  free(bytes);
  region_end(here);
  region_end(own);
  pair_close(&p);
}

/* The next event of the listener's side, of any kind. */
static struct perigee_event any(struct pair *p) {
  struct perigee_event e = {0};
  for (int64_t end = clock_now() + 10000 * MS; !taken(p, 1, &e);) {
    assert_true(clock_now() < end);
    poll_side(p, 1);
  }
  return e;
}

/* Some of its calls were answered before, others arrive only now. */
static void a_caller_goes_in_the_midst_of_calls(void **state) {
  struct pair p;
  open_pair(&p, *state);
  uint8_t *bytes = pattern(20000, 5);
  for (int i = 0; i < 40; i++) {
    struct perigee_message m = {
        .head = bytes, .length = (uint64_t)i * 500, .timeout = -1};
    assert_true(perigee_call(p.session[0], &m) >= 0);
  }
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  perigee_engine_close(p.engine[0]);
  p.engine[0] = NULL;
  for (; e.kind == PERIGEE_EVENT_REQUEST; e = any(&p)) {
    struct perigee_message r = {.head = e.pointer, .length = e.length};
    usleep(e.length > 10000 ? 2000 : 0);
    assert_memory_equal(e.pointer, bytes, e.length);
    perigee_reply(p.engine[1], e.operation, &r);
    assert_memory_equal(e.pointer, bytes, e.length);
  }
  perigee_session_free(p.session[1]);
  p.session[1] = NULL;
  usleep(5000);
  quiet(&p, 10);
  assert_int_equal(perigee_counters(p.engine[1], NULL)->pooled, 0);
  assert_int_equal(operations(&p, 1), 0);
  pair_drop(&p);
  free(bytes);
}

static void own_operations_end_meanwhile(void **state) {
  struct pair p;
  open_pair(&p, *state);
  struct perigee_region *here = region_of(&p, 1, NULL, LENGTH, 0);
  struct perigee_region *theirs = region_of(&p, 0, NULL, LENGTH, 0);
  struct perigee_slice to = all_of(theirs, LENGTH), from = all_of(here, LENGTH);
  fill_byte(here, 7);
  leave(&p);
  int late = perigee_recv_imm(p.session[1], 300 * MS);
  int receive = perigee_recv(p.session[0], &to, 10000 * MS);
  int sent = perigee_send(p.session[1], &from, 10000 * MS);
  ended(&p, 0, receive, PERIGEE_OK);
  all_byte(theirs, 7);
  usleep(400000);
  p.still[1] = false;
  ended(&p, 1, sent, PERIGEE_OK);
  ended(&p, 1, late, PERIGEE_TIMEOUT);
  region_end(here);
  region_end(theirs);
  pair_close(&p);
}

/* ---- At once --------------------------------------------------------------- */

struct server {
  struct pair *p;
  unsigned seed;
  int served;
};

/* Now and then the program computes for longer than the thread waits. */
static void *serve(void *context) {
  struct server *s = context;
  struct perigee_engine *engine = s->p->engine[1];
  while (s->served < CALLS) {
    struct perigee_event e[8];
    int n = perigee_poll(engine, e, 8);
    for (int i = 0; i < n; i++) {
      struct perigee_message r = {.head = e[i].pointer, .length = e[i].length};
      if (e[i].kind == PERIGEE_EVENT_REQUEST &&
          perigee_reply(engine, e[i].operation, &r) >= 0)
        s->served++;
    }
    if (rand_r(&s->seed) % (CALLS / ROUNDS) == 0)
      usleep(rand_r(&s->seed) % 5000);
    else if (n == 0 && rand_r(&s->seed) % 64 == 0)
      perigee_wait(&engine, 1, 10 * MS);
  }
  return NULL;
}

static void calls_race_with_the_threads(void **state) {
  enum { WINDOW = 32 };
  static uint64_t sent[65536];
  struct pair p;
  open_pair(&p, *state);
  struct server s = {.p = &p, .seed = (unsigned)clock_now()};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, serve, &s), 0);
  int under_way = 0, done = 0, submitted = 0;
  while (done < CALLS) {
    while (submitted < CALLS && under_way < WINDOW) {
      uint64_t value = (uint64_t)submitted++ * 0x9e3779b97f4a7c15;
      struct perigee_message m = {
          .head = &value, .length = 8, .timeout = 20000 * MS};
      int op = perigee_call(p.session[0], &m);
      assert_true(op >= 0);
      sent[op] = value;
      under_way++;
    }
    struct perigee_event e[16];
    int n = perigee_poll(p.engine[0], e, 16);
    for (int i = 0; i < n; i++) {
      assert_int_equal(e[i].status, PERIGEE_OK);
      assert_memory_equal(e[i].pointer, &sent[e[i].operation], 8);
      under_way--;
      done++;
    }
    if (n == 0)
      perigee_wait(&p.engine[0], 1, 10 * MS);
  }
  pthread_join(thread, NULL);
  pair_close(&p);
}

static void it_is_closed_as_it_works(void **state) {
  for (int i = 0; i < ROUNDS; i++) {
    struct pair p;
    open_pair(&p, *state);
    struct perigee_region *here = region_of(&p, 0, NULL, 4096, 0);
    struct perigee_region *own = region_of(&p, 1, "own", 4096, RW);
    struct perigee_remote *remote = look_up(&p, "own");
    struct perigee_transfer t[16];
    (void)own;
    leave(&p);
    for (int k = 0; k < 16; k++) {
      t[k] = (struct perigee_transfer){
          .local = all_of(here, 4096),
          .remote = {{.remote = remote}, 0, 4096, 1, 4096}};
      assert_true(perigee_transfer(p.session[0], PERIGEE_OP_READ, &t[k], 1, 0,
                                   -1) >= 0);
    }
    usleep((unsigned)i * 100);
    perigee_engine_close(p.engine[i % 2]);
    perigee_engine_close(p.engine[1 - i % 2]);
  }
}

/* ---- What it is besides ------------------------------------------------------ */

/* Reads the line of a thread's status if that is an engine's. */
static void status_in(const char *path, const char *key, char value[64]) {
  char line[256];
  bool ours = false;
  FILE *f = fopen(path, "r");
  while (f && fgets(line, sizeof line, f)) {
    ours |= strcmp(line, "Name:\tperigee\n") == 0;
    if (ours && strncmp(line, key, strlen(key)) == 0)
      snprintf(value, 64, "%s", line + strlen(key));
  }
  if (f)
    fclose(f);
}

/* The line of the status of one of the engines' threads, or "". */
static void status_of_thread(const char *key, char value[64]) {
  char path[300];
  struct dirent *entry;
  DIR *tasks = opendir("/proc/self/task");
  assert_non_null(tasks);
  value[0] = 0;
  while (!value[0] && (entry = readdir(tasks))) {
    snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
    status_in(path, key, value);
  }
  closedir(tasks);
}

/* The mask of an engine's thread. The C library blocks BUS too until the thread
 * has begun, which may be long after it was made. */
static unsigned long mask_of_thread(unsigned long expected) {
  enum { LOOKS = 10000 };
  unsigned long blocked = 0;
  for (int i = 0; i < LOOKS && blocked != expected; i++) {
    char value[64];
    if (i)
      usleep(1000);
    status_of_thread("SigBlk:\t", value);
    blocked = strtoul(value, NULL, 16) & 0x7fffffff;
  }
  return blocked;
}

/* One that has been joined may be listed for a while. */
static bool is_there_after_its_end(void) {
  enum { LOOKS = 10000 };
  char value[64] = "?";
  for (int i = 0; i < LOOKS && value[0]; i++) {
    if (i)
      usleep(1000);
    status_of_thread("SigBlk:\t", value);
  }
  return value[0];
}

static void it_has_a_name_takes_no_signals_and_ends(void **state) {
  /* All but KILL and STOP, and BUS, which is of a file that was cut; beyond them
   * are those of the C library. */
  enum { BLOCKED = 0x7ffbfebf };
  struct perigee_options o;
  struct perigee_engine *engine;
  (void)state;
  perigee_options_init(&o, sizeof o);
  o.progress = 1;
  assert_int_equal(perigee_engine_open(&o, &engine), 0);
  assert_int_equal(mask_of_thread(BLOCKED), BLOCKED);
  perigee_engine_close(engine);
  assert_false(is_there_after_its_end());
  o.progress = 2;
  assert_int_equal(perigee_engine_open(&o, &engine), PERIGEE_INVALID);
}

/* How often the engine's thread has gone to sleep so far. */
static int sleeps(void) {
  char value[64];
  status_of_thread("voluntary_ctxt_switches:\t", value);
  return atoi(value);
}

/* A thread that spins is hardly ever found asleep, and one that wakes up for
 * nothing goes to sleep often. Both hold on a slow machine; the time that
 * threads have used does not, as it has the time of others in it. */
static void it_sleeps_when_there_is_nothing_to_do(void **state) {
  enum { LOOKS = 50, MOST_A_SECOND = 100 };
  char value[64];
  struct pair p;
  int asleep = 0;
  open_pair(&p, *state);
  leave(&p);
  usleep(20000);
  int64_t start = clock_now();
  int before = sleeps();
  for (int i = 0; i < LOOKS; i++) {
    usleep(10000);
    status_of_thread("State:\t", value);
    asleep += value[0] == 'S';
  }
  assert_in_range(asleep, LOOKS / 4, LOOKS); /* else it waits for a core */
  double seconds = (double)(clock_now() - start) / 1e9;
  assert_true(sleeps() - before < seconds * MOST_A_SECOND);
  pair_drop(&p);
}

/* One that spun would sleep never. */
static void programs_that_wait_sleep_beside_it(void **state) {
  struct rusage before, after;
  struct pair p;
  int found = 1;
  open_pair(&p, *state);
  struct perigee_engine *both[] = {p.engine[0], p.engine[1]};
  for (int i = 0; found > 0 && i < 1000; i++) {
    quiet(&p, 1);
    getrusage(RUSAGE_THREAD, &before);
    found = perigee_wait(both, 2, 300 * MS);
    getrusage(RUSAGE_THREAD, &after);
  }
  assert_int_equal(found, 0);
  assert_true(after.ru_nvcsw > before.ru_nvcsw);
  pair_drop(&p);
}

/* Programs with a loop of their own sleep on the descriptor. */
static void its_finds_wake_who_sleeps_by_the_descriptor(void **state) {
  struct pair p;
  open_pair(&p, *state);
  for (int i = 0; i < 20; i++) {
    struct perigee_message m = {.head = "x", .length = 1, .timeout = -1};
    quiet(&p, 2);
    while (perigee_arm(p.engine[1], NULL) == 1)
      quiet(&p, 1);
    p.still[1] = true;
    usleep((unsigned)(i % 4) * 1000);
    int call = perigee_call(p.session[0], &m);
    quiet(&p, 100);
    usleep((unsigned)(i % 3) * 3000);
    struct pollfd fd = {.fd = perigee_fd(p.engine[1]), .events = POLLIN};
    assert_int_equal(poll(&fd, 1, 5000), 1);
    p.still[1] = false;
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    assert_int_equal(perigee_reply(p.engine[1], e.operation, &m), 0);
    ended(&p, 0, call, PERIGEE_OK);
  }
  pair_close(&p);
}

static void strangers_come_and_go(void **state) {
  struct perigee_options o;
  struct perigee_engine *engine;
  struct perigee_listener *listener;
  (void)state;
  perigee_options_init(&o, sizeof o);
  o.progress = 1;
  o.sessions = 16;
  assert_int_equal(perigee_engine_open(&o, &engine), 0);
  assert_int_equal(perigee_listen(engine, "tcp://127.0.0.1:0", &listener), 0);
  const char *port = strrchr(perigee_listener_address(listener), ':') + 1;
  struct sockaddr_in to = {.sin_family = AF_INET,
                           .sin_port = htons((uint16_t)atoi(port)),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  for (int i = 0; i < 20 * ROUNDS; i++) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char end;
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    while (recv(fd, &end, 1, 0) > 0)
      ;
    close(fd);
  }
  assert_in_range(perigee_counters(engine, NULL)->sessions, 0, 15);
  perigee_engine_close(engine);
}

static void child(struct pair *p) {
  struct perigee_event e;
  struct perigee_message m = {.timeout = -1};
  bool refused = perigee_poll(p->engine[1], &e, 1) == PERIGEE_FORKED &&
                 perigee_wait(&p->engine[1], 1, 0) == PERIGEE_FORKED &&
                 perigee_call(p->session[1], &m) == PERIGEE_FORKED;
  perigee_session_close(p->session[1]);
  perigee_engine_close(p->engine[0]);
  perigee_engine_close(p->engine[1]);
  _exit(refused ? 0 : 1);
}

static void a_forked_child_has_none(void **state) {
  struct pair p;
  open_pair(&p, *state);
  struct perigee_region *here = region_of(&p, 0, NULL, 4096, 0);
  struct perigee_region *own = region_of(&p, 1, "own", 4096, RW);
  struct perigee_remote *remote = look_up(&p, "own");
  leave(&p);
  for (int i = 0; i < ROUNDS; i++) {
    struct perigee_transfer t = {
        .local = all_of(here, 4096),
        .remote = {{.remote = remote}, 0, 4096, 1, 4096}};
    int op =
        perigee_transfer(p.session[0], PERIGEE_OP_READ, &t, 1, 0, 10000 * MS);
    int status = -1, pid = fork();
    if (pid == 0)
      child(&p);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    finish(&p, op, PERIGEE_OK);
  }
  p.still[1] = false;
  settle(&p);
  region_end(here);
  region_end(own);
  pair_close(&p);
}

static void *publish(void *engine) {
  char path[64];
  snprintf(path, sizeof path, "/tmp/perigee-forks-%d.stats", getppid());
  for (int i = 0; i < 2000; i++)
    perigee_stats_publish(engine, i % 2 ? NULL : path, "forks");
  return NULL;
}

/* Engines with a thread come first in this process, files that are guarded
 * later. */
static void fork_beside_publications(void) {
  struct perigee_options o;
  struct perigee_engine *engine;
  pthread_t thread;
  alarm(60);
  perigee_options_init(&o, sizeof o);
  o.progress = 1;
  if (perigee_engine_open(&o, &engine) < 0 ||
      pthread_create(&thread, NULL, publish, engine))
    _exit(1);
  for (int i = 0; i < 500; i++) {
    pid_t pid = fork();
    if (pid == 0)
      _exit(0);
    waitpid(pid, NULL, 0);
  }
  pthread_join(thread, NULL);
  perigee_engine_close(engine);
  _exit(0);
}

static void forks_and_publications_do_not_wait_for_each_other(void **state) {
  int status;
  char path[64];
  (void)state;
  pid_t pid = fork();
  if (pid == 0)
    fork_beside_publications();
  assert_int_equal(waitpid(pid, &status, 0), pid);
  snprintf(path, sizeof path, "/tmp/perigee-forks-%d.stats", getpid());
  unlink(path);
  assert_int_equal(status, 0);
}

int main(void) {
  const struct CMUnitTest once[] = {
      /* first: nothing may have been guarded yet */
      cmocka_unit_test(forks_and_publications_do_not_wait_for_each_other),
      cmocka_unit_test(it_has_a_name_takes_no_signals_and_ends),
      cmocka_unit_test(strangers_come_and_go)};
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(regions_are_found_read_and_written),
      cmocka_unit_test(messages_come_into_receives),
      cmocka_unit_test(calls_wait_for_the_program),
      cmocka_unit_test(what_the_program_was_shown_stays),
      cmocka_unit_test(a_caller_goes_in_the_midst_of_calls),
      cmocka_unit_test(own_operations_end_meanwhile),
      cmocka_unit_test(calls_race_with_the_threads),
      cmocka_unit_test(it_is_closed_as_it_works),
      cmocka_unit_test(it_sleeps_when_there_is_nothing_to_do),
      cmocka_unit_test(programs_that_wait_sleep_beside_it),
      cmocka_unit_test(its_finds_wake_who_sleeps_by_the_descriptor),
      cmocka_unit_test(a_forked_child_has_none)};
  /* "inproc" counts polls, so sleeping does not work over it. */
  setenv("PERIGEE_TEST_TRANSPORTS", "shm,tcp", 0);
  int failed = cmocka_run_group_tests_name("progress", once, NULL, NULL);
  return RUN_MATRIX("progress, by transports", tests) + failed;
}
