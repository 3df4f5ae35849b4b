/* SPDX-License-Identifier: Apache-2.0
 *
 * program.c - a program that uses every structure that may grow, and calls
 * itself through one engine's socket. It is built with one version of perigee.h
 * and run with the library of another. argv[1]: the socket's path. Exits with 0,
 * or with the number of the line that did not hold.
 */
#include <stdio.h>
#include <string.h>

#include "perigee.h"

#define HOLDS(what)                                                            \
  do {                                                                         \
    if (!(what)) {                                                             \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what,            \
              perigee_detail(NULL));                                           \
      return 1;                                                                \
    }                                                                          \
  } while (0)

/* A structure between two that must not be touched. */
#define GUARDED(type)                                                          \
  struct {                                                                     \
    uint64_t before;                                                           \
    struct type it;                                                            \
    uint64_t behind;                                                           \
  }
#define GUARD(x) ((x).before = (x).behind = UINT64_C(0x5ca1ab1e))
#define KEPT(x) ((x).before == (x).behind && (x).behind == UINT64_C(0x5ca1ab1e))

static struct perigee_event program_await(struct perigee_engine *engine,
                                          int kind) {
  struct perigee_event e = {0};
  while (perigee_poll(engine, &e, 1) == 0 || e.kind != kind)
    perigee_wait(&engine, 1, 1000000000);
  return e;
}

static int program_opens(struct perigee_engine **engine) {
  GUARDED(perigee_options) options;
  GUARD(options);
  HOLDS(perigee_options_init(&options.it, sizeof options.it) == PERIGEE_OK);
  HOLDS(KEPT(options) && options.it.operations == 16384);
  options.it.operations = 64;
  HOLDS(perigee_engine_open(&options.it, engine) == PERIGEE_OK);
  return 0;
}

static int program_calls(struct perigee_engine *engine, uint32_t session) {
  struct perigee_message request = {.method = 3,
                                    .head = "to and fro",
                                    .length = 10,
                                    .timeout = 5000000000};
  HOLDS(perigee_call(perigee_session(engine, session), &request) >= 0);
  struct perigee_event e = program_await(engine, PERIGEE_EVENT_REQUEST);
  HOLDS(e.method == 3 && e.length == 10);
  struct perigee_message reply = {.head = e.pointer, .length = e.length};
  HOLDS(perigee_reply(engine, e.operation, &reply) >= 0);
  e = program_await(engine, PERIGEE_EVENT_REPLY);
  HOLDS(e.status == PERIGEE_OK && e.length == 10);
  HOLDS(memcmp(e.pointer, "to and fro", 10) == 0);
  return 0;
}

static int program_fails(struct perigee_engine *engine, uint32_t session) {
  struct perigee_message request = {.timeout = 5000000000};
  GUARDED(perigee_failure) failure;
  GUARD(failure);
  HOLDS(perigee_call(perigee_session(engine, session), &request) >= 0);
  struct perigee_event e = program_await(engine, PERIGEE_EVENT_REQUEST);
  HOLDS(perigee_fail_call(engine, e.operation, PERIGEE_DENIED, "not now", NULL,
                          true) >= 0);
  e = program_await(engine, PERIGEE_EVENT_REPLY);
  HOLDS(perigee_failure_read(&e, &failure.it, sizeof failure.it) == 0);
  HOLDS(KEPT(failure) && failure.it.status == PERIGEE_DENIED);
  HOLDS(failure.it.ran == 1 && failure.it.text_length == 7);
  return 0;
}

static int program_looks(struct perigee_engine *engine, uint32_t id) {
  struct perigee_session *session = perigee_session(engine, id);
  GUARDED(perigee_session_info) info;
  GUARDED(perigee_shares) shares;
  GUARD(info);
  GUARD(shares);
  HOLDS(perigee_session_describe(session, &info.it, sizeof info.it) == 0);
  HOLDS(perigee_shares_read(engine, session, &shares.it, sizeof shares.it) ==
        0);
  HOLDS(KEPT(info) && KEPT(shares));
  HOLDS(info.it.id == id && info.it.state == PERIGEE_SESSION_OPEN);
  HOLDS(strcmp(info.it.transport, "shm") == 0);
  const struct perigee_counters *c = perigee_counters(engine, session);
  HOLDS(c->size >= 16 && c->calls == 1);
  struct perigee_device devices[2];
  HOLDS(perigee_devices("/nowhere", devices, sizeof *devices, 2) == 0);
  GUARDED(perigee_gpu) gpu;
  GUARD(gpu);
  HOLDS(perigee_gpus("/nowhere", &gpu.it, sizeof gpu.it, 1) !=
        PERIGEE_INVALID);
  HOLDS(KEPT(gpu));
  return 0;
}

static int program_has_a_name(struct perigee_engine *engine) {
  struct perigee_agent *agent;
  struct perigee_entry *entry;
  struct perigee_agent_options options = {
      .size = sizeof options, .name = "abi", .scope = "abi", .kind = "program"};
  HOLDS(perigee_agent_open(engine, &options, &agent) == PERIGEE_OK);
  HOLDS(perigee_entry_find("abi", "abi", &entry) == PERIGEE_OK);
  HOLDS(entry->size >= 16 && strcmp(entry->name, "abi") == 0);
  HOLDS(strcmp(entry->kind, "program") == 0 && entry->address_count == 1);
  perigee_entry_free(entry);
  perigee_agent_close(agent);
  return 0;
}

int main(int argc, char **argv) {
  struct perigee_engine *engine;
  struct perigee_listener *listener;
  HOLDS(argc == 2);
  if (program_opens(&engine))
    return 1;
  HOLDS(perigee_listen(engine, argv[1], &listener) == PERIGEE_OK);
  HOLDS(perigee_connect(engine, argv[1], "shm", 5000000000) >= 0);
  struct perigee_event e = program_await(engine, PERIGEE_EVENT_CONNECTED);
  HOLDS(e.status == PERIGEE_OK);
  int failed = program_calls(engine, e.session) ||
               program_looks(engine, e.session) ||
               program_fails(engine, e.session) || program_has_a_name(engine);
  perigee_engine_close(engine);
  return failed;
}
