/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_inside.c - what the helpers know of the RDMA transport's inside.
 */
#include "verbs_inside.h"

#include "core.h"
#include "transport/verbs.h"

const char *no_device(void) {
  static char reason[REASON];
  struct rdma_options options;
  struct rdma_port ports[RAILS];
  const char *why = NULL;
  if (!verbs_library(&why))
    return why;
  if (rdma_options_parse(NULL, &options, reason, sizeof reason) < 0 ||
      rdma_choose(&options, ports, RAILS, reason, sizeof reason) < 0)
    return reason;
  return NULL;
}

int pairs_of(const struct perigee_session *session) {
  return (int)session->lane->pair_count;
}

bool pair_to_error(struct perigee_session *session, int pair) {
  struct lane *lane = session->lane;
  struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
  struct ibv_qp *qp = lane->pairs[pair].qp;
  return qp && lane->fabric->lib->modify_qp(qp, &error, IBV_QP_STATE) == 0;
}

uint64_t resets_of(const struct perigee_session *session) {
  return session->lane->resets;
}

bool pairs_rest(const struct perigee_session *session) {
  const struct lane *lane = session->lane;
  for (uint32_t i = 0; i < lane->pair_count; i++) {
    const struct pair *p = &lane->pairs[i];
    if (p->state != PAIR_UP || p->posted != p->filled)
      return false;
  }
  return true;
}

void keys_spoil(struct perigee_session *session,
                const struct perigee_remote *remote) {
  struct lane *lane = session->lane;
  struct held *held =
      (struct held *)held_find(lane, ID_REGION + remote->window.slot);
  for (uint32_t i = 0; held && i < lane->pair_count; i++)
    held->rkey[i] ^= 0x80;
}
