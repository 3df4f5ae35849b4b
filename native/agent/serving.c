/* SPDX-License-Identifier: Apache-2.0
 *
 * serving.c - the services of an agent of a C program. Methods are numbered
 * from 1, a service's in the order of their sorted names; method 0 describes a
 * service by its name. Numbers, descriptions and the texts of refusals are
 * those of Lua's agents (lua/perigee/agent/serving.lua, lua/perigee/serving/).
 * The program serves the calls itself; it asks perigee_agent_answer first,
 * which answers those that are for no method of its.
 *
 * A description may be longer than what a reply copies. So it goes into the
 * block of its call, which lives until the caller has it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "base/status.h"
#include "base/versions.h"
#include "core/lock.h"
#include "core/pool.h"
#include "operation/operations.h"
#include "service.h"
#include "session/sessions.h"

enum { NAMES_SAID = 4 << 10, TEXT = 512 };

struct served_service {
  struct agent_service head;
  uint32_t count;
  char *names;                     /* behind the methods */
  struct perigee_method methods[]; /* sorted by name */
};

/* agent->serving */
struct serving {
  uint32_t last; /* number of the last method */
  struct served_method {
    const struct perigee_method *method;
    const char *service;
  } * by_number; /* from 1 */
};

static struct served_service *served_of(struct agent_service *service) {
  return (struct served_service *)service;
}

static struct served_service *agent_find(const struct perigee_agent *agent,
                                         const char *name, uint64_t length) {
  for (struct agent_service *s = agent->services; s; s = s->next)
    if (strlen(s->name) == length && memcmp(s->name, name, length) == 0)
      return served_of(s);
  return NULL;
}

/* ---- Checking a service -------------------------------------------------- */

static bool utf8_follows(const unsigned char *at, int more) {
  for (int i = 1; i <= more; i++)
    if ((at[i] & 0xc0) != 0x80)
      return false;
  return true;
}

/* Returns how many bytes one character has; 0: it is none. */
static int utf8_length(const unsigned char *at) {
  if (at[0] < 0x80)
    return 1;
  if (at[0] >= 0xc2 && at[0] <= 0xdf)
    return utf8_follows(at, 1) ? 2 : 0;
  if (at[0] >= 0xe0 && at[0] <= 0xef && utf8_follows(at, 2)) {
    bool longer = at[0] == 0xe0 && at[1] < 0xa0;
    bool surrogate = at[0] == 0xed && at[1] > 0x9f;
    return longer || surrogate ? 0 : 3;
  }
  if (at[0] >= 0xf0 && at[0] <= 0xf4 && utf8_follows(at, 3)) {
    bool longer = at[0] == 0xf0 && at[1] < 0x90;
    bool beyond = at[0] == 0xf4 && at[1] > 0x8f;
    return longer || beyond ? 0 : 4;
  }
  return 0;
}

static bool service_name_is_valid(const char *name) {
  const unsigned char *at = (const unsigned char *)name;
  int length;
  if (!name || !*name || strlen(name) > SERVICE_NAME_MOST)
    return false;
  for (; *at; at += length)
    if ((length = utf8_length(at)) == 0)
      return false;
  return true;
}

static int method_wrong(const struct perigee_method *m, const char *service) {
  enum { FLAGS = PERIGEE_METHOD_LANDING | PERIGEE_METHOD_IDEMPOTENT };
  if (!m->name || !method_name_is_valid(m->name, strlen(m->name)))
    return detail_fail(PERIGEE_INVALID,
                       "service %s: a method's name has 1 to 255 bytes, and is "
                       "not with, async or close, which every proxy has",
                       service);
  if (m->kind >= METHOD_KINDS || m->flags & ~(uint32_t)FLAGS)
    return detail_fail(PERIGEE_INVALID,
                       "method %s.%s has a kind or flags that there are not",
                       service, m->name);
  if (m->kind != PERIGEE_METHOD_TYPED && m->flags & PERIGEE_METHOD_LANDING)
    return detail_fail(
        PERIGEE_INVALID,
        "method %s.%s is raw, and only typed methods have landings", service,
        m->name);
  if (m->kind != PERIGEE_METHOD_INPLACE && m->capacity)
    return detail_fail(
        PERIGEE_INVALID,
        "method %s.%s has a capacity, and only inplace methods have", service,
        m->name);
  if (m->capacity > COUNT_MOST)
    return detail_fail(PERIGEE_INVALID, "method %s.%s: no reply is so long",
                       service, m->name);
  return PERIGEE_OK;
}

static int serve_check(const struct perigee_agent *agent, const char *service,
                       uint64_t version, const void *methods, uint64_t each,
                       uint32_t count) {
  const struct serving *serving = agent->serving;
  if (!engine_alive(agent->engine)) /* the entry is the parent's */
    return detail_fail(PERIGEE_FORKED, "%s",
                       perigee_status_text(PERIGEE_FORKED));
  if (!service_name_is_valid(service))
    return detail_fail(PERIGEE_INVALID, "a service needs a name of 1 to 255 "
                                        "bytes in UTF-8");
  if (version > COUNT_MOST)
    return detail_fail(PERIGEE_INVALID, "a version is at most 2^53");
  if (count > METHODS_MOST)
    return detail_fail(PERIGEE_INVALID,
                       "service %s has more than %d methods: make several "
                       "services of it",
                       service, METHODS_MOST);
  if (count > 0 && !methods)
    return detail_fail(PERIGEE_INVALID, "service %s: there are no methods",
                       service);
  if (agent_find(agent, service, strlen(service)))
    return detail_fail(PERIGEE_INVALID, "the agent %s serves %s already",
                       agent->name, service);
  if ((serving ? serving->last : 0) + count > NUMBERS_MOST)
    return detail_fail(PERIGEE_INVALID, "an agent serves at most %d methods",
                       NUMBERS_MOST);
  return version_size_is_right("perigee_method", each) ? PERIGEE_OK
                                                       : PERIGEE_INVALID;
}

/* ---- Making a service ---------------------------------------------------- */

static void *method_at(void *methods, uint64_t each, uint32_t i) {
  return (uint8_t *)methods + i * each;
}

/* Reads a method of the program's. */
static int method_read(void *methods, uint64_t each, uint32_t i,
                       const char *service, struct perigee_method *m) {
  *m = (struct perigee_method){0};
  if (!version_take(m, sizeof *m, method_at(methods, each, i), each))
    return detail_fail(PERIGEE_UNSUPPORTED,
                       "service %s: a method has a field that this version of "
                       "Perigee does not have",
                       service);
  return method_wrong(m, service);
}

/* Copies a text behind the methods. */
static const char *served_keep(struct served_service *s, const char *text) {
  size_t length = strlen(text) + 1;
  char *copy = memcpy(s->names, text, length);
  s->names += length;
  return copy;
}

static int served_fill(struct served_service *s, const char *service,
                       void *methods, uint64_t each, uint32_t count) {
  s->head.name = served_keep(s, service);
  for (uint32_t i = 0; i < count; i++) {
    struct perigee_method *m = &s->methods[s->count++];
    int status = method_read(methods, each, i, service, m);
    if (status < 0)
      return status;
    m->name = served_keep(s, m->name);
  }
  qsort(s->methods, s->count, sizeof *s->methods, method_order);
  for (uint32_t i = 1; i < s->count; i++)
    if (strcmp(s->methods[i - 1].name, s->methods[i].name) == 0)
      return detail_fail(PERIGEE_INVALID, "service %s has two methods %s",
                         service, s->methods[i].name);
  return PERIGEE_OK;
}

/* Names are counted before they are checked: those that are too long are never
 * copied. */
static int served_make(const char *service, void *methods, uint64_t each,
                       uint32_t count, struct served_service **out) {
  struct perigee_method m;
  size_t names = strlen(service) + 1, list = count * sizeof m;
  int status = PERIGEE_OK;
  for (uint32_t i = 0; i < count && status == PERIGEE_OK; i++)
    if ((status = method_read(methods, each, i, service, &m)) == PERIGEE_OK)
      names += strlen(m.name) + 1;
  if (status < 0)
    return status;
  struct served_service *s = calloc(1, sizeof *s + list + names);
  if (!s)
    return detail_fail(PERIGEE_NO_MEMORY, "there is no memory for a service");
  s->names = (char *)s->methods + list;
  status = served_fill(s, service, methods, each, count);
  if (status == PERIGEE_OK)
    *out = s;
  else
    free(s);
  return status;
}

/* Tells the program the numbers of its methods. */
static void served_tell_numbers(const struct served_service *s, void *methods,
                                uint64_t each, uint32_t count) {
  struct perigee_method m;
  for (uint32_t i = 0; i < count; i++) {
    void *place = method_at(methods, each, i);
    m = (struct perigee_method){0};
    version_take(&m, sizeof m, place, each);
    const struct perigee_method *own =
        bsearch(&m, s->methods, s->count, sizeof *s->methods, method_order);
    memcpy((uint8_t *)place + offsetof(struct perigee_method, id), &own->id,
           sizeof own->id);
  }
}

/* ---- An agent's services ------------------------------------------------- */

static void services_free(struct perigee_agent *agent) {
  struct serving *serving = agent->serving;
  for (struct agent_service *s = agent->services, *next; s; s = next) {
    next = s->next;
    free(served_of(s));
  }
  if (serving)
    free(serving->by_number);
  free(serving);
}

/* Makes room for the numbers of so many more methods; NULL: no memory. */
static struct served_method *serving_grow(struct serving *serving,
                                          uint32_t count) {
  size_t all = serving->last + (size_t)count + 1;
  struct served_method *list = realloc(serving->by_number, all * sizeof *list);
  if (list)
    serving->by_number = list;
  return list;
}

static int serving_open(struct perigee_agent *agent) {
  if (!agent->serving)
    agent->serving = calloc(1, sizeof(struct serving));
  agent->services_free = services_free;
  return agent->serving ? PERIGEE_OK
                        : detail_fail(PERIGEE_NO_MEMORY,
                                      "there is no memory for a service");
}

static void serving_number(struct perigee_agent *agent,
                           struct served_method *list,
                           struct served_service *s) {
  struct serving *serving = agent->serving;
  for (uint32_t i = 0; i < s->count; i++) {
    list[++serving->last] =
        (struct served_method){&s->methods[i], s->head.name};
    s->methods[i].id = (uint16_t)serving->last;
    perigee_stats_method(agent->engine, NULL, s->methods[i].id, s->head.name,
                         s->methods[i].name);
  }
}

/* Adds the service, and takes it back if the registry cannot tell of it. */
static int serving_add(struct perigee_agent *agent, struct served_service *s) {
  struct serving *serving = agent->serving;
  uint32_t before = serving->last;
  struct served_method *list = serving_grow(serving, s->count);
  if (!list)
    return agent_failed(
        agent->engine,
        detail_fail(PERIGEE_NO_MEMORY, "there is no memory for a service"));
  serving_number(agent, list, s);
  s->head.next = agent->services;
  agent->services = &s->head;
  agent->service_count++;
  int status = agent_publish(agent);
  if (status == PERIGEE_OK)
    return status;
  agent->services = s->head.next;
  agent->service_count--;
  serving->last = before;
  return status;
}

int perigee_agent_serve(struct perigee_agent *agent, const char *service,
                        uint64_t version, struct perigee_method *methods,
                        uint64_t each, uint32_t count) {
  struct served_service *s = NULL;
  int status = serve_check(agent, service, version, methods, each, count);
  if (status == PERIGEE_OK)
    status = served_make(service, methods, each, count, &s);
  if (status == PERIGEE_OK)
    status = serving_open(agent);
  if (status != PERIGEE_OK || !s) {
    free(s);
    return agent_failed(agent->engine, status);
  }
  s->head.version = version;
  status = serving_add(agent, s);
  if (status == PERIGEE_OK)
    served_tell_numbers(s, methods, each, count);
  else
    free(s);
  return status;
}

/* ---- Describing ---------------------------------------------------------- */

static void describe_flag(struct perigee_encoder *out, const char *key,
                          bool on) {
  if (!on)
    return;
  perigee_encode_text(out, key);
  perigee_encode_boolean(out, true);
}

static void describe_method(struct perigee_encoder *out,
                            const struct perigee_method *m) {
  bool lands = m->flags & PERIGEE_METHOD_LANDING;
  bool again = m->flags & PERIGEE_METHOD_IDEMPOTENT;
  perigee_encode_text(out, m->name);
  perigee_encode_table(out, 0, 2u + lands + again + (m->capacity > 0));
  perigee_encode_text(out, "id");
  perigee_encode_number(out, m->id);
  perigee_encode_text(out, "kind");
  perigee_encode_text(out, method_kinds[m->kind]);
  describe_flag(out, "landing", lands);
  describe_flag(out, "idempotent", again);
  if (m->capacity == 0)
    return;
  perigee_encode_text(out, "capacity");
  perigee_encode_number(out, (double)m->capacity);
}

static void describe_service(struct perigee_encoder *out,
                             const struct served_service *s) {
  perigee_encode_table(out, 0, 2);
  perigee_encode_text(out, "version");
  perigee_encode_number(out, (double)s->head.version);
  perigee_encode_text(out, "methods");
  perigee_encode_table(out, 0, s->count);
  for (uint32_t i = 0; i < s->count; i++)
    describe_method(out, &s->methods[i]);
}

static int name_order(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void services_said(const struct perigee_agent *agent, char *text,
                          size_t room) {
  const char **names = calloc(agent->service_count + 1, sizeof *names);
  uint32_t count = 0;
  const struct agent_service *s = names ? agent->services : NULL;
  for (; s; s = s->next)
    names[count++] = s->name;
  if (count)
    qsort(names, count, sizeof *names, name_order);
  names_said(names, sizeof *names, count, text, room);
  free(names);
}

/* What method 0 was asked. */
struct asked {
  const struct perigee_agent *agent;
  const struct served_service *service; /* NULL: there is none of that name */
  char name[SERVICE_NAME_MOST + 40];
};

static const char *value_said(uint32_t kind) {
  static const char *const kinds[] = {"nil",   "boolean", "number", "cdata",
                                      "cdata", "string",  "table",  "nil"};
  return kind < 8 ? kinds[kind] : "nil";
}

static void asked_read(struct asked *asked, const struct perigee_event *e,
                       struct perigee_session *s) {
  struct perigee_decoder at;
  struct perigee_value name = {0}, caller;
  if (perigee_decode_event(&at, e) < 0 || perigee_decode(&at, &name) != 1)
    name.kind = PERIGEE_VALUE_NIL;
  bool text = name.kind == PERIGEE_VALUE_STRING;
  if (text)
    asked->service = agent_find(asked->agent, name.string, name.length);
  if (text)
    snprintf(asked->name, sizeof asked->name, "%.*s",
             (int)(name.length < 255 ? name.length : 255), name.string);
  else
    snprintf(asked->name, sizeof asked->name, "named by a %s",
             value_said(name.kind));
  if (s && !s->dialed && perigee_decode_skip(&at, &name) == PERIGEE_OK &&
      perigee_decode(&at, &caller) == 1 && caller.kind == PERIGEE_VALUE_STRING)
    session_named(s, caller.string, caller.length);
}

static void asked_encode(const struct asked *asked,
                         struct perigee_encoder *out) {
  char names[NAMES_SAID], text[NAMES_SAID + TEXT];
  if (asked->service) {
    describe_service(out, asked->service);
    return;
  }
  services_said(asked->agent, names, sizeof names);
  snprintf(text, sizeof text, "there is no service %s here; there is %s",
           asked->name, names);
  perigee_encode_nil(out);
  perigee_encode_text(out, text);
}

/* Takes the block of the call for the answer. The request's bytes were read. */
static uint8_t *describe_room(struct operation *op, uint64_t length) {
  if (op->block)
    pool_give(op->engine, op->block);
  op->block = op->session ? pool_take(op->session, length) : NULL;
  return op->block;
}

static int answer_describe(struct perigee_agent *agent,
                           const struct perigee_event *e) {
  ENTER(agent->engine);
  struct asked asked = {.agent = agent};
  struct perigee_encoder out;
  struct operation *op = operation_find(agent->engine, e->operation);
  if (!op || op->kind != OP_SERVED)
    return 0;
  asked_read(&asked, e, op->session);
  perigee_encode_begin(&out, NULL, 0);
  asked_encode(&asked, &out);
  uint8_t *bytes = describe_room(op, out.length);
  if (!bytes)
    return perigee_fail_call(agent->engine, e->operation, PERIGEE_NO_MEMORY,
                             "there is no block for a description", NULL,
                             false);
  perigee_encode_begin(&out, bytes, out.length);
  asked_encode(&asked, &out);
  struct perigee_message m = {.flags = PERIGEE_TYPED | PERIGEE_CHECKED,
                              .head = bytes,
                              .length = out.length};
  return perigee_reply(agent->engine, e->operation, &m);
}

/* ---- Answering ----------------------------------------------------------- */

/* Refuses a call; a slice that came with it goes back to the pool. */
static int answer_refuse(struct perigee_agent *agent,
                         const struct perigee_event *e, int status,
                         const char *text) {
  if (e->kind == PERIGEE_EVENT_REQUEST && e->flags & PERIGEE_POOLED)
    perigee_pool_free(agent->engine, e->landed);
  return perigee_fail_call(agent->engine, e->operation, status, text, NULL,
                           false);
}

static const struct served_method *
answer_find(const struct perigee_agent *agent, uint16_t number) {
  const struct serving *serving = agent->serving;
  bool known = serving && number >= 1 && number <= serving->last;
  return known ? &serving->by_number[number] : NULL;
}

static int answer_short(struct perigee_agent *agent,
                        const struct perigee_event *e,
                        const struct served_method *m) {
  char text[2 * METHOD_NAME_MOST + TEXT];
  snprintf(text, sizeof text,
           "%s.%s needs a capacity of %llu bytes at least, and is offered %llu",
           m->service, m->method->name, (unsigned long long)m->method->capacity,
           (unsigned long long)e->capacity);
  return answer_refuse(agent, e, PERIGEE_TOO_LARGE, text);
}

/* Where no landing is chosen, a slice goes to a pooled block. */
static int answer_landing(struct perigee_agent *agent,
                          const struct perigee_event *e,
                          const struct served_method *m) {
  if (e->method == 0)
    return answer_refuse(agent, e, PERIGEE_DENIED, "describe takes no slice");
  if (!m || m->method->kind != PERIGEE_METHOD_TYPED)
    return answer_refuse(agent, e, PERIGEE_NO_METHOD,
                         "no typed method has this id");
  if (m->method->flags & PERIGEE_METHOD_LANDING)
    return 0;
  static const struct perigee_slice pooled;
  int status = perigee_land(agent->engine, e->operation, &pooled);
  return status < 0
             ? answer_refuse(agent, e, status, perigee_detail(agent->engine))
             : 0;
}

static int answer_typed(struct perigee_agent *agent,
                        const struct perigee_event *e,
                        const struct served_method *m) {
  if (e->method == 0)
    return answer_describe(agent, e);
  if (!m || m->method->kind != PERIGEE_METHOD_TYPED)
    return answer_refuse(agent, e, PERIGEE_NO_METHOD,
                         "no typed method has this id");
  return PERIGEE_INLINE;
}

static int answer_raw(struct perigee_agent *agent,
                      const struct perigee_event *e,
                      const struct served_method *m) {
  if (!m || m->method->kind == PERIGEE_METHOD_TYPED)
    return answer_refuse(agent, e, PERIGEE_NO_METHOD,
                         "no raw method has this id");
  if (e->capacity < m->method->capacity)
    return answer_short(agent, e, m);
  return PERIGEE_INLINE;
}

int perigee_agent_answer(struct perigee_agent *agent,
                         const struct perigee_event *event) {
  const struct served_method *m = answer_find(agent, event->method);
  int status;
  if (event->kind == PERIGEE_EVENT_LANDING) {
    if (m && m->method->flags & PERIGEE_METHOD_LANDING)
      return 0;
    status = answer_landing(agent, event, m);
  } else if (event->kind == PERIGEE_EVENT_REQUEST) {
    status = event->flags & PERIGEE_TYPED ? answer_typed(agent, event, m)
                                          : answer_raw(agent, event, m);
    if (status == PERIGEE_INLINE)
      return 0;
  } else {
    return 0;
  }
  return status < 0 ? status : 1;
}
