/* SPDX-License-Identifier: Apache-2.0
 *
 * unauth_test.c - connections to the socket from programs that are no peers:
 * silence, other protocols, garbage, hellos that break off or do not fit, and
 * many at once. None becomes a session, none costs a descriptor for longer than
 * the hello timeout, and an honest peer is served throughout.
 */
#include "raw_peer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STRANGERS = 200 };

/* ---- Words -------------------------------------------------------------- */

static void the_silent_are_sent_away_in_time(void **state) {
  (void)state;
  struct pair p;
  open_for_raw_peers(&p);
  hurry(&p, true);
  int64_t start = clock_now();
  until_cut(&p, visit(&p));
  assert_true(clock_now() - start >= 90 * MS);
  close_to_raw_peers(&p);
}

/* Else they would open later, and be nobody's. */
static void those_who_came_to_a_closed_listener_are_sent_away(void **state) {
  (void)state;
  struct pair p;
  open_for_raw_peers(&p);
  int fd = visit(&p);
  while (perigee_counters(p.engine[1], NULL)->sessions < 2)
    quiet(&p, 1);
  int64_t start = clock_now();
  perigee_listener_close(p.listener);
  p.listener = NULL;
  until_cut(&p, fd);
  assert_true(clock_now() - start < AT_ONCE);
  close_to_raw_peers(&p);
}

/* The address is the first listener's still. */
static void a_second_listener_that_fails_sends_nobody_away(void **state) {
  (void)state;
  struct pair p;
  struct perigee_listener *second;
  open_for_raw_peers(&p);
  int fd = visit(&p);
  while (perigee_counters(p.engine[1], NULL)->sessions < 2)
    quiet(&p, 1);
  assert_int_equal(perigee_listen(p.engine[1], p.address, &second),
                   PERIGEE_NAME_TAKEN);
  quiet(&p, 10);
  assert_int_equal(perigee_counters(p.engine[1], NULL)->sessions, 2);
  close(fd);
  while (perigee_counters(p.engine[1], NULL)->sessions > 1)
    quiet(&p, 1);
  close_to_raw_peers(&p);
}

static void other_protocols_are_sent_away_at_once(void **state) {
  (void)state;
  static const char texts[4][48] = {
      "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "*1\r\n$4\r\nPING\r\n",
      "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "\n\n\n\n\n\n\n\n\n"};
  struct pair p;
  open_for_raw_peers(&p);
  for (int i = 0; i < 4; i++) {
    int64_t start = clock_now();
    int fd = visit(&p);
    say(fd, texts[i], sizeof texts[i], NULL, 0);
    until_cut(&p, fd);
    assert_true(clock_now() - start < AT_ONCE);
  }
  close_to_raw_peers(&p);
}

static void garbage_is_sent_away(void **state) {
  (void)state;
  struct pair p;
  uint8_t bytes[3000];
  open_for_raw_peers(&p);
  hurry(&p, true);
  srand(5);
  for (int i = 0; i < 300; i++) {
    int fd = visit(&p);
    size_t length = 1 + (size_t)rand() % sizeof bytes;
    struct frame f = good_hello();
    for (size_t j = 0; j < length; j++)
      bytes[j] = (uint8_t)rand();
    /* Now and then a frame that is right up to some byte. */
    if (i % 2)
      wire_encode(&f, bytes);
    if (i % 4 == 1)
      bytes[8 + rand() % 200] ^= (uint8_t)(1 << rand() % 8);
    say(fd, bytes, length, NULL, 0);
    quiet(&p, rand() % 200);
    if (rand() % 2 == 0)
      shutdown(fd, SHUT_WR);
    if (rand() % 4 == 0)
      until_cut(&p, fd);
    else
      close(fd);
    if (i % 30 == 0)
      friend_served(&p);
  }
  close_to_raw_peers(&p);
}

/* Sends everything but READY: every prefix of it, cut into two writes. */
static void frames_that_break_off(void **state) {
  (void)state;
  struct pair p;
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  struct frame f = good_hello();
  uint32_t length = wire_encode(&f, bytes);
  open_for_raw_peers(&p);
  for (uint32_t n = 1; n < length; n += 7) {
    int fd = visit(&p);
    say(fd, bytes, n / 2, NULL, 0);
    quiet(&p, 70);
    say(fd, bytes + n / 2, n - n / 2, NULL, 0);
    shutdown(fd, SHUT_WR);
    until_cut(&p, fd);
  }
  close_to_raw_peers(&p);
}

static void hellos_that_do_not_fit_are_refused(void **state) {
  (void)state;
  struct pair p;
  open_for_raw_peers(&p);
  for (int i = 0; i < 9; i++) {
    struct frame hello = good_hello(), f = good_terms();
    struct terms *h = &f.terms;
    switch (i) {
    case 0:
      hello.hello.magic++;
      break;
    case 1:
      hello.hello.version_min = hello.hello.version_max = PROTOCOL_MAX + 1;
      break;
    case 2:
      hello.hello.version_min = hello.hello.version_max = 0;
      break;
    case 3:
      h->ring = 0;
      break;
    case 4:
      h->ring = UINT64_MAX;
      h->eager = UINT64_MAX;
      break;
    case 5:
      h->transports = 0;
      break;
    case 6:
      strcpy(h->transport[0], "pigeon");
      break;
    case 7:
      h->transports = 9;
      break;
    default:
      memset(h->transport[0], 'x', TRANSPORT_NAME);
    }
    if (i == 4)
      h->transports = 0;
    int fd = visit(&p);
    say_frame(fd, &hello, NULL, 0);
    say_frame(fd, &f, NULL, 0);
    until_cut(&p, fd);
  }
  close_to_raw_peers(&p);
}

/* ---- Crowds ------------------------------------------------------------- */

static void a_crowd_does_not_keep_friends_out(void **state) {
  (void)state;
  struct pair p;
  struct perigee_session *late[2];
  int fds[STRANGERS];
  open_for_raw_peers(&p);
  hurry(&p, true);
  int before = descriptors();
  for (int i = 0; i < STRANGERS; i++) {
    fds[i] = visit(&p);
    if (i % 3 == 0)
      say_hello(fds[i]);
    if (i % 3 == 1)
      say(fds[i], "GET / HTTP/1.0\r\n\r\n", 18, NULL, 0);
    if (i % 50 == 0)
      friend_served(&p);
  }
  until_refused(&p, STRANGERS);
  hurry(&p, false);
  friend_served(&p);
  pair_dial(&p, late);
  perigee_session_free(late[0]);
  until(&p, 1, PERIGEE_EVENT_LOST);
  perigee_session_free(late[1]);
  for (int i = 0; i < STRANGERS; i++)
    close(fds[i]);
  quiet(&p, 100);
  assert_int_equal(descriptors(), before);
  close_to_raw_peers(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_silent_are_sent_away_in_time),
      cmocka_unit_test(those_who_came_to_a_closed_listener_are_sent_away),
      cmocka_unit_test(a_second_listener_that_fails_sends_nobody_away),
      cmocka_unit_test(other_protocols_are_sent_away_at_once),
      cmocka_unit_test(garbage_is_sent_away),
      cmocka_unit_test(frames_that_break_off),
      cmocka_unit_test(hellos_that_do_not_fit_are_refused),
      cmocka_unit_test(a_crowd_does_not_keep_friends_out),
  };
  return cmocka_run_group_tests_name("unauth", tests, NULL, NULL);
}
