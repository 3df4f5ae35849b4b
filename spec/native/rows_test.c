/* SPDX-License-Identifier: Apache-2.0
 *
 * rows_test.c - the state tables, row by row: every step that they allow is
 * taken here through the public interface, and every other step aborts.
 */
#include "door.h"
#include "hand.h"
#include "scenes.h"
#include "support_inside.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/machine.h"

static const char *const machines[] = {"session",   "call",    "served",
                                       "operation", "watched", "streams",
                                       "migration", "wireup",  "drain"};
enum { MACHINES = 9 };

static int missing(const struct machine *m) {
  int n = 0;
  for (uint8_t s = 0; s < MACHINE_STATES && m->states[s]; s++)
    for (uint8_t e = 0; e < MACHINE_EVENTS && m->events[e]; e++)
      if (m->next[s][e] && machine_taken(m, s, e) == 0) {
        print_message("# %s: %s in state %s was never taken\n", m->name,
                      m->events[e], m->states[s]);
        n++;
      }
  return n;
}

static void all_ends(void *variant) {
  for (const struct scene_kind *k = scene_kinds; k->name; k++) {
    scene_stop(variant, k, scene_by_timeout, PERIGEE_TIMEOUT);
    scene_stop(variant, k, scene_by_cancel, PERIGEE_CANCELLED);
    scene_stop(variant, k, scene_by_close, PERIGEE_CLOSED);
    scene_stop(variant, k, scene_by_peers_close, PERIGEE_PEER_LOST);
  }
}

/* ---- What no early end reaches ------------------------------------------ */

static const struct scene_kind *kind(const char *name) {
  const struct scene_kind *k = scene_kinds;
  while (strcmp(k->name, name) != 0)
    k++;
  return k;
}

/* The operation runs to its end. */
static void run_out(void *variant, const char *name) {
  struct scene s;
  scene_open(&s, variant, -1);
  kind(name)->build(&s);
  scene_wind_up(&s);
  assert_int_equal(s.ends, 1);
  assert_int_equal(s.status, PERIGEE_OK);
  scene_close(&s);
}

static void nobody_listens(void *variant) {
  struct scene s;
  scene_open(&s, variant, -1);
  int op = perigee_connect(s.p.engine[0], "unix:/tmp/perigee-nobody", NULL, -1);
  ended(&s.p, 0, op, PERIGEE_NOT_FOUND);
  scene_close(&s);
}

/* A session dialed at a Unix socket for "tcp" continues over loopback; if no
 * one listens there, it comes back and stays. */
static void sessions_move(void *variant) {
  struct variant tcp = *(struct variant *)variant;
  struct perigee_session *moved[2];
  struct pair p;
  pair_open(&p, variant);
  tcp.transport = "tcp";
  p.variant = &tcp;
  pair_dial(&p, moved);
  deafen(moved_to(p.engine[1], true));
  pair_dial(&p, moved);
  pair_close(&p);
}

/* One peer takes all tickets. Its next session stays where it is. */
static void a_session_does_not_move(void) {
  enum { TICKETS = 64 };
  struct hand hands[TICKETS + 1];
  struct perigee_engine *engine, *other;
  uint8_t name[HELLO_LOCAL];
  assert_int_equal(perigee_engine_open(NULL, &engine), 0);
  other = hand_named(name);
  for (int i = 0; i <= TICKETS; i++) {
    hand_come(&hands[i], engine, true);
    assert_int_equal(hand_moves(&hands[i], engine->secret, name, 1),
                     i < TICKETS);
  }
  for (int i = 0; i <= TICKETS; i++)
    hand_close(&hands[i]);
  perigee_engine_close(other);
  perigee_engine_close(engine);
}

/* A crowded listener asks a dialer to come again with a cookie. The crowd stays
 * for as long as a slow machine needs. */
static void a_dialer_has_to_come_again(void) {
  enum { CROWD = 20 };
  static const struct variant tcp = {"tcp", "tcp", "host", 1, NULL};
  struct perigee_options o;
  struct perigee_session *session[2];
  struct pair p;
  int fds[CROWD];
  variant_options(&tcp, &o);
  o.hello_timeout = 60000 * MS;
  pair_open_with(&p, (void *)(uintptr_t)&tcp, &o);
  for (int i = 0; i < CROWD; i++)
    fds[i] = raw_connect(&p);
  while (p.engine[1]->hellos < CROWD)
    quiet(&p, 1);
  perigee_tell_refused(p.engine[1], -1);
  pair_dial(&p, session);
  for (int i = 0; i < CROWD; i++)
    close(fds[i]);
  pair_close(&p);
}

/* Two endpoints get each other's information from the program. */
static void endpoints_meet(void *variant) {
  struct perigee_endpoint *e[2];
  struct pair p;
  uint32_t id[2];
  int op[2];
  pair_open(&p, variant);
  for (int i = 0; i < 2; i++)
    assert_int_equal(perigee_endpoint_open(p.engine[i], "inproc", &e[i]), 0);
  for (int i = 0; i < 2; i++)
    op[i] = perigee_endpoint_connect(e[i], perigee_endpoint_info(e[!i]), -1);
  for (int i = 0; i < 2; i++)
    id[i] = ended(&p, i, op[i], 0).session;
  for (int i = 0; i < 2; i++) {
    perigee_session_free(perigee_session(p.engine[i], id[i]));
    perigee_endpoint_close(e[i]);
  }
  pair_close(&p);
}

enum { CALLS = 40 };

/* Side 0 calls and does not read the replies, whose ring is soon full: the
 * last reply, which refers to memory, waits for room. */
static void replies_wait(struct scene *s) {
  struct perigee_message m = {.head = "?", .length = 1, .timeout = -1};
  struct perigee_message small = {.head = s->bytes, .length = 4000};
  struct perigee_message large = {.slice = all_of(s->theirs, MIB)};
  for (int i = 0; i < CALLS; i++)
    assert_true(perigee_call(s->p.session[0], &m) >= 0);
  s->p.still[0] = true;
  for (int i = 0; i < CALLS; i++) {
    int call = until(&s->p, 1, PERIGEE_EVENT_REQUEST).operation;
    int status =
        perigee_reply(s->p.engine[1], call, i < CALLS - 1 ? &small : &large);
    assert_true(status >= 0);
  }
  assert_true(perigee_counters(s->p.engine[1], s->p.session[1])->stalls > 0);
}

static void waiting_replies(void *variant) {
  for (int lost = 0; lost < 2; lost++) {
    struct scene s;
    scene_open(&s, variant, -1);
    replies_wait(&s);
    if (lost)
      perigee_session_close(s.p.session[0]);
    scene_wind_up(&s);
    scene_close(&s);
  }
}

/* The reply to the first call may fill more than half of the pool. */
static void requests_stall(struct scene *s) {
  struct perigee_message m = {.head = "?",
                              .length = 1,
                              .capacity = 512 * UINT64_C(1048576),
                              .timeout = -1};
  assert_true(perigee_call(s->p.session[0], &m) >= 0);
  assert_true(perigee_call(s->p.session[0], &m) >= 0);
  s->served = until(&s->p, 1, PERIGEE_EVENT_REQUEST).operation;
  quiet(&s->p, 50);
}

static void stalled_requests(void *variant) {
  for (int lost = 0; lost < 2; lost++) {
    struct perigee_message r = {.head = "!", .length = 1};
    struct scene s;
    scene_open(&s, variant, -1);
    requests_stall(&s);
    if (lost)
      perigee_session_close(s.p.session[1]);
    else
      assert_int_equal(perigee_reply(s.p.engine[1], s.served, &r), 0);
    s.served = lost ? s.served : -1;
    scene_wind_up(&s);
    scene_close(&s);
  }
}

/* A watch is removed while its descriptor is quiet, when it was found ready
 * but not yet reported, and after a second event. */
static void descriptors_are_watched(void) {
  struct perigee_engine *engine;
  struct perigee_event e[2];
  int fds[2];
  assert_int_equal(perigee_engine_open(NULL, &engine), 0);
  assert_int_equal(pipe(fds), 0);
  assert_int_equal(perigee_watch(engine, fds[0], PERIGEE_READABLE, 0), 0);
  assert_int_equal(perigee_unwatch(engine, fds[0]), 0);
  assert_int_equal(write(fds[1], "x", 1), 1);
  assert_int_equal(perigee_watch(engine, fds[0], PERIGEE_READABLE, 0), 0);
  assert_int_equal(perigee_watch(engine, fds[1], PERIGEE_WRITABLE, 0), 0);
  assert_int_equal(perigee_poll(engine, e, 1), 1); /* one is told, one found */
  assert_int_equal(perigee_unwatch(engine, fds[e->descriptor == fds[0]]), 0);
  assert_int_equal(perigee_poll(engine, e, 2), 1); /* armed, and told again */
  assert_int_equal(perigee_unwatch(engine, (int)e->descriptor), 0);
  perigee_engine_close(engine);
  close(fds[0]);
  close(fds[1]);
}

/* A watch is changed, and quietened, in each of its states. */
static void watches_are_changed(void) {
  struct perigee_engine *engine;
  struct perigee_event e;
  int fds[2], events[] = {PERIGEE_READABLE, PERIGEE_WRITABLE};
  assert_int_equal(perigee_engine_open(NULL, &engine), 0);
  assert_int_equal(pipe(fds), 0);
  assert_int_equal(perigee_watch(engine, fds[0], PERIGEE_READABLE, 0), 0);
  for (int i = 0; i < 5; i++) /* armed twice, quiet twice, armed */
    assert_int_equal(
        perigee_rewatch(engine, fds[0], i % 4 < 2 ? PERIGEE_READABLE : 0, 0),
        0);
  assert_int_equal(write(fds[1], "x", 1), 1);
  assert_int_equal(perigee_watch(engine, fds[1], PERIGEE_WRITABLE, 0), 0);
  for (int more = 1; more >= 0; more--) {
    assert_int_equal(perigee_poll(engine, &e, 1),
                     1); /* one is told, one found */
    for (int i = 0; i < 2; i++)
      assert_int_equal(perigee_rewatch(engine, fds[i], more * events[i], 0), 0);
  }
  for (int i = 0; i < 2; i++)
    assert_int_equal(perigee_unwatch(engine, fds[i]), 0);
  perigee_engine_close(engine);
  close(fds[0]);
  close(fds[1]);
}

static void a_side_drains(void *variant) {
  struct pair p;
  pair_open(&p, variant);
  perigee_drain(p.engine[1]);
  while (perigee_drain_waits(p.engine[1]) > 0)
    quiet(&p, 1);
  pair_close(&p);
}

static void every_step_is_taken(void **state) {
  (void)state;
  void *variant = (void *)(uintptr_t)&variant_default;
  int n = 0;
  all_ends(variant);
  run_out(variant, "fetching");
  run_out(variant, "asked later");
  run_out(variant, "immediate queued");
  nobody_listens(variant);
  sessions_move(variant);
  a_session_does_not_move();
  a_dialer_has_to_come_again();
  endpoints_meet(variant);
  waiting_replies(variant);
  stalled_requests(variant);
  descriptors_are_watched();
  watches_are_changed();
  a_side_drains(variant);
  for (int i = 0; i < MACHINES; i++)
    n += missing(machine_find(machines[i]));
  assert_int_equal(n, 0);
}

/* ---- What the tables do not have ---------------------------------------- */

static int signal_of_step(const struct machine *m, uint8_t state,
                          uint8_t event) {
  int status;
  pid_t child = fork();
  if (child == 0) {
    struct rlimit none = {0};
    setrlimit(RLIMIT_CORE, &none);
    close(STDERR_FILENO);
    machine_step(m, &state, event);
    _exit(0);
  }
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void every_other_step_aborts(void **state) {
  (void)state;
  for (int i = 0; i < MACHINES; i++) {
    const struct machine *m = machine_find(machines[i]);
    for (uint8_t s = 0; s < MACHINE_STATES && m->states[s]; s++)
      for (uint8_t e = 0; e < MACHINE_EVENTS && m->events[e]; e++)
        if (!m->next[s][e] && signal_of_step(m, s, e) != SIGABRT)
          fail_msg("%s: %s in state %s does not abort", m->name, m->events[e],
                   m->states[s]);
  }
  assert_null(machine_find("nothing"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_step_is_taken),
      cmocka_unit_test(every_other_step_aborts),
  };
  return cmocka_run_group_tests_name("rows", tests, NULL, NULL);
}
