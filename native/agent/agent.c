/* SPDX-License-Identifier: Apache-2.0
 *
 * agent.c - has an engine be an agent: it holds a name in the folder of a
 * scope, listens at the name's socket, and publishes an entry. Lua's agents do
 * the same (lua/perigee/agent/place.lua, lease.lua), and find this one as they
 * find each other.
 *
 *   step                                 what undoes it
 *   the folder of the scope is made      perigee_names_end
 *   the name is held in it               perigee_name_release: the socket goes
 *   the engine goes by the name          it goes by none
 *   it listens at the name's socket,     perigee_listener_close
 *   and at further addresses
 *   the entry is published               goes with the name
 *
 * An agent that could not be opened is closed like any other, with as many of
 * these as were done.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "base/status.h"
#include "base/versions.h"
#include "core/lock.h"
#include "core/region.h"
#include "host/name.h"
#include "perigee.h"
#include "scope.h"

/* Names that begin so are never taken a second time, and only those who ask for
 * them are told of them. */
static const char anonymous[] = "anonymous-";

int agent_failed(struct perigee_engine *engine, int status) {
  ENTER(engine);
  return fail(engine, status, "%s", detail_here());
}

/* ---- The entry ----------------------------------------------------------- */

static double agent_clock(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* Writes the number of a namespace of this process. */
static bool agent_namespace(const char *kind, char number[24]) {
  char path[32], link[64];
  snprintf(path, sizeof path, "/proc/self/ns/%s", kind);
  ssize_t n = readlink(path, link, sizeof link - 1);
  if (n < 0)
    return false;
  link[n] = '\0';
  const char *digits = link + strcspn(link, "0123456789");
  snprintf(number, 24, "%.*s", (int)strspn(digits, "0123456789"), digits);
  return true;
}

/* Writes what identifies the system that this process sees, as
 * lua/perigee/registry/machine.lua; "": the system does not tell. */
static void agent_machine(char machine[128]) {
  static const char *const kinds[] = {"mnt", "net", "pid"};
  char number[24];
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
  bool known = file && fgets(machine, 64, file);
  if (file)
    fclose(file);
  if (known)
    machine[strcspn(machine, "\n")] = '\0';
  for (int i = 0; i < 3 && known; i++) {
    size_t length = strlen(machine);
    known = agent_namespace(kinds[i], number);
    if (known)
      snprintf(machine + length, 128 - length, ".%s", number);
  }
  if (!known)
    machine[0] = '\0';
}

static void agent_pair(struct perigee_encoder *out, const char *key,
                       const char *text) {
  perigee_encode_text(out, key);
  perigee_encode_text(out, text);
}

static void agent_number(struct perigee_encoder *out, const char *key,
                         double number) {
  perigee_encode_text(out, key);
  perigee_encode_number(out, number);
}

/* Encodes an address as other hosts use it: one that stands for all of this
 * host's has the host's name in their place. */
static void agent_address(struct perigee_encoder *out, const char *address,
                          const char *host) {
  static const char *const all[] = {"tcp://0.0.0.0:", "tcp://[::]:"};
  char reachable[SCOPE_HOST + 32];
  for (int i = 0; i < 2; i++)
    if (strncmp(address, all[i], strlen(all[i])) == 0) {
      snprintf(reachable, sizeof reachable, "tcp://%s:%s", host,
               address + strlen(all[i]));
      address = reachable;
    }
  perigee_encode_text(out, address);
}

static void agent_addresses(struct perigee_encoder *out,
                            const struct perigee_agent *agent,
                            const char *host) {
  perigee_encode_text(out, "addresses");
  perigee_encode_table(out, agent->listener_count, 0);
  for (uint32_t i = 0; i < agent->listener_count; i++)
    agent_address(out, perigee_listener_address(agent->listeners[i]), host);
}

static void agent_services(struct perigee_encoder *out,
                           const struct perigee_agent *agent) {
  perigee_encode_text(out, "services");
  perigee_encode_table(out, 0, agent->service_count);
  for (const struct agent_service *each = agent->services; each;
       each = each->next)
    agent_number(out, each->name, (double)each->version);
}

static void agent_region(struct perigee_encoder *out,
                         const struct perigee_region *region) {
  static const char *const access[] = {"", "r", "w", "rw"};
  perigee_encode_text(out, region->name);
  perigee_encode_table(out, 0, 2);
  agent_number(out, "length", (double)region->length);
  agent_pair(out, "access",
             access[region->access & (PERIGEE_READ | PERIGEE_WRITE)]);
}

/* Encodes the regions that have names now. */
static void agent_regions(struct perigee_encoder *out,
                          struct perigee_engine *engine) {
  LOOK(engine);
  const struct regions *regions = &engine->regions;
  uint64_t count = 0;
  for (uint32_t i = 0; i < regions->limit; i++)
    count += regions->slots[i] && regions->slots[i]->name[0];
  perigee_encode_text(out, "regions");
  perigee_encode_table(out, 0, count);
  for (uint32_t i = 0; i < regions->limit; i++)
    if (regions->slots[i] && regions->slots[i]->name[0])
      agent_region(out, regions->slots[i]);
}

static void agent_entry(struct perigee_encoder *out,
                        const struct perigee_agent *agent) {
  enum { FIELDS = 14 };
  char epoch[17], host[SCOPE_HOST], machine[128];
  snprintf(epoch, sizeof epoch, "%016llx",
           (unsigned long long)perigee_epoch(agent->engine));
  scope_host(host);
  agent_machine(machine);
  perigee_encode_table(out, 0, FIELDS + (machine[0] != '\0'));
  agent_pair(out, "name", agent->name);
  agent_pair(out, "scope", agent->scope);
  agent_pair(out, "kind", agent->kind);
  agent_pair(out, "state", "up");
  agent_pair(out, "host", host);
  agent_pair(out, "epoch", epoch);
  if (machine[0])
    agent_pair(out, "machine", machine);
  agent_number(out, "pid", getpid());
  agent_number(out, "weight", 1);
  agent_number(out, "since", agent->since);
  agent_number(out, "term", agent->term);
  agent_addresses(out, agent, host);
  agent_services(out, agent);
  agent_regions(out, agent->engine);
  perigee_encode_text(out, "metadata");
  perigee_encode_table(out, 0, 0);
}

static int agent_write(const struct perigee_agent *agent, uint8_t *data,
                       uint64_t capacity) {
  struct perigee_encoder out;
  perigee_encode_begin(&out, data, capacity);
  agent_entry(&out, agent);
  int64_t length = perigee_encode_end(&out);
  if (length < 0)
    return (int)length;
  int status = perigee_entry_write(agent->descriptor, data, (uint64_t)length);
  if (status == PERIGEE_OK)
    return status;
  return detail_fail(status, "the entry of %s cannot be written: %s",
                     agent->name, perigee_status_text(status));
}

int agent_publish(struct perigee_agent *agent) {
  struct perigee_encoder out;
  perigee_encode_begin(&out, NULL, 0);
  agent_entry(&out, agent);
  int status = PERIGEE_TOO_LARGE;
  if (out.length > PERIGEE_ENTRY_MAX)
    detail_fail(status,
                "the entry of %s would have %llu bytes, and one has %d at most",
                agent->name, (unsigned long long)out.length, PERIGEE_ENTRY_MAX);
  else {
    uint8_t *data = malloc(out.length + 1);
    status = data ? agent_write(agent, data, out.length)
                  : detail_fail(PERIGEE_NO_MEMORY,
                                "there is no memory for an agent's entry");
    free(data);
  }
  return status == PERIGEE_OK ? status : agent_failed(agent->engine, status);
}

/* ---- The name ------------------------------------------------------------ */

/* Says who holds the name, as far as that is known. */
static int agent_taken(const struct perigee_agent *agent) {
  char holder[SCOPE_HOST + 64] = "a live process";
  struct perigee_entry *other;
  if (perigee_entry_find(agent->scope, agent->name, &other) == PERIGEE_OK) {
    if (other->pid > 0)
      snprintf(holder, sizeof holder, "process %lld on %.200s",
               (long long)other->pid, other->host ? other->host : "?");
    perigee_entry_free(other);
  }
  return detail_fail(PERIGEE_NAME_TAKEN,
                     "taking the name %s in scope %s: %s holds it", agent->name,
                     agent->scope, holder);
}

/* Makes the folder and holds the name in it. A process that gives back the last
 * name of a scope removes the folder, maybe between these two. */
static int agent_hold_once(struct perigee_agent *agent, char path[PATH_MAX]) {
  int status = scope_make(agent->scope, path);
  if (status != PERIGEE_OK)
    return status;
  size_t length = strlen(path) + strlen(agent->name) + strlen("/.sock");
  if (length > PERIGEE_ADDRESS_MAX)
    return detail_fail(PERIGEE_TOO_LARGE,
                       "the path of its socket has %zu bytes, more than %d: "
                       "%.100s/%s.sock",
                       length, PERIGEE_ADDRESS_MAX, path, agent->name);
  /* Told if perigee_name_hold says nothing by itself. */
  detail_fail(0, "the name %s cannot be held in %.150s", agent->name, path);
  return perigee_name_hold(path, agent->name);
}

/* Generated names are tried with other numbers: a process that looks whether
 * the holder of one is dead holds it for a moment. */
static int agent_hold(struct perigee_agent *agent, bool named) {
  enum { ATTEMPTS = 10 };
  char path[PATH_MAX];
  int held = PERIGEE_SYSTEM;
  for (int i = 1; i <= ATTEMPTS; i++) {
    if (!named)
      snprintf(agent->name, sizeof agent->name, "%s%d-%d-%08x", anonymous,
               (int)getpid(), i, (unsigned)perigee_epoch(agent->engine));
    held = agent_hold_once(agent, path);
    if (held != PERIGEE_SYSTEM && (named || held != PERIGEE_NAME_TAKEN))
      break;
  }
  if (held == PERIGEE_NAME_TAKEN)
    return agent_taken(agent);
  if (held < 0)
    return held;
  agent->descriptor = held;
  agent->term = (double)(uint64_t)(agent_clock(CLOCK_BOOTTIME) * 1e-3);
  perigee_names_sweep(path, anonymous);
  agent->folder = strdup(path);
  return agent->folder ? PERIGEE_OK
                       : detail_fail(PERIGEE_NO_MEMORY,
                                     "there is no memory for an agent");
}

/* ---- Listening ----------------------------------------------------------- */

static int agent_listen(struct perigee_agent *agent, const char *address) {
  struct perigee_listener **place = &agent->listeners[agent->listener_count];
  int status = perigee_listen(agent->engine, address, place);
  if (status == PERIGEE_OK)
    agent->listener_count++;
  return status;
}

/* The engine keeps the sentence of a failure. */
static int agent_listen_everywhere(struct perigee_agent *agent,
                                   const struct perigee_agent_options *given) {
  char address[PERIGEE_ADDRESS_MAX + 8];
  agent->listeners =
      calloc((size_t)given->listen_count + 1, sizeof *agent->listeners);
  if (!agent->listeners)
    return agent_failed(
        agent->engine,
        detail_fail(PERIGEE_NO_MEMORY, "there is no memory for an agent"));
  snprintf(address, sizeof address, "unix:%s/%s.sock", agent->folder,
           agent->name);
  int status = agent_listen(agent, address);
  if (status == PERIGEE_OK)
    perigee_listener_named(agent->listeners[0]);
  for (uint32_t i = 0; i < given->listen_count && status == PERIGEE_OK; i++)
    status = agent_listen(agent, given->listen[i]);
  return status;
}

/* ---- Opening ------------------------------------------------------------- */

static int agent_choose(struct perigee_agent *agent,
                        const struct perigee_agent_options *given) {
  const char *kind = given->kind ? given->kind : "agent";
  if (given->name && !name_is_valid(given->name))
    return detail_fail(PERIGEE_INVALID, "\"%.80s\" is no name for an agent",
                       given->name);
  if (!name_is_valid(kind))
    return detail_fail(PERIGEE_INVALID, "\"%.80s\" is no kind of agents", kind);
  if (given->listen_count && !given->listen)
    return detail_fail(PERIGEE_INVALID, "there are no addresses to listen at");
  snprintf(agent->name, sizeof agent->name, "%s",
           given->name ? given->name : "");
  snprintf(agent->kind, sizeof agent->kind, "%s", kind);
  return scope_choose(given->scope, agent->scope);
}

/* Peers of an engine that goes by two names would not know which one it is. */
static int agent_check_engine(struct perigee_engine *engine) {
  LOOK(engine);
  if (!engine_alive(engine))
    return detail_fail(PERIGEE_FORKED, "%s",
                       perigee_status_text(PERIGEE_FORKED));
  if (!engine->name[0])
    return PERIGEE_OK;
  return detail_fail(PERIGEE_INVALID,
                     "the engine goes by the name %s already, and has one",
                     engine->name);
}

static bool agent_stats_path(const struct perigee_agent *agent,
                             char path[PATH_MAX]) {
  int n = snprintf(path, PATH_MAX, "%s/%s.stats", agent->folder, agent->name);
  return n > 0 && n < PATH_MAX;
}

/* Without a stats file it goes on, and with one that the program has published
 * elsewhere. */
static void agent_open_stats(struct perigee_agent *agent) {
  char path[PATH_MAX];
  if (!agent->engine->stats.path && agent_stats_path(agent, path))
    perigee_stats_publish(agent->engine, path, agent->scope);
}

/* The file that the program has published stays. */
static void agent_close_stats(struct perigee_agent *agent) {
  char path[PATH_MAX];
  const char *now = agent->engine->stats.path;
  if (now && agent_stats_path(agent, path) && strcmp(now, path) == 0)
    perigee_stats_publish(agent->engine, NULL, NULL);
}

/* The sentence of a failure is the thread's until it listens. */
static int agent_take(struct perigee_agent *agent,
                      const struct perigee_agent_options *given) {
  int status = agent_check_engine(agent->engine);
  if (status == PERIGEE_OK)
    status = agent_choose(agent, given);
  if (status == PERIGEE_OK)
    status = agent_hold(agent, given->name != NULL);
  if (status != PERIGEE_OK)
    return agent_failed(agent->engine, status);
  perigee_go_by(agent->engine, agent->name);
  agent_open_stats(agent);
  status = agent_listen_everywhere(agent, given);
  return status == PERIGEE_OK ? agent_publish(agent) : status;
}

static int agent_read(const struct perigee_agent_options *theirs,
                      struct perigee_agent_options *ours) {
  *ours = (struct perigee_agent_options){.size = sizeof *ours};
  if (!theirs)
    return PERIGEE_OK;
  if (!version_size_is_right("perigee_agent_options", theirs->size))
    return PERIGEE_INVALID;
  if (version_take(ours, sizeof *ours, theirs, theirs->size))
    return PERIGEE_OK;
  return detail_fail(PERIGEE_UNSUPPORTED, "the program has set an option of "
                                          "agents that this version of "
                                          "Perigee does not have");
}

int perigee_agent_open(struct perigee_engine *engine,
                       const struct perigee_agent_options *options,
                       struct perigee_agent **out) {
  struct perigee_agent_options given;
  *out = NULL;
  int status = agent_read(options, &given);
  struct perigee_agent *agent = NULL;
  if (status == PERIGEE_OK && !(agent = calloc(1, sizeof *agent)))
    status = detail_fail(PERIGEE_NO_MEMORY, "there is no memory for an agent");
  if (!agent)
    return agent_failed(engine, status);
  agent->engine = engine;
  agent->descriptor = -1;
  agent->since = agent_clock(CLOCK_MONOTONIC);
  status = agent_take(agent, &given);
  if (status == PERIGEE_OK)
    *out = agent;
  else
    perigee_agent_close(agent);
  return status;
}

const char *perigee_agent_name(const struct perigee_agent *agent) {
  return agent->name;
}

void perigee_agent_close(struct perigee_agent *agent) {
  if (!agent)
    return;
  for (uint32_t i = 0; i < agent->listener_count; i++)
    perigee_listener_close(agent->listeners[i]);
  if (agent->descriptor >= 0) {
    perigee_go_by(agent->engine, NULL);
    agent_close_stats(agent);
    perigee_name_release(agent->descriptor);
  }
  if (agent->folder)
    perigee_names_end(agent->folder);
  if (agent->services_free)
    agent->services_free(agent);
  free(agent->listeners);
  free(agent->folder);
  free(agent);
}
