/* SPDX-License-Identifier: Apache-2.0
 *
 * dial_test.c - connects that end while their session is between two attempts:
 * a listener, played by hand, is crowded, and the dialer pauses before it tries
 * again. The clock is made up, so that several timers are due in one poll, as
 * after a stop of the process.
 */
#include "engine/polling.h"
#include "raw_peer.h"
#include "session/sessions.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const int64_t LIMIT = 50 * MS;
/* The pause has at least 1 ms and at most 4. */
static const int64_t PAUSES = 5 * MS;

static int64_t now;

static int64_t made_up(void *context) {
  (void)context;
  return now;
}

struct scene {
  struct perigee_engine *engine;
  struct perigee_session *session;
  char address[80];
  int door, op;
};

static int door_open(const char *path) {
  struct sockaddr_un un = {.sun_family = AF_UNIX};
  snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
  unlink(path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof un), 0);
  assert_int_equal(listen(fd, 8), 0);
  return fd;
}

static int poll_once(struct scene *s, struct perigee_event *e) {
  s->engine->sockets_due = true;
  return perigee_poll(s->engine, e, 1);
}

/* Is the session between two attempts? */
static bool pauses(const struct scene *s) {
  return s->session->state == PERIGEE_SESSION_NONE && s->session->dial;
}

/* The session pauses when little is left of the connect's time. */
static void set(struct scene *s) {
  const struct frame crowd = {.type = FRAME_REFUSE,
                              .refuse = {PERIGEE_AGAIN, "too many"}};
  struct perigee_options o;
  struct perigee_event e;
  now = 1000 * MS;
  perigee_options_init(&o, sizeof o);
  o.clock = made_up;
  assert_int_equal(perigee_engine_open(&o, &s->engine), 0);
  s->door = door_open(pair_path_next());
  snprintf(s->address, sizeof s->address, "unix:%s", pair_path_next());
  s->op = perigee_connect(s->engine, s->address, NULL, LIMIT);
  assert_true(s->op >= 0);
  s->session = s->engine->table[s->op].session;
  assert_int_equal(poll_once(s, &e), 0); /* the time begins */
  int fd = accept(s->door, NULL, NULL);
  assert_true(fd >= 0);
  say_frame(fd, &crowd, NULL, 0);
  close(fd);
  now += LIMIT - MS / 10;
  for (int i = 0; i < 8 && !pauses(s); i++)
    assert_int_equal(poll_once(s, &e), 0);
  assert_true(pauses(s));
}

/* The program hears of the end, once, and nothing is left of it. */
static void ends(struct scene *s, int status) {
  struct perigee_event e;
  assert_int_equal(poll_once(s, &e), 1);
  assert_int_equal(e.kind, PERIGEE_EVENT_CONNECTED);
  assert_int_equal(e.operation, s->op);
  assert_int_equal(e.status, status);
  now += 60000 * MS;
  assert_int_equal(poll_once(s, &e), 0);
  const struct perigee_counters *c = perigee_counters(s->engine, NULL);
  assert_int_equal(c->operations, 0);
  assert_int_equal(c->sessions, 0);
  perigee_engine_close(s->engine);
  close(s->door);
  unlink(s->address + strlen("unix:"));
}

/* After a long time timers come due in any order. */
static void it_ends_though_its_pause_is_over_at_the_same_time(void **state) {
  (void)state;
  for (int64_t stop = PAUSES; stop < 4000 * MS; stop += 333 * MS) {
    struct scene s;
    set(&s);
    now += stop;
    ends(&s, PERIGEE_TIMEOUT);
  }
}

static void it_ends_if_it_is_cancelled_when_its_pause_is_over(void **state) {
  (void)state;
  struct scene s;
  set(&s);
  perigee_cancel(s.engine, s.op);
  now += PAUSES;
  ends(&s, PERIGEE_CANCELLED);
}

/* An engine's thread finds the end; the program polls much later. */
static void it_does_not_dial_on_while_its_end_is_not_told(void **state) {
  (void)state;
  struct scene s;
  set(&s);
  now += MS / 10;
  engine_progress(s.engine);
  now += PAUSES;
  engine_progress(s.engine);
  assert_int_equal(accept(s.door, NULL, NULL), -1);
  now += 60000 * MS;
  engine_progress(s.engine);
  ends(&s, PERIGEE_TIMEOUT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(it_ends_though_its_pause_is_over_at_the_same_time),
      cmocka_unit_test(it_ends_if_it_is_cancelled_when_its_pause_is_over),
      cmocka_unit_test(it_does_not_dial_on_while_its_end_is_not_told),
  };
  return cmocka_run_group_tests_name("dial", tests, NULL, NULL);
}
