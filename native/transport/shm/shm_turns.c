/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_turns.c - staging blocks for payloads of up to 256 KiB, used in turn over
 * a stretch of the arena that is longer than a core's own cache.
 *
 * Why. A payload that is pulled from private memory leaves its lines in the
 * cache of the core that read it, and its owner takes about three times as long
 * to write them anew. So do slots that are used again at once. Where a line is
 * used again only when both cores' own caches have dropped it, it is written
 * from the shared cache (bench/tried.md, "Large raw calls"). The owner stages
 * the whole payload right behind its record, piece by piece, while the receiver
 * empties the pieces before.
 *
 * Where the two cores share no cache, both the copies into a block and out of it
 * cross between two caches, and pulling is faster by up to a third. A copy into
 * a block tells which it is: it takes 25 ns a KiB or about 200. After two slow
 * ones the next payloads are pulled, then one is tried again.
 *
 * Blocks lie one behind the other and are free again in that order. Nobody
 * waits for one: if there is no room at once, the payload goes another way.
 *
 *   stretch   event                                        becomes
 *   none      a payload comes, share and arena have room   there
 *   there     no block was live since the look before
 *             the last, or a loan needs the room           none
 */
#include <unistd.h>

#include "shm.h"

enum { PAGE = 4096, STRETCH_MIN = 2 << 20, STRETCH_MAX = 4 << 20 };
/* ns until the arena is asked again; a slow copy, in ns a KiB. */
static const int64_t PAUSE = 250 * 1000000, SLOW = 90;
enum { REST = 64 };

/* Twice the cache of one core, as the lines of two are to be dropped. */
static uint32_t stretch_size(void) {
  long own = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (own <= STRETCH_MIN / 2)
    return STRETCH_MIN;
  return own >= STRETCH_MAX / 2 ? STRETCH_MAX
                                : (uint32_t)blocks_whole(2 * (uint64_t)own);
}

static bool may_hold(const struct share *share, uint64_t bytes) {
  return !share || share_may(share, SHARE_STAGED, bytes);
}

static __attribute__((noinline)) bool begin(struct lane *lane) {
  struct shm_turns *t = &lane->turns;
  struct share *share = lane->options.share;
  uint32_t size = stretch_size();
  if (*lane->options.now < t->again || !may_hold(share, size))
    return false;
  t->again = *lane->options.now + PAUSE;
  int64_t offset = arena_take(lane, size);
  if (offset < 0)
    return false;
  share_take(share, SHARE_STAGED, size);
  t->stretch = (uint64_t)offset;
  t->size = size;
  t->next = t->first = t->touched = 0;
  return true;
}

bool turns_end(struct lane *lane, bool all) {
  struct shm_turns *t = &lane->turns;
  bool idle = all || *lane->options.look - t->used > 1;
  if (t->size == 0 || t->count > 0 || !idle)
    return false;
  arena_give(lane, t->stretch);
  share_back(lane->options.share, SHARE_STAGED, t->size);
  t->size = 0;
  return true;
}

static uint32_t length_of(uint64_t bytes) {
  return SHM_STAGE_HEAD + ((uint32_t)(bytes + PAGE - 1) & -PAGE);
}

/* Returns where a block may begin, or -1. Blocks never fill the stretch, so
 * `next` is at the oldest one only if there is none. */
static int64_t place(struct lane *lane, uint32_t length) {
  const struct shm_turns *t = &lane->turns;
  if (t->count == SHM_TURNS || (t->size == 0 && !begin(lane)))
    return -1;
  uint32_t oldest = t->blocks[t->first].at, behind = t->size - t->next;
  if (t->count == 0)
    return length <= behind ? t->next : 0;
  if (t->next < oldest)
    return length < oldest - t->next ? (int64_t)t->next : -1;
  if (length <= behind)
    return t->next;
  return length < oldest ? 0 : -1;
}

/* Each payload that could be pulled brings the end of the rest closer. */
static bool rests(struct lane *lane) {
  struct shm_turns *t = &lane->turns;
  bool resting = t->rest > 0 && lane->peer_pulls;
  t->rest -= resting;
  return resting;
}

bool turns_room(struct lane *lane, uint64_t bytes) {
  return !rests(lane) && place(lane, length_of(bytes)) >= 0;
}

int64_t turns_take(struct lane *lane, uint64_t bytes, uint32_t *turn) {
  struct shm_turns *t = &lane->turns;
  uint32_t length = length_of(bytes);
  int64_t at = rests(lane) ? -1 : place(lane, length);
  if (at < 0)
    return -1;
  *turn = (t->first + t->count++) % SHM_TURNS;
  t->blocks[*turn] = (struct shm_turn){.at = (uint32_t)at, .live = true};
  t->next = (uint32_t)at + length;
  t->used = *lane->options.look;
  return (int64_t)t->stretch + at;
}

/* What was not written before does not count: its pages were made. */
void turns_took(struct lane *lane, uint32_t turn, uint64_t bytes,
                int64_t took) {
  struct shm_turns *t = &lane->turns;
  uint32_t end = t->blocks[turn].at + length_of(bytes);
  if (end > t->touched) {
    t->touched = end;
    return;
  }
  bool slow = took > SLOW * (int64_t)bytes / 1024;
  if (slow && t->slow)
    t->rest = REST;
  t->slow = slow;
}

void turns_give(struct lane *lane, uint32_t turn) {
  struct shm_turns *t = &lane->turns;
  t->blocks[turn].live = false;
  t->used = *lane->options.look;
  while (t->count > 0 && !t->blocks[t->first].live) {
    t->first = (t->first + 1) % SHM_TURNS;
    t->count--;
  }
}
