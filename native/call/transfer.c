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
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "core/lane_list.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "core/pool.h"
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

enum { CHILDREN = 16 };

static void step(struct operation *op, enum event event) {
  machine_step(&transfer_machine, &op->state, event);
}

/* ---- Checking ----------------------------------------------------------- */

/* If no CPU reaches the memory, a remote payload's base is an offset. */
static uint8_t *base_of(const struct window *window, uint64_t offset) {
  return (uint8_t *)((uintptr_t)window->pointer + offset);
}

static int remote_payload(struct perigee_session *s, int operation,
                          const struct perigee_slice *slice,
                          struct payload *p) {
  struct perigee_remote *remote = slice->remote;
  int right = operation == PERIGEE_OP_READ ? PERIGEE_READ : PERIGEE_WRITE;
  if (remote->session != s)
    return fail(s->engine, PERIGEE_INVALID,
                "region \"%s\" is of another session", remote->name);
  if (!(remote->window.access & right))
    return fail(s->engine, PERIGEE_DENIED, "the peer does not let us %s \"%s\"",
                right == PERIGEE_READ ? "read" : "write", remote->name);
  if (shape_total(slice->length, slice->count) == UINT64_MAX ||
      !shape_fits(remote->window.length, slice->offset, slice->length,
                  slice->count, slice->stride))
    return fail(s->engine, PERIGEE_RANGE,
                "a slice lies outside of \"%s\" (%llu bytes)", remote->name,
                (unsigned long long)remote->window.length);
  *p = (struct payload){.memory = &memory_host,
                        .base = base_of(&remote->window, slice->offset),
                        .block = slice->length,
                        .count = slice->count,
                        .stride = slice->stride,
                        .total = slice->length * slice->count};
  return PERIGEE_OK;
}

int transfer_check(struct perigee_session *s, int operation,
                   const struct perigee_transfer *item, struct payload *remote,
                   struct payload *local) {
  int status = remote_payload(s, operation, &item->remote, remote);
  if (status == PERIGEE_OK)
    status = slice_payload(s->engine, &item->local, local);
  if (status == PERIGEE_OK && remote->total != local->total)
    status = fail(s->engine, PERIGEE_INVALID,
                  "from and to differ in length: %llu and %llu",
                  (unsigned long long)local->total,
                  (unsigned long long)remote->total);
  return status;
}

bool transfer_immediate(const struct perigee_session *s) {
  const struct transport_copies *c = lane_table(s->lane)->copies;
  return c && c->immediate;
}

/* Can this side, or its device, copy without the peer? */
bool transfer_reaches(struct perigee_session *s,
                      const struct perigee_transfer *item,
                      const struct payload *local) {
  const struct window *window = &item->remote.remote->window;
  const struct perigee_transport *t = lane_table(s->lane);
  if (t->jobs)
    return t->jobs->reaches(s->lane, window, local);
  return window->pointer && local->memory->direct;
}

/* ---- Ending ------------------------------------------------------------- */

static void hold_all(struct operation *op, int by) {
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

static void tell(struct operation *op) {
  op->quiet_wait = false;
  if (op->kind == OP_TRANSFER) {
    parts_end(op);
    hold_all(op, -1);
    transfer_count(op->session, op->operation, op->list,
                   op->status == PERIGEE_OK ? op->count : 0);
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

/* It has ended; its event waits for what still works for it. */
static void settle(struct operation *op) {
  op->engine->copying = true;
  if (!settled(op))
    return;
  operation_unqueue(op);
  tell(op);
}

bool transfer_released(struct operation *op) {
  op->arriving = 0;
  if (op->quiet_wait)
    settle(op);
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

/* ---- Moving ------------------------------------------------------------- */

static bool immediate_out(struct perigee_session *s, uint64_t immediate) {
  return list_empty(&s->operations.backlog[RING_REQUEST]) &&
         publish_imm(s, immediate);
}

/* All data has been written: sends the immediate, if there is one. */
static void data_done(struct operation *op) {
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
      settle(op);
  } else if (status < 0) {
    transfer_stop(op, status);
  } else if (op->pending == 0 && op->next == op->count &&
             op->job.pending == 0) {
    data_done(op);
  }
}

static int stale(struct perigee_session *s,
                 const struct perigee_transfer *item) {
  return fail(s->engine, PERIGEE_STALE, "the peer has closed the region \"%s\"",
              item->remote.remote->name);
}

int64_t transfer_copy(struct perigee_session *s,
                      const struct perigee_transfer *item,
                      struct payload *remote, struct payload *local,
                      uint64_t limit, int operation) {
  int64_t n = lane_table(s->lane)->copies->copy(
      s->lane, &item->remote.remote->window, remote, local, limit,
      operation != PERIGEE_OP_READ);
  return n == PERIGEE_STALE ? stale(s, item) : n;
}

/* Returns 1 if all of the item is posted, 0 not yet, or a status. */
static int post_item(struct operation *op,
                     const struct perigee_transfer *item) {
  struct lane *lane = session_lane(op->session, op->lane);
  const struct window *window = remote_window(item->remote.remote, op->lane);
  int status = lane_table(lane)->jobs->post(lane, &op->job, window, &op->remote,
                                            &op->local,
                                            op->operation != PERIGEE_OP_READ);
  if (status == PERIGEE_STALE)
    stale(op->session, item);
  if (status != 1)
    return status;
  lanes_count(op->session, op->lane, false, op->local.total);
  op->phase = 0;
  return 1;
}

/* The lanes of an operation have one job between them, one after another: false
 * while a device of the lane before works for it. */
static bool take_lane(struct operation *op, uint32_t number) {
  if (op->lane == number)
    return true;
  if (op->job.pending > 0)
    return false;
  op->job = (struct job){0};
  op->lane = (uint8_t)number;
  return true;
}

/* The lane that moves an item, the first if that reaches it. False: none does,
 * its owner has to. */
static bool choose_lane(struct operation *op,
                        const struct perigee_transfer *item, uint32_t *number) {
  *number = 0;
  if (transfer_reaches(op->session, item, &op->local))
    return true;
  *number = lanes_reach(op->session, item->remote.remote, &op->local);
  return *number > 0;
}

/* Ends by itself what a lane that is lost worked for. */
static int lane_lost(const struct operation *op) {
  const char *why;
  int status =
      op->lane > 0 ? lanes_status(op->session, op->lane, &why) : PERIGEE_OK;
  return status < 0 ? fail(op->engine, status, "%s", why) : PERIGEE_OK;
}

/* Local memory that copies on its own time has its copies in a part. */
static bool take_copies(struct operation *op) {
  struct part *part = op->parts[IN_SLICE];
  if (!part && (part = part_take(op->engine)))
    part_put(op, IN_SLICE, part);
  if (!part)
    return false;
  part->copies = (struct copies){0};
  op->local.copies = &part->copies;
  return true;
}

/* Returns 1 if the next item can begin, 0 not now, or a status. The payloads of
 * the item before are used again while its job may be under way: a job keeps
 * nothing of them (transport.h), and the CPU's copies have all arrived. */
static int move_item(struct operation *op) {
  const struct perigee_transfer *item = &op->list[op->next];
  struct perigee_engine *engine = op->engine;
  if (op->phase == 0) {
    int64_t delayed_until = op->local.delayed_until;
    int status = transfer_check(op->session, op->operation, item, &op->remote,
                                &op->local);
    if (status < 0)
      return status;
    op->local.delayed_until = delayed_until; /* a batch is delayed once */
    if (!op->local.memory->direct && !take_copies(op))
      return PERIGEE_NO_MEMORY;
    uint32_t number;
    if (!choose_lane(op, item, &number)) {
      if (op->pending >= CHILDREN)
        return 0;
      op->pending++;
      status =
          call_access(op->session, op->operation != PERIGEE_OP_READ, item, op);
      if (status < 0)
        op->pending--;
      return status < 0 ? status : 1;
    }
    if (!take_lane(op, number))
      return 0;
    if (number > 0)
      op->remote.base = (uint8_t *)(uintptr_t)item->remote.offset;
    op->phase = 1;
  }
  if (lane_table(session_lane(op->session, op->lane))->jobs)
    return post_item(op, item);
  while (op->local.done < op->local.total) {
    if (engine->budget == 0)
      return 0;
    int64_t n = transfer_copy(op->session, item, &op->remote, &op->local,
                              engine->budget, op->operation);
    if (n <= 0)
      return (int)n;
    engine->budget -= (uint64_t)n;
    engine->progress++;
  }
  op->phase = 0;
  return 1;
}

static int move_items(struct operation *op) {
  int status = 1;
  while (op->next < op->count && (status = move_item(op)) == 1)
    op->next++;
  struct lane *lane = session_lane(op->session, op->lane);
  if (lane_table(lane)->jobs)
    lane_table(lane)->jobs->flush(lane);
  return status;
}

void transfer_step(struct operation *op) {
  if (op->quiet_wait) {
    settle(op);
    return;
  }
  int status = op->job.status < 0 ? op->job.status : 1;
  if (op->lane > 0) {
    int lost = lane_lost(op);
    status = lost < 0 ? lost : status;
    op->engine->copying = true; /* it may wake nobody */
  }
  if (status > 0 && op->next < op->count)
    status = move_items(op);
  if (status < 0)
    transfer_stop(op, status);
  else if (op->next < op->count || op->job.pending > 0)
    return;
  else if (op->pending == 0)
    data_done(op);
  else
    operation_unqueue(op); /* its last child will end it */
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
  hold_all(op, 1);
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
  struct payload remote = {.memory = &memory_host}, local = remote;
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

int transfer_check_all(struct perigee_session *s, int operation,
                       const struct perigee_transfer *list, uint32_t count) {
  struct payload remote = {.memory = &memory_host}, local = remote;
  for (uint32_t i = 0; i < count; i++) {
    int status = transfer_check(s, operation, &list[i], &remote, &local);
    if (status < 0)
      return status;
  }
  return PERIGEE_OK;
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
  return transfer_start(s, operation, list, count, immediate, timeout, NULL);
}
