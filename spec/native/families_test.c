/* SPDX-License-Identifier: Apache-2.0
 *
 * families_test.c - a peer that has a child by plain fork, which keeps its
 * sockets open. The peer is killed, the child is not, and the death is told.
 */
#include "old_kernel.h"
#include "support.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

/* A session dialed over TCP stays there. */
static const char *transport_of(const char *address) {
  return strncmp(address, "tcp:", 4) == 0 ? "tcp" : NULL;
}

/* Nobody is lost for silence, so that slow machines have time. */
static int open_patient(struct perigee_engine **engine) {
  struct perigee_options o;
  perigee_options_init(&o, sizeof o);
  o.dead_after = 3600 * 1000 * MS;
  return perigee_engine_open(&o, engine);
}

static _Noreturn void be_parent(const char *address, bool listens, int said,
                                int until_closed) {
  struct perigee_engine *engine;
  struct perigee_listener *listener;
  struct perigee_event e;
  char byte;
  if (open_patient(&engine) != 0)
    _exit(1);
  if (listens && (perigee_listen(engine, address, &listener) != 0 ||
                  write(said, "l", 1) != 1))
    _exit(1);
  if (!listens &&
      perigee_connect(engine, address, transport_of(address), 20000 * MS) < 0)
    _exit(1);
  while (perigee_poll(engine, &e, 1) == 0)
    ;
  if (fork() == 0) {
    while (read(until_closed, &byte, 1) > 0)
      ;
    _exit(0);
  }
  if (write(said, "f", 1) != 1)
    _exit(1);
  for (;;)
    pause();
}

static void hears(int from, char word) {
  char got = 0;
  assert_int_equal(read(from, &got, 1), 1);
  assert_int_equal(got, word);
}

/* None of those that the system gives to who dials: nobody else takes it soon. */
static int free_port(void) {
  static int port;
  struct sockaddr_in in = {.sin_family = AF_INET,
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int bound;
  port = port ? port : 20000 + getpid() * 37 % 9973;
  do {
    port = port < 29973 ? port + 1 : 20000;
    in.sin_port = htons((uint16_t)port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bound = bind(fd, (struct sockaddr *)&in, sizeof in);
    close(fd);
  } while (bound != 0);
  return port;
}

static void death_is_told(bool parent_listens, bool tcp) {
  struct perigee_engine *engine;
  struct perigee_listener *listener;
  struct perigee_event e = {0};
  char address[80];
  int said[2], until_closed[2];
  snprintf(address, sizeof address, "unix:%s-family", pair_path_next());
  unlink(address + strlen("unix:"));
  if (tcp)
    snprintf(address, sizeof address, "tcp://127.0.0.1:%d", free_port());
  assert_int_equal(pipe(said), 0);
  assert_int_equal(pipe(until_closed), 0);
  if (!parent_listens) { /* it is to be there first */
    assert_int_equal(open_patient(&engine), 0);
    assert_int_equal(perigee_listen(engine, address, &listener), 0);
  }
  pid_t parent = fork();
  if (parent == 0) {
    close(until_closed[1]);
    be_parent(address, parent_listens, said[1], until_closed[0]);
  }
  if (parent_listens) {
    hears(said[0], 'l');
    assert_int_equal(open_patient(&engine), 0);
    assert_true(perigee_connect(engine, address, transport_of(address),
                                20000 * MS) >= 0);
  }
  while (perigee_poll(engine, &e, 1) == 0)
    ;
  assert_int_equal(e.status, 0);
  hears(said[0], 'f');
  kill(parent, SIGKILL);
  assert_int_equal(waitpid(parent, NULL, 0), parent);
  int64_t start = clock_now();
  while (perigee_poll(engine, &e, 1) == 0)
    assert_true(clock_now() - start < 20000 * MS);
  assert_int_equal(e.kind, PERIGEE_EVENT_LOST);
  assert_int_equal(e.status, PERIGEE_PEER_LOST);
  perigee_engine_close(engine);
  close(until_closed[1]);
  close(until_closed[0]);
  close(said[0]);
  close(said[1]);
  if (!tcp)
    unlink(address + strlen("unix:"));
}

static void a_child_does_not_hide_the_death_of_who_dialed(void **state) {
  (void)state;
  death_is_told(false, false);
}

static void a_child_does_not_hide_the_death_of_who_listens(void **state) {
  (void)state;
  death_is_told(true, false);
}

static void over_tcp_a_child_does_not_hide_it_either(void **state) {
  (void)state;
  death_is_told(false, true);
  death_is_told(true, true);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      ON_BOTH(a_child_does_not_hide_the_death_of_who_dialed),
      ON_BOTH(a_child_does_not_hide_the_death_of_who_listens),
      ON_BOTH(over_tcp_a_child_does_not_hide_it_either),
  };
  return cmocka_run_group_tests_name("families", tests, NULL, NULL);
}
