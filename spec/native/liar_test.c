/* SPDX-License-Identifier: Apache-2.0
 *
 * liar_test.c - a victim that serves, calls, sends and copies with a lying peer
 * in another process (liar.c). It may lose that peer at any time, with a named
 * status. Each of its own operations ends once, and an honest peer is served
 * throughout. PERIGEE_SEED=n repeats a run, PERIGEE_SECONDS=n sets its length.
 */
#include "liar.h"
#include "victim.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t own_seed(void) {
  const char *given = getenv("PERIGEE_SEED");
  return given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
}

static int64_t own_time(void) {
  const char *given = getenv("PERIGEE_SECONDS");
  return (given ? atoi(given) * 1000 : 1000) * MS;
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
  if (f->operation >= 0 && clock_now() - f->since > 10000 * MS)
    fail_msg("the friend waits");
}

/* Its own calls are answered with the bytes that they brought. */
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
  int64_t end = clock_now() + own_time() + 20000 * MS;
  bool over = false;
  while (!over || operations(&v->p, 1) > 0 || v->lost < v->met ||
         f.operation >= 0) {
    if (!over)
      over = waitpid(child, NULL, WNOHANG) == child;
    int n = perigee_poll(v->p.engine[1], e, 4);
    for (int i = 0; i < n; i++)
      if (!of_friend(v, &e[i]))
        victim_handle(v, &e[i]);
    befriend(v, &f);
    if (over && f.operation < 0)
      f.operation = -1;
    if (clock_now() > end)
      fail_msg("%d operations never end, %d of %d sessions were lost",
               (int)operations(&v->p, 1), v->lost, v->met);
  }
}

/* Starts the liar, which comes once the gate, a pipe, is closed here: so the
 * first session is the friend's. */
static pid_t liar_start(enum lie lie, uint64_t seed, const int gate[2]) {
  char address[64];
  snprintf(address, sizeof address, "unix:%s", pair_path_next());
  fflush(stdout);
  pid_t child = fork();
  if (child != 0)
    return child;
  close(gate[1]);
  if (read(gate[0], &(char){0}, 1) == 0)
    liar_run(address, lie, seed, own_time());
  _exit(1);
}

static void survive(enum lie lie, const struct variant *variant) {
  uint64_t seed = own_seed();
  int before = descriptors(), gate[2];
  assert_int_equal(pipe(gate), 0);
  pid_t child = liar_start(lie, seed, gate);
  srand((unsigned)seed);
  print_message("# seed %llu\n", (unsigned long long)seed);
  struct victim *v = victim_open(variant);
  close(gate[0]);
  close(gate[1]);
  live_through(v, child);
  print_message("# %d sessions, %d ended by what the peer said, %d calls of "
                "a friend\n",
                v->met, v->protocol, v->friends);
  assert_true(v->met > 0); /* how many depends on what else runs */
  region_end(v->exported);
  region_end(v->own);
  pair_close(&v->p);
  assert_int_equal(descriptors(), before);
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

static void keys_do_no_harm(void **state) {
  survive(LIE_KEYS, *state);
}

int main(void) {
  static const struct variant staged = {"staged", "shm", "host", 0, NULL};
  static const struct variant opaque = {"opaque", "shm", "opaque", 1, NULL};
  const struct CMUnitTest tests[] = {
      OVER(variant_default, scribbles_do_no_harm),
      OVER(variant_default, records_do_no_harm),
      OVER(variant_default, replies_do_no_harm),
      OVER(variant_default, words_do_no_harm),
      OVER(variant_default, keys_do_no_harm),
      OVER(staged, replies_do_no_harm),
      OVER(staged, words_do_no_harm),
      OVER(opaque, records_do_no_harm),
  };
  return cmocka_run_group_tests_name("liar", tests, NULL, NULL);
}
