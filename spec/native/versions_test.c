/* SPDX-License-Identifier: Apache-2.0
 *
 * versions_test.c - peers of other protocol versions, older and newer, over
 * both kinds of sockets, where they dial and where they listen. Both sides end
 * in PERIGEE_VERSION and are told which versions each of them has.
 */
#include "door.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char words[] = "correct horse battery staple";

/* Versions below this build's and above it; the HELLO of another version may
 * be shorter or longer. */
static const struct other {
  uint32_t min, max, body;
} others[] = {{PROTOCOL_MIN - 1, PROTOCOL_MIN - 1, sizeof(struct hello)},
              {1, PROTOCOL_MIN - 1, HELLO_VERSIONS},
              {PROTOCOL_MAX + 1, PROTOCOL_MAX + 3, 1000}};
enum { OTHERS = sizeof others / sizeof *others };

static void say_other(int fd, const struct other *other) {
  uint8_t bytes[FRAME_HEAD + FRAME_BODY] = {0};
  struct frame f = tcp_hello();
  f.hello.version_min = other->min;
  f.hello.version_max = other->max;
  wire_encode(&f, bytes);
  memcpy(bytes, &other->body, sizeof other->body);
  say(fd, bytes, FRAME_HEAD + other->body, NULL, 0);
}

static const char *sentence(const struct other *other, bool it_dials) {
  static char text[128];
  const char *own = it_dials ? "listener" : "dialer";
  snprintf(text, sizeof text, "the %s has %d to %d, the %s %u to %u", own,
           PROTOCOL_MIN, PROTOCOL_MAX, it_dials ? "dialer" : "listener",
           other->min, other->max);
  return text;
}

/* The last frame that the peer hears. A peer at a Unix socket, and one that was
 * dialed, heard a HELLO before. */
static void hears_refusal(struct pair *p, int fd, const char *text) {
  struct heard h;
  hear(p, fd, &h, HEARD);
  assert_true(h.cut && h.count > 0);
  is_refusal(&h.frame[h.count - 1], PERIGEE_VERSION, text);
  close(fd);
}

static void who_dials_over_tcp_hears_which_are_known(void **state) {
  (void)state;
  for (int i = 0; i < OTHERS; i++) {
    struct pair p;
    open_with(&p, words, words);
    int fd = raw_connect(&p);
    say_other(fd, &others[i]);
    hears_refusal(&p, fd, sentence(&others[i], true));
    told(&p, PERIGEE_VERSION, sentence(&others[i], true));
    pair_drop(&p);
  }
}

static void who_dials_a_unix_socket_hears_which_are_known(void **state) {
  (void)state;
  for (int i = 0; i < OTHERS; i++) {
    struct pair p;
    open_for_raw_peers(&p);
    int fd = visit(&p);
    say_other(fd, &others[i]);
    hears_refusal(&p, fd, sentence(&others[i], true));
    until_refused(&p, 1);
    close_to_raw_peers(&p);
  }
}

/* Engine 0 dials this socket; what the peer hears and what it is told. */
static void dialed(int door, const char *address, const struct other *other) {
  struct pair p;
  open_with(&p, words, words);
  int op = perigee_connect(p.engine[0], address, NULL, 20000 * MS);
  int fd = accept(door, NULL, NULL);
  assert_true(fd >= 0);
  say_other(fd, other);
  hears_refusal(&p, fd, sentence(other, false));
  ended(&p, 0, op, PERIGEE_VERSION);
  assert_non_null(strstr(perigee_detail(p.engine[0]), sentence(other, false)));
  close(door);
  pair_drop(&p);
}

static void who_is_dialed_over_tcp_hears_which_are_known(void **state) {
  (void)state;
  for (int i = 0; i < OTHERS; i++) {
    struct sockaddr_in in = loopback(0);
    socklen_t length = sizeof in;
    char address[64];
    int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(door, (struct sockaddr *)&in, sizeof in), 0);
    assert_int_equal(listen(door, 1), 0);
    getsockname(door, (struct sockaddr *)&in, &length);
    snprintf(address, sizeof address, "tcp://127.0.0.1:%d", ntohs(in.sin_port));
    dialed(door, address, &others[i]);
  }
}

static void who_is_dialed_at_a_unix_socket_hears_which_are_known(void **state) {
  (void)state;
  for (int i = 0; i < OTHERS; i++) {
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    char address[sizeof un.sun_path + 8];
    snprintf(un.sun_path, sizeof un.sun_path, "/tmp/perigee-versions-%d-%d",
             (int)getpid(), i);
    int door = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(door, (struct sockaddr *)&un, sizeof un), 0);
    assert_int_equal(listen(door, 1), 0);
    snprintf(address, sizeof address, "unix:%s", un.sun_path);
    dialed(door, address, &others[i]);
    unlink(un.sun_path);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(who_dials_over_tcp_hears_which_are_known),
      cmocka_unit_test(who_dials_a_unix_socket_hears_which_are_known),
      cmocka_unit_test(who_is_dialed_over_tcp_hears_which_are_known),
      cmocka_unit_test(who_is_dialed_at_a_unix_socket_hears_which_are_known),
  };
  return cmocka_run_group_tests_name("versions", tests, NULL, NULL);
}
