/* SPDX-License-Identifier: Apache-2.0
 *
 * stress_parked_test.c - two threads, an engine each, with a few sessions between
 * them, whose clock runs so fast that a session is parked as soon as a poll
 * finds nothing (engine/poll.c). Calls go over one session and another, both ways, a
 * few at a time, so that all of them are parked and brought back all the time;
 * each side polls, or sleeps, as it happens. A transport around the real one
 * pauses for random times between a record's publication and the look whether
 * its reader is armed, between arming and the last poll, and after that. A
 * wake-up that is lost shows as a reply, or a call, that does not come.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "perigee.h"
#include "transport/transport.h"

enum { CALLS = 3000, WINDOW = 3, SESSIONS = 4, FASTER = 100000 };
static const int64_t SECOND = 1000000000;

static char address[96];
static atomic_int listening, lost, wrong, done;

/* ---- The transport that pauses, and the clock ----------------------------- */

static _Thread_local uint64_t seed;
static struct perigee_transport slow;
static struct transport_sleep sleeping;
static const struct perigee_transport *real;

static uint32_t random_below(uint32_t limit) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(seed >> 33) % limit;
}

/* Usually no pause, otherwise up to some microseconds. */
static void pause_a_little(void) {
  uint32_t turns = random_below(4) ? 0 : random_below(8192);
  for (volatile uint32_t i = 0; i < turns; i++)
    ;
}

static int slow_open(const struct lane_options *options, struct lane **lane,
                     struct offer *offer, char *reason) {
  int status = real->open(options, lane, offer, reason);
  if (status == PERIGEE_OK)
    lane_by(*lane, &slow);
  return status;
}

static void slow_arm(struct lane *lane) {
  real->sleep->arm(lane);
  pause_a_little();
}

static bool slow_wanted(struct lane *lane) {
  pause_a_little();
  return real->sleep->wanted(lane);
}

static bool slow_rests(struct lane *lane) {
  bool rests = real->rests(lane);
  pause_a_little();
  return rests;
}

static const struct perigee_transport *const transports[] = {&slow, NULL};

static void slow_make(const struct perigee_transport *transport) {
  real = transport;
  slow = *transport;
  slow.name = "slow";
  slow.open = slow_open;
  sleeping = *transport->sleep;
  sleeping.arm = slow_arm;
  sleeping.wanted = slow_wanted;
  slow.sleep = &sleeping;
  slow.rests = slow_rests;
}

static int64_t real_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * SECOND + t.tv_nsec;
}

static int64_t started;

static int64_t fast_clock(void *context) {
  (void)context;
  return 1 + (real_now() - started) * FASTER;
}

/* ---- The two sides --------------------------------------------------------- */

struct side {
  struct perigee_engine *engine;
  struct perigee_session *session[SESSIONS];
  struct perigee_listener *listener;
  int count;
  uint64_t sent, got; /* own calls, and their replies */
};

static void side_open(struct side *side, uint64_t own_seed) {
  struct perigee_options options;
  perigee_options_init(&options, sizeof options);
  options.spin = 0;
  options.transports = transports;
  options.clock = fast_clock;
  options.hello_timeout = 1000 * FASTER * SECOND;
  seed = own_seed;
  *side = (struct side){0};
  if (perigee_engine_open(&options, &side->engine) != PERIGEE_OK)
    abort();
}

static void take(struct side *side, const struct perigee_event *e) {
  struct perigee_message reply = {.head = e->pointer, .length = e->length};
  if (e->kind == PERIGEE_EVENT_REQUEST) {
    perigee_reply(side->engine, e->operation, &reply);
  } else if (e->kind == PERIGEE_EVENT_REPLY) {
    side->got++;
    if (e->status != 0 || e->length != 8)
      atomic_fetch_add(&wrong, 1);
  } else if (e->kind == PERIGEE_EVENT_ACCEPTED ||
             e->kind == PERIGEE_EVENT_CONNECTED) {
    if (e->status != 0)
      abort();
    side->session[side->count++] = perigee_session(side->engine, e->session);
  }
}

/* The next event, by polling or asleep; false: none came for two seconds, or
 * the other side is done. */
static bool next(struct side *side) {
  struct perigee_event e;
  int64_t end = real_now() + 2 * SECOND;
  bool sleeps = random_below(4) == 0;
  while (perigee_poll(side->engine, &e, 1) == 0) {
    pause_a_little();
    if (real_now() > end || atomic_load(&done) == 2)
      return false;
    if (sleeps) /* by the fast clock: some time after its polls is left */
      perigee_wait(&side->engine, 1, 20 * SECOND);
  }
  take(side, &e);
  return true;
}

static void call(struct side *side) {
  uint64_t number = side->sent++;
  struct perigee_message message = {
      .head = &number, .length = sizeof number, .timeout = -1};
  pause_a_little();
  if (perigee_call(side->session[random_below(SESSIONS)], &message) < 0)
    abort();
}

/* Runs until both sides' calls are over. */
static void talk(struct side *side) {
  bool over = false;
  while (atomic_load(&done) < 2 && atomic_load(&lost) == 0) {
    while (side->sent < CALLS &&
           side->sent - side->got < 1 + side->sent % WINDOW)
      call(side);
    if (!over && side->got == CALLS) {
      over = true;
      atomic_fetch_add(&done, 1);
    }
    if (!next(side) && !over)
      atomic_fetch_add(&lost, 1);
  }
}

static void *serve(void *unused) {
  struct side side;
  (void)unused;
  side_open(&side, 1);
  if (perigee_listen(side.engine, address, &side.listener) != PERIGEE_OK)
    abort();
  snprintf(address, sizeof address, "%s",
           perigee_listener_address(side.listener));
  atomic_store(&listening, 1);
  while (side.count < SESSIONS)
    next(&side);
  talk(&side);
  perigee_engine_close(side.engine);
  return NULL;
}

static void dial(struct side *side) {
  for (int i = 0; i < SESSIONS; i++) {
    if (perigee_connect(side->engine, address, "slow", -1) < 0)
      abort();
    while (side->count <= i)
      if (!next(side))
        abort();
  }
}

static void stress(const struct perigee_transport *transport, const char *at) {
  struct side side;
  pthread_t server;
  slow_make(transport);
  started = real_now();
  atomic_store(&listening, 0);
  atomic_store(&done, 0);
  snprintf(address, sizeof address, at, (int)getpid());
  assert_int_equal(pthread_create(&server, NULL, serve, NULL), 0);
  while (!atomic_load(&listening))
    usleep(1000);
  side_open(&side, 2);
  dial(&side);
  talk(&side);
  perigee_engine_close(side.engine);
  pthread_join(server, NULL);
  assert_int_equal(atomic_load(&wrong), 0);
  assert_int_equal(atomic_load(&lost), 0);
}

static void no_session_is_left_lying_over_shm(void **state) {
  (void)state;
  stress(&transport_shm, "unix:@perigee-stress-parked-%d");
}

static void no_session_is_left_lying_over_tcp(void **state) {
  (void)state;
  stress(&transport_tcp, "tcp://127.0.0.1:0");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_session_is_left_lying_over_shm),
      cmocka_unit_test(no_session_is_left_lying_over_tcp),
  };
  return cmocka_run_group_tests_name("parked wakeups", tests, NULL, NULL);
}
