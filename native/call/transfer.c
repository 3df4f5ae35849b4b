/* SPDX-License-Identifier: Apache-2.0
 *
 * transfer.c - one-sided transfers. Their items are moved one after another: by
 * this side where it can reach the region, otherwise by the owner (some reads
 * and writes at a time, call.c). operation.c has the table of their states.
 *
 * Most transfers never enter that table: short ones within reach are copied
 * while they are submitted (PERIGEE_INLINE).
 */
#include "core/lane_list.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "transfer.h"

/* ---- Ending ------------------------------------------------------------- */

static void use_regions(struct operation *op, int by) {
  for (uint32_t i = 0; i < op->count; i++)
    op->list[i].local.region->users += (uint32_t)by;
}

void transfer_count(struct perigee_session *s, int operation,
                    const struct perigee_transfer *list, uint32_t count) {
  uint64_t *bytes = operation == PERIGEE_OP_READ ? &s->counters.bytes_received
                                                 : &s->counters.bytes_sent;
  s->counters.transfers++;
  for (uint32_t i = 0; i < count; i++)
    *bytes += list[i].local.length * list[i].local.count;
}

/* The list is the program's again; an empty one may be NULL. */
static void give_list_back(struct operation *op) {
  if (!op->list && op->count > 0)
    return;
  use_regions(op, -1);
  transfer_count(op->session, op->operation, op->list,
                 op->status == PERIGEE_OK ? op->count : 0);
  op->list = NULL;
}

/* Without an event the list is the program's from now on. Cut lanes have no
 * jobs, and children have the regions that they use: there may be a copy of the
 * item that was begun last. */
static void transfer_untold(struct operation *op) {
  if (op->list && payload_busy(&op->local))
    operation_ref(op, op->list[op->next].local.region);
  give_list_back(op);
}

static void transfer_over(struct operation *op) {
  parts_end(op);
  give_list_back(op);
}

/* Children and a device may work for it. */
static enum still transfer_still(struct operation *op) {
  if (!payload_quiet(&op->local))
    return STILL_STEPS;
  struct lane *lane = session_lane(op->session, op->lane);
  if (op->job.pending > 0 && !lane_table(lane)->jobs->quiesce(lane, &op->job))
    return STILL_STEPS;
  return op->pending > 0 ? STILL_OTHERS : STILL_NOTHING;
}

/* Stops its children. */
static void transfer_recall(struct operation *op) {
  struct node *head = &op->session->operations.all, *next;
  for (struct node *n = head->next; n != head && op->pending > 0; n = next) {
    next = n->next;
    struct operation *child = CONTAINER(n, struct operation, all);
    if ((child->kind == OP_READ || child->kind == OP_WRITE) &&
        child->parent == op)
      call_stop(child, op->status);
  }
}

/* A prepared transfer may be posted again. */
static void transfer_told(struct operation *op) {
  if (op->prepared)
    op->prepared->posted = -1;
}

/* Publishes an immediate in the request ring; false without room. */
static bool transfer_publish_immediate(struct perigee_session *session,
                                       uint64_t immediate) {
  struct outgoing out = {.record = {.kind = RECORD_IMM,
                                    .flags = RECORD_CODE,
                                    .code = immediate,
                                    .remaining = RECORD_NO_LIMIT}};
  payload_bytes(&out.head, NULL, 0);
  return outgoing_publish(session, RING_REQUEST, &out);
}

static bool transfer_publish(struct operation *op) {
  if (!transfer_publish_immediate(op->session, op->immediate))
    return false;
  operation_published(op);
  return true;
}

static bool immediate_out(struct perigee_session *s, uint64_t immediate) {
  return list_empty(&s->operations.backlog[RING_REQUEST]) &&
         transfer_publish_immediate(s, immediate);
}

void transfer_moved(struct operation *op) {
  struct perigee_session *s = op->session;
  if (op->operation != PERIGEE_OP_WRITE_IMM || immediate_out(s, op->immediate))
    operation_finish(op, PERIGEE_OK);
  else
    operation_await_room(op);
}

static void transfer_child(struct operation *op, int status) {
  op->pending--;
  op->engine->progress++;
  if (operation_has_ended(op)) {
    if (op->quiet_wait)
      operation_settle(op);
  } else if (status < 0) {
    operation_finish(op, status);
  } else if (op->pending == 0 && op->next == op->count &&
             op->job.pending == 0) {
    transfer_moved(op);
  }
}

static const struct operation_class transfer_class = {
    .name = "transfer",
    .kind = OP_TRANSFER,
    .event = PERIGEE_EVENT_DONE,
    .step = transfer_step,
    .late = operation_late,
    .stop = operation_finish,
    .given = operation_given,
    .told = transfer_told,
    .publish = transfer_publish,
    .child = transfer_child,
    .untold = transfer_untold,
    .recall = transfer_recall,
    .still = transfer_still,
    .over = transfer_over};

/* ---- Submitting --------------------------------------------------------- */

static int later(struct perigee_session *s, int operation,
                 const struct perigee_transfer *list, uint32_t count,
                 uint64_t immediate, int64_t timeout,
                 struct perigee_prepared *prepared, uint32_t first) {
  struct operation *op = operation_take(s, &transfer_class);
  if (!op)
    return PERIGEE_NO_MEMORY;
  op->list = list;
  op->count = count;
  op->next = first;
  op->pending = 0;
  op->operation = (uint8_t)operation;
  op->phase = op->lane = 0;
  op->local.delayed_until = 0;
  op->local.copies = NULL;
  op->immediate = immediate;
  op->prepared = prepared;
  op->job = (struct job){0};
  use_regions(op, 1);
  operation_start(op, timeout);
  operation_move(op);
  if (lane_table(s->lane)->jobs || s->lanes) /* starts the device at once */
    transfer_step(op);
  return op->index;
}

/* Copies short items within reach now and returns their number. A mistake in
 * the first item is returned at once, for the caller to correct. */
static int64_t at_once(struct perigee_session *s, int operation,
                       const struct perigee_transfer *list, uint32_t count) {
  struct payload remote, local; /* transfer_check fills them in */
  uint64_t room = AT_ONCE;
  uint32_t i;
  for (i = 0; i < count; i++) {
    int status = transfer_check(s, operation, &list[i], &remote, &local);
    if (status < 0)
      return status;
    if (local.total > room || !transfer_immediate(s) ||
        !transfer_reaches(s, &list[i], &local))
      break;
    if (local.total > 0) {
      int64_t n = transfer_copy(s, &list[i], &remote, &local, room, operation);
      if (n < 0)
        return n;
    }
    room -= local.total;
  }
  return i;
}

int transfer_start(struct perigee_session *s, int operation,
                   const struct perigee_transfer *list, uint32_t count,
                   uint64_t immediate, int64_t timeout,
                   struct perigee_prepared *prepared) {
  /* A batch is checked completely before any item moves. */
  int status =
      count > 1 ? transfer_check_all(s, operation, list, count) : PERIGEE_OK;
  if (status < 0)
    return status;
  int64_t done = at_once(s, operation, list, count);
  if (done < 0)
    return (int)done;
  bool imm = operation == PERIGEE_OP_WRITE_IMM;
  if (done == count && (!imm || immediate_out(s, immediate))) {
    transfer_count(s, operation, list, count);
    return PERIGEE_INLINE;
  }
  return later(s, operation, list, count, immediate, timeout, prepared,
               (uint32_t)done);
}

BESIDE transfer_shared(struct perigee_session *s, int operation,
                       const struct perigee_transfer *list, uint32_t count,
                       uint64_t immediate, int64_t timeout) {
  WITHIN(s->engine, ENTRY_WORK,
         perigee_transfer(s, operation, list, count, immediate, timeout));
}

int perigee_transfer(struct perigee_session *s, int operation,
                     const struct perigee_transfer *list, uint32_t count,
                     uint64_t immediate, int64_t timeout) {
  if (SHARED(s->engine))
    return transfer_shared(s, operation, list, count, immediate, timeout);
  int status;
  if (!session_open_for(s, &status))
    return status;
  if (operation < PERIGEE_OP_READ || operation > PERIGEE_OP_WRITE_IMM)
    return fail(s->engine, PERIGEE_INVALID, "no operation %d", operation);
  if (UNLIKELY(!list && count > 0))
    return fail_missing(s->engine, "list of transfers");
  return transfer_start(s, operation, list, count, immediate, timeout, NULL);
}
