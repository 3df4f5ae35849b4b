/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_stage.c - the owner's side of payloads (shm_payload.c has the
 * receiver's): where the peer gets them from, and filling staging blocks.
 * way_of answers where a payload goes:
 *
 *   bytes                  near                         far
 *   up to SHM_TURN_MOST    as the peer prefers          streamed to a block
 *                          (shm_ways.c): copied to a    in turn
 *                          block in turn, or pulled
 *   more                   as the peer prefers, if it   through a window
 *                          is alone: through a window,
 *                          or pulled
 *
 * A peer that has not said what it prefers has up to PLAIN copied. A payload is
 * alone if no other one is under way on the lane: else both cores are busy, and
 * the owner's copy would only be one more. Nobody tells when the peer has pulled
 * one, so it is under way until its call ends, however long that runs.
 *
 * The table is for one piece of memory; strides are copied up to PLAIN near, and
 * else pulled. More is pulled if the peer's blocks have SHM_STAGE at most (an
 * older build). A payload that finds no block in turn is pulled, too; if the peer
 * may not pull, it goes by eight slots. A trial of the distance goes to a block
 * in turn, or through a short window.
 *
 * A payload in a block in turn is staged right behind its record, piece by
 * piece, while the receiver empties the pieces before. Its owner may compute
 * next, as the payload needs it no more.
 *
 * Window. A longer payload passes through a block in turn that is shorter than
 * it (WINDOW). Its owner stages as much as there is room for behind the record,
 * and goes on in its polls. If an owner does not poll, the receiver pulls a piece
 * from where the payload lies, which the block's head says, and acknowledges it.
 * The owner goes on behind what was taken, whoever brought it. At worst both
 * bring the same piece.
 *
 * Blocks in turn lie in a stretch of the arena that is longer than a core's own
 * cache. A payload that is pulled from private memory leaves its lines in the
 * cache of the core that read it, and its owner takes about three times as long
 * to write them anew. So do slots that are used again at once. A line that is
 * used again only when both cores' own caches have dropped it is written from
 * the shared cache.
 *
 * Blocks lie one behind the other and are free again in that order, each when
 * its exposure ends or the peer has all of the payload: a call that runs long
 * keeps none, but a message that nobody receives does. Nobody waits for a
 * block: if there is no room at once, the payload goes another way.
 *
 *   stretch   event                                        becomes
 *   none      STRETCH_PAYS bytes would have been staged
 *             within SHM_WINDOW, and share and arena have
 *             room                                         there
 *   there     no block was in use since the look before
 *             the last, or a loan needs the room           none
 *   there     no block is in use, and a payload is longer  longer
 *
 * A poll holds nobody up for long, so pages for a long block are made by some
 * payloads that are pulled (turns_reach).
 *
 * The stretch counts for its share (SHARE_STAGED) and not among the blocks that
 * may be lent, which all belong to the lender (operation/loan.c).
 */
#include "memory/backing.h"
#include "shm.h"

enum { PLAIN = 512 << 10 };

/* The least piece of a payload in a block in turn, how many pieces it may have,
 * and the least piece of a payload that has few. */
enum { PIECE = 8 << 10, PIECES = 8, PIECE_SHORT = 4 << 10 };

/* The most bytes of a window, and those of one that only tries the distance.
 * Slots that are used again at once are slow: at 4 MiB, those of a window of
 * 256 KiB took five times as long as those of 1.5 MiB. */
enum { WINDOW = SHM_TURN_MOST, WINDOW_TRIES = SHM_STAGE };

_Static_assert(WINDOW % SHM_SLOT == 0 && WINDOW_TRIES % SHM_SLOT == 0,
               "the peer divides it by slots");

/* A staging block, of the arena or one that is used in turn. */
struct staging {
  uint64_t block; /* its offset in the arena, plus one; 0: there is none */
  uint32_t area;  /* bytes that the payload passes through */
  uint32_t turn;  /* if at_once: of a block in turn, or of a window */
  bool fresh;     /* nothing was written there before */
  bool streams;   /* past the caches */
  bool tries;     /* the distance */
};

_Static_assert(sizeof(struct staging) <= EXPOSURE_OWN, "there is room for it");

static struct staging *staging_of(struct exposure *e) {
  return (struct staging *)(void *)e->own;
}

/* ---- The stretch --------------------------------------------------------- */

enum { STRETCH_PAYS = 2 << 20, STRETCH_MAX = 4 << 20 };

_Static_assert(SHM_TURN_MOST + SHM_STAGE_HEAD < STRETCH_MAX, "a block fits");

/* The most pages that one payload makes, in bytes: they take 0.7 us a KiB. */
enum { FRESH_MOST = 1 << 20 };

/* Returns how many bytes of a staged payload the peer says to have taken.
 * Acquire: pairs with the receiver's release behind its copy (fetch_ack), so
 * that copy is over before the block is written again. */
static uint64_t staging_acked(struct lane *lane, uint16_t operation,
                              uint8_t part, uint32_t generation) {
  const _Atomic uint64_t *word = &lane->peer->acks[operation][part];
  if (!there_word(lane, word))
    return 0;
  uint64_t ack = atomic_load_explicit(word, memory_order_acquire);
  uint64_t bytes = ack & ((UINT64_C(1) << SHM_ACK_SHIFT) - 1);
  return (ack ^ shm_ack_tag(generation)) >> SHM_ACK_SHIFT ? 0 : bytes;
}

/* Returns the bytes, from the stretch's begin on, over which blocks of that length
 * take turns. */
static uint32_t turns_over(const struct lane *lane, uint32_t length) {
  uint64_t over =
      length <= lane->dropped ? lane->dropped : blocks_whole(length);
  return (uint32_t)least(over, STRETCH_MAX);
}

/* Do so many bytes more pay for a stretch? A side that stages little would only
 * meet new pages. */
static __attribute__((noinline)) bool turns_pay(struct lane *lane,
                                                uint64_t bytes) {
  struct shm_flow *wanted = &lane->turns.wanted;
  if (flow_add(wanted, *lane->options.now, bytes) < STRETCH_PAYS)
    return false;
  wanted->bytes = 0;
  return true;
}

static __attribute__((noinline)) bool turns_begin(struct lane *lane,
                                                  uint32_t size) {
  struct shm_turns *t = &lane->turns;
  int64_t offset = arena_stage(lane, size);
  if (offset < 0)
    return false;
  t->stretch = (uint64_t)offset;
  t->size = size;
  t->next = t->touched = 0;
  return true;
}

static struct shm_turn *turn_of(struct shm_turns *t, uint32_t number) {
  return &t->blocks[number % SHM_TURNS];
}

/* The peer may say of any block that it has taken all. One that is still to be
 * filled stays, as the stretch could be gone by then. */
static bool turn_is_over(struct lane *lane, const struct shm_turn *b) {
  return b->total == 0 ||
         (b->filled && staging_acked(lane, b->operation, b->part,
                                     b->generation) == b->total);
}

/* A peer that lies about what it has taken reads other bytes than its own. */
static void turns_drop_oldest(struct lane *lane) {
  struct shm_turns *t = &lane->turns;
  while (t->count > 0 && turn_is_over(lane, turn_of(t, t->first))) {
    t->first++;
    t->count--;
  }
}

bool turns_end(struct lane *lane, bool all) {
  struct shm_turns *t = &lane->turns;
  bool idle = all || *lane->options.look - t->used > 1;
  if (t->size == 0 || !idle)
    return false;
  turns_drop_oldest(lane);
  if (t->count > 0)
    return false;
  arena_unstage(lane, t->stretch, t->size);
  t->size = 0;
  return true;
}

/* ---- Blocks in turn ------------------------------------------------------ */

static uint32_t turn_length(uint32_t bytes) {
  return SHM_STAGE_HEAD + ((bytes + SHM_PAGE - 1) & ~(uint32_t)(SHM_PAGE - 1));
}

/* Returns where a block may begin, or -1. Blocks never fill the stretch, so
 * `next` is at the oldest one only if there is none. */
static int64_t turns_place(struct lane *lane, uint32_t length) {
  struct shm_turns *t = &lane->turns;
  uint32_t oldest = turn_of(t, t->first)->at;
  uint32_t size = (uint32_t)least(t->size, turns_over(lane, length));
  uint32_t behind = size > t->next ? size - t->next : 0;
  if (t->count == SHM_TURNS || length > size)
    return -1;
  if (t->count == 0)
    return length <= behind ? t->next : 0;
  if (t->next < oldest)
    return length < oldest - t->next ? (int64_t)t->next : -1;
  if (length <= behind)
    return t->next;
  return length < oldest ? 0 : -1;
}

/* Makes way for a stretch of that size, if there may be one, and none is in
 * use. */
static bool turns_yield(struct lane *lane, uint32_t size) {
  struct share *share = lane->options.share;
  uint32_t more = size - lane->turns.size;
  return (!share || share_may(share, SHARE_STAGED, more)) &&
         turns_end(lane, true);
}

/* Does the stretch have a block of that length? */
static bool turns_have(struct lane *lane, uint32_t length, uint64_t bytes) {
  if (length <= lane->turns.size)
    return true;
  uint32_t size = turns_over(lane, length);
  bool may =
      lane->turns.size > 0 ? turns_yield(lane, size) : turns_pay(lane, bytes);
  return may && turns_begin(lane, size);
}

/* Are there pages up to `end`, or nearly so? Else some of them are made, for a
 * later payload. */
static bool turns_reach(struct lane *lane, uint64_t end) {
  struct shm_turns *t = &lane->turns;
  if (end <= t->touched + (uint64_t)FRESH_MOST)
    return true;
  if (backing_populate(lane->arena + t->stretch + t->touched, FRESH_MOST))
    t->touched += FRESH_MOST;
  return false;
}

/* Returns where a block of that length may begin now, for a payload of so many
 * bytes, or -1. */
static int64_t turns_find(struct lane *lane, uint32_t length, uint64_t bytes) {
  if (!turns_have(lane, length, bytes))
    return -1;
  int64_t at = turns_place(lane, length);
  if (at < 0) {
    turns_drop_oldest(lane);
    at = turns_place(lane, length);
  }
  return at >= 0 && turns_reach(lane, (uint64_t)at + length) ? at : -1;
}

/* Takes the block that begins at `at`, as turns_find said, for a payload of
 * `total` bytes, and returns its offset in the arena. s->turn names it for
 * turns_give, which may come late: once the peer has all of the payload, the
 * block is free. */
static int64_t turns_take(struct lane *lane, const struct exposure *e,
                          struct staging *s, uint64_t total, uint32_t at) {
  struct shm_turns *t = &lane->turns;
  s->turn = t->first + t->count++;
  *turn_of(t, s->turn) = (struct shm_turn){.at = at,
                                           .total = total,
                                           .generation = e->generation,
                                           .operation = e->operation,
                                           .part = e->part};
  t->next = at + turn_length(s->area);
  t->used = *lane->options.look;
  s->fresh = t->next > t->touched;
  if (s->fresh)
    t->touched = t->next;
  return (int64_t)t->stretch + at;
}

static void turns_give(struct lane *lane, uint32_t turn) {
  struct shm_turns *t = &lane->turns;
  if (turn - t->first >= t->count)
    return; /* the peer had all of it long ago */
  turn_of(t, turn)->total = 0;
  t->used = *lane->options.look;
  turns_drop_oldest(lane);
}

/* All of the payload was staged. */
static void turns_filled(struct lane *lane, uint32_t turn) {
  turn_of(&lane->turns, turn)->filled = true;
}

/* ---- Where a payload goes ------------------------------------------------ */

enum way {
  WAY_TURN, /* to a block in turn, or through a window */
  WAY_PULL, /* nowhere: the peer pulls it from where it is */
  WAY_SLOTS /* to a block of slots */
};

/* Is it better staged in turn than read where it is? */
static bool prefers_turn(const struct lane *lane, uint64_t bytes,
                         bool one_piece) {
  const struct shm_distance *d = &lane->distance;
  if (bytes > (lane->options.sized ? SHM_TURN_MOST : SHM_STAGE))
    return false;
  if (!one_piece)
    return bytes <= PLAIN && !d->far;
  return d->far || distance_due(d) || ways_staged(lane, bytes, bytes <= PLAIN);
}

/* Near, a window and its head nearly fill what short blocks take turns over: both
 * cores' own caches drop it before it comes again, and it always lies there. */
static uint32_t window_near(const struct lane *lane) {
  return (uint32_t)least(lane->dropped - SHM_SLOT, WINDOW);
}

/* Returns the bytes of a longer payload's window; 0: it has none. The
 * source's stride tells how long it is, to a peer with the feature "staging". */
static uint32_t window_of(const struct lane *lane, uint64_t bytes,
                          bool one_piece) {
  const struct shm_distance *d = &lane->distance;
  bool may = lane->options.sized && lane->options.windows && lane->peer_pulls &&
             one_piece;
  if (!may || bytes <= SHM_TURN_MOST)
    return 0;
  if (d->far)
    return WINDOW;
  if (lane->under_way == 0 && ways_staged(lane, bytes, false))
    return window_near(lane);
  return distance_due(d) ? WINDOW_TRIES : 0;
}

/* Returns the bytes of the block in turn that a payload passes through; 0:
 * it goes another way. */
static uint32_t turn_area(const struct lane *lane, uint64_t bytes,
                          bool one_piece) {
  return prefers_turn(lane, bytes, one_piece)
             ? (uint32_t)bytes
             : window_of(lane, bytes, one_piece);
}

/* Where does a payload of so many bytes go, which is in one piece or in more,
 * and of memory that is direct or is not? *area: bytes of the block in turn; *at:
 * where in the stretch it may begin. */
static inline enum way way_of(struct lane *lane, uint64_t bytes, bool one_piece,
                              bool direct, uint32_t *area, int64_t *at) {
  *area = direct ? turn_area(lane, bytes, one_piece) : 0;
  if (*area > 0 && (*at = turns_find(lane, turn_length(*area), bytes)) >= 0)
    return WAY_TURN;
  return lane->peer_pulls && direct ? WAY_PULL : WAY_SLOTS;
}

/* A payload that is not staged counts here, and otherwise in shm_expose. */
bool shm_stages(struct lane *lane, uint64_t bytes) {
  uint32_t area;
  int64_t at;
  if (way_of(lane, bytes, true, true, &area, &at) == WAY_TURN)
    return true;
  distance_pass(&lane->distance, 1);
  return false;
}

/* ---- Exposing ------------------------------------------------------------ */

/* Is the line with `fed` tried here? A long payload tries it behind the last
 * byte, for which the receiver waits. A short one, which the receiver may not
 * have looked at by then, tries it before the first byte, when the receiver has
 * the line from an earlier payload. */
static bool staging_tries_here(const struct exposure *e,
                               const struct staging *s) {
  uint64_t total = e->payload->total;
  return s->tries &&
         (total >= PIECE * PIECES ? e->fed == total : e->fed == 0 && !s->fresh);
}

static struct shm_stage_head *staging_head(struct lane *lane,
                                           const struct staging *s) {
  return (struct shm_stage_head *)(void *)(lane->arena + s->block - 1);
}

/* Tells the receiver how many bytes are staged. Release: after these bytes. */
static void staging_tell_fed(struct lane *lane, struct exposure *e) {
  const struct staging *s = staging_of(e);
  _Atomic uint64_t *word = &staging_head(lane, s)->fed;
  if (staging_tries_here(e, s))
    distance_try_line(lane, &lane->distance, (uint8_t *)word);
  atomic_store_explicit(word, e->fed, memory_order_release);
}

/* May the receiver pull what is not staged? Only from a window: that the block
 * is one in turn says that the memory is direct, in one piece and pulled. */
static uint64_t staging_base(const struct exposure *e,
                             const struct payload *p) {
  return e->at_once ? (uint64_t)(uintptr_t)p->base : 0;
}

static void staging_begin(struct lane *lane, struct exposure *e,
                          struct payload *p, int64_t offset) {
  struct staging *s = staging_of(e);
  s->block = (uint64_t)offset + 1;
  /* Relaxed: the record, which is published later, tells of it. A block that
   * holds all of its payload spares the line. */
  if (s->area < p->total)
    atomic_store_explicit(&staging_head(lane, s)->base, staging_base(e, p),
                          memory_order_relaxed);
  e->payload = p;
  e->fed = 0;
  staging_tell_fed(lane, e);
  e->source =
      (struct source){.kind = SOURCE_STAGED,
                      .address = arena_address(lane, (uint64_t)offset),
                      .block = p->total,
                      .count = 1,
                      .stride = lane->options.sized ? s->area : p->total};
}

static int stage_in_slots(struct lane *lane, struct exposure *e,
                          struct payload *p) {
  int64_t offset = arena_take(lane, SHM_STAGE_HEAD + SHM_STAGE);
  if (offset < 0)
    return (int)offset;
  e->footprint = SHM_STAGE_HEAD + SHM_STAGE;
  staging_of(e)->area = (uint32_t)least(p->total, SHM_STAGE);
  staging_begin(lane, e, p, offset);
  return PERIGEE_OK;
}

static void stage_in_turn(struct lane *lane, struct exposure *e,
                          struct payload *p, uint32_t area, int64_t at) {
  struct shm_distance *d = &lane->distance;
  struct staging *s = staging_of(e);
  s->area = area;
  int64_t offset = turns_take(lane, e, s, p->total, (uint32_t)at);
  s->streams = d->far;
  s->tries = distance_begin(d);
  e->at_once = true;
  staging_begin(lane, e, p, offset);
}

/* Does the peer read a list where it lies? One that is older does not. Places
 * that are shorter than PLACE_LEAST on average are sooner gathered and copied,
 * as each costs the kernel half a microsecond. */
enum { PLACE_LEAST = 4096 };

static bool reads_places(const struct lane *lane, const struct payload *p) {
  return lane->options.places && p->block >= PLACE_LEAST;
}

/* The places of a list stay as long as the payload: the peer reads them from
 * here. */
static struct source source_of_private(const struct payload *p) {
  if (p->extents)
    return (struct source){.kind = SOURCE_PLACES,
                           .address = (uint64_t)(uintptr_t)p->extents,
                           .block = p->total,
                           .count = 1,
                           .stride = p->count};
  return (struct source){.kind = SOURCE_PRIVATE,
                         .address = (uint64_t)(uintptr_t)p->base,
                         .block = p->block,
                         .count = p->count,
                         .stride = p->stride};
}

static enum way expose_way(struct lane *lane, const struct payload *p,
                           uint32_t *area, int64_t *at) {
  bool one_piece = p->count == 1 && !p->extents;
  enum way way = way_of(lane, p->total, one_piece, p->memory->direct, area, at);
  return way == WAY_PULL && p->extents && !reads_places(lane, p) ? WAY_SLOTS
                                                                 : way;
}

int shm_expose(struct lane *lane, struct exposure *e, struct payload *p) {
  uint32_t area;
  int64_t at = -1;
  int status = PERIGEE_OK;
  enum way way = expose_way(lane, p, &area, &at);
  *staging_of(e) = (struct staging){0};
  e->payload = NULL;
  e->at_once = false;
  if (way == WAY_TURN)
    stage_in_turn(lane, e, p, area, at);
  else if (way == WAY_PULL)
    e->source = source_of_private(p);
  else
    status = stage_in_slots(lane, e, p);
  distance_pass(&lane->distance, 1);
  if (status == PERIGEE_OK)
    lane->under_way++;
  return status;
}

void shm_conceal(struct lane *lane, struct exposure *e) {
  struct staging *s = staging_of(e);
  if (s->block && e->at_once)
    turns_give(lane, s->turn);
  else if (s->block)
    arena_give(lane, s->block - 1);
  s->block = 0;
  e->payload = NULL;
  lane->under_way--;
}

/* ---- Filling a block ----------------------------------------------------- */

/* Returns how many of the staged bytes the receiver has taken, of slots. */
static uint64_t staging_taken(struct lane *lane, const struct exposure *e) {
  uint64_t bytes = staging_acked(lane, e->operation, e->part, e->generation);
  return bytes > e->fed ? 0 : bytes;
}

/* Returns the bytes that may be staged now. The CPU fills one slot, which the
 * receiver empties while the next is filled. Memory that copies asynchronously
 * is asked to fill all free room. */
static uint64_t staging_room(struct lane *lane, const struct exposure *e) {
  const struct payload *p = e->payload;
  uint64_t room = SHM_STAGE - (e->fed - staging_taken(lane, e));
  uint64_t left = p->total - e->fed;
  if (!p->memory->direct)
    return least(least(left, room), SHM_STAGE - e->fed % SHM_STAGE);
  uint64_t n = least(left, SHM_SLOT - e->fed % SHM_SLOT);
  return n <= room ? n : 0;
}

static int64_t staging_fill(struct lane *lane, struct exposure *e, uint64_t n) {
  const struct staging *s = staging_of(e);
  uint8_t *block = lane->arena + s->block - 1;
  uint8_t *to = block + SHM_STAGE_HEAD + e->fed % s->area;
  int64_t moved = s->streams ? payload_stream(e->payload, to, n)
                             : payload_take(e->payload, to, n);
  if (moved <= 0)
    return moved;
  e->fed += (uint64_t)moved;
  staging_tell_fed(lane, e);
  return moved;
}

/* Short payloads have four pieces, so that the receiver has begun before all is
 * filled. */
static uint64_t staging_piece(uint64_t total) {
  const uint64_t lines = 4 * RING_UNIT;
  uint64_t quarter = (total + lines - 1) / lines * RING_UNIT;
  uint64_t eighth = total / PIECES;
  if (eighth > PIECE)
    return eighth;
  return least(quarter > PIECE_SHORT ? quarter : PIECE_SHORT, PIECE);
}

/* The receiver empties one piece while the next is filled. */
static int64_t staging_fill_at_once(struct lane *lane, struct exposure *e) {
  const struct staging *s = staging_of(e);
  uint64_t total = e->payload->total, piece = staging_piece(total);
  int64_t begin = s->streams ? 0 : shm_clock(lane);
  while (e->fed < total)
    staging_fill(lane, e, least(total - e->fed, piece));
  turns_filled(lane, s->turn);
  if (!s->streams && !s->fresh)
    distance_copied(&lane->distance, total, shm_clock(lane) - begin);
  return (int64_t)total;
}

/* What the receiver has pulled by itself is not staged. It may say that it has
 * more than it has: then it misses those bytes. */
static void window_catch_up(struct lane *lane, struct exposure *e,
                            uint64_t taken) {
  struct payload *p = e->payload;
  if (taken <= e->fed || taken > p->total)
    return;
  e->fed = p->done = taken;
  staging_tell_fed(lane, e);
}

/* Returns the bytes that may be staged now. */
static uint64_t window_room(struct lane *lane, struct exposure *e) {
  uint64_t taken = staging_acked(lane, e->operation, e->part, e->generation);
  window_catch_up(lane, e, taken);
  uint64_t area = staging_of(e)->area;
  uint64_t used = taken <= e->fed ? e->fed - taken : e->fed;
  uint64_t n = least(e->payload->total - e->fed, SHM_SLOT - e->fed % SHM_SLOT);
  return used + n <= area ? n : 0;
}

/* Fills the window once, or as long as the receiver makes room. */
static int64_t staging_fill_window(struct lane *lane, struct exposure *e) {
  uint64_t before = e->fed, most = staging_of(e)->area, n;
  while (e->fed - before < most && (n = window_room(lane, e)) > 0)
    staging_fill(lane, e, n);
  if (e->fed == e->payload->total)
    turns_filled(lane, staging_of(e)->turn);
  return (int64_t)(e->fed - before);
}

int64_t shm_feed(struct lane *lane, struct exposure *e) {
  if (!e->payload || e->fed == e->payload->total)
    return 0;
  if (e->at_once)
    return staging_of(e)->area < e->payload->total
               ? staging_fill_window(lane, e)
               : staging_fill_at_once(lane, e);
  uint64_t n = staging_room(lane, e);
  return n > 0 ? staging_fill(lane, e, n) : 0;
}
