/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_test.c - engines that hold a name in a folder: what they publish, what
 * they give back, and what a failure leaves behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/agent.h"
#include "agents.h"
#include "perigee.h"

static char root[64], folder[PATH_MAX];
static struct perigee_engine *engine, *other;
static struct perigee_agent *agent;
static struct perigee_entry *entry;

static int setup(void **state) {
  (void)state;
  snprintf(root, sizeof root, "/tmp/perigee-agent-test-XXXXXX");
  if (!mkdtemp(root) || setenv("XDG_RUNTIME_DIR", root, 1) != 0)
    return -1;
  unsetenv("PERIGEE_REGISTRY");
  unsetenv("PERIGEE_SCOPE");
  engine = engine_of();
  other = engine_of();
  return perigee_scope_folder("s", folder, sizeof folder) > 0 ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  char command[128];
  perigee_agent_close(agent);
  perigee_entry_free(entry);
  agent = NULL;
  entry = NULL;
  perigee_engine_close(engine);
  perigee_engine_close(other);
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  return system(command);
}

static struct perigee_agent_options named(const char *name) {
  return (struct perigee_agent_options){
      .size = sizeof(struct perigee_agent_options), .name = name, .scope = "s"};
}

static int try(struct perigee_engine *of,
               const struct perigee_agent_options *options) {
  assert_null(agent);
  return perigee_agent_open(of, options, &agent);
}

static void taken(const struct perigee_agent_options *options) {
  int status = try(engine, options);
  if (status != PERIGEE_OK)
    fail_msg("%s: %s", perigee_status_name(status), perigee_detail(engine));
}

static void closed(void) {
  perigee_agent_close(agent);
  agent = NULL;
}

static int look(const char *name) {
  perigee_entry_free(entry);
  return perigee_entry_find("s", name, &entry);
}

/* How many files and folders are in the folder of the scope; -1: it is gone. */
static int files(void) {
  DIR *all = opendir(folder);
  int count = -2; /* "." and ".." */
  if (!all)
    return -1;
  while (readdir(all))
    count++;
  closedir(all);
  return count;
}

/* ---- What is there ------------------------------------------------------- */

static void its_entry_says_what_it_is(void **state) {
  (void)state;
  char address[PATH_MAX + 32], host[SCOPE_HOST], epoch[17];
  const char *listen[] = {"tcp://127.0.0.1:0"};
  struct perigee_agent_options options = named("one");
  options.kind = "worker";
  options.listen = listen;
  options.listen_count = 1;
  taken(&options);
  assert_string_equal(perigee_agent_name(agent), "one");
  assert_int_equal(look("one"), PERIGEE_OK);
  scope_host(host);
  snprintf(address, sizeof address, "unix:%s/one.sock", folder);
  snprintf(epoch, sizeof epoch, "%016llx",
           (unsigned long long)perigee_epoch(engine));
  assert_string_equal(entry->name, "one");
  assert_string_equal(entry->scope, "s");
  assert_string_equal(entry->kind, "worker");
  assert_string_equal(entry->state, "up");
  assert_string_equal(entry->host, host);
  assert_string_equal(entry->epoch, epoch);
  assert_int_equal(entry->pid, getpid());
  assert_true(entry->term > 0);
  assert_int_equal(entry->service_count, 0);
  assert_int_equal(entry->address_count, 2);
  assert_string_equal(entry->addresses[0], address);
  assert_memory_equal(entry->addresses[1], "tcp://127.0.0.1:", 16);
  assert_true(atoi(entry->addresses[1] + 16) > 0);
}

static void an_address_for_all_has_the_hosts_name(void **state) {
  (void)state;
  char host[SCOPE_HOST], expected[SCOPE_HOST + 16];
  const char *listen[] = {"tcp://0.0.0.0:0"};
  struct perigee_options insecure;
  struct perigee_engine *third;
  perigee_options_init(&insecure, sizeof insecure);
  insecure.secret = "";
  insecure.insecure = 1;
  assert_int_equal(perigee_engine_open(&insecure, &third), PERIGEE_OK);
  struct perigee_agent_options options = named("one");
  options.listen = listen;
  options.listen_count = 1;
  assert_int_equal(try(engine, &options), PERIGEE_DENIED);
  assert_int_equal(try(third, &options), PERIGEE_OK);
  assert_int_equal(look("one"), PERIGEE_OK);
  scope_host(host);
  int n = snprintf(expected, sizeof expected, "tcp://%s:", host);
  assert_memory_equal(entry->addresses[1], expected, (size_t)n);
  closed();
  perigee_engine_close(third);
}

static void its_services_are_told(void **state) {
  (void)state;
  struct agent_service calc = {NULL, "calc", 3}, store = {&calc, "store", 1};
  struct perigee_agent_options options = named("one");
  taken(&options);
  agent->services = &store;
  agent->service_count = 2;
  assert_int_equal(agent_publish(agent), PERIGEE_OK);
  assert_int_equal(look("one"), PERIGEE_OK);
  assert_int_equal(entry->service_count, 2);
  assert_string_equal(entry->services[0].name, "calc");
  assert_int_equal(entry->services[0].version, 3);
  assert_string_equal(entry->services[1].name, "store");
}

/* Each region takes 300 bytes; the entry before stays. */
static void an_entry_may_be_too_large(void **state) {
  (void)state;
  enum { SERVICES = 4000 };
  static char names[SERVICES][300];
  static struct agent_service list[SERVICES];
  struct perigee_agent_options options = named("one");
  taken(&options);
  for (int i = 0; i < SERVICES; i++) {
    snprintf(names[i], sizeof names[i], "%0290d", i);
    list[i] = (struct agent_service){i ? &list[i - 1] : NULL, names[i], 1};
  }
  agent->services = &list[SERVICES - 1];
  agent->service_count = SERVICES;
  assert_int_equal(agent_publish(agent), PERIGEE_TOO_LARGE);
  assert_non_null(strstr(perigee_detail(engine), "one"));
  assert_int_equal(look("one"), PERIGEE_OK);
  assert_int_equal(entry->service_count, 0);
  agent->services = &list[2000];
  agent->service_count = 2001;
  assert_int_equal(agent_publish(agent), PERIGEE_OK);
  assert_int_equal(look("one"), PERIGEE_OK);
  assert_int_equal(entry->service_count, 2001);
}

static void a_name_is_made_where_none_is_given(void **state) {
  (void)state;
  struct perigee_agent *second;
  struct perigee_agent_options options = named(NULL);
  taken(&options);
  assert_int_equal(perigee_agent_open(other, &options, &second), PERIGEE_OK);
  assert_memory_equal(perigee_agent_name(second), "anonymous-", 10);
  assert_string_not_equal(perigee_agent_name(second),
                          perigee_agent_name(agent));
  assert_int_equal(look(perigee_agent_name(second)), PERIGEE_OK);
  assert_string_equal(entry->kind, "agent");
  perigee_agent_close(second);
}

static void options_may_be_left_out(void **state) {
  (void)state;
  setenv("PERIGEE_SCOPE", "s", 1);
  assert_int_equal(perigee_agent_open(engine, NULL, &agent), PERIGEE_OK);
  assert_int_equal(look(perigee_agent_name(agent)), PERIGEE_OK);
}

/* ---- The name ------------------------------------------------------------ */

static void a_name_is_taken_once(void **state) {
  (void)state;
  char holder[32];
  struct perigee_agent *second;
  struct perigee_agent_options options = named("one");
  taken(&options);
  assert_int_equal(perigee_agent_open(other, &options, &second),
                   PERIGEE_NAME_TAKEN);
  assert_null(second);
  snprintf(holder, sizeof holder, "process %d on ", (int)getpid());
  assert_non_null(strstr(perigee_detail(other), holder));
  closed();
  assert_int_equal(perigee_agent_open(other, &options, &agent), PERIGEE_OK);
}

static void terms_rise(void **state) {
  (void)state;
  double last = 0;
  struct perigee_agent_options options = named("one");
  for (int i = 0; i < 5; i++) {
    taken(&options);
    assert_int_equal(look("one"), PERIGEE_OK);
    assert_true(entry->term > last);
    last = entry->term;
    closed();
  }
}

static void an_engine_has_one_name(void **state) {
  (void)state;
  struct perigee_agent *second;
  struct perigee_agent_options options = named("one"), more = named("two");
  taken(&options);
  assert_int_equal(perigee_agent_open(engine, &more, &second), PERIGEE_INVALID);
  assert_non_null(strstr(perigee_detail(engine), "one"));
  assert_int_equal(look("two"), PERIGEE_NOT_FOUND);
  assert_int_equal(look("one"), PERIGEE_OK);
  closed();
  taken(&more);
}

static void a_close_leaves_nothing(void **state) {
  (void)state;
  struct perigee_agent_options options = named("one");
  taken(&options);
  assert_int_equal(files(), 3);
  closed();
  assert_int_equal(files(), -1);
  perigee_agent_close(NULL);
  taken(&options);
  struct perigee_agent *second;
  struct perigee_agent_options more = named("two");
  assert_int_equal(perigee_agent_open(other, &more, &second), PERIGEE_OK);
  closed();
  assert_int_equal(files(), 3);
  assert_int_equal(look("two"), PERIGEE_OK);
  perigee_agent_close(second);
}

/* It stays when an agent could not be opened, and when one is closed. */
static void the_programs_stats_file_stays(void **state) {
  (void)state;
  char path[128];
  struct perigee_agent_options good = named("one"), bad = named("one");
  const char *nowhere[] = {"tcp://127.0.0.1"};
  snprintf(path, sizeof path, "%s/own.stats", root);
  assert_int_equal(perigee_stats_publish(engine, path, NULL), PERIGEE_OK);
  bad.listen = nowhere;
  bad.listen_count = 1;
  assert_int_equal(try(engine, &bad), PERIGEE_INVALID);
  assert_int_equal(access(path, F_OK), 0);
  taken(&good);
  assert_int_equal(files(), 2);
  closed();
  assert_int_equal(access(path, F_OK), 0);
  assert_int_equal(perigee_stats_publish(engine, NULL, NULL), PERIGEE_OK);
  assert_int_equal(access(path, F_OK), -1);
}

/* Also where the program has published it in place of the agent's. */
static void the_agents_stats_file_may_be_replaced(void **state) {
  (void)state;
  char path[128];
  struct perigee_agent_options options = named("one");
  snprintf(path, sizeof path, "%s/own.stats", root);
  taken(&options);
  assert_int_equal(perigee_stats_publish(engine, NULL, NULL), PERIGEE_OK);
  assert_int_equal(perigee_stats_publish(engine, path, NULL), PERIGEE_OK);
  closed();
  assert_int_equal(access(path, F_OK), 0);
}

static void a_killed_holder_loses_its_name(void **state) {
  (void)state;
  char byte;
  int ends[2];
  struct perigee_agent_options options = named("one"), none = named(NULL);
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct perigee_engine *first = engine_of(), *second = engine_of();
    int fine = perigee_agent_open(first, &options, &agent) == PERIGEE_OK &&
               perigee_agent_open(second, &none, &agent) == PERIGEE_OK;
    if (write(ends[1], fine ? "y" : "n", 1) == 1)
      pause();
    _exit(1);
  }
  assert_int_equal(read(ends[0], &byte, 1), 1);
  assert_int_equal(byte, 'y');
  assert_int_equal(try(engine, &options), PERIGEE_NAME_TAKEN);
  assert_int_equal(look("one"), PERIGEE_OK);
  assert_int_equal(entry->pid, child);
  assert_int_equal(files(), 6);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  assert_int_equal(look("one"), PERIGEE_NOT_FOUND);
  taken(&options); /* and sweeps the generated name */
  assert_int_equal(look("one"), PERIGEE_OK);
  assert_int_equal(entry->pid, getpid());
  assert_int_equal(files(), 4);
  close(ends[0]);
  close(ends[1]);
}

/* ---- Failures ------------------------------------------------------------ */

static void what_fails_leaves_nothing(void **state) {
  (void)state;
  const char *listen[] = {"tcp://127.0.0.1:0", "tcp://127.0.0.1"};
  const char *nothing[] = {NULL};
  struct perigee_agent_options good = named("one");
  for (int i = 0; i < 8; i++) {
    struct perigee_agent_options options = named("one");
    if (i == 0)
      options.name = "a/b";
    else if (i == 1)
      options.name = "";
    else if (i == 2)
      options.kind = "a kind";
    else if (i == 3)
      options.scope = "..";
    else if (i == 4)
      options.size = 7;
    options.listen = i == 5 ? listen : i == 6 ? nothing : NULL;
    options.listen_count = i == 5 ? 2 : i > 5;
    assert_int_equal(try(engine, &options), PERIGEE_INVALID);
    assert_null(agent);
    const char *why = i == 4 ? "a struct perigee_agent_options of 7 " : "";
    assert_true(perigee_detail(engine)[0] != '\0');
    assert_non_null(strstr(perigee_detail(engine), why));
    assert_int_equal(files(), -1);
  }
  taken(&good);
}

static void an_address_in_use_is_refused(void **state) {
  (void)state;
  struct perigee_listener *listener;
  assert_int_equal(perigee_listen(other, "tcp://127.0.0.1:0", &listener),
                   PERIGEE_OK);
  const char *listen[] = {perigee_listener_address(listener)};
  struct perigee_agent_options options = named("one");
  options.listen = listen;
  options.listen_count = 1;
  assert_int_equal(try(engine, &options), PERIGEE_NAME_TAKEN);
  assert_int_equal(files(), -1);
  perigee_listener_close(listener);
}

static void a_folder_of_others_is_denied(void **state) {
  (void)state;
  char path[PATH_MAX];
  struct perigee_agent_options options = named("one");
  snprintf(path, sizeof path, "%s/perigee", root);
  assert_int_equal(mkdir(path, 0755), 0);
  assert_int_equal(chmod(path, 0755), 0);
  assert_int_equal(try(engine, &options), PERIGEE_DENIED);
  assert_non_null(strstr(perigee_detail(engine), path));
}

static void a_long_path_is_too_large(void **state) {
  (void)state;
  char name[65];
  memset(name, 'n', 64);
  name[64] = '\0';
  struct perigee_agent_options options = named(name);
  options.scope = name + 10;
  assert_int_equal(try(engine, &options), PERIGEE_TOO_LARGE);
  options.name = "n";
  options.scope = name + 40;
  taken(&options);
}

static void a_registry_that_is_no_folder_is_unsupported(void **state) {
  (void)state;
  struct perigee_agent_options options = named("one");
  setenv("PERIGEE_REGISTRY", "redis://localhost", 1);
  assert_int_equal(try(engine, &options), PERIGEE_UNSUPPORTED);
  unsetenv("PERIGEE_REGISTRY");
}

/* A child may not be its parent's agent, and leaves the parent's alone. */
static void a_child_is_no_agent(void **state) {
  (void)state;
  int status;
  struct perigee_agent_options options = named("one");
  taken(&options);
  pid_t child = fork();
  if (child == 0) {
    struct perigee_agent *mine;
    int got = perigee_agent_open(engine, &options, &mine);
    perigee_agent_close(agent);
    _exit(got == PERIGEE_FORKED ? 0 : 1);
  }
  waitpid(child, &status, 0);
  assert_int_equal(status, 0);
  assert_int_equal(look("one"), PERIGEE_OK);
  assert_int_equal(files(), 3);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(its_entry_says_what_it_is),
      TEST(an_address_for_all_has_the_hosts_name),
      TEST(its_services_are_told),
      TEST(an_entry_may_be_too_large),
      TEST(a_name_is_made_where_none_is_given),
      TEST(options_may_be_left_out),
      TEST(a_name_is_taken_once),
      TEST(terms_rise),
      TEST(an_engine_has_one_name),
      TEST(a_close_leaves_nothing),
      TEST(the_programs_stats_file_stays),
      TEST(the_agents_stats_file_may_be_replaced),
      TEST(a_killed_holder_loses_its_name),
      TEST(what_fails_leaves_nothing),
      TEST(an_address_in_use_is_refused),
      TEST(a_folder_of_others_is_denied),
      TEST(a_long_path_is_too_large),
      TEST(a_registry_that_is_no_folder_is_unsupported),
      TEST(a_child_is_no_agent),
  };
  return cmocka_run_group_tests_name("agents", tests, NULL, NULL);
}
