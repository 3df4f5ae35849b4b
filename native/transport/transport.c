/* SPDX-License-Identifier: Apache-2.0
 *
 * transport.c - gives lanes their tables; and the facts that a lane tells of
 * itself, for users: names with numbers or texts, and all of them as one line.
 */
#include <stdarg.h>
#include <stdio.h>

#include "transport/transport.h"

/* ---- Tables -------------------------------------------------------------- */

static void sleep_nothing(struct lane *lane) {
  (void)lane;
}

static bool sleep_never(struct lane *lane) {
  (void)lane;
  return false;
}

/* For transports without the group, so that no caller has to ask after each
 * record. */
static const struct transport_sleep awake = {
    .arm = sleep_nothing, .disarm = sleep_nothing, .wanted = sleep_never};

void lane_by(struct lane *lane, const struct perigee_transport *transport) {
  struct lane_head *head = (struct lane_head *)lane;
  head->transport = transport;
  head->records = transport->records;
  head->payloads = transport->payloads;
  head->sleep = transport->sleep ? transport->sleep : &awake;
  head->in = NULL;
  head->out = NULL;
}

/* ---- Facts --------------------------------------------------------------- */

enum { FACT_NAME = 40 };

static struct perigee_fact *fact_add(struct lane_facts *facts,
                                     const char *name) {
  if (facts->count == FACTS)
    return NULL;
  struct perigee_fact *fact = &facts->list[facts->count++];
  *fact = (struct perigee_fact){.name = name};
  return fact;
}

void fact_number(struct lane_facts *facts, const char *name, uint64_t number) {
  struct perigee_fact *fact = fact_add(facts, name);
  if (fact)
    fact->number = number;
}

void fact_text(struct lane_facts *facts, const char *name, const char *format,
               ...) {
  uint32_t room = (uint32_t)sizeof facts->texts - facts->used;
  struct perigee_fact *fact = room > 1 ? fact_add(facts, name) : NULL;
  if (!fact)
    return;
  char *to = facts->texts + facts->used;
  va_list values;
  va_start(values, format);
  int n = vsnprintf(to, room, format, values);
  va_end(values);
  facts->used += n < 0 ? 0 : (uint32_t)n < room ? (uint32_t)n + 1 : room;
  fact->text = to;
}

/* "queue_pairs" is said as words. */
static void fact_words(const char *name, char words[FACT_NAME]) {
  snprintf(words, FACT_NAME, "%s", name);
  for (char *c = words; *c; c++)
    *c = *c == '_' ? ' ' : *c;
}

static int fact_write(const struct perigee_fact *fact, char *to, size_t room) {
  char words[FACT_NAME];
  fact_words(fact->name, words);
  if (fact->text)
    return snprintf(to, room, "%s: %s", words, fact->text);
  return snprintf(to, room, "%llu %s", (unsigned long long)fact->number, words);
}

void facts_line(const struct lane_facts *facts, char *text, uint64_t size) {
  size_t used = 0;
  text[0] = 0;
  for (uint32_t i = 0; i < facts->count && used + 2 < size; i++) {
    used += (size_t)snprintf(text + used, size - used, "%s", i ? ", " : "");
    used += (size_t)fact_write(&facts->list[i], text + used, size - used);
  }
}
