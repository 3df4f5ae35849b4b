/* SPDX-License-Identifier: Apache-2.0
 *
 * transfer.c - the operation of a one-sided transfer. Its items are moved one
 * after another: by this side where it can reach the region, otherwise by the
 * owner (some reads and writes at a time, call.c). operation.c has the table of
 * the states; transfer_submit.c begins these operations.
 */
#include "calls.h"
#include "core/lock.h"
#include "core/pool.h"
#include "transfers.h"

/* The most reads and writes of one transfer that its peer does at a time. */
enum { CHILDREN = 16 };

/* ---- What reaches an item ----------------------------------------------- */

int transfer_refused(struct perigee_session *s,
                     const struct perigee_transfer *item, int status) {
  if (status == PERIGEE_STALE)
    return fail(s->engine, status, "the peer has closed the region \"%s\"",
                item->remote.remote->name);
  if (status == PERIGEE_PEER_LOST)
    return fail(s->engine, status, "the session with the peer is over");
  return status;
}

/* Only the first lane knows whether what it has mapped is granted still: by a
 * copy of no bytes. */
static int window_is_granted(struct perigee_session *s,
                             const struct window *window) {
  struct payload none = {.memory = &memory_host};
  if (!window->pointer)
    return PERIGEE_OK;
  return (int)lane_table(s->lane)->copies->copy(s->lane, window, &none, &none,
                                                0, true);
}

/* ---- Ending ------------------------------------------------------------- */

static void transfer_use_regions(const struct operation *op) {
  for (uint32_t i = 0; i < op->count; i++) {
    op->list[i].local.region->users++;
    remote_use(op->list[i].remote.remote);
  }
}

static void transfer_unuse_regions(const struct operation *op) {
  for (uint32_t i = 0; i < op->count; i++) {
    op->list[i].local.region->users--;
    remote_drop(op->list[i].remote.remote);
  }
}

/* The list is the program's again; an empty one may be NULL. The event tells the
 * bytes. */
static void transfer_give_list_back(struct operation *op) {
  if (!op->list && op->count > 0)
    return;
  transfer_unuse_regions(op);
  op->length = transfer_count(op->session, op->operation, op->list,
                              op->status == PERIGEE_OK ? op->count : 0);
  op->list = NULL;
}

/* Without an event the list is the program's from now on. Cut lanes have no
 * jobs, and children have the regions that they use: there may be a copy of the
 * item that was begun last. */
static void transfer_untold(struct operation *op) {
  if (op->list && payload_busy(&op->local))
    operation_ref(op, op->list[op->next].local.region);
  transfer_give_list_back(op);
}

static void transfer_over(struct operation *op) {
  parts_end(op);
  transfer_give_list_back(op);
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

bool transfer_immediate_out(struct perigee_session *s, uint64_t immediate) {
  return list_empty(&s->operations.backlog[RING_REQUEST]) &&
         transfer_publish_immediate(s, immediate);
}

/* Are all regions granted still that a device has read where they are mapped?
 * Their owner does not wait for devices, and may have had other bytes there
 * since. It withdraws the region before that, so a region that is granted after
 * the copies had the right bytes in them. 0, or a status. */
static int transfer_was_granted(struct operation *op) {
  int status = PERIGEE_OK;
  if (!op->reads_mapped)
    return status;
  for (uint32_t i = 0; i < op->count && status == PERIGEE_OK; i++) {
    const struct perigee_transfer *item = &op->list[i];
    if (item->local.region->memory->direct)
      continue;
    status = window_is_granted(op->session, &item->remote.remote->window);
    status = transfer_refused(op->session, item, status);
  }
  return status;
}

/* All data has been moved: sends the immediate, if there is one, and ends. A
 * device may have refused the last of it when it was started. */
static void transfer_moved(struct operation *op) {
  struct perigee_session *s = op->session;
  int granted = transfer_was_granted(op);
  if (granted < 0)
    operation_finish(op, granted);
  else if (op->job.status < 0)
    operation_finish(op, op->job.status);
  else if (op->operation != PERIGEE_OP_WRITE_IMM ||
           transfer_immediate_out(s, op->immediate))
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

/* ---- Moving items ------------------------------------------------------- */

static const struct window *
transfer_window(const struct operation *op,
                const struct perigee_transfer *item) {
  return op->lane > 0 ? lanes_window(item->remote.remote, op->lane)
                      : &item->remote.remote->window;
}

/* Returns 1 if all of the item is posted, 0 not yet, or a status. */
static int transfer_post_item(struct operation *op,
                              const struct perigee_transfer *item) {
  struct lane *lane = session_lane(op->session, op->lane);
  const struct window *window = transfer_window(op, item);
  int status =
      op->lane > 0 ? window_is_granted(op->session, window) : PERIGEE_OK;
  if (status == PERIGEE_OK)
    status = lane_table(lane)->jobs->post(lane, &op->job, window, &op->remote,
                                          &op->local,
                                          op->operation != PERIGEE_OP_READ);
  if (status < 0)
    return transfer_refused(op->session, item, status);
  if (status == 0)
    return 0;
  lanes_count(op->session, op->lane, false, op->remote.total);
  op->phase = 0;
  return 1;
}

/* The lanes of an operation have one job between them, one after another: false
 * while a device of the lane before works for it. */
static bool transfer_take_lane(struct operation *op, uint32_t number) {
  if (op->lane == number)
    return true;
  if (op->job.pending > 0)
    return false;
  op->job = (struct job){.apart = op->job.apart};
  op->lane = (uint8_t)number;
  return true;
}

/* May the lane read what is mapped, where it is? Only the first lane knows: 1, 0
 * or PERIGEE_AGAIN. *pins: what is read may be pinned, with pages around it. A
 * write makes pages anyway. */
static int transfer_there(struct operation *op,
                          const struct perigee_transfer *item, uint32_t number,
                          bool *pins) {
  struct lane *first = op->session->lane;
  const struct window *window = lanes_window(item->remote.remote, number);
  *pins = true;
  if (op->operation != PERIGEE_OP_READ || !window->pointer)
    return 1;
  return lane_table(first)->copies->there
             ? lane_table(first)->copies->there(first, window, &op->remote,
                                                pins)
             : 0;
}

/* Chooses the lane that moves an item: the first one, if it reaches the item.
 * 1; 0: none does, and the item's owner has to move it; or PERIGEE_AGAIN: that
 * is not known yet. */
static int transfer_choose_lane(struct operation *op,
                                const struct perigee_transfer *item,
                                uint32_t *number, bool *pins) {
  *number = 0;
  if (transfer_reaches(op->session, item, &op->local))
    return 1;
  *number = lanes_reach(op->session, item->remote.remote, &op->local);
  return *number > 0 ? transfer_there(op, item, *number, pins) : 0;
}

/* Returns the status of the lane that works for it, if that lane is lost. */
static int transfer_lane_lost(const struct operation *op) {
  const char *why;
  int status =
      op->lane > 0 ? lanes_status(op->session, op->lane, &why) : PERIGEE_OK;
  return status < 0 ? fail(op->engine, status, "%s", why) : PERIGEE_OK;
}

/* Local memory that copies on its own time has its copies in a part. */
static bool transfer_take_copies(struct operation *op) {
  struct part *part = op->parts[IN_SLICE];
  if (!part && (part = part_take(op->engine)))
    part_put(op, IN_SLICE, part);
  if (!part)
    return false;
  part->copies = (struct copies){.asked = op->local.done};
  op->local.copies = &part->copies;
  return true;
}

/* Makes the spread of the local bytes of a move, if no slice names them. */
static __attribute__((noinline)) int transfer_cut(const struct operation *op,
                                                  struct spread **out) {
  const struct place_move *m = &op->prepared->moves->move[op->next];
  return m->plain ? PERIGEE_OK
                  : spread_cut(op->engine, m->local, m->begin, m->end,
                               op->operation == PERIGEE_OP_READ, out);
}

/* Has the owner do an item: returns 1, 0 not yet, or a status. */
static int transfer_leave_to_owner(struct operation *op,
                                   const struct perigee_transfer *item) {
  struct spread *cut = NULL;
  int status;
  if (op->pending >= CHILDREN)
    return 0;
  if (UNLIKELY(op->class == &transfer_listed) &&
      (status = transfer_cut(op, &cut)) < 0)
    return status;
  op->pending++;
  status =
      call_access(op->session, op->operation != PERIGEE_OP_READ, item, cut, op);
  if (status < 0)
    op->pending--;
  return status < 0 ? status : 1;
}

static __attribute__((noinline)) int
transfer_payloads_of_many(struct operation *op,
                          const struct perigee_transfer *item) {
  if (op->class == &transfer_listed)
    return move_payloads(op->session, op->operation, op->prepared->moves,
                         op->next, &op->remote, &op->local);
  int status =
      item_check(op->session, op->operation, item, &op->remote, &op->local);
  op->remote.vast = op->local.vast = true;
  return status;
}

static inline int transfer_payloads(struct operation *op,
                                    const struct perigee_transfer *item) {
  if (UNLIKELY(op->class != &transfer_class))
    return transfer_payloads_of_many(op, item);
  return item_check(op->session, op->operation, item, &op->remote, &op->local);
}

/* The CPU copies moves to one region as one. */
static __attribute__((noinline)) void transfer_widen(struct operation *op) {
  const struct moves *m = op->prepared->moves;
  if (lane_table(session_lane(op->session, op->lane))->jobs)
    return;
  move_widen(m, op->next, &op->remote, &op->local);
  op->next = m->move[op->next].last;
}

/* A device may pin what is mapped, if so told. */
static void transfer_place(struct operation *op,
                           const struct perigee_transfer *item, bool pins) {
  struct perigee_remote *remote = item->remote.remote;
  op->remote.base = (uint8_t *)(uintptr_t)item->remote.offset;
  if (!lanes_window(remote, op->lane)->pointer)
    return;
  op->reads_mapped |= op->operation == PERIGEE_OP_READ;
  remote->area.memory = &memory_host;
  remote->area.base = remote->window.pointer;
  remote->area.length = remote->window.length;
  remote->area.pins = pins;
  remote->area.read_only = !(remote->window.access & PERIGEE_WRITE);
  op->remote.area = &remote->area;
}

/* Returns 1 if the item's owner does it, 0 if it has to wait or has begun
 * (phase 1), or a status. The payloads of the item before are used again while
 * its job may be under way: a job keeps nothing of them (transport.h), and the
 * CPU's copies have all arrived. */
static int transfer_begin_item(struct operation *op,
                               const struct perigee_transfer *item) {
  int64_t delayed_until = op->local.delayed_until;
  int status = transfer_payloads(op, item);
  if (status < 0)
    return status;
  op->local.delayed_until = delayed_until; /* a batch is delayed once */
  if (!op->local.memory->direct && !transfer_take_copies(op))
    return PERIGEE_NO_MEMORY;
  uint32_t number;
  bool pins;
  status = transfer_choose_lane(op, item, &number, &pins);
  if (status == 0)
    return transfer_leave_to_owner(op, item);
  if (status == PERIGEE_AGAIN) {
    op->engine->progress++;
    return 0;
  }
  if (!transfer_take_lane(op, number))
    return 0;
  if (number > 0)
    transfer_place(op, item, pins);
  else if (UNLIKELY(op->class == &transfer_listed))
    transfer_widen(op);
  op->phase = 1;
  return 0;
}

/* Returns 1 if the next item can begin, 0 not now, or a status. */
static int transfer_move_item(struct operation *op) {
  const struct perigee_transfer *item = &op->list[op->next];
  struct perigee_engine *engine = op->engine;
  int status = op->phase == 0 ? transfer_begin_item(op, item) : 0;
  if (status != 0 || op->phase == 0)
    return status;
  if (lane_table(session_lane(op->session, op->lane))->jobs)
    return transfer_post_item(op, item);
  while (op->local.done < op->local.total) {
    if (engine->budget.left == 0)
      return 0;
    int64_t n = transfer_copy(op->session, item, &op->remote, &op->local,
                              budget_most(&engine->budget), op->operation);
    if (n <= 0)
      return (int)n;
    engine_spend(engine, (uint64_t)n);
    engine->progress++;
  }
  op->phase = 0;
  return 1;
}

static int transfer_move_items(struct operation *op) {
  int status = 1;
  while (op->next < op->count && (status = transfer_move_item(op)) == 1)
    op->next++;
  struct lane *lane = session_lane(op->session, op->lane);
  if (lane_table(lane)->jobs)
    lane_table(lane)->jobs->flush(lane);
  return status;
}

static void transfer_look(struct operation *op) {
  struct lane *lane = session_lane(op->session, op->lane);
  const struct transport_jobs *jobs = lane_table(lane)->jobs;
  if (op->job.pending > 0 && jobs->look)
    jobs->look(lane);
}

static void transfer_step(struct operation *op) {
  if (op->quiet_wait) {
    operation_settle(op);
    return;
  }
  int status = op->job.status < 0 ? op->job.status : 1;
  if (op->lane > 0) {
    int lost = transfer_lane_lost(op);
    status = lost < 0 ? lost : status;
    transfer_look(op);
    status = op->job.status < 0 ? op->job.status : status;
    op->engine->poll_soon |= lanes_soon(op->session, op->lane);
  }
  if (status > 0 && op->next < op->count)
    status = transfer_move_items(op);
  if (status < 0)
    operation_finish(op, status);
  else if (op->next < op->count || op->job.pending > 0)
    return;
  else if (op->pending == 0)
    transfer_moved(op);
  else
    operation_unqueue(op); /* its last child will end it */
}

/* The classes differ in their names and in how they end. */
#define TRANSFER_CLASS(title, on_untold, on_over)                              \
  {                                                                            \
    .name = (title), .kind = OP_TRANSFER, .event = PERIGEE_EVENT_DONE,         \
    .step = transfer_step, .late = operation_late, .stop = operation_finish,   \
    .given = operation_given, .told = transfer_told,                           \
    .publish = transfer_publish, .child = transfer_child,                      \
    .untold = (on_untold), .recall = transfer_recall, .still = transfer_still, \
    .over = (on_over)                                                          \
  }

const struct operation_class transfer_class =
    TRANSFER_CLASS("transfer", transfer_untold, transfer_over);

const struct operation_class transfer_vast =
    TRANSFER_CLASS("long transfer", transfer_untold, transfer_over);

/* ---- With lists ---------------------------------------------------------- */

void transfer_free_listed(struct perigee_prepared *p) {
  moves_free(p->moves);
  spares_give(p);
}

/* The post is over: what it used may be used by another. */
static void listed_unuse(struct operation *op) {
  struct perigee_prepared *p = op->prepared;
  if (!p)
    return;
  moves_unuse(p->moves);
  if (!p->once)
    return;
  op->prepared = NULL;
  transfer_free_listed(p);
}

static void listed_over(struct operation *op) {
  transfer_over(op);
  listed_unuse(op);
}

/* A copy that is under way goes on with the memory of the moves. */
static void listed_untold(struct operation *op) {
  bool copies = op->list && payload_busy(&op->local);
  if (!op->prepared)
    return;
  transfer_untold(op);
  if (copies)
    moves_leave(op->prepared->moves, op);
  listed_unuse(op);
  op->prepared = NULL;
}

const struct operation_class transfer_listed =
    TRANSFER_CLASS("transfer of lists", listed_untold, listed_over);

/* ---- Beginning ---------------------------------------------------------- */

/* The optimizer of the whole library puts it into both of its callers, which
 * saves 23 instructions of a write. */
extern inline __attribute__((always_inline)) int
transfer_queue(struct perigee_session *s, const struct operation_class *class,
               int operation, const struct perigee_transfer *list,
               uint32_t count, uint64_t immediate, int64_t timeout,
               struct perigee_prepared *prepared, uint32_t first) {
  struct operation *op = operation_take(s, class);
  if (!op)
    return PERIGEE_NO_MEMORY;
  op->list = list;
  op->count = count;
  op->next = first;
  op->pending = 0;
  op->operation = (uint8_t)operation;
  op->phase = op->lane = 0;
  op->reads_mapped = false;
  op->local.delayed_until = 0;
  op->local.copies = NULL;
  op->immediate = immediate;
  op->prepared = prepared;
  op->job = (struct job){.apart = prepared && prepared->apart};
  transfer_use_regions(op);
  operation_start(op, timeout);
  operation_move(op);
  budget_forget_own(&s->engine->budget);
  if (lane_table(s->lane)->jobs || s->lanes) /* starts the device at once */
    transfer_step(op);
  return op->index;
}
