/* SPDX-License-Identifier: Apache-2.0
 *
 * identity_test.c - which sessions belong to one peer, and which peers are on
 * this host, if they come from other hosts and from this one by each of its
 * addresses (shares.h, migrate.c). The hosts are two networks of the test's own
 * with a cable between them, if the system permits them.
 */
#include "core/accounts.h"
#include "session/sessions.h"
#include "support.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FINE, DIFFERS, NOT_TO_BE_HAD };
/* second: another address of the same device. A side that dials it uses own
 * as its address, which the system chooses unless told otherwise. */
static const char own[] = "10.7.0.1", second[] = "10.7.0.9",
                  far_away[] = "10.7.0.2";

/* ---- Two hosts ----------------------------------------------------------- */

static int near_fd, far_fd;

static bool be_root(void) {
  char map[32];
  int length = snprintf(map, sizeof map, "0 %d 1", geteuid());
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
    return false;
  int fd = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
  bool written = write(fd, map, (size_t)length) == length;
  close(fd);
  return written;
}

static int this_network(void) {
  return open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
}

static bool shell(const char *format, ...)
    __attribute__((format(printf, 1, 2)));
static bool shell(const char *format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  return system(text) == 0;
}

/* This process is on the near host. */
static bool two_hosts(void) {
  if (!be_root())
    return false;
  near_fd = this_network();
  if (unshare(CLONE_NEWNET) != 0)
    return false;
  far_fd = this_network();
  return shell("exec 2>/dev/null; ip link add cable type veth peer name cable "
               "netns /proc/%d/fd/%d && ip address add %s/24 dev cable && "
               "ip link set cable up",
               getpid(), near_fd, far_away) &&
         setns(near_fd, CLONE_NEWNET) == 0 &&
         shell("exec 2>/dev/null; ip link set lo up && "
               "ip address add %s/24 dev cable && "
               "ip address add %s/24 dev cable && ip link set cable up",
               own, second);
}

/* Runs on the host that has the address. */
static int socket_on(const char *from, int family) {
  bool away = strcmp(from, far_away) == 0;
  if (away)
    setns(far_fd, CLONE_NEWNET);
  int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (away)
    setns(near_fd, CLONE_NEWNET);
  return fd;
}

/* ---- Who comes ----------------------------------------------------------- */

static union socket_address at(const char *text) {
  union socket_address a = {.in = {.sin_family = AF_INET}};
  if (inet_pton(AF_INET, text, &a.in.sin_addr) == 1)
    return a;
  a.in6 = (struct sockaddr_in6){.sin6_family = AF_INET6};
  inet_pton(AF_INET6, text, &a.in6.sin6_addr);
  return a;
}

/* A connection to one address from another, accepted; the other end lives as
 * long as the test. -1: it failed. */
static int accepted(const char *to, const char *from) {
  union socket_address there = at(to), here = at(from);
  socklen_t length = address_length(&there);
  int door = socket_on(to, there.any.sa_family);
  int fd = socket_on(from, here.any.sa_family);
  if (bind(door, &there.any, length) != 0 || listen(door, 1) != 0 ||
      getsockname(door, &there.any, &length) != 0 ||
      bind(fd, &here.any, length) != 0 || connect(fd, &there.any, length) != 0)
    return -1;
  int got = accept(door, NULL, NULL);
  close(door);
  return got;
}

/* The session whose peer has this alias and name; NULL if there is none. */
static struct perigee_session *met(struct perigee_engine *engine, int fd,
                                   uint64_t alias, const uint8_t *name) {
  char reason[REASON];
  struct perigee_session *s = fd < 0 ? NULL : session_new(engine, fd);
  if (!s)
    return NULL;
  s->tcp = true;
  s->peer.terms.probe[0] = alias;
  if (name)
    memcpy(s->peer.terms.local, name, sizeof s->peer.terms.local);
  migrate_met(s, &s->peer.terms);
  return accounts_join(s, reason, sizeof reason) < 0 ? NULL : s;
}

static bool one_peer(const struct perigee_session *a,
                     const struct perigee_session *b) {
  return a->account.share->parent == b->account.share->parent;
}

/* ---- Tests ---------------------------------------------------------------- */

static struct perigee_engine *engine_new(void) {
  struct perigee_engine *engine;
  if (perigee_engine_open(NULL, &engine) < 0)
    _exit(DIFFERS);
  return engine;
}

static void in_two_hosts(bool (*test)(struct perigee_engine *)) {
  int status;
  pid_t pid = fork();
  if (pid == 0)
    _exit(!two_hosts() ? NOT_TO_BE_HAD : test(engine_new()) ? FINE : DIFFERS);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  if (WEXITSTATUS(status) == NOT_TO_BE_HAD)
    skip();
  assert_int_equal(WEXITSTATUS(status), FINE);
}

static bool far_is_one(struct perigee_engine *e) {
  struct perigee_session *a = met(e, accepted(own, far_away), 1, NULL);
  struct perigee_session *b = met(e, accepted(second, far_away), 2, NULL);
  return a && b && one_peer(a, b) && !a->peer.here;
}

/* A peer cannot choose its address, whatever it says of itself. */
static void who_comes_from_another_host_is_that(void **state) {
  (void)state;
  in_two_hosts(far_is_one);
}

static bool near_are_two(struct perigee_engine *e) {
  static const char *const from[] = {own, second};
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < 2; k++) {
      struct perigee_session *a = met(e, accepted(from[i], from[k]), 1, NULL);
      struct perigee_session *b = met(e, accepted(from[i], from[k]), 2, NULL);
      if (!a || !b || one_peer(a, b) || !a->peer.here)
        return false;
    }
  return true;
}

static void agents_of_this_host_are_told_apart(void **state) {
  (void)state;
  in_two_hosts(near_are_two);
}

static bool near_is_one(struct perigee_engine *e) {
  static const char *const from[] = {own,         second, "127.0.0.1",
                                     "127.3.2.1", "::1",  NULL};
  struct perigee_session *first = met(e, accepted(own, own), 7, NULL);
  for (int i = 0; first && from[i]; i++) {
    const char *to = strchr(from[i], ':') ? from[i] : "127.0.0.1";
    struct perigee_session *s = met(e, accepted(to, from[i]), 7, NULL);
    if (!s || !s->peer.here || !one_peer(first, s))
      return false;
  }
  return first;
}

static void an_agent_is_one_by_each_of_its_addresses(void **state) {
  (void)state;
  in_two_hosts(near_is_one);
}

static bool liars_are_no_local_peers(struct perigee_engine *e) {
  struct terms other = {0};
  struct perigee_session *others =
      met(engine_new(), accepted(own, own), 1, NULL);
  if (!others)
    return false;
  migrate_terms(others, &other);
  struct perigee_session *away =
      met(e, accepted(own, far_away), 2, other.local);
  struct perigee_session *here = met(e, accepted(own, own), 2, other.local);
  struct perigee_session *also = met(e, accepted(second, own), 2, other.local);
  return away && here && also && !away->peer.same_host &&
         liveness_wanted(away) && here->peer.same_host && also->peer.same_host;
}

/* A peer that was told this host's name knows it on any other host, too. */
static void a_name_of_this_host_makes_nobody_local(void **state) {
  (void)state;
  in_two_hosts(liars_are_no_local_peers);
}

/* ---- Whose word it is ------------------------------------------------------ */

static struct perigee_engine *agent(uint64_t epoch) {
  struct perigee_options o;
  struct perigee_engine *engine;
  perigee_options_init(&o, sizeof o);
  o.secret = "";
  o.epoch = epoch;
  assert_int_equal(perigee_engine_open(&o, &engine), 0);
  return engine;
}

/* The server's side of a session. */
static struct perigee_session *dials(struct perigee_engine *agent,
                                     struct perigee_engine *server,
                                     const struct perigee_listener *l) {
  struct perigee_event e, found = {.kind = 0};
  bool connected = false;
  assert_true(perigee_connect(agent, perigee_listener_address(l), "tcp",
                              5000 * MS) >= 0);
  while (!connected || !found.kind) {
    if (perigee_poll(agent, &e, 1) == 1 && e.kind == PERIGEE_EVENT_CONNECTED) {
      assert_int_equal(e.status, PERIGEE_OK);
      connected = true;
    }
    if (perigee_poll(server, &e, 1) == 1 && e.kind == PERIGEE_EVENT_ACCEPTED)
      found = e;
  }
  return perigee_session(server, found.session);
}

/* All its peers know the name; what one of them does in its name counts as
 * that one's own. */
static void who_takes_an_epoch_is_not_who_has_it(void **state) {
  (void)state;
  struct perigee_engine *honest = agent(7), *liar = agent(7), *other = agent(0);
  struct perigee_engine *server = agent(0);
  struct perigee_listener *l, *also;
  assert_int_equal(perigee_listen(server, "tcp://127.0.0.1:0", &l), 0);
  assert_int_equal(perigee_listen(other, "tcp://127.0.0.1:0", &also), 0);
  struct perigee_session *first = dials(honest, server, l);
  assert_true(first->peer.here);
  assert_false(one_peer(first, dials(liar, server, l)));
  assert_true(one_peer(first, dials(honest, server, l)));
  struct perigee_session *elsewhere = dials(honest, other, also);
  assert_int_not_equal(first->peer.terms.probe[0],
                       elsewhere->peer.terms.probe[0]);
  perigee_engine_close(honest);
  perigee_engine_close(liar);
  perigee_engine_close(other);
  perigee_engine_close(server);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(who_comes_from_another_host_is_that),
      cmocka_unit_test(agents_of_this_host_are_told_apart),
      cmocka_unit_test(an_agent_is_one_by_each_of_its_addresses),
      cmocka_unit_test(who_takes_an_epoch_is_not_who_has_it),
      cmocka_unit_test(a_name_of_this_host_makes_nobody_local),
  };
  return cmocka_run_group_tests_name("identity", tests, NULL, NULL);
}
