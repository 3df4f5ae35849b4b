/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_post.c - posting work requests on a queue pair, and their completions.
 *
 * Slots record what was posted. A completion retires all slots up to its own,
 * as a reliable pair completes in order. The ids of work requests contain the
 * pair's epoch, so that completions from before a reset are recognised.
 */
#include <errno.h>
#include <string.h>

#include "verbs.h"

enum { CHAIN = 16 };
static const int64_t AWAITED = 1000 * 1000000; /* ns */

/* ---- Posting ------------------------------------------------------------ */

uint32_t pair_room(const struct pair *p) {
  if (p->state == PAIR_DOWN)
    return 0;
  return p->depth - (p->filled - p->retired);
}

struct slot *pair_slot(struct pair *p, struct job *job) {
  struct slot *slot = pair_slot_at(p, p->filled++);
  slot->job = job;
  slot->remote = slot->bytes = 0;
  slot->rkey = slot->immediate = 0;
  slot->opcode = slot->sges = 0;
  slot->status = PERIGEE_OK;
  slot->inlined = slot->signaled = slot->mark = false;
  if (job)
    job->pending++;
  return slot;
}

void pair_mark(struct pair *p, struct job *job) {
  const struct lane *lane = p->lane;
  struct slot *slot = pair_slot(p, job);
  slot->mark = true;
  slot->opcode = IBV_WR_RDMA_READ;
  slot->remote = lane->peer_marks + UINT64_C(4) * job->operation;
  slot->rkey = lane->peer_marks_key[p->rail->index];
  slot->sges = 1;
}

/* The last slot of each job in a chain is signaled, and now and then one that
 * nobody waits for, so that the hardware's queue is emptied. */
static bool signals(struct pair *p, const struct slot *slot, uint32_t at) {
  bool ends = slot->job && (at + 1 == p->filled ||
                            pair_slot_at(p, at + 1)->job != slot->job);
  if (!ends && p->unsignaled + 1 < p->depth / 4) {
    p->unsignaled++;
    return false;
  }
  p->unsignaled = 0;
  return true;
}

static void write_request(struct pair *p, uint32_t at, struct ibv_send_wr *wr) {
  struct slot *slot = pair_slot_at(p, at);
  uint32_t where = at & (p->depth - 1);
  if (slot->mark)
    slot->sge[0] = (struct ibv_sge){(uintptr_t)&p->seen[where], 4, p->seen_key};
  slot->signaled = signals(p, slot, at);
  if (slot->opcode == IBV_WR_BIND_MW)
    *wr = (struct ibv_send_wr){
        .opcode = IBV_WR_BIND_MW,
        .bind_mw = {.mw = slot->bind.mw,
                    .rkey = slot->rkey,
                    .bind_info = {slot->bind.mr, slot->remote, slot->bytes,
                                  (unsigned)slot->bind.rights}}};
  else
    *wr = (struct ibv_send_wr){
        .sg_list = slot->sge,
        .num_sge = slot->sges,
        .opcode = (enum ibv_wr_opcode)slot->opcode,
        .imm_data = htobe32(slot->immediate),
        .wr.rdma = {.remote_addr = slot->remote, .rkey = slot->rkey}};
  wr->wr_id = (uint64_t)(p->salt + p->epoch) << 32 | at;
  wr->send_flags = (slot->signaled ? IBV_SEND_SIGNALED : 0) |
                   (slot->inlined ? IBV_SEND_INLINE : 0);
}

void pair_post(struct pair *p) {
  struct ibv_send_wr chain[CHAIN], *bad;
  while (p->state == PAIR_UP && p->posted != p->filled) {
    uint32_t n = 0;
    for (; n < CHAIN && p->posted + n != p->filled; n++) {
      write_request(p, p->posted + n, &chain[n]);
      chain[n].next = &chain[n + 1];
    }
    chain[n - 1].next = NULL;
    p->lane->posts++;
    int error = ibv_post_send(p->qp, chain, &bad);
    p->posted += n;
    if (error)
      lane_break(p->lane, PERIGEE_SYSTEM, "posting to %s failed: %s",
                 p->rail->port.device, strerror(error));
  }
}

/* ---- Completing --------------------------------------------------------- */

void pair_settle(struct pair *p, uint32_t at, int status) {
  struct slot *slot = pair_slot_at(p, at);
  struct job *job = slot->job;
  slot->job = NULL;
  if (!job)
    return;
  job->pending--;
  if (status == PERIGEE_OK && slot->mark &&
      p->seen[at & (p->depth - 1)] != job->generation)
    status = PERIGEE_CANCELLED;
  job->marks += status == PERIGEE_OK && slot->mark;
  if (status == PERIGEE_OK)
    job->done += slot->bytes;
  else if (job->status == PERIGEE_OK)
    job->status = status;
}

static void retire(struct pair *p, uint32_t to) {
  while (p->retired != to)
    pair_settle(p, p->retired++, PERIGEE_OK);
}

static int status_of(enum ibv_wc_status status) {
  switch (status) {
  case IBV_WC_REM_ACCESS_ERR:
  case IBV_WC_REM_INV_REQ_ERR:
  case IBV_WC_REM_OP_ERR:
    return PERIGEE_STALE;
  case IBV_WC_LOC_PROT_ERR:
  case IBV_WC_MW_BIND_ERR:
    return PERIGEE_NO_MEMORY;
  default:
    return PERIGEE_PEER_LOST;
  }
}

/* Did the pair fail by a probe that nobody received? */
static bool probe_failed(struct lane *lane) {
  bool so = lane->probe == PROBE_OUT && !lane->met;
  if (so)
    lane->probe = PROBE_FAILED;
  return so;
}

static void lose(struct pair *p, const struct ibv_wc *wc, bool silent) {
  const char *what = p->rail->fabric->lib->wc_status_str(wc->status);
  const struct rdma_port *port = &p->rail->port;
  if (silent)
    lane_break(p->lane, PERIGEE_PEER_LOST,
               "%s on %s/%u: the peer or the way to it is gone; `rdma link` "
               "shows whether the port is up",
               what, port->device, port->port);
  else
    lane_break(p->lane, PERIGEE_PEER_LOST,
               "the queue pair of %s/%u that carries records failed (%s); "
               "connect again",
               port->device, port->port, what);
}

/* The peer's device is silent also if only its queue pair has failed, and the
 * peer may not know that; so a pair is rebuilt once before the peer counts as
 * lost. soft-RoCE reports that it finds no route when a link is down for a
 * moment. */
static void failed(struct pair *p, const struct ibv_wc *wc) {
  int status = status_of(wc->status);
  bool silent = wc->status == IBV_WC_RETRY_EXC_ERR ||
                wc->status == IBV_WC_RNR_RETRY_EXC_ERR ||
                wc->status == IBV_WC_RESP_TIMEOUT_ERR ||
                wc->status == IBV_WC_LOC_QP_OP_ERR;
  if (p->index == 0 && silent && probe_failed(p->lane))
    return;
  if (p->index == 0 || (silent && p->doubted)) {
    lose(p, wc, silent);
    return;
  }
  p->doubted = silent;
  if (silent) {
    pair_reset(p, NULL);
    return;
  }
  struct job *culprit = NULL;
  if (p->retired != p->posted && wc->status != IBV_WC_WR_FLUSH_ERR) {
    culprit = pair_slot_at(p, p->retired)->job;
    if (status == PERIGEE_STALE && culprit)
      pair_slot_at(p, p->retired)->status = status;
    else
      pair_settle(p, p->retired++, status);
  }
  pair_reset(p, status == PERIGEE_STALE ? NULL : culprit);
}

void pair_completed(struct pair *p, const struct ibv_wc *wc) {
  uint32_t at = (uint32_t)wc->wr_id;
  if (wc->wr_id >> 32 != (uint32_t)(p->salt + p->epoch) ||
      at - p->retired >= p->posted - p->retired)
    return; /* from before a reset */
  if (wc->status == IBV_WC_SUCCESS) {
    p->doubted = false;
    retire(p, at + 1);
    return;
  }
  retire(p, at);
  failed(p, wc);
}

/* ---- Windows ------------------------------------------------------------ */

void pair_bind(struct pair *p, struct job *job, struct ibv_mw *mw,
               struct ibv_mr *mr, uint64_t address, uint64_t length, int rights,
               uint32_t rkey) {
  struct slot *slot = pair_slot(p, job);
  slot->opcode = IBV_WR_BIND_MW;
  slot->remote = address;
  slot->bytes = length;
  slot->rkey = rkey;
  slot->bind.mw = mw;
  slot->bind.mr = mr;
  slot->bind.rights = rights;
  pair_post(p);
}

void lane_await(struct lane *lane, const struct job *job) {
  const struct fabric_options *o = &lane->fabric->engine;
  int64_t end = o->clock(o->context) + AWAITED;
  while (job->pending > 0 && o->clock(o->context) < end)
    rails_poll(lane->fabric);
  if (job->pending > 0)
    lane_break(lane, PERIGEE_PEER_LOST, "%s does not do what it was given",
               lane->pairs[0].rail->port.device);
}
