/* SPDX-License-Identifier: Apache-2.0
 *
 * outcome.c - the result of a call: its reply is brought to where the caller
 * wants it.
 */
#include <string.h>

#include "call.h"
#include "core/pool.h"
#include "operation/failure.h"
#include "operation/loan.h"

/* Brings one part of a reply to its place: 1, 0 (in progress) or a status. */
static int bring(struct operation *op, const struct record *r, int place,
                 const struct payload *into, uint8_t **block) {
  bool head = place == IN_HEAD;
  uint64_t length = head ? r->head_length : r->slice_length;
  bool bulk = r->flags & (head ? RECORD_HEAD_BULK : RECORD_SLICE_BULK);
  op->by_reference |= bulk;
  if (!bulk)
    return incoming_bytes(op, place, head ? r->head : r->slice, length, into,
                          block);
  /* In a reply, `method` and `remaining` carry the replier's own operation
   * number and generation, whose mark tells whether the payload is still
   * offered. */
  return incoming_bulk(op, place, head ? &r->head_source : &r->slice_source,
                       length, r->method, r->remaining, into, block);
}

/* Must the head stay for longer than the next poll? A long one is scanned in
 * portions, and the program may decode it in portions. */
static bool stays(const struct operation *op, const struct record *r) {
  return r->flags & RECORD_TYPED &&
         (r->head_length > SCANNED_AT_ONCE || op->flags & PERIGEE_HELD);
}

/* May the event come in a later poll than the record? Then the head must not
 * stay in the ring or the scratch: a slice may take several polls, and so may
 * memory of the request that is still being read asynchronously. */
static bool may_wait(const struct operation *op, const struct record *r) {
  bool waits = r->flags & RECORD_SLICE;
  for (int i = OUT_HEAD; i <= OUT_SLICE; i++)
    waits |= op->parts[i] && !op->parts[i]->payload.memory->direct;
  return waits;
}

static int copied(struct operation *op, const struct record *r) {
  op->pointer = may_wait(op, r) || stays(op, r)
                    ? NULL
                    : scratch_copy(op->engine, r->head, r->head_length);
  if (!op->pointer) {
    op->pointer = op->block = pool_take(op->session, r->head_length);
    if (!op->block)
      return PERIGEE_NO_MEMORY;
    memcpy(op->block, r->head, r->head_length);
  }
  return 1;
}

static int typed_inline(struct operation *op, const struct record *r) {
  int status = copied(op, r);
  return status < 0 ? status : incoming_scan(op);
}

/* Finds the text in a failure's head, which is complete. */
static int failure_read(struct operation *op) {
  uint64_t text;
  if (!(op->flags & PERIGEE_TYPED))
    return 1;
  int status = failure_split(op->pointer, op->length, &text);
  if (status < 0)
    return status;
  op->flags = 0;
  op->slice = op->length - text - 1;
  op->length = text;
  return 1;
}

/* The text of a failure never goes into memory that was named for a reply. */
static int failure_head(struct operation *op, const struct record *r) {
  op->length = r->head_length;
  op->value = (uint64_t)call_due(op);
  if (r->head_length > FAILURE_MOST)
    return PERIGEE_TOO_LARGE;
  if (r->head_length == 0)
    return 1;
  op->flags |= r->flags & RECORD_TYPED ? PERIGEE_TYPED : 0;
  bool bulk = r->flags & RECORD_HEAD_BULK;
  int status = bulk ? bring(op, r, IN_HEAD, NULL, &op->block) : copied(op, r);
  if (bulk)
    op->pointer = op->block;
  return status == 1 ? failure_read(op) : status;
}

/* Of raw bytes. What is short goes to one piece of memory mostly. */
static int reply_into(struct operation *op, const struct record *r) {
  const struct perigee_slice *s = &op->message.into;
  struct payload into;
  op->slice = r->head_length;
  if (r->head && r->head_length <= s->length && region_has(s->region, s)) {
    memcpy(s->region->pointer + s->offset, r->head, r->head_length);
    return 1;
  }
  int status = slice_payload(op->engine, s, &into);
  return status < 0 ? status : bring(op, r, IN_HEAD, &into, NULL);
}

static int reply_head(struct operation *op, const struct record *r) {
  if (r->status != PERIGEE_OK)
    return failure_head(op, r);
  bool bulk = r->flags & RECORD_HEAD_BULK;
  op->length = r->head_length;
  if (r->flags & RECORD_TYPED) {
    op->flags |= PERIGEE_TYPED;
    if (r->head_length > op->engine->options.typed)
      return PERIGEE_TOO_LARGE;
    if (r->head_length > op->engine->options.hold)
      op->flags |= PERIGEE_HELD;
    if (!bulk)
      return typed_inline(op, r);
  } else if (op->message.into.region && op->kind == OP_CALL) {
    return reply_into(op, r);
  } else if (!bulk) {
    op->pointer = r->head;
    /* With a thread the head is copied, as the thread goes on with the ring. */
    bool there = !op->engine->thread && !may_wait(op, r);
    return there || r->head_length == 0 ? 1 : copied(op, r);
  } else if ((op->pointer = room_view(op, &r->head_source))) {
    op->by_reference = op->in_place = true;
    return 1;
  }
  int status = bring(op, r, IN_HEAD, NULL, &op->block);
  op->pointer = op->block;
  return status;
}

static int reply_slice(struct operation *op, const struct record *r) {
  if (!(r->flags & RECORD_SLICE))
    return 1;
  op->flags |= PERIGEE_SLICE;
  op->slice = r->slice_length;
  if (!op->message.into.region)
    return bring(op, r, IN_SLICE, NULL, &op->slice_block);
  struct payload into;
  int status = slice_payload(op->engine, &op->message.into, &into);
  return status < 0 ? status : bring(op, r, IN_SLICE, &into, NULL);
}

static void finish(struct operation *op) {
  if (op->slice_block)
    op->flags |= PERIGEE_POOLED;
  if (op->flags & PERIGEE_HELD)
    op->value = (uint64_t)call_due(op);
  if (op->kind == OP_CALL)
    op->session->counters.bytes_received += op->length + op->slice;
  call_end(op, PERIGEE_OK);
}

/* A reply to a call that has already ended for its caller: the loan that the
 * request was is free again. */
static void late(struct operation *op) {
  op->replied = true;
  if (op->state != ORPHANED)
    return;
  call_let_go(op);
  step(op, LET_GO);
  operation_free(op);
}

/* Checks that a reply has only parts that its operation can take. Messages and
 * one-sided access are answered with a status and the bytes read; nobody would
 * free anything else. A failure or raw bytes come without a slice. A caller
 * that gave a capacity relies on it. */
static bool fits(const struct operation *op, const struct record *r) {
  bool slice = r->flags & RECORD_SLICE;
  if (op->kind == OP_CALL && r->status != PERIGEE_OK)
    return !slice;
  if (op->kind == OP_CALL)
    return (!slice || r->flags & RECORD_TYPED) &&
           (!op->message.capacity || r->head_length <= op->message.capacity);
  if (op->kind != OP_READ || r->status != PERIGEE_OK)
    return r->head_length == 0 && !slice;
  const struct perigee_slice *into = &op->message.into;
  return r->head_length == 0 && slice &&
         r->slice_length == into->length * into->count;
}

void call_reply(struct perigee_session *session, const struct record *r) {
  struct operation *op = operation_find(session->engine, r->operation);
  if (!op || op->session != session || op->generation != r->generation ||
      op->kind > OP_SEND)
    return;
  if (op->state != SENT) {
    late(op);
    return;
  }
  op->replied = true;
  op->status = status_of_peer(r->status);
  op->code = r->code;
  int head = fits(op, r) ? reply_head(op, r) : PERIGEE_PROTOCOL;
  int slice = head < 0 ? head : reply_slice(op, r);
  if (slice < 0 || (head == 1 && slice == 1)) {
    step(op, REPLY);
    if (slice < 0)
      call_end(op, slice);
    else
      finish(op);
    return;
  }
  step(op, BULK);
  operation_move(op);
}

/* Was the payload still offered when its last bytes were taken? */
static bool still_offered(struct operation *op, int place) {
  struct part *part = op->parts[place];
  struct lane *lane = op->session->lane;
  return !part || !part->fetching ||
         (lane_payloads(lane)->live(lane, part->fetch.operation,
                                    part->fetch.generation) &&
          part_live(op, place));
}

static void fetch(struct operation *op) {
  int head = part_step(op, IN_HEAD);
  if (head == 1 && !still_offered(op, IN_HEAD))
    head = PERIGEE_PEER_LOST; /* what was pulled must not be used */
  if (head == 1 && op->flags & PERIGEE_TYPED)
    head = op->status != PERIGEE_OK ? failure_read(op) : incoming_scan(op);
  int slice = head == 1 ? part_step(op, IN_SLICE) : head;
  int status = head < 0 ? head : slice;
  /* A device may also have found that it is not offered any more. */
  if (status == PERIGEE_CANCELLED ||
      (status >= 0 &&
       !(still_offered(op, IN_HEAD) && still_offered(op, IN_SLICE))))
    status = PERIGEE_PEER_LOST;
  if (status == 0)
    return;
  if (status < 0) {
    call_stop(op, status);
    return;
  }
  step(op, FETCHED);
  finish(op);
}

void call_step(struct operation *op) {
  if (op->quiet_wait) {
    op->engine->copying = true;
    if (!parts_end(op))
      return;
    op->quiet_wait = false;
    list_remove(&op->queue);
    call_tell(op);
  } else if (op->state == FETCHING) {
    fetch(op);
  } else {
    int status = part_step(op, OUT_HEAD);
    if (status >= 0)
      status = part_step(op, OUT_SLICE);
    if (status < 0)
      call_stop(op, status);
  }
}
