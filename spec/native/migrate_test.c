/* SPDX-License-Identifier: Apache-2.0
 *
 * migrate_test.c - two sides on one host: they notice it, their sessions move
 * to shared memory after both have proven it, and stay where they are if they
 * cannot move.
 */
#include "hand.h"
#include "session/sessions.h"
#include "raw_peer.h"
#include "support_inside.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const struct variant any = {"auto, host", NULL, "host", 1, NULL};

/* A long timeout, for busy machines: a session whose hello is late would
 * move back to TCP. */
static void patient(struct perigee_options *o) {
  perigee_options_init(o, sizeof *o);
  o->hello_timeout = 10000 * MS;
}

static void open_engines(struct pair *p, const char *secret,
                         const char *other) {
  struct perigee_options o;
  *p = (struct pair){.variant = &any};
  patient(&o);
  for (int i = 0; i < 2; i++) {
    o.secret = i ? other : secret;
    assert_int_equal(perigee_engine_open(&o, &p->engine[i]), 0);
  }
}

static void listen_at(struct pair *p, const char *address) {
  assert_int_equal(perigee_listen(p->engine[1], address, &p->listener), 0);
  snprintf(p->address, sizeof p->address, "%s",
           perigee_listener_address(p->listener));
}

static void open_port(struct pair *p) {
  open_engines(p, "", "");
  listen_at(p, "tcp://127.0.0.1:0");
}

static void open_path(struct pair *p) {
  char address[80];
  open_engines(p, "", "");
  snprintf(address, sizeof address, "unix:%s", pair_path_next());
  unlink(address + strlen("unix:"));
  listen_at(p, address);
}

static void dial(struct pair *p, const char *transport) {
  struct variant v = any;
  v.transport = transport;
  p->variant = &v;
  pair_dial(p, p->session);
  p->variant = &any;
  friend_served(p);
}

/* Both sides agree on the session's transport and address. */
static void carried_by(struct pair *p, const char *transport, const char *why) {
  for (int side = 0; side < 2; side++) {
    struct perigee_session_info info;
    perigee_session_describe(p->session[side], &info, sizeof info);
    assert_string_equal(info.transport, transport);
    assert_string_equal(info.address, p->address);
    if (!strstr(info.reason, why))
      fail_msg("\"%s\" says nothing of \"%s\"", info.reason, why);
  }
}

static void pid_known(struct pair *p, bool known) {
  struct perigee_session_info info;
  for (int side = 0; side < 2; side++) {
    perigee_session_describe(p->session[side], &info, sizeof info);
    assert_int_equal(info.pid, known ? getpid() : 0);
  }
}

/* ---- Moving ------------------------------------------------------------- */

static void called_over_tcp_it_moves_to_shared_memory(void **state) {
  (void)state;
  static const char *const wishes[] = {NULL, "auto", "shm"};
  for (int i = 0; i < 3; i++) {
    struct pair p;
    open_port(&p);
    dial(&p, wishes[i]);
    carried_by(&p, "shm", "moved from TCP to shared memory");
    pid_known(&p, true);
    assert_int_equal(perigee_counters(p.engine[1], NULL)->refused, 0);
    assert_int_equal(perigee_counters(p.engine[1], NULL)->sessions, 1);
    pair_close(&p);
  }
}

/* Encryption agreed over TCP does not apply to shared memory after the move. */
static void shared_memory_is_not_called_encrypted(void **state) {
  (void)state;
  struct perigee_options o;
  struct pair p = {.variant = &any};
  patient(&o);
  o.secret = "the secret of these tests";
  o.encrypt = 1;
  for (int i = 0; i < 2; i++)
    assert_int_equal(perigee_engine_open(&o, &p.engine[i]), 0);
  listen_at(&p, "tcp://127.0.0.1:0");
  dial(&p, NULL);
  carried_by(&p, "shm", "moved from TCP to shared memory");
  for (int side = 0; side < 2; side++) {
    struct perigee_session_info info;
    perigee_session_describe(p.session[side], &info, sizeof info);
    assert_false(info.encrypted || info.aes);
  }
  pair_close(&p);
}

static void asked_for_tcp_it_stays(void **state) {
  (void)state;
  struct pair p;
  open_port(&p);
  dial(&p, "tcp");
  carried_by(&p, "tcp", "");
  pid_known(&p, false);
  assert_true(on_same_host(p.session[0]) && on_same_host(p.session[1]));
  assert_null(moved_to(p.engine[1], false));
  pair_close(&p);
}

static void called_at_a_path_for_tcp_it_moves_to_loopback(void **state) {
  (void)state;
  struct pair p;
  open_path(&p);
  dial(&p, "tcp");
  carried_by(&p, "tcp", "TCP over loopback");
  pid_known(&p, true);
  assert_true(on_same_host(p.session[0]) && on_same_host(p.session[1]));
  pair_close(&p);
}

static void many_move_at_once(void **state) {
  (void)state;
  enum { MANY = 40 };
  struct pair p;
  open_port(&p);
  int connected = 0, accepted = 0;
  for (int i = 0; i < MANY; i++)
    assert_true(perigee_connect(p.engine[0], p.address, NULL, 20000 * MS) >= 0);
  for (int64_t end = clock_now() + 20000 * MS;
       connected + accepted < 2 * MANY && clock_now() < end;)
    for (int side = 0; side < 2; side++) {
      struct perigee_event e;
      poll_side(&p, side);
      while (taken(&p, side, &e)) {
        assert_int_equal(e.status, 0);
        *(side ? &accepted : &connected) += 1;
        struct perigee_session_info info;
        perigee_session_describe(perigee_session(p.engine[side], e.session),
                                 &info, sizeof info);
        assert_string_equal(info.transport, "shm");
      }
    }
  assert_int_equal(connected, MANY);
  assert_int_equal(accepted, MANY);
  pair_close(&p);
}

/* The peer hangs up at that point; others are let in meanwhile. */
static void who_was_sent_on_takes_no_place(void **state) {
  (void)state;
  struct perigee_options o;
  struct perigee_event e;
  struct perigee_engine *sent;
  struct pair p = {.variant = &any};
  for (int i = 0; i < 2; i++) {
    patient(&o);
    o.secret = "";
    o.hellos = i ? 1 : o.hellos;
    assert_int_equal(perigee_engine_open(&o, &p.engine[i]), 0);
  }
  listen_at(&p, "tcp://127.0.0.1:0");
  int op = perigee_connect(p.engine[0], p.address, NULL, 10000 * MS);
  for (int64_t end = clock_now() + 10000 * MS;
       !moved_to(p.engine[1], false) && clock_now() < end;)
    for (int side = 0; side < 2; side++)
      poll_side(&p, side);
  sent = p.engine[0];
  assert_int_equal(perigee_engine_open(&o, &p.engine[0]), 0);
  dial(&p, NULL);
  for (int64_t end = clock_now() + 10000 * MS;
       perigee_poll(sent, &e, 1) == 0 && clock_now() < end;)
    poll_side(&p, 1);
  assert_int_equal(e.operation, op);
  assert_int_equal(e.status, 0);
  until(&p, 1, PERIGEE_EVENT_ACCEPTED);
  assert_int_equal(perigee_counters(p.engine[1], NULL)->refused, 0);
  perigee_engine_close(sent);
  pair_drop(&p);
}

/* Nobody would take the session. */
static void who_was_sent_on_does_not_come_in_once_it_is_closed(void **state) {
  (void)state;
  struct pair p;
  open_port(&p);
  int op = perigee_connect(p.engine[0], p.address, NULL, 10000 * MS);
  for (int64_t end = clock_now() + 10000 * MS;
       !moved_to(p.engine[1], false) && clock_now() < end;)
    for (int side = 0; side < 2; side++)
      poll_side(&p, side);
  assert_true(moved_to(p.engine[1], false));
  perigee_listener_close(p.listener);
  p.listener = NULL;
  struct perigee_event e = until(&p, 0, PERIGEE_EVENT_CONNECTED);
  assert_int_equal(e.operation, op);
  assert_true(e.status < 0);
  quiet(&p, 10);
  pair_drop(&p);
}

/* The peer lets itself be told to move, again and again, and never does. */
static void who_takes_all_tickets_leaves_some_to_others(void **state) {
  (void)state;
  enum { TICKETS = 64, MORE = 8 };
  struct pair p;
  struct hand hands[TICKETS + MORE];
  uint8_t name[HELLO_LOCAL];
  open_port(&p);
  struct perigee_engine *other = hand_named(name);
  for (int i = 0; i < TICKETS + MORE; i++) {
    hand_come(&hands[i], p.engine[1], true);
    assert_int_equal(hand_moves(&hands[i], p.engine[1]->secret, name, 1),
                     i < TICKETS);
  }
  for (int i = 0; i < MORE; i++) {
    dial(&p, NULL);
    carried_by(&p, "shm", "moved from TCP to shared memory");
  }
  for (int i = 0; i < TICKETS + MORE; i++)
    hand_close(&hands[i]);
  perigee_engine_close(other);
  quiet(&p, 200);
  pair_drop(&p);
}

/* The peer claims to be another each time, and takes the tickets of others. */
static void nobody_is_sent_on_more_often_than_there_are_tickets(void **state) {
  (void)state;
  enum { TICKETS = 64, CAME = 3 * TICKETS };
  struct pair p;
  struct hand hands[CAME];
  uint8_t name[HELLO_LOCAL];
  open_port(&p);
  struct perigee_engine *other = hand_named(name);
  for (int i = 0; i < CAME; i++) {
    hand_come(&hands[i], p.engine[1], true);
    assert_true(
        hand_moves(&hands[i], p.engine[1]->secret, name, (uint64_t)i + 1));
  }
  quiet(&p, 3);
  assert_int_equal(perigee_counters(p.engine[1], NULL)->sessions, TICKETS);
  dial(&p, NULL);
  carried_by(&p, "shm", "moved from TCP to shared memory");
  for (int i = 0; i < CAME; i++)
    hand_close(&hands[i]);
  perigee_engine_close(other);
  quiet(&p, 200);
  pair_drop(&p);
}

/* ---- Before that -------------------------------------------------------- */

static void refused(struct pair *p, const char *transport, int status) {
  int op = perigee_connect(p->engine[0], p->address, transport, 10000 * MS);
  ended(p, 0, op, status);
  for (int64_t end = clock_now() + AT_ONCE;
       perigee_counters(p->engine[1], NULL)->sessions > 0 && clock_now() < end;)
    quiet(p, 3);
  assert_int_equal(perigee_counters(p->engine[1], NULL)->sessions, 0);
}

static void the_secret_is_proven_first(void **state) {
  (void)state;
  static const char *const wishes[] = {NULL, "shm", "tcp"};
  static const char right[] = "sixteen bytes and more";
  for (int i = 0; i < 3; i++) {
    struct pair p;
    open_engines(&p, "some other secret here", right);
    listen_at(&p, "tcp://127.0.0.1:0");
    refused(&p, wishes[i], PERIGEE_DENIED);
    pair_close(&p);
    open_engines(&p, "", right);
    listen_at(&p, "tcp://127.0.0.1:0");
    refused(&p, wishes[i], PERIGEE_DENIED);
    pair_close(&p);
    open_engines(&p, right, right);
    listen_at(&p, "tcp://127.0.0.1:0");
    dial(&p, wishes[i]);
    pair_close(&p);
  }
}

/* ---- Staying ------------------------------------------------------------ */

static void who_cannot_move_stays(void **state) {
  (void)state;
  for (int tcp = 0; tcp < 2; tcp++) {
    struct pair p;
    struct perigee_session *first[2];
    tcp ? open_path(&p) : open_port(&p);
    dial(&p, tcp ? "tcp" : NULL);
    memcpy(first, p.session, sizeof first);
    deafen(moved_to(p.engine[1], tcp));
    dial(&p, tcp ? "tcp" : NULL);
    carried_by(&p, "tcp", "");
    struct perigee_session_info info;
    perigee_session_describe(p.session[0], &info, sizeof info);
    assert_non_null(strstr(info.reason, "could not move"));
    pair_close(&p);
  }
}

/* Returns the engine's door, which the engine makes now or has made, or -1. */
static int door_of(struct perigee_engine *engine) {
  struct perigee_session any_session = {.engine = engine, .tcp = true};
  struct terms t = {0};
  struct sockaddr_un un;
  char name[64] = "perigee-";
  size_t at = strlen(name);
  migrate_terms(&any_session, &t);
  for (int i = 0; i < HELLO_LOCAL; i++, at += 2)
    snprintf(name + at, sizeof name - at, "%02x", t.local[i]);
  snprintf(name + at, sizeof name - at, "?");
  for (int fd = 0; fd < 1024; fd++) {
    socklen_t length = sizeof un;
    memset(&un, 0, sizeof un);
    if (getsockname(fd, (struct sockaddr *)&un, &length) == 0 &&
        un.sun_family == AF_UNIX && strcmp(un.sun_path + 1, name) == 0)
      return fd;
  }
  return -1;
}

/* As for a dialer that has no descriptor left, or may not connect to sockets
 * without a path. The listener has seen that both are on one host. */
static void who_does_not_reach_the_door_moves_if_it_is_told_to(void **state) {
  (void)state;
  struct pair p;
  struct perigee_session *first[2];
  open_port(&p);
  int door = door_of(p.engine[1]), nowhere = socket_new(AF_UNIX);
  assert_true(door >= 0);
  dup2(nowhere, door);
  close(nowhere);
  dial(&p, NULL);
  carried_by(&p, "shm", "moved from TCP to shared memory");
  memcpy(first, p.session, sizeof first);
  deafen(moved_to(p.engine[1], false));
  dial(&p, NULL);
  carried_by(&p, "tcp", "");
  pair_close(&p);
}

/* Its name is no place then, where a session could move to. */
static void who_has_no_door_sends_nobody_on(void **state) {
  (void)state;
  struct pair p;
  struct rlimit all, none;
  open_port(&p);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
  none = (struct rlimit){0, all.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
  int door = door_of(p.engine[1]);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
  assert_int_equal(door, -1);
  for (int i = 0; i < 2; i++) {
    dial(&p, NULL);
    carried_by(&p, "tcp", "");
  }
  assert_null(moved_to(p.engine[1], false));
  pair_close(&p);
}

static void but_not_where_only_memory_will_do(void **state) {
  (void)state;
  struct pair p;
  open_port(&p);
  dial(&p, "shm");
  deafen(moved_to(p.engine[1], false));
  int op = perigee_connect(p.engine[0], p.address, "shm", 10000 * MS);
  ended(&p, 0, op, PERIGEE_NOT_FOUND);
  friend_served(&p);
  pair_close(&p);
}

static void an_engine_is_not_its_own_local_peer(void **state) {
  (void)state;
  struct pair p;
  open_port(&p);
  int op = perigee_connect(p.engine[1], p.address, NULL, 10000 * MS);
  struct perigee_event e[2];
  for (int i = 0; i < 2; i++)
    e[i] = until(&p, 1, i ? PERIGEE_EVENT_CONNECTED : PERIGEE_EVENT_ACCEPTED);
  assert_int_equal(e[1].operation, op);
  assert_int_equal(e[1].status, 0);
  pair_drop(&p);
}

/* ---- Those who were not sent --------------------------------------------- */

static int visit_place(struct perigee_listener *l) {
  struct address to;
  char reason[ADDRESS_REASON];
  address_parse(perigee_listener_address(l), &to, reason);
  int fd = socket(to.at.any.sa_family,
                  SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  (void)!connect(fd, &to.at.any, to.length);
  return fd;
}

static void without_a_ticket_nobody_comes_in(void **state) {
  (void)state;
  for (int tcp = 0; tcp < 2; tcp++) {
    struct pair p;
    tcp ? open_path(&p) : open_port(&p);
    dial(&p, tcp ? "tcp" : NULL);
    for (uint64_t ticket = 0; ticket < 3; ticket++) {
      struct frame f = good_hello();
      f.hello.ticket = ticket;
      int fd = visit_place(moved_to(p.engine[1], tcp));
      quiet(&p, 2);
      say_frame(fd, &f, NULL, 0);
      until_cut(&p, fd);
    }
    assert_int_equal(perigee_counters(p.engine[1], NULL)->refused, 3);
    /* Nor whole engines that know the place. */
    int op = perigee_connect(
        p.engine[0], perigee_listener_address(moved_to(p.engine[1], tcp)), NULL,
        10000 * MS);
    ended(&p, 0, op, PERIGEE_DENIED);
    friend_served(&p);
    close_to_raw_peers(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(called_over_tcp_it_moves_to_shared_memory),
      cmocka_unit_test(shared_memory_is_not_called_encrypted),
      cmocka_unit_test(asked_for_tcp_it_stays),
      cmocka_unit_test(called_at_a_path_for_tcp_it_moves_to_loopback),
      cmocka_unit_test(many_move_at_once),
      cmocka_unit_test(who_was_sent_on_takes_no_place),
      cmocka_unit_test(who_was_sent_on_does_not_come_in_once_it_is_closed),
      cmocka_unit_test(who_takes_all_tickets_leaves_some_to_others),
      cmocka_unit_test(nobody_is_sent_on_more_often_than_there_are_tickets),
      cmocka_unit_test(the_secret_is_proven_first),
      cmocka_unit_test(who_cannot_move_stays),
      cmocka_unit_test(who_does_not_reach_the_door_moves_if_it_is_told_to),
      cmocka_unit_test(who_has_no_door_sends_nobody_on),
      cmocka_unit_test(but_not_where_only_memory_will_do),
      cmocka_unit_test(an_engine_is_not_its_own_local_peer),
      cmocka_unit_test(without_a_ticket_nobody_comes_in),
  };
  return cmocka_run_group_tests_name("migrate", tests, NULL, NULL);
}
