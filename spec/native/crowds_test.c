/* SPDX-License-Identifier: Apache-2.0
 *
 * crowds_test.c - strangers from several addresses at one port: who makes room
 * for whom, in which order they are served, and what is reserved for peers.
 * flood_test.c has thousands of them.
 */
#include "door.h"
#include "flood.h"
#include "hand.h"
#include "session/sessions.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const char words[] = "correct horse battery staple";
enum { FEW = 4 };
static const char crowds[] = "127.0.0.2", own[] = "127.0.0.1";

static int raw_connect_from(const struct pair *p, const char *from) {
  struct sockaddr_in to = loopback(port_of(p)), in = loopback(0);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  inet_pton(AF_INET, from, &in.sin_addr);
  assert_int_equal(bind(fd, (struct sockaddr *)&in, sizeof in), 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
  return fd;
}

static bool has_heard(int fd) {
  struct pollfd f = {.fd = fd, .events = POLLIN};
  return poll(&f, 1, 0) == 1;
}

/* It came first of all, and before the others from its address. */
static void the_oldest_of_those_who_are_most_makes_room(void **state) {
  (void)state;
  enum { PLACES = 6 };
  struct pair p;
  int fds[PLACES];
  struct heard h;
  open_to(&p, words, PLACES);
  for (int i = 0; i < PLACES; i++) {
    fds[i] = raw_connect_from(&p, i < 2 ? own : crowds);
    quiet(&p, 200);
  }
  int more = raw_connect_from(&p, own);
  hear(&p, fds[2], &h, HEARD);
  assert_int_equal(h.count, 1);
  is_refusal(&h.frame[0], PERIGEE_AGAIN, "too many");
  told(&p, PERIGEE_TIMEOUT, "others came");
  for (int i = 0; i < PLACES; i++)
    assert_int_equal(has_heard(fds[i]), i == 2);
  assert_false(has_heard(more));
  for (int i = 0; i < PLACES; i++)
    close(fds[i]);
  close(more);
  pair_drop(&p);
}

/* A peer that has one of these addresses can have any number of them. */
static void addresses_of_one_ipv6_network_are_one(void **state) {
  (void)state;
  static const char *const from[] = {"2001:db8::1", "2001:db8::ffff:2",
                                     "2001:db8:0:1::1"};
  struct perigee_engine *engine;
  struct perigee_session *s[3];
  assert_int_equal(perigee_engine_open(NULL, &engine), 0);
  for (int i = 0; i < 3; i++) {
    union socket_address at = {.in6 = {.sin6_family = AF_INET6}};
    assert_int_equal(inet_pton(AF_INET6, from[i], &at.in6.sin6_addr), 1);
    s[i] = session_new(engine, -1);
    s[i]->tcp = true;
    assert_true(unauth_join(s[i], &at));
  }
  assert_ptr_equal(s[0]->admission.origin, s[1]->admission.origin);
  assert_ptr_not_equal(s[0]->admission.origin, s[2]->admission.origin);
  assert_int_equal(s[0]->admission.origin->here, 2);
  perigee_engine_close(engine);
}

/* Neither the first nor the last, among so few that no cookie is needed. */
static void turns_go_round_by_address(void **state) {
  (void)state;
  enum { CAME = 11, MINE = 5 };
  struct pair p;
  struct frame f = tcp_hello();
  int fds[CAME], before = 0;
  open_to(&p, words, CAME);
  for (int i = 0; i < CAME; i++) {
    fds[i] = raw_connect_from(&p, i == MINE ? own : crowds);
    say_frame(fds[i], &f, NULL, 0);
  }
  for (int64_t end = clock_now() + AT_ONCE; !has_heard(fds[MINE]);) {
    poll_side(&p, 1);
    assert_true(clock_now() < end);
  }
  for (int i = 0; i < CAME; i++) {
    before += i != MINE && has_heard(fds[i]);
    close(fds[i]);
  }
  assert_true(before <= 1);
  perigee_tell_refused(p.engine[1], -1);
  quiet(&p, 200);
  pair_drop(&p);
}

/* However many turns were given while the engine had no work, turns given
 * while there is work are not delayed. */
static void what_idle_time_was_spent_on_is_no_debt(void **state) {
  (void)state;
  struct pair p;
  struct frame f = tcp_hello();
  open_to(&p, words, FEW);
  p.engine[1]->unauth->paid = clock_now() + 10000 * MS;
  int fd = raw_connect_from(&p, own);
  say_frame(fd, &f, NULL, 0);
  for (int64_t end = clock_now() + AT_ONCE; !has_heard(fd);) {
    poll_side(&p, 1);
    assert_true(clock_now() < end);
  }
  assert_true(p.engine[1]->unauth->paid < clock_now() + 5000 * MS);
  close(fd);
  perigee_tell_refused(p.engine[1], -1);
  quiet(&p, 200);
  pair_drop(&p);
}

/* Its address may also be that of a crowd, whose newest are served first. */
static void who_waited_for_a_turn_in_vain_is_told_to_try_again(void **state) {
  (void)state;
  struct pair p;
  struct frame f = tcp_hello();
  struct heard h;
  open_to(&p, words, FEW);
  p.engine[1]->options.hello_timeout = 100 * MS;
  p.engine[1]->worked_at = p.engine[1]->unauth->paid =
      clock_now() + 60000 * MS; /* no turn is given until then */
  int fd = raw_connect_from(&p, own);
  say_frame(fd, &f, NULL, 0);
  hear(&p, fd, &h, HEARD);
  assert_int_equal(h.count, 1);
  is_refusal(&h.frame[0], PERIGEE_AGAIN, "too many");
  assert_true(h.cut);
  told(&p, PERIGEE_TIMEOUT, "its turn");
  close(fd);
  pair_drop(&p);
}

/* A listener, played by hand, that is crowded when it is dialed first. */
static void who_is_told_to_try_again_does(void **state) {
  (void)state;
  struct pair p;
  struct sockaddr_in in = loopback(0);
  socklen_t length = sizeof in;
  struct frame f = {.type = FRAME_REFUSE, .refuse = {PERIGEE_AGAIN, "crowd"}};
  open_with(&p, words, words);
  int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  assert_int_equal(bind(door, (struct sockaddr *)&in, sizeof in), 0);
  assert_int_equal(listen(door, 8), 0);
  getsockname(door, (struct sockaddr *)&in, &length);
  snprintf(p.address, sizeof p.address, "tcp://127.0.0.1:%d",
           ntohs(in.sin_port));
  int op = perigee_connect(p.engine[0], p.address, NULL, 20000 * MS);
  for (int i = 0; i < 3; i++) {
    int fd = -1;
    for (int64_t end = clock_now() + AT_ONCE; fd < 0;) {
      quiet(&p, 1);
      fd = accept(door, NULL, NULL);
      assert_true(clock_now() < end);
    }
    f.refuse.status = i < 2 ? PERIGEE_AGAIN : PERIGEE_DENIED;
    say_frame(fd, &f, NULL, 0);
    close(fd);
  }
  ended(&p, 0, op, PERIGEE_DENIED);
  close(door);
  pair_drop(&p);
}

static void nobody_tries_again_beyond_its_time(void **state) {
  (void)state;
  struct pair p;
  open_to(&p, words, 1);
  int op = perigee_connect(p.engine[0], p.address, "inproc", 50 * MS);
  struct perigee_event e;
  for (bool over = false; !over;) { /* somebody connects each time */
    close(raw_connect_from(&p, own));
    poll_both(&p);
    over = taken(&p, 0, &e);
    while (taken(&p, 1, &e))
      ;
  }
  (void)op;
  pair_drop(&p);
}

static void the_last_descriptors_are_for_peers(void **state) {
  (void)state;
  enum { LIMIT = 200, KEPT = LIMIT / 8, CAME = 400 };
  struct pair p;
  struct rlimit all, few;
  int spare[KEPT];
  open_to(&p, words, 1000);
  getrlimit(RLIMIT_NOFILE, &all);
  few = (struct rlimit){LIMIT, all.rlim_max};
  struct server where = {.told = -1};
  snprintf(where.tcp, sizeof where.tcp, "%s", p.address);
  pid_t pid = flood_start(&where, CROWD_SILENT, crowds, 4000);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
  perigee_tell_refused(p.engine[1], -1);
  for (int64_t end = clock_now() + PATIENCE;
       perigee_counters(p.engine[1], NULL)->refused < CAME;) {
    poll_both(&p);
    assert_true(clock_now() < end);
  }
  for (int i = 0; i < KEPT; i++) {
    spare[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(spare[i] >= 0);
  }
  for (int i = 0; i < KEPT; i++)
    close(spare[i]);
  pair_dial(&p, p.session);
  friend_served(&p);
  flood_end(pid);
  setrlimit(RLIMIT_NOFILE, &all);
  pair_drop(&p);
}

/* A peer that has the secret, and stops before it is counted as itself. */
static void who_proves_itself_and_no_more_is_a_stranger_still(void **state) {
  (void)state;
  enum { SESSIONS = 16 };
  const union socket_address at = {.in = loopback(0)};
  struct hand hands[SESSIONS];
  struct pair p;
  open_to(&p, words, FEW);
  for (int i = 0; i < SESSIONS; i++) {
    hand_come(&hands[i], p.engine[1], true);
    assert_true(unauth_join(hands[i].session, &at));
    assert_true(hand_proves(&hands[i], p.engine[1]->secret));
    quiet(&p, 10); /* the engine reads it */
  }
  assert_true(p.engine[1]->counters->sessions <= FEW + 1);
  perigee_tell_refused(p.engine[1], -1);
  pair_dial(&p, p.session);
  friend_served(&p);
  for (int i = 0; i < SESSIONS; i++)
    hand_close(&hands[i]);
  pair_drop(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_oldest_of_those_who_are_most_makes_room),
      cmocka_unit_test(addresses_of_one_ipv6_network_are_one),
      cmocka_unit_test(turns_go_round_by_address),
      cmocka_unit_test(what_idle_time_was_spent_on_is_no_debt),
      cmocka_unit_test(who_is_told_to_try_again_does),
      cmocka_unit_test(who_waited_for_a_turn_in_vain_is_told_to_try_again),
      cmocka_unit_test(nobody_tries_again_beyond_its_time),
      cmocka_unit_test(the_last_descriptors_are_for_peers),
      cmocka_unit_test(who_proves_itself_and_no_more_is_a_stranger_still),
  };
  return cmocka_run_group_tests_name("crowds", tests, NULL, NULL);
}
