/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.c - many raw calls of one session by one submission, and one event for
 * all of them.
 *
 * Each is a call as others are (call.c), an operation with its own record,
 * timeout and end, whose parent is the batch. It has no event: its end goes to
 * the program's answers, and its operation is free at once, as the program does
 * not know its number. A batch that fails goes on: its calls have nothing to do
 * with each other. It has the states of operation.c.
 *
 * The hot path of a call is that of perigee_call, without the two lists of
 * events and what tells of an end. A batch costs one operation and one event.
 */
#include <string.h>

#include "core/lock.h"
#include "core/pool.h"
#include "own.h"

/* ---- The ends of its calls ----------------------------------------------- */

/* Keeps a failure's text until the batch's event, with `more` bytes that lie behind a
 * zero after it. Without memory for it there is none. */
static void batch_keep_text(struct operation *op, const void *text,
                            uint64_t length, uint64_t more) {
  uint64_t all = more > 0 ? length + 1 + more : length;
  op->block = all > 0 ? pool_take(op->session, all) : NULL;
  if (!op->block)
    return;
  op->pointer = memcpy(op->block, text, all);
  op->length = length;
  op->slice = more;
}

/* Notes how a call has ended. Returns whether it is the first that has failed. */
static bool batch_note(struct operation *op, uint32_t nth, int status,
                       uint64_t bytes) {
  struct call_batch *b = &op->batch;
  if (b->answers)
    b->answers[nth] = (struct perigee_answer){status, bytes};
  b->bytes += bytes;
  if (LIKELY(status == PERIGEE_OK) || b->status != PERIGEE_OK)
    return false;
  b->status = status;
  op->value = nth;
  return true;
}

/* Typed values have no place in a batch. */
static int batch_status_of(const struct operation *call) {
  bool odd = call->status == PERIGEE_OK && call->flags & PERIGEE_TYPED;
  return UNLIKELY(odd) ? PERIGEE_PROTOCOL : call->status;
}

static void batch_heard(struct operation *call) {
  struct operation *op = call->parent;
  int status = batch_status_of(call);
  bool first =
      batch_note(op, call->nth, status, status == PERIGEE_OK ? call->slice : 0);
  if (first && status == call->status) {
    op->code = call->code;
    batch_keep_text(op, call->pointer, call->length, call->slice);
  }
}

static void batch_finish(struct operation *op) {
  if (op->batch.status == PERIGEE_OK)
    op->length = op->batch.bytes;
  operation_finish(op, op->batch.status);
}

/* One of its calls has ended, or all are begun. */
static void batch_child(struct operation *op, int status) {
  (void)status;
  op->engine->progress++;
  if (--op->batch.left > 0)
    return;
  if (!operation_has_ended(op))
    batch_finish(op);
  else if (op->quiet_wait)
    operation_settle(op);
}

/* ---- Its own end ---------------------------------------------------------- */

/* Stops its calls. One that is stopped frees no other. The event tells why the batch
 * was stopped, not what failed before. */
static void batch_recall(struct operation *op) {
  struct node *head = &op->session->operations.all, *next;
  if (op->batch.left == 0)
    return;
  op->batch.status = op->status;
  op->pointer = NULL;
  op->length = op->slice = op->code = op->value = 0;
  for (struct node *n = head->next; n != head && op->batch.left > 0; n = next) {
    next = n->next;
    struct operation *call = CONTAINER(n, struct operation, all);
    if (call->kind == OP_CALL && call->parent == op)
      call_stop(call, op->status);
  }
}

/* Memory of a call may still be copied. */
static enum still batch_still(struct operation *op) {
  return op->batch.left > 0 ? STILL_OTHERS : STILL_NOTHING;
}

/* Of a session that was freed: does it wait for its calls still? */
static void batch_step(struct operation *op) {
  if (op->quiet_wait)
    operation_settle(op);
}

static void batch_untold(struct operation *op) {
  op->batch.answers = NULL;
}

static const struct operation_class batch_class = {
    .name = "batch",
    .kind = OP_BATCH,
    .event = PERIGEE_EVENT_DONE,
    .step = batch_step,
    .late = operation_late,
    .stop = operation_finish,
    .given = operation_given,
    .child = batch_child,
    .heard = batch_heard,
    .untold = batch_untold,
    .recall = batch_recall,
    .still = batch_still,
};

/* ---- Submitting ----------------------------------------------------------- */

static int batch_check(struct perigee_session *s,
                       const struct perigee_message *messages, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    if (messages[i].flags & PERIGEE_TYPED || !messages[i].into.region)
      return fail(s->engine, PERIGEE_INVALID,
                  "call %u of a batch is typed, or names no place for its "
                  "reply (into)",
                  (unsigned)i);
  return PERIGEE_OK;
}

/* It was never sent, and so is not heard of. */
static void batch_refused(struct operation *op, uint32_t nth, int status) {
  const char *why = fail_detail(op->engine);
  if (batch_note(op, nth, status, 0))
    batch_keep_text(op, why, strlen(why), 0);
  batch_child(op, status);
}

static int batch_submit(struct perigee_session *s,
                        const struct perigee_message *messages, uint32_t count,
                        struct perigee_answer *answers) {
  struct operation *op = operation_take(s, &batch_class);
  if (!op)
    return PERIGEE_NO_MEMORY;
  op->batch = (struct call_batch){.answers = answers, .left = count + 1};
  operation_start(op, -1);
  for (uint32_t i = 0; i < count; i++) {
    int status = call_of_batch(s, &messages[i], op, i);
    if (UNLIKELY(status < 0))
      batch_refused(op, i, status);
  }
  batch_child(op, PERIGEE_OK);
  return op->index;
}

int perigee_call_batch(struct perigee_session *session,
                       const struct perigee_message *messages, uint32_t count,
                       struct perigee_answer *answers) {
  ENTER(session->engine);
  int status;
  if (!session_open_for(session, &status))
    return status;
  if (UNLIKELY(count > 0 && (!messages || !answers)))
    return fail_missing(session->engine, "list of calls or of answers");
  status = batch_check(session, messages, count);
  return status < 0 ? status : batch_submit(session, messages, count, answers);
}
