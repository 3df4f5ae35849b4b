/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_stage.c - the owner's side of payloads (shm_payload.c): where the peer
 * gets them from, and filling staging blocks.
 *
 *   bytes                  near                         far
 *   up to PLAIN            copied to a block in turn    streamed to one
 *   up to TURN_MOST        pulled, but for trials       streamed to one
 *   more                   pulled                       pulled
 *
 * That is so of one piece of memory; far, and above PLAIN, strides are pulled. A
 * peer whose blocks have SHM_STAGE at most (an older build) has more pulled.
 * Whatever finds no block in turn is pulled, too; where the peer may not pull,
 * it goes by eight slots. A trial, of the distance (shm_distance.c), is streamed
 * if it would have been pulled.
 *
 * A payload in a block in turn is staged right behind its record, piece by
 * piece, while the receiver empties the pieces before. So it needs its owner no
 * more, who may compute next.
 */
#include "shm.h"

enum { PLAIN = 512 << 10 };
/* Of a payload in a block in turn: the least of a piece, and how many pieces it
 * may have. */
enum { PIECE = 8 << 10, PIECES = 8 };

/* A staging block, of the arena or one that is used in turn. */
struct staging {
  uint64_t block; /* its offset in the arena, plus one; 0: there is none */
  uint32_t area;  /* bytes that the payload passes through */
  uint32_t turn;  /* if at_once: of a block in turn */
  bool fresh;     /* nothing was written there before */
  bool streams;   /* past the caches */
  bool tries;     /* the distance */
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

/* Where in a payload the line with `fed` is tried: of a long one behind the last
 * byte, for which the receiver waits; of a short one, which the receiver may not
 * have looked at by then, before the first, when it has the line from an earlier
 * payload. */
static bool tries_here(const struct exposure *e, const struct staging *s) {
  uint64_t total = e->payload->total;
  return s->tries &&
         (total >= PIECE * PIECES ? e->fed == total : e->fed == 0 && !s->fresh);
}

/* Stores `fed`, and measures how long the line takes to come: less what a
 * reading of the clock takes, and when all stores before it are done. (Not
 * inline: GCC says of such a fence that ThreadSanitizer knows none.) */
static __attribute__((noinline)) void try_line(struct lane *lane, uint64_t fed,
                                               _Atomic uint64_t *word) {
  atomic_thread_fence(memory_order_seq_cst);
  int64_t before = now(lane), begin = now(lane);
  atomic_exchange_explicit(word, fed, memory_order_acq_rel);
  distance_learn(&lane->distance, now(lane) - begin - (begin - before));
}

/* Tells the receiver how many bytes are staged. Release: after these bytes. */
static void tell_fed(struct lane *lane, struct exposure *e) {
  const struct staging *s = staging_of(e);
  _Atomic uint64_t *word =
      (_Atomic uint64_t *)(void *)(lane->arena + s->block - 1);
  if (tries_here(e, s))
    try_line(lane, e->fed, word);
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

/* Is it better staged in turn than read where it is? */
static bool prefers_turn(const struct lane *lane, uint64_t bytes,
                         bool one_piece) {
  const struct shm_distance *d = &lane->distance;
  if (bytes > (lane->options.sized ? TURN_MOST : SHM_STAGE))
    return false;
  return one_piece ? bytes <= PLAIN || d->far || distance_due(d)
                   : bytes <= PLAIN && !d->far;
}

/* A payload that is not staged counts here, and otherwise in shm_expose. */
bool shm_stages(struct lane *lane, uint64_t bytes) {
  if (prefers_turn(lane, bytes, true) && turns_room(lane, (uint32_t)bytes))
    return true;
  distance_pass(&lane->distance);
  return false;
}

static bool stage_in_turn(struct lane *lane, struct exposure *e,
                          struct payload *p) {
  const struct shm_distance *d = &lane->distance;
  struct staging *s = staging_of(e);
  int64_t offset = -1;
  if (p->memory->direct && prefers_turn(lane, p->total, p->count == 1))
    offset = turns_take(lane, e, (uint32_t)p->total, &s->turn, &s->fresh);
  if (offset < 0)
    return false;
  s->area = (uint32_t)p->total;
  s->streams = d->far || p->total > PLAIN;
  s->tries = distance_due(d);
  e->at_once = true;
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
uint64_t shm_acked(struct lane *lane, uint16_t operation, uint8_t part,
                   uint32_t generation) {
  const _Atomic uint64_t *word = &lane->peer->acks[operation][part];
  if (!there_word(lane, word))
    return 0;
  uint64_t ack = atomic_load_explicit(word, memory_order_acquire);
  uint64_t bytes = ack & ((UINT64_C(1) << SHM_ACK_SHIFT) - 1);
  return (ack ^ shm_ack_tag(generation)) >> SHM_ACK_SHIFT ? 0 : bytes;
}

/* Returns how many of the staged bytes the receiver has taken. */
static uint64_t taken(struct lane *lane, const struct exposure *e) {
  uint64_t bytes = shm_acked(lane, e->operation, e->part, e->generation);
  return bytes > e->fed ? 0 : bytes;
}

/* Returns the bytes that may be staged now. The CPU fills one slot, which the
 * receiver empties while the next is filled. Memory that copies asynchronously
 * is asked to fill all free room. */
static uint64_t stage_next(struct lane *lane, const struct exposure *e) {
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
  const struct staging *s = staging_of(e);
  uint64_t total = e->payload->total, piece = total / PIECES;
  int64_t begin = s->streams ? 0 : now(lane);
  while (e->fed < total)
    stage_some(lane, e, least(total - e->fed, piece > PIECE ? piece : PIECE));
  turns_filled(lane, s->turn);
  if (!s->streams && !s->fresh)
    distance_copied(&lane->distance, total, now(lane) - begin);
  return (int64_t)total;
}

int64_t shm_feed(struct lane *lane, struct exposure *e) {
  if (!e->payload || e->fed == e->payload->total)
    return 0;
  if (e->at_once)
    return stage_at_once(lane, e);
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
