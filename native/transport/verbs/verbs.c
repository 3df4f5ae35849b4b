/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs.c - the RDMA transport: how a lane is made, joined and cut, and the
 * events of devices. verbs.h lists the other files and tells what they own.
 *
 * An offer holds all that is needed to connect the lane's pairs; both sides use
 * as many pairs as both have. Records are sent only after both sides have
 * joined (READY), so the first one finds a receiver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "host/adopted.h"
#include "memory/backing.h"
#include "verbs.h"

enum { OFFER_VERSION = 1 };

/* Flags of an offer. The receiver passes over those that it does not know. */
enum { OFFER_KEYED = 1 }; /* it reads what keys of regions say */
enum { RING_MIN = 4096, RING_MAX = 16 << 20 };
static const int64_t RECENT = 5000000000; /* ns */

struct rail_offer {
  union ibv_gid gid;
  uint32_t marks_key;
  uint16_t lid;
  uint8_t mtu, ethernet;
};

struct pair_offer {
  uint32_t number, psn;
};

struct lane_offer {
  uint32_t version, records, notes, rails, pairs, operations;
  uint64_t ring, inbox, marks;
  uint32_t inbox_key, flags;
  struct rail_offer rail[RAILS];
  struct pair_offer pair[PAIRS];
};

_Static_assert(sizeof(struct lane_offer) <= OFFER_MAX, "an offer is a frame");

/* ---- Closing ------------------------------------------------------------- */

static void verbs_cut(struct lane *lane) {
  lane->cut = true;
  for (uint32_t i = 0; i < lane->pair_count; i++)
    pair_down(&lane->pairs[i], PERIGEE_PEER_LOST);
}

static void verbs_close(struct lane *lane) {
  if (!lane)
    return;
  struct lane **at = &lane->fabric->lanes;
  while (*at && *at != lane)
    at = &(*at)->next;
  if (*at)
    *at = lane->next;
  verbs_cut(lane);
  grants_close(lane);
  inbox_close(lane);
  for (uint32_t i = 0; i < lane->pair_count; i++)
    pair_unmake(&lane->pairs[i]);
  ring_close(lane);
  if (lane->arena.base) {
    verbs_forget(lane->fabric, &lane->arena, 0, lane->arena.length);
    guarded_unmap(lane->arena.base, lane->arena.length);
  }
  blocks_close(&lane->blocks);
  free(lane->frames);
  free(lane);
}

/* ---- Opening ------------------------------------------------------------- */

/* Makes the control pair on the first rail, then qps pairs on each rail in
 * turn. */
static int lane_open_pairs(struct lane *lane, char reason[REASON]) {
  struct fabric *f = lane->fabric;
  uint32_t want = 1 + f->options.qps * f->rail_count;
  if (want > PAIRS)
    want = PAIRS;
  for (uint32_t i = 0; i < want; i++) {
    struct pair *p = &lane->pairs[i];
    p->index = i;
    int status = pair_make(
        p, lane, &f->rails[i == 0 ? 0 : (i - 1) % f->rail_count], reason);
    if (status < 0)
      return status;
    lane->pair_count++;
  }
  return PERIGEE_OK;
}

/* The address space is twice the limit, so that blocks of all sizes fit. */
static int lane_open_arena(struct lane *lane) {
  uint64_t length = 2 * lane->options.pool;
  length = (length + CHUNK - 1) / CHUNK * CHUNK;
  uint64_t most = (uint64_t)(IDS - ID_ARENA) * CHUNK;
  if (length > most)
    length = most;
  void *p = guarded_map(length, -1);
  if (!p)
    return PERIGEE_NO_MEMORY;
  lane->arena = (struct area){
      .memory = &memory_host, .base = p, .length = length, .chunk = CHUNK};
  return blocks_open(&lane->blocks, length, lane->options.pool);
}

/* Returns the port's MTU, or the largest that the options allow. */
static enum ibv_mtu rail_mtu(const struct rail *r) {
  uint32_t mtu = r->state.active_mtu, bytes = r->fabric->options.mtu;
  while (bytes > 0 && mtu > IBV_MTU_256 && (128u << mtu) > bytes)
    mtu--;
  return (enum ibv_mtu)mtu;
}

static void lane_make_offer(struct lane *lane, struct offer *offer) {
  struct fabric *f = lane->fabric;
  struct lane_offer said = {.version = OFFER_VERSION,
                            .records = RECORDS,
                            .notes = NOTES,
                            .rails = f->rail_count,
                            .pairs = lane->pair_count,
                            .operations = f->engine.operations,
                            .ring = lane->options.ring,
                            .inbox = (uintptr_t)lane->inbox,
                            .inbox_key = lane->inbox_key,
                            .flags = OFFER_KEYED,
                            .marks = (uintptr_t)f->marks};
  for (uint32_t i = 0; i < f->rail_count; i++) {
    const struct rail *r = &f->rails[i];
    said.rail[i] = (struct rail_offer){.gid = r->gid,
                                       .marks_key = r->marks->rkey,
                                       .lid = r->state.lid,
                                       .mtu = (uint8_t)rail_mtu(r),
                                       .ethernet = r->port.ethernet};
  }
  for (uint32_t i = 0; i < lane->pair_count; i++)
    said.pair[i] =
        (struct pair_offer){lane->pairs[i].number, lane->pairs[i].psn};
  memcpy(offer->bytes, &said, sizeof said);
  offer->length = sizeof said;
  offer->fd_count = 0;
}

static int lane_open_inbox(struct lane *lane) {
  int status = ring_set_up(lane);
  return status < 0 ? status : inbox_open(lane);
}

static int verbs_open(const struct lane_options *options, struct lane **out,
                      struct offer *offer, char reason[REASON]) {
  struct lane *lane = calloc(1, sizeof *lane);
  if (!lane)
    return PERIGEE_NO_MEMORY;
  lane_by(lane, &transport_verbs);
  lane->options = *options;
  lane->fabric = options->fabric;
  lane->next = lane->fabric->lanes;
  lane->fabric->lanes = lane;
  int status = lane_open_pairs(lane, reason);
  if (status == PERIGEE_OK)
    status = lane_open_arena(lane);
  if (status == PERIGEE_OK && options->alone)
    status = alone_open(lane);
  if (status == PERIGEE_OK && (status = lane_open_inbox(lane)) < 0)
    snprintf(reason, REASON, "%s",
             "cannot register the session's rings: is the limit of locked "
             "memory (ulimit -l) too low?");
  if (status < 0) {
    verbs_close(lane);
    return status;
  }
  lane_make_offer(lane, offer);
  *out = lane;
  return PERIGEE_OK;
}

/* ---- Joining ------------------------------------------------------------- */

static int lane_check_offer(const struct lane *lane,
                            const struct lane_offer *said,
                            char reason[REASON]) {
  const struct fabric *f = lane->fabric;
  if (said->version != OFFER_VERSION || said->records != RECORDS ||
      said->notes != NOTES) {
    snprintf(reason, REASON,
             "the peer's RDMA transport is of version %u, "
             "this one of %d",
             said->version, OFFER_VERSION);
    return PERIGEE_VERSION;
  }
  if (said->ring < RING_MIN || said->ring > RING_MAX ||
      (said->ring & (said->ring - 1)) != 0 || said->rails == 0 ||
      said->rails > RAILS || said->pairs < PAIRS_LEAST || said->pairs > PAIRS ||
      said->operations > OPERATIONS)
    return PERIGEE_PROTOCOL;
  if (said->rails != f->rail_count) {
    snprintf(reason, REASON,
             "%u NICs here and %u there: name as many on both sides (nics=)",
             f->rail_count, said->rails);
    return PERIGEE_UNSUPPORTED;
  }
  for (uint32_t i = 0; i < f->rail_count; i++)
    if (said->rail[i].ethernet != f->rails[i].port.ethernet) {
      snprintf(reason, REASON,
               "%s is %s and the peer's NIC is not: choose others (nics=)",
               f->rails[i].port.device,
               f->rails[i].port.ethernet ? "Ethernet" : "InfiniBand");
      return PERIGEE_UNSUPPORTED;
    }
  return PERIGEE_OK;
}

/* Returns the smaller MTU of both sides. */
static enum ibv_mtu rail_common_mtu(const struct rail *r,
                                    const struct rail_offer *o) {
  enum ibv_mtu mtu = rail_mtu(r);
  bool lower = o->mtu >= IBV_MTU_256 && o->mtu < mtu;
  return lower ? (enum ibv_mtu)o->mtu : mtu;
}

static int lane_connect_pairs(struct lane *lane, const struct lane_offer *said,
                              char reason[REASON]) {
  /* Drops pairs that the peer does not have. */
  while (lane->pair_count > said->pairs)
    pair_unmake(&lane->pairs[--lane->pair_count]);
  for (uint32_t i = 0; i < lane->pair_count; i++) {
    struct pair *p = &lane->pairs[i];
    const struct rail_offer *rail = &said->rail[p->rail->index];
    p->peer_number = said->pair[i].number & 0xffffff;
    p->peer_psn = said->pair[i].psn & 0xffffff;
    p->peer_gid = rail->gid;
    p->peer_lid = rail->lid;
    p->mtu = rail_common_mtu(p->rail, rail);
    int status = pair_connect(p, reason);
    if (status < 0)
      return status;
  }
  return PERIGEE_OK;
}

static int verbs_join(struct lane *lane, const struct offer *offer,
                      char reason[REASON]) {
  struct lane_offer said;
  for (uint32_t i = 0; i < offer->fd_count; i++)
    adopted_close(offer->fds[i]);
  if (lane->status < 0) { /* its device has failed meanwhile */
    snprintf(reason, REASON, "%s", lane->reason);
    return lane->status;
  }
  if (offer->length != sizeof said || offer->fd_count != 0)
    return PERIGEE_PROTOCOL;
  memcpy(&said, offer->bytes, sizeof said);
  int status = lane_check_offer(lane, &said, reason);
  if (status < 0)
    return status;
  lane->peer_ring = said.ring;
  lane->peer_inbox = said.inbox;
  lane->peer_inbox_key = said.inbox_key;
  lane->peer_marks = said.marks;
  lane->peer_operations = said.operations;
  lane->keyed = said.flags & OFFER_KEYED;
  for (uint32_t i = 0; i < said.rails; i++)
    lane->peer_marks_key[i] = said.rail[i].marks_key;
  status = lane_connect_pairs(lane, &said, reason);
  if (status == PERIGEE_OK)
    status = ring_join(lane);
  if (status == PERIGEE_OK)
    status = inbox_bind(lane);
  lane->joined = status == PERIGEE_OK;
  if (lane->status < 0)
    snprintf(reason, REASON, "%s", lane->reason);
  return status;
}

/* ---- Events of devices --------------------------------------------------- */

enum { EVENTS = 16 }; /* acknowledged together, as that takes a lock */

/* Every lane has pairs on every rail, unless its peer said otherwise. */
static void rail_break_lanes(struct rail *r) {
  for (struct lane *lane = r->fabric->lanes; lane; lane = lane->next)
    lane_break(lane, PERIGEE_PEER_LOST, "%s", r->reason);
}

static void rail_fail(struct rail *r, const char *what) {
  char text[REASON]; /* GCC believes that parts of one structure overlap */
  snprintf(text, sizeof text, "the RDMA device %s: %s", r->port.device, what);
  memcpy(r->reason, text, sizeof text);
  r->failed = true;
  rail_break_lanes(r);
}

/* A port that goes down ends nothing by itself: it may come back before the
 * retries are used up. */
static void rail_async_event(struct rail *r, enum ibv_event_type type,
                             uint32_t number) {
  struct pair *p;
  switch (type) {
  case IBV_EVENT_DEVICE_FATAL:
  case IBV_EVENT_CQ_ERR:
    rail_fail(r, r->fabric->lib->event_type_str(type));
    break;
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
    p = pair_by_number(r, number);
    if (p && p->index == 0)
      lane_break(p->lane, PERIGEE_PEER_LOST, "%s on %s",
                 r->fabric->lib->event_type_str(type), r->port.device);
    else if (p)
      pair_reset(p, NULL);
    break;
  default:
    break;
  }
}

static void rail_async_events(struct rail *r) {
  const struct verbs_library *lib = r->fabric->lib;
  struct ibv_async_event e;
  while (!r->failed && lib->get_async_event(r->context, &e) == 0) {
    enum ibv_event_type type = e.event_type;
    bool pair = type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
                type == IBV_EVENT_QP_ACCESS_ERR;
    uint32_t number = pair ? e.element.qp->qp_num : 0;
    lib->ack_async_event(&e); /* before the pair may be destroyed */
    rail_async_event(r, type, number);
  }
}

static void rail_channel_events(struct rail *r) {
  const struct verbs_library *lib = r->fabric->lib;
  struct ibv_cq *cq;
  void *context;
  while (lib->get_cq_event(r->channel, &cq, &context) == 0) {
    struct queues *q = context;
    q->armed = false;
    if (++q->unacked == EVENTS) {
      lib->ack_cq_events(q->cq, q->unacked);
      q->unacked = 0;
    }
  }
}

/* A driver that cannot take its device away from programs, as soft-RoCE's,
 * waits until they close it; all that programs see is that its node is gone. */
static void rail_removals(struct rail *r) {
  char events[1024];
  bool any = false;
  while (r->removal >= 0 && read(r->removal, events, sizeof events) > 0)
    any = true;
  if (any && !r->failed && !rail_has_node(r))
    rail_fail(r, "it is being removed");
}

static void verbs_ready(struct fabric *f) {
  for (uint32_t i = 0; i < f->rail_count; i++) {
    rail_channel_events(&f->rails[i]);
    rail_async_events(&f->rails[i]);
    rail_removals(&f->rails[i]);
  }
}

static const char *verbs_dead(const struct fabric *f, bool *used) {
  *used = f->lanes;
  for (uint32_t i = 0; i < f->rail_count; i++)
    if (f->rails[i].failed)
      return f->rails[i].reason;
  return NULL;
}

/* ---- The fabric ---------------------------------------------------------- */

static void verbs_stop(struct fabric *f) {
  keys_close(f);
  rails_stop(f);
}

/* ---- The rest of the table ----------------------------------------------- */

static int verbs_broken(const struct lane *lane, const char **reason) {
  *reason = lane->reason;
  return lane->status;
}

static const char *verbs_trouble(const struct lane *lane) {
  const struct fabric *f = lane->fabric;
  int64_t now = f->engine.clock(f->engine.context);
  return now - f->detail_at < RECENT ? f->detail : "";
}

static void verbs_describe(const struct lane *lane, struct lane_facts *facts) {
  const struct fabric *f = lane->fabric;
  const struct rail *r = &f->rails[0];
  fact_text(facts, "device", "%s/%u%s", r->port.device, r->port.port,
            f->rail_count > 1 ? " and others" : "");
  fact_number(facts, "queue_pairs", lane->pair_count - 1);
  fact_number(facts, "MTU", 128u << lane->pairs[0].mtu);
  fact_number(facts, "inline", lane->pairs[0].inline_max);
  fact_text(facts, "keys", "%s",
            r->windows ? "of this session alone, by memory windows"
                       : "of any peer that learns them, as the device has no "
                         "memory windows");
  fact_number(facts, "registered_bytes", f->registered);
  fact_number(facts, "registrations", f->registrations);
  fact_number(facts, "posts", lane->posts);
  fact_number(facts, "polls_that_found", f->found);
  fact_number(facts, "resets", lane->resets);
}

/* Records, notes and breaks activate the session by themselves. */
static bool verbs_rests(struct lane *lane) {
  return lane->status == 0 && ring_rests(lane);
}

static const struct transport_fabric verbs_fabric_table = {
    .start = rails_start,
    .stop = verbs_stop,
    .look = rails_look,
    .turn = verbs_turn,
    .dead = verbs_dead,
    .descriptors = rails_descriptors,
    .ready = verbs_ready,
    .arm = rails_arm,
    .forget = verbs_forget,
    .forked = rails_forked,
};

static const struct transport_records verbs_records_table = {
    .reserve = verbs_reserve,
    .publish = verbs_publish,
    .peek = verbs_peek,
    .release = verbs_release,
};

static const struct transport_payloads verbs_payloads_table = {
    .mark = verbs_mark,
    .ended = verbs_ended,
    .live = verbs_live,
    .expose = verbs_expose,
    .feed = verbs_feed,
    .conceal = verbs_conceal,
    .fetch = verbs_fetch,
    .fetch_end = verbs_fetch_end,
};

static const struct transport_loans verbs_loans_table = {
    .loan = verbs_loan,
    .unloan = verbs_unloan,
    .loaned = verbs_loaned,
    .view = verbs_view,
};

static const struct transport_access verbs_access_table = {
    .export = verbs_export,
    .revoke = verbs_revoke,
    .inside = verbs_inside,
    .attach = verbs_attach,
};

static const struct transport_jobs verbs_jobs_table = {
    .reaches = verbs_reaches,
    .post = verbs_transfer,
    .flush = verbs_flush,
    .quiesce = verbs_quiesce,
};

static const struct transport_frames verbs_frames_table = {
    .say = verbs_say,
    .hear = verbs_hear,
    .drained = verbs_drained,
};

static const struct transport_alone verbs_alone_table = {
    .probe = verbs_probe,
    .met = verbs_met,
    .keepalive = verbs_keepalive,
};

const struct perigee_transport transport_verbs = {
    .name = "verbs",
    .fabric = &verbs_fabric_table,
    .records = &verbs_records_table,
    .payloads = &verbs_payloads_table,
    .loans = &verbs_loans_table,
    .access = &verbs_access_table,
    .jobs = &verbs_jobs_table,
    .frames = &verbs_frames_table,
    .alone = &verbs_alone_table,
    .open = verbs_open,
    .join = verbs_join,
    .close = verbs_close,
    .heard = pair_heard,
    .rests = verbs_rests,
    .broken = verbs_broken,
    .trouble = verbs_trouble,
    .cut = verbs_cut,
    .describe = verbs_describe,
};
