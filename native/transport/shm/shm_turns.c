/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_turns.c - staging blocks that are used in turn over a stretch of the arena
 * that is longer than a core's own cache.
 *
 * Why. A payload that is pulled from private memory leaves its lines in the
 * cache of the core that read it, and its owner takes about three times as long
 * to write them anew. So do slots that are used again at once. Where a line is
 * used again only when both cores' own caches have dropped it, it is written
 * from the shared cache (bench/tried.md, "Large raw calls").
 *
 * Blocks lie one behind the other and are free again in that order, each when
 * its exposure ends or the peer has all of the payload: a call that runs long
 * keeps none, but a message that nobody receives does. Nobody waits for a block:
 * if there is no room at once, the payload goes another way.
 *
 *   stretch   event                                        becomes
 *   none      STRETCH_MIN bytes would have been staged
 *             within WINDOW, and share and arena have
 *             room                                         there
 *   there     no block was in use since the look before
 *             the last, or a loan needs the room           none
 *
 * The stretch counts for its share (SHARE_STAGED) and not among the blocks that
 * may be lent, of which all belong to who lends (operation/room.c).
 */
#include <unistd.h>

#include "shm.h"

enum { PAGE = 4096, STRETCH_MIN = 2 << 20, STRETCH_MAX = 4 << 20 };
_Static_assert(TURN_MOST + SHM_STAGE_HEAD < STRETCH_MIN, "a block fits");
static const int64_t WINDOW = 250 * 1000000; /* ns */

/* Twice the cache of one core, as the lines of two are to be dropped. */
static uint32_t stretch_size(void) {
  long own = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (own <= STRETCH_MIN / 2)
    return STRETCH_MIN;
  return own >= STRETCH_MAX / 2 ? STRETCH_MAX
                                : (uint32_t)blocks_whole(2 * (uint64_t)own);
}

/* Who stages little would only meet new pages. */
static bool pays(struct lane *lane, uint32_t length) {
  struct shm_turns *t = &lane->turns;
  if (*lane->options.now - t->since > WINDOW) {
    t->since = *lane->options.now;
    t->wanted = 0;
  }
  t->wanted += length;
  return t->wanted >= STRETCH_MIN;
}

static bool may_hold(const struct share *share, uint64_t bytes) {
  return !share || share_may(share, SHARE_STAGED, bytes);
}

static __attribute__((noinline)) bool begin(struct lane *lane,
                                            uint32_t length) {
  struct shm_turns *t = &lane->turns;
  struct share *share = lane->options.share;
  uint32_t size = pays(lane, length) ? stretch_size() : 0;
  if (size == 0 || !may_hold(share, size))
    return false;
  t->wanted = 0;
  lane->blocks.limit += size;
  int64_t offset = arena_take(lane, size);
  if (offset < 0) {
    lane->blocks.limit -= size;
    return false;
  }
  share_take(share, SHARE_STAGED, size);
  t->stretch = (uint64_t)offset;
  t->size = size;
  t->next = t->touched = 0;
  return true;
}

/* ---- Blocks -------------------------------------------------------------- */

static struct shm_turn *turn_of(struct shm_turns *t, uint32_t number) {
  return &t->blocks[number % SHM_TURNS];
}

/* The peer may say of any block that it has taken all. One that is still to be
 * filled stays, as the stretch could be gone by then. */
static bool over(struct lane *lane, const struct shm_turn *b) {
  return b->total == 0 || (b->filled && shm_acked(lane, b->operation, b->part,
                                                  b->generation) == b->total);
}

/* A peer that lies about what it has taken reads other bytes than its own. */
static void drop_oldest(struct lane *lane) {
  struct shm_turns *t = &lane->turns;
  while (t->count > 0 && over(lane, turn_of(t, t->first))) {
    t->first++;
    t->count--;
  }
}

bool turns_end(struct lane *lane, bool all) {
  struct shm_turns *t = &lane->turns;
  bool idle = all || *lane->options.look - t->used > 1;
  if (t->size == 0 || !idle)
    return false;
  drop_oldest(lane);
  if (t->count > 0)
    return false;
  arena_give(lane, t->stretch);
  lane->blocks.limit -= t->size;
  share_back(lane->options.share, SHARE_STAGED, t->size);
  t->size = 0;
  return true;
}

static uint32_t length_of(uint32_t bytes) {
  return SHM_STAGE_HEAD + ((bytes + PAGE - 1) & ~(uint32_t)(PAGE - 1));
}

/* Returns where a block may begin, or -1. Blocks never fill the stretch, so
 * `next` is at the oldest one only if there is none. */
static int64_t place(struct shm_turns *t, uint32_t length) {
  uint32_t oldest = turn_of(t, t->first)->at, behind = t->size - t->next;
  if (t->count == SHM_TURNS)
    return -1;
  if (t->count == 0)
    return length <= behind ? t->next : 0;
  if (t->next < oldest)
    return length < oldest - t->next ? (int64_t)t->next : -1;
  if (length <= behind)
    return t->next;
  return length < oldest ? 0 : -1;
}

static int64_t find(struct lane *lane, uint32_t length) {
  struct shm_turns *t = &lane->turns;
  if (t->size == 0 && !begin(lane, length))
    return -1;
  int64_t at = place(t, length);
  if (at >= 0)
    return at;
  drop_oldest(lane);
  return place(t, length);
}

bool turns_room(struct lane *lane, uint32_t bytes) {
  return find(lane, length_of(bytes)) >= 0;
}

int64_t turns_take(struct lane *lane, const struct exposure *e, uint32_t bytes,
                   uint32_t *turn, bool *fresh) {
  struct shm_turns *t = &lane->turns;
  uint32_t length = length_of(bytes);
  int64_t at = find(lane, length);
  if (at < 0)
    return -1;
  *turn = t->first + t->count++;
  *turn_of(t, *turn) = (struct shm_turn){.at = (uint32_t)at,
                                         .total = bytes,
                                         .generation = e->generation,
                                         .operation = e->operation,
                                         .part = e->part};
  t->next = (uint32_t)at + length;
  t->used = *lane->options.look;
  *fresh = t->next > t->touched;
  if (*fresh)
    t->touched = t->next;
  return (int64_t)t->stretch + at;
}

void turns_give(struct lane *lane, uint32_t turn) {
  struct shm_turns *t = &lane->turns;
  if (turn - t->first >= t->count)
    return; /* the peer had all of it long ago */
  turn_of(t, turn)->total = 0;
  t->used = *lane->options.look;
  drop_oldest(lane);
}

void turns_filled(struct lane *lane, uint32_t turn) {
  turn_of(&lane->turns, turn)->filled = true;
}
