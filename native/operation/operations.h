/* SPDX-License-Identifier: Apache-2.0
 *
 * operations.h - what every kind of operation uses: its life, from a message to
 * a record, and from a record to memory. Blocks that a peer reads in place are
 * in loan.h.
 */
#ifndef OPERATIONS_H
#define OPERATIONS_H

#include "base/apart.h"
#include "base/copy.h"
#include "base/machine.h"
#include "base/stamp.h"
#include "core/lanes.h"
#include "perigee.h"

/* ---- operation.c: life -------------------------------------------------- */
extern const struct machine operation_machine; /* without a reply record */
struct operation *operation_take(struct perigee_session *,
                                 const struct operation_class *);
/* Starts the operation's timeout. */
void operation_time(struct operation *op, int64_t timeout);
/* Is it in engine->fresh, or has it no timeout? */
static inline bool operation_is_fresh(const struct operation *op) {
  return op->timer.due == 0;
}
static inline void operation_untime(struct operation *op) {
  if (operation_is_fresh(op)) /* its timer is never to start */
    op->timeout = -1;
  timers_remove(&op->engine->timers, &op->timer);
}
/* Queues its event, to be given when a poll has room. ready: it is in no list of
 * those that wait. event: it has ended. ask: it
 * goes on, and so does its timeout. */
static inline void operation_ready(struct operation *op, int kind) {
  op->event = (uint8_t)kind;
  list_append(&op->engine->ready, &op->queue);
  op->engine->ready_count++;
}
void operation_event(struct operation *op, int kind);
void operation_ask(struct operation *op, int kind);
void operation_move(struct operation *op); /* each poll steps it */
/* Removes it from any list in which it waits; an event not yet given is
 * withdrawn. */
void operation_leave(struct operation *op); /* it is in one */
static inline void operation_unqueue(struct operation *op) {
  if (op->queue.next)
    operation_leave(op);
}
void operation_free(struct operation *op);
/* The same of one that is in no list, except perhaps its session's, has no timer,
 * and holds nothing, except perhaps blocks. */
void operation_free_short(struct operation *op);
void operation_spare(struct operation *op); /* it may be taken again */
/* Count it for its peer: as one operation, and the bytes that it exposes, until
 * the operation is free or its session is. */
void operation_count(struct operation *op);
void operation_expose(struct operation *op, uint64_t bytes);
void operation_unexpose(struct operation *op, uint64_t bytes);
/* Takes over bytes that the caller has counted already. */
void operation_lends(struct operation *op, uint64_t *bytes);
void operation_let_count(struct operation *op); /* it holds something */
static inline void operation_uncount(struct operation *op) {
  if (op->holds)
    operation_let_count(op);
}
/* Ends an own operation in a timeout, and counts that. */
void operation_late(struct operation *op);
struct operation *operation_find(struct perigee_engine *, int index);
void operation_ref(struct operation *op, struct perigee_region *region);
/* The same for the region of a slice. That of a list is nothing: its spread has
 * the regions. */
void operation_ref_slice(struct operation *op,
                         const struct perigee_slice *slice);
static inline void operation_unref_regions(struct operation *op) {
  while (op->region_count > 0)
    op->region_refs[--op->region_count]->users--;
}
void operation_unref_all(struct operation *op);
static inline void operation_unref(struct operation *op) {
  if (op->region_count > 0 || op->has_more)
    operation_unref_all(op);
}
/* The peer's memory that room_view gave is not read any more. */
void operation_unview(struct operation *op);
/* Queues the operation until there is room in the ring. */
void backlog_add(struct operation *op, enum ring ring);
/* The same of one that has found no room, or others that wait: it stalls. */
void backlog_wait(struct operation *op, enum ring ring);
/* Publishes what waits, in order, as far as there is room. */
void backlog_flush(struct perigee_session *session, enum ring ring);

/* Own operations that get no reply record. start begins one. finish ends it, in
 * PERIGEE_OK or not; one that has ended stays as it is. settle looks again
 * whether anything works for one that has ended, and tells of it if nothing
 * does. await_room queues one whose data is there, until its record has been
 * published. given frees it after its event. */
void operation_start(struct operation *op, int64_t timeout);
void operation_finish(struct operation *op, int status);
bool operation_has_ended(const struct operation *op);
void operation_settle(struct operation *op);
void operation_await_room(struct operation *op);
void operation_published(struct operation *op);
void operation_given(struct operation *op);

/* ---- parts.c: payloads, and from a record to memory --------------------- */
/* Checks a local slice and makes its payload, or returns a status. */
int slice_payload(struct perigee_engine *, const struct perigee_slice *,
                  struct payload *);
/* The same for a slice or a list of the operation's message, of which the
 * operation keeps the spread. written: it is `into`. */
int message_payload(struct operation *op, const struct perigee_slice *slice,
                    bool written, struct payload *);
/* Ends its parts; true once none of them is in progress and all are freed. */
bool parts_end(struct operation *op);
/* Gives a part to the operation. */
void part_put(struct operation *op, int place, struct part *part);
int part_expose(struct operation *op, int place, const struct payload *from,
                struct source *source);
/* Feeds what a transport stages at once, right behind the record. Polls feed
 * the rest, so the operation has to be moving. */
void parts_feed(struct operation *op);
/* The source of an exposed part, for the peer. */
struct source part_source(const struct part *part);
/* Does the mark of the lane that brings it say that it was the operation's own
 * until now? Always true of a part that the first lane brings. */
bool part_live(const struct operation *op, int place);
/* Steps one part: 1 when all bytes are there, 0 not yet, or a status. */
int part_step(struct operation *op, int place);
/* Checks a typed payload, before it goes to the peer or to the program. If it
 * is too expensive: a status, and engine->detail tells why. */
int incoming_typed(struct perigee_engine *, const void *data, uint64_t length);
/* The same of one that the program sends: it is told of any failure. */
int outgoing_typed(struct perigee_engine *, const void *data, uint64_t length);
/* The same for an operation's typed head that has arrived. A long head must be
 * in the operation's block, and is scanned in portions, one at each call: 1 if
 * it is sound, 0 if the scan has to continue. */
enum { SCANNED_AT_ONCE = 16 << 10 };
int incoming_scan(struct operation *op);
/* Brings a head or slice to its place (payload NULL: a pooled block, *block).
 * Returns 1 if it is there, 0 if the part at `place` is in progress. */
int incoming_bytes(struct operation *op, int place, const uint8_t *bytes,
                   uint64_t length, const struct payload *into,
                   uint8_t **block);
int incoming_bulk(struct operation *op, int place, const struct source *source,
                  uint64_t length, uint16_t peer, uint32_t generation,
                  const struct payload *into, uint8_t **block);

/* ---- spread.c: lists of slices (perigee_list) ----------------------------- */
/* A list of slices that was checked. Its regions are in use while it is there. */
struct spread {
  struct spread *next; /* of the same operation */
  bool written;        /* bytes are written there; else they are sent */
  uint32_t count;
  struct payload payload;
  struct extent extents[];
};

/* Returns how many of its extents tell of all its regions: the first, if they are
 * in one. */
static inline uint32_t spread_regions(const struct spread *spread) {
  return spread->payload.area && spread->count > 1 ? 1 : spread->count;
}

static inline bool slice_is_list(const struct perigee_slice *slice) {
  return slice->count >= PERIGEE_LIST;
}

/* Copies a slice that the program has just stored, field by field. */
static inline void slice_keep(struct perigee_slice *to,
                              const struct perigee_slice *from) {
  to->region = from->region;
  to->offset = apart(from->offset);
  to->length = from->length;
  to->count = apart(from->count);
  to->stride = from->stride;
}

/* Bytes of a slice, or of a list that was checked. */
static inline uint64_t slice_bytes(const struct perigee_slice *s) {
  uint64_t bytes = 0;
  if (!slice_is_list(s))
    return s->length * s->count;
  for (uint64_t i = 0; i < s->count - PERIGEE_LIST; i++)
    bytes += s->list[i].length * s->list[i].count;
  return bytes;
}

/* Returns the slices of a list, or NULL and a status. */
const struct perigee_slice *list_slices(struct perigee_engine *engine,
                                        const struct perigee_slice *list,
                                        uint32_t *n, int *status);
/* Returns 1 and two extents that overlap, 0 if there are none, or a status. */
int extents_overlapping(struct perigee_engine *engine,
                        const struct extent *extents, uint32_t count,
                        const struct extent *pair[2]);
/* Checks slices, of which nothing is kept, and makes their spread. */
int spread_of_slices(struct perigee_engine *engine,
                     const struct perigee_slice *slices, uint32_t n,
                     bool written, struct spread **out);
/* The same for a list. */
int spread_make(struct perigee_engine *engine, const struct perigee_slice *list,
                bool written, struct spread **out);
/* Makes the spread of some of its bytes, at least one. */
int spread_cut(struct perigee_engine *engine, const struct spread *from,
               uint64_t begin, uint64_t end, bool written, struct spread **out);
void spread_free(struct spread *spread);
/* The operation owns the spread from here on, until operation_unref. */
void spread_give(struct operation *op, struct spread *spread);
/* Makes the operation's spread of a list, unless it is there. */
int spread_keep(struct operation *op, const struct perigee_slice *list,
                bool written);
/* Returns that spread, or NULL. */
const struct spread *spread_of(const struct operation *op, bool written);
void spreads_free(struct operation *op);

/* ---- outgoing.c: from a message to a record in a ring ------------------- */
/* A record and the bytes that go into it. Fields are set where they are used:
 * zeroing them all would cost more than sending. */
struct outgoing {
  struct record record;
  struct payload head, slice;
  bool access; /* of a one-sided transfer, which is counted elsewhere */
};

/* Fills in the parts of a record. Parts that do not fit into it are exposed. */
int outgoing_plan(struct operation *op, const struct perigee_message *message,
                  struct outgoing *out);
/* The slice of a raw call, or of a raw reply, is sent as its head; the slices
 * of typed ones, of messages and of one-sided access are sent beside it. */
static inline bool outgoing_slice_is_head(const struct operation *op,
                                          const struct perigee_message *m) {
  return m->slice.region && op->record == RECORD_REQUEST &&
         !(m->flags & PERIGEE_TYPED);
}

/* Returns where the bytes of a message lie that is one contiguous head, short
 * enough for the ring. NULL: it needs a plan. */
static inline __attribute__((always_inline)) const uint8_t *
outgoing_short(const struct operation *op, const struct perigee_message *m,
               uint64_t *length) {
  const struct perigee_slice *slice = &m->slice;
  uint64_t most = op->session->peer.heads[m->flags & PERIGEE_TYPED];
  const uint8_t *bytes = m->head;
  *length = m->length;
  if (slice->region) {
    if (!outgoing_slice_is_head(op, m) || !region_has(slice->region, slice))
      return NULL;
    bytes = slice->region->pointer + slice->offset;
    *length = slice->length;
  }
  return *length - 1 < most ? bytes : NULL;
}
/* As record_copy(), of COPY_BY_LINES bytes or more. */
void record_copy_long(const struct lane *lane, const struct ring_out *out,
                      uint8_t *to, const uint8_t *from, uint64_t length);
/* Copies a record's bytes to its ring, or out of it. out: as lane_out() says, and
 * NULL out of a ring. */
static inline void record_copy(const struct lane *lane,
                               const struct ring_out *out, uint8_t *to,
                               const uint8_t *from, uint64_t length) {
  if (__builtin_expect(length >= COPY_BY_LINES, 0))
    record_copy_long(lane, out, to, from, length);
  else
    copy_bytes(to, from, length);
}
/* Copies the head of a record, last what is in the record's first line: the
 * peer polls that line, and may take it away between two stores to it; then it
 * has to be fetched again. So all stores to it stand together. That part has 16
 * to 32 bytes, which two copies of 16 cover. */
static inline void outgoing_put_head(const struct lane *lane,
                                     const struct ring_out *out,
                                     uint8_t *record, uint64_t before,
                                     const uint8_t *bytes, uint64_t length) {
  enum { HALF = 16 };
  uint64_t first = RING_UNIT - before;
  if (length < first) {
    memcpy(record + before, bytes, length);
    return;
  }
  record_copy(lane, out, record + RING_UNIT, bytes + first, length - first);
  memcpy(record + before, bytes, HALF);
  memcpy(record + RING_UNIT - HALF, bytes + first - HALF, HALF);
}

/* Writes a record as outgoing_bytes(); out: lane_out(). `unsure` tells that the session
 * has published another record since its last poll. */
static inline __attribute__((always_inline)) bool
outgoing_put(struct perigee_session *session, enum ring ring,
             struct ring_out *out, const struct record *r,
             const uint8_t *bytes) {
  struct lane *lane = session->lane;
  uint64_t before = record_before(r->flags);
  uint64_t size = before + record_padded(r->head_length);
  uint8_t *to = out ? ring_reserve(out, size)
                    : lane_records(lane)->reserve(lane, ring, size);
  if (!to)
    return false;
  outgoing_put_head(lane, out, to, before, bytes, r->head_length);
  record_encode_words(r, to);
  STAMP(STAMP_PUBLISHED);
  if (out)
    ring_publish_at(out, to, size, session->polled.unsure);
  else
    lane_records(lane)->publish(lane, ring, size);
  session->counters->bytes_sent += r->head_length;
  session_wake_soon(session);
  return true;
}

/* Publishes a record with an inline head only; false if it has to wait for
 * room. Inlined, so that the header's words are made in registers, and twice,
 * so that it is asked once what the lane is. */
static inline __attribute__((always_inline)) bool
outgoing_bytes(struct perigee_session *session, enum ring ring,
               const struct record *r, const uint8_t *bytes) {
  struct ring_out *out = lane_out(session->lane, ring);
  return __builtin_expect(!out, 0) ? outgoing_put(session, ring, NULL, r, bytes)
                                   : outgoing_put(session, ring, out, r, bytes);
}
/* Publishes a record whose head the program has written to room that the ring lent;
 * false if another record came first, and the head is to be copied. */
bool outgoing_lent(struct perigee_session *session, enum ring ring,
                   const struct record *r);
/* Encodes and publishes a record; false without room. */
bool outgoing_publish(struct perigee_session *session, enum ring ring,
                      struct outgoing *out);
/* The same for a request with a trace context. */
bool outgoing_traced(struct perigee_session *session, struct outgoing *out,
                     const struct perigee_trace *trace);

/* May a message that names a trace context be sent by a call of this session?
 * If not, a status and a sentence. */
int trace_check(struct perigee_session *session,
                const struct perigee_message *message);
/* Copies the trace context that the message names. It travels with the
 * operation's record, unless the peer does not know it (op->traced). If it is
 * sampled, the call has a span. */
void trace_keep(struct operation *op, const struct perigee_message *message);
/* Copies what came with a request: RECORD_TRACE_PAYLOAD bytes in the ring; and
 * begins the span of a sampled one. */
void trace_arrived(struct operation *op, const uint8_t *bytes);

/* ---- The text of a failed call ------------------------------------------- */

/* The head of a failed call's reply: a text and, if PERIGEE_TYPED is set, a zero
 * and typed values behind it. agent/failure.c and Lua put there a traceback, a
 * code, whether a handler ran, and the kind of a handler's own error. */

/* The most bytes of the typed values, few enough to decode at once, and of
 * all. */
enum { FAILURE_MORE = 16 << 10, FAILURE_MOST = 128 << 10 };

/* Finds the zero that ends the text: head[*text]; the typed values follow.
 * PROTOCOL if there is no zero, or if what follows is longer than FAILURE_MORE
 * or no typed values; otherwise as perigee_typed_scan. */
int failure_split(const uint8_t *head, uint64_t length, uint64_t *text);

#endif
