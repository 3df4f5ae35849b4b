/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_pair.c - queue pairs: made, connected, destroyed; what is posted on
 * them and completes; and pairs that break, or have to be fenced: reset,
 * rebuilt, or down for good. verbs.h has their states.
 *
 * Slots record what was posted. A completion retires all slots up to its own,
 * as a reliable pair completes in order. The ids of work requests contain the
 * pair's epoch, so that completions from before a reset are recognised.
 *
 * A reset discards what the hardware has; the slots are posted again once both
 * halves are connected again. That is safe for what slots contain: reads, and
 * writes that nobody was told of, as their immediate is sent after they
 * completed.
 *
 * The device of a process that is being killed refuses requests, too. So a
 * refusal is reported only once the pair is up again, as that needs a live
 * peer.
 *
 * Rebuilding uses frames. A side that resets tells its half (epoch, first
 * sequence number); the other side resets too, if it has not, and tells its
 * own. A half that says ready comes from a connected pair, to which may be
 * posted.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "host/adopted.h"
#include "verbs.h"

enum { CONTROL_DEPTH = 256 };
enum { CHAIN = 16 };

/* Receives of a control pair: one for each record and note in transit, and spare
 * ones, as used ones are posted again in batches. They have no buffers. */
enum { OWED = 32, RECEIVES = RECORDS + NOTES + 2 * OWED };

/* The frame that a side sends when it has reset a pair. */
struct half {
  uint32_t pair, epoch, psn, ready;
};

/* ---- Making and connecting ----------------------------------------------- */

/* Returns a first sequence number: random, 24 bits. */
static uint32_t pair_psn(void) {
  uint32_t psn;
  if (getrandom(&psn, sizeof psn, GRND_NONBLOCK) != sizeof psn)
    psn = 0;
  return psn & 0xffffff;
}

static uint32_t pair_receives(const struct pair *p) {
  return p->index == 0 ? RECEIVES : 0;
}

static int pair_post_receives(struct pair *p, uint32_t count) {
  struct ibv_recv_wr chain[OWED], *bad;
  int error = 0;
  for (uint32_t n; count > 0 && !error; count -= n) {
    n = count < OWED ? count : OWED;
    for (uint32_t i = 0; i < n; i++)
      chain[i] = (struct ibv_recv_wr){.wr_id = RECEIVE_ID,
                                      .next = i + 1 < n ? &chain[i + 1] : NULL};
    error = ibv_post_recv(p->qp, chain, &bad);
  }
  return error;
}

static int pair_to_init(struct pair *p) {
  const struct rail *rail = p->rail;
  struct ibv_qp_attr a = {
      .qp_state = IBV_QPS_INIT,
      .pkey_index = (uint16_t)rail->fabric->options.pkey_index,
      .port_num = rail->port.port,
      .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
  int error = rail->fabric->lib->modify_qp(
      p->qp, &a,
      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return error ? error : pair_post_receives(p, pair_receives(p));
}

static uint8_t pair_least(int a, int b) {
  return (uint8_t)(a < b ? a : b);
}

/* Returns how many RDMA reads one pair may have in progress. */
static uint8_t pair_reads(const struct rail *rail) {
  return pair_least(16, pair_least(rail->attr.max_qp_rd_atom,
                                   rail->attr.max_qp_init_rd_atom));
}

static int pair_to_receive(struct pair *p) {
  const struct rdma_options *o = &p->rail->fabric->options;
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
                          .path_mtu = p->mtu,
                          .dest_qp_num = p->peer_number,
                          .rq_psn = p->peer_psn,
                          .max_dest_rd_atomic = pair_reads(p->rail),
                          .min_rnr_timer = 12,
                          .ah_attr = {.dlid = p->peer_lid,
                                      .sl = (uint8_t)o->service_level,
                                      .port_num = p->rail->port.port}};
  if (p->rail->port.global) {
    a.ah_attr.is_global = 1;
    a.ah_attr.grh = (struct ibv_global_route){
        .dgid = p->peer_gid,
        .sgid_index = (uint8_t)p->rail->port.gid_index,
        .hop_limit = (uint8_t)o->hop_limit,
        .traffic_class = (uint8_t)o->traffic_class};
  }
  return p->rail->fabric->lib->modify_qp(
      p->qp, &a,
      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
          IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int pair_to_send(struct pair *p) {
  const struct rdma_options *o = &p->rail->fabric->options;
  /* A receiver that is not ready would be our mistake: it is not retried for
   * ever. */
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS,
                          .timeout = (uint8_t)o->timeout,
                          .retry_cnt = (uint8_t)o->retries,
                          .rnr_retry = (uint8_t)o->rnr_retries,
                          .sq_psn = p->psn,
                          .max_rd_atomic = pair_reads(p->rail)};
  return p->rail->fabric->lib->modify_qp(
      p->qp, &a,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static struct ibv_qp *pair_make_qp(struct pair *p) {
  const struct rail *rail = p->rail;
  int sges = SGES < rail->attr.max_sge ? SGES : rail->attr.max_sge;
  for (uint32_t room = rail->fabric->options.inline_size;; room /= 2) {
    struct ibv_qp_init_attr a = {.send_cq = p->queues->cq,
                                 .recv_cq = p->queues->cq,
                                 .cap = {.max_send_wr = p->depth,
                                         .max_recv_wr = pair_receives(p),
                                         .max_recv_sge = p->index == 0,
                                         .max_send_sge = (uint32_t)sges,
                                         .max_inline_data = room},
                                 .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = rail->fabric->lib->create_qp(rail->pd, &a);
    p->inline_max = qp ? a.cap.max_inline_data : 0;
    if (qp || room < 32)
      return qp;
  }
}

struct pair *pair_by_number(const struct rail *rail, uint32_t number) {
  struct pair *p = rail->by_number[number & 255];
  while (p && p->number != number)
    p = p->next;
  return p;
}

/* Removes the pair from the index by number. */
static void pair_unlink(struct pair *p) {
  struct pair **at = &p->rail->by_number[p->number & 255];
  while (*at && *at != p)
    at = &(*at)->next;
  if (*at)
    *at = p->next;
}

/* Returns how many completions the pair may have in its queues. It is twice the
 * depth: completions from before a reset may still be there when slots are
 * posted again. */
static uint32_t pair_completions(const struct pair *p) {
  return 2 * p->depth + pair_receives(p);
}

static uint32_t power_of_two(uint32_t n) {
  uint32_t power = 16;
  while (power < n)
    power *= 2;
  return power;
}

int pair_make(struct pair *p, struct lane *lane, struct rail *rail,
              char reason[REASON]) {
  p->lane = lane;
  p->rail = rail;
  p->depth =
      p->index == 0 ? CONTROL_DEPTH : power_of_two(rail->fabric->options.depth);
  int status = rail_reserve(rail, pair_completions(p), &p->queues, reason);
  if (status < 0)
    return status;
  p->slots = calloc(p->depth, sizeof *p->slots);
  p->qp = p->slots ? pair_make_qp(p) : NULL;
  if (!p->qp || pair_to_init(p) != 0) {
    snprintf(reason, REASON,
             "cannot make a queue pair of %u requests on %s: %s", p->depth,
             rail->port.device, strerror(errno));
    if (p->qp)
      rail->fabric->lib->destroy_qp(p->qp);
    p->qp = NULL;
    free(p->slots);
    p->slots = NULL;
    queues_unreserve(p->queues, pair_completions(p));
    return PERIGEE_NO_MEMORY;
  }
  p->number = p->qp->qp_num;
  p->psn = pair_psn();
  p->salt = ++lane->fabric->pairs_made << 12;
  p->state = PAIR_FRESH;
  struct pair **chain = &rail->by_number[p->number & 255];
  p->next = *chain;
  *chain = p;
  return PERIGEE_OK;
}

static int pair_connect_halves(struct pair *p) {
  int error = pair_to_receive(p);
  return error ? error : pair_to_send(p);
}

int pair_connect(struct pair *p, char reason[REASON]) {
  int error = pair_connect_halves(p);
  if (error) {
    snprintf(reason, REASON,
             "cannot connect queue pair %u on %s/%u to the peer's %u: %s",
             p->number, p->rail->port.device, p->rail->port.port,
             p->peer_number, strerror(error));
    return PERIGEE_SYSTEM;
  }
  p->state = PAIR_UP;
  return PERIGEE_OK;
}

void pair_unmake(struct pair *p) {
  if (!p->slots)
    return;
  if (p->qp) {
    pair_unlink(p);
    p->rail->fabric->lib->destroy_qp(p->qp);
  }
  queues_unreserve(p->queues, pair_completions(p));
  free(p->slots);
  p->qp = NULL;
  p->slots = NULL;
}

/* ---- Posting ------------------------------------------------------------- */

static struct slot *pair_slot_at(const struct pair *p, uint32_t count) {
  return &p->slots[count & (p->depth - 1)];
}

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
static bool slot_is_signaled(struct pair *p, const struct slot *slot,
                             uint32_t at) {
  bool ends = slot->job && (at + 1 == p->filled ||
                            pair_slot_at(p, at + 1)->job != slot->job);
  if (!ends && p->unsignaled + 1 < p->depth / 4) {
    p->unsignaled++;
    return false;
  }
  p->unsignaled = 0;
  return true;
}

static void slot_write_request(struct pair *p, uint32_t at,
                               struct ibv_send_wr *wr) {
  struct slot *slot = pair_slot_at(p, at);
  uint32_t where = at & (p->depth - 1);
  if (slot->mark)
    slot->sge[0] = (struct ibv_sge){(uintptr_t)&p->seen[where], 4, p->seen_key};
  slot->signaled = slot_is_signaled(p, slot, at);
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
      slot_write_request(p, p->posted + n, &chain[n]);
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

/* ---- Slots that are done ------------------------------------------------- */

/* The hardware is done with the slot: tells its job. */
static void pair_settle(struct pair *p, uint32_t at, int status) {
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

static void pair_retire(struct pair *p, uint32_t to) {
  while (p->retired != to)
    pair_settle(p, p->retired++, PERIGEE_OK);
}

/* ---- The end ------------------------------------------------------------- */

static void pair_quiet(struct pair *p) {
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};
  int error = p->rail->fabric->lib->modify_qp(p->qp, &a, IBV_QP_STATE);
  p->epoch++;
  p->connected = false;
  p->unsignaled = p->owed = 0;
  if (error) { /* then only destroying the pair stops it */
    pair_unlink(p);
    p->rail->fabric->lib->destroy_qp(p->qp);
    p->qp = NULL;
  }
}

void pair_down(struct pair *p, int status) {
  if (!p->slots || p->state == PAIR_DOWN)
    return;
  if (p->qp)
    pair_quiet(p);
  p->state = PAIR_DOWN;
  while (p->retired != p->filled)
    pair_settle(p, p->retired++, status);
  p->posted = p->filled;
}

void lane_break(struct lane *lane, int status, const char *format, ...) {
  va_list args;
  if (lane->status < 0)
    return;
  lane->status = status;
  lane->head.ending = true;
  va_start(args, format);
  vsnprintf(lane->reason, sizeof lane->reason, format, args);
  va_end(args);
  for (uint32_t i = 0; i < lane->pair_count; i++)
    pair_down(&lane->pairs[i], PERIGEE_PEER_LOST);
  if (lane->joined && !lane->cut)
    lane->options.activate(lane->options.session);
}

/* ---- Resetting and rebuilding -------------------------------------------- */

/* Requeues what the hardware had, except slots of one job. */
static void pair_requeue(struct pair *p, const struct job *but) {
  uint32_t to = p->retired;
  for (uint32_t at = p->retired; at != p->filled; at++) {
    struct slot *slot = pair_slot_at(p, at);
    if (!slot->job || slot->job == but || slot->opcode == IBV_WR_BIND_MW)
      pair_settle(p, at, PERIGEE_CANCELLED);
    else if (at != to)
      *pair_slot_at(p, to) = *slot;
    to += slot->job != NULL;
  }
  p->filled = to;
  p->posted = p->retired;
}

/* A peer that is not told waits for its half for ever. */
static void pair_tell_half(struct pair *p) {
  struct half half = {p->index, p->epoch, p->psn, p->connected};
  const struct lane_options *o = &p->lane->options;
  int status = o->tell(o->session, &half, sizeof half);
  if (status < 0)
    lane_break(p->lane, status == PERIGEE_AGAIN ? PERIGEE_PROTOCOL : status,
               "the peer does not take what it is told of a queue pair");
}

static bool pair_reset_here(struct pair *p, const struct job *but) {
  pair_quiet(p);
  p->lane->resets++;
  p->state = PAIR_RESETTING;
  p->psn = pair_psn();
  pair_requeue(p, but);
  if (!p->qp)
    lane_break(p->lane, PERIGEE_PEER_LOST,
               "a queue pair of %s cannot be reset: the device is gone",
               p->rail->port.device);
  return p->qp;
}

void pair_reset(struct pair *p, const struct job *but) {
  if (p->index == 0)
    lane_break(p->lane, PERIGEE_PEER_LOST, "%s does not do what it was given",
               p->rail->port.device);
  else if (p->state == PAIR_RESETTING)
    pair_requeue(p, but);
  else if (p->state == PAIR_UP && pair_reset_here(p, but))
    pair_tell_half(p);
}

/* Connects again after a reset, with the new fields. False: the lane is
 * broken. */
static bool pair_reconnect(struct pair *p) {
  bool fine = p->qp && pair_to_init(p) == 0 && pair_connect_halves(p) == 0;
  if (!fine)
    lane_break(p->lane, PERIGEE_PEER_LOST,
               "a queue pair of %s cannot be connected again",
               p->rail->port.device);
  return fine;
}

/* The peer is alive, and its device refused memory that the peer took back. */
static void pair_tell_refused(struct pair *p) {
  struct slot *slot = pair_slot_at(p, p->retired);
  struct job *job = slot->job;
  if (p->retired == p->filled || slot->status == PERIGEE_OK)
    return;
  pair_settle(p, p->retired++, slot->status);
  pair_requeue(p, job);
}

static void pair_take_half(struct pair *p, uint32_t psn) {
  p->peer_psn = psn;
  if (!pair_reconnect(p))
    return;
  p->connected = true;
  pair_tell_half(p);
}

bool pair_renew(struct pair *p) {
  pair_quiet(p);
  pair_requeue(p, NULL);
  return pair_reconnect(p);
}

int pair_heard(struct lane *lane, const void *bytes, uint32_t length, int fd) {
  struct half half;
  if (fd >= 0)
    adopted_close(fd);
  if (fd >= 0 || length != sizeof half)
    return PERIGEE_PROTOCOL;
  memcpy(&half, bytes, sizeof half);
  if (half.pair == 0 || half.pair >= lane->pair_count || half.psn > 0xffffff)
    return PERIGEE_PROTOCOL;
  struct pair *p = &lane->pairs[half.pair];
  int32_t ahead = (int32_t)(half.epoch - p->epoch);
  if (p->state == PAIR_DOWN || p->state == PAIR_FRESH || ahead < 0)
    return PERIGEE_OK;
  if (ahead > 1) /* each reset is told, in order; others could turn it back */
    return PERIGEE_PROTOCOL;
  if (ahead > 0) {
    if (!pair_reset_here(p, NULL))
      return PERIGEE_OK;
    p->epoch = half.epoch;
  }
  if (p->state == PAIR_RESETTING && !p->connected)
    pair_take_half(p, half.psn);
  if (p->state == PAIR_RESETTING && p->connected && half.ready) {
    p->state = PAIR_UP;
    pair_tell_refused(p);
    pair_post(p);
  }
  return PERIGEE_OK;
}

static bool pair_has_slots(const struct pair *pair, const struct job *job) {
  for (uint32_t at = pair->retired; at != pair->filled; at++)
    if (pair_slot_at(pair, at)->job == job)
      return true;
  return false;
}

/* Control is not reset: what was posted there is short, and ends by itself or
 * with the lane. */
void lane_fence(struct lane *lane, const struct job *job) {
  for (uint32_t i = 1; i < lane->pair_count && job->pending > 0; i++)
    if (pair_has_slots(&lane->pairs[i], job))
      pair_reset(&lane->pairs[i], job);
}

/* ---- Completions --------------------------------------------------------- */

static int completion_status(enum ibv_wc_status status) {
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
static bool lane_probe_failed(struct lane *lane) {
  bool so = lane->probe == PROBE_OUT && !lane->met;
  if (so)
    lane->probe = PROBE_FAILED;
  return so;
}

static void pair_lose(struct pair *p, const struct ibv_wc *wc, bool silent) {
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
static void pair_failed(struct pair *p, const struct ibv_wc *wc) {
  int status = completion_status(wc->status);
  bool silent = wc->status == IBV_WC_RETRY_EXC_ERR ||
                wc->status == IBV_WC_RNR_RETRY_EXC_ERR ||
                wc->status == IBV_WC_RESP_TIMEOUT_ERR ||
                wc->status == IBV_WC_LOC_QP_OP_ERR;
  if (p->index == 0 && silent && lane_probe_failed(p->lane))
    return;
  if (p->index == 0 || (silent && p->doubted)) {
    pair_lose(p, wc, silent);
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
    pair_retire(p, at + 1);
    return;
  }
  pair_retire(p, at);
  pair_failed(p, wc);
}

void pair_received(struct pair *p) {
  if (p->state == PAIR_DOWN || ++p->owed < OWED)
    return;
  p->owed = 0;
  if (pair_post_receives(p, OWED) != 0)
    lane_break(p->lane, PERIGEE_SYSTEM, "%s takes no receives",
               p->rail->port.device);
}
