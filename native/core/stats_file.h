/* SPDX-License-Identifier: Apache-2.0
 *
 * stats_file.h - the engine's side of stats.h: what is counted, under way and
 * last given is written where a file can be mapped beneath it.
 *
 * Ownership. An open engine owns the memory (engine->stats.at). At first it is
 * private. stats_publish maps a file at the same address, so that pointers into
 * it stay valid. The file is the engine's to remove. A session has the row that
 * its counters are in from its opening to session_destroy; without a free row,
 * and before, it counts in itself (own_counters). Sessions without a row are in
 * stats.others, and what they count is added to one row for all of them.
 *
 * Other processes of the user may write into the file. What is read back from it
 * is told, or added to, or finds a row; it decides nothing else. A file that is
 * cut short is no end of the process, and a child made by fork writes into none
 * (host/cut.h).
 *
 * Cost. On each side a small call stores two words when it begins and one when it
 * is free, an event of 32 bytes and its number, and three counters of its method:
 * some 50 instructions. No other process writes these lines.
 */
#ifndef STATS_FILE_H
#define STATS_FILE_H

#include <stdatomic.h>

#include "core/lock.h"
#include "session.h"
#include "engine.h"
#include "stats.h"

struct stats {
  union {
    struct perigee_stats_head head;
    uint8_t page[PERIGEE_STATS_HEAD];
  };
  char names[PERIGEE_STATS_COUNTERS][24];
  union {
    struct perigee_counters counters;
    uint64_t room[PERIGEE_STATS_COUNTERS];
  };
  union {
    struct perigee_counters counters;
    uint64_t room[PERIGEE_STATS_COUNTERS];
  } others;
  struct perigee_stats_event events[PERIGEE_STATS_EVENTS];
  struct perigee_stats_operation operations[PERIGEE_STATS_OPERATIONS];
  struct perigee_stats_session sessions[PERIGEE_STATS_SESSIONS];
  struct perigee_stats_method methods[PERIGEE_STATS_METHODS];
  struct perigee_stats_histogram histograms[PERIGEE_STATS_METHODS];
  struct perigee_stats_span spans[PERIGEE_STATS_SPANS];
};

int stats_open(struct perigee_engine *engine);
void stats_close(struct perigee_engine *engine);
void stats_session_begin(struct perigee_session *session);
/* Writes what is known of the session, after each change of that. */
void stats_session_tell(struct perigee_session *session);
/* Adds what it has counted to its engine's, and gives its row back. */
void stats_session_end(struct perigee_session *session);
/* Adds what sessions without a row have counted since they were told to the row of
 * all of them: of a few, in turn; or of one. */
__attribute__((noinline, cold)) void
stats_tell_others(struct perigee_engine *engine);
void stats_tell_other(struct perigee_session *session);
void counters_add(struct perigee_counters *to,
                  const struct perigee_counters *from);
/* Begins to measure a call. */
__attribute__((noinline, cold)) void stats_measure(struct operation *op);
/* Adds the time of a call that has ended, if it counts, and ends its span, if it
 * has one: of an own call, or of the peer's, which the program has answered with
 * that status and so many bytes. */
void stats_add_own(struct operation *op);
void stats_add_served(struct operation *op, int status, uint64_t replied);

/* Is it without a row? */
static inline bool stats_is_other(const struct perigee_session *s) {
  return s->other.node.next != NULL;
}

/* Writes what there is now of what is counted elsewhere. */
static inline void stats_tell_present(struct perigee_engine *engine) {
  struct perigee_counters *c = &engine->stats.at->counters;
  c->operations = engine->live;
  c->kept = engine->pool.warm;
  if (UNLIKELY(!list_empty(&engine->stats.others)))
    stats_tell_others(engine);
}

/* The engine has read its clock, and so is awake. */
static inline void stats_looked(struct perigee_engine *engine) {
  struct stats *at = engine->stats.at;
  if (!at)
    return; /* it is not open yet */
  at->head.looked = (uint64_t)engine->now;
  at->head.asleep = 0;
  stats_tell_present(engine);
}

/* The engine waits for events from now on, or may. */
static inline void stats_sleeps(struct perigee_engine *engine) {
  engine->stats.at->head.asleep = (uint64_t)engine->now;
  stats_tell_present(engine);
}

/* The program has polled an engine that has a thread of its own. */
static inline void stats_polled(struct perigee_engine *engine) {
  engine->stats.at->head.polled = (uint64_t)engine->now;
}

/* Returns the row of a method's number among `rows`. */
static inline struct stats_row stats_row(const struct stats_rows *rows,
                                         uint16_t number) {
  return number < rows->count ? rows->of[number] : (struct stats_row){0};
}

/* Returns what is counted of the call's method. */
static inline struct perigee_stats_method *
stats_method(const struct operation *op) {
  uint8_t *first = (uint8_t *)op->engine->stats.at->methods;
  return (struct perigee_stats_method *)(first + op->row.offset);
}

/* What is stored before it is there before what is stored behind it, for other
 * processes; on x86-64 it costs nothing. ThreadSanitizer knows no fences, and
 * nothing of them. */
static inline void stats_fence(void) {
#ifdef __SANITIZE_THREAD__
  atomic_signal_fence(memory_order_seq_cst);
#else
  atomic_thread_fence(memory_order_release);
#endif
}

/* Returns the row of the operation of that number, or one that nobody reads. */
static inline struct perigee_stats_operation *
stats_under_way(struct perigee_engine *engine, uint32_t index) {
  return index < PERIGEE_STATS_OPERATIONS ? &engine->stats.at->operations[index]
                                          : &engine->stats.unread;
}

/* An operation of that kind is under way. */
static inline void stats_begin(const struct operation *op, uint32_t kind) {
  struct perigee_stats_operation *row = op->under_way;
  uint64_t now = (uint64_t)op->engine->now;
  row->session = op->session->id;
  row->what = kind | op->row.what;
  stats_fence();
  row->began = now;
}

/* The same for a call, of which so many bytes were sent. */
static inline void stats_sent(const struct operation *op, uint64_t bytes) {
  stats_method(op)->bytes_out += bytes;
  stats_begin(op, OP_CALL);
}

/* An operation is free. */
static inline void stats_end(const struct operation *op) {
  op->under_way->began = 0;
}

/* Is the call one in SAMPLE? Each use of an operation's entry has another
 * generation. */
static inline bool stats_is_chosen(const struct operation *op) {
  return op->generation % PERIGEE_STATS_SAMPLE == 0;
}

/* Finds the row of a call that begins; of a method without one, the call's zeros
 * stay. */
static inline void stats_find(struct operation *op,
                              const struct stats_rows *rows, uint16_t number) {
  if (number < rows->count)
    op->row = rows->of[number];
}

/* Measures the call that begins, if it is chosen. */
static inline void stats_choose(struct operation *op) {
  if (UNLIKELY(stats_is_chosen(op)))
    stats_measure(op);
}

/* A call of that method begins. */
static inline void stats_call(struct operation *op, uint16_t number) {
  stats_find(op, &op->session->methods, number);
  stats_choose(op);
}

/* ns from which all calls are measured. */
enum { STATS_LONG = 100000 };
/* The time of a call that is measured counts in any case. */
enum { STATS_ANY = 1 };

/* The program gets the peer's call; stats_choose follows. When it has answered,
 * long_at alone tells whether the time that this took counts. */
static inline void stats_serve(struct operation *op) {
  stats_find(op, &op->engine->stats.rows, op->method);
  op->long_at = op->engine->now + STATS_LONG;
  stats_begin(op, OP_SERVED);
}

/* The program has got the peer's call, and has not answered yet. */
static inline bool stats_is_served(const struct operation *op) {
  return op->long_at != 0;
}

/* An own call has ended, with what the operation has. Those that are not measured
 * began when their timer did, at the first look at the clock after their
 * submission. One without a timer, or whose timer was not armed yet, is short. */
static inline void stats_time(struct operation *op) {
  if (UNLIKELY((op->measured | op->timer.due) != 0))
    stats_add_own(op);
}

/* A program may reply with any status; those without a name count as PROTOCOL, as
 * the caller sees them. */
static inline uint32_t stats_end_of(int status) {
  uint32_t n = -(uint32_t)status;
  return n < PERIGEE_STATS_STATUSES ? n : (uint32_t)-PERIGEE_PROTOCOL;
}

/* Counts a call of the peer's, with so many bytes that were sent and have come.
 * The fence keeps GCC from adding both by vectors, which takes longer. */
static inline void stats_count_served(const struct operation *op, int status,
                                      uint64_t out, uint64_t in) {
  struct perigee_stats_method *row = stats_method(op);
  row->bytes_out += out;
  atomic_signal_fence(memory_order_seq_cst);
  row->bytes_in += in;
  row->ends[UNLIKELY(status != PERIGEE_OK) ? stats_end_of(status) : 0]++;
}

/* Counts an own call. The poll after its event does that, which has not to wait
 * for it. */
static inline void stats_count_own(const struct operation *op) {
  struct perigee_stats_method *row = stats_method(op);
  if (UNLIKELY(op->status != PERIGEE_OK)) {
    row->ends[stats_end_of(op->status)]++;
    return;
  }
  row->bytes_in += op->length + op->slice;
  row->ends[0]++;
}

/* A poll gives an event to the program, which is about that operation, or none.
 * The number of events comes behind the row, so that it names no row of which
 * only a part is there. */
static inline void stats_event(struct perigee_engine *engine,
                               const struct operation *op, uint32_t kind,
                               uint32_t session, int status, uint64_t bytes) {
  struct stats *at = engine->stats.at;
  struct perigee_stats_event *to =
      &at->events[at->head.events_given % PERIGEE_STATS_EVENTS];
  to->time = (uint64_t)engine->now;
  to->session = session;
  to->what = kind | (op ? op->row.what : 0);
  to->status = status;
  to->operation = op ? op->index : 0;
  to->bytes = bytes;
  stats_fence();
  at->head.events_given++;
}

#endif
