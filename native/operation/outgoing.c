/* SPDX-License-Identifier: Apache-2.0
 *
 * outgoing.c - from a message to a record in the peer's ring, and the trace
 * context (W3C) that it may have: the trace that a call belongs to, and the
 * span from which it was made.
 *
 * Bytes up to the eager limit travel in the ring. Longer payloads, and memory
 * that the CPU cannot touch, are exposed for the peer to pull. An own call has
 * a copy of the trace context that its message names; a served call has what
 * came with the request, until it has ended.
 */
#include <string.h>

#include "base/stamp.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "core/spans.h"
#include "core/stats_file.h"
#include "net/wire.h"
#include "operations.h"

static int outgoing_head(struct operation *op, const struct perigee_message *m,
                         struct payload *head) {
  if (outgoing_slice_is_head(op, m))
    return message_payload(op, &m->slice, false, head);
  if (!m->head && m->length > 0)
    return fail_missing(op->engine, "head of a message");
  payload_bytes(head, m->head, m->length);
  return PERIGEE_OK;
}

/* The text of a reply's failure is for the caller, who is not this side. */
static int outgoing_over_limit(const struct operation *op, uint64_t bytes,
                               uint64_t limit, bool typed) {
  const char *whose = op->kind == OP_SERVED ? "caller" : "peer";
  return fail(op->engine, PERIGEE_TOO_LARGE,
              "%llu bytes%s are more than the %s's limit of %llu (the %s's "
              "option %s)",
              (unsigned long long)bytes, typed ? " of typed values" : "", whose,
              (unsigned long long)limit, whose, typed ? "typed" : "message");
}

static int outgoing_check_limits(struct operation *op,
                                 const struct outgoing *out) {
  const struct terms *peer = &op->session->peer.terms;
  uint64_t head = out->record.head_length, slice = out->record.slice_length;
  bool typed = out->record.flags & RECORD_TYPED;
  uint64_t limit = typed ? peer->typed : peer->message;
  if (out->record.status != PERIGEE_OK && head > FAILURE_MOST)
    return fail(op->engine, PERIGEE_TOO_LARGE,
                "what a failure tells has %llu bytes, and at most %d travel",
                (unsigned long long)head, FAILURE_MOST);
  if (head > limit)
    return outgoing_over_limit(op, head, limit, typed);
  if (slice > peer->message)
    return outgoing_over_limit(op, slice, peer->message, false);
  return PERIGEE_OK;
}

/* The request was brought to the block in which its reply is, and the transport
 * would rather stage it? Then the block stays in the cache of this core. */
static bool outgoing_would_stage(const struct operation *op,
                                 const struct payload *payload) {
  struct lane *lane = op->session->lane;
  const struct transport_payloads *t = lane_payloads(lane);
  return op->bulky && t->stages && t->stages(lane, payload->total);
}

/* Exposes a part for this operation; only once, even if it is planned again. */
static int outgoing_expose(struct operation *op, int place,
                           struct payload *payload, struct source *source) {
  if (op->parts[place]) {
    *source = part_source(op->parts[place]);
    return PERIGEE_OK;
  }
  struct lane *lane = op->session->lane;
  if (payload->memory->direct && payload->count == 1 &&
      lane_table(lane)->loans->loaned(lane, payload->base, payload->total,
                                      source) &&
      !outgoing_would_stage(op, payload))
    return PERIGEE_OK;
  return part_expose(op, place, payload, source);
}

static bool outgoing_fits(const struct payload *p, uint64_t room) {
  return p->total <= room && (p->memory->direct || p->total == 0);
}

/* Notes what is sent, and how long that is. */
static int outgoing_measure(struct operation *op,
                            const struct perigee_message *m,
                            struct outgoing *out) {
  struct record *r = &out->record;
  int status = outgoing_head(op, m, &out->head);
  if (status < 0)
    return status;
  r->head_length = out->head.total;
  if (!m->slice.region || outgoing_slice_is_head(op, m))
    return PERIGEE_OK;
  status = message_payload(op, &m->slice, false, &out->slice);
  if (status < 0)
    return status;
  r->flags |= RECORD_SLICE;
  r->slice_length = out->slice.total;
  return PERIGEE_OK;
}

/* What does not fit into the record is exposed. */
static int outgoing_place(struct operation *op, struct outgoing *out) {
  struct record *r = &out->record;
  uint64_t room = op->session->peer.eager;
  int status = PERIGEE_OK;
  if (outgoing_fits(&out->head, room)) {
    room -= out->head.total;
  } else {
    r->flags |= RECORD_HEAD_BULK;
    status = outgoing_expose(op, OUT_HEAD, &out->head, &r->head_source);
  }
  if (status < 0 || !(r->flags & RECORD_SLICE) ||
      outgoing_fits(&out->slice, room))
    return status;
  r->flags |= RECORD_SLICE_BULK;
  return outgoing_expose(op, OUT_SLICE, &out->slice, &r->slice_source);
}

/* What is too long is not exposed: to take that back may take the lane long. */
int outgoing_plan(struct operation *op, const struct perigee_message *m,
                  struct outgoing *out) {
  struct record *r = &out->record;
  int status = outgoing_measure(op, m, out);
  if (status < 0)
    return status;
  out->access = r->kind == RECORD_READ || r->kind == RECORD_WRITE ||
                (r->kind == RECORD_REPLY && op->record != RECORD_REQUEST);
  if (m->flags & PERIGEE_TYPED)
    r->flags |= RECORD_TYPED;
  if (m->code) {
    r->flags |= RECORD_CODE;
    r->code = m->code;
  }
  status = outgoing_check_limits(op, out);
  return status < 0 ? status : outgoing_place(op, out);
}

/* The longest record, with a head outside of the ring and a slice in it. */
_Static_assert(RECORD_HEADER + 2 * 8 + RECORD_TRACED + RECORD_SOURCE + 8 <=
                   RING_HEAD,
               "its header has room beside a quarter of the ring");

/* If the next record is there, they are rather copied up: then the processor
 * fetches its lines as well. */
void record_copy_long(const struct lane *lane, const struct ring_out *out,
                      uint8_t *to, const uint8_t *from, uint64_t length) {
  if (out && out->streams)
    bulk_stream(to, from, length);
  else if (lane_busy(lane))
    copy_long(to, from, length);
  else
    copy_lines(to, from, length);
}

static void outgoing_put_payload(struct lane *lane, enum ring ring,
                                 struct payload *p, uint8_t *to) {
  uint64_t run;
  const uint8_t *bytes = payload_run(p, &run);
  if (p->memory->direct && run > 0 && run == p->total)
    record_copy(lane, lane_out(lane, ring), to, bytes, run);
  else
    payload_take(p, to, p->total);
}

/* Inlined twice, so that records without a trace context pay nothing for it. */
static inline __attribute__((always_inline)) bool
outgoing_write(struct perigee_session *session, enum ring ring,
               struct outgoing *out, const struct perigee_trace *trace) {
  struct lane *lane = session->lane;
  const struct record *r = &out->record;
  uint64_t more = trace ? RECORD_TRACED : 0, size = record_size(r) + more;
  uint8_t *bytes = lane_reserve(lane, ring, size);
  if (!bytes)
    return false;
  uint8_t *head = record_head(r, bytes + more);
  uint8_t *slice = record_slice(r, bytes + more);
  if (slice)
    outgoing_put_payload(lane, ring, &out->slice, slice);
  if (head)
    outgoing_put_payload(lane, ring, &out->head, head);
  if (trace)
    record_encode_traced(r, bytes, trace);
  else
    record_encode(r, bytes);
  STAMP(STAMP_PUBLISHED);
  lane_publish(lane, ring, size);
  if (!out->access)
    session->counters->bytes_sent += r->head_length + r->slice_length;
  session_wake_soon(session);
  return true;
}

bool outgoing_lent(struct perigee_session *session, enum ring ring,
                   const struct record *r) {
  struct ring_out *out = lane_out(session->lane, ring);
  if (!out->lends)
    return false;
  ring_unlend(out);
  record_encode_lent(r, out->bytes + (out->head & (out->size - 1)));
  STAMP(STAMP_PUBLISHED);
  ring_publish(out, RECORD_LENT + record_padded(r->head_length));
  session->counters->bytes_sent += r->head_length;
  session_wake_soon(session);
  return true;
}

bool outgoing_publish(struct perigee_session *session, enum ring ring,
                      struct outgoing *out) {
  return outgoing_write(session, ring, out, NULL);
}

__attribute__((noinline)) bool
outgoing_traced(struct perigee_session *session, struct outgoing *out,
                const struct perigee_trace *trace) {
  return outgoing_write(session, RING_REQUEST, out, trace);
}

/* ---- Trace contexts ----------------------------------------------------- */

_Static_assert(sizeof(struct perigee_trace) == RECORD_TRACE_PAYLOAD,
               "it travels as it lies");

static bool trace_is_zero(const uint8_t *bytes, size_t length) {
  uint8_t any = 0;
  for (size_t i = 0; i < length; i++)
    any |= bytes[i];
  return any == 0;
}

int trace_check(struct perigee_session *session,
                const struct perigee_message *m) {
  if (trace_is_zero(m->trace->id, sizeof m->trace->id))
    return fail(session->engine, PERIGEE_INVALID,
                "a trace id of zeros is none");
  if (m->flags & PERIGEE_CARRIED)
    return PERIGEE_OK;
  return session_needs(session, FEATURE_TRACE);
}

void trace_keep(struct operation *op, const struct perigee_message *m) {
  struct perigee_trace *t = &op->trace;
  *t = *m->trace;
  op->traced = op->session->peer.features & FEATURE_TRACE ? TRACE_TRAVELS : 0;
  if (m->flags & PERIGEE_CARRIED || trace_is_zero(t->span, sizeof t->span)) {
    uint64_t span = span_next(op->engine);
    memcpy(t->span, &span, sizeof span);
  }
  if (t->flags & 1)
    span_begin(op, stats_row(&op->session->methods, m->method), m->trace->span);
}

/* As in W3C's format, an id of zeros means no trace. */
void trace_arrived(struct operation *op, const uint8_t *bytes) {
  struct perigee_trace *t = &op->came;
  memcpy(t, bytes, sizeof *t);
  if (trace_is_zero(t->id, sizeof t->id) ||
      trace_is_zero(t->span, sizeof t->span))
    return;
  op->flags |= PERIGEE_TRACED;
  if (t->flags & 1)
    span_begin(op, stats_row(&op->engine->stats.rows, op->method), NULL);
}

void perigee_trace_begin(struct perigee_engine *engine,
                         struct perigee_trace *trace) {
  ENTER(engine);
  uint64_t id[2] = {span_next(engine), span_next(engine)};
  *trace = (struct perigee_trace){.flags = 1};
  memcpy(trace->id, id, sizeof trace->id);
}

int perigee_served_trace(const struct perigee_engine *engine, int served,
                         struct perigee_trace *trace) {
  LOOK(engine);
  const struct operation *op =
      operation_find((struct perigee_engine *)(uintptr_t)engine, served);
  if (!op || op->kind != OP_SERVED || !(op->flags & PERIGEE_TRACED))
    return 0;
  *trace = op->came;
  return 1;
}

/* ---- The text of a failed call ------------------------------------------- */

int failure_split(const uint8_t *head, uint64_t length, uint64_t *text) {
  const uint8_t *zero = length > 0 ? memchr(head, 0, length) : NULL;
  if (!zero)
    return PERIGEE_PROTOCOL;
  *text = (uint64_t)(zero - head);
  uint64_t more = length - *text - 1;
  if (more > FAILURE_MORE)
    return PERIGEE_PROTOCOL;
  int values = perigee_typed_scan(zero + 1, more);
  return values < 0 ? values : PERIGEE_OK;
}
