/* SPDX-License-Identifier: Apache-2.0
 *
 * stress_wakeup_test.c - two threads, an engine each, that call each other and
 * sleep at once when there is nothing to do (no spinning). A transport around
 * that of shared memory pauses for random times between a record's publication
 * and the check whether its reader sleeps, and between arming and the last
 * poll. A lost wake-up shows as a sleep that ends by its own timeout while a
 * record is on its way.
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
#include <unistd.h>

#include <cmocka.h>

#include "perigee.h"
#include "transport/transport.h"

enum { CALLS = 30000, WINDOW = 3 };
static const int64_t SECOND = 1000000000;

static char address[96];
static atomic_int listening, lost, wrong;

/* ---- The transport that pauses ------------------------------------------ */

static _Thread_local uint64_t seed;
static struct perigee_transport slow;
static struct transport_sleep sleeping;

static uint32_t random_below(uint32_t limit) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(seed >> 33) % limit;
}

/* No pause every second time, otherwise up to some ten microseconds. */
static void pause_a_little(void) {
  uint32_t turns = random_below(2) ? random_below(8192) : 0;
  for (volatile uint32_t i = 0; i < turns; i++)
    ;
}

static int slow_open(const struct lane_options *options, struct lane **lane,
                     struct offer *offer, char *reason) {
  int status = transport_shm.open(options, lane, offer, reason);
  if (status == PERIGEE_OK)
    lane_by(*lane, &slow);
  return status;
}

static void slow_arm(struct lane *lane) {
  transport_shm.sleep->arm(lane);
  pause_a_little();
}

static bool slow_wanted(struct lane *lane) {
  pause_a_little();
  return transport_shm.sleep->wanted(lane);
}

static const struct perigee_transport *const transports[] = {&slow, NULL};

static void slow_make(void) {
  slow = transport_shm;
  slow.name = "slow";
  slow.open = slow_open;
  sleeping = *transport_shm.sleep;
  sleeping.arm = slow_arm;
  sleeping.wanted = slow_wanted;
  slow.sleep = &sleeping;
}

/* ---- The two sides ------------------------------------------------------ */

struct side {
  struct perigee_engine *engine;
  struct perigee_event event;
};

static void side_open(struct side *side, uint64_t own_seed) {
  struct perigee_options options;
  perigee_options_init(&options, sizeof options);
  options.spin = 0;
  options.transports = transports;
  seed = own_seed;
  if (perigee_engine_open(&options, &side->engine) != PERIGEE_OK)
    abort();
}

/* The next event; sleeps until it comes. */
static void next(struct side *side) {
  while (perigee_poll(side->engine, &side->event, 1) == 0) {
    pause_a_little();
    if (perigee_wait(&side->engine, 1, 2 * SECOND) == 0 &&
        perigee_poll(side->engine, &side->event, 1) == 1) {
      atomic_fetch_add(&lost, 1);
      return;
    }
    pause_a_little();
  }
}

static void serve_one(struct side *side) {
  struct perigee_message reply = {.head = side->event.pointer,
                                  .length = side->event.length};
  pause_a_little();
  perigee_reply(side->engine, side->event.operation, &reply);
}

static void *serve(void *unused) {
  struct side side;
  struct perigee_listener *listener;
  (void)unused;
  side_open(&side, 1);
  if (perigee_listen(side.engine, address, &listener) != PERIGEE_OK)
    abort();
  atomic_store(&listening, 1);
  do {
    next(&side);
    if (side.event.kind == PERIGEE_EVENT_REQUEST)
      serve_one(&side);
  } while (side.event.kind != PERIGEE_EVENT_LOST);
  perigee_engine_close(side.engine);
  return NULL;
}

static struct perigee_session *dial(struct side *side) {
  if (perigee_connect(side->engine, address, "slow", 5 * SECOND) < 0)
    abort();
  next(side);
  if (side->event.kind != PERIGEE_EVENT_CONNECTED || side->event.status != 0)
    abort();
  return perigee_session(side->engine, side->event.session);
}

static void call(struct perigee_session *session, uint64_t number) {
  struct perigee_message message = {
      .head = &number, .length = sizeof number, .timeout = -1};
  pause_a_little();
  if (perigee_call(session, &message) < 0)
    abort();
}

static void take_reply(struct side *side, uint64_t number) {
  uint64_t got = UINT64_MAX;
  next(side);
  if (side->event.kind == PERIGEE_EVENT_REPLY && side->event.length == 8)
    memcpy(&got, side->event.pointer, 8);
  if (got != number)
    atomic_fetch_add(&wrong, 1);
}

static void no_wake_up_is_lost(void **state) {
  (void)state;
  struct side side;
  pthread_t server;
  slow_make();
  snprintf(address, sizeof address, "unix:/tmp/perigee-stress-%d", getpid());
  unlink(address + strlen("unix:")); /* left by one that was killed */
  assert_int_equal(pthread_create(&server, NULL, serve, NULL), 0);
  while (!atomic_load(&listening))
    usleep(1000);
  side_open(&side, 2);
  struct perigee_session *session = dial(&side);
  uint64_t sent = 0, got = 0;
  while (got < CALLS) {
    while (sent < CALLS && sent - got < 1 + sent % WINDOW)
      call(session, sent++);
    take_reply(&side, got++);
  }
  perigee_engine_close(side.engine);
  pthread_join(server, NULL);
  assert_int_equal(atomic_load(&wrong), 0);
  assert_int_equal(atomic_load(&lost), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_wake_up_is_lost),
  };
  return cmocka_run_group_tests_name("wakeups", tests, NULL, NULL);
}
