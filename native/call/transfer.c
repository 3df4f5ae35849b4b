/* SPDX-License-Identifier: Apache-2.0
 *
 * transfer.c - one-sided transfers and all own operations without a reply
 * record: receives, look-ups, connects.
 *
 *   state    event     becomes
 *   free     submit    moving    items are copied one after another: by this
 *                                side where it can reach the region, otherwise
 *                                by the owner (some reads and writes at a time,
 *                                call.c)
 *   moving   done      ended
 *   moving   queue     queued    the data is there, the immediate has no room
 *   queued   publish   ended
 *   moving   stop      ended     timeout, cancel, session lost, an item failed
 *   queued   stop      ended
 *   ended    given     free
 *
 * Most transfers never enter this table: short ones within reach are copied
 * while they are submitted (PERIGEE_INLINE).
 */
#include "core/lane_list.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "transfer.h"

enum state { FREE, MOVING, QUEUED, ENDED };
enum event { SUBMIT, DONE, QUEUE, PUBLISH, STOP, GIVEN };

const struct machine transfer_machine = {
    .name = "transfer",
    .taken = MACHINE_STEPS,
    .states = {"free", "moving", "queued", "ended"},
    .events = {"submit", "done", "queue", "publish", "stop", "given"},
    .next = {
        [FREE] = {[SUBMIT] = TO(MOVING)},
        [MOVING] =
            {[DONE] = TO(ENDED), [QUEUE] = TO(QUEUED), [STOP] = TO(ENDED)},
        [QUEUED] = {[PUBLISH] = TO(ENDED), [STOP] = TO(ENDED)},
        [ENDED] = {[GIVEN] = TO(FREE)},
    }};

static void step(struct operation *op, enum event event) {
  machine_step(&transfer_machine, &op->state, event);
}

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
void transfer_untold(struct operation *op) {
  if (op->list && payload_busy(&op->local))
    operation_ref(op, op->list[op->next].local.region);
  give_list_back(op);
}

static void tell(struct operation *op) {
  op->quiet_wait = false;
  if (op->kind == OP_TRANSFER) {
    parts_end(op);
    give_list_back(op);
  }
  operation_unref(op);
  op->session->counters.failures += op->status != PERIGEE_OK;
  operation_event(op, op->class->event);
}

/* A receive that ends while its message is landing ends the landing. */
static void part_from_message(struct operation *op) {
  if (op->kind == OP_RECV && op->arriving > 0)
    serve_abort(operation_find(op->engine, (int)op->arriving - 1));
}

/* True once neither its children nor a device work for it, nor is a message on
 * its way to its memory. */
static bool settled(struct operation *op) {
  if (op->kind == OP_RECV)
    return op->arriving == 0;
  if (op->kind != OP_TRANSFER)
    return true;
  if (!payload_quiet(&op->local))
    return false;
  struct lane *lane = session_lane(op->session, op->lane);
  bool quiet =
      op->job.pending == 0 || lane_table(lane)->jobs->quiesce(lane, &op->job);
  return quiet && op->pending == 0;
}

static void end(struct operation *op, int status) {
  operation_unqueue(op);
  op->status = status;
  part_from_message(op);
  op->quiet_wait = !settled(op);
  if (!op->quiet_wait)
    tell(op);
  else if (op->kind == OP_TRANSFER &&
           (op->job.pending > 0 || payload_busy(&op->local)))
    operation_move(op); /* children and messages end it by themselves */
}

void transfer_settle(struct operation *op) {
  op->engine->copying = true;
  if (!settled(op))
    return;
  operation_unqueue(op);
  tell(op);
}

bool transfer_released(struct operation *op) {
  op->arriving = 0;
  if (op->quiet_wait)
    transfer_settle(op);
  return op->state == ENDED;
}

static void stop_children(struct operation *op, int status) {
  struct node *head = &op->session->operations.all, *next;
  for (struct node *n = head->next; n != head && op->pending > 0; n = next) {
    next = n->next;
    struct operation *child = CONTAINER(n, struct operation, all);
    if ((child->kind == OP_READ || child->kind == OP_WRITE) &&
        child->parent == op)
      call_stop(child, status);
  }
}

/* status PERIGEE_OK: it has succeeded. */
void transfer_stop(struct operation *op, int status) {
  if (op->state == ENDED)
    return;
  step(op, status == PERIGEE_OK ? DONE : STOP);
  if (op->kind == OP_TRANSFER && op->pending > 0) {
    op->status = status;
    stop_children(op, status);
  }
  end(op, status);
}

/* A prepared transfer may be posted again. */
static void told(struct operation *op) {
  if (op->prepared)
    op->prepared->posted = -1;
}

void transfer_given(struct operation *op) {
  step(op, GIVEN);
  operation_free(op);
}

void transfer_published(struct operation *op) {
  step(op, PUBLISH);
  end(op, PERIGEE_OK);
}

static bool immediate_out(struct perigee_session *s, uint64_t immediate) {
  return list_empty(&s->operations.backlog[RING_REQUEST]) &&
         publish_imm(s, immediate);
}

void transfer_moved(struct operation *op) {
  struct perigee_session *s = op->session;
  if (op->operation != PERIGEE_OP_WRITE_IMM ||
      immediate_out(s, op->immediate)) {
    transfer_stop(op, PERIGEE_OK);
    return;
  }
  step(op, QUEUE);
  operation_unqueue(op);
  backlog_add(op, RING_REQUEST);
}

void transfer_child(struct operation *op, int status) {
  op->pending--;
  op->engine->progress++;
  if (op->state == ENDED) {
    if (op->quiet_wait)
      transfer_settle(op);
  } else if (status < 0) {
    transfer_stop(op, status);
  } else if (op->pending == 0 && op->next == op->count &&
             op->job.pending == 0) {
    transfer_moved(op);
  }
}

void transfer_submit(struct operation *op, int64_t timeout) {
  step(op, SUBMIT);
  operation_time(op, timeout);
}

static const struct operation_class transfer_class = {.name = "transfer",
                                                      .kind = OP_TRANSFER,
                                                      .event =
                                                          PERIGEE_EVENT_DONE,
                                                      .step = transfer_step,
                                                      .late = operation_late,
                                                      .stop = transfer_stop,
                                                      .told = told,
                                                      .given = transfer_given};

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
  transfer_submit(op, timeout);
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
