/* SPDX-License-Identifier: Apache-2.0
 *
 * stats_file.c - the engine's stats: its memory, the file beneath it, and rows
 * of sessions and methods (stats.h, stats_file.h).
 */
#include "stats_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"
#include "host/cut.h"
#include "host/name.h"
#include "host/sized.h"
#include "lanes.h"
#include "lock.h"
#include "spans.h"

/* Numbers of methods that have a row; larger ones count in row 0. */
enum { NUMBERS = 4096 };

_Static_assert(sizeof((struct stats_file *)0)->sessions ==
                       PERIGEE_STATS_SESSIONS &&
                   sizeof((struct stats_file *)0)->hashes ==
                       PERIGEE_STATS_METHODS * sizeof(uint32_t),
               "each row has its own");
_Static_assert(sizeof(struct perigee_stats_head) <= PERIGEE_STATS_HEAD,
               "the head has its page");
_Static_assert(sizeof(struct perigee_counters) <=
                   PERIGEE_STATS_COUNTERS * sizeof(uint64_t),
               "each counter has a name, and the fields of sessions that stand "
               "behind their counters stay where they are");
_Static_assert(
    sizeof(struct perigee_stats_event) == 32 &&
        sizeof(struct perigee_stats_operation) == 16,
    "rows that are written by each call share no cache line by half");

/* Copies a text, cut to what there is room for. */
#define PUT(field, text) stats_put((field), sizeof(field), (text))

static void stats_put(char *to, size_t room, const char *text) {
  size_t length = strnlen(text, room - 1);
  memcpy(to, text, length);
  to[length] = '\0';
}

/* ---- The memory --------------------------------------------------------- */

static const char counter_names[][24] = {
    "size",     "calls",      "served",   "replies",    "failures",
    "timeouts", "transfers",  "messages", "bytes_sent", "bytes_received",
    "wakes",    "sleeps",     "spins",    "stalls",     "sessions",
    "regions",  "operations", "pooled",   "refused",    "polls",
    "kept",     "dropped",
};
_Static_assert(sizeof counter_names / sizeof *counter_names <=
                   sizeof(struct perigee_counters) / sizeof(uint64_t),
               "each name has a counter");

#define TABLE(field)                                                           \
  {                                                                            \
    .offset = offsetof(struct stats, field),                                   \
    .row = sizeof *((struct stats *)0)->field,                                 \
    .rows =                                                                    \
        sizeof((struct stats *)0)->field / sizeof *((struct stats *)0)->field  \
  }

/* Reads the beginning of a file of /proc/self. */
static void stats_read_own(const char *path, char *text, size_t room) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? read(fd, text, room - 1) : -1;
  text[n > 0 ? n : 0] = '\0';
  if (fd >= 0)
    close(fd);
  for (ssize_t i = 0; i < n - 1; i++)
    if (text[i] == '\0')
      text[i] = ' ';
}

/* Field 22 of /proc/self/stat; the second, in brackets, may have blanks. */
static uint64_t stats_process_started(void) {
  char text[1024];
  stats_read_own("/proc/self/stat", text, sizeof text);
  char *at = strrchr(text, ')');
  for (int field = 2; at && field < 22; field++)
    at = strchr(at + 1, ' ');
  return at ? strtoull(at, NULL, 10) : 0;
}

static void stats_fill_process(struct perigee_stats_head *head) {
  head->pid = (uint64_t)getpid();
  head->pid_started = stats_process_started();
  gethostname(head->host, sizeof head->host - 1);
  stats_read_own("/proc/self/cmdline", head->program, sizeof head->program);
}

static void stats_fill(struct perigee_engine *engine) {
  struct stats *at = engine->stats.at;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  at->head = (struct perigee_stats_head){
      .version = PERIGEE_STATS_VERSION,
      .head = PERIGEE_STATS_HEAD,
      .length = sizeof *at,
      .epoch = engine->epoch,
      .began = (uint64_t)engine->now,
      .began_at = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec,
      .looked = (uint64_t)engine->now,
      .names = TABLE(names),
      .counters = {offsetof(struct stats, counters), sizeof at->room, 1},
      .sessions = TABLE(sessions),
      .operations = TABLE(operations),
      .events = TABLE(events),
      .methods = TABLE(methods),
      .histograms = TABLE(histograms),
      .spans = TABLE(spans),
      .others = {offsetof(struct stats, others), sizeof at->others, 1}};
  memcpy(at->names, counter_names, sizeof counter_names);
  at->counters.size = sizeof at->counters;
  at->others.counters.size = sizeof at->others.counters;
  at->methods[0].used = 3;
}

int stats_open(struct perigee_engine *engine) {
  struct stats_file *f = &engine->stats;
  void *memory = mmap(NULL, sizeof *f->at, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return PERIGEE_NO_MEMORY;
  f->at = memory;
  f->methods = 1;
  list_open(&f->others);
  engine->counters = &f->at->counters;
  stats_fill(engine);
  return PERIGEE_OK;
}

/* The file is removed only if it is still this engine's. */
static void stats_remove(struct stats_file *f) {
  struct stat s;
  if (f->path && lstat(f->path, &s) == 0 && s.st_dev == f->device &&
      s.st_ino == f->inode)
    unlink(f->path);
  free(f->path);
  f->path = NULL;
}

void stats_close(struct perigee_engine *engine) {
  struct stats_file *f = &engine->stats;
  if (!f->at)
    return;
  if (engine_alive(engine))
    stats_remove(f);
  cut_forget(f->at);
  munmap(f->at, sizeof *f->at);
  free(f->rows.of);
  free(f->path);
  f->at = NULL;
}

/* ---- The file beneath it ------------------------------------------------ */

/* A path and what stands behind it, or NULL. */
static char *stats_path(const char *path, const char *end) {
  char *text = NULL;
  return asprintf(&text, "%s%s", path, end) < 0 ? NULL : text;
}

/* What is written in any case has its blocks; rows of methods and spans get
 * theirs when they are used. */
static int stats_size_file(int file) {
  off_t sure = offsetof(struct stats, methods);
  if (!sized_may(sizeof(struct stats)))
    return PERIGEE_TOO_LARGE;
  if (!sized(file, sizeof(struct stats)))
    return system_status(errno);
  int error = posix_fallocate(file, 0, sure);
  if (!error || error == EOPNOTSUPP || error == EINVAL)
    return PERIGEE_OK;
  errno = error;
  return system_status(error);
}

/* A page of a new file is slow to write to, so what is all zeros is left out. */
static void stats_copy(struct stats *to, const struct perigee_engine *engine) {
  const struct stats_file *f = &engine->stats;
  uint32_t operations = engine->table_used, sessions = f->next_session;
  if (operations > PERIGEE_STATS_OPERATIONS)
    operations = PERIGEE_STATS_OPERATIONS;
  if (sessions > PERIGEE_STATS_SESSIONS)
    sessions = PERIGEE_STATS_SESSIONS;
  memcpy(to, f->at, offsetof(struct stats, operations));
  memcpy(to->operations, f->at->operations,
         operations * sizeof *to->operations);
  memcpy(to->sessions, f->at->sessions, sessions * sizeof *to->sessions);
  memcpy(to->methods, f->at->methods, f->methods * sizeof *to->methods);
  for (uint32_t i = 0; i < f->methods; i++)
    if (f->at->histograms[i].count)
      to->histograms[i] = f->at->histograms[i];
  uint64_t spans = f->at->head.spans_given;
  if (spans > PERIGEE_STATS_SPANS)
    spans = PERIGEE_STATS_SPANS;
  memcpy(to->spans, f->at->spans, spans * sizeof *to->spans);
}

/* Maps the file in place of the private memory, with all that is there. */
static int stats_map_file(struct perigee_engine *engine, int file) {
  struct stats_file *f = &engine->stats;
  void *copy =
      mmap(NULL, sizeof *f->at, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (copy == MAP_FAILED)
    return system_status(errno);
  int status = PERIGEE_NO_MEMORY;
  errno = ENOMEM;
  if (cut_guard(copy, sizeof *f->at)) {
    stats_copy(copy, engine);
    cut_forget(copy);
    status = PERIGEE_OK;
  }
  munmap(copy, sizeof *f->at);
  cut_forget(f->at); /* of a file before */
  if (status == PERIGEE_OK && !cut_guard(f->at, sizeof *f->at))
    status = PERIGEE_NO_MEMORY;
  if (status == PERIGEE_OK &&
      mmap(f->at, sizeof *f->at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
           file, 0) == MAP_FAILED) {
    status = system_status(errno);
    cut_forget(f->at);
  }
  return status;
}

/* The file of a former owner of the name becomes that of its last one: a process
 * that has ended in order has removed its own. */
static void stats_move_last(const char *path) {
  struct stat s;
  char *last = stats_path(path, ".last");
  if (last && lstat(path, &s) == 0 && S_ISREG(s.st_mode) &&
      s.st_uid == geteuid())
    rename(path, last);
  free(last);
}

static int stats_give_path(struct stats_file *f, int file, const char *draft,
                           const char *path) {
  struct stat s;
  char *own = strdup(path);
  if (!own || fstat(file, &s) < 0) {
    free(own);
    return PERIGEE_NO_MEMORY;
  }
  stats_move_last(path);
  if (rename(draft, path) < 0) {
    int status = system_status(errno);
    free(own);
    return status;
  }
  f->path = own;
  f->device = s.st_dev;
  f->inode = s.st_ino;
  return PERIGEE_OK;
}

static void stats_name(struct stats_file *f, const char *name,
                       const char *scope) {
  struct perigee_stats_head *head = &f->at->head;
  PUT(head->name, name ? name : "");
  PUT(head->scope, scope ? scope : "");
  stats_fill_process(head);
  memcpy(head->magic, PERIGEE_STATS_MAGIC, sizeof head->magic);
}

static int stats_publish(struct perigee_engine *engine, const char *path,
                         const char *scope) {
  struct stats_file *f = &engine->stats;
  char *draft = stats_path(path, ".new");
  int file = -1, status = PERIGEE_NO_MEMORY;
  if (!draft)
    return status;
  unlink(draft); /* of a process that was killed here */
  file = open(draft, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  status = file < 0 ? system_status(errno) : stats_size_file(file);
  if (status == PERIGEE_OK)
    status = stats_map_file(engine, file);
  if (status == PERIGEE_OK) {
    stats_name(f, engine->name, scope);
    status = stats_give_path(f, file, draft, path);
  }
  int error = errno;
  if (status < 0 && file >= 0)
    unlink(draft);
  if (file >= 0)
    close(file);
  free(draft);
  errno = error;
  return status;
}

int perigee_stats_publish(struct perigee_engine *engine, const char *path,
                          const char *scope) {
  ENTER(engine);
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  if (!path) {
    stats_remove(&engine->stats);
    return PERIGEE_OK;
  }
  if (engine->stats.path)
    return fail(engine, PERIGEE_INVALID, "the engine's stats are in %s",
                engine->stats.path);
  int status = stats_publish(engine, path, scope);
  if (status == PERIGEE_TOO_LARGE)
    return fail(engine, status, "stats file %s: %s", path, SIZED_NOT);
  return status < 0 ? fail(engine, status, "stats file %s: %s", path,
                           system_text(errno))
                    : status;
}

/* Takes no lock: an engine's own thread touches neither word. Relaxed, as nothing
 * else of the file depends on what others have written. */
int perigee_log_level(struct perigee_engine *engine, int own) {
  struct perigee_stats_head *head = &engine->stats.at->head;
  uint64_t asked = __atomic_load_n(&head->log_asked, __ATOMIC_RELAXED);
  head->log_own = (uint64_t)own;
  return asked <= PERIGEE_STATS_DEBUG ? (int)asked : 0;
}

/* ---- Sessions ----------------------------------------------------------- */

/* Returns the next row that no session has, so that those of sessions which have
 * ended stay for long; -1: there is none. */
static int stats_session_row(struct stats_file *f) {
  for (uint32_t i = 0; i < PERIGEE_STATS_SESSIONS; i++) {
    uint32_t row = f->next_session++ % PERIGEE_STATS_SESSIONS;
    if (!f->sessions[row])
      return (int)row;
  }
  return -1;
}

/* How many additional lanes it has. */
static uint8_t stats_lanes(const struct perigee_session *s) {
  uint8_t count = 0;
  for (uint32_t i = 0; s->lanes && i < s->lanes->count; i++)
    count += s->lanes->extra[i].state == EXTRA_OPEN;
  return count;
}

static void stats_session_take(struct perigee_session *s, int i) {
  struct stats_file *f = &s->engine->stats;
  struct perigee_stats_session *row = &f->at->sessions[i];
  f->sessions[i] = true;
  row->id = 0;
  stats_fence();
  memset((uint8_t *)row + sizeof row->id, 0, sizeof *row - sizeof row->id);
  row->counters = s->own_counters;
  row->counters.size = sizeof row->counters;
  s->counters = &row->counters;
  row->opened = (uint64_t)s->engine->now;
  row->not_shm = s->not_shm;
  row->not_verbs = s->not_verbs;
  row->dialed = s->dialed;
  row->lanes = stats_lanes(s);
  stats_session_tell(s);
  stats_fence();
  row->id = s->id;
}

static void stats_other_begin(struct perigee_session *s) {
  struct stats_file *f = &s->engine->stats;
  f->at->head.sessions_without++;
  f->at->head.others_open++;
  s->other.open = true;
  list_append(&f->others, &s->other.node);
}

static void stats_other_ended(struct perigee_session *s) {
  s->engine->stats.at->head.others_open -= s->other.open;
  s->other.open = false;
}

void stats_session_begin(struct perigee_session *s) {
  struct stats_file *f = &s->engine->stats;
  int i = stats_session_row(f);
  f->at->head.sessions_begun++;
  if (i >= 0)
    stats_session_take(s, i);
  else
    stats_other_begin(s);
}

/* The session's row; NULL: it has none. */
static struct perigee_stats_session *
stats_row_of(const struct perigee_session *s) {
  if (s->counters == &s->own_counters)
    return NULL;
  return CONTAINER(s->counters, struct perigee_stats_session, counters);
}

void stats_session_tell(struct perigee_session *s) {
  struct perigee_stats_session *row = stats_row_of(s);
  if (s->state == PERIGEE_SESSION_ENDED)
    stats_other_ended(s);
  if (!row)
    return;
  const char *name = *s->peer.terms.name ? s->peer.terms.name : s->peer.name;
  row->state = s->state;
  row->epoch = s->peer.terms.epoch;
  row->status = (uint64_t)-s->ended.status;
  PUT(row->peer, name);
  PUT(row->address, s->target.address);
  PUT(row->transport, s->transport ? s->transport->name : "");
  PUT(row->reason, s->ended.reason);
  if (s->state == PERIGEE_SESSION_ENDED && !row->ended)
    row->ended = (uint64_t)s->engine->now;
}

void counters_add(struct perigee_counters *to,
                  const struct perigee_counters *from) {
  const uint64_t *f = (const uint64_t *)from;
  uint64_t *t = (uint64_t *)to;
  for (size_t i = 1; i < sizeof *to / sizeof *t; i++) /* the first is `size` */
    t[i] += f[i];
}

void stats_tell_other(struct perigee_session *s) {
  const uint64_t *now = (const uint64_t *)&s->own_counters;
  uint64_t *told = (uint64_t *)&s->other.told;
  uint64_t *to = s->engine->stats.at->others.room;
  for (size_t i = 1; i < sizeof s->own_counters / sizeof *now; i++) {
    to[i] += now[i] - told[i];
    told[i] = now[i];
  }
}

void stats_tell_others(struct perigee_engine *engine) {
  enum { FEW = 8 };
  struct node *others = &engine->stats.others, *first = others->next;
  int n = 0;
  do {
    struct node *next = list_pop(others);
    list_append(others, next);
    stats_tell_other(CONTAINER(next, struct perigee_session, other.node));
  } while (++n < FEW && others->next != first);
}

void stats_session_end(struct perigee_session *s) {
  struct perigee_stats_session *row = stats_row_of(s);
  if (stats_is_other(s))
    stats_tell_other(s);
  else
    counters_add(s->engine->counters, s->counters);
  stats_other_ended(s);
  list_remove(&s->other.node);
  if (row) {
    s->engine->stats.sessions[row - s->engine->stats.at->sessions] = false;
    s->own_counters = row->counters;
    s->counters = &s->own_counters;
  }
  free(s->methods.of);
}

/* ---- Methods ------------------------------------------------------------ */

static uint32_t stats_hash(bool own, const char *service, const char *method) {
  uint64_t sum = entry_sum((const uint8_t *)service, strlen(service)) * 31 +
                 entry_sum((const uint8_t *)method, strlen(method)) +
                 (own ? 1 : 0);
  return (uint32_t)(sum ^ sum >> 32);
}

static bool stats_is_method(const struct perigee_stats_method *row, bool own,
                            const char *service, const char *method) {
  return (row->used == 2) == own &&
         strncmp(row->service, service, sizeof row->service - 1) == 0 &&
         strncmp(row->method, method, sizeof row->method - 1) == 0;
}

/* The row of a method; a new one, or 0 if there is none left. A service may have
 * a thousand methods, so texts are compared where their hashes are equal. */
static uint32_t stats_method_row(struct stats_file *f, bool own,
                                 const char *service, const char *method) {
  uint32_t hash = stats_hash(own, service, method);
  for (uint32_t i = 1; i < f->methods; i++)
    if (f->hashes[i] == hash &&
        stats_is_method(&f->at->methods[i], own, service, method))
      return i;
  if (f->methods == PERIGEE_STATS_METHODS) {
    f->at->head.methods_without++;
    return 0;
  }
  struct perigee_stats_method *row = &f->at->methods[f->methods];
  PUT(row->service, service);
  PUT(row->method, method);
  stats_fence();
  row->used = own ? 2 : 1;
  f->hashes[f->methods] = hash;
  return f->methods++;
}

static int stats_rows_put(struct stats_rows *rows, uint16_t number,
                          uint32_t row) {
  if (number >= rows->count) {
    uint32_t count = rows->count ? rows->count : 16;
    while (count <= number)
      count *= 2;
    struct stats_row *more = realloc(rows->of, count * sizeof *more);
    if (!more)
      return PERIGEE_NO_MEMORY;
    memset(more + rows->count, 0, (count - rows->count) * sizeof *more);
    rows->of = more;
    rows->count = count;
  }
  rows->of[number] = (struct stats_row){
      .what = row << 16, .offset = row * sizeof(struct perigee_stats_method)};
  return PERIGEE_OK;
}

int perigee_stats_method(struct perigee_engine *engine,
                         struct perigee_session *session, uint16_t number,
                         const char *service, const char *method) {
  ENTER(engine);
  if (!service || !method)
    return fail_missing(engine, "the name of a method");
  if (number >= NUMBERS)
    return PERIGEE_OK;
  struct stats_file *f = &engine->stats;
  return stats_rows_put(session ? &session->methods : &f->rows, number,
                        stats_method_row(f, !session, service, method));
}

/* ---- Calls -------------------------------------------------------------- */

/* Polls have the engine's time: it is not changed here. */
static int64_t stats_now(const struct perigee_engine *engine) {
  return engine->options.clock(engine->options.context);
}

void stats_measure(struct operation *op) {
  op->measured = stats_now(op->engine);
  op->long_at = STATS_ANY;
}

/* Bucket n begins at (STEPS + n modulo STEPS) << (n / STEPS + 2). */
static uint32_t stats_bucket(uint64_t ns) {
  const uint32_t steps = PERIGEE_STATS_STEPS, least = 6;
  if (ns < UINT64_C(1) << least)
    return 0;
  uint32_t power = 63 - (uint32_t)__builtin_clzll(ns);
  uint32_t at =
      (power - least) * steps + (uint32_t)(ns >> (power - 4) & (steps - 1));
  return at < PERIGEE_STATS_BUCKETS ? at : PERIGEE_STATS_BUCKETS - 1;
}

/* How many calls a measured one stands for. Long ones all count by themselves,
 * but own ones without a timer are not seen (stats_time). Calls with spans are
 * measured, too, but stand for no others: a program chooses them. */
static uint64_t stats_weight(const struct operation *op, int64_t took) {
  if (took >= STATS_LONG && (op->kind == OP_SERVED || op->timer.due))
    return 1;
  return stats_is_chosen(op) ? PERIGEE_STATS_SAMPLE : 0;
}

static void stats_add_time(const struct operation *op, int64_t took,
                           uint64_t weight) {
  struct perigee_stats_method *method = stats_method(op);
  struct perigee_stats_histogram *h =
      &op->engine->stats.at->histograms[op->row.what >> 16];
  uint64_t ns = took < 0 ? 0 : (uint64_t)took;
  h->count += weight;
  h->sum += weight * ns;
  h->buckets[stats_bucket(ns)] += weight;
  if (ns > method->longest)
    method->longest = ns;
}

static void stats_add_measured(struct operation *op, int status,
                               uint64_t replied) {
  int64_t now = stats_now(op->engine), took = now - op->measured;
  uint64_t weight = stats_weight(op, took);
  if (weight > 0)
    stats_add_time(op, took, weight);
  if (UNLIKELY(span_has(op)))
    span_end(op, now, status, replied);
}

/* By the engine's last looks at its clock. */
static void stats_add_long(struct operation *op, int64_t began) {
  int64_t took = op->engine->now - began;
  if (took >= STATS_LONG)
    stats_add_time(op, took, 1);
}

void stats_add_own(struct operation *op) {
  if (op->measured)
    stats_add_measured(op, PERIGEE_OK, 0);
  else
    stats_add_long(op, op->timer.due - op->timeout);
}

void stats_add_served(struct operation *op, int status, uint64_t replied) {
  if (op->measured)
    stats_add_measured(op, status, replied);
  else
    stats_add_long(op, op->long_at - STATS_LONG);
}
