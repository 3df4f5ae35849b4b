/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_pair.c - one queue pair: made, connected, destroyed. verbs.h has its
 * states; verbs_post.c posts on it, verbs_recover.c handles its failures.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "verbs.h"

enum { CONTROL_DEPTH = 256 };

/* ---- Making ------------------------------------------------------------- */

uint32_t pair_psn(void) {
  uint32_t psn;
  if (getrandom(&psn, sizeof psn, GRND_NONBLOCK) != sizeof psn)
    psn = 0;
  return psn & 0xffffff;
}

static int to_init(struct pair *p) {
  const struct rail *rail = p->rail;
  struct ibv_qp_attr a = {
      .qp_state = IBV_QPS_INIT,
      .pkey_index = (uint16_t)rail->fabric->options.pkey_index,
      .port_num = rail->port.port,
      .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
  return rail->fabric->lib->modify_qp(p->qp, &a,
                                      IBV_QP_STATE | IBV_QP_PKEY_INDEX |
                                          IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static uint8_t least(int a, int b) {
  return (uint8_t)(a < b ? a : b);
}

/* Returns how many RDMA reads one pair may have in progress. */
static uint8_t reads(const struct rail *rail) {
  return least(
      16, least(rail->attr.max_qp_rd_atom, rail->attr.max_qp_init_rd_atom));
}

static int to_receive(struct pair *p) {
  const struct rdma_options *o = &p->rail->fabric->options;
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
                          .path_mtu = p->mtu,
                          .dest_qp_num = p->peer_number,
                          .rq_psn = p->peer_psn,
                          .max_dest_rd_atomic = reads(p->rail),
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

static int to_send(struct pair *p) {
  const struct rdma_options *o = &p->rail->fabric->options;
  /* A receiver that is not ready would be our mistake: it is not retried for
   * ever. */
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS,
                          .timeout = (uint8_t)o->timeout,
                          .retry_cnt = (uint8_t)o->retries,
                          .rnr_retry = (uint8_t)o->rnr_retries,
                          .sq_psn = p->psn,
                          .max_rd_atomic = reads(p->rail)};
  return p->rail->fabric->lib->modify_qp(
      p->qp, &a,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static struct ibv_qp *make_qp(struct pair *p) {
  const struct rail *rail = p->rail;
  int sges = SGES < rail->attr.max_sge ? SGES : rail->attr.max_sge;
  for (uint32_t room = rail->fabric->options.inline_size;; room /= 2) {
    struct ibv_qp_init_attr a = {.send_cq = p->queues->cq,
                                 .recv_cq = p->queues->cq,
                                 .srq = p->index == 0 ? p->queues->srq : NULL,
                                 .cap = {.max_send_wr = p->depth,
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

void pair_unlink(struct pair *p) {
  struct pair **at = &p->rail->by_number[p->number & 255];
  while (*at && *at != p)
    at = &(*at)->next;
  if (*at)
    *at = p->next;
}

/* Returns how many completions the pair may have in its queues. It is twice the
 * depth: completions from before a reset may still be there when slots are
 * posted again. */
static uint32_t completions(const struct pair *p) {
  return 2 * p->depth + (p->index == 0 ? RECORDS + NOTES : 0);
}

static uint32_t power(uint32_t n) {
  uint32_t power = 16;
  while (power < n)
    power *= 2;
  return power;
}

int pair_make(struct pair *p, struct lane *lane, struct rail *rail,
              char reason[REASON]) {
  p->lane = lane;
  p->rail = rail;
  p->depth = p->index == 0 ? CONTROL_DEPTH : power(rail->fabric->options.depth);
  uint32_t receives = p->index == 0 ? RECORDS + NOTES : 0;
  int status = rail_reserve(rail, completions(p), receives, &p->queues, reason);
  if (status < 0)
    return status;
  p->slots = calloc(p->depth, sizeof *p->slots);
  p->qp = p->slots ? make_qp(p) : NULL;
  if (!p->qp || to_init(p) != 0) {
    snprintf(reason, REASON,
             "cannot make a queue pair of %u requests on %s: %s", p->depth,
             rail->port.device, strerror(errno));
    if (p->qp)
      rail->fabric->lib->destroy_qp(p->qp);
    p->qp = NULL;
    free(p->slots);
    p->slots = NULL;
    queues_unreserve(p->queues, completions(p), receives);
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

static int connect_halves(struct pair *p) {
  int error = to_receive(p);
  return error ? error : to_send(p);
}

bool pair_reconnect(struct pair *p) {
  bool fine = p->qp && to_init(p) == 0 && connect_halves(p) == 0;
  if (!fine)
    lane_break(p->lane, PERIGEE_PEER_LOST,
               "a queue pair of %s cannot be connected again",
               p->rail->port.device);
  return fine;
}

int pair_connect(struct pair *p, char reason[REASON]) {
  int error = connect_halves(p);
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
  uint32_t receives = p->index == 0 ? RECORDS + NOTES : 0;
  if (p->qp) {
    pair_unlink(p);
    p->rail->fabric->lib->destroy_qp(p->qp);
  }
  queues_unreserve(p->queues, completions(p), receives);
  free(p->slots);
  p->qp = NULL;
  p->slots = NULL;
}
