/* SPDX-License-Identifier: Apache-2.0
 *
 * libfabric's tagged messages between reliable datagram endpoints. First word:
 * the provider, shm or tcp (tcp;ofi_rxm). The two find each other by their
 * endpoints' names in files.
 *
 * Version: 1.17 (Debian's).
 * Mode: one endpoint, completion queue and thread a side (FI_THREAD_DOMAIN).
 * Both sides post a receive before they wait, and the server answers from the
 * memory in which a message arrived while the next one arrives elsewhere.
 * Copies: shm: in and out of its slots, above 16 KiB once by the kernel
 * (cma); tcp: the kernel, in and out.
 * Sleeping: nobody, both read their completion queue again and again.
 * Setting: fi_shm(7), fi_rxm(7), fi_tagged(3); the loop of fabtests'
 * fi_rdm_tagged_pingpong.
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include "peer.h"

enum { TAG = 1, NAME = 512 };

/* One message under way in each direction, and memory for two, used in turn. */
struct slot {
  struct fi_context2 sending, receiving;
  bool sent, has_come; /* the send has ended; a message is there */
  size_t came;
  uint8_t *buffers[2];
  void *descriptors[2];
  int into;
};

struct end {
  const struct peer *peer;
  struct fid_domain *domain;
  struct fid_ep *endpoint;
  struct fid_cq *queue;
  struct fid_av *addresses;
  fi_addr_t other;
  uint8_t names[2][NAME + 1]; /* of this endpoint, and of the other */
  bool registers;             /* FI_MR_LOCAL */
  struct slot slots[UNDER];
  unsigned next;
  struct peer_client *client; /* NULL in the server */
};

static const char *version(void) {
  static char text[64];
  uint32_t number = fi_version();
  snprintf(text, sizeof text, "libfabric %u.%u", FI_MAJOR(number),
           FI_MINOR(number));
  return text;
}

static void must(ssize_t status, const char *what) {
  if (status < 0)
    peer_fails("failed", "%s: %s", what, fi_strerror((int)-status));
}

/* ---- Progress ----------------------------------------------------------- */

/* A context is the slot's first or second member. */
static void take(struct end *end, const struct fi_cq_tagged_entry *entry) {
  size_t at = (size_t)((char *)entry->op_context - (char *)end->slots);
  struct slot *slot = &end->slots[at / sizeof *slot];
  if (entry->op_context == &slot->sending) {
    slot->sent = true;
    return;
  }
  slot->came = entry->len;
  slot->has_come = true;
}

static void progress(struct end *end) {
  struct fi_cq_tagged_entry entries[16];
  ssize_t found = fi_cq_read(end->queue, entries, 16);
  if (found == -FI_EAVAIL) {
    struct fi_cq_err_entry error = {0};
    fi_cq_readerr(end->queue, &error, 0);
    must(-error.err, "message");
  }
  if (found == -FI_EAGAIN)
    return;
  must(found, "queue");
  for (ssize_t i = 0; i < found; i++)
    take(end, &entries[i]);
}

static void receive(struct end *end, struct slot *slot) {
  ssize_t status;
  slot->has_come = false;
  while ((status = fi_trecv(end->endpoint, slot->buffers[slot->into],
                            end->peer->size, slot->descriptors[slot->into],
                            FI_ADDR_UNSPEC, TAG, 0, &slot->receiving)) ==
         -FI_EAGAIN)
    progress(end);
  must(status, "receive");
}

static void send_from(struct end *end, struct slot *slot, int buffer,
                      size_t length) {
  ssize_t status;
  slot->sent = false;
  while ((status = fi_tsend(end->endpoint, slot->buffers[buffer], length,
                            slot->descriptors[buffer], end->other, TAG,
                            &slot->sending)) == -FI_EAGAIN)
    progress(end);
  must(status, "send");
}

static void wait_for(struct end *end, const bool *what) {
  while (!*what)
    progress(end);
}

/* ---- Opening ------------------------------------------------------------ */

static struct fi_info *choose(const struct peer *peer) {
  struct fi_info *hints = fi_allocinfo(), *info = NULL;
  bool shm = peer_has_word(peer, "shm");
  if (!hints)
    die("fi_allocinfo");
  hints->caps = FI_TAGGED;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
  hints->fabric_attr->prov_name = strdup(shm ? "shm" : "tcp;ofi_rxm");
  must(fi_getinfo(FI_VERSION(1, 17), shm ? NULL : "127.0.0.1", NULL,
                  shm ? 0 : FI_SOURCE, hints, &info),
       "fi_getinfo");
  fi_freeinfo(hints);
  return info;
}

static void equip(struct end *end) {
  const struct peer *peer = end->peer;
  uint8_t *rooms[UNDER] = {0};
  for (int j = 0; j < 2; j++) {
    struct fid_mr *memory_region = NULL;
    size_t all = peer_rooms(peer, rooms);
    if (end->registers)
      must(fi_mr_reg(end->domain, rooms[0], all, FI_SEND | FI_RECV, 0,
                     (uint64_t)j, 0, &memory_region, NULL),
           "fi_mr_reg");
    for (int i = 0; i < peer->under; i++) {
      end->slots[i].buffers[j] = rooms[i];
      end->slots[i].descriptors[j] =
          memory_region ? fi_mr_desc(memory_region) : NULL;
      end->slots[i].sent = true;
    }
  }
}

static void open_end(struct end *end, const struct peer *peer) {
  struct fi_info *info = choose(peer);
  struct fi_cq_attr queue = {.size = 4 * UNDER, .format = FI_CQ_FORMAT_TAGGED};
  struct fi_av_attr addresses = {.type = FI_AV_TABLE};
  struct fid_fabric *fabric;
  end->peer = peer;
  end->registers = (info->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
  must(fi_fabric(info->fabric_attr, &fabric, NULL), "fabric");
  must(fi_domain(fabric, info, &end->domain, NULL), "domain");
  must(fi_endpoint(end->domain, info, &end->endpoint, NULL), "endpoint");
  must(fi_cq_open(end->domain, &queue, &end->queue, NULL), "queue");
  must(fi_av_open(end->domain, &addresses, &end->addresses, NULL), "addresses");
  must(fi_ep_bind(end->endpoint, &end->queue->fid, FI_SEND | FI_RECV), "bind");
  must(fi_ep_bind(end->endpoint, &end->addresses->fid, 0), "bind");
  must(fi_enable(end->endpoint), "enable");
  fi_freeinfo(info);
  equip(end);
}

/* Shared memory has the endpoint's name without what is in front of it; when
 * both sides have it mapped it needs that no more, and goes with them. */
static void unlink_memory(const uint8_t *name) {
  const char *text = (const char *)name, *path = strstr(text, "://");
  shm_unlink(path ? path + 3 : text);
}

static void write_name(struct end *end, const char *name) {
  uint8_t *bytes = end->names[0];
  size_t length = NAME;
  must(fi_getname(&end->endpoint->fid, bytes, &length), "name");
  peer_write_file(end->peer, name, bytes, length);
}

static void connect_to(struct end *end, const char *name) {
  uint8_t *bytes = end->names[1];
  peer_read_file(end->peer, name, bytes, NAME);
  if (fi_av_insert(end->addresses, bytes, 1, &end->other, 0, NULL) != 1)
    peer_fails("failed", "the peer's address cannot be used");
}

/* ---- The two sides ------------------------------------------------------ */

static void serve(const struct peer *peer) {
  static struct end end;
  open_end(&end, peer);
  for (int i = 0; i < peer->under; i++)
    receive(&end, &end.slots[i]);
  write_name(&end, "server");
  peer_ready("-");
  connect_to(&end, "client");
  for (unsigned number = 0;; number++) {
    struct slot *slot = &end.slots[number % (unsigned)peer->under];
    wait_for(&end, &slot->has_come);
    wait_for(&end, &slot->sent);
    int came = slot->into;
    size_t length = slot->came;
    slot->into = !came;
    send_from(&end, slot, came, length);
    receive(&end, slot);
  }
}

static void submit(void *context, int index, size_t length) {
  struct end *end = context;
  receive(end, &end->slots[index]);
  send_from(end, &end->slots[index], 0, length);
}

static int collect(void *context, const uint8_t **reply, size_t *length) {
  struct end *end = context;
  int index = peer_oldest(end->client);
  struct slot *slot = &end->slots[index];
  wait_for(end, &slot->has_come);
  wait_for(end, &slot->sent);
  *reply = slot->buffers[1];
  *length = slot->came;
  return index;
}

static void call(const struct peer *peer) {
  static struct end end;
  static struct peer_client client;
  open_end(&end, peer);
  write_name(&end, "client");
  connect_to(&end, "server");
  client.context = &end;
  client.submit = submit;
  client.collect = collect;
  end.client = &client;
  for (int i = 0; i < peer->under; i++) {
    end.slots[i].into = 1;
    client.buffers[i] = end.slots[i].buffers[0];
  }
  peer_verify(&client, 1, 1, 1);
  if (peer_has_word(peer, "shm"))
    for (int i = 0; i < 2; i++)
      unlink_memory(end.names[i]);
  peer_bursts(peer, &client);
}

int main(int argc, char **argv) {
  static const struct peer_kind kind = {version, serve, call};
  return peer_main(argc, argv, &kind);
}
