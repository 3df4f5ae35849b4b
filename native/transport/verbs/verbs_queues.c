/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_queues.c - a completion queue and a shared receive queue.
 *
 * A completion queue is never overrun: completions are reserved before requests
 * can be posted, and the queue grows with that. The receive queue has an entry,
 * without a buffer, for each record and note that the peers of its lanes may
 * send. Used entries are posted again in batches, for which as many spare
 * entries exist. When either queue has reached its limit, the next lane gets
 * new ones.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "verbs.h"

enum { BATCH = 16, BATCHES = 4, OWED = 32, CQ_FIRST = 1024 };
#define RECEIVE_ID UINT64_MAX

static uint32_t least(uint32_t a, int b) {
  return b > 0 && a > (uint32_t)b ? (uint32_t)b : a;
}

/* ---- Opening ------------------------------------------------------------ */

static int make(struct queues *q) {
  struct rail *r = q->rail;
  const struct verbs_library *lib = r->fabric->lib;
  q->cq_size = least(CQ_FIRST, r->attr.max_cqe);
  q->cq = lib->create_cq(r->context, (int)q->cq_size, q, r->channel, 0);
  if (!q->cq || r->index > 0)
    return q->cq ? 0 : errno;
  q->srq_size = least(r->fabric->options.receives, r->attr.max_srq_wr);
  struct ibv_srq_init_attr a = {.attr = {.max_wr = q->srq_size, .max_sge = 1}};
  q->srq = lib->create_srq(r->pd, &a);
  return q->srq ? 0 : errno;
}

int queues_open(struct rail *r) {
  struct queues *q = &r->queues[r->queue_count];
  if (r->queue_count == QUEUES)
    return ENOSPC;
  *q = (struct queues){.rail = r};
  int error = make(q);
  if (error)
    queues_close(q);
  else
    r->queue_count++;
  return error;
}

void queues_close(struct queues *q) {
  const struct verbs_library *lib = q->rail->fabric->lib;
  if (q->srq)
    lib->destroy_srq(q->srq);
  if (q->unacked)
    lib->ack_cq_events(q->cq, q->unacked);
  if (q->cq)
    lib->destroy_cq(q->cq);
}

/* ---- Reserving ---------------------------------------------------------- */

/* Posts receives. If the queue is full, it has all entries that were
 * reserved. */
static bool post_receives(struct queues *q, uint32_t count) {
  struct ibv_recv_wr chain[OWED], *bad;
  int error = 0;
  while (count > 0 && !error) {
    uint32_t n = count < OWED ? count : OWED;
    for (uint32_t i = 0; i < n; i++)
      chain[i] = (struct ibv_recv_wr){.wr_id = RECEIVE_ID,
                                      .next = i + 1 < n ? &chain[i + 1] : NULL};
    error = ibv_post_srq_recv(q->srq, chain, &bad);
    count -= n;
  }
  return !error || error == ENOMEM;
}

static bool grow(struct queues *q, uint32_t want) {
  int most = q->rail->attr.max_cqe;
  uint32_t size = q->cq_size;
  while (size < want && size < (uint32_t)most)
    size = least(size * 2, most);
  if (size < want || (size != q->cq_size &&
                      q->rail->fabric->lib->resize_cq(q->cq, (int)size) != 0))
    return false;
  q->cq_size = size;
  return true;
}

static bool reserve(struct queues *q, uint32_t completions, uint32_t receives) {
  /* Used entries are posted later; the first lane brings the spare ones. */
  uint32_t spare = receives > 0 && q->srq_used == 0 ? 2 * OWED : 0;
  uint32_t more = receives + spare;
  if (more > q->srq_size - q->srq_used || !grow(q, q->cq_used + completions) ||
      !post_receives(q, more))
    return false;
  q->srq_used += more;
  q->cq_used += completions;
  return true;
}

int rail_reserve(struct rail *r, uint32_t completions, uint32_t receives,
                 struct queues **out, char reason[REASON]) {
  for (uint32_t i = 0; i < r->queue_count; i++)
    if (reserve(*out = &r->queues[i], completions, receives))
      return PERIGEE_OK;
  int error = queues_open(r);
  *out = &r->queues[r->queue_count - 1];
  if (!error && reserve(*out, completions, receives))
    return PERIGEE_OK;
  snprintf(reason, REASON,
           "the queues of %s have no room for one more session (%u "
           "completions, %u receives)%s%s: fewer sessions, or less depth "
           "(option depth)",
           r->port.device, completions, receives, error ? ", and more: " : "",
           error ? strerror(error) : "");
  return PERIGEE_NO_MEMORY;
}

/* Keeps the receives posted. Some devices drop entries that were taken for a
 * queue pair that is destroyed; so the next lane posts its own again. */
void queues_unreserve(struct queues *q, uint32_t completions,
                      uint32_t receives) {
  q->cq_used -= completions;
  q->srq_used -= receives;
}

/* ---- What completes ----------------------------------------------------- */

static void received(struct queues *q, const struct ibv_wc *wc) {
  struct pair *p = pair_by_number(q->rail, wc->qp_num);
  if (p && p->index == 0 && wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
    ring_arrived(p->lane, be32toh(wc->imm_data));
}

static void completed(struct queues *q, const struct ibv_wc *wc) {
  /* The opcode of a failed completion is undefined; receives have no id. */
  if (wc->wr_id == RECEIVE_ID) {
    q->srq_owed++;
    if (wc->status == IBV_WC_SUCCESS)
      received(q, wc);
    return;
  }
  struct pair *p = pair_by_number(q->rail, wc->qp_num);
  if (p)
    pair_completed(p, wc);
}

bool queues_turn(struct queues *q) {
  struct ibv_wc wc[BATCH];
  bool any = false;
  for (int i = 0; i < BATCHES && !q->rail->failed; i++) {
    int n = ibv_poll_cq(q->cq, BATCH, wc);
    for (int k = 0; k < n; k++)
      completed(q, &wc[k]);
    any = any || n > 0;
    q->rail->fabric->found += n > 0;
    if (n < BATCH)
      break;
  }
  if (q->srq_owed >= OWED) {
    uint32_t owed = q->srq_owed;
    q->srq_owed = 0;
    post_receives(q, owed);
  }
  return any;
}
