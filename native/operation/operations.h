/* SPDX-License-Identifier: Apache-2.0
 *
 * operations.h - what every kind of operation uses: its life, room for it, from
 * a message to a record, and from a record to memory.
 */
#ifndef OPERATIONS_H
#define OPERATIONS_H

#include "base/stamp.h"
#include "core/lanes.h"

/* ---- operation.c --------------------------------------------------------- */
struct operation *operation_take(struct perigee_session *,
                                 const struct operation_class *);
/* Starts the operation's timeout. */
void operation_time(struct operation *op, int64_t timeout);
/* Queues its event, to be given when a poll has room. */
void operation_event(struct operation *op, int kind);
void operation_move(struct operation *op); /* each poll steps it */
/* Removes it from any list in which it waits; an event not yet given is
 * withdrawn. */
void operation_unqueue(struct operation *op);
void operation_free(struct operation *op);
void operation_spare(struct operation *op); /* it may be taken again */
/* Count it for its peer: as one operation, and the bytes that it exposes, until
 * the operation is free or its session is. */
void operation_count(struct operation *op);
void operation_expose(struct operation *op, uint64_t bytes);
void operation_unexpose(struct operation *op, uint64_t bytes);
/* Takes over bytes that the caller has counted already. */
void operation_lends(struct operation *op, uint64_t *bytes);
void operation_uncount(struct operation *op);
/* Ends an own operation in a timeout, and counts that. */
void operation_late(struct operation *op);
struct operation *operation_find(struct perigee_engine *, int index);
void operation_ref(struct operation *op, struct perigee_region *region);
void operation_unref(struct operation *op);

/* ---- parts.c ------------------------------------------------------------- */
/* Ends its parts; true once none of them is in progress and all are freed. */
bool parts_end(struct operation *op);
/* Gives a part to the operation. */
void part_put(struct operation *op, int place, struct part *part);
int part_expose(struct operation *op, int place, const struct payload *from,
                struct source *source);
/* Right behind the record: feeds what a transport stages at once. Polls feed
 * the rest, so the operation has to be moving. */
void parts_feed(struct operation *op);
/* What the peer is told of an exposed part. */
struct source part_source(const struct part *part);
/* Of a part that came over an additional lane: does that lane's mark say that
 * it was the operation's own until now? True of all others. */
bool part_live(const struct operation *op, int place);
/* Steps one part: 1 when all bytes are there, 0 not yet, or a status. */
int part_step(struct operation *op, int place);

/* ---- slices.c ------------------------------------------------------------ */
/* Checks a local slice and makes its payload, or returns a status. */
int slice_payload(struct perigee_engine *, const struct perigee_slice *,
                  struct payload *);

/* ---- room.c: blocks that peers read in place ----------------------------- */
/* As a lane's loan; first takes back, if needed, what callers have released.
 * PERIGEE_AGAIN: no block is free now. */
int room_lend(struct perigee_session *session, uint64_t length,
              uint8_t **pointer, struct source *source);
/* room_lends: may an own request be lent so many bytes? 0, or TOO_LARGE or
 * NO_MEMORY with a sentence. room_stages: may an own request expose so many
 * more bytes? */
int room_lends(struct perigee_session *session, uint64_t length);
bool room_stages(const struct operation *op, uint64_t bytes);
/* Looks, at each tick, which replies were read: at some of them, or at all. */
void room_sweep(struct perigee_engine *engine, bool all);
/* The reply refers to memory of ours; it is kept until the caller has read
 * it. */
void room_keep_reply(struct operation *op);
/* After a reply was sent: takes back memory of replies that were read. */
void room_look(struct perigee_session *session);
/* Takes room for the head, if it has to be pulled into a block (from the
 * source), and for the reply, if it may need a block; what is not used is given
 * back by room_give. Returns 1, PERIGEE_AGAIN if the request has to wait, or a
 * status. */
int room_take(struct operation *op, const struct source *source);
void room_give(struct operation *op);
/* Where a raw head can be read that the peer has lent, from now until the
 * operation is free or room_unview is called; NULL: it has to be fetched. */
const uint8_t *room_view(struct operation *op, const struct source *source);
void room_unview(struct operation *op);
/* await steps the request at each poll, and sets its timer for as long as it may
 * wait; waited stops that timer. */
void room_await(struct operation *op);
void room_waited(struct operation *op);

/* ---- outgoing.c: from a message to a record in a ring -------------------- */
/* A record and the bytes that go into it. Fields are set where they are used:
 * zeroing them all would cost more than sending. */
struct outgoing {
  struct record record;
  struct payload head, slice;
  bool access; /* of a one-sided transfer, which is counted elsewhere */
};

/* Fills in the parts of a record. What does not fit into it is exposed. */
int outgoing_plan(struct operation *op, const struct perigee_message *message,
                  struct outgoing *out);
/* Returns where the bytes of a message lie that is one contiguous head, short
 * enough for the ring. NULL: it needs a plan. */
const uint8_t *outgoing_short(const struct operation *op,
                              const struct perigee_message *message,
                              uint64_t *length);
/* Copies the head of a record, last what is in the record's first line: the
 * peer polls that line, and may take it away between two stores to it; then it
 * has to be fetched again. So all stores to it stand together. That part has 16
 * to 32 bytes, which two copies of 16 cover. */
static inline void put_head(uint8_t *record, uint64_t before,
                            const uint8_t *bytes, uint64_t length) {
  enum { HALF = 16 };
  uint64_t first = RING_UNIT - before;
  if (length < first) {
    memcpy(record + before, bytes, length);
    return;
  }
  memcpy(record + RING_UNIT, bytes + first, length - first);
  memcpy(record + before, bytes, HALF);
  memcpy(record + RING_UNIT - HALF, bytes + first - HALF, HALF);
}

/* Publishes a record with an inline head only; false if it has to wait for
 * room. Inlined, so that the header's words are made in registers. */
static inline __attribute__((always_inline)) bool
outgoing_bytes(struct perigee_session *session, enum ring ring,
               const struct record *r, const uint8_t *bytes) {
  struct lane *lane = session->lane;
  uint64_t before = record_before(r->flags);
  uint64_t size = before + record_padded(r->head_length);
  uint8_t *to = lane_reserve(lane, ring, size);
  if (!to) {
    session->counters.stalls++;
    return false;
  }
  put_head(to, before, bytes, r->head_length);
  record_encode_words(r, to);
  STAMP(STAMP_PUBLISHED);
  lane_publish(lane, ring, size);
  session->counters.bytes_sent += r->head_length;
  session_wake_soon(session);
  return true;
}
/* Encodes and publishes a record; false without room. */
bool outgoing_publish(struct perigee_session *session, enum ring ring,
                      struct outgoing *out);
/* The same for a request with a trace context. */
bool outgoing_traced(struct perigee_session *session, struct outgoing *out,
                     const struct perigee_trace *trace);
/* Queues the operation until there is room in the ring. */
void backlog_add(struct operation *op, enum ring ring);

/* ---- incoming.c: from a record to memory --------------------------------- */
/* Checks a typed payload, before it goes to the peer or to the program. If it
 * is too expensive: a status, and engine->detail tells why. */
int incoming_typed(struct perigee_engine *, const void *data, uint64_t length);
/* The same for an operation's typed head that has arrived. A long head must be
 * in the operation's block, and is scanned in portions, one at each call: 1 if
 * it is sound, 0 if the scan has to continue. */
enum { SCANNED_AT_ONCE = 16 << 10 };
int incoming_scan(struct operation *op);
void incoming_scan_end(struct operation *op);
/* Brings a head or slice to its place (payload NULL: a pooled block, *block).
 * Returns 1 if it is there, 0 if the part at `place` is in progress. */
int incoming_bytes(struct operation *op, int place, const uint8_t *bytes,
                   uint64_t length, const struct payload *into,
                   uint8_t **block);
int incoming_bulk(struct operation *op, int place, const struct source *source,
                  uint64_t length, uint16_t peer, uint32_t generation,
                  const struct payload *into, uint8_t **block);

#endif
