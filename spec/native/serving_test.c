/* SPDX-License-Identifier: Apache-2.0
 *
 * serving_test.c - the services of an agent of a C program: what they may be,
 * their numbers, and what an agent knows of those who ask for them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/agent.h"
#include "agents.h"
#include "perigee.h"

enum { EACH = sizeof(struct perigee_method) };

static char root[64];
static struct perigee_engine *engine, *other;
static struct perigee_agent *agent;

static int setup(void **state) {
  (void)state;
  struct perigee_agent_options options = {
      .size = sizeof options, .name = "one", .scope = "s"};
  snprintf(root, sizeof root, "/tmp/perigee-serving-test-XXXXXX");
  if (!mkdtemp(root) || setenv("XDG_RUNTIME_DIR", root, 1) != 0)
    return -1;
  unsetenv("PERIGEE_REGISTRY");
  engine = engine_of();
  other = engine_of();
  return perigee_agent_open(engine, &options, &agent);
}

static int teardown(void **state) {
  (void)state;
  char command[128];
  perigee_agent_close(agent);
  perigee_engine_close(engine);
  perigee_engine_close(other);
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  return system(command);
}

static uint64_t version_in_the_registry(const char *service) {
  struct perigee_entry *entry;
  uint64_t version = 0;
  assert_int_equal(perigee_entry_find("s", "one", &entry), PERIGEE_OK);
  for (uint32_t i = 0; i < entry->service_count; i++)
    if (strcmp(entry->services[i].name, service) == 0)
      version = entry->services[i].version;
  perigee_entry_free(entry);
  return version;
}

static struct perigee_method method(const char *name, int kind) {
  return (struct perigee_method){.name = name, .kind = (uint16_t)kind};
}

/* ---- What they may be ---------------------------------------------------- */

static void methods_are_numbered_by_their_sorted_names(void **state) {
  (void)state;
  struct perigee_method first[] = {method("b", 0), method("a", 1),
                                   method("c", 2)},
                        second[] = {method("z", 0), method("y", 0)};
  assert_int_equal(perigee_agent_serve(agent, "one", 5, first, EACH, 3), 0);
  assert_int_equal(perigee_agent_serve(agent, "two", 6, second, EACH, 2), 0);
  assert_int_equal(first[0].id, 2);
  assert_int_equal(first[1].id, 1);
  assert_int_equal(first[2].id, 3);
  assert_int_equal(second[0].id, 5);
  assert_int_equal(second[1].id, 4);
  assert_int_equal(version_in_the_registry("one"), 5);
  assert_int_equal(version_in_the_registry("two"), 6);
}

static void refused(const char *service, uint64_t version,
                    struct perigee_method m, const char *why) {
  assert_int_equal(perigee_agent_serve(agent, service, version, &m, EACH, 1),
                   PERIGEE_INVALID);
  if (!strstr(perigee_detail(engine), why))
    fail_msg("\"%s\" is not in: %s", why, perigee_detail(engine));
}

static void wrong_services_are_refused(void **state) {
  (void)state;
  char text[257];
  memset(text, 'n', 256);
  text[256] = '\0';
  struct perigee_method good = method("m", 0), m;
  refused("", 1, good, "UTF-8");
  refused(text, 1, good, "UTF-8");
  refused("\xc3", 1, good, "UTF-8");
  refused("\xc0\x80", 1, good, "UTF-8");
  refused("\xed\xa0\x80", 1, good, "UTF-8");
  refused("\xf4\x90\x80\x80", 1, good, "UTF-8");
  refused(NULL, 1, good, "UTF-8");
  refused("s", (UINT64_C(1) << 53) + 1, good, "2^53");
  refused("s", 1, method("", 0), "1 to 255 bytes");
  refused("s", 1, method(text, 0), "1 to 255 bytes");
  refused("s", 1, method(NULL, 0), "1 to 255 bytes");
  refused("s", 1, method("close", 0), "close");
  refused("s", 1, method("m", 3), "kind");
  m = good;
  m.flags = 4;
  refused("s", 1, m, "flags");
  m = method("m", 1);
  m.flags = PERIGEE_METHOD_LANDING;
  refused("s", 1, m, "landings");
  m = good;
  m.capacity = 1;
  refused("s", 1, m, "capacity");
  struct perigee_method twice[] = {good, method("n", 0), good};
  assert_int_equal(perigee_agent_serve(agent, "s", 1, twice, EACH, 3),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_agent_serve(agent, "s", 1, NULL, EACH, 3),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_agent_serve(agent, "s", 1, &good, 4, 1),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_agent_serve(agent, "s\xc3\xa4", 0, NULL, EACH, 0),
                   0);
  assert_int_equal(perigee_agent_serve(agent, "s", 1, &good, EACH, 1), 0);
  assert_int_equal(good.id, 1); /* what was refused took no number */
  refused("s", 1, good, "serves s already");
}

/* The child's copy of an agent changes nothing of what its parent published. */
static void a_child_serves_nothing(void **state) {
  (void)state;
  struct perigee_method m = method("m", 0);
  int status = 0;
  assert_int_equal(perigee_agent_serve(agent, "s", 1, &m, EACH, 1), 0);
  pid_t child = fork();
  if (child == 0)
    _exit(-perigee_agent_serve(agent, "other", 2, &m, EACH, 1));
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, -PERIGEE_FORKED << 8);
  assert_int_equal(version_in_the_registry("other"), 0);
  assert_int_equal(version_in_the_registry("s"), 1);
}

static void there_is_a_most_of_methods(void **state) {
  (void)state;
  enum { MOST = 1024 };
  static struct perigee_method list[MOST + 1];
  static char names[MOST + 1][16];
  char service[16];
  for (int i = 0; i <= MOST; i++) {
    snprintf(names[i], sizeof names[i], "m%d", i);
    list[i] = method(names[i], 0);
  }
  assert_int_equal(perigee_agent_serve(agent, "s", 1, list, EACH, MOST + 1),
                   PERIGEE_INVALID);
  int count = 0, status;
  do {
    snprintf(service, sizeof service, "s%d", count++);
    status = perigee_agent_serve(agent, service, 1, list, EACH, MOST);
  } while (status == PERIGEE_OK);
  assert_int_equal(status, PERIGEE_INVALID);
  assert_int_equal(count, 65534 / MOST + 1);
  assert_int_equal(
      perigee_agent_serve(agent, "rest", 1, list, EACH, 65534 % MOST), 0);
  assert_int_equal(perigee_agent_serve(agent, "more", 1, list, EACH, 1),
                   PERIGEE_INVALID);
}

/* Nothing has changed, and the numbers are those of the next service. */
static void an_entry_that_is_full_takes_no_service(void **state) {
  (void)state;
  char name[256];
  int count = 0, status;
  struct perigee_method m = method("m", 0);
  do {
    snprintf(name, sizeof name, "%0250d", count++);
    status = perigee_agent_serve(agent, name, 1, &m, EACH, 1);
  } while (status == PERIGEE_OK);
  assert_int_equal(status, PERIGEE_TOO_LARGE);
  assert_int_equal(version_in_the_registry(name), 0);
  assert_int_equal(m.id, count - 1);
  assert_int_equal(perigee_agent_serve(agent, "s", 7, &m, EACH, 1), 0);
  assert_int_equal(m.id, count);
  assert_int_equal(version_in_the_registry("s"), 7);
}

/* A program of a later version, whose structure is longer. */
static void methods_may_grow(void **state) {
  (void)state;
  struct later {
    struct perigee_method m;
    uint64_t more;
  } list[2] = {{method("b", 0), 0}, {method("a", 0), 0}};
  assert_int_equal(
      perigee_agent_serve(agent, "s", 1, &list[0].m, sizeof *list, 2), 0);
  assert_int_equal(list[0].m.id, 2);
  assert_int_equal(list[1].m.id, 1);
  list[1].more = 1;
  assert_int_equal(
      perigee_agent_serve(agent, "t", 1, &list[0].m, sizeof *list, 2),
      PERIGEE_UNSUPPORTED);
}

/* ---- Those who ask ------------------------------------------------------- */

/* The next event of one side, while both are polled. */
static struct perigee_event next(struct perigee_engine *of) {
  struct perigee_event e;
  for (int i = 0; i < 100000000; i++) {
    if (perigee_poll(of, &e, 1) == 1)
      return e;
    struct perigee_event others;
    if (of == other && perigee_poll(engine, &others, 1) == 1 &&
        others.kind == PERIGEE_EVENT_REQUEST)
      assert_int_equal(perigee_agent_answer(agent, &others), 1);
  }
  fail_msg("no event comes");
  return e;
}

static struct perigee_session *dialed(void) {
  char address[256];
  struct perigee_entry *entry;
  assert_int_equal(perigee_entry_find("s", "one", &entry), PERIGEE_OK);
  snprintf(address, sizeof address, "%s", entry->addresses[0]);
  perigee_entry_free(entry);
  assert_true(perigee_connect(other, address, NULL, -1) >= 0);
  struct perigee_event e = next(other);
  assert_int_equal(e.status, 0);
  return perigee_session(other, e.session);
}

/* Asks for the service "s" as a caller of that name, of so many bytes. */
static struct perigee_event asked(struct perigee_session *session,
                                  const char *caller, uint64_t length) {
  static uint8_t head[512];
  struct perigee_encoder values;
  perigee_encode_begin(&values, head, sizeof head);
  perigee_encode_text(&values, "s");
  perigee_encode_string(&values, caller, length);
  struct perigee_message m = {.flags = PERIGEE_TYPED,
                              .head = head,
                              .length = (uint64_t)perigee_encode_end(&values),
                              .timeout = -1};
  assert_true(perigee_call(session, &m) >= 0);
  return next(other);
}

static const char *name_there(void) {
  static struct perigee_session_info info;
  struct perigee_session *session = perigee_session(engine, 1);
  for (uint32_t id = 1; !session && id < 10; id++)
    session = perigee_session(engine, id);
  assert_non_null(session);
  perigee_session_describe(session, &info, sizeof info);
  return info.name;
}

static void a_session_has_the_name_that_its_peer_told(void **state) {
  (void)state;
  char text[65] = {0};
  struct perigee_session *session = dialed();
  struct perigee_session_info info;
  perigee_session_describe(session, &info, sizeof info);
  assert_string_equal(info.name, "one");
  assert_int_equal(asked(session, ".wrong", 6).status, 0);
  assert_string_equal(name_there(), "");
  asked(session, "a\0b", 3);
  assert_string_equal(name_there(), "");
  memset(text, 'n', 65);
  asked(session, text, 65);
  assert_string_equal(name_there(), "");
  asked(session, "caller:1", 8);
  assert_string_equal(name_there(), "caller:1");
}

static void a_session_has_the_name_of_the_handshake(void **state) {
  (void)state;
  assert_int_equal(perigee_go_by(other, "known"), 0);
  struct perigee_session *session = dialed();
  asked(session, "another", 7);
  assert_string_equal(name_there(), "known");
}

/* A program that is of an older version has no such field. */
static void an_older_structure_is_not_overrun(void **state) {
  (void)state;
  struct perigee_session *session = dialed();
  struct perigee_session_info info;
  memset(&info, 7, sizeof info);
  assert_int_equal(
      perigee_session_describe(session, &info,
                               offsetof(struct perigee_session_info, name)),
      0);
  assert_int_equal(((uint8_t *)&info.name)[0], 7);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(methods_are_numbered_by_their_sorted_names),
      TEST(wrong_services_are_refused),
      TEST(a_child_serves_nothing),
      TEST(there_is_a_most_of_methods),
      TEST(an_entry_that_is_full_takes_no_service),
      TEST(methods_may_grow),
      TEST(a_session_has_the_name_that_its_peer_told),
      TEST(a_session_has_the_name_of_the_handshake),
      TEST(an_older_structure_is_not_overrun),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
