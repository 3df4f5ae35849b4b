/* SPDX-License-Identifier: Apache-2.0
 *
 * UCX's tagged messages from one client to several servers, which each answer
 * what they were sent under the same tag. The client has one worker and an
 * endpoint for each server. Both sides find each other by their workers'
 * addresses, in files of each server's folder.
 *
 * Version: 1.22 (PyPI's libucx-cu12).
 * Mode: that of ucx.c, by tags.
 * Copies: UCX alone, as in ucx.c.
 * Sleeping: nobody. Servers share a core and so give it up (sched_yield) when
 * they have found nothing, as Open MPI does where processes are more than cores
 * (mpi_yield_when_idle); the client polls.
 * Setting: that of ucx.c.
 */
#include <ucp/api/ucp.h>

#include "peer.h"

enum { ADDRESS = 4096 };

struct fan {
  const struct peer *peer;
  struct peer_client *client; /* NULL in a server */
  ucp_context_h context;
  ucp_worker_h worker;
  ucp_ep_h others[UNDER];
  uint8_t *replies[UNDER];
  ucs_status_ptr_t sent[UNDER], coming[UNDER];
  ucp_tag_recv_info_t info; /* of a receive that ended at once */
};

static void must(ucs_status_t status, const char *what) {
  if (status != UCS_OK)
    peer_fails("failed", "%s: %s", what, ucs_status_string(status));
}

static const char *version(void) {
  static char text[64];
  snprintf(text, sizeof text, "UCX %s", ucp_get_version_string());
  return text;
}

static void progress(const struct fan *fan) {
  if (ucp_worker_progress(fan->worker) == 0 && !fan->client)
    sched_yield();
}

static void open_fan(struct fan *fan, const struct peer *peer) {
  ucp_params_t context = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                          .features = UCP_FEATURE_TAG};
  ucp_worker_params_t worker = {.field_mask =
                                    UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                .thread_mode = UCS_THREAD_MODE_SINGLE};
  fan->peer = peer;
  must(ucp_init(&context, NULL, &fan->context), "init");
  must(ucp_worker_create(fan->context, &worker, &fan->worker), "worker");
  peer_rooms(peer, fan->replies);
}

static void tell_address(const struct fan *fan, const char *folder,
                         const char *name) {
  const struct peer there = {.folder = folder};
  ucp_address_t *address;
  size_t length;
  must(ucp_worker_get_address(fan->worker, &address, &length), "address");
  peer_write_file(&there, name, address, length);
  ucp_worker_release_address(fan->worker, address);
}

static ucp_ep_h connect_to(const struct fan *fan, const char *folder,
                           const char *name) {
  static uint8_t address[ADDRESS];
  const struct peer there = {.folder = folder};
  ucp_ep_h other;
  peer_read_file(&there, name, address, sizeof address);
  ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                            .address = (const ucp_address_t *)address};
  must(ucp_ep_create(fan->worker, &params, &other), "endpoint");
  return other;
}

static void receive(struct fan *fan, int slot, ucp_tag_t tag, ucp_tag_t mask) {
  ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_RECV_INFO,
                               .recv_info.tag_info = &fan->info};
  fan->coming[slot] = ucp_tag_recv_nbx(fan->worker, fan->replies[slot],
                                       fan->peer->size, tag, mask, &param);
}

static void end(const struct fan *fan, ucs_status_ptr_t request) {
  ucs_status_t status = UCS_PTR_STATUS(request);
  if (UCS_PTR_IS_PTR(request)) {
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
      progress(fan);
    ucp_request_free(request);
  }
  must(status, "message");
}

/* Waits for the message of a slot; returns its length and tag. */
static ucp_tag_recv_info_t received(const struct fan *fan, int slot) {
  ucp_tag_recv_info_t info = fan->info;
  ucs_status_ptr_t coming = fan->coming[slot];
  if (UCS_PTR_IS_PTR(coming))
    while (ucp_tag_recv_request_test(coming, &info) == UCS_INPROGRESS)
      progress(fan);
  end(fan, coming);
  return info;
}

static void serve(const struct peer *peer) {
  static const ucp_request_param_t none;
  static struct fan fan;
  open_fan(&fan, peer);
  tell_address(&fan, peer->folder, "server");
  peer_ready(peer->folder);
  fan.others[0] = connect_to(&fan, peer->folder, "client");
  for (;;) {
    receive(&fan, 0, 0, 0);
    ucp_tag_recv_info_t info = received(&fan, 0);
    end(&fan, ucp_tag_send_nbx(fan.others[0], fan.replies[0], info.length,
                               info.sender_tag, &none));
  }
}

static void submit(void *context, int slot, size_t length) {
  static const ucp_request_param_t none;
  struct fan *fan = context;
  receive(fan, slot, (ucp_tag_t)slot, UINT64_MAX);
  fan->sent[slot] = ucp_tag_send_nbx(fan->others[slot % fan->peer->servers],
                                     fan->client->buffers[slot], length,
                                     (ucp_tag_t)slot, &none);
}

static int collect(void *context, const uint8_t **reply, size_t *length) {
  struct fan *fan = context;
  int slot = peer_oldest(fan->client);
  *length = received(fan, slot).length;
  end(fan, fan->sent[slot]);
  *reply = fan->replies[slot];
  return slot;
}

static void call(const struct peer *peer) {
  static struct fan fan;
  static struct peer_client client;
  open_fan(&fan, peer);
  for (int i = 0; i < peer->servers; i++) {
    tell_address(&fan, peer->addresses[i], "client");
    fan.others[i] = connect_to(&fan, peer->addresses[i], "server");
  }
  fan.client = &client;
  client.context = &fan;
  client.submit = submit;
  client.collect = collect;
  peer_rooms(peer, client.buffers);
  peer_bursts(peer, &client);
}

int main(int argc, char **argv) {
  static const struct peer_kind kind = {version, serve, call};
  return peer_main(argc, argv, &kind);
}
