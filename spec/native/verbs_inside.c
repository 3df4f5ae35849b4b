/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_inside.c - what test helpers read and change inside the RDMA transport.
 */
#include "verbs_inside.h"

#include <errno.h>
#include <string.h>

#include "core/fabrics.h"
#include "core/region.h"
#include "net/wire.h"
#include "transport/verbs/verbs.h"

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

static int port_is_down(struct ibv_context *context, uint8_t port,
                        struct _compat_ibv_port_attr *a) {
  (void)context, (void)port;
  ((struct ibv_port_attr *)(void *)a)->state = IBV_PORT_DOWN;
  return 0;
}

void ports_down(struct perigee_session *session, bool down) {
  static struct verbs_library without;
  without = *verbs_library(NULL);
  without.query_port = port_is_down;
  session->lane->fabric->lib = down ? &without : verbs_library(NULL);
}

void ports_forget_address(struct perigee_session *session) {
  struct fabric *fabric = session->lane->fabric;
  for (uint32_t i = 0; i < fabric->rail_count; i++) {
    fabric->rails[i].gid = (union ibv_gid){.raw = {0}};
    fabric->rails[i].port.gid_index = 0;
  }
}

void ports_outdone(struct perigee_session *session) {
  session->lane->fabric->options.nic_count = 0;
}

const char *port_of_second_choice(void) {
  static struct perigee_device list[16];
  struct rdma_options options;
  struct rdma_port chosen;
  char reason[REASON];
  int count = perigee_devices(NULL, list, sizeof *list, 16);
  if (rdma_options_parse("", &options, reason, sizeof reason) < 0 ||
      rdma_choose(&options, &chosen, 1, reason, sizeof reason) < 0)
    return NULL;
  for (int i = 0; i < count && i < 16; i++)
    if (strcmp(list[i].state, "active") == 0 && list[i].gid >= 0 &&
        strcmp(list[i].name, chosen.device) != 0)
      return list[i].name;
  return NULL;
}

int ports_usable(struct perigee_session *session, char reason[REASON_TEXT]) {
  struct fabric *fabric;
  return fabric_of(session->engine, &transport_verbs, &fabric, reason);
}

/* Returns when all have arrived. The bytes of the notes are what the peer's inbox has. */
void notes_flood(struct perigee_session *session, int count) {
  struct lane *lane = session->lane;
  struct pair *control = &lane->pairs[0];
  struct job last = {0};
  for (int i = 0; i < count; i++) {
    while (lane->status == 0 && pair_room(control) == 0)
      rails_poll(lane->fabric);
    if (lane->status < 0)
      return;
    struct slot *slot = pair_slot(control, i + 1 < count ? NULL : &last);
    slot->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    slot->remote = lane->peer_inbox;
    slot->rkey = lane->peer_inbox_key;
    slot->immediate = (uint32_t)FLOW_NOTE << FLOW_SHIFT;
    pair_post(control);
  }
  while (lane->status == 0 && last.pending > 0)
    rails_poll(lane->fabric);
}

uint64_t shown_of(const struct perigee_session *session) {
  const struct lane *lane = session->lane;
  uint64_t bytes = 0;
  for (uint32_t id = ID_PAYLOAD; lane->granted && id < ID_ARENA; id++) {
    const struct granted *page = lane->granted[id / ID_PAGE];
    const struct granted *granted = page ? &page[id % ID_PAGE] : NULL;
    bytes += granted && granted->generation != 0 ? granted->length : 0;
  }
  return bytes;
}

void keys_spoil(struct perigee_session *session,
                const struct perigee_remote *remote) {
  struct lane *lane = session->lane;
  struct remote_key *key = (struct remote_key *)remote_key_find(
      lane, ID_REGION + remote->window.slot);
  for (uint32_t i = 0; key && i < lane->pair_count; i++)
    key->rkey[i] ^= 0x80;
}

/* Of struct lane_offer, which is verbs.c's own: pairs, rail[0].ethernet. */
enum { PAIRS_AT = 16, ETHERNET_AT = 79 };

static void over_other_links(struct lane *lane, struct offer *offer) {
  (void)lane;
  offer->bytes[ETHERNET_AT] = !offer->bytes[ETHERNET_AT];
}

static void by_one_pair(struct lane *lane, struct offer *offer) {
  (void)lane;
  memcpy(offer->bytes + PAIRS_AT, &(uint32_t){1}, sizeof(uint32_t));
}

static int device_is_gone(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask) {
  (void)qp, (void)a, (void)mask;
  return EIO;
}

static void without_device(struct lane *lane, struct offer *offer) {
  struct verbs_library gone = *verbs_library(NULL);
  (void)offer;
  gone.modify_qp = device_is_gone;
  lane->fabric->lib = &gone;
  lane_break(lane, PERIGEE_PEER_LOST, "the RDMA device: it is being removed");
  lane->fabric->lib = verbs_library(NULL);
}

/* A further lane of the session is joined by its own offer, after a change. */
static int joined_after(struct perigee_session *session,
                        void (*change)(struct lane *, struct offer *),
                        char reason[REASON_TEXT]) {
  struct lane_options options = session->lane->options;
  struct lane *lane = NULL;
  struct offer offer;
  int status = transport_verbs.open(&options, &lane, &offer, reason);
  if (status < 0)
    return status;
  change(lane, &offer);
  status = transport_verbs.join(lane, &offer, reason);
  transport_verbs.close(lane);
  return status;
}

int joined_over_other_links(struct perigee_session *session,
                            char reason[REASON_TEXT]) {
  return joined_after(session, over_other_links, reason);
}

int joined_by_one_pair(struct perigee_session *session,
                       char reason[REASON_TEXT]) {
  return joined_after(session, by_one_pair, reason);
}

int joined_without_device(struct perigee_session *session,
                          char reason[REASON_TEXT]) {
  return joined_after(session, without_device, reason);
}

void grant_anew(struct perigee_session *session,
                struct perigee_region *region) {
  const struct transport_access *access = transport_verbs.access;
  struct grant grant = {.slot = region->slot,
                        .generation = region->generation,
                        .area = &region->area,
                        .access = region->access};
  struct region_key key;
  access->revoke(session->lane, region->slot);
  access->export(session->lane, &grant, &key);
}

void socket_fill(struct perigee_session *session) {
  struct frame ping = {.type = FRAME_PING};
  while (session->up->tell(session, &ping, NULL, 0) == PERIGEE_OK)
    ;
}
