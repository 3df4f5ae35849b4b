/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_transfer.c - copies between our memory and the peer's, as work
 * requests.
 *
 * A request is contiguous at the peer; here it is a list of up to SGES entries.
 * Short writes are copied into the request (inline), which needs no key.
 *
 * Data pairs take turns: a job begins on the next one and stays there until a
 * stripe is full, so that a batch of short items is one chain. A longer item is
 * divided into shares of at least a stripe. Pairs without room are skipped.
 */
#include "verbs.h"

enum { KEPT = 2 }; /* slots of each pair that are reserved for marks */
static const int64_t QUIESCE_AFTER = 2 * 1000000; /* ns */

struct move {
  struct job *job;
  const struct remote_key *key;
  struct payload *remote, *local;
  bool write;
};

struct list {
  struct ibv_sge entry[SGES];
  int count;
  uint64_t bytes;
};

/* ---- One work request ---------------------------------------------------- */

/* Is the whole walk within the memory? The peer may have given its shape. */
static bool move_is_inside(const struct payload *p, uint64_t length) {
  uint64_t end;
  return p->count > 0 &&
         !__builtin_mul_overflow(p->count - 1, p->stride, &end) &&
         !__builtin_add_overflow(end, p->block, &end) &&
         !__builtin_add_overflow(end, (uintptr_t)p->base, &end) &&
         end <= length;
}

/* Returns the offset of the present position, and the contiguous bytes
 * there. */
static uint64_t move_remote_run(const struct payload *p, uint64_t *length) {
  uint64_t base = (uintptr_t)p->base;
  if (p->count == 1) {
    *length = p->total - p->done;
    return base + p->done;
  }
  uint64_t within = p->done % p->block;
  *length = p->block - within;
  return base + p->done / p->block * p->stride + within;
}

static uint64_t pair_most_bytes(const struct pair *pair) {
  uint32_t most = pair->rail->state.max_msg_sz;
  return most > 0 && most < SEGMENT ? most : SEGMENT;
}

static int pair_most_entries(const struct pair *pair, bool write) {
  const struct ibv_device_attr *a = &pair->rail->attr;
  int most = a->max_sge < SGES ? a->max_sge : SGES;
  if (!write && a->max_sge_rd < most)
    most = a->max_sge_rd;
  return most > 0 ? most : 1;
}

/* Finds the key of the next bytes, of which `good` have it. Registering them may
 * find that they are read-only. */
static int move_key(const struct pair *pair, const struct payload *local,
                    const uint8_t *at, bool reads, uint32_t *key,
                    uint64_t *good) {
  uint64_t end;
  struct area *area = payload_area(local, local->done, &end);
  if (!area)
    return PERIGEE_UNSUPPORTED;
  int status = keys_local(pair->rail, area, at, key, good);
  return status == 0 && reads && area->read_only ? PERIGEE_UNSUPPORTED : status;
}

/* Adds an entry of at most that many bytes. 0 or a status. */
static int move_add_entry(struct pair *pair, struct payload *local,
                          uint64_t most, bool keyed, bool reads,
                          struct list *list) {
  uint64_t run, good = most;
  uint32_t key = 0;
  uint8_t *at = payload_run(local, &run);
  int status = keyed ? move_key(pair, local, at, reads, &key, &good) : 0;
  if (status < 0)
    return status;
  run = least(run, least(good, most));
  if (run == 0) /* some devices take a length of 0 for 2 GiB */
    return PERIGEE_UNSUPPORTED;
  list->entry[list->count++] =
      (struct ibv_sge){(uintptr_t)at, (uint32_t)run, key};
  list->bytes += run;
  local->done += run;
  return PERIGEE_OK;
}

/* Lists as many of the next bytes as possible; a status only if there are
 * none. */
static int move_gather(struct pair *pair, const struct move *m, uint64_t bytes,
                       bool keyed, struct list *list) {
  struct payload *local = m->local;
  int most = pair_most_entries(pair, m->write), status = PERIGEE_OK;
  while (status == PERIGEE_OK && list->bytes < bytes && list->count < most)
    status = move_add_entry(pair, local, bytes - list->bytes, keyed, !m->write,
                            list);
  if (!m->write && local->area && local->area->read_only) {
    local->done -= list->bytes;
    return PERIGEE_UNSUPPORTED;
  }
  return list->count > 0 ? PERIGEE_OK : status;
}

/* Fills a slot with at most limit bytes; returns their number, or a status. */
static int64_t move_fill_slot(struct pair *pair, const struct move *m,
                              uint64_t limit) {
  uint64_t run, at = move_remote_run(m->remote, &run);
  run = least(least(run, m->local->total - m->local->done),
              least(limit, pair_most_bytes(pair)));
  bool inlined =
      m->write && run <= pair->inline_max && m->local->memory->direct;
  struct list list;
  list.count = 0;
  list.bytes = 0;
  int status = move_gather(pair, m, run, !inlined, &list);
  if (status < 0)
    return status;
  struct slot *slot = pair_slot(pair, m->job);
  slot->opcode = m->write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
  slot->remote = m->key->base + at;
  slot->rkey = m->key->rkey[pair->index];
  slot->bytes = list.bytes;
  slot->inlined = inlined;
  slot->sges = (uint8_t)list.count;
  for (int i = 0; i < list.count; i++)
    slot->sge[i] = list.entry[i];
  m->remote->done += list.bytes;
  m->job->posted += list.bytes;
  return (int64_t)list.bytes;
}

/* ---- Turns --------------------------------------------------------------- */

static bool pair_has_room(const struct pair *pair) {
  return pair_room(pair) > KEPT;
}

static void lane_next_turn(struct lane *lane) {
  lane->turn = lane->turn + 2 < lane->pair_count ? lane->turn + 1 : 0;
}

static struct pair *lane_pair_in_turn(struct lane *lane) {
  for (uint32_t i = 0; i < lane->pair_count; i++) {
    struct pair *pair = &lane->pairs[1 + lane->turn];
    if (pair->state == PAIR_UP && pair_has_room(pair))
      return pair;
    lane_next_turn(lane);
  }
  return NULL;
}

/* Returns the bytes of an item that one pair gets at a time; 0: it is not
 * divided. The last share is what is left. */
static uint64_t move_share(const struct lane *lane, uint64_t total) {
  const uint64_t stripe = lane->fabric->options.stripe;
  if (lane->pair_count <= 2 || total < 2 * stripe)
    return 0;
  uint64_t pairs = lane->pair_count - 1;
  uint64_t shares = least(total / stripe, pairs);
  uint64_t share = (total + shares - 1) / shares;
  return least(share, 2 * stripe > SEGMENT ? 2 * stripe : SEGMENT);
}

/* After n bytes of the job: passes the turn to the next pair, if it is time. */
static void move_pass_turn(struct lane *lane, const struct move *m,
                           uint64_t share, uint64_t n) {
  const uint64_t stripe = lane->fabric->options.stripe;
  uint64_t posted = m->job->posted;
  if (share ? m->remote->done % share == 0
            : posted >= stripe && posted / stripe != (posted - n) / stripe)
    lane_next_turn(lane);
}

/* Posts on the pair, or on that whose turn it is. Bytes, 0 or a status. */
static int64_t move_some(struct lane *lane, struct pair *pair,
                         const struct move *m, uint64_t share, uint64_t limit) {
  struct pair *on = pair ? pair : lane_pair_in_turn(lane);
  if (!on || !pair_has_room(on))
    return 0;
  if (share)
    limit = least(limit, share - m->remote->done % share);
  int64_t n = move_fill_slot(on, m, limit);
  if (n > 0 && !pair)
    move_pass_turn(lane, m, share, (uint64_t)n);
  return n;
}

int64_t lane_move(struct lane *lane, struct job *job,
                  const struct remote_key *key, struct payload *remote,
                  struct payload *local, bool write, struct pair *pair,
                  uint64_t limit) {
  if (lane->status < 0 || lane->cut)
    return lane->status < 0 ? lane->status : PERIGEE_CLOSED;
  if (!move_is_inside(remote, key->length))
    return PERIGEE_PROTOCOL;
  if (!pair && job->posted == 0)
    lane_next_turn(lane);
  const struct move m = {job, key, remote, local, write};
  uint64_t share = pair ? 0 : move_share(lane, remote->total), moved = 0;
  int64_t n = 1;
  limit = least(
      limit, least(remote->total - remote->done, local->total - local->done));
  while (n > 0 && moved < limit) {
    n = move_some(lane, pair, &m, share, limit - moved);
    if (n > 0)
      moved += (uint64_t)n;
  }
  return moved > 0 ? (int64_t)moved : n < 0 ? n : 0;
}

/* ---- The transport's ----------------------------------------------------- */

bool verbs_reaches(struct lane *lane, const struct window *window,
                   const struct payload *local) {
  const struct area *before = NULL;
  uint64_t at = local->done;
  if (!window->attached)
    return false;
  do {
    struct area *area = payload_area(local, at, &at);
    if (!area || (area != before && !keys_reach(lane, area)))
      return false;
    before = area;
  } while (at < local->total);
  return true;
}

int verbs_transfer(struct lane *lane, struct job *job,
                   const struct window *window, struct payload *remote,
                   struct payload *local, bool write) {
  if (job->status < 0)
    return job->status;
  if (local->done == local->total)
    return 1;
  const struct remote_key *key =
      remote_key_find(lane, ID_REGION + window->slot);
  /* Generations of a slot grow: an older one means that the grant is on its
   * way. */
  if (!key || key->generation < window->generation)
    return lane->status;
  if (key->revoked || key->generation != window->generation)
    return PERIGEE_STALE;
  int64_t n = lane_move(lane, job, key, remote, local, write, NULL, UINT64_MAX);
  if (n < 0)
    return (int)n;
  return local->done == local->total;
}

void verbs_flush(struct lane *lane) {
  for (uint32_t i = 0; i < lane->pair_count; i++)
    if (lane->pairs[i].posted != lane->pairs[i].filled)
      pair_post(&lane->pairs[i]);
}

/* ---- Quiescing ----------------------------------------------------------- */

bool verbs_quiesce(struct lane *lane, struct job *job) {
  const struct fabric_options *o = &lane->fabric->engine;
  if (job->pending > 0) {
    int64_t now = o->clock(o->context);
    if (job->quiescing == 0) {
      job->quiescing = now > 0 ? now : 1;
      verbs_flush(lane);
    } else {
      verbs_turn(lane->fabric); /* for callers that wait here for the end */
      if (now - job->quiescing >= QUIESCE_AFTER)
        lane_fence(lane, job);
    }
  }
  if (job->pending > 0)
    return false;
  job->quiescing = 0;
  return true;
}
