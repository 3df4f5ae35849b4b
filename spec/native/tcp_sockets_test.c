/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_sockets_test.c - listening and dialing over TCP, and connections to a
 * port: scans, other protocols, silence, crowds, lies about lengths, frames
 * byte by byte. The transport is the specs' own, so that only the sockets are
 * tested.
 */
#include "session/sessions.h"
#include "raw_peer.h"
#include "support_inside.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct variant inproc = {"inproc, host", "inproc", "host", 0,
                                      NULL};

static void open_engines(struct pair *p, bool insecure) {
  struct perigee_options o;
  *p = (struct pair){.variant = &inproc};
  variant_options(&inproc, &o);
  o.hello_timeout = PATIENCE;
  o.hellos = HELLOS;
  o.secret = "";
  o.insecure = insecure;
  for (int i = 0; i < 2; i++)
    assert_int_equal(perigee_engine_open(&o, &p->engine[i]), 0);
}

static void open_at(struct pair *p, const char *address) {
  open_engines(p, true);
  assert_int_equal(perigee_listen(p->engine[1], address, &p->listener), 0);
  snprintf(p->address, sizeof p->address, "%s",
           perigee_listener_address(p->listener));
  pair_dial(p, p->session);
}

static void open_port(struct pair *p) {
  open_at(p, "tcp://127.0.0.1:0");
}

static int port_of(const struct pair *p) {
  return atoi(strrchr(p->address, ':') + 1);
}

/* A socket to the listener. */
static int raw_connect(struct pair *p) {
  struct sockaddr_in in = {.sin_family = AF_INET,
                           .sin_port = htons((uint16_t)port_of(p)),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  assert_true(fd >= 0);
  assert_true(connect(fd, (struct sockaddr *)&in, sizeof in) == 0 ||
              errno == EINPROGRESS);
  return fd;
}

/* The end of a dial that cannot succeed, and the reason given. */
static void fails(struct pair *p, const char *address, int64_t timeout,
                  int status, const char *said) {
  int op = perigee_connect(p->engine[0], address, NULL, timeout);
  struct perigee_event e = ended(p, 0, op, status);
  if (said && (!e.pointer || !strstr((const char *)e.pointer, said)) &&
      !strstr(perigee_detail(p->engine[0]), said))
    fail_msg("%s: %s", address, perigee_detail(p->engine[0]));
}

/* ---- Addresses ---------------------------------------------------------- */

static void sessions_over_both_families(void **state) {
  (void)state;
  static const char addresses[][24] = {"tcp://127.0.0.1:0", "tcp://[::1]:0",
                                       "tcp://localhost:0"};
  for (int i = 0; i < 3; i++) {
    struct pair p;
    struct perigee_session_info info;
    open_at(&p, addresses[i]);
    friend_served(&p);
    assert_true(port_of(&p) > 0);
    perigee_session_describe(p.session[0], &info, sizeof info);
    assert_string_equal(info.address, p.address);
    assert_string_equal(info.peer, p.address);
    perigee_session_describe(p.session[1], &info, sizeof info);
    assert_string_equal(info.address, p.address);
    assert_true(strncmp(info.peer, "tcp://", 6) == 0);
    assert_int_equal(info.pid, 0);
    pair_close(&p);
  }
}

/* One of its addresses has no listener; it may have no IPv6 address at all. */
static void all_addresses_of_a_name_are_tried(void **state) {
  (void)state;
  static const char addresses[][24] = {"tcp://127.0.0.1:0", "tcp://[::1]:0"};
  static const int families[] = {AF_INET, AF_INET6};
  int good = 0;
  for (int i = 0; i < 2; i++) {
    struct pair p;
    open_at(&p, addresses[i]);
    bool has = looked_up(p.engine[0], "tcp://localhost:1", families[i]);
    snprintf(p.address, sizeof p.address, "tcp://localhost:%d", port_of(&p));
    ended(&p, 0, perigee_connect(p.engine[0], p.address, "inproc", 5000 * MS),
          has ? PERIGEE_OK : PERIGEE_NOT_FOUND);
    if (has)
      until(&p, 1, PERIGEE_EVENT_ACCEPTED);
    pair_close(&p);
    good += has;
  }
  assert_true(good >= 1);
}

static void listening_beyond_loopback_needs_a_secret(void **state) {
  (void)state;
  struct pair p;
  open_engines(&p, false);
  static const char addresses[][24] = {"tcp://0.0.0.0:0", "tcp://[::]:0"};
  for (int i = 0; i < 2; i++) {
    assert_int_equal(perigee_listen(p.engine[1], addresses[i], &p.listener),
                     PERIGEE_DENIED);
    assert_non_null(strstr(perigee_detail(p.engine[1]), "secret"));
    assert_non_null(strstr(perigee_detail(p.engine[1]), "insecure"));
  }
  assert_int_equal(
      perigee_listen(p.engine[1], "tcp://127.0.0.1:0", &p.listener), 0);
  assert_false(perigee_listener_insecure(p.listener));
  pair_drop(&p);
  open_engines(&p, true);
  assert_int_equal(perigee_listen(p.engine[1], "tcp://0.0.0.0:0", &p.listener),
                   0);
  assert_true(perigee_listener_insecure(p.listener));
  pair_drop(&p);
}

static void several_listeners(void **state) {
  (void)state;
  struct pair p;
  struct perigee_listener *more[2];
  struct perigee_session *late[2];
  open_port(&p);
  char first[sizeof p.address];
  memcpy(first, p.address, sizeof first);
  assert_int_equal(perigee_listen(p.engine[1], first, &more[0]),
                   PERIGEE_NAME_TAKEN);
  assert_int_equal(perigee_listen(p.engine[1], "tcp://[::1]:0", &more[0]), 0);
  assert_int_equal(perigee_listen(p.engine[1], "tcp://127.0.0.1:0", &more[1]),
                   0);
  for (int i = 0; i < 2; i++) {
    struct perigee_session_info info;
    snprintf(p.address, sizeof p.address, "%s",
             perigee_listener_address(more[i]));
    pair_dial(&p, late);
    perigee_session_describe(late[1], &info, sizeof info);
    assert_string_equal(info.address, p.address);
  }
  perigee_listener_close(more[0]);
  fails(&p, "tcp://[::1]:1", 5000 * MS, PERIGEE_NOT_FOUND, "nobody listens");
  friend_served(&p);
  pair_close(&p);
}

static void an_address_that_this_host_has_not(void **state) {
  (void)state;
  struct pair p;
  open_engines(&p, true);
  assert_int_equal(
      perigee_listen(p.engine[1], "tcp://203.0.113.7:0", &p.listener),
      PERIGEE_NOT_FOUND);
  assert_int_equal(
      perigee_listen(p.engine[1], "tcp://a.example:0", &p.listener),
      PERIGEE_INVALID);
  pair_drop(&p);
}

/* ---- Dials that fail ---------------------------------------------------- */

static void a_port_that_nobody_listens_at(void **state) {
  (void)state;
  struct pair p;
  open_port(&p);
  char address[80];
  memcpy(address, p.address, sizeof address);
  perigee_listener_close(p.listener);
  fails(&p, address, 5000 * MS, PERIGEE_NOT_FOUND, "nobody listens at tcp://");
  friend_served(&p);
  pair_close(&p);
}

static void names_that_nobody_has(void **state) {
  (void)state;
  struct pair p;
  open_port(&p);
  fails(&p, "tcp://no..such.name:1", 5000 * MS, PERIGEE_NOT_FOUND,
        "no..such.name");
  assert_int_equal(perigee_connect(p.engine[0], "tcp://127.0.0.1:0", NULL, -1),
                   PERIGEE_INVALID);
  friend_served(&p);
  pair_close(&p);
}

/* A port with a full queue: the system does not answer. */
static int silent_port(int *fds, int count, char address[64]) {
  struct sockaddr_in in = {.sin_family = AF_INET,
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof in;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&in, sizeof in), 0);
  assert_int_equal(listen(fd, 0), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&in, &length), 0);
  for (int i = 0; i < count; i++) {
    fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)!connect(fds[i], (struct sockaddr *)&in, sizeof in);
  }
  usleep(20000);
  snprintf(address, 64, "tcp://127.0.0.1:%d", ntohs(in.sin_port));
  return fd;
}

static void a_dial_without_an_answer_ends_in_time(void **state) {
  (void)state;
  struct pair p;
  int fds[4];
  char address[64];
  open_port(&p);
  int fd = silent_port(fds, 4, address);
  int before = descriptors();
  fails(&p, address, 100 * MS, PERIGEE_TIMEOUT, NULL);
  quiet(&p, 3);
  assert_int_equal(descriptors(), before);
  friend_served(&p);
  /* Closed while it dials, and while a name is looked up. */
  assert_true(perigee_connect(p.engine[0], address, NULL, 5000 * MS) >= 0);
  assert_true(perigee_connect(p.engine[0], "tcp://a.name.invalid:1", NULL,
                              5000 * MS) >= 0);
  pair_drop(&p);
  for (int i = 0; i < 4; i++)
    close(fds[i]);
  close(fd);
}

/* ---- Strangers ---------------------------------------------------------- */

static void a_port_scan(void **state) {
  (void)state;
  struct pair p;
  open_port(&p);
  for (int i = 0; i < 200; i++) {
    close(raw_connect(&p));
    if (i % 50 == 0)
      friend_served(&p);
  }
  close_to_raw_peers(&p);
}

static void other_protocols_are_sent_away_at_once(void **state) {
  (void)state;
  static const char texts[3][48] = {
      "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "*1\r\n$4\r\nPING\r\n",
      "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"};
  struct pair p;
  open_port(&p);
  for (int i = 0; i < 3; i++) {
    int64_t start = clock_now();
    int fd = raw_connect(&p);
    quiet(&p, 1);
    say(fd, texts[i], sizeof texts[i], NULL, 0);
    until_cut(&p, fd);
    assert_true(clock_now() - start < AT_ONCE);
  }
  close_to_raw_peers(&p);
}

static void the_silent_are_sent_away_in_time(void **state) {
  (void)state;
  struct pair p;
  open_port(&p);
  hurry(&p, true);
  int64_t start = clock_now();
  until_cut(&p, raw_connect(&p));
  assert_true(clock_now() - start >= 90 * MS);
  close_to_raw_peers(&p);
}

static void a_crowd_does_not_keep_friends_out(void **state) {
  (void)state;
  struct pair p;
  struct perigee_session *late[2];
  int fds[4 * HELLOS];
  open_port(&p);
  for (int i = 0; i < 4 * HELLOS; i++)
    fds[i] = raw_connect(&p);
  until_refused(&p, 3 * HELLOS);
  quiet(&p, 200); /* those that made room are gone with the next poll */
  assert_true(perigee_counters(p.engine[1], NULL)->sessions <= HELLOS + 1);
  friend_served(&p);
  pair_dial(&p, late);
  perigee_session_free(late[0]);
  until(&p, 1, PERIGEE_EVENT_LOST);
  perigee_session_free(late[1]);
  for (int i = 0; i < 4 * HELLOS; i++)
    close(fds[i]);
  quiet(&p, 3);
  close_to_raw_peers(&p);
}

/* A listener whose queue stays full would keep the program from sleeping. */
static void without_descriptors_all_are_turned_away(void **state) {
  (void)state;
  struct pair p;
  struct rlimit before, none;
  open_port(&p);
  int fd = raw_connect(&p), more = raw_connect(&p);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  none = before;
  none.rlim_cur = (rlim_t)(more > fd ? more : fd) + 1;
  int held[64], count = 0;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
  while (count < 64 && (held[count] = dup(fd)) >= 0)
    count++;
  until_cut(&p, fd);
  until_cut(&p, more);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  while (count > 0)
    close(held[--count]);
  assert_int_equal(perigee_counters(p.engine[1], NULL)->refused, 2);
  friend_served(&p);
  close_to_raw_peers(&p);
}

/* No one has to wait until silent connections are closed. */
static void a_silent_crowd_makes_room(void **state) {
  (void)state;
  struct pair p;
  struct perigee_session *late[2];
  int fds[2 * HELLOS];
  open_port(&p);
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 2 * HELLOS; i++)
      fds[i] = raw_connect(&p);
    quiet(&p, 200);
    assert_true(perigee_counters(p.engine[1], NULL)->sessions <= HELLOS + 1);
    int64_t start = clock_now();
    pair_dial(&p, late);
    assert_true(clock_now() - start < AT_ONCE);
    perigee_session_free(late[0]);
    until(&p, 1, PERIGEE_EVENT_LOST);
    perigee_session_free(late[1]);
    for (int i = 0; i < 2 * HELLOS; i++)
      close(fds[i]);
  }
  close_to_raw_peers(&p);
}

static void lengths_that_are_no_lengths(void **state) {
  (void)state;
  static const uint32_t lengths[] = {UINT32_MAX, 1u << 31, FRAME_BODY + 1};
  struct pair p;
  open_port(&p);
  for (int i = 0; i < 3; i++) {
    uint8_t head[FRAME_HEAD] = {0, 0, 0, 0, FRAME_HELLO};
    memcpy(head, &lengths[i], 4);
    int64_t start = clock_now();
    int fd = raw_connect(&p);
    say(fd, head, sizeof head, NULL, 0);
    until_cut(&p, fd);
    assert_true(clock_now() - start < AT_ONCE);
  }
  close_to_raw_peers(&p);
}

/* A hello that arrives byte by byte gets the same answer as a whole one. */
static void a_hello_byte_by_byte(void **state) {
  (void)state;
  struct pair p;
  uint8_t bytes[FRAME_HEAD + FRAME_BODY], heard[4096];
  open_port(&p);
  struct frame hello = good_hello(), f = {0};
  hello.hello.version_min = hello.hello.version_max = 9;
  uint32_t length = wire_encode(&hello, bytes), got = 0, at = 0;
  int fd = raw_connect(&p);
  for (uint32_t i = 0; i < length; i++) {
    say(fd, &bytes[i], 1, NULL, 0);
    if (i % 16 == 0)
      quiet(&p, 1);
  }
  ssize_t n;
  int64_t end = clock_now() + AT_ONCE;
  while ((n = recv(fd, heard + got, sizeof heard - got, MSG_DONTWAIT)) != 0 &&
         clock_now() < end) {
    got += n > 0 ? (uint32_t)n : 0;
    quiet(&p, 1);
  }
  assert_int_equal(n, 0);
  while (at < got && f.type != FRAME_REFUSE) {
    int used = wire_frame(heard + at, got - at, &f);
    assert_true(used > 0);
    at += (uint32_t)used;
  }
  assert_int_equal(f.type, FRAME_REFUSE);
  close(fd);
  close_to_raw_peers(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sessions_over_both_families),
      cmocka_unit_test(all_addresses_of_a_name_are_tried),
      cmocka_unit_test(listening_beyond_loopback_needs_a_secret),
      cmocka_unit_test(several_listeners),
      cmocka_unit_test(an_address_that_this_host_has_not),
      cmocka_unit_test(a_port_that_nobody_listens_at),
      cmocka_unit_test(names_that_nobody_has),
      cmocka_unit_test(a_dial_without_an_answer_ends_in_time),
      cmocka_unit_test(a_port_scan),
      cmocka_unit_test(other_protocols_are_sent_away_at_once),
      cmocka_unit_test(the_silent_are_sent_away_in_time),
      cmocka_unit_test(a_crowd_does_not_keep_friends_out),
      cmocka_unit_test(without_descriptors_all_are_turned_away),
      cmocka_unit_test(a_silent_crowd_makes_room),
      cmocka_unit_test(lengths_that_are_no_lengths),
      cmocka_unit_test(a_hello_byte_by_byte),
  };
  return cmocka_run_group_tests_name("tcp sockets", tests, NULL, NULL);
}
