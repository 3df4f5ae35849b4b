/* SPDX-License-Identifier: Apache-2.0
 *
 * call_publish.c - writes the records of own operations into the peer's ring: at
 * once, or from the backlog when the ring has room again.
 */
#include "call.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "core/pool.h"

static uint32_t remaining(const struct operation *op) {
  if (op->timeout < 0)
    return RECORD_NO_LIMIT;
  int64_t left = op->timeout;
  if (!op->fresh.next)
    left = op->timer.due - op->engine->now;
  if (left < 0)
    left = 0;
  left /= 1000;
  return left >= RECORD_NO_LIMIT ? RECORD_NO_LIMIT : (uint32_t)left;
}

static void lent_head(struct operation *op, struct outgoing *out) {
  struct record *r = &out->record;
  r->flags |= RECORD_HEAD_BULK;
  r->head_source = op->loan;
  r->head_length = op->loan.block;
}

/* Returns 1 if it was published, 0 without room in the ring or without a block,
 * or a status. */
static int publish_planned(struct operation *op) {
  struct outgoing out;
  out.record = (struct record){.kind = op->record,
                               .method = op->message.method,
                               .operation = op->index,
                               .generation = op->generation,
                               .remaining = remaining(op)};
  struct record *r = &out.record;
  int status = outgoing_plan(op, &op->message, &out);
  if (status < 0)
    return status == PERIGEE_AGAIN ? 0 : status;
  if (op->lent && !lane_payloads(op->session->lane)->pushes)
    lent_head(op, &out);
  if (op->message.capacity) {
    r->flags |= RECORD_CAPACITY;
    r->capacity = op->message.capacity;
  }
  bool sent = UNLIKELY(op->message.trace != NULL)
                  ? outgoing_traced(op->session, &out, op->message.trace)
                  : outgoing_publish(op->session, RING_REQUEST, &out);
  if (!sent)
    return 0;
  if (op->record == RECORD_REQUEST)
    op->ordinal = ++op->session->drain.sent;
  step(op, PUBLISH);
  /* From now on each poll feeds staged payloads. */
  if (op->parts[OUT_HEAD] || op->parts[OUT_SLICE]) {
    parts_feed(op);
    operation_move(op);
  }
  return 1;
}

/* Returns 1 if it was published, 0 without room in the ring. */
int call_publish_bytes(struct operation *op, const struct perigee_message *m,
                       const uint8_t *bytes, uint64_t length) {
  struct record r = {.kind = RECORD_REQUEST,
                     .flags = (m->flags & PERIGEE_TYPED ? RECORD_TYPED : 0) |
                              (m->code ? RECORD_CODE : 0) |
                              (m->capacity ? RECORD_CAPACITY : 0),
                     .method = m->method,
                     .operation = op->index,
                     .generation = op->generation,
                     .code = m->code,
                     .capacity = m->capacity,
                     .remaining = remaining(op),
                     .head_length = length};
  if (!outgoing_bytes(op->session, RING_REQUEST, &r, bytes))
    return 0;
  op->ordinal = ++op->session->drain.sent;
  step(op, PUBLISH);
  return 1;
}

/* Returns 1 if it was published, 0 without room in the ring or without a block,
 * or a status. */
int call_publish(struct operation *op) {
  const uint8_t *bytes = NULL;
  uint64_t length;
  if (op->record == RECORD_REQUEST && !op->lent && !op->message.trace)
    bytes = outgoing_short(op, &op->message, &length);
  return bytes ? call_publish_bytes(op, &op->message, bytes, length)
               : publish_planned(op);
}

bool call_publish_now(struct operation *op, const struct perigee_message *m) {
  uint64_t length;
  struct node *backlog = &op->session->operations.backlog[RING_REQUEST];
  if (UNLIKELY(m->trace != NULL) || !list_empty(backlog))
    return false;
  const uint8_t *bytes = outgoing_short(op, m, &length);
  return bytes && call_publish_bytes(op, m, bytes, length) == 1;
}

/* It waited for room. */
bool call_publish_waiting(struct operation *op) {
  int status = call_publish(op);
  if (status == 0)
    return false;
  pool_give(op->engine, op->block); /* the copy of a stage, while it waited */
  op->block = NULL;
  if (status < 0)
    call_stop(op, status);
  return true;
}
