/* SPDX-License-Identifier: Apache-2.0
 *
 * outcome.c - what the reply to an own operation brings, from its record to
 * memory: its head is copied or pulled, and scanned if it is typed; its slice,
 * or its raw bytes, go to the place that was named for them, or to a pooled
 * block; the text of a failure goes to neither. call.c has the states of the
 * operation, and its end.
 *
 * If the program wants to be asked for the place (PERIGEE_ASKS), what is to land
 * is offered to it once the head has come. Until then a short slice waits in a
 * pooled block, as the ring is read on; any other one waits with the peer, by the
 * source that its record has.
 */
#include "outcome.h"

#include <string.h>

#include "core/lanes.h"
#include "core/lock.h"
#include "core/pool.h"
#include "operation/loan.h"

int64_t outcome_due(const struct operation *op) {
  if (op->timeout < 0)
    return -1;
  return operation_is_fresh(op) ? time_after(op->engine->now, op->timeout)
                                : op->timer.due;
}

/* ---- What came in its record -------------------------------------------- */

/* Brings one part of a reply to its place: 1, 0 (in progress) or a status. */
static int outcome_bring(struct operation *op, const struct record *r,
                         int place, const struct payload *into,
                         uint8_t **block) {
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
static bool outcome_head_stays(const struct operation *op,
                               const struct record *r) {
  return r->flags & RECORD_TYPED &&
         (r->head_length > SCANNED_AT_ONCE || op->flags & PERIGEE_HELD);
}

/* May the event come in a later poll than the record? Then the head must not
 * stay in the ring or the scratch: a slice may take several polls, and so may
 * memory of the request that is still being read asynchronously. */
static bool outcome_may_wait(const struct operation *op,
                             const struct record *r) {
  bool waits = r->flags & RECORD_SLICE;
  if (!op->has_parts)
    return waits;
  for (int i = OUT_HEAD; i <= OUT_SLICE; i++)
    waits |= op->parts[i] && !op->parts[i]->payload.memory->direct;
  return waits;
}

static int outcome_copy_head(struct operation *op, const struct record *r) {
  op->pointer = outcome_may_wait(op, r) || outcome_head_stays(op, r)
                    ? NULL
                    : scratch_copy(op, r->head, r->head_length);
  if (!op->pointer) {
    op->pointer = op->block = pool_take(op->session, r->head_length);
    if (!op->block)
      return PERIGEE_NO_MEMORY;
    copy_any(op->block, r->head, r->head_length);
  }
  return 1;
}

static int outcome_typed_inline(struct operation *op, const struct record *r) {
  int status = outcome_copy_head(op, r);
  return status < 0 ? status : incoming_scan(op);
}

/* Finds the text in a failure's head, which is complete. */
static int outcome_read_failure(struct operation *op) {
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

/* Keeps what is to land until the program has named its place. In a reply,
 * `method` and `remaining` are those of outcome_bring(). */
static int outcome_offer(struct operation *op, const struct record *r,
                         int place) {
  bool head = place == IN_HEAD;
  bool bulk = r->flags & (head ? RECORD_HEAD_BULK : RECORD_SLICE_BULK);
  op->landed = true;
  op->by_reference |= bulk;
  op->replier = r->method;
  op->replier_generation = r->remaining;
  op->offered =
      (struct record_rest){.length = head ? r->head_length : r->slice_length,
                           .bulk = bulk,
                           .present = !head};
  if (bulk) {
    op->offered.source = head ? r->head_source : r->slice_source;
    return OUTCOME_OFFERED;
  }
  int status =
      incoming_bytes(op, place, head ? r->head : r->slice, op->offered.length,
                     NULL, head ? &op->block : &op->slice_block);
  return status < 0 ? status : OUTCOME_OFFERED;
}

/* The text of a failure never goes into memory that was named for a reply. */
static int outcome_failure(struct operation *op, const struct record *r) {
  op->length = r->head_length;
  op->value = (uint64_t)outcome_due(op);
  if (r->head_length > FAILURE_MOST)
    return PERIGEE_TOO_LARGE;
  if (r->head_length == 0)
    return 1;
  op->flags |= r->flags & RECORD_TYPED ? PERIGEE_TYPED : 0;
  bool bulk = r->flags & RECORD_HEAD_BULK;
  int status = bulk ? outcome_bring(op, r, IN_HEAD, NULL, &op->block)
                    : outcome_copy_head(op, r);
  if (bulk)
    op->pointer = op->block;
  return status == 1 ? outcome_read_failure(op) : status;
}

/* Brings raw bytes. Short ones go to one piece of memory mostly. */
static int outcome_raw_into(struct operation *op, const struct record *r) {
  const struct perigee_slice *s = &op->message.into;
  struct payload into;
  op->slice = r->head_length;
  if (r->head && r->head_length <= s->length && region_has(s->region, s)) {
    record_copy(op->session->lane, NULL, s->region->pointer + s->offset,
                r->head, r->head_length);
    return 1;
  }
  int status = message_payload(op, s, true, &into);
  return status < 0 ? status : outcome_bring(op, r, IN_HEAD, &into, NULL);
}

int outcome_head(struct operation *op, const struct record *r) {
  if (r->status != PERIGEE_OK)
    return outcome_failure(op, r);
  bool bulk = r->flags & RECORD_HEAD_BULK, typed = r->flags & RECORD_TYPED;
  if (!typed && op->message.into.region && op->kind == OP_CALL)
    return outcome_raw_into(op, r);
  op->length = r->head_length;
  if (typed) {
    op->flags |= PERIGEE_TYPED;
    if (r->head_length > op->engine->options.typed)
      return PERIGEE_TOO_LARGE;
    if (r->head_length > op->engine->options.hold)
      op->flags |= PERIGEE_HELD;
    if (!bulk)
      return outcome_typed_inline(op, r);
  } else if (UNLIKELY(op->message.flags & PERIGEE_ASKS)) {
    op->length = 0;
    op->slice = r->head_length;
    return outcome_offer(op, r, IN_HEAD);
  } else if (!bulk) {
    op->pointer = r->head;
    /* A head is copied if the ring is read on before the event is given. */
    bool stays = !engine_copies(op->engine) || op->engine->joined == op;
    bool there = stays && !outcome_may_wait(op, r);
    return there || r->head_length == 0 ? 1 : outcome_copy_head(op, r);
  } else if ((op->pointer = room_view(op, &r->head_source, r->method,
                                      r->remaining))) { /* as outcome_bring() */
    op->by_reference = true;
    op->in_place = !lane_table(op->session->lane)->loans->arrived;
    return 1;
  }
  int status = outcome_bring(op, r, IN_HEAD, NULL, &op->block);
  op->pointer = op->block;
  return status;
}

int outcome_slice(struct operation *op, const struct record *r) {
  if (!(r->flags & RECORD_SLICE))
    return 1;
  op->flags |= PERIGEE_SLICE;
  op->slice = r->slice_length;
  if (!op->message.into.region)
    return op->message.flags & PERIGEE_ASKS
               ? outcome_offer(op, r, IN_SLICE)
               : outcome_bring(op, r, IN_SLICE, NULL, &op->slice_block);
  struct payload into;
  int status = message_payload(op, &op->message.into, true, &into);
  return status < 0 ? status : outcome_bring(op, r, IN_SLICE, &into, NULL);
}

/* Returns the bytes of the place that a read has. */
static uint64_t outcome_room(const struct operation *op) {
  const struct perigee_slice *into = &op->message.into;
  return slice_is_list(into) ? spread_of(op, true)->payload.total
                             : into->length * into->count;
}

/* Checks that a reply has only parts that its operation can take. Messages and
 * one-sided access are answered with a status and the bytes read; nobody would
 * free anything else. A failure or raw bytes come without a slice. A caller
 * that gave a capacity relies on it. Nobody would get the values of a typed reply
 * to a call of a batch. */
bool outcome_fits(const struct operation *op, const struct record *r) {
  bool slice = r->flags & RECORD_SLICE;
  if (op->kind == OP_CALL && r->status != PERIGEE_OK)
    return !slice;
  if (op->kind == OP_CALL)
    return (r->flags & RECORD_TYPED ? op->nth == 0 : !slice) &&
           (!op->message.capacity || r->head_length <= op->message.capacity);
  if (op->kind != OP_READ || r->status != PERIGEE_OK)
    return r->head_length == 0 && !slice;
  return r->head_length == 0 && slice && r->slice_length == outcome_room(op);
}

/* ---- What the program names a place for ------------------------------------ */

/* Begins to bring what was offered. A block that held it is not needed once the
 * bytes are on their way elsewhere. */
static int outcome_bring_offered(struct operation *op,
                                 const struct payload *into, uint8_t **block) {
  const struct record_rest *o = &op->offered;
  int place = o->present ? IN_SLICE : IN_HEAD;
  bool held = !o->bulk && into;
  if (!o->bulk && !into)
    return 1; /* the block has it already */
  int status =
      held ? incoming_bytes(op, place, *block, o->length, into, NULL)
           : incoming_bulk(op, place, &o->source, o->length, op->replier,
                           op->replier_generation, into, block);
  if (*block && (held ? status >= 0 : status < 0)) {
    pool_give(op->engine, *block);
    *block = NULL;
  }
  return status;
}

int outcome_land(struct operation *op, const struct payload *into) {
  const struct record_rest *o = &op->offered;
  if (into && into->total < o->length)
    return fail(op->engine, PERIGEE_TOO_LARGE,
                "%llu bytes of a reply do not fit into a landing of %llu",
                (unsigned long long)o->length, (unsigned long long)into->total);
  int status = outcome_bring_offered(
      op, into, o->present ? &op->slice_block : &op->block);
  if (status < 0)
    return status;
  op->landed = false;
  op->value = 0;
  op->flags &= (uint8_t)~OPERATION_ASKS;
  if (!o->present && !into) {
    op->pointer = op->block;
    op->length = o->length;
    op->slice = 0;
  }
  return PERIGEE_OK;
}

/* ---- What is brought step by step --------------------------------------- */

/* Was the payload still offered when its last bytes were taken? */
static bool outcome_is_offered(struct operation *op, int place) {
  struct part *part = op->parts[place];
  struct lane *lane = op->session->lane;
  return !part || !part->fetching ||
         (lane_payloads(lane)->live(lane, part->fetch.operation,
                                    part->fetch.generation) &&
          part_live(op, place));
}

int outcome_step(struct operation *op) {
  int head = part_step(op, IN_HEAD);
  if (head == 1 && !outcome_is_offered(op, IN_HEAD))
    head = PERIGEE_PEER_LOST; /* what was pulled must not be used */
  if (head == 1 && op->flags & PERIGEE_TYPED)
    head =
        op->status != PERIGEE_OK ? outcome_read_failure(op) : incoming_scan(op);
  int slice = head == 1 ? part_step(op, IN_SLICE) : head;
  int status = head < 0 ? head : slice;
  /* A device may also have found that it is not offered any more. */
  if (status == PERIGEE_CANCELLED ||
      (status >= 0 &&
       !(outcome_is_offered(op, IN_HEAD) && outcome_is_offered(op, IN_SLICE))))
    return PERIGEE_PEER_LOST;
  return status == 1 && op->landed ? OUTCOME_OFFERED : status;
}
