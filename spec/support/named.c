/* SPDX-License-Identifier: Apache-2.0
 *
 * named.c - a C program that has a name, or finds one, for specs in Lua:
 *
 *   named agent SCOPE NAME [ADDRESS...]  holds the name, and serves service "x"
 *                                        with the raw method "echo", until a
 *                                        line comes, or the end of stdin
 *   named find SCOPE NAME                finds the name in the folder
 *   named parse TEXT                     reads an entry; "-": from stdin
 *   named show TEXT                      the same, and no more
 *
 * find and parse connect, and call method 1; all three print the entry. Failures
 * are a line, "STATUS: why", and exit status 1. It uses the public header alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <perigee.h>

static const int64_t patience = INT64_C(60000000000);
static struct perigee_engine *engine;

static void check(int status) {
  if (status >= 0)
    return;
  const char *why = perigee_detail(engine);
  printf("%s: %s\n", perigee_status_name(status),
         why[0] ? why : perigee_detail(NULL));
  exit(1);
}

static void say(const char *line) {
  puts(line);
  fflush(stdout);
}

/* ---- With a name --------------------------------------------------------- */

/* Method 0: what service "x" has. */
static void describe(const struct perigee_event *request) {
  uint8_t data[128];
  struct perigee_encoder out;
  perigee_encode_begin(&out, data, sizeof data);
  perigee_encode_table(&out, 0, 2);
  perigee_encode_text(&out, "version");
  perigee_encode_number(&out, 7);
  perigee_encode_text(&out, "methods");
  perigee_encode_table(&out, 0, 1);
  perigee_encode_text(&out, "echo");
  perigee_encode_table(&out, 0, 2);
  perigee_encode_text(&out, "id");
  perigee_encode_number(&out, 1);
  perigee_encode_text(&out, "kind");
  perigee_encode_text(&out, "raw");
  struct perigee_message reply = {.flags = PERIGEE_TYPED,
                                  .head = data,
                                  .length = (uint64_t)perigee_encode_end(&out)};
  perigee_reply(engine, request->operation, &reply);
}

static void echo(const struct perigee_event *request) {
  struct perigee_message reply = {.head = request->pointer,
                                  .length = request->length};
  perigee_reply(engine, request->operation, &reply);
}

/* False once the program is to end. */
static bool handled(const struct perigee_event *event) {
  if (event->kind == PERIGEE_EVENT_REQUEST)
    (event->method == 0 ? describe : echo)(event);
  return event->kind != PERIGEE_EVENT_READY;
}

static void serve(void) {
  struct perigee_event events[64];
  check(perigee_watch(engine, STDIN_FILENO, PERIGEE_READABLE, 0));
  for (bool on = true; on;) {
    int n = perigee_poll(engine, events, 64);
    for (int i = 0; i < n && on; i++)
      on = handled(&events[i]);
    if (n == 0)
      perigee_wait(&engine, 1, -1);
  }
}

static void agent(const char *scope, const char *name, char **addresses,
                  int count) {
  struct perigee_agent *mine;
  struct perigee_agent_options options = {
      .size = sizeof options,
      .name = name,
      .scope = scope,
      .kind = "c",
      .listen = (const char *const *)addresses,
      .listen_count = (uint32_t)count,
  };
  check(perigee_agent_open(engine, &options, &mine));
  printf("holding %s\n", perigee_agent_name(mine));
  fflush(stdout);
  serve();
  perigee_agent_close(mine);
  say("closed");
}

/* ---- With another's ------------------------------------------------------ */

static const char *known(const char *text) {
  return text ? text : "?";
}

static void print(const struct perigee_entry *entry) {
  printf("%s in %s: %s, %s, pid %lld, epoch %s\n", entry->name, entry->scope,
         known(entry->kind), known(entry->state), (long long)entry->pid,
         known(entry->epoch));
  for (uint32_t i = 0; i < entry->address_count; i++)
    printf("at %s\n", entry->addresses[i]);
  for (uint32_t i = 0; i < entry->service_count; i++)
    printf("serves %s %llu\n", entry->services[i].name,
           (unsigned long long)entry->services[i].version);
}

static void use(const struct perigee_entry *entry) {
  struct perigee_session *session;
  struct perigee_event reply;
  struct perigee_message message = {
      .method = 1, .head = "hello", .length = 5, .timeout = patience};
  check(perigee_entry_connect(engine, entry, NULL, patience, &session));
  check(perigee_call_wait(session, &message, &reply));
  printf("%.*s\n", (int)reply.length, (const char *)reply.pointer);
}

static struct perigee_entry *parse(const char *text) {
  static char line[2 * PERIGEE_ENTRY_MAX];
  struct perigee_entry *entry;
  if (strcmp(text, "-") == 0) {
    line[fread(line, 1, sizeof line - 1, stdin)] = '\0';
    text = line;
  }
  check(perigee_entry_parse(text, &entry));
  return entry;
}

static struct perigee_entry *find(const char *scope, const char *name) {
  struct perigee_entry *entry;
  check(perigee_entry_find(scope, name, &entry));
  return entry;
}

/* The entry that the arguments name; NULL: they are wrong. */
static struct perigee_entry *found(int argc, char **argv) {
  if (argc == 4 && strcmp(argv[1], "find") == 0)
    return find(argv[2], argv[3]);
  if (argc == 3)
    return parse(argv[2]);
  return NULL;
}

int main(int argc, char **argv) {
  check(perigee_engine_open(NULL, &engine));
  if (argc >= 4 && strcmp(argv[1], "agent") == 0)
    agent(argv[2], argv[3], argv + 4, argc - 4);
  else {
    struct perigee_entry *entry = found(argc, argv);
    if (!entry)
      return 2;
    print(entry);
    if (strcmp(argv[1], "show") != 0)
      use(entry);
    perigee_entry_free(entry);
  }
  perigee_engine_close(engine);
  return 0;
}
