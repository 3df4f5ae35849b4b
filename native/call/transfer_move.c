/* SPDX-License-Identifier: Apache-2.0
 *
 * transfer_move.c - moves the items of a transfer one after another: by this
 * side or its device, over the lane that reaches both memories, or by the
 * region's owner (some reads and writes at a time, call.c).
 */
#include "core/lane_list.h"
#include "core/lanes.h"
#include "core/pool.h"
#include "transfer.h"

/* The most reads and writes of one transfer that its peer does at a time. */
enum { CHILDREN = 16 };

/* ---- What reaches an item ------------------------------------------------ */

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

/* Adds the sentence to a status of a lane. */
static int refused(struct perigee_session *s,
                   const struct perigee_transfer *item, int status) {
  if (status == PERIGEE_STALE)
    return fail(s->engine, status, "the peer has closed the region \"%s\"",
                item->remote.remote->name);
  if (status == PERIGEE_PEER_LOST)
    return fail(s->engine, status, "the session with the peer is over");
  return status;
}

int64_t transfer_copy(struct perigee_session *s,
                      const struct perigee_transfer *item,
                      struct payload *remote, struct payload *local,
                      uint64_t limit, int operation) {
  int64_t n = lane_table(s->lane)->copies->copy(
      s->lane, &item->remote.remote->window, remote, local, limit,
      operation != PERIGEE_OP_READ);
  return n < 0 ? refused(s, item, (int)n) : n;
}

/* Returns 1 if all of the item is posted, 0 not yet, or a status. */
static int post_item(struct operation *op,
                     const struct perigee_transfer *item) {
  struct lane *lane = session_lane(op->session, op->lane);
  const struct window *window = remote_window(item->remote.remote, op->lane);
  int status = lane_table(lane)->jobs->post(lane, &op->job, window, &op->remote,
                                            &op->local,
                                            op->operation != PERIGEE_OP_READ);
  if (status < 0)
    return refused(op->session, item, status);
  if (status == 0)
    return 0;
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

/* Has the owner do an item: returns 1, 0 not yet, or a status. */
static int leave_to_owner(struct operation *op,
                          const struct perigee_transfer *item) {
  if (op->pending >= CHILDREN)
    return 0;
  op->pending++;
  int status =
      call_access(op->session, op->operation != PERIGEE_OP_READ, item, op);
  if (status < 0)
    op->pending--;
  return status < 0 ? status : 1;
}

/* Returns 1 if the item's owner does it, 0 if it has to wait or has begun
 * (phase 1), or a status. The payloads of the item before are used again while
 * its job may be under way: a job keeps nothing of them (transport.h), and the
 * CPU's copies have all arrived. */
static int begin_item(struct operation *op,
                      const struct perigee_transfer *item) {
  int64_t delayed_until = op->local.delayed_until;
  int status =
      transfer_check(op->session, op->operation, item, &op->remote, &op->local);
  if (status < 0)
    return status;
  op->local.delayed_until = delayed_until; /* a batch is delayed once */
  if (!op->local.memory->direct && !take_copies(op))
    return PERIGEE_NO_MEMORY;
  uint32_t number;
  if (!choose_lane(op, item, &number))
    return leave_to_owner(op, item);
  if (!take_lane(op, number))
    return 0;
  if (number > 0)
    op->remote.base = (uint8_t *)(uintptr_t)item->remote.offset;
  op->phase = 1;
  return 0;
}

/* Returns 1 if the next item can begin, 0 not now, or a status. */
static int move_item(struct operation *op) {
  const struct perigee_transfer *item = &op->list[op->next];
  struct perigee_engine *engine = op->engine;
  int status = op->phase == 0 ? begin_item(op, item) : 0;
  if (status != 0 || op->phase == 0)
    return status;
  if (lane_table(session_lane(op->session, op->lane))->jobs)
    return post_item(op, item);
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
    operation_settle(op);
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
    operation_finish(op, status);
  else if (op->next < op->count || op->job.pending > 0)
    return;
  else if (op->pending == 0)
    transfer_moved(op);
  else
    operation_unqueue(op); /* its last child will end it */
}
