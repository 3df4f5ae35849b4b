/* SPDX-License-Identifier: Apache-2.0
 *
 * parked_test.c - the cost of idle sessions, counted: a transport around the
 * real one counts how often a lane is polled and how often it is armed, and
 * spoils records once they are released. There
 * are two engines in one thread and hundreds of sessions between them. The test
 * moves the clock, so that sessions become idle at once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/socket.h>
#include <unistd.h>

#include "support.h"
#include "transport/transport.h"

enum { MANY = 300, FEW = 3, POLLS = 1000 };
static const int64_t LONG_AGO = 1000000000;

/* ---- The transport that counts -------------------------------------------- */

static struct perigee_transport counted;
static struct transport_records records;
static struct transport_sleep sleeping;
static const struct perigee_transport *const transports[] = {&counted, NULL};
static const struct perigee_transport *real;
static uint64_t looks, arms;

/* Records that were peeked and not released yet. Their bytes are spoilt once
 * they are released. */
static struct peeked {
  struct lane *lane;
  uint8_t *bytes;
  uint64_t length;
} peeked[16];

static int counted_open(const struct lane_options *options, struct lane **lane,
                        struct offer *offer, char *reason) {
  int status = real->open(options, lane, offer, reason);
  if (status == PERIGEE_OK)
    lane_by(*lane, &counted);
  return status;
}

static int counted_peek(struct lane *lane, enum ring ring,
                        const uint8_t **bytes, uint64_t *length) {
  looks++;
  int status = real->records->peek(lane, ring, bytes, length);
  for (int i = 0; i < 16 && status == 1; i++)
    if (!peeked[i].lane) {
      peeked[i] = (struct peeked){lane, (uint8_t *)(uintptr_t)*bytes, *length};
      break;
    }
  return status;
}

static bool counted_release(struct lane *lane) {
  enum { WORD = 8 }; /* the transport's own */
  for (int i = 0; i < 16; i++)
    if (peeked[i].lane == lane) {
      memset(peeked[i].bytes + WORD, 0xdd, peeked[i].length - WORD);
      peeked[i].lane = NULL;
    }
  return real->records->release(lane);
}

static void counted_arm(struct lane *lane) {
  arms++;
  real->sleep->arm(lane);
}

static void count(const struct perigee_transport *transport) {
  real = transport;
  counted = *transport;
  counted.name = "counted";
  counted.open = counted_open;
  records = *transport->records;
  records.peek = counted_peek;
  records.release = counted_release;
  counted.records = &records;
  sleeping = *transport->sleep;
  sleeping.arm = counted_arm;
  counted.sleep = &sleeping;
}

/* ---- Two engines ----------------------------------------------------------- */

struct side {
  struct perigee_engine *engine;
  struct perigee_session *session[MANY];
  uint32_t id[MANY];
  int count;
};

static struct side caller, server;
static struct perigee_listener *listener;
static int64_t moved_on;

static int64_t own_clock(void *context) {
  (void)context;
  return clock_now() + moved_on;
}

static int open_both(void **state) {
  const char *address = *state == &transport_tcp
                            ? "tcp://127.0.0.1:0"
                            : "unix:@perigee-spec-parked-%d";
  char own[80];
  struct perigee_options o;
  count(*state);
  perigee_options_init(&o, sizeof o);
  o.transports = transports;
  o.clock = own_clock;
  o.serving = 4;
  o.streams = 1;
  caller = server = (struct side){0};
  memset(peeked, 0, sizeof peeked);
  snprintf(own, sizeof own, address, (int)getpid());
  assert_int_equal(perigee_engine_open(&o, &caller.engine), 0);
  assert_int_equal(perigee_engine_open(&o, &server.engine), 0);
  assert_int_equal(perigee_listen(server.engine, own, &listener), 0);
  return 0;
}

static int close_both(void **state) {
  (void)state;
  perigee_engine_close(caller.engine);
  perigee_engine_close(server.engine);
  return 0;
}

/* Polls once; returns the event, or one of kind 0. */
static struct perigee_event poll_once(struct side *side) {
  struct perigee_event e = {0};
  perigee_poll(side->engine, &e, 1);
  if (e.kind == PERIGEE_EVENT_ACCEPTED || e.kind == PERIGEE_EVENT_CONNECTED) {
    assert_int_equal(e.status, 0);
    side->id[side->count] = e.session;
    side->session[side->count++] = perigee_session(side->engine, e.session);
  }
  return e;
}

static void dial(int sessions) {
  while (caller.count < sessions) {
    int before = caller.count;
    assert_true(perigee_connect(caller.engine,
                                perigee_listener_address(listener), "counted",
                                5000 * MS) >= 0);
    while (caller.count == before || server.count == before) {
      poll_once(&caller);
      poll_once(&server);
    }
  }
}

/* Polls; no event may come. */
static void pass(int polls) {
  for (int i = 0; i < polls; i++) {
    assert_int_equal(poll_once(&caller).kind, 0);
    assert_int_equal(poll_once(&server).kind, 0);
  }
}

/* Polls for as long as sockets may still report earlier traffic. */
static void let_idle(void) {
  for (int i = 0; i < 10; i++) {
    pass(200);
    moved_on += LONG_AGO;
  }
  pass(200);
}

static struct perigee_event next_of(struct side *side, int kind) {
  struct side *other = side == &caller ? &server : &caller;
  int64_t end = clock_now() + 10000 * MS;
  while (clock_now() < end) {
    struct perigee_event e = poll_once(side);
    if (e.kind == kind)
      return e;
    assert_int_equal(e.kind, 0);
    assert_int_equal(poll_once(other).kind, 0);
  }
  fail_msg("event %d never came", kind);
  return (struct perigee_event){0};
}

/* The other side handles what has already arrived. */
static struct perigee_event found_by(struct side *side) {
  struct perigee_event e = {0};
  for (int i = 0; i < POLLS && e.kind == PERIGEE_EVENT_NONE; i++)
    e = poll_once(side);
  assert_int_equal(e.kind, PERIGEE_EVENT_REQUEST);
  return e;
}

static int call(struct side *side, int i, uint64_t number) {
  struct perigee_message m = {
      .head = &number, .length = sizeof number, .timeout = -1};
  int op = perigee_call(side->session[i], &m);
  assert_true(op >= 0);
  return op;
}

static uint64_t number_of(const struct perigee_event *e) {
  uint64_t number = 0;
  assert_int_equal(e->length, sizeof number);
  memcpy(&number, e->pointer, sizeof number);
  return number;
}

static void answer(struct side *side, const struct perigee_event *request) {
  struct perigee_message m = {.head = request->pointer,
                              .length = request->length};
  assert_int_equal(perigee_reply(side->engine, request->operation, &m), 0);
}

/* Makes a call from one side over its session i, and gets the reply. */
static void echo(struct side *from, int i, uint64_t number) {
  struct side *to = from == &caller ? &server : &caller;
  call(from, i, number);
  struct perigee_event e = next_of(to, PERIGEE_EVENT_REQUEST);
  assert_int_equal(number_of(&e), number);
  answer(to, &e);
  e = next_of(from, PERIGEE_EVENT_REPLY);
  assert_int_equal(number_of(&e), number);
}

/* The session used last is never parked. */
static void park_all_but(int i) {
  pass(100); /* what was used before was used earlier */
  moved_on += MS;
  pass(100);
  echo(&caller, i, 5);
  let_idle();
}

/* ---- What they cost -------------------------------------------------------- */

static uint64_t looks_of(int sessions) {
  dial(sessions);
  let_idle();
  echo(&caller, 0, 1);
  looks = 0;
  for (int i = 0; i < POLLS; i++) {
    poll_once(&caller);
    poll_once(&server);
  }
  return looks;
}

static void polls_look_at_no_idle_session(void **state) {
  (void)state;
  uint64_t few = looks_of(FEW), many = looks_of(MANY);
  assert_true(few >= 2 * POLLS); /* there is somebody to look at */
  assert_true(many <= few + few / 8);
}

static void arming_touches_no_idle_session(void **state) {
  (void)state;
  dial(MANY);
  let_idle();
  int64_t nap;
  arms = looks = 0;
  for (int i = 0; i < 10; i++) {
    struct perigee_event e;
    if (perigee_arm(server.engine, &nap) == 1 || i % 2)
      perigee_poll(server.engine, &e, 1);
  }
  assert_in_range(arms, 1, 30);
  assert_in_range(looks, 1, 100);
}

/* ---- Coming back ----------------------------------------------------------- */

static void whoever_was_parked_is_heard_again(void **state) {
  (void)state;
  dial(MANY);
  let_idle();
  for (int i = 0; i < MANY; i++)
    echo(&caller, i, 100 + (uint64_t)i);
  let_idle();
  for (int i = MANY; i-- > 0;)
    echo(&server, i, 1000 + (uint64_t)i);
}

static void the_end_of_who_was_parked_is_told(void **state) {
  (void)state;
  dial(FEW);
  let_idle();
  for (int i = 0; i < FEW; i++) {
    perigee_session_free(caller.session[i]);
    struct perigee_event e = next_of(&server, PERIGEE_EVENT_LOST);
    assert_int_equal(e.session, server.id[i]);
  }
}

static void both_sides_sleep_and_wake(void **state) {
  (void)state;
  dial(FEW);
  let_idle();
  for (int i = 0; i < FEW; i++) {
    int64_t nap;
    while (perigee_arm(server.engine, &nap) == 1)
      assert_int_equal(poll_once(&server).kind, 0);
    call(&caller, i, 7);
    for (int k = 0; k < 100; k++) /* TCP sends in a poll */
      assert_int_equal(poll_once(&caller).kind, 0);
    assert_int_equal(perigee_wait(&server.engine, 1, 5000 * MS), 1);
    struct perigee_event e = next_of(&server, PERIGEE_EVENT_REQUEST);
    answer(&server, &e);
    next_of(&caller, PERIGEE_EVENT_REPLY);
    let_idle();
  }
}

/* A request that cannot be taken now is no reason for its session to leave
 * the list. */
static void what_waits_for_room_is_not_left_lying(void **state) {
  (void)state;
  struct perigee_event held[4];
  dial(FEW);
  for (int i = 0; i < 4; i++) {
    call(&caller, 0, (uint64_t)i);
    held[i] = next_of(&server, PERIGEE_EVENT_REQUEST);
  }
  call(&caller, 0, 4); /* beyond option serving, which is a session's */
  park_all_but(1);
  struct perigee_message m = {0};
  assert_int_equal(perigee_reply(server.engine, held[0].operation, &m), 0);
  struct perigee_event e = next_of(&server, PERIGEE_EVENT_REQUEST);
  assert_int_equal(number_of(&e), 4);
}

/* Nor is one that may not overtake another, whose slice has no destination
 * yet. */
static void what_waits_for_a_landing_is_not_left_lying(void **state) {
  (void)state;
  struct perigee_region *region;
  struct perigee_message refused = {.status = PERIGEE_REMOTE};
  dial(FEW);
  assert_int_equal(
      perigee_region_alloc(caller.engine, NULL, 64, 0, "host", &region), 0);
  for (int i = 0; i < 2; i++) {
    struct perigee_message m = {
        .flags = PERIGEE_TYPED, .slice = all_of(region, 64), .timeout = -1};
    assert_true(perigee_call(caller.session[0], &m) >= 0);
    struct perigee_event e = next_of(&server, PERIGEE_EVENT_LANDING);
    call(&caller, 0, 5); /* behind it */
    park_all_but(1);
    if (i == 0) {
      assert_int_equal(perigee_land(server.engine, e.operation, NULL), 0);
      e = found_by(&server);
      perigee_pool_free(server.engine, e.landed);
    }
    assert_int_equal(perigee_reply(server.engine, e.operation, &refused), 0);
    e = found_by(&server);
    assert_int_equal(number_of(&e), 5);
    answer(&server, &e);
    for (int k = 0; k < 2; k++)
      next_of(&caller, PERIGEE_EVENT_REPLY);
  }
  assert_int_equal(perigee_region_close(region, false), 0);
}

/* The caller takes long to say where a reply lands; both sides are idle. */
static void an_idle_session_brings_a_reply_that_lands_late(void **state) {
  (void)state;
  static const uint64_t lengths[] = {64, 3 * MIB};
  struct perigee_region *from, *to;
  dial(FEW);
  assert_int_equal(
      perigee_region_alloc(server.engine, NULL, 3 * MIB, 0, NULL, &from), 0);
  assert_int_equal(
      perigee_region_alloc(caller.engine, NULL, 3 * MIB, 0, NULL, &to), 0);
  memset(perigee_region_pointer(from), 0x5a, 3 * MIB);
  for (int i = 0; i < 2; i++) {
    struct perigee_message m = {.flags = PERIGEE_ASKS, .timeout = -1};
    struct perigee_message r = {.slice = all_of(from, lengths[i])};
    struct perigee_slice place = all_of(to, lengths[i]);
    int operation = perigee_call(caller.session[0], &m);
    struct perigee_event e = next_of(&server, PERIGEE_EVENT_REQUEST);
    int sent = perigee_reply(server.engine, e.operation, &r);
    next_of(&caller, PERIGEE_EVENT_REPLY_LANDING);
    echo(&caller, 1, 8);
    let_idle();
    assert_int_equal(perigee_land_reply(caller.engine, operation, &place), 0);
    e = next_of(&caller, PERIGEE_EVENT_REPLY);
    assert_int_equal(e.status, 0);
    same(to, 0, perigee_region_pointer(from), lengths[i]);
    if (sent == 1)
      next_of(&server, PERIGEE_EVENT_SENT);
  }
  pass(10);
  assert_int_equal(perigee_region_close(from, false), 0);
  assert_int_equal(perigee_region_close(to, false), 0);
}

/* What an event points to stays as it is until the next poll. */
static void a_late_reply_is_not_released_before_it_is_given(void **state) {
  (void)state;
  uint64_t number = 77;
  struct perigee_message reply = {.head = &number, .length = sizeof number};
  struct perigee_event e[8];
  dial(FEW);
  call(&caller, 0, 7);
  struct perigee_event request = next_of(&server, PERIGEE_EVENT_REQUEST);
  park_all_but(1);
  assert_int_equal(perigee_reply(server.engine, request.operation, &reply), 0);
  int64_t end = clock_now() + 10000 * MS;
  while (perigee_poll(caller.engine, e, 8) == 0 && clock_now() < end)
    assert_int_equal(poll_once(&server).kind, 0);
  assert_true(clock_now() < end);
  assert_int_equal(e->kind, PERIGEE_EVENT_REPLY);
  assert_int_equal(number_of(e), 77);
}

#define TEST(function, transport)                                              \
  {                                                                            \
#function " (" #transport ")", function, open_both, close_both,            \
        (void *)(uintptr_t)&transport_##transport                              \
  }
#define BOTH(function) TEST(function, shm), TEST(function, tcp)

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(polls_look_at_no_idle_session),
      BOTH(arming_touches_no_idle_session),
      BOTH(whoever_was_parked_is_heard_again),
      BOTH(the_end_of_who_was_parked_is_told),
      BOTH(both_sides_sleep_and_wake),
      BOTH(what_waits_for_room_is_not_left_lying),
      BOTH(what_waits_for_a_landing_is_not_left_lying),
      BOTH(an_idle_session_brings_a_reply_that_lands_late),
      BOTH(a_late_reply_is_not_released_before_it_is_given),
  };
  return cmocka_run_group_tests_name("parked", tests, NULL, NULL);
}
