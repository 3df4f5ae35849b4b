/* SPDX-License-Identifier: Apache-2.0
 *
 * UCX's tagged messages, or with the word `am` its active messages, over what
 * UCX_TLS says. The two find each other by their workers' addresses in files.
 *
 * Version: 1.22 (ucx: PyPI's libucx-cu12) and 1.13 (ucx-debian: Debian's).
 * Mode: one worker and one thread a side, ucp_*_nbx, no registration by hand.
 * Both sides post a receive before they wait, and the server answers from the
 * memory in which a message arrived while the next one arrives elsewhere.
 * Copies: UCX alone (posix, sysv: in and out; cma: once, by the kernel;
 * rc: short messages, in and out).
 * Sleeping: nobody, both call ucp_worker_progress().
 * Setting: https://openucx.readthedocs.io/en/master/faq.html; the loops of
 * ucx_perftest -t tag_lat and ucp_am_lat; UCX's own protocol thresholds.
 */
#include "ucx.h"

enum { TAG = 1, ECHO = 1 };

/* One message under way in each direction, and memory for two, used in turn. */
struct slot {
  ucs_status_ptr_t sent, coming;
  ucp_tag_recv_info_t info; /* of a receive that ended at once */
  uint8_t *buffers[2];
  int into;
  size_t came;   /* am: bytes of the message that has arrived */
  bool has_come; /* am */
};

struct end {
  const struct peer *peer;
  struct ucx ucx;
  bool am;
  struct slot slots[UNDER];
  unsigned next, arrives;     /* messages that were waited for, that came */
  struct peer_client *client; /* NULL in the server */
};

/* The slot of a message, which come in the order of requests. */
static struct slot *slot_of(struct end *end, unsigned number) {
  int under = end->peer->under;
  return &end->slots[end->client ? (unsigned)end->client->order[number % UNDER]
                                 : number % (unsigned)under];
}

/* ---- Tagged messages ---------------------------------------------------- */

static void receive(struct end *end, struct slot *slot) {
  ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_RECV_INFO,
                               .recv_info.tag_info = &slot->info};
  slot->coming = ucp_tag_recv_nbx(end->ucx.worker, slot->buffers[slot->into],
                                  end->peer->size, TAG, UINT64_MAX, &param);
}

/* Waits for the slot's message; returns its length. */
static size_t received(struct end *end, struct slot *slot) {
  size_t length = slot->info.length;
  if (UCS_PTR_IS_PTR(slot->coming)) {
    ucp_tag_recv_info_t info;
    while (ucp_tag_recv_request_test(slot->coming, &info) == UCS_INPROGRESS)
      ucp_worker_progress(end->ucx.worker);
    length = info.length;
  }
  ucx_wait(&end->ucx, &slot->coming);
  return length;
}

/* ---- Active messages ---------------------------------------------------- */

/* An eager message is copied out; of one that is announced the data are
 * received where they belong. */
static ucs_status_t arrived(void *context, const void *header,
                            size_t header_length, void *data, size_t length,
                            const ucp_am_recv_param_t *param) {
  struct end *end = context;
  struct slot *slot = slot_of(end, end->arrives);
  static const ucp_request_param_t none;
  (void)header;
  (void)header_length;
  if (length > end->peer->size)
    return UCS_ERR_MESSAGE_TRUNCATED;
  end->arrives++;
  slot->came = length;
  if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)
    slot->coming = ucp_am_recv_data_nbx(
        end->ucx.worker, data, slot->buffers[slot->into], length, &none);
  else
    memcpy(slot->buffers[slot->into], data, length);
  slot->has_come = true;
  return param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV ? UCS_INPROGRESS
                                                       : UCS_OK;
}

static size_t am_received(struct end *end, struct slot *slot) {
  while (!slot->has_come)
    ucp_worker_progress(end->ucx.worker);
  slot->has_come = false;
  ucx_wait(&end->ucx, &slot->coming);
  return slot->came;
}

/* ---- Both --------------------------------------------------------------- */

static void send_from(struct end *end, struct slot *slot, const uint8_t *from,
                      size_t length) {
  static const ucp_request_param_t none;
  slot->sent =
      end->am
          ? ucp_am_send_nbx(end->ucx.other, ECHO, NULL, 0, from, length, &none)
          : ucp_tag_send_nbx(end->ucx.other, from, length, TAG, &none);
}

static void open_end(struct end *end, const struct peer *peer) {
  ucp_am_handler_param_t handler = {.field_mask =
                                        UCP_AM_HANDLER_PARAM_FIELD_ID |
                                        UCP_AM_HANDLER_PARAM_FIELD_CB |
                                        UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                    .id = ECHO,
                                    .cb = arrived,
                                    .arg = end};
  end->peer = peer;
  end->am = peer_has_word(peer, "am");
  ucx_open(&end->ucx, UCP_FEATURE_TAG | UCP_FEATURE_AM);
  must(ucp_worker_set_am_recv_handler(end->ucx.worker, &handler), "handler");
  uint8_t *rooms[UNDER];
  for (int j = 0; j < 2; j++) {
    peer_rooms(peer, rooms);
    for (int i = 0; i < peer->under; i++)
      end->slots[i].buffers[j] = rooms[i];
  }
}

/* Echoes until the harness ends it. */
static void serve(const struct peer *peer) {
  static struct end end;
  open_end(&end, peer);
  for (int i = 0; i < peer->under && !end.am; i++)
    receive(&end, &end.slots[i]);
  ucx_tell_address(&end.ucx, peer, "server");
  peer_ready("-");
  ucx_connect(&end.ucx, peer, "client");
  for (;;) {
    struct slot *slot = slot_of(&end, end.next++);
    size_t length = end.am ? am_received(&end, slot) : received(&end, slot);
    ucx_wait(&end.ucx, &slot->sent);
    const uint8_t *came = slot->buffers[slot->into];
    slot->into = !slot->into;
    send_from(&end, slot, came, length);
    if (!end.am)
      receive(&end, slot);
  }
}

static void submit(void *context, int index, size_t length) {
  struct end *end = context;
  struct slot *slot = &end->slots[index];
  send_from(end, slot, slot->buffers[0], length);
  if (!end->am)
    receive(end, slot);
}

static int collect(void *context, const uint8_t **reply, size_t *length) {
  struct end *end = context;
  struct slot *slot = slot_of(end, end->next++);
  *length = end->am ? am_received(end, slot) : received(end, slot);
  ucx_wait(&end->ucx, &slot->sent);
  *reply = slot->buffers[1];
  return (int)(slot - end->slots);
}

static void call(const struct peer *peer) {
  static struct end end;
  static struct peer_client client;
  open_end(&end, peer);
  ucx_tell_address(&end.ucx, peer, "client");
  ucx_connect(&end.ucx, peer, "server");
  client.context = &end;
  end.client = &client;
  client.submit = submit;
  client.collect = collect;
  for (int i = 0; i < peer->under; i++) {
    end.slots[i].into = 1;
    client.buffers[i] = end.slots[i].buffers[0];
  }
  peer_bursts(peer, &client);
}

int main(int argc, char **argv) {
  static const struct peer_kind kind = {ucx_version, serve, call};
  return peer_main(argc, argv, &kind);
}
