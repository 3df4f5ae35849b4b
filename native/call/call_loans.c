/* SPDX-License-Identifier: Apache-2.0
 *
 * call_loans.c - calls whose request is filled in place: the program gets a loan
 * (loan.h), fills it, and commits. A short one is a stage, of which commit
 * copies into the ring; a long one is a block that the peer reads.
 */
#include <string.h>

#include "base/stamp.h"
#include "call.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "core/pool.h"
#include "operation/loan.h"

BESIDE call_begin_shared(struct perigee_session *session, uint64_t capacity,
                         struct perigee_loan *loan) {
  WITHIN(session->engine, ENTRY_WORK,
         perigee_call_begin(session, capacity, loan));
}

int perigee_call_begin(struct perigee_session *session, uint64_t capacity,
                       struct perigee_loan *loan) {
  STAMP(STAMP_CALLED);
  if (SHARED(session->engine))
    return call_begin_shared(session, capacity, loan);
  int status;
  if (!session_open_for(session, &status))
    return status;
  return loan_begin(session, RING_REQUEST, capacity, loan);
}

int perigee_call_abort(struct perigee_session *session) {
  ENTER(session->engine);
  if (!engine_alive(session->engine))
    return PERIGEE_OK;
  return loan_abort(session, RING_REQUEST);
}

/* A stage is reused at once, so a request that waits for room is copied. */
static int keep_stage(struct operation *op, const uint8_t *bytes,
                      uint64_t length) {
  op->block = pool_take(op->session, length);
  if (!op->block)
    return call_withdraw(op, PERIGEE_NO_MEMORY);
  op->message.head = memcpy(op->block, bytes, length);
  op->message.length = length;
  op->message.flags = 0;
  op->message.slice.region = NULL;
  backlog_add(op, RING_REQUEST);
  return op->index;
}

/* As submit; the bytes are in a stage, which the operation does not own. */
static int submit_traced(struct operation *op, const uint8_t *bytes,
                         uint64_t length) {
  bool first = list_empty(&op->session->operations.backlog[RING_REQUEST]);
  op->message.head = bytes;
  op->message.length = length;
  op->message.flags = 0;
  op->message.slice.region = NULL;
  int status = first ? call_publish(op) : 0;
  if (status == 0)
    return keep_stage(op, bytes, length);
  return status < 0 ? call_withdraw(op, status) : op->index;
}

static int submit_stage(struct operation *op, const struct loan *loan,
                        uint64_t length) {
  call_enter(op, op->message.timeout);
  if (UNLIKELY(op->message.trace != NULL))
    return submit_traced(op, loan->pointer, length);
  bool first = list_empty(&op->session->operations.backlog[RING_REQUEST]);
  op->message.flags = 0;
  if (!first ||
      call_publish_bytes(op, &op->message, loan->pointer, length) == 0)
    return keep_stage(op, loan->pointer, length);
  return op->index;
}

static int submit_block(struct operation *op, struct loan *loan,
                        uint64_t length) {
  bool pushes = lane_payloads(op->session->lane)->pushes;
  operation_lends(op, &loan->lent);
  op->message.head = pushes ? loan->pointer : NULL;
  op->message.length = pushes ? length : 0;
  op->message.flags = 0;
  op->message.slice.region = NULL;
  op->loan = loan->source;
  op->loan.block = op->loan.stride = length;
  op->lent = true;
  return call_submit(op, op->message.timeout);
}

BESIDE call_commit_shared(struct perigee_session *session,
                          const struct perigee_message *message,
                          uint64_t length) {
  WITHIN(session->engine, ENTRY_WORK,
         perigee_call_commit(session, message, length));
}

int perigee_call_commit(struct perigee_session *session,
                        const struct perigee_message *message,
                        uint64_t length) {
  if (SHARED(session->engine))
    return call_commit_shared(session, message, length);
  struct loan *loan = &session->operations.loans[RING_REQUEST];
  int status;
  if (!engine_alive(session->engine))
    return PERIGEE_FORKED;
  if ((status = loan_check(session, RING_REQUEST, length)) < 0)
    return status;
  if (UNLIKELY(session->drain.theirs) && message->method != 0) {
    loan_abort(session, RING_REQUEST);
    return call_draining(session);
  }
  if (message->capacity > PAYLOAD_MAX) {
    loan_abort(session, RING_REQUEST);
    return call_beyond_all(session);
  }
  if (UNLIKELY(message->trace != NULL) &&
      (status = trace_check(session, message)) < 0) {
    loan_abort(session, RING_REQUEST);
    return status;
  }
  struct operation *op = NULL;
  status = PERIGEE_NO_MEMORY;
  if (!session_open_for(session, &status) ||
      !(op = call_take(session, &call_class, RECORD_REQUEST, message))) {
    loan_abort(session, RING_REQUEST);
    return status;
  }
  session->counters.calls++;
  status = loan->stage ? submit_stage(op, loan, length)
                       : submit_block(op, loan, length);
  loan_close(session, RING_REQUEST);
  return status;
}
