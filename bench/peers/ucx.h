/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the two adapters of UCX (ucx.c: messages, ucx_move.c: one-sided
 * transfers): a worker of one thread, and how the two sides find each other, by
 * their workers' addresses in files.
 */
#ifndef BENCH_PEER_UCX_H
#define BENCH_PEER_UCX_H

#include <ucp/api/ucp.h>

#include "peer.h"

struct ucx {
  ucp_context_h context;
  ucp_worker_h worker;
  ucp_ep_h other;
};

static inline void must(ucs_status_t status, const char *what) {
  if (status != UCS_OK)
    peer_fails("failed", "%s: %s", what, ucs_status_string(status));
}

static inline const char *ucx_version(void) {
  static char text[64];
  snprintf(text, sizeof text, "UCX %s", ucp_get_version_string());
  return text;
}

static inline void ucx_open(struct ucx *ucx, uint64_t features) {
  ucp_params_t context = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                          .features = features};
  ucp_worker_params_t worker = {.field_mask =
                                    UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                .thread_mode = UCS_THREAD_MODE_SINGLE};
  must(ucp_init(&context, NULL, &ucx->context), "init");
  must(ucp_worker_create(ucx->context, &worker, &ucx->worker), "worker");
}

static inline void ucx_tell_address(const struct ucx *ucx,
                                    const struct peer *peer, const char *name) {
  ucp_address_t *address;
  size_t length;
  must(ucp_worker_get_address(ucx->worker, &address, &length), "address");
  peer_write_file(peer, name, address, length);
  ucp_worker_release_address(ucx->worker, address);
}

static inline void ucx_connect(struct ucx *ucx, const struct peer *peer,
                               const char *name) {
  static uint8_t address[4096];
  peer_read_file(peer, name, address, sizeof address);
  ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                            .address = (const ucp_address_t *)address};
  must(ucp_ep_create(ucx->worker, &params, &ucx->other), "endpoint");
}

/* Waits for the end of what was started, if it has not ended at once. */
static inline void ucx_wait(struct ucx *ucx, ucs_status_ptr_t *request) {
  if (UCS_PTR_IS_ERR(*request))
    must(UCS_PTR_STATUS(*request), "operation");
  if (UCS_PTR_IS_PTR(*request)) {
    ucs_status_t status;
    while ((status = ucp_request_check_status(*request)) == UCS_INPROGRESS)
      ucp_worker_progress(ucx->worker);
    ucp_request_free(*request);
    must(status, "operation");
  }
  *request = NULL;
}

#endif
