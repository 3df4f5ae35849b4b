/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_stage.c - the owner's side of payloads (shm_payload.c): where the peer
 * pulls them from, and filling staging blocks.
 */
#include "shm.h"

/* Of a payload that is staged at once: the least of a piece, and how many
 * pieces it may have. */
enum { TURN_PIECE = 8 << 10, TURN_PIECES = 8 };

/* A staging block, of the arena or one that is used in turn. */
struct staging {
  uint64_t block; /* its offset in the arena, plus one; 0: there is none */
  uint32_t turn;  /* if the exposure is at_once */
};
_Static_assert(sizeof(struct staging) <= EXPOSURE_OWN, "there is room for it");

static uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

static struct staging *staging_of(struct exposure *e) {
  return (struct staging *)(void *)e->own;
}

static void stage_in(struct lane *lane, struct exposure *e, struct payload *p,
                     int64_t offset) {
  staging_of(e)->block = (uint64_t)offset + 1;
  e->payload = p;
  e->fed = 0;
  atomic_store_explicit((_Atomic uint64_t *)(void *)(lane->arena + offset), 0,
                        memory_order_release);
  e->source = (struct source){.kind = SOURCE_STAGED,
                              .address = arena_address(lane, (uint64_t)offset),
                              .block = p->total,
                              .count = 1,
                              .stride = p->total};
}

static int stage(struct lane *lane, struct exposure *e, struct payload *p) {
  int64_t offset = arena_take(lane, SHM_STAGE_HEAD + SHM_STAGE);
  if (offset < 0)
    return (int)offset;
  e->footprint = SHM_STAGE_HEAD + SHM_STAGE;
  stage_in(lane, e, p, offset);
  return PERIGEE_OK;
}

bool shm_at_once(struct lane *lane, uint64_t bytes) {
  return bytes <= SHM_STAGE && turns_room(lane, bytes);
}

static bool stage_in_turn(struct lane *lane, struct exposure *e,
                          struct payload *p) {
  bool may = p->memory->direct && p->total <= SHM_STAGE;
  int64_t offset =
      may ? turns_take(lane, e, p->total, &staging_of(e)->turn) : -1;
  if (offset < 0)
    return false;
  e->at_once = true;
  stage_in(lane, e, p, offset);
  return true;
}

int shm_expose(struct lane *lane, struct exposure *e, struct payload *p) {
  *staging_of(e) = (struct staging){0};
  e->payload = NULL;
  e->at_once = false;
  if (stage_in_turn(lane, e, p))
    return PERIGEE_OK;
  if (!lane->peer_pulls || !p->memory->direct)
    return stage(lane, e, p);
  e->source = (struct source){.kind = SOURCE_PRIVATE,
                              .address = (uint64_t)(uintptr_t)p->base,
                              .block = p->block,
                              .count = p->count,
                              .stride = p->stride};
  return PERIGEE_OK;
}

/* Acquire: pairs with the receiver's release behind its copy (ack), so that copy
 * is over before the block is written again. */
uint64_t shm_acked(const struct lane *lane, uint16_t operation, uint8_t part,
                   uint32_t generation) {
  uint64_t ack = atomic_load_explicit(&lane->peer->acks[operation][part],
                                      memory_order_acquire);
  uint64_t bytes = ack & ((UINT64_C(1) << SHM_ACK_SHIFT) - 1);
  return (ack ^ shm_ack_tag(generation)) >> SHM_ACK_SHIFT ? 0 : bytes;
}

/* Returns how many of the staged bytes the receiver has taken. */
static uint64_t taken(const struct lane *lane, const struct exposure *e) {
  uint64_t bytes = shm_acked(lane, e->operation, e->part, e->generation);
  return bytes > e->fed ? 0 : bytes;
}

/* Returns the bytes that may be staged now. The CPU fills one slot, which the
 * receiver empties while the next is filled. Memory that copies asynchronously
 * is asked to fill all free room. */
static uint64_t stage_next(const struct lane *lane, const struct exposure *e) {
  const struct payload *p = e->payload;
  uint64_t room = SHM_STAGE - (e->fed - taken(lane, e));
  uint64_t left = p->total - e->fed;
  if (!p->memory->direct)
    return least(least(left, room), SHM_STAGE - e->fed % SHM_STAGE);
  uint64_t n = least(left, SHM_SLOT - e->fed % SHM_SLOT);
  return n <= room ? n : 0;
}

static int64_t stage_some(struct lane *lane, struct exposure *e, uint64_t n) {
  const struct staging *s = staging_of(e);
  uint8_t *block = lane->arena + s->block - 1;
  int64_t moved =
      payload_take(e->payload, block + SHM_STAGE_HEAD + e->fed % SHM_STAGE, n);
  if (moved <= 0)
    return moved;
  e->fed += (uint64_t)moved;
  atomic_store_explicit((_Atomic uint64_t *)(void *)block, e->fed,
                        memory_order_release);
  return moved;
}

/* The receiver empties one piece while the next is filled. */
static int64_t stage_all(struct lane *lane, struct exposure *e) {
  const struct lane_options *o = &lane->options;
  uint64_t total = e->payload->total, piece = total / TURN_PIECES;
  int64_t begin = o->clock(o->context);
  while (e->fed < total)
    stage_some(lane, e,
               least(total - e->fed, piece > TURN_PIECE ? piece : TURN_PIECE));
  turns_took(lane, staging_of(e)->turn, total, o->clock(o->context) - begin);
  return (int64_t)total;
}

int64_t shm_feed(struct lane *lane, struct exposure *e) {
  if (!e->payload || e->fed == e->payload->total)
    return 0;
  if (e->at_once)
    return stage_all(lane, e);
  uint64_t n = stage_next(lane, e);
  return n > 0 ? stage_some(lane, e, n) : 0;
}

void shm_conceal(struct lane *lane, struct exposure *e) {
  struct staging *s = staging_of(e);
  if (s->block && e->at_once)
    turns_give(lane, s->turn);
  else if (s->block)
    arena_give(lane, s->block - 1);
  s->block = 0;
  e->payload = NULL;
}
