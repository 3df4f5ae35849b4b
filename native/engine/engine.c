/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.c - opening and closing an engine, and its options. poll.c polls,
 * wait.c sleeps.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/status.h"
#include "base/versions.h"
#include "call/calls.h"
#include "core/fabrics.h"
#include "core/pool.h"
#include "core/stats_file.h"
#include "core/region.h"
#include "devices/devices.h"
#include "host/standard.h"
#include "net/wire.h"
#include "operation/loan.h"
#include "perigee.h"
#include "polling.h"
#include "session/sessions.h"
#include "wireup/wireup.h"

/* ---- Options: defaults --------------------------------------------------- */

static void options_default(struct perigee_options *o) {
  *o = (struct perigee_options){.size = sizeof *o,
                                .operations = 16384,
                                .sessions = 1024,
                                .regions = 1024,
                                .hellos = 256,
                                .watched = 4096,
                                .hello_timeout = 2000000000,
                                .ring = 64 << 10,
                                .eager = 16 << 10,
                                .message = PAYLOAD_MAX,
                                .typed = (1 << 20) + 4096,
                                .hold = UINT64_MAX,
                                .pool = 1 << 30,
                                .serving = 1024,
                                .mapped = UINT64_C(1) << 46,
                                .untaken = 32 << 20,
                                .spin = -1,
                                .pull = 1,
                                .dead_after = INT64_C(3000000000),
                                .streams = 1,
                                .clock = engine_default_clock,
                                .random = engine_default_random};
}

int perigee_options_init(struct perigee_options *options, uint64_t size) {
  struct perigee_options known;
  if (!version_size_is_right("perigee_options", size))
    return PERIGEE_INVALID;
  options_default(&known);
  known.size = size;
  version_give(options, size, &known, sizeof known);
  return PERIGEE_OK;
}

/* Reads the program's options over the defaults. */
static int options_read(struct perigee_options *o,
                        const struct perigee_options *given) {
  options_default(o);
  if (!given)
    return PERIGEE_OK;
  if (!version_size_is_right("perigee_options", given->size))
    return fail(NULL, PERIGEE_INVALID,
                "bad engine options: perigee_options_init has not been called");
  if (!version_take(o, sizeof *o, given, given->size))
    return fail(NULL, PERIGEE_UNSUPPORTED,
                "an engine option is set that this version of libperigee does "
                "not have, as the program is of a newer one");
  return PERIGEE_OK;
}

/* ---- Options: checks ----------------------------------------------------- */

/* Has a transport all that an additional lane needs (transport.h)? */
static bool transport_carries_payloads(const struct perigee_transport *t) {
  bool payloads = t->payloads && t->payloads->mark && t->payloads->live &&
                  !t->payloads->pushes;
  bool jobs = t->access && t->jobs;
  return (payloads || (jobs && !t->payloads)) && t->additional->memories &&
         strlen(t->name) < TRANSPORT_NAME - 1;
}

/* Has each other transport all that the first lane of a session needs? */
static bool
transports_carry_sessions(const struct perigee_transport *const *all) {
  for (; all && *all; all++) {
    const struct perigee_transport *t = *all;
    if (t->additional && !transport_carries_payloads(t))
      return false;
    if (t->additional)
      continue;
    bool lane = t->records && t->payloads && t->loans;
    bool frames = t->frames || (!t->sockets && !t->alone);
    if (!lane || !frames)
      return false;
  }
  return true;
}

/* Returns which option has a value that it must not have, and what it may have;
 * NULL: all are right. */
static const char *options_wrong(const struct perigee_options *o) {
  if (o->operations < 16 || o->operations > 65536)
    return "operations (16 to 65536)";
  if (o->sessions < 1 || o->sessions > 65536)
    return "sessions (1 to 65536)";
  if (o->regions < 1 || o->regions > REGION_SLOTS)
    return "regions (1 to 4096)";
  if (o->watched > 1 << 20)
    return "watched (0 to 1048576)";
  if (o->ring < 4096 || o->ring > 16 << 20 || (o->ring & (o->ring - 1)))
    return "ring (a power of two, 4 KiB to 16 MiB)";
  if (o->eager > o->ring / 4)
    return "eager (at most a quarter of ring)";
  if (o->message < 1 || o->message > PAYLOAD_MAX)
    return "message (1 to 2^40)";
  if (o->pool < 1 << 20 || o->pool > UINT64_C(1) << 40)
    return "pool (1 MiB to 1 TiB)";
  if (o->mapped < 1 << 30 || o->mapped > UINT64_C(1) << 47)
    return "mapped (1 GiB to 128 TiB)";
  if (o->untaken < 1)
    return "untaken (at least 1)";
  if (o->streams < 1 || o->streams > STREAMS_MAX)
    return "streams (1 to 16)";
  if (o->progress != 0 && o->progress != 1)
    return "progress (0: none, 1: a thread)";
  if (o->encrypt < PERIGEE_ENCRYPT_DEFAULT || o->encrypt > PERIGEE_ENCRYPT_OFF)
    return "encrypt (0: by default, 1: all, 2: auth, 3: off)";
  if (o->hello_timeout < 1)
    return "hello_timeout (at least 1 ns)";
  if (o->dead_after < DEAD_AFTER_LEAST)
    return "dead_after (10 ms at least)";
  if (o->serving < 1 || o->hellos < 1 || !o->clock || !o->random)
    return "serving, hellos, clock and random (must be given)";
  if (!transports_carry_sessions(o->transports))
    return "transports (each with records, payloads and loans, and with frames "
           "if sockets or alone; an additional one with what transport.h says)";
  return NULL;
}

enum { PAGE = 4096 };

/* ---- Opening ------------------------------------------------------------- */

uint64_t perigee_epoch(const struct perigee_engine *engine) {
  return engine->epoch;
}

static void *engine_reserve(uint64_t length) {
  void *p = mmap(NULL, length, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

static uint64_t engine_table_bytes(const struct perigee_engine *engine) {
  return engine->options.operations * sizeof(struct operation);
}

static uint64_t engine_pool_bytes(const struct perigee_engine *engine) {
  return 4 * engine->options.pool;
}

static void engine_open_lists(struct perigee_engine *engine) {
  struct node *lists[] = {
      &engine->ready,       &engine->given,     &engine->awaited,
      &engine->moving,      &engine->lenders,   &engine->late,
      &engine->sessions,    &engine->hot,       &engine->listeners,
      &engine->dead,        &engine->news,      &engine->losses,
      &engine->free,        &engine->endpoints, &engine->granted,
      &engine->trim.keepers};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    list_open(lists[i]);
  engine->fresh = FRESH_NONE;
}

/* A child made by fork finds zeros on this page. A 1 there is what tells an
 * engine that failed to open from one of a parent when it is closed. */
static bool engine_open_alive(struct perigee_engine *engine) {
  uint8_t *alive = engine_reserve(PAGE);
  if (!alive)
    return false;
  *alive = 1;
  madvise(alive, PAGE, MADV_WIPEONFORK);
  engine->alive = alive;
  return true;
}

static int engine_open_memory(struct perigee_engine *engine) {
  if (!engine_open_alive(engine))
    return PERIGEE_NO_MEMORY;
  engine->table = engine_reserve(engine_table_bytes(engine));
  engine->pool_memory = engine_reserve(engine_pool_bytes(engine));
  engine->scratch = malloc(engine->options.ring);
  engine->id_slots = 1;
  while (engine->id_slots < engine->options.sessions)
    engine->id_slots *= 2;
  engine->by_id = calloc(engine->id_slots, sizeof(void *));
  engine->generations =
      calloc(engine->options.operations, sizeof *engine->generations);
  engine->by_nonce = calloc(engine->id_slots, sizeof(void *));
  if (!engine->table || !engine->pool_memory || !engine->scratch ||
      !engine->by_id || !engine->by_nonce || !engine->generations)
    return PERIGEE_NO_MEMORY;
  engine->pool_area = (struct area){.memory = &memory_host,
                                    .base = engine->pool_memory,
                                    .length = engine_pool_bytes(engine),
                                    .chunk = POOL_CHUNK};
  /* The limit is on the bytes asked for; blocks may be twice as large. */
  return blocks_open(&engine->pool, engine_pool_bytes(engine),
                     2 * engine->options.pool);
}

static int engine_open_all(struct perigee_engine *engine) {
  int status = shares_open(&engine->shares, &engine->options);
  if (status == PERIGEE_OK)
    status = unauth_open(engine);
  if (status == PERIGEE_OK)
    status = engine_open_memory(engine);
  if (status < 0)
    return status;
  engine->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (engine->epoll < 0)
    return system_status(errno);
  budget_open(&engine->budget);
  timers_open(&engine->timers, engine_clock(engine));
  engine->options.random(engine->options.context, engine->mark,
                         sizeof engine->mark);
  engine->epoch =
      engine->options.epoch ? engine->options.epoch : engine_random(engine);
  status = stats_open(engine);
  if (status < 0)
    return status;
  engine->memories.kinds = engine->options.memories;
  return regions_open(engine);
}

/* Most of what an engine asks the system for is room for its pool. */
static int engine_not_opened(const struct perigee_engine *engine, int status) {
  if (status != PERIGEE_NO_MEMORY || system_scarce(errno))
    return fail(NULL, status, "cannot open an engine: %s", system_text(errno));
  return fail(NULL, status,
              "cannot open an engine: no memory, or no address space for four "
              "times the option pool, %llu MiB (ulimit -v or -d, sysctl "
              "vm.overcommit_memory)",
              (unsigned long long)(engine_pool_bytes(engine) >> 20));
}

/* The secret's text is not kept: the program may free it after this. */
static int engine_open_secret(struct perigee_engine *engine) {
  struct perigee_options *o = &engine->options;
  char reason[256];
  if (!secret_library())
    return fail(NULL, PERIGEE_SYSTEM, "libsodium finds no randomness");
  engine->secret = vault_take(&engine->vault, sizeof *engine->secret);
  if (!engine->secret)
    return fail(NULL, PERIGEE_NO_MEMORY, "%s", VAULT_FULL);
  int status =
      secret_load(o->secret, o->scope, engine->secret, reason, sizeof reason);
  o->secret = o->scope = NULL;
  return status < 0 ? fail(NULL, status, "%s", reason) : PERIGEE_OK;
}

/* Gives a script without a seed a random one, so that a run can be repeated. */
static int engine_open_faults(struct perigee_engine *engine) {
  const struct perigee_options *o = &engine->options;
  const char *text = o->faults ? o->faults : getenv("PERIGEE_FAULTS");
  struct script script;
  char reason[REASON];
  if (!text || !text[strspn(text, ", \t\n")])
    return PERIGEE_OK;
  int status = script_parse(text, &script, reason);
  if (status < 0)
    return fail(NULL, status, "%s", reason);
  if (!script.seeded)
    script.seed = engine_random(engine) >> 1;
  status = faults_open(&script, o->clock, o->context, &engine->faults);
  return status < 0 ? fail(NULL, status, "no memory for faults") : PERIGEE_OK;
}

/* Checks the text now, as a device may be opened much later, or never. */
static int options_check_rdma(const char *text) {
  struct rdma_options ignored;
  char reason[REASON];
  int status = rdma_options_parse(text, &ignored, reason, sizeof reason);
  return status < 0 ? fail(NULL, status, "rdma: %s", reason) : PERIGEE_OK;
}

/* It has no use for what no transport of its does. */
static int engine_open_features(struct perigee_engine *engine) {
  char reason[REASON];
  int status = features_parse(engine->options.features, &engine->features,
                              reason, sizeof reason);
  engine->options.features = NULL;
  if (engine->faults) /* lanes may lose requests and double them then */
    engine->features &= ~(uint64_t)FEATURE_DRAIN;
  additional_look(engine);
  if (!engine->additional)
    engine->features &= ~(uint64_t)FEATURE_LANES;
  return status < 0 ? fail(NULL, status, "%s", reason) : PERIGEE_OK;
}

int perigee_engine_open(const struct perigee_options *given,
                        struct perigee_engine **out) {
  struct perigee_options options;
  int status = options_read(&options, given);
  if (status < 0)
    return status;
  const char *wrong = options_wrong(&options);
  if (wrong)
    return fail(NULL, PERIGEE_INVALID, "bad engine option: %s", wrong);
  standard_fill();
  struct perigee_engine *engine = calloc(1, sizeof *engine);
  if (!engine)
    return fail(NULL, PERIGEE_NO_MEMORY, "no memory for an engine");
  engine->options = options;
  spin_open(&engine->spin, engine->options.spin, engine->options.spin_always);
  vault_open(&engine->vault);
  engine->epoll = engine->spare_fd = -1;
  engine->wireup = &wireup_class;
  engine_open_lists(engine);
  status = engine_open_secret(engine);
  if (status == PERIGEE_OK)
    status = engine_open_faults(engine);
  if (status == PERIGEE_OK)
    status = engine_open_features(engine);
  if (status == PERIGEE_OK)
    status = options_check_rdma(engine->options.rdma);
  if (status == PERIGEE_OK && (status = engine_open_all(engine)) < 0)
    engine_not_opened(engine, status);
  if (status == PERIGEE_OK && engine->options.progress &&
      (status = progress_open(engine)) < 0)
    fail(NULL, status, "cannot start an engine's thread: %s",
         system_text(errno));
  if (status < 0) {
    perigee_engine_close(engine);
    return status;
  }
  *out = engine;
  return PERIGEE_OK;
}

/* ---- Closing ------------------------------------------------------------- */

static void engine_close_parts(struct perigee_engine *engine) {
  for (struct part *p = engine->parts, *next; p; p = next) {
    next = p->free;
    free(p);
  }
}

/* Tells all peers before it waits for any. */
static void engine_close_sessions(struct perigee_engine *engine) {
  struct node *n, *head = &engine->sessions;
  for (n = head->next; n != head; n = n->next)
    session_say_bye(CONTAINER(n, struct perigee_session, node));
  sessions_drain(engine);
  while ((n = head->next) != head) {
    struct perigee_session *s = CONTAINER(n, struct perigee_session, node);
    session_end(s, PERIGEE_CLOSED, "its engine was closed here");
    contexts_drain(&engine->memories);
    session_destroy(s);
  }
  contexts_drain(&engine->memories);
  while ((n = engine->dead.next) != &engine->dead)
    session_destroy(CONTAINER(n, struct perigee_session, node));
  regions_close(engine);
  contexts_close(&engine->memories);
  fabrics_forget(engine, &engine->pool_area, 0, engine->pool_area.length);
  fabrics_close(engine);
}

/* A child process closes its copies of descriptors and frees memory that it
 * does not share; peers are told nothing. Shared memory was not inherited
 * (MADV_DONTFORK), and something else may be mapped in its place. */
static void engine_close_in_child(struct perigee_engine *engine) {
  struct node *n, *lists[] = {&engine->sessions, &engine->dead};
  for (int i = 0; i < 2; i++)
    for (n = lists[i]->next; n != lists[i]; n = n->next)
      session_close_in_child(CONTAINER(n, struct perigee_session, node));
  regions_close_in_child(engine);
  fabrics_close_in_child(engine);
  contexts_forsake(&engine->memories);
}

void perigee_engine_close(struct perigee_engine *engine) {
  if (!engine)
    return;
  struct node *n;
  progress_close(engine);
  while ((n = engine->listeners.next) != &engine->listeners)
    perigee_listener_close(CONTAINER(n, struct perigee_listener, node));
  while ((n = engine->endpoints.next) != &engine->endpoints)
    perigee_endpoint_close(CONTAINER(n, struct perigee_endpoint, node));
  if (engine->alive && !engine_alive(engine))
    engine_close_in_child(engine);
  else
    engine_close_sessions(engine);
  watched_close(engine);
  migrate_close(engine);
  engine_close_parts(engine);
  stages_free(engine);
  blocks_close(&engine->pool);
  shares_close(&engine->shares);
  unauth_close(engine);
  if (engine->pool_memory)
    munmap(engine->pool_memory, engine_pool_bytes(engine));
  if (engine->table)
    munmap(engine->table, engine_table_bytes(engine));
  stats_close(engine);
  if (engine->alive)
    munmap((void *)(uintptr_t)engine->alive, PAGE);
  if (engine->epoll >= 0)
    close(engine->epoll);
  if (engine->spare_fd >= 0)
    close(engine->spare_fd);
  faults_close(engine->faults);
  free(engine->by_id);
  free(engine->by_nonce);
  free(engine->generations);
  free(engine->scratch);
  spares_close(&engine->spares);
  vault_close(&engine->vault);
  free(engine);
}

/* ---- Counters ------------------------------------------------------------ */

static const struct perigee_counters *
session_counters(struct perigee_session *s) {
  bool open = s->state == PERIGEE_SESSION_OPEN;
  struct perigee_counters *c = s->counters;
  c->kept = open && s->transport->kept ? s->transport->kept->bytes(s->lane) : 0;
  c->size = sizeof *c;
  return c;
}

/* Adds what it counts to that: to the row of all that have none, or to `totals`. */
static void session_count(struct perigee_session *s,
                          struct perigee_counters *totals) {
  const struct perigee_counters *c = session_counters(s);
  if (stats_is_other(s))
    stats_tell_other(s);
  else
    counters_add(totals, c);
}

const struct perigee_counters *
perigee_counters(struct perigee_engine *engine,
                 const struct perigee_session *session) {
  LOOK(engine);
  if (session)
    return session_counters((struct perigee_session *)(uintptr_t)session);
  struct node *n, *head = &engine->sessions;
  engine->totals = *engine->counters;
  engine->totals.operations = engine->live;
  engine->totals.kept = engine->pool.warm;
  for (n = engine->given.next; n != &engine->given; n = n->next)
    engine->totals.operations--; /* has ended, and is only kept for a loan */
  for (n = head->next; n != head; n = n->next)
    session_count(CONTAINER(n, struct perigee_session, node), &engine->totals);
  counters_add(&engine->totals, &engine->stats.at->others.counters);
  engine->totals.size = sizeof engine->totals;
  return &engine->totals;
}

/* ---- What the specs look at ---------------------------------------------- */

#define SIZE_OF(type)                                                          \
  { #type, sizeof(struct type) }

/* Sizes that the specs compare with LuaJIT's view of perigee.h. */
static const struct {
  const char *name;
  uint64_t size;
} sizes[] = {
    SIZE_OF(perigee_options),       SIZE_OF(perigee_event),
    SIZE_OF(perigee_slice),         SIZE_OF(perigee_session_info),
    SIZE_OF(perigee_counters),      SIZE_OF(perigee_transfer),
    SIZE_OF(perigee_message),       SIZE_OF(perigee_answer),
    SIZE_OF(perigee_loan),          SIZE_OF(perigee_device),
    SIZE_OF(perigee_gid),           SIZE_OF(perigee_share),
    SIZE_OF(perigee_shares),        SIZE_OF(perigee_trace),
    SIZE_OF(perigee_fact),          SIZE_OF(perigee_value),
    SIZE_OF(perigee_encoder),       SIZE_OF(perigee_decoder),
    SIZE_OF(perigee_failure),       SIZE_OF(perigee_entry),
    SIZE_OF(perigee_entry_service), SIZE_OF(perigee_agent_options),
    SIZE_OF(perigee_method),        SIZE_OF(perigee_gpu),
};

int perigee_abi(void) {
  return PERIGEE_ABI;
}

uint64_t perigee_sizeof(const char *structure) {
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (strcmp(sizes[i].name, structure) == 0)
      return sizes[i].size;
  return 0;
}

/* The state machines by their names. */
static const struct machine *const machines[] = {
    &session_machine,   &call_machine,    &served_machine,
    &operation_machine, &watched_machine, &streams_machine,
    &migration_machine, &wireup_machine,  &drain_machine};

const struct machine *machine_find(const char *name) {
  for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
    if (strcmp(machines[i]->name, name) == 0)
      return machines[i];
  return NULL;
}
