/* SPDX-License-Identifier: Apache-2.0
 *
 * identity_test.c - who is one peer, of those that come from other hosts and
 * from this one (shares.h). Both kinds of addresses are had in a network of the
 * test's own, where the system lets it have one.
 */
#include "core.h"
#include "support.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FINE, DIFFERS, NOT_TO_BE_HAD };
static const char own[] = "10.7.0.1", another[] = "10.7.0.2";

static struct sockaddr_in at(const char *text) {
  struct sockaddr_in in = {.sin_family = AF_INET};
  inet_pton(AF_INET, text, &in.sin_addr);
  return in;
}

/* On its loopback device all of 10.0.0.0/8 is there. */
static bool own_network(void) {
  struct ifreq wish = {.ifr_name = "lo", .ifr_flags = IFF_UP};
  struct sockaddr_in in = at(own);
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
    return false;
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  bool up = ioctl(fd, SIOCSIFFLAGS, &wish) == 0;
  memcpy(&wish.ifr_addr, &in, sizeof in);
  up = up && ioctl(fd, SIOCSIFADDR, &wish) == 0;
  close(fd);
  return up;
}

/* A session that was accepted at `own`, from there, and whose peer proved to be
 * on this host by a name that others have, too. */
static const struct share *peer_of(struct perigee_engine *engine,
                                   const char *from, uint64_t epoch) {
  struct sockaddr_in to = at(own), in = at(from);
  socklen_t length = sizeof to;
  char reason[REASON];
  int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(door, (struct sockaddr *)&to, sizeof to) != 0 ||
      listen(door, 1) != 0 ||
      getsockname(door, (struct sockaddr *)&to, &length) != 0 ||
      bind(fd, (struct sockaddr *)&in, sizeof in) != 0 ||
      connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
    return NULL;
  struct perigee_session *s = session_new(engine, accept(door, NULL, NULL));
  s->tcp = s->same_host = true;
  s->terms.epoch = epoch;
  close(door); /* the other end lives as long as the test */
  return shares_join(s, reason, sizeof reason) < 0 ? NULL : s->share->parent;
}

static int differs(struct perigee_engine *engine, const char *from,
                   bool one_peer) {
  const struct share *first = peer_of(engine, from, 1);
  const struct share *second = peer_of(engine, from, 2);
  bool one = first == second;
  return first && second && one == one_peer ? FINE : DIFFERS;
}

static int in_own_network(const char *from, bool one_peer) {
  struct perigee_engine *engine;
  int status;
  pid_t pid = fork();
  if (pid == 0)
    _exit(!own_network() ? NOT_TO_BE_HAD
          : perigee_engine_open(NULL, &engine) < 0
              ? DIFFERS
              : differs(engine, from, one_peer));
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  if (WEXITSTATUS(status) == NOT_TO_BE_HAD)
    skip();
  return WEXITSTATUS(status);
}

/* Whatever it says of itself: it cannot choose its address. */
static void who_comes_from_another_address_is_that(void **state) {
  (void)state;
  assert_int_equal(in_own_network(another, true), FINE);
}

static void agents_of_this_host_are_told_apart(void **state) {
  (void)state;
  assert_int_equal(in_own_network(own, false), FINE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(who_comes_from_another_address_is_that),
      cmocka_unit_test(agents_of_this_host_are_told_apart),
  };
  return cmocka_run_group_tests_name("identity", tests, NULL, NULL);
}
