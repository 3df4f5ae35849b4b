/* SPDX-License-Identifier: Apache-2.0
 *
 * operations.h - what every kind of operation is made of: its life, room for it,
 * from a message to a record and from a record to memory.
 */
#ifndef OPERATIONS_H
#define OPERATIONS_H

#include "core/engine.h"

/* ---- operation.c ---------------------------------------------------------- */
struct operation *operation_take(struct perigee_session *,
                                 const struct operation_class *);
/* From now on it may time out. */
void operation_time(struct operation *op, int64_t timeout);
/* Its event: queued for the next room in a poll. */
void operation_event(struct operation *op, int kind);
void operation_move(struct operation *op); /* to be stepped */
/* Out of whatever list it waits in; an event not yet given is withdrawn. */
void operation_unqueue(struct operation *op);
void operation_free(struct operation *op);
void operation_spare(struct operation *op); /* it is nobody's: to be taken */
/* It counts as its peer's: one of its operations, so many exposed bytes; until
 * it is free or its session is. */
void operation_count(struct operation *op);
void operation_expose(struct operation *op, uint64_t bytes);
void operation_unexpose(struct operation *op, uint64_t bytes);
/* The same of what is counted already, by who hands it over. */
void operation_lends(struct operation *op, uint64_t *bytes);
void operation_uncount(struct operation *op);
/* Of own ones: ends it in a timeout, and counts that. */
void operation_late(struct operation *op);
struct operation *operation_find(struct perigee_engine *, int index);
void operation_ref(struct operation *op, struct perigee_region *region);
void operation_unref(struct operation *op);
/* True when nothing of its parts is under way; then they are gone. */
bool parts_end(struct operation *op);
/* The part is the operation's from here on. */
void part_put(struct operation *op, int place, struct part *part);
int part_expose(struct operation *op, int place, const struct payload *from,
                struct source *source);
/* What the peer is told of an exposed one. */
struct source part_source(const struct part *part);
/* Of one that came over an additional lane: was it the operation's own until now,
 * as that lane says? True of all others. */
bool part_live(const struct operation *op, int place);
/* Steps one part: 1 all there, 0 not yet, or a status. */
int part_step(struct operation *op, int place);
/* Checks a local slice: its payload, or a status. */
int slice_payload(struct perigee_engine *, const struct perigee_slice *,
                  struct payload *);

/* ---- room.c: blocks that peers look into ---------------------------------- */
/* As a lane's loan; what callers have let go of is taken back where it has to
 * be. PERIGEE_AGAIN: there is no block now. */
int room_lend(struct perigee_session *session, uint64_t length,
              uint8_t **pointer, struct source *source);
/* May an own request be lent so many bytes? 0, or TOO_LARGE, NO_MEMORY and why.
 * May one take so many for what it exposes, beside what it has? */
int room_lends(struct perigee_session *session, uint64_t length);
bool room_stages(const struct operation *op, uint64_t bytes);
/* At each tick: some of those that lie are looked at; or all. */
void room_sweep(struct perigee_engine *engine, bool all);

/* ---- outgoing.c: from a message to a record in a ring --------------------- */
/* What a message becomes: a record, and the bytes that go into it. These are set
 * where they are looked at: to zero them all would cost more than to send. */
struct outgoing {
  struct record record;
  struct payload head, slice;
  bool access; /* of a one-sided transfer: counted where that began */
};

/* Fills in the parts of a record; what does not fit in it is exposed. */
int outgoing_plan(struct operation *op, const struct perigee_message *message,
                  struct outgoing *out);
/* A record of a raw head that travels in it; false: it has to wait for room, or
 * for others that do. */
bool outgoing_bytes(struct perigee_session *session, enum ring ring,
                    const struct record *record, const uint8_t *head);
/* Encodes and publishes; false: no room now. */
bool outgoing_publish(struct perigee_session *session, enum ring ring,
                      struct outgoing *out);
/* The same of a request with a trace context. */
bool outgoing_traced(struct perigee_session *session, struct outgoing *out,
                     const struct perigee_trace *trace);
/* Until there is room in the ring. */
void backlog_add(struct operation *op, enum ring ring);

/* ---- incoming.c: from a record to memory ---------------------------------- */
/* May a typed payload go on, to the peer or to the program? If not, a status,
 * and engine->detail says what is too much. */
int incoming_typed(struct perigee_engine *, const void *data, uint64_t length);
/* The same of an operation's typed head that has come. What is long has to lie
 * in the operation's block, and is looked at in portions, one a call: 1: it may
 * go on, 0: it is not through yet. */
enum { SCANNED_AT_ONCE = 16 << 10 };
int incoming_scan(struct operation *op);
void incoming_scan_end(struct operation *op);
/* Brings a head or slice to where it goes (payload NULL: a pooled block,
 * *block). 1: it is there, 0: the part at `place` is under way. */
int incoming_bytes(struct operation *op, int place, const uint8_t *bytes,
                   uint64_t length, const struct payload *into,
                   uint8_t **block);
int incoming_bulk(struct operation *op, int place, const struct source *source,
                  uint64_t length, uint16_t peer, uint32_t generation,
                  const struct payload *into, uint8_t **block);

#endif
