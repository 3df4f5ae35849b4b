/* SPDX-License-Identifier: Apache-2.0
 *
 * service.c - services of peers. Method 0 of an agent describes a service by
 * its name: its version, and its methods with their numbers and kinds
 * (lua/perigee/agent/serving.lua, lua/perigee/serving/service.lua). A peer may
 * answer with any values; what is no description is PERIGEE_PROTOCOL. A method
 * of a kind that this version does not know is left out.
 */
#include "service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/versions.h"
#include "core/lock.h"
#include "core/session.h"

enum { NAMES_SAID = 300 };

const char *const method_kinds[METHOD_KINDS] = {"typed", "raw", "inplace"};

struct perigee_service {
  uint64_t version;
  char name[SERVICE_NAME_MOST + 1];
  uint32_t count;
  char *names;                     /* behind the methods; those of all */
  struct perigee_method methods[]; /* sorted by name */
};

/* ---- Names --------------------------------------------------------------- */

bool method_name_is_valid(const char *name, uint64_t length) {
  static const char *const refused[] = {"with", "async", "close"};
  bool valid = length >= 1 && length <= METHOD_NAME_MOST;
  for (int i = 0; i < 3; i++)
    valid = valid && (length != strlen(refused[i]) ||
                      memcmp(name, refused[i], length) != 0);
  return valid;
}

static const char *name_of(const void *list, size_t each, uint32_t i) {
  const char *name;
  memcpy(&name, (const uint8_t *)list + i * each, sizeof name);
  return name;
}

void names_said(const void *list, size_t each, uint32_t count, char *text,
                size_t room) {
  size_t length = 0;
  snprintf(text, room, "none");
  for (uint32_t i = 0; i < count && length < room; i++) {
    const char *between = i == 0 ? "" : i + 1 == count ? " and " : ", ";
    length += (size_t)snprintf(text + length, room - length, "%s%s", between,
                               name_of(list, each, i));
  }
}

/* ---- Reading a description ----------------------------------------------- */

static bool value_is_count(const struct perigee_value *v, uint64_t most,
                           uint64_t *count) {
  if (v->kind != PERIGEE_VALUE_NUMBER || !(v->number >= 0) ||
      v->number > (double)most)
    return false;
  *count = (uint64_t)v->number;
  return (double)*count == v->number;
}

/* Returns whether a table has a field; the decoder stays where it is. */
static bool table_field(const struct perigee_decoder *at,
                        const struct perigee_value *table, const char *key,
                        struct perigee_value *value) {
  struct perigee_decoder copy = *at;
  return perigee_decode_field(&copy, table, key, value) == 1;
}

static bool table_count(const struct perigee_decoder *at,
                        const struct perigee_value *table, const char *key,
                        uint64_t most, uint64_t *count) {
  struct perigee_value v;
  return table_field(at, table, key, &v) && value_is_count(&v, most, count);
}

static uint32_t table_flag(const struct perigee_decoder *at,
                           const struct perigee_value *table, const char *key,
                           uint32_t flag) {
  struct perigee_value v;
  bool on = table_field(at, table, key, &v) &&
            v.kind == PERIGEE_VALUE_BOOLEAN && v.boolean;
  return on ? flag : 0;
}

/* Returns enum perigee_method_kind, or METHOD_KINDS. */
static uint16_t table_kind(const struct perigee_decoder *at,
                           const struct perigee_value *table) {
  struct perigee_value v;
  uint16_t kind = 0;
  if (!table_field(at, table, "kind", &v) || v.kind != PERIGEE_VALUE_STRING)
    return METHOD_KINDS;
  while (kind < METHOD_KINDS &&
         (v.length != strlen(method_kinds[kind]) ||
          memcmp(v.string, method_kinds[kind], v.length) != 0))
    kind++;
  return kind;
}

/* Takes a method whose name and table were given last. False: it is none. A C
 * program cannot name one with a zero in its name. */
static bool service_take(struct perigee_service *s,
                         const struct perigee_decoder *at,
                         const struct perigee_value *name,
                         const struct perigee_value *table) {
  uint64_t id, capacity = 0;
  if (name->kind != PERIGEE_VALUE_STRING ||
      !method_name_is_valid(name->string, name->length) ||
      table->kind != PERIGEE_VALUE_TABLE ||
      !table_count(at, table, "id", NUMBER_NONE, &id))
    return false;
  uint16_t kind = table_kind(at, table);
  if (kind == METHOD_KINDS || memchr(name->string, 0, name->length))
    return true;
  table_count(at, table, "capacity", COUNT_MOST, &capacity);
  memcpy(s->names, name->string, name->length);
  s->methods[s->count++] = (struct perigee_method){
      .name = s->names,
      .id = (uint16_t)id,
      .kind = kind,
      .flags = table_flag(at, table, "landing", PERIGEE_METHOD_LANDING) |
               table_flag(at, table, "idempotent", PERIGEE_METHOD_IDEMPOTENT),
      .capacity = capacity};
  s->names += name->length + 1;
  return true;
}

int method_order(const void *a, const void *b) {
  return strcmp(((const struct perigee_method *)a)->name,
                ((const struct perigee_method *)b)->name);
}

/* Reads the methods, whose table was given last. */
static bool service_read_methods(struct perigee_service *s,
                                 struct perigee_decoder at,
                                 const struct perigee_value *methods) {
  struct perigee_value name, table;
  for (uint64_t i = 0; i < methods->pairs; i++)
    if (perigee_decode(&at, &name) != 1 || perigee_decode(&at, &table) != 1 ||
        !service_take(s, &at, &name, &table) ||
        perigee_decode_skip(&at, &table) < 0)
      return false;
  qsort(s->methods, s->count, sizeof *s->methods, method_order);
  for (uint32_t i = 1; i < s->count; i++)
    if (strcmp(s->methods[i - 1].name, s->methods[i].name) == 0)
      return false;
  return true;
}

/* Makes a service of the table that was given last. */
static int service_of(const struct perigee_decoder *at,
                      const struct perigee_value *table, const char *name,
                      struct perigee_service **service) {
  struct perigee_value methods;
  struct perigee_decoder inner = *at;
  uint64_t version;
  if (table->kind != PERIGEE_VALUE_TABLE ||
      !table_count(at, table, "version", COUNT_MOST, &version) ||
      perigee_decode_field(&inner, table, "methods", &methods) != 1 ||
      methods.kind != PERIGEE_VALUE_TABLE || methods.length > 0 ||
      methods.pairs > METHODS_MOST)
    return PERIGEE_PROTOCOL;
  size_t list = methods.pairs * sizeof(struct perigee_method);
  struct perigee_service *s =
      calloc(1, sizeof *s + list + at->length + methods.pairs);
  if (!s)
    return PERIGEE_NO_MEMORY;
  s->version = version;
  s->names = (char *)s->methods + list;
  snprintf(s->name, sizeof s->name, "%s", name);
  if (service_read_methods(s, inner, &methods)) {
    *service = s;
    return PERIGEE_OK;
  }
  free(s);
  return PERIGEE_PROTOCOL;
}

/* ---- Asking -------------------------------------------------------------- */

static const char *session_who(const struct perigee_session *s) {
  return *s->peer.terms.name ? s->peer.terms.name : s->target.address;
}

static int service_failed(struct perigee_session *s, const char *name,
                          int status, const char *text, uint64_t length) {
  ENTER(s->engine);
  return fail(s->engine, status, "opening service %s of %s: %.*s", name,
              session_who(s), (int)(length < NAMES_SAID ? length : NAMES_SAID),
              text);
}

static int service_failed_by(struct perigee_session *s, const char *name,
                             int status, const char *text) {
  return service_failed(s, name, status, text, strlen(text));
}

/* A status that the peer made up is none of this side's. */
static int service_status(const struct perigee_session *s, int status) {
  bool lost = s->state != PERIGEE_SESSION_OPEN;
  bool made_up = status == PERIGEE_REMOTE ||
                 ((status == PERIGEE_PEER_LOST || status == PERIGEE_INVALID ||
                   status == PERIGEE_FORKED) &&
                  !lost);
  return made_up ? PERIGEE_PROTOCOL : status;
}

static int service_refused(struct perigee_session *s, const char *name,
                           const struct perigee_event *e) {
  struct perigee_failure f;
  if (perigee_failure_read(e, &f, sizeof f) < 0)
    return service_failed_by(s, name, PERIGEE_PROTOCOL, "it answers nothing");
  return service_failed(s, name, service_status(s, f.status), f.text,
                        f.text_length);
}

static int service_answered(struct perigee_session *s, const char *name,
                            const struct perigee_event *e,
                            struct perigee_service **service) {
  struct perigee_decoder at;
  struct perigee_value v, text;
  int status = PERIGEE_PROTOCOL;
  if (perigee_decode_event(&at, e) == PERIGEE_OK &&
      perigee_decode(&at, &v) == 1) {
    if (v.kind == PERIGEE_VALUE_NIL && perigee_decode(&at, &text) == 1 &&
        text.kind == PERIGEE_VALUE_STRING)
      return service_failed(s, name, PERIGEE_NO_SERVICE, text.string,
                            text.length);
    status = service_of(&at, &v, name, service);
  }
  if (status == PERIGEE_OK)
    return status;
  return service_failed_by(s, name, status,
                           status == PERIGEE_NO_MEMORY
                               ? perigee_status_text(status)
                               : "the peer's description of it is none");
}

/* Gives back what came with a reply and is the program's. */
static void service_forget(struct perigee_engine *engine,
                           const struct perigee_event *e) {
  if (e->flags & PERIGEE_POOLED)
    perigee_pool_free(engine, e->landed);
  if (e->flags & PERIGEE_HELD)
    perigee_pool_free(engine, (uint8_t *)(uintptr_t)e->pointer);
}

/* Has the calls of each method be counted by themselves (stats.h). */
static void service_count_apart(struct perigee_session *session,
                                const struct perigee_service *s) {
  for (uint32_t i = 0; i < s->count; i++)
    perigee_stats_method(session->engine, session, s->methods[i].id, s->name,
                         s->methods[i].name);
}

int perigee_service_open(struct perigee_session *session, const char *service,
                         int64_t timeout, struct perigee_service **out) {
  uint8_t head[SERVICE_NAME_MOST + TERMS_NAME + 16];
  struct perigee_encoder values;
  struct perigee_event e;
  struct perigee_engine *engine = session->engine;
  *out = NULL;
  if (!service || !*service || strlen(service) > SERVICE_NAME_MOST)
    return service_failed_by(session, "?", PERIGEE_INVALID,
                             "a service's name has 1 to 255 bytes");
  perigee_encode_begin(&values, head, sizeof head);
  perigee_encode_text(&values, service);
  if (*engine->name)
    perigee_encode_text(&values, engine->name);
  struct perigee_message m = {.flags = PERIGEE_TYPED | PERIGEE_CHECKED,
                              .head = head,
                              .length = (uint64_t)perigee_encode_end(&values),
                              .timeout = timeout};
  int status = perigee_call_wait(session, &m, &e);
  if (e.kind == PERIGEE_EVENT_NONE)
    return status < 0 ? status : PERIGEE_PROTOCOL;
  status = status < 0 ? service_refused(session, service, &e)
                      : service_answered(session, service, &e, out);
  if (*out)
    service_count_apart(session, *out);
  service_forget(engine, &e);
  return status;
}

/* ---- A service ----------------------------------------------------------- */

uint64_t perigee_service_version(const struct perigee_service *service) {
  return service->version;
}

static int service_lacks(const struct perigee_service *s, const char *name) {
  char text[NAMES_SAID];
  names_said(s->methods, sizeof *s->methods, s->count, text, sizeof text);
  return detail_fail(PERIGEE_NO_METHOD,
                     "service %s has no method %.80s; it has %s", s->name, name,
                     text);
}

int perigee_service_method(const struct perigee_service *service,
                           const char *name, struct perigee_method *method,
                           uint64_t size) {
  if (!version_size_is_right("perigee_method", size))
    return PERIGEE_INVALID;
  if (!name)
    return detail_fail(PERIGEE_INVALID, "there is no name of a method");
  const struct perigee_method key = {.name = name};
  const struct perigee_method *found =
      service->count ? bsearch(&key, service->methods, service->count,
                               sizeof key, method_order)
                     : NULL;
  if (!found)
    return service_lacks(service, name);
  version_give(method, size, found, sizeof *found);
  return PERIGEE_OK;
}

int perigee_service_methods(const struct perigee_service *service,
                            struct perigee_method *list, uint64_t each,
                            uint32_t capacity) {
  if (!version_size_is_right("perigee_method", each))
    return PERIGEE_INVALID;
  for (uint32_t i = 0; i < service->count && i < capacity; i++)
    version_give((uint8_t *)list + i * each, each, &service->methods[i],
                 sizeof *service->methods);
  return (int)service->count;
}

void perigee_service_close(struct perigee_service *service) {
  free(service);
}
