/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_stage.c - the owner's side of payloads (shm_payload.c): where the peer
 * gets them from, and filling staging blocks.
 *
 *   bytes, by the private memory of     near                far
 *   a peer that may be pulled from
 *   up to PLAIN                         copied to a turn    streamed to a turn
 *   more                                pulled              streamed to a turn
 *
 * A peer whose staging blocks are all of SHM_STAGE (an older build) has more than
 * that pulled. What finds no room in the stretch is pulled, too. Who may not be
 * pulled from copies to a turn what would be pulled, or to slots.
 *
 * What fits into its area is staged right behind its record, piece by piece,
 * while the receiver empties the pieces before. More goes by slots, as the
 * receiver empties them.
 */
#include "shm.h"

enum { PLAIN = 512 << 10 };
/* Of a payload that is staged at once: the least of a piece, and how many
 * pieces it may have. */
enum { PIECE = 8 << 10, PIECES = 8 };

/* A staging block, of the arena or one that is used in turn. */
struct staging {
  uint64_t block; /* its offset in the arena, plus one; 0: there is none */
  uint32_t area;  /* bytes that the payload passes through */
  uint32_t turn;  /* if it is used in turn */
  int32_t line;   /* the longest time that its first line took to come, ns */
  bool in_turn;
  bool streams; /* past the caches */
  bool tries;   /* the distance (shm_distance.c) */
};
_Static_assert(sizeof(struct staging) <= EXPOSURE_OWN, "there is room for it");

static uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

static struct staging *staging_of(struct exposure *e) {
  return (struct staging *)(void *)e->own;
}

static int64_t now(const struct lane *lane) {
  return lane->options.clock(lane->options.context);
}

/* As tell_fed, and measures how long the line takes to come from the peer. The
 * fence waits for all stores before it. */
static void tell_tried(struct lane *lane, struct exposure *e,
                       _Atomic uint64_t *word) {
  struct staging *s = staging_of(e);
  atomic_thread_fence(memory_order_seq_cst);
  int64_t begin = now(lane);
  atomic_exchange_explicit(word, e->fed, memory_order_acq_rel);
  int64_t took = now(lane) - begin;
  if (took > s->line)
    s->line = took < INT32_MAX ? (int32_t)took : INT32_MAX;
}

/* Tells the receiver how many bytes are staged. Release: after these bytes. If
 * the payload tries the distance, it does so before its first byte, when the
 * receiver has the line from an earlier payload, and after its last, when it has
 * waited for more: of a short one it may not have looked yet, and after a long
 * one its caches have dropped what is older. */
static void tell_fed(struct lane *lane, struct exposure *e) {
  const struct staging *s = staging_of(e);
  _Atomic uint64_t *word =
      (_Atomic uint64_t *)(void *)(lane->arena + s->block - 1);
  if (s->tries && (e->fed == 0 || e->fed == e->payload->total))
    tell_tried(lane, e, word);
  else
    atomic_store_explicit(word, e->fed, memory_order_release);
}

static void stage_in(struct lane *lane, struct exposure *e, struct payload *p,
                     int64_t offset) {
  struct staging *s = staging_of(e);
  s->block = (uint64_t)offset + 1;
  e->payload = p;
  e->fed = 0;
  tell_fed(lane, e);
  e->source =
      (struct source){.kind = SOURCE_STAGED,
                      .address = arena_address(lane, (uint64_t)offset),
                      .block = p->total,
                      .count = 1,
                      .stride = lane->options.sized ? s->area : p->total};
}

static int stage(struct lane *lane, struct exposure *e, struct payload *p) {
  int64_t offset = arena_take(lane, SHM_STAGE_HEAD + SHM_STAGE);
  if (offset < 0)
    return (int)offset;
  e->footprint = SHM_STAGE_HEAD + SHM_STAGE;
  staging_of(e)->area = (uint32_t)least(p->total, SHM_STAGE);
  stage_in(lane, e, p, offset);
  return PERIGEE_OK;
}

static uint32_t area_of(uint64_t bytes) {
  return (uint32_t)least(bytes, TURN_AREA);
}

/* Is that better staged in a turn than read where it is? */
static bool prefers_turn(const struct lane *lane, uint64_t bytes) {
  const struct shm_distance *d = &lane->distance;
  if (bytes > SHM_STAGE && !lane->options.sized)
    return false;
  return bytes <= PLAIN || d->far || distance_due(d) || !lane->peer_pulls;
}

/* A payload that is not staged counts here, and otherwise in shm_expose. */
bool shm_stages(struct lane *lane, uint64_t bytes) {
  if (prefers_turn(lane, bytes) && turns_room(lane, area_of(bytes)))
    return true;
  distance_pass(&lane->distance);
  return false;
}

static bool stage_in_turn(struct lane *lane, struct exposure *e,
                          struct payload *p) {
  const struct shm_distance *d = &lane->distance;
  struct staging *s = staging_of(e);
  uint32_t area = area_of(p->total);
  bool may = p->memory->direct && prefers_turn(lane, p->total);
  int64_t offset = may ? turns_take(lane, e, p->total, area, &s->turn) : -1;
  if (offset < 0)
    return false;
  s->area = area;
  s->in_turn = true;
  s->streams =
      p->count == 1 && (d->far || (p->total > PLAIN && lane->peer_pulls));
  s->tries = distance_due(d);
  e->at_once = area == p->total;
  stage_in(lane, e, p, offset);
  return true;
}

int shm_expose(struct lane *lane, struct exposure *e, struct payload *p) {
  *staging_of(e) = (struct staging){0};
  e->payload = NULL;
  e->at_once = false;
  bool staged = stage_in_turn(lane, e, p);
  distance_pass(&lane->distance);
  if (staged)
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
static uint64_t stage_next(const struct lane *lane, struct exposure *e) {
  const struct payload *p = e->payload;
  uint64_t area = staging_of(e)->area;
  uint64_t room = area - (e->fed - taken(lane, e));
  uint64_t left = p->total - e->fed;
  if (!p->memory->direct)
    return least(least(left, room), area - e->fed % area);
  uint64_t n = least(left, SHM_SLOT - e->fed % SHM_SLOT);
  return n <= room ? n : 0;
}

static int64_t stage_some(struct lane *lane, struct exposure *e, uint64_t n) {
  const struct staging *s = staging_of(e);
  uint8_t *block = lane->arena + s->block - 1;
  uint8_t *to = block + SHM_STAGE_HEAD + e->fed % s->area;
  int64_t moved = s->streams ? payload_stream(e->payload, to, n)
                             : payload_take(e->payload, to, n);
  if (moved <= 0)
    return moved;
  e->fed += (uint64_t)moved;
  tell_fed(lane, e);
  return moved;
}

/* The receiver empties one piece while the next is filled. */
static int64_t stage_at_once(struct lane *lane, struct exposure *e) {
  bool copies = !staging_of(e)->streams;
  uint64_t total = e->payload->total, piece = total / PIECES;
  int64_t begin = copies ? now(lane) : 0;
  while (e->fed < total)
    stage_some(lane, e, least(total - e->fed, piece > PIECE ? piece : PIECE));
  if (copies)
    distance_copied(&lane->distance, total, now(lane) - begin);
  return (int64_t)total;
}

/* Stages what the area has room for, a slot at most. */
static int64_t stage_slot(struct lane *lane, struct exposure *e) {
  uint64_t n = stage_next(lane, e);
  return n > 0 ? stage_some(lane, e, n) : 0;
}

/* All of it is staged, in a turn. */
static void end_turn(struct lane *lane, const struct staging *s) {
  turns_filled(lane, s->turn);
  if (s->tries)
    distance_learn(&lane->distance, s->line);
}

int64_t shm_feed(struct lane *lane, struct exposure *e) {
  struct staging *s = staging_of(e);
  if (!e->payload || e->fed == e->payload->total)
    return 0;
  int64_t moved = e->at_once ? stage_at_once(lane, e) : stage_slot(lane, e);
  if (s->in_turn && e->fed == e->payload->total)
    end_turn(lane, s);
  return moved;
}

void shm_conceal(struct lane *lane, struct exposure *e) {
  struct staging *s = staging_of(e);
  if (s->block && s->in_turn)
    turns_give(lane, s->turn);
  else if (s->block)
    arena_give(lane, s->block - 1);
  s->block = 0;
  e->payload = NULL;
}
