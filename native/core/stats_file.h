/* SPDX-License-Identifier: Apache-2.0
 *
 * stats_file.h - the engine's side of stats.h: what is counted, under way and
 * last given is written where a file can be mapped beneath it.
 *
 * Ownership. An open engine owns the memory (engine->stats.at). At first it is
 * private. stats_publish maps a file at the same address, so that pointers into
 * it stay valid. The file is the engine's to remove. A session has the row that
 * its counters are in from its opening to session_destroy; without a free row,
 * and before, it counts in itself (own_counters).
 *
 * Other processes of the user may write into the file. What is read back from it
 * is told, or added to, or finds a row; it decides nothing else. A file that is
 * cut short is no end of the process, and a child made by fork writes into none
 * (host/cut.h).
 *
 * Cost. On each side a small call stores three words when it begins and one when
 * it is free, an event of 32 bytes, and four counters of its method. No other
 * process writes these lines.
 */
#ifndef STATS_FILE_H
#define STATS_FILE_H

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
void stats_session_end(struct perigee_session *session);
/* Begins to measure a call; adds the time of one that has ended, and ends its
 * span, if it has one. */
void stats_measure(struct operation *op);
void stats_add_measured(struct operation *op, int status, uint64_t replied);
void stats_add_time(struct stats *at, uint32_t row, int64_t took,
                    uint64_t weight);

/* The engine has read its clock, and so is awake. */
static inline void stats_looked(struct perigee_engine *engine) {
  struct stats *at = engine->stats.at;
  if (!at)
    return; /* it is not open yet */
  at->head.looked = (uint64_t)engine->now;
  at->head.asleep = 0;
}

/* The program has polled an engine that has a thread of its own. */
static inline void stats_polled(struct perigee_engine *engine) {
  engine->stats.at->head.polled = (uint64_t)engine->now;
}

/* Returns the row of a method's number among `rows`. */
static inline uint16_t stats_row(const struct stats_rows *rows,
                                 uint16_t number) {
  return number < rows->count ? rows->of[number] : 0;
}

static inline void stats_put_row(struct stats *at, const struct operation *op) {
  if (op->index >= PERIGEE_STATS_OPERATIONS)
    return;
  struct perigee_stats_operation *row = &at->operations[op->index];
  row->session = op->session->id;
  row->what = op->kind | (uint32_t)op->row << 16;
  row->began = (uint64_t)op->engine->now;
}

/* An operation is under way. */
static inline void stats_begin(const struct operation *op) {
  stats_put_row(op->engine->stats.at, op);
}

/* The same for a call, of which so many bytes were sent. */
static inline void stats_sent(const struct operation *op, uint64_t bytes) {
  struct stats *at = op->engine->stats.at;
  at->methods[op->row].bytes_out += bytes;
  stats_put_row(at, op);
}

/* An operation is free. */
static inline void stats_end(const struct operation *op) {
  if (op->index < PERIGEE_STATS_OPERATIONS)
    op->engine->stats.at->operations[op->index].began = 0;
}

/* Is the call one in SAMPLE? Each use of an operation's entry has another
 * generation. */
static inline bool stats_is_chosen(const struct operation *op) {
  return op->generation % PERIGEE_STATS_SAMPLE == 0;
}

/* A call of that method begins: an own one, or the program gets the peer's. */
static inline void stats_call(struct operation *op, uint16_t row) {
  op->row = row;
  if (UNLIKELY(stats_is_chosen(op)))
    stats_measure(op);
}

/* ns from which all calls are measured. */
enum { STATS_LONG = 100000 };

/* When a call began that is not measured, by the engine's last looks at its
 * clock. An own one began when its timer did, at the first look after its
 * submission. One without a timer, or whose timer was not armed yet, is short. */
static inline int64_t stats_began(const struct operation *op) {
  if (op->kind == OP_SERVED)
    return op->shown_at;
  return op->timer.due ? op->timer.due - op->timeout : op->engine->now;
}

/* An own call has ended, with what the operation has; or the program has answered
 * the peer's, with that status and so many bytes: takes its time. */
static inline void stats_time(struct operation *op, struct stats *at,
                              int status, uint64_t replied) {
  int64_t took = op->engine->now - stats_began(op);
  if (UNLIKELY(op->measured != 0))
    stats_add_measured(op, status, replied);
  else if (UNLIKELY(took >= STATS_LONG))
    stats_add_time(at, op->row, took, 1);
}

/* A program may reply with any status; those without a name count as PROTOCOL, as
 * the caller sees them. */
static inline uint32_t stats_end_of(int status) {
  uint32_t n = -(uint32_t)status;
  return n < PERIGEE_STATS_STATUSES ? n : (uint32_t)-PERIGEE_PROTOCOL;
}

/* Counts it, with so many more bytes that were sent, or have come. Own calls are
 * counted by the poll after their event, which has not to wait for that. */
static inline void stats_count(struct operation *op, int status, uint64_t out,
                               uint64_t in) {
  struct stats *at = op->engine->stats.at;
  struct perigee_stats_method *row = &at->methods[op->row];
  row->bytes_out += out;
  row->bytes_in += in;
  row->ends[stats_end_of(status)]++;
}

/* A poll gives an event to the program. */
static inline void stats_event(struct perigee_engine *engine,
                               const struct perigee_event *event,
                               uint16_t row) {
  struct stats *at = engine->stats.at;
  struct perigee_stats_event *to =
      &at->events[at->head.events_given++ % PERIGEE_STATS_EVENTS];
  to->time = (uint64_t)engine->now;
  to->session = event->session;
  to->what = event->kind | (uint32_t)row << 16;
  to->status = event->status;
  to->operation = event->operation;
  to->bytes = event->length + event->slice;
}

#endif
