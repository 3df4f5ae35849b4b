/* SPDX-License-Identifier: Apache-2.0
 *
 * liar_test.c - a victim that serves, calls, sends and copies with a peer of
 * another process that lies (liar.c). It may lose that peer at any time, with
 * a status that has a name; every operation of its own ends once; a friend is
 * served all the while. PERIGEE_SEED=n repeats a run, PERIGEE_SECONDS=n makes
 * it last.
 */
#include "liar.h"
#include "support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 4 * MIB, SESSIONS = 4096, OPERATIONS = 65536 };
static const int64_t PATIENCE = 100 * MS;

struct victim {
  struct pair p; /* the friend is side 0, the victim side 1 */
  struct perigee_region *exported, *own;
  struct perigee_remote *bait[SESSIONS]; /* by the session's id */
  uint8_t pending[OPERATIONS];
  int open[SESSIONS]; /* operations, by the session's id */
  bool over[SESSIONS];
  int lost, protocol, met;
  int friends; /* calls of the friend that were answered */
};

/* {7} as string.buffer writes it. */
static const uint8_t seven[] = {7, 0, 0, 0, 0, 0, 0, 28, 64};

static uint64_t own_seed(void) {
  const char *given = getenv("PERIGEE_SEED");
  return given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
}

static int64_t own_time(void) {
  const char *given = getenv("PERIGEE_SECONDS");
  return (given ? atoi(given) * 1000 : 1000) * MS;
}

/* ---- What the victim wants of its peer ------------------------------------ */

static void began(struct victim *v, struct perigee_session *s, int op) {
  if (op < 0 || op == PERIGEE_INLINE)
    return;
  assert_int_equal(v->pending[op], 0);
  v->pending[op] = 1;
  v->open[perigee_session_id(s) % SESSIONS]++;
}

static void call(struct victim *v, struct perigee_session *s) {
  bool typed = rand() % 2, slice = rand() % 2;
  uint64_t length = (uint64_t)rand() % (rand() % 2 ? 100 : 3 * MIB);
  struct perigee_message m = {.timeout = PATIENCE};
  if (typed)
    m = (struct perigee_message){.flags = PERIGEE_TYPED,
                                 .head = seven,
                                 .length = sizeof seven,
                                 .timeout = PATIENCE};
  if (slice)
    m.slice = all_of(v->own, length);
  if (rand() % 2)
    m.into = all_of(v->own, SIZE);
  began(v, s, perigee_call(s, &m));
}

static void loan(struct victim *v, struct perigee_session *s) {
  struct perigee_message m = {.timeout = PATIENCE, .capacity = 100};
  struct perigee_loan loan;
  uint64_t length = (uint64_t)rand() % (rand() % 2 ? 100 : MIB);
  if (perigee_call_begin(s, length, &loan) == PERIGEE_OK)
    began(v, s, perigee_call_commit(s, &m, length));
}

static void move(struct victim *v, struct perigee_session *s) {
  struct perigee_remote *bait = v->bait[perigee_session_id(s) % SESSIONS];
  static struct perigee_transfer lists[16];
  static int next;
  if (!bait)
    return;
  struct perigee_transfer *t = &lists[next++ % 16];
  uint64_t length = (uint64_t)rand() % perigee_remote_length(bait);
  if (length > SIZE)
    length = SIZE;
  *t = (struct perigee_transfer){
      .local = all_of(v->own, length),
      .remote = {{.remote = bait}, 0, length, 1, length}};
  began(v, s, perigee_transfer(s, 1 + rand() % 3, t, 1, 7, -1));
}

static void want(struct victim *v, struct perigee_session *s) {
  struct perigee_slice all = all_of(v->own, SIZE);
  switch (rand() % 8) {
  case 0:
    began(v, s, perigee_send(s, &all, PATIENCE));
    break;
  case 1:
    began(v, s, perigee_recv(s, &all, PATIENCE));
    break;
  case 2:
    began(v, s, perigee_recv_imm(s, PATIENCE));
    break;
  case 3:
    began(v, s, perigee_lookup(s, "bait", PATIENCE));
    break;
  case 4:
    move(v, s);
    break;
  case 5:
    loan(v, s);
    break;
  default:
    call(v, s);
  }
}

/* ---- What it is asked ----------------------------------------------------- */

static void serve(struct victim *v, const struct perigee_event *e) {
  struct perigee_message r = {.head = e->pointer, .length = e->length};
  /* All that the event speaks of can be read. */
  volatile uint8_t sum = 0;
  for (uint64_t i = 0; i < e->length; i += 512)
    sum ^= e->pointer[i];
  if (rand() % 3 == 0)
    r = (struct perigee_message){.flags = PERIGEE_TYPED,
                                 .slice = all_of(v->exported, SIZE)};
  perigee_reply(v->p.engine[1], e->operation, &r);
}

static void land(struct victim *v, const struct perigee_event *e) {
  struct perigee_slice all = all_of(v->own, SIZE), none = {0};
  bool fits = e->slice <= SIZE && rand() % 2;
  int status = perigee_land(v->p.engine[1], e->operation, fits ? &all : &none);
  if (status == PERIGEE_OK)
    return;
  struct perigee_message r = {.status = PERIGEE_NO_MEMORY};
  perigee_reply(v->p.engine[1], e->operation, &r);
}

/* After its loss nothing is asked of a session but what had come before. */
static void let_go(struct victim *v, uint32_t id) {
  if (v->over[id % SESSIONS] && v->open[id % SESSIONS] == 0)
    perigee_session_free(perigee_session(v->p.engine[1], id));
}

static void ended_here(struct victim *v, const struct perigee_event *e) {
  assert_int_equal(v->pending[e->operation], 1);
  v->pending[e->operation] = 0;
  v->open[e->session % SESSIONS]--;
  assert_string_not_equal(perigee_status_name(e->status), "unknown");
}

static void lost(struct victim *v, const struct perigee_event *e) {
  assert_true(e->status < 0);
  assert_string_not_equal(perigee_status_name(e->status), "unknown");
  v->lost++;
  v->protocol += e->status != PERIGEE_PEER_LOST;
  v->over[e->session % SESSIONS] = true;
  let_go(v, e->session);
}

static void handle(struct victim *v, const struct perigee_event *e) {
  struct perigee_session *s = perigee_session(v->p.engine[1], e->session);
  if (e->flags & PERIGEE_POOLED)
    perigee_pool_free(v->p.engine[1], e->landed);
  switch (e->kind) {
  case PERIGEE_EVENT_ACCEPTED:
    v->met++;
    v->bait[e->session % SESSIONS] = NULL;
    v->over[e->session % SESSIONS] = false;
    assert_int_equal(v->open[e->session % SESSIONS], 0);
    for (int i = 0; i < 8; i++)
      want(v, s);
    break;
  case PERIGEE_EVENT_LOST:
    lost(v, e);
    break;
  case PERIGEE_EVENT_REQUEST:
    serve(v, e);
    break;
  case PERIGEE_EVENT_LANDING:
    land(v, e);
    break;
  case PERIGEE_EVENT_REPLY:
  case PERIGEE_EVENT_DONE:
    ended_here(v, e);
    if (e->kind == PERIGEE_EVENT_DONE && e->pointer && s)
      v->bait[e->session % SESSIONS] = (void *)(uintptr_t)e->pointer;
    if (!v->over[e->session % SESSIONS])
      want(v, s);
    let_go(v, e->session);
    break;
  default:
    break;
  }
}

/* ---- The friend ----------------------------------------------------------- */

struct friend {
  int operation; /* -1: none */
  int64_t since;
};

static void befriend(struct victim *v, struct friend *f) {
  struct perigee_message m = {.head = "hello", .length = 5, .timeout = -1};
  struct perigee_event e;
  if (f->operation < 0) {
    f->operation = perigee_call(v->p.session[0], &m);
    f->since = clock_now();
  }
  while (perigee_poll(v->p.engine[0], &e, 1) == 1) {
    assert_int_equal(e.kind, PERIGEE_EVENT_REPLY);
    assert_int_equal(e.operation, f->operation);
    assert_int_equal(e.status, PERIGEE_OK);
    f->operation = -1;
    v->friends++;
  }
  if (f->operation >= 0 && clock_now() - f->since > 3000 * MS)
    fail_msg("the friend waits");
}

/* Its own calls are answered with what they brought. */
static bool of_friend(struct victim *v, const struct perigee_event *e) {
  if (e->session != perigee_session_id(v->p.session[1]))
    return false;
  struct perigee_message r = {.head = e->pointer, .length = e->length};
  assert_int_equal(e->kind, PERIGEE_EVENT_REQUEST);
  assert_int_equal(perigee_reply(v->p.engine[1], e->operation, &r), 0);
  return true;
}

/* ---- The test ------------------------------------------------------------- */

static struct victim *victim_open(const struct variant *variant) {
  struct victim *v = calloc(1, sizeof *v);
  struct perigee_options o;
  variant_options(variant, &o);
  o.pool = 256 << 20;
  pair_open_with(&v->p, (void *)(uintptr_t)variant, &o);
  v->exported = region_of(&v->p, 1, "exported", SIZE, 3);
  v->own = region_of(&v->p, 1, NULL, SIZE, 0);
  return v;
}

static void live_through(struct victim *v, pid_t child) {
  struct friend f = {.operation = -1};
  struct perigee_event e[4];
  int64_t end = clock_now() + own_time() + 5000 * MS;
  bool over = false;
  while (!over || operations(&v->p, 1) > 0 || v->lost < v->met ||
         f.operation >= 0) {
    if (!over)
      over = waitpid(child, NULL, WNOHANG) == child;
    int n = perigee_poll(v->p.engine[1], e, 4);
    for (int i = 0; i < n; i++)
      if (!of_friend(v, &e[i]))
        handle(v, &e[i]);
    befriend(v, &f);
    if (over && f.operation < 0)
      f.operation = -1;
    if (clock_now() > end)
      fail_msg("%d operations never end, %d of %d sessions were lost",
               (int)operations(&v->p, 1), v->lost, v->met);
  }
}

static void survive(enum lie lie, const struct variant *variant) {
  uint64_t seed = own_seed();
  char address[64];
  snprintf(address, sizeof address, "unix:%s", pair_path_next());
  fflush(stdout);
  pid_t child = fork();
  if (child == 0)
    liar_run(address, lie, seed, own_time());
  srand((unsigned)seed);
  print_message("# seed %llu\n", (unsigned long long)seed);
  struct victim *v = victim_open(variant);
  live_through(v, child);
  print_message("# %d sessions, %d ended by what the peer said, %d calls of "
                "a friend\n",
                v->met, v->protocol, v->friends);
  assert_true(v->met > 3);
  region_end(v->exported);
  region_end(v->own);
  pair_close(&v->p);
  free(v);
}

static void scribbles_do_no_harm(void **state) {
  survive(LIE_SCRIBBLE, *state);
}

static void records_do_no_harm(void **state) {
  survive(LIE_RECORDS, *state);
}

static void replies_do_no_harm(void **state) {
  survive(LIE_REPLIES, *state);
}

static void words_do_no_harm(void **state) {
  survive(LIE_WORDS, *state);
}

int main(void) {
  static const struct variant staged = {"staged", "shm", "host", 0};
  static const struct variant opaque = {"opaque", "shm", "opaque", 1};
  const struct CMUnitTest tests[] = {
      OVER(variant_default, scribbles_do_no_harm),
      OVER(variant_default, records_do_no_harm),
      OVER(variant_default, replies_do_no_harm),
      OVER(variant_default, words_do_no_harm),
      OVER(staged, replies_do_no_harm),
      OVER(staged, words_do_no_harm),
      OVER(opaque, records_do_no_harm),
  };
  return cmocka_run_group_tests_name("liar", tests, NULL, NULL);
}
