/* SPDX-License-Identifier: Apache-2.0
 *
 * stats_test.c - an engine's stats file, as another process reads it: what is
 * counted, what is under way, what a process that was killed did last; and files
 * that others have cut, replaced or left no room for.
 */
#include "stats.h"
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { METHOD = 7, OTHER = 8, UNKNOWN = 9 };

struct fixture {
  struct pair pair;
  char folder[32], path[64];
};

/* A file as its readers see it. */
struct reading {
  const uint8_t *bytes;
  size_t length;
  const struct perigee_stats_head *head;
};

static void pause_ms(int64_t ms) {
  nanosleep(&(struct timespec){.tv_nsec = ms * MS}, NULL);
}

static void open_folder(struct fixture *f) {
  strcpy(f->folder, "/tmp/stats-XXXXXX");
  assert_non_null(mkdtemp(f->folder));
  snprintf(f->path, sizeof f->path, "%s/a.stats", f->folder);
}

static void open_fixture(struct fixture *f, void *state) {
  pair_open(&f->pair, state);
  open_folder(f);
}

/* With engines that have threads of their own. */
static void open_threads(struct fixture *f, void *state) {
  struct perigee_options o;
  variant_options(state, &o);
  o.progress = 1;
  pair_open_with(&f->pair, state, &o);
  open_folder(f);
}

static void close_fixture(struct fixture *f) {
  char last[80];
  pair_close(&f->pair);
  snprintf(last, sizeof last, "%s.last", f->path);
  assert_int_not_equal(access(f->path, F_OK), 0);
  unlink(last);
  assert_int_equal(rmdir(f->folder), 0);
}

static void publish(struct fixture *f, int side) {
  int status = perigee_stats_publish(f->pair.engine[side], f->path, "scope");
  assert_string_equal(status < 0 ? perigee_detail(f->pair.engine[side]) : "",
                      "");
}

static struct reading reading_of(const char *path) {
  struct stat s = {0};
  int file = open(path, O_RDONLY);
  assert_true(file >= 0);
  assert_int_equal(fstat(file, &s), 0);
  struct reading r = {.length = (size_t)s.st_size};
  r.bytes = mmap(NULL, r.length, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  assert_ptr_not_equal(r.bytes, MAP_FAILED);
  r.head = (const void *)r.bytes;
  assert_memory_equal(r.head->magic, PERIGEE_STATS_MAGIC, 8);
  assert_int_equal(r.head->version, PERIGEE_STATS_VERSION);
  assert_int_equal(r.head->length, r.length);
  return r;
}

static void close_reading(struct reading *r) {
  munmap((void *)(uintptr_t)r->bytes, r->length);
}

static const void *row(const struct reading *r,
                       const struct perigee_stats_table *table, uint64_t n) {
  assert_true(n < table->rows);
  assert_true(table->offset + (n + 1) * table->row <= r->length);
  return r->bytes + table->offset + n * table->row;
}

static const struct perigee_stats_method *
method_named(const struct reading *r, uint64_t used, const char *name) {
  for (uint64_t i = 0; i < r->head->methods.rows; i++) {
    const struct perigee_stats_method *m = row(r, &r->head->methods, i);
    if (m->used == used && strcmp(m->method, name) == 0)
      return m;
  }
  fail_msg("no method %s", name);
  return NULL;
}

static uint64_t number_of(const struct reading *r,
                          const struct perigee_stats_method *m) {
  return (uint64_t)((const uint8_t *)m - r->bytes - r->head->methods.offset) /
         r->head->methods.row;
}

static uint64_t ends_of(const struct perigee_stats_method *m) {
  uint64_t ends = 0;
  for (int i = 0; i < PERIGEE_STATS_STATUSES; i++)
    ends += m->ends[i];
  return ends;
}

static const struct perigee_stats_event *last_event(const struct reading *r) {
  return row(r, &r->head->events,
             (r->head->events_given - 1) % r->head->events.rows);
}

static void name_methods(struct pair *p) {
  for (int i = METHOD; i <= OTHER; i++) {
    const char *name = i == METHOD ? "echo" : "other";
    assert_int_equal(perigee_stats_method(p->engine[0], p->session[0],
                                          (uint16_t)i, "s", name),
                     0);
    assert_int_equal(
        perigee_stats_method(p->engine[1], NULL, (uint16_t)i, "s", name), 0);
  }
}

static void call(struct pair *p, uint16_t method, int status) {
  struct perigee_message m = {
      .method = method, .head = "hello", .length = 5, .timeout = 60000 * MS};
  int op = perigee_call(p->session[0], &m);
  assert_true(op >= 0);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  struct perigee_message reply = {
      .status = status, .head = "done!!", .length = status ? 0 : 6};
  assert_true(perigee_reply(p->engine[1], e.operation, &reply) >= 0);
  assert_int_equal(until(p, 0, PERIGEE_EVENT_REPLY).status, status);
  quiet(p, 1); /* a poll after its event counts it */
}

/* ---- Who waits ---------------------------------------------------------- */

static void
one_that_sleeps_by_its_descriptor_is_told_from_a_busy_one(void **state) {
  struct fixture f;
  open_fixture(&f, *state);
  publish(&f, 1);
  struct reading r = reading_of(f.path);
  assert_int_not_equal(r.head->looked, 0);
  while (perigee_arm(f.pair.engine[1], NULL) == 1)
    quiet(&f.pair, 1);
  assert_int_not_equal(r.head->asleep, 0);
  call(&f.pair, METHOD, 0);
  assert_int_equal(r.head->asleep, 0);
  close_reading(&r);
  close_fixture(&f);
}

/* Its thread looks at the sockets a moment later, and then sleeps, too. */
static void nor_is_one_busy_that_has_a_thread(void **state) {
  struct fixture f;
  open_threads(&f, *state);
  publish(&f, 1);
  struct reading r = reading_of(f.path);
  while (perigee_arm(f.pair.engine[1], NULL) == 1)
    quiet(&f.pair, 1);
  pause_ms(50);
  assert_int_not_equal(r.head->asleep, 0);
  close_reading(&r);
  close_fixture(&f);
}

/* ---- What others ask for ------------------------------------------------ */

static void ask_for_level(const char *path, uint64_t level) {
  int file = open(path, O_WRONLY);
  assert_true(file >= 0);
  assert_int_equal(pwrite(file, &level, sizeof level,
                          offsetof(struct perigee_stats_head, log_asked)),
                   sizeof level);
  close(file);
}

static void a_level_is_what_others_ask_for_if_it_is_one(void **state) {
  struct fixture f;
  open_fixture(&f, *state);
  struct perigee_engine *engine = f.pair.engine[0];
  assert_int_equal(perigee_log_level(engine, PERIGEE_STATS_INFO), 0);
  publish(&f, 0);
  struct reading r = reading_of(f.path);
  assert_int_equal(r.head->log_own, PERIGEE_STATS_INFO);
  for (uint64_t level = 0; level <= PERIGEE_STATS_DEBUG; level++) {
    ask_for_level(f.path, level);
    assert_int_equal(perigee_log_level(engine, 2), level);
  }
  assert_int_equal(r.head->log_own, 2);
  const uint64_t none[] = {5, UINT64_MAX, UINT64_C(1) << 32 | 4, INT64_MIN};
  for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
    ask_for_level(f.path, none[i]);
    assert_int_equal(perigee_log_level(engine, 2), 0);
  }
  ask_for_level(f.path, PERIGEE_STATS_DEBUG);
  assert_int_equal(truncate(f.path, 0), 0);
  assert_int_equal(perigee_log_level(engine, 2), 0);
  close_reading(&r);
  close_fixture(&f);
}

/* ---- What is counted ---------------------------------------------------- */

static void each_method_has_its_calls_bytes_and_ends(void **state) {
  struct fixture f;
  open_fixture(&f, *state);
  for (int side = 0; side < 2; side++) {
    publish(&f, side);
    name_methods(&f.pair);
    for (int i = 0; i < 500; i++)
      call(&f.pair, METHOD, i % 5 ? 0 : PERIGEE_DENIED);
    for (int i = 0; i < 30; i++)
      call(&f.pair, i % 3 ? OTHER : UNKNOWN, 0);
    struct reading r = reading_of(f.path);
    uint64_t times = (uint64_t)side + 1, all = 0;
    const struct perigee_stats_method *m = method_named(&r, times, "echo");
    assert_int_equal(m->ends[0], 400 * times);
    assert_int_equal(m->ends[-PERIGEE_DENIED], 100 * times);
    assert_int_equal(side ? m->bytes_in : m->bytes_out, 2500 * times);
    assert_int_equal(side ? m->bytes_out : m->bytes_in, 2400 * times);
    assert_string_equal(m->service, "s");
    for (uint64_t i = 0; i < r.head->methods.rows; i++)
      all += ends_of(row(&r, &r.head->methods, i));
    assert_int_equal(all, 530 * times);
    const struct perigee_stats_method *none = row(&r, &r.head->methods, 0);
    assert_int_equal(ends_of(none), 10 * times);
    close_reading(&r);
    if (side == 0) { /* the other side has the file from now on */
      perigee_session_close(f.pair.session[0]);
      pair_drop(&f.pair);
      assert_int_not_equal(access(f.path, F_OK), 0);
      pair_open(&f.pair, *state);
      name_methods(&f.pair);
      for (int i = 0; i < 500; i++)
        call(&f.pair, METHOD, i % 5 ? 0 : PERIGEE_DENIED);
      for (int i = 0; i < 30; i++)
        call(&f.pair, i % 3 ? OTHER : UNKNOWN, 0);
    }
  }
  close_fixture(&f);
}

/* The caller gets PROTOCOL for it. */
static void a_status_without_a_name_is_counted_as_protocol(void **state) {
  struct fixture f;
  open_fixture(&f, *state);
  publish(&f, 1);
  name_methods(&f.pair);
  struct perigee_message m = {
      .method = METHOD, .head = "x", .length = 1, .timeout = 60000 * MS};
  int statuses[] = {-1000, -24, INT32_MIN, 7};
  for (int i = 0; i < 4; i++) {
    assert_true(perigee_call(f.pair.session[0], &m) >= 0);
    struct perigee_event e = until(&f.pair, 1, PERIGEE_EVENT_REQUEST);
    perigee_reply(f.pair.engine[1], e.operation,
                  &(struct perigee_message){.status = statuses[i], .head = ""});
    e = until(&f.pair, 0, PERIGEE_EVENT_REPLY);
    assert_int_equal(e.status, PERIGEE_PROTOCOL);
  }
  struct reading r = reading_of(f.path);
  const struct perigee_stats_method *echo = method_named(&r, 2, "echo");
  assert_int_equal(echo->ends[-PERIGEE_PROTOCOL], 4);
  assert_int_equal(echo->bytes_out, 0);
  close_reading(&r);
  close_fixture(&f);
}

static void a_call_whose_caller_went_away_is_counted_by_method(void **state) {
  struct fixture f;
  open_fixture(&f, *state);
  publish(&f, 1);
  name_methods(&f.pair);
  struct reading r = reading_of(f.path);
  const struct perigee_stats_method *echo = method_named(&r, 2, "echo");
  struct perigee_message m = {
      .method = METHOD, .head = "x", .length = 1, .timeout = -1};
  assert_true(perigee_call(f.pair.session[0], &m) >= 0);
  struct perigee_event e = until(&f.pair, 1, PERIGEE_EVENT_REQUEST);
  perigee_session_free(f.pair.session[0]);
  perigee_session_free(f.pair.session[1]);
  quiet(&f.pair, 10);
  assert_int_equal(ends_of(echo), 0);
  assert_int_equal(perigee_reply(f.pair.engine[1], e.operation,
                                 &(struct perigee_message){.head = ""}),
                   PERIGEE_PEER_LOST);
  assert_int_equal(echo->ends[-PERIGEE_PEER_LOST], 1);
  assert_int_equal(ends_of(echo), 1);
  assert_int_equal(echo->bytes_in, 1);
  close_reading(&r);
  pair_dial(&f.pair, f.pair.session);
  close_fixture(&f);
}

/* The caller takes no reply that is so long. */
static void
a_reply_that_cannot_be_sent_counts_as_what_the_caller_gets(void **state) {
  static char bytes[100000];
  struct fixture f;
  struct perigee_options o = {0};
  open_fixture(&f, *state);
  pair_drop(&f.pair);
  variant_options(*state, &o);
  o.message = sizeof bytes / 2;
  pair_open_with(&f.pair, *state, &o);
  publish(&f, 1);
  name_methods(&f.pair);
  struct perigee_message m = {
      .method = METHOD, .head = "x", .length = 1, .timeout = 60000 * MS};
  assert_true(perigee_call(f.pair.session[0], &m) >= 0);
  struct perigee_event e = until(&f.pair, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(perigee_reply(f.pair.engine[1], e.operation,
                                 &(struct perigee_message){
                                     .head = bytes, .length = sizeof bytes}),
                   PERIGEE_TOO_LARGE);
  e = until(&f.pair, 0, PERIGEE_EVENT_REPLY);
  assert_int_equal(e.status, PERIGEE_TOO_LARGE);
  struct reading r = reading_of(f.path);
  const struct perigee_stats_method *echo = method_named(&r, 2, "echo");
  assert_int_equal(echo->ends[-PERIGEE_TOO_LARGE], 1);
  assert_int_equal(ends_of(echo), 1);
  assert_int_equal(echo->bytes_out, 0);
  close_reading(&r);
  close_fixture(&f);
}

static void a_session_has_the_counters_that_the_program_sees(void **state) {
  struct fixture f;
  open_fixture(&f, *state);
  call(&f.pair, METHOD, 0);
  publish(&f, 0);
  for (int i = 0; i < 10; i++)
    call(&f.pair, METHOD, 0);
  struct reading r = reading_of(f.path);
  const struct perigee_stats_session *s = row(&r, &r.head->sessions, 0);
  const struct perigee_counters *c =
      perigee_counters(f.pair.engine[0], f.pair.session[0]);
  assert_int_equal(s->id, perigee_session_id(f.pair.session[0]));
  assert_int_equal(s->state, PERIGEE_SESSION_OPEN);
  assert_int_equal(s->counters.calls, 11);
  assert_memory_equal(&s->counters, c, sizeof *c);
  assert_int_equal(s->epoch, perigee_epoch(f.pair.engine[1]));
  perigee_session_close(f.pair.session[1]);
  until(&f.pair, 1, PERIGEE_EVENT_LOST);
  until(&f.pair, 0, PERIGEE_EVENT_LOST);
  assert_int_equal(s->state, PERIGEE_SESSION_ENDED);
  assert_true(s->ended >= s->opened && s->status > 0 && *s->reason);
  perigee_session_free(f.pair.session[0]);
  quiet(&f.pair, 3);
  assert_int_equal(s->counters.calls,
                   11); /* it stays until the row is needed */
  assert_int_equal(perigee_counters(f.pair.engine[0], NULL)->calls, 11);
  for (uint64_t i = 0; i < sizeof *c / sizeof(uint64_t); i++)
    assert_int_not_equal(*(const char *)row(&r, &r.head->names, i), 0);
  const struct perigee_counters *own = row(&r, &r.head->counters, 0);
  assert_int_equal(own->size, sizeof *own);
  assert_int_equal(own->calls, 11);
  close_reading(&r);
  pair_drop(&f.pair);
  pair_open(&f.pair, *state);
  close_fixture(&f);
}

/* Side 1 does not read. */
static int call_unread(struct pair *p, int64_t timeout) {
  static const uint8_t bytes[4000];
  struct perigee_message m = {
      .head = bytes, .length = sizeof bytes, .timeout = timeout};
  p->still[1] = true;
  int op = perigee_call(p->session[0], &m);
  assert_true(op >= 0);
  return op;
}

static const struct perigee_counters *counters_in(const struct reading *r) {
  return row(r, &r->head->counters, 0);
}

static void what_there_is_now_is_in_the_file_after_a_look(void **state) {
  struct fixture f;
  int ops[3];
  open_fixture(&f, *state);
  publish(&f, 0);
  struct reading r = reading_of(f.path);
  for (int i = 0; i < 3; i++)
    ops[i] = call_unread(&f.pair, -1);
  quiet(&f.pair, 100);
  assert_int_equal(counters_in(&r)->operations, 3);
  uint64_t kept = f.pair.engine[0]->pool.warm;
  assert_int_equal(counters_in(&r)->kept, kept);
  for (int i = 0; i < 3; i++) {
    perigee_cancel(f.pair.engine[0], ops[i]);
    ended(&f.pair, 0, ops[i], PERIGEE_CANCELLED);
  }
  while (perigee_arm(f.pair.engine[0], NULL) == 1)
    quiet(&f.pair, 1);
  assert_int_equal(counters_in(&r)->operations, 0);
  close_reading(&r);
  pair_drop(&f.pair);
  pair_open(&f.pair, *state);
  close_fixture(&f);
}

static void blocks_kept_for_later_are_in_the_file(void **state) {
  static uint8_t bytes[60000];
  struct fixture f;
  open_fixture(&f, *state);
  publish(&f, 0);
  struct reading r = reading_of(f.path);
  struct perigee_message m = {.head = "x",
                              .length = 1,
                              .capacity = sizeof bytes,
                              .timeout = 60000 * MS};
  assert_true(perigee_call(f.pair.session[0], &m) >= 0);
  struct perigee_event e = until(&f.pair, 1, PERIGEE_EVENT_REQUEST);
  struct perigee_message reply = {.head = bytes, .length = sizeof bytes};
  assert_true(perigee_reply(f.pair.engine[1], e.operation, &reply) >= 0);
  assert_int_equal(until(&f.pair, 0, PERIGEE_EVENT_REPLY).status, 0);
  until(&f.pair, 1, PERIGEE_EVENT_SENT);
  quiet(&f.pair, 100);
  assert_int_not_equal(f.pair.engine[0]->pool.warm, 0);
  assert_int_equal(counters_in(&r)->kept, f.pair.engine[0]->pool.warm);
  close_reading(&r);
  close_fixture(&f);
}

enum { OTHERS = 20 };

/* The sum of what the file has of a counter, as its readers make it. */
static uint64_t sum_of(const struct reading *r, size_t counter) {
  const uint64_t *own = row(r, &r->head->counters, 0);
  const uint64_t *others = row(r, &r->head->others, 0);
  uint64_t sum = own[counter] + others[counter];
  for (uint64_t i = 0; i < r->head->sessions.rows; i++) {
    const struct perigee_stats_session *s = row(r, &r->head->sessions, i);
    if (s->id && !s->ended)
      sum += ((const uint64_t *)&s->counters)[counter];
  }
  return sum;
}

static uint64_t calls_in(const struct reading *r) {
  return sum_of(r, offsetof(struct perigee_counters, calls) / 8);
}

static void
sessions_without_a_row_are_counted_while_they_are_open(void **state) {
  struct fixture f;
  struct perigee_session *s[PERIGEE_STATS_SESSIONS + OTHERS][2];
  open_fixture(&f, *state);
  publish(&f, 0);
  struct reading r = reading_of(f.path);
  int first = PERIGEE_STATS_SESSIONS - 1; /* the fixture has one */
  for (int i = 0; i < first + OTHERS; i++)
    pair_dial(&f.pair, s[i]);
  assert_int_equal(r.head->others_open, OTHERS);
  for (int n = 1; n <= 3; n++) {
    for (int i = 0; i < OTHERS; i++) {
      f.pair.session[0] = s[first + i][0];
      call(&f.pair, METHOD, 0);
    }
    quiet(&f.pair, 300);
    assert_int_equal(calls_in(&r), OTHERS * n);
    const struct perigee_counters *all =
        perigee_counters(f.pair.engine[0], NULL);
    assert_int_equal(all->calls, OTHERS * n);
  }
  for (int i = 0; i < OTHERS; i++) {
    perigee_session_free(s[first + i][0]);
    until(&f.pair, 1, PERIGEE_EVENT_LOST);
    quiet(&f.pair, 3);
    assert_int_equal(calls_in(&r), OTHERS * 3);
    assert_int_equal(r.head->others_open, OTHERS - i - 1);
  }
  assert_int_equal(perigee_counters(f.pair.engine[0], NULL)->calls, OTHERS * 3);
  f.pair.session[0] = s[0][0];
  close_reading(&r);
  close_fixture(&f);
}

static void a_call_that_waits_for_room_stalls_once(void **state) {
  struct pair p;
  pair_open(&p, *state);
  const struct perigee_counters *c =
      perigee_counters(p.engine[0], p.session[0]);
  while (c->stalls == 0)
    call_unread(&p, -1);
  for (int i = 0; i < 9; i++)
    call_unread(&p, -1);
  quiet(&p, 1000);
  assert_int_equal(c->stalls, 10);
  pair_drop(&p);
}

static void an_engine_counts_each_timeout_once(void **state) {
  struct pair p;
  int ops[3];
  pair_open(&p, *state);
  for (int i = 0; i < 3; i++)
    ops[i] = call_unread(&p, MS);
  for (int i = 0; i < 3; i++)
    ended(&p, 0, ops[i], PERIGEE_TIMEOUT);
  assert_int_equal(perigee_counters(p.engine[0], p.session[0])->timeouts, 3);
  assert_int_equal(perigee_counters(p.engine[0], NULL)->timeouts, 3);
  pair_drop(&p);
}

static uint64_t bucket_start(uint64_t n) {
  return (PERIGEE_STATS_STEPS + n % PERIGEE_STATS_STEPS)
         << (n / PERIGEE_STATS_STEPS + 2);
}

static int64_t leapt; /* ns */

static int64_t leaping_clock(void *context) {
  (void)context;
  return clock_now() + leapt;
}

static uint64_t bucket_of(uint64_t ns) {
  uint64_t n = 0;
  while (n + 1 < PERIGEE_STATS_BUCKETS && bucket_start(n + 1) <= ns)
    n++;
  return n;
}

/* One call, which takes so long for its caller. Was it measured? */
static bool call_for(struct pair *p, int64_t time) {
  struct perigee_message m = {
      .method = METHOD, .head = "x", .length = 1, .timeout = -1};
  int op = perigee_call(p->session[0], &m);
  assert_true(op >= 0);
  bool measured = p->engine[0]->table[op].measured != 0;
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  leapt += measured ? time : 0;
  assert_true(perigee_reply(p->engine[1], e.operation,
                            &(struct perigee_message){.head = ""}) >= 0);
  until(p, 0, PERIGEE_EVENT_REPLY);
  return measured;
}

/* Each time is longer than those before, so it is the longest. */
static void a_time_is_in_the_bucket_that_it_belongs_to(void **state) {
  static const int64_t TIMES[] = {0, 10 * MS, 33 * MS, 1000 * MS, 300000 * MS};
  struct fixture f;
  struct perigee_options o = {0};
  open_fixture(&f, *state);
  pair_drop(&f.pair);
  variant_options(*state, &o);
  o.clock = leaping_clock;
  o.dead_after = o.hello_timeout = 3600 * 1000 * MS;
  pair_open_with(&f.pair, *state, &o);
  publish(&f, 0);
  name_methods(&f.pair);
  struct reading r = reading_of(f.path);
  const struct perigee_stats_method *m = method_named(&r, 1, "echo");
  const struct perigee_stats_histogram *h =
      row(&r, &r.head->histograms, number_of(&r, m));
  for (size_t i = 0; i < sizeof TIMES / sizeof *TIMES; i++) {
    struct perigee_stats_histogram before = *h;
    int tries = 0;
    while (!call_for(&f.pair, TIMES[i]))
      assert_true(++tries < 1000);
    uint64_t n = bucket_of(m->longest);
    const uint64_t weight = PERIGEE_STATS_SAMPLE;
    assert_true(m->longest >= (uint64_t)TIMES[i]);
    assert_true(h->buckets[n] >= before.buckets[n] + weight);
    assert_true(h->count >= before.count + weight);
  }
  assert_int_equal(h->buckets[PERIGEE_STATS_BUCKETS - 1], PERIGEE_STATS_SAMPLE);
  close_reading(&r);
  close_fixture(&f);
}

/* Each one takes a millisecond on both sides, as the engines' looks at their
 * clocks have it. */
static void call_slowly(struct pair *p, int64_t timeout) {
  struct perigee_message m = {
      .method = METHOD, .head = "x", .length = 1, .timeout = timeout};
  assert_true(perigee_call(p->session[0], &m) >= 0);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  quiet(p, 100);
  leapt += MS;
  quiet(p, 100);
  assert_true(perigee_reply(p->engine[1], e.operation,
                            &(struct perigee_message){.head = ""}) >= 0);
  until(p, 0, PERIGEE_EVENT_REPLY);
  quiet(p, 1);
}

static void long_calls_count_as_often_as_there_are(struct fixture *f, int side,
                                                   int64_t timeout) {
  publish(f, side);
  name_methods(&f->pair);
  for (int i = 0; i < 2 * PERIGEE_STATS_SAMPLE; i++)
    call_slowly(&f->pair, timeout);
  struct reading r = reading_of(f->path);
  const struct perigee_stats_method *m =
      method_named(&r, (uint64_t)side + 1, "echo");
  const struct perigee_stats_histogram *h =
      row(&r, &r.head->histograms, number_of(&r, m));
  assert_int_equal(h->count, 2 * PERIGEE_STATS_SAMPLE);
  assert_true(h->sum >= (uint64_t)(2 * PERIGEE_STATS_SAMPLE * MS));
  close_reading(&r);
}

/* Own ones without a timeout by those that are chosen. */
static void long_calls_all_count_chosen_or_not(void **state) {
  for (int i = 0; i < 4; i++) {
    struct fixture f;
    struct perigee_options o = {0};
    open_fixture(&f, *state);
    pair_drop(&f.pair);
    variant_options(*state, &o);
    o.clock = leaping_clock;
    pair_open_with(&f.pair, *state, &o);
    long_calls_count_as_often_as_there_are(&f, i / 2, i % 2 ? -1 : 60000 * MS);
    close_fixture(&f);
  }
}

static void methods_without_a_row_count_together(void **state) {
  struct fixture f;
  char name[16];
  open_fixture(&f, *state);
  publish(&f, 0);
  for (int i = 0; i < PERIGEE_STATS_METHODS + 50; i++) {
    snprintf(name, sizeof name, "m%d", i);
    assert_int_equal(perigee_stats_method(f.pair.engine[0], f.pair.session[0],
                                          (uint16_t)(100 + i), "s", name),
                     0);
  }
  call(&f.pair, 100 + PERIGEE_STATS_METHODS + 20, 0);
  call(&f.pair, 100, 0);
  perigee_stats_method(f.pair.engine[0], f.pair.session[0], 65535, "s", "far");
  call(&f.pair, 65535, 0);
  struct reading r = reading_of(f.path);
  assert_int_equal(r.head->methods_without, 51);
  assert_int_equal(method_named(&r, 1, "m0")->ends[0], 1);
  assert_int_equal(
      ((const struct perigee_stats_method *)row(&r, &r.head->methods, 0))
          ->ends[0],
      2);
  close_reading(&r);
  close_fixture(&f);
}

/* ---- A process that is killed ------------------------------------------- */

/* Makes 40 calls, begins one more that is not answered, says so and waits. */
static void victim(struct fixture *f, void *state, int say) {
  open_fixture(f, state);
  publish(f, 0);
  name_methods(&f->pair);
  for (int i = 0; i < 40; i++)
    call(&f->pair, METHOD, 0);
  struct perigee_message m = {
      .method = OTHER, .head = "x", .length = 1, .timeout = -1};
  perigee_call(f->pair.session[0], &m);
  until(&f->pair, 1, PERIGEE_EVENT_REQUEST);
  if (write(say, f->folder, sizeof f->folder) < 0)
    _exit(1);
  pause();
}

static void what_a_killed_process_did_last_is_there(void **state) {
  struct fixture f;
  int pipes[2], status;
  assert_int_equal(pipe(pipes), 0);
  pid_t child = fork();
  if (child == 0)
    victim(&f, *state, pipes[1]);
  assert_int_equal(read(pipes[0], f.folder, sizeof f.folder), sizeof f.folder);
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  snprintf(f.path, sizeof f.path, "%s/a.stats", f.folder);
  struct reading r = reading_of(f.path);
  assert_int_equal(r.head->pid, child);
  const struct perigee_stats_event *e = last_event(&r);
  assert_int_equal(e->what & 0xffff, PERIGEE_EVENT_REPLY);
  assert_int_equal(e->what >> 16, number_of(&r, method_named(&r, 1, "echo")));
  int under_way = 0;
  for (uint64_t i = 0; i < r.head->operations.rows; i++) {
    const struct perigee_stats_operation *o = row(&r, &r.head->operations, i);
    if (o->began &&
        o->what >> 16 == number_of(&r, method_named(&r, 1, "other")))
      under_way++;
  }
  assert_int_equal(under_way, 1);
  close_reading(&r);
  /* The next one of the name keeps that of the last. */
  char last[80];
  snprintf(last, sizeof last, "%s.last", f.path);
  pair_open(&f.pair, *state);
  publish(&f, 0);
  r = reading_of(last);
  assert_int_equal(r.head->pid, child);
  close_reading(&r);
  r = reading_of(f.path);
  assert_int_equal(r.head->pid, getpid());
  close_reading(&r);
  close(pipes[0]);
  close(pipes[1]);
  close_fixture(&f);
}

/* ---- Files that are not as they should be ------------------------------- */

static void a_file_that_is_cut_ends_nothing(void **state) {
  struct fixture f;
  open_fixture(&f, *state);
  publish(&f, 0);
  name_methods(&f.pair);
  call(&f.pair, METHOD, 0);
  assert_int_equal(truncate(f.path, 0), 0);
  for (int i = 0; i < 300; i++)
    call(&f.pair, METHOD, 0);
  assert_true(perigee_counters(f.pair.engine[0], NULL)->calls >= 299);
  close_fixture(&f);
}

/* Their threads write there while the program does not poll. */
static void nor_does_it_end_engines_with_threads(void **state) {
  struct fixture f;
  open_threads(&f, *state);
  publish(&f, 0);
  struct perigee_message m = {.timeout = 1};
  assert_true(perigee_call(f.pair.session[0], &m) >= 0);
  assert_int_equal(truncate(f.path, 0), 0);
  pause_ms(30);
  until(&f.pair, 0, PERIGEE_EVENT_REPLY);
  perigee_reply(f.pair.engine[1],
                until(&f.pair, 1, PERIGEE_EVENT_REQUEST).operation, &m);
  close_fixture(&f);
}

static void exit_42(int number) {
  (void)number;
  _exit(42);
}

static void others_handlers_get_what_is_not_guarded(void **state) {
  struct fixture f;
  int status;
  open_fixture(&f, *state);
  signal(SIGBUS, exit_42);
  publish(&f, 0);
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    int file = memfd_create("cut", 0);
    volatile char *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    _exit(*page);
  }
  waitpid(child, &status, 0);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 42);
  assert_int_equal(access(f.path, F_OK), 0);
  close_fixture(&f);
}

static int on_a_full_disk(struct fixture *f) {
  if (unshare(CLONE_NEWNS) < 0 ||
      mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
      mount("tmpfs", f->folder, "tmpfs", 0, "size=64k") < 0)
    return 77;
  pair_open(&f->pair, (void *)(uintptr_t)&variant_default);
  assert_true(perigee_stats_publish(f->pair.engine[0], f->path, NULL) < 0);
  assert_non_null(strstr(perigee_detail(f->pair.engine[0]), f->path));
  assert_non_null(strstr(perigee_detail(f->pair.engine[0]), "No space"));
  call(&f->pair, METHOD, 0);
  pair_close(&f->pair);
  return umount(f->folder) < 0;
}

static void a_full_disk_means_none(void **state) {
  struct fixture f;
  int status;
  open_fixture(&f, *state);
  pid_t child = fork();
  if (child == 0)
    _exit(on_a_full_disk(&f));
  waitpid(child, &status, 0);
  close_fixture(&f);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    skip();
  assert_int_equal(status, 0);
}

static void a_link_is_replaced_and_not_followed(void **state) {
  struct fixture f;
  char target[80];
  struct stat s;
  open_fixture(&f, *state);
  snprintf(target, sizeof target, "%s/target", f.folder);
  int file = open(target, O_CREAT | O_WRONLY, 0600);
  assert_int_equal(write(file, "mine", 4), 4);
  close(file);
  assert_int_equal(symlink(target, f.path), 0);
  publish(&f, 0);
  assert_int_equal(perigee_stats_publish(f.pair.engine[0], f.path, NULL),
                   PERIGEE_INVALID);
  assert_int_equal(lstat(f.path, &s), 0);
  assert_true(S_ISREG(s.st_mode));
  assert_int_equal(s.st_mode & 0777, 0600);
  assert_int_equal(stat(target, &s), 0);
  assert_int_equal(s.st_size, 4);
  unlink(target);
  close_fixture(&f);
}

static void a_child_leaves_its_parents_file(void **state) {
  struct fixture f;
  int status;
  open_fixture(&f, *state);
  publish(&f, 0);
  ask_for_level(f.path, PERIGEE_STATS_DEBUG);
  pid_t child = fork();
  if (child == 0) {
    if (perigee_log_level(f.pair.engine[0], 1) != 0)
      _exit(1);
    f.pair.engine[0]->counters->polls = 1 << 30;
    perigee_engine_close(f.pair.engine[0]);
    _exit(0);
  }
  waitpid(child, &status, 0);
  assert_int_equal(status, 0);
  assert_int_equal(access(f.path, F_OK), 0);
  assert_true(perigee_counters(f.pair.engine[0], NULL)->polls < 1 << 30);
  assert_int_equal(perigee_log_level(f.pair.engine[0], 1), PERIGEE_STATS_DEBUG);
  call(&f.pair, METHOD, 0);
  close_fixture(&f);
}

int main(void) {
  static const struct CMUnitTest tests[] = {
      OVER(variant_default,
           one_that_sleeps_by_its_descriptor_is_told_from_a_busy_one),
      OVER(variant_default, nor_is_one_busy_that_has_a_thread),
      OVER(variant_default, a_level_is_what_others_ask_for_if_it_is_one),
      OVER(variant_default, each_method_has_its_calls_bytes_and_ends),
      OVER(variant_default, a_status_without_a_name_is_counted_as_protocol),
      OVER(variant_default,
           a_reply_that_cannot_be_sent_counts_as_what_the_caller_gets),
      OVER(variant_default, a_call_whose_caller_went_away_is_counted_by_method),
      OVER(variant_default, a_session_has_the_counters_that_the_program_sees),
      OVER(variant_default, what_there_is_now_is_in_the_file_after_a_look),
      OVER(variant_default, blocks_kept_for_later_are_in_the_file),
      OVER(variant_default,
           sessions_without_a_row_are_counted_while_they_are_open),
      OVER(variant_default, a_call_that_waits_for_room_stalls_once),
      OVER(variant_default, an_engine_counts_each_timeout_once),
      OVER(variant_default, a_time_is_in_the_bucket_that_it_belongs_to),
      OVER(variant_default, long_calls_all_count_chosen_or_not),
      OVER(variant_default, methods_without_a_row_count_together),
      OVER(variant_default, what_a_killed_process_did_last_is_there),
      OVER(variant_default, a_file_that_is_cut_ends_nothing),
      OVER(variant_default, nor_does_it_end_engines_with_threads),
      OVER(variant_default, others_handlers_get_what_is_not_guarded),
      OVER(variant_default, a_full_disk_means_none),
      OVER(variant_default, a_link_is_replaced_and_not_followed),
      OVER(variant_default, a_child_leaves_its_parents_file),
  };
  return cmocka_run_group_tests_name("stats", tests, NULL, NULL);
}
