/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.c - many raw calls of one session by one submission, and one event that
 * tells of the end of all.
 *
 * Each is a call as others are (call.c), an operation with its own record,
 * timeout and end, whose parent is the batch. Its end goes to the program's
 * answers. If it ended well it has no event: its operation is free at once, as
 * the program does not know its number. If it has failed, REPLY tells of it
 * under the batch's number, before the batch's event. A batch goes on then: its
 * calls have nothing to do with each other. The batch has the states of
 * operation.c.
 *
 * The hot path of a call is that of perigee_call, without the lists of events
 * that are ready and that were given. A batch costs one operation and one event.
 */
#include "core/lock.h"
#include "own.h"

/* ---- Its end -------------------------------------------------------------- */

/* One of its calls has ended, or all are begun. */
static void batch_child(struct operation *op, int status) {
  (void)status; /* batch_note() has it */
  op->engine->progress++;
  if (--op->batch.left > 0)
    return;
  if (operation_has_ended(op)) {
    if (op->quiet_wait)
      operation_settle(op);
    return;
  }
  if (op->batch.status == PERIGEE_OK)
    op->length = op->batch.bytes;
  operation_finish(op, op->batch.status);
}

/* Stops its calls. One that is stopped frees no other. */
static void batch_recall(struct operation *op) {
  struct node *head = &op->session->operations.all, *next;
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

static void batch_untold(struct operation *op) {
  op->batch.answers = NULL;
}

/* It never moves: only a session that was freed steps it. */
static const struct operation_class batch_class = {
    .name = "batch",
    .kind = OP_BATCH,
    .event = PERIGEE_EVENT_DONE,
    .step = operation_settle,
    .late = operation_late,
    .stop = operation_finish,
    .given = operation_given,
    .child = batch_child,
    .untold = batch_untold,
    .recall = batch_recall,
    .still = batch_still,
};

/* ---- Submitting ----------------------------------------------------------- */

static int batch_check(struct perigee_session *s,
                       const struct perigee_message *messages, uint32_t count) {
  uint32_t most = s->engine->options.operations;
  if (count > most)
    return fail(s->engine, PERIGEE_INVALID,
                "%u calls are more than there are operations (%u; option "
                "operations)",
                (unsigned)count, (unsigned)most);
  for (uint32_t i = 0; i < count; i++)
    if (messages[i].flags & PERIGEE_TYPED || !messages[i].into.region)
      return fail(s->engine, PERIGEE_INVALID,
                  "call %u of a batch is typed, or names no place for its "
                  "reply (into)",
                  (unsigned)i);
  return PERIGEE_OK;
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
    int status = call_of_batch(s, &messages[i], op, i + 1);
    if (LIKELY(status >= 0))
      continue;
    batch_note(op, i + 1, status, 0);
    op->batch.left--;
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
