/* SPDX-License-Identifier: Apache-2.0
 *
 * reach_test.c - sessions with the agents of entries: which addresses are
 * dialled, and what is told when none answers. The agent is another process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "perigee.h"

static const int64_t seconds = INT64_C(1000000000);

static char root[64], folder[PATH_MAX], socket_of_one[128], tcp[64];
static struct perigee_engine *engine;
static struct perigee_session *session;
static pid_t child;

static struct perigee_engine *engine_of(void) {
  struct perigee_engine *made;
  struct perigee_options options;
  perigee_options_init(&options, sizeof options);
  options.secret = "";
  assert_int_equal(perigee_engine_open(&options, &made), PERIGEE_OK);
  return made;
}

/* Holds "one" until it is killed. */
static void serve(int tell) {
  struct perigee_agent *agent;
  struct perigee_event events[8];
  struct perigee_engine *own = engine_of();
  const char *listen[] = {"tcp://127.0.0.1:0"};
  struct perigee_agent_options options = {.size = sizeof options,
                                          .name = "one",
                                          .scope = "s",
                                          .listen = listen,
                                          .listen_count = 1};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int fine = perigee_agent_open(own, &options, &agent) == PERIGEE_OK;
  if (write(tell, fine ? "y" : "n", 1) != 1 || !fine)
    _exit(1);
  for (;;)
    if (perigee_poll(own, events, 8) == 0)
      perigee_wait(&own, 1, -1);
}

static int setup(void **state) {
  (void)state;
  int ends[2];
  char byte;
  struct perigee_entry *entry;
  snprintf(root, sizeof root, "/tmp/perigee-reach-XXXXXX");
  if (!mkdtemp(root) || setenv("XDG_RUNTIME_DIR", root, 1) || pipe(ends) != 0)
    return -1;
  unsetenv("PERIGEE_REGISTRY");
  if (perigee_scope_folder("s", folder, sizeof folder) < 0)
    return -1;
  child = fork();
  if (child == 0)
    serve(ends[1]);
  engine = engine_of();
  if (read(ends[0], &byte, 1) != 1 || byte != 'y' ||
      perigee_entry_find("s", "one", &entry) != PERIGEE_OK)
    return -1;
  snprintf(socket_of_one, sizeof socket_of_one, "%s", entry->addresses[0]);
  snprintf(tcp, sizeof tcp, "%s", entry->addresses[1]);
  perigee_entry_free(entry);
  close(ends[0]);
  close(ends[1]);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  char command[128];
  perigee_engine_close(engine);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  return system(command);
}

static int reach(const char *name, int64_t timeout, const char *const *list,
                 uint32_t count) {
  struct perigee_entry entry = {.size = sizeof entry,
                                .name = name,
                                .scope = "s",
                                .addresses = list,
                                .address_count = count};
  return perigee_entry_connect(engine, &entry, NULL, timeout, &session);
}

#define REACH(name, timeout, list)                                             \
  reach(name, timeout, list, sizeof(list) / sizeof *(list))

/* It was reached at this address. */
static void reached_at(int status, const char *address) {
  struct perigee_session_info info;
  if (status != PERIGEE_OK)
    fail_msg("%s: %s", perigee_status_name(status), perigee_detail(engine));
  assert_non_null(session);
  assert_int_equal(perigee_session_describe(session, &info, sizeof info), 0);
  assert_int_equal(info.state, PERIGEE_SESSION_OPEN);
  assert_string_equal(info.address, address);
  assert_int_equal(info.pid, child);
  perigee_session_close(session);
  perigee_session_free(session);
}

static void refused(int status, int expected, const char *what) {
  assert_int_equal(status, expected);
  assert_null(session);
  assert_non_null(strstr(perigee_detail(engine), "connecting to "));
  if (!strstr(perigee_detail(engine), what))
    fail_msg("%s", perigee_detail(engine));
}

/* ---- Its addresses ------------------------------------------------------- */

static void a_socket_that_is_here_comes_first(void **state) {
  (void)state;
  const char *both[] = {tcp, socket_of_one};
  reached_at(REACH("one", 30 * seconds, both), socket_of_one);
  reached_at(REACH("one", -1, both), socket_of_one);
}

static void a_path_that_is_not_here_is_left_out(void **state) {
  (void)state;
  const char *both[] = {"unix:/nowhere/one.sock", tcp};
  reached_at(REACH("one", 30 * seconds, both), tcp);
  const char *only[] = {"unix:/nowhere/one.sock", "unix:/nor/here.sock"};
  refused(REACH("one", 30 * seconds, only), PERIGEE_NOT_FOUND,
          "/nowhere/one.sock");
}

/* More than are dialled, and all of them closed, are the same one. */
static void an_address_is_dialled_once(void **state) {
  (void)state;
  const char *list[40];
  for (int i = 0; i < 39; i++)
    list[i] = "tcp://127.0.0.1:1";
  list[39] = tcp;
  reached_at(REACH("one", 30 * seconds, list), tcp);
}

static void at_most_sixteen_are_dialled(void **state) {
  (void)state;
  const char *list[18];
  char closed[17][40];
  for (int i = 0; i < 17; i++) {
    snprintf(closed[i], sizeof closed[i], "tcp://127.0.0.%d:1", i + 1);
    list[i] = closed[i];
  }
  list[15] = tcp;
  list[17] = tcp;
  reached_at(REACH("one", 30 * seconds, list), tcp);
  list[15] = closed[15];
  refused(REACH("one", 30 * seconds, list), PERIGEE_NOT_FOUND, "127.0.0.1:1");
}

/* Listens there, and never says a word. */
static int deaf(char address[64]) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in at = {.sin_family = AF_INET,
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof at;
  assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
  assert_int_equal(listen(fd, 8), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &length), 0);
  snprintf(address, 64, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
  return fd;
}

static void an_address_has_its_share_of_the_time(void **state) {
  (void)state;
  char silent[64];
  int fd = deaf(silent);
  const char *both[] = {silent, tcp};
  reached_at(REACH("one", 6 * seconds, both), tcp);
  const char *only[] = {silent};
  refused(REACH("one", seconds / 10, only), PERIGEE_TIMEOUT, silent);
  refused(REACH("one", 0, only), PERIGEE_TIMEOUT, silent);
  close(fd);
}

/* ---- Who answers --------------------------------------------------------- */

static void only_the_entrys_agent_counts(void **state) {
  (void)state;
  const char *both[] = {socket_of_one, tcp};
  refused(REACH("two", 30 * seconds, both), PERIGEE_DENIED, "two");
}

/* A denial of one address says less than that nobody is at the other. */
static void what_may_pass_is_told_first(void **state) {
  (void)state;
  const char *either[][2] = {{socket_of_one, "tcp://127.0.0.1:1"},
                             {"tcp://127.0.0.1:1", tcp}};
  for (int i = 0; i < 2; i++)
    refused(REACH("two", 30 * seconds, either[i]), PERIGEE_NOT_FOUND,
            "127.0.0.1:1");
}

static struct perigee_engine *engine_in(const char *scope) {
  struct perigee_engine *made;
  struct perigee_options options;
  perigee_options_init(&options, sizeof options);
  options.secret = "a secret of all these engines";
  options.scope = scope;
  assert_int_equal(perigee_engine_open(&options, &made), PERIGEE_OK);
  return made;
}

/* Holds "two", as an agent with a secret, until it is killed. */
static void serve_in(const char *scope) {
  struct perigee_agent *agent;
  struct perigee_engine *own = engine_in(scope);
  const char *listen[] = {"tcp://127.0.0.1:0"};
  struct perigee_agent_options options = {.size = sizeof options,
                                          .name = "two",
                                          .scope = "s",
                                          .listen = listen,
                                          .listen_count = 1};
  struct perigee_event events[8];
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (perigee_agent_open(own, &options, &agent) != PERIGEE_OK)
    _exit(1);
  for (;;)
    if (perigee_poll(own, events, 8) == 0)
      perigee_wait(&own, 1, -1);
}

static void another_scope_is_told(void **state) {
  (void)state;
  struct perigee_entry *two = NULL;
  pid_t secretive = fork();
  if (secretive == 0)
    serve_in("s");
  while (perigee_entry_find("s", "two", &two) < 0 || two->address_count < 2) {
    perigee_entry_free(two);
    usleep(1000);
  }
  const char *list[] = {two->addresses[1]};
  struct perigee_engine *first = engine;
  for (int i = 0; i < 2; i++) {
    engine = engine_in(i == 0 ? NULL : "s");
    int status = REACH("two", 30 * seconds, list);
    if (i == 0)
      refused(status, PERIGEE_DENIED, ", of scope s, at ");
    else
      assert_int_equal(status, PERIGEE_OK);
    perigee_engine_close(engine);
  }
  engine = first;
  perigee_entry_free(two);
  kill(secretive, SIGKILL);
  waitpid(secretive, NULL, 0);
}

static void wrong_addresses_are_told(void **state) {
  (void)state;
  const char *list[] = {"", "x", "tcp://", "tcp://127.0.0.1:1x", tcp};
  reached_at(REACH("one", 30 * seconds, list), tcp);
  const char *only[] = {"tcp://127.0.0.1"};
  refused(REACH("one", 30 * seconds, only), PERIGEE_INVALID, "no port");
  struct perigee_entry entry = {.name = "one",
                                .addresses = (const char *const[]){tcp},
                                .address_count = 1};
  assert_int_equal(
      perigee_entry_connect(engine, &entry, "pigeon", seconds, &session),
      PERIGEE_UNSUPPORTED);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_socket_that_is_here_comes_first),
      TEST(a_path_that_is_not_here_is_left_out),
      TEST(an_address_is_dialled_once),
      TEST(at_most_sixteen_are_dialled),
      TEST(an_address_has_its_share_of_the_time),
      TEST(only_the_entrys_agent_counts),
      TEST(what_may_pass_is_told_first),
      TEST(another_scope_is_told),
      TEST(wrong_addresses_are_told),
  };
  return cmocka_run_group_tests_name("reaching agents", tests, NULL, NULL);
}
