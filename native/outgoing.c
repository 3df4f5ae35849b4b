/* SPDX-License-Identifier: Apache-2.0
 *
 * outgoing.c - from a message to a record in the peer's ring.
 *
 * Bytes up to the eager limit travel in the ring; more of them, and bytes that
 * the CPU cannot touch, are exposed for the peer to pull.
 */
#include <string.h>

#include "core.h"

/* A raw message may be a slice: then that is the head. */
static int head_payload(struct operation *op, const struct perigee_message *m,
                        struct payload *head) {
  if (m->slice.region && !(m->flags & PERIGEE_TYPED))
    return slice_payload(op->engine, &m->slice, head);
  payload_bytes(head, m->head, m->length);
  return PERIGEE_OK;
}

static int check_limits(struct operation *op, const struct outgoing *out) {
  const struct hello *peer = &op->session->hello;
  uint64_t head = out->record.head_length, slice = out->record.slice_length;
  bool typed = out->record.flags & RECORD_TYPED;
  uint64_t limit = typed ? peer->typed : peer->message;
  if (head > limit || slice > peer->message)
    return fail(op->engine, PERIGEE_TOO_LARGE,
                "%llu bytes%s are more than the peer's limit of %llu",
                (unsigned long long)(head > limit ? head : slice),
                typed && head > limit ? " of typed arguments" : "",
                (unsigned long long)(head > limit ? limit : peer->message));
  return PERIGEE_OK;
}

/* Exposed under this operation; once, even if planned again later. */
static int expose(struct operation *op, int place, struct payload *payload,
                  struct source *source) {
  if (op->parts[place]) {
    *source = op->parts[place]->exposure.source;
    return PERIGEE_OK;
  }
  struct lane *lane = op->session->lane;
  if (payload->memory->direct && payload->count == 1 &&
      lane_table(lane)->loaned(lane, payload->base, payload->total, source))
    return PERIGEE_OK;
  return part_expose(op, place, payload, source);
}

static bool fits(const struct payload *p, uint64_t room) {
  return p->total <= room && (p->memory->direct || p->total == 0);
}

static int plan_slice(struct operation *op, const struct perigee_message *m,
                      struct outgoing *out, uint64_t room) {
  struct record *r = &out->record;
  int status = slice_payload(op->engine, &m->slice, &out->slice);
  if (status < 0)
    return status;
  r->flags |= RECORD_SLICE;
  r->slice_length = out->slice.total;
  if (fits(&out->slice, room))
    return PERIGEE_OK;
  r->flags |= RECORD_SLICE_BULK;
  return expose(op, OUT_SLICE, &out->slice, &r->slice_source);
}

int outgoing_plan(struct operation *op, const struct perigee_message *m,
                  struct outgoing *out) {
  struct record *r = &out->record;
  uint64_t room = op->session->eager;
  int status = head_payload(op, m, &out->head);
  if (status < 0)
    return status;
  r->head_length = out->head.total;
  if (m->flags & PERIGEE_TYPED)
    r->flags |= RECORD_TYPED;
  if (m->code) {
    r->flags |= RECORD_CODE;
    r->code = m->code;
  }
  if (fits(&out->head, room)) {
    room -= out->head.total;
  } else {
    r->flags |= RECORD_HEAD_BULK;
    status = expose(op, OUT_HEAD, &out->head, &r->head_source);
  }
  if (status == PERIGEE_OK && m->slice.region && (m->flags & PERIGEE_TYPED))
    status = plan_slice(op, m, out, room);
  return status < 0 ? status : check_limits(op, out);
}

bool outgoing_publish(struct perigee_session *session, enum ring ring,
                      struct outgoing *out) {
  struct lane *lane = session->lane;
  const struct perigee_transport *t = lane_table(lane);
  if (session->loans[ring].open && session->loans[ring].in_ring)
    return false;
  uint64_t size = record_size(&out->record);
  uint8_t *bytes = t->reserve(lane, ring, size), *head, *slice;
  if (!bytes) {
    session->counters.stalls++;
    return false;
  }
  record_encode(&out->record, bytes, &head, &slice);
  if (!(out->record.flags & RECORD_HEAD_BULK))
    payload_take(&out->head, head, out->head.total);
  if ((out->record.flags & (RECORD_SLICE | RECORD_SLICE_BULK)) == RECORD_SLICE)
    payload_take(&out->slice, slice, out->slice.total);
  t->publish(lane, ring, size);
  session->counters.bytes_sent +=
      out->record.head_length + out->record.slice_length;
  session_wake(session);
  return true;
}

/* ---- Loans -------------------------------------------------------------- */

static bool loan_in_ring(struct perigee_session *session, enum ring ring,
                         uint64_t capacity, uint32_t flags, struct loan *loan) {
  struct lane *lane = session->lane;
  if (!list_empty(&session->backlog[ring]))
    return false;
  uint64_t before = record_before(flags);
  loan->record = lane_table(lane)->reserve(lane, ring, before + capacity + 7);
  if (!loan->record)
    return false;
  loan->pointer = loan->record + before;
  return true;
}

int loan_begin(struct perigee_session *session, enum ring ring,
               uint64_t capacity, uint32_t flags, struct perigee_loan *out) {
  struct loan *loan = &session->loans[ring];
  struct lane *lane = session->lane;
  if (loan->open)
    return fail(session->engine, PERIGEE_INVALID,
                "a loan of this session is open already");
  bool held = session->engine->thread && ring == RING_REPLY;
  *loan = (struct loan){.in_ring = capacity <= session->eager && !held,
                        .length = capacity};
  if (loan->in_ring) {
    if (!loan_in_ring(session, ring, capacity, flags, loan))
      return PERIGEE_AGAIN;
  } else if (ring == RING_REQUEST &&
             !share_may(session->share, SHARE_OPERATIONS, 1)) {
    return fail(session->engine, PERIGEE_NO_MEMORY,
                "the peer has not let go of what it was lent before");
  } else {
    int status =
        lane_table(lane)->loan(lane, capacity, &loan->pointer, &loan->source);
    if (status < 0)
      return fail(session->engine, status,
                  "no block of %llu bytes to lend (option pool)",
                  (unsigned long long)capacity);
  }
  loan->open = true;
  *out = (struct perigee_loan){loan->pointer, capacity};
  return PERIGEE_OK;
}

void loan_abort(struct perigee_session *session, enum ring ring) {
  struct loan *loan = &session->loans[ring];
  if (loan->open && !loan->in_ring && session->lane)
    lane_table(session->lane)->unloan(session->lane, &loan->source);
  loan->open = false;
}
