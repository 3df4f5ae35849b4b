/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_there.c - memory that both sides map: which pages of the peer's are
 * there, and who pays for those of the rings.
 *
 * A file in memory may have holes. A process that reads a hole where it is
 * mapped makes a page of it, which counts as the reader's memory and stays as
 * long as anybody keeps the file. So a peer that hands over a large file
 * without a page in it would have this side pay for all that it reads. A read
 * by a call makes no page.
 *
 * So only pages that are there are read where they are mapped. mincore tells,
 * and makes none. A page that was there once stays, as the seal that keeps this
 * side from writing keeps the peer from punching holes: it is looked at once.
 *
 *   page                         mincore   so it is
 *   written by the peer          there     read in place
 *   swapped out, or just moved   not       copied by a call
 *   a hole                       not       copied by a call: zeros
 *
 * All pages count as there if mincore is not to be had.
 *
 * A ring is in a file of its reader's, without a page at first, and the side
 * that writes to a page first makes it: mostly the writer. The page counts as
 * memory of the writer's then, for as long as anybody keeps the file, and the
 * reader decides how large the ring is.
 *
 *   the peer's ring is              its pages are made by
 *   no longer than an own one       this side, which needs no more for a session
 *                                   than the options sessions and ring say
 *   longer                          the peer, all of them, before the session
 *                                   opens. This side writes none of it before it
 *                                   has seen all of them
 *   longer, of an older build       this side. What is beyond an own one counts
 *                                   for the peer's share (SHARE_FILLED); if that
 *                                   is used up, there is no session
 *
 * A peer could punch holes where this side has written, which makes the same
 * page again and again, but not more of them. It could keep the file beyond the
 * session, in many sessions one after the other. So this side punches holes
 * itself once the peer reads no more: when it has left, or the session failed.
 *
 *   inbox                         this side            so
 *   sealed by an older build      counts, punches
 *   not sealed, no longer         seals                it can be punched
 *   not sealed, longer            seals against holes  what was seen there stays
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "memory/backing.h"
#include "shm.h"

/* Pages of one call to mincore, and as how many the call itself counts. */
enum { LOOK_PAGES = 512, LOOK_COSTS = 8 };
/* Bytes of a ring that are looked at in one go: a word has their bits. */
enum { RINGS_STEP = 64 * SHM_PAGE };

/* ---- Pages of the peer --------------------------------------------------- */

static bool page_is_known(const uint64_t *bits, uint64_t page) {
  return bits[page / 64] >> (page % 64) & 1;
}

/* Looks at n pages; returns how many of them, from the first on, are there. */
static uint64_t pages_look(const uint8_t *base, uint64_t *bits, uint64_t page,
                           uint64_t n, uint32_t *known) {
  unsigned char there[LOOK_PAGES];
  void *at = (uint8_t *)(uintptr_t)base + page * SHM_PAGE;
  bool told = mincore(at, n * SHM_PAGE, there) == 0;
  if (!told && errno == EAGAIN)
    return 0;
  for (uint64_t i = 0; i < n; i++) {
    if (told && !(there[i] & 1))
      return i;
    *known += !page_is_known(bits, page + i);
    bits[(page + i) / 64] |= UINT64_C(1) << ((page + i) % 64);
  }
  return n;
}

static uint64_t pages_skip_known(const uint64_t *bits, uint64_t page,
                                 uint64_t end) {
  while (page < end) {
    uint64_t unknown = ~bits[page / 64] >> (page % 64);
    if (unknown)
      return least(page + (uint64_t)__builtin_ctzll(unknown), end);
    page = (page / 64 + 1) * 64;
  }
  return end;
}

enum there there_range(const uint8_t *base, uint64_t *bits, uint64_t from,
                       uint64_t to, uint32_t *looks, uint32_t *known) {
  uint64_t page = from / SHM_PAGE, end = (to + SHM_PAGE - 1) / SHM_PAGE;
  while ((page = pages_skip_known(bits, page, end)) < end) {
    uint64_t n = least(least(end - page, LOOK_PAGES), *looks);
    if (n == 0)
      return THERE_LATER;
    *looks -= (uint32_t)least(n + LOOK_COSTS, *looks);
    if (pages_look(base, bits, page, n, known) < n)
      return THERE_NOT;
    page += n;
  }
  return THERE;
}

bool there_all(const uint64_t *bits, uint64_t from, uint64_t to) {
  uint64_t end = (to + SHM_PAGE - 1) / SHM_PAGE;
  return pages_skip_known(bits, from / SHM_PAGE, end) >= end;
}

void there_want(struct lane *lane, const uint8_t *bytes, uint64_t length) {
  madvise((void *)(uintptr_t)bytes, length, MADV_WILLNEED);
  lane->options.soon(lane->options.session);
}

/* A word that was written lately is there. So is a page that was swapped out,
 * soon after the system was asked for it. */
bool there_word(struct lane *lane, const void *word) {
  const uint8_t *base = (const uint8_t *)lane->peer;
  uint64_t at = (uint64_t)((const uint8_t *)word - base);
  uint32_t looks = 1, known = 0;
  if (page_is_known(lane->peer_known, at / SHM_PAGE) ||
      there_range(base, lane->peer_known, at, at + 1, &looks, &known) == THERE)
    return true;
  there_want(lane, base + at / SHM_PAGE * SHM_PAGE, SHM_PAGE);
  return false;
}

/* ---- Rings --------------------------------------------------------------- */

static uint64_t rings_excess(const struct lane *lane) {
  uint64_t own = lane->options.ring, peers = lane->peer_ring;
  return peers > own ? peers - own : 0;
}

/* The seals are read once no more can be added. */
bool rings_join(struct lane *lane, int fd) {
  bool older = fcntl(fd, F_GET_SEALS) & F_SEAL_SEAL;
  lane->punched = older || rings_excess(lane) == 0;
  if (!older &&
      fcntl(fd, F_ADD_SEALS,
            F_SEAL_SEAL | (lane->punched ? 0 : F_SEAL_FUTURE_WRITE)) != 0)
    return false;
  return lane->punched == !(fcntl(fd, F_GET_SEALS) & F_SEAL_FUTURE_WRITE);
}

static bool ring_is_there(const uint8_t *pages, uint64_t bytes) {
  uint64_t bits = 0;
  uint32_t looks = RINGS_STEP / SHM_PAGE, known = 0;
  return there_range(pages, &bits, 0, bytes, &looks, &known) == THERE;
}

/* The system is asked for pages that were swapped out before they were seen. */
bool rings_reach(struct lane *lane) {
  uint8_t *end = lane->peer_inbox + RINGS * lane->peer_ring;
  for (uint64_t step; lane->awaited > 0; lane->awaited -= step) {
    step = least(RINGS_STEP, lane->awaited);
    if (!ring_is_there(end - lane->awaited, step)) {
      there_want(lane, end - lane->awaited, step);
      return false;
    }
  }
  if (lane->head.in || lane->hidden) /* nothing wraps the table (lane.h) */
    lane->head.out = lane->out;
  return true;
}

static int rings_refuse(char reason[REASON], const char *why) {
  snprintf(reason, REASON, "%s", why);
  return PERIGEE_NO_MEMORY;
}

int rings_fill(struct lane *lane, char reason[REASON]) {
  uint64_t own = lane->options.ring, bytes = RINGS * rings_excess(lane);
  if (own > lane->peer_ring && !backing_populate(lane->inbox, RINGS * own))
    return rings_refuse(reason, "no memory for the rings of the session");
  if (!lane->punched) {
    lane->awaited = RINGS * lane->peer_ring;
    lane->head.out = NULL;
  } else if (bytes > 0) {
    if (!share_take(lane->options.share, SHARE_FILLED, bytes))
      return rings_refuse(reason,
                          "an older build's rings are longer than own ones, "
                          "by more than is left for this peer (option ring)");
    lane->filled = bytes;
  }
  return PERIGEE_OK;
}

/* Has own memory in place of the pages of the inbox between these bytes, with
 * the same in them. The peer may take them if there is no memory. */
static void ring_retain(struct lane *lane, uint64_t from, uint64_t to) {
  from -= from % SHM_PAGE;
  uint64_t length = (to - from + SHM_PAGE - 1) / SHM_PAGE * SHM_PAGE;
  void *own = mmap(NULL, length, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (own == MAP_FAILED)
    return;
  memcpy(own, lane->inbox + from, length);
  if (mremap(own, length, length, MREMAP_MAYMOVE | MREMAP_FIXED,
             lane->inbox + from) == MAP_FAILED)
    munmap(own, length);
}

/* Which positions of a ring that are not released lie in the inbox? The ring may
 * have moved away (shm_moves.c), or come back. */
static void ring_kept(const struct ring_in *ring, bool home, uint64_t *from,
                      uint64_t *to) {
  uint64_t told = atomic_load_explicit(ring->consumed, memory_order_relaxed);
  bool moved = told < ring->moved;
  *from = moved && home ? ring->moved : told;
  *to = home ? ring->tail : moved ? ring->moved : told;
}

/* The program may be reading records in place, and the peer takes the pages of
 * its rings away once it knows that this side has left. */
void rings_retain(struct lane *lane) {
  for (int i = 0; i < RINGS; i++) {
    uint64_t size = lane->options.ring, at = (uint64_t)i * size, from, to;
    const struct ring_in *ring = &lane->in[i];
    ring_kept(ring, ring->bytes == lane->inbox + at, &from, &to);
    if (from == to)
      continue;
    from &= size - 1;
    to &= size - 1;
    lane->retained[i] = (struct shm_retained){
        from - from % SHM_PAGE, (to + SHM_PAGE - 1) / SHM_PAGE * SHM_PAGE};
    if (from >= to) {
      ring_retain(lane, at + from, at + size);
      from = 0;
    }
    if (to > from)
      ring_retain(lane, at + from, at + to);
  }
}

/* Gives the pages of a ring in the inbox back, which the peer may keep mapped: all
 * but those in whose place is own memory, as the system stops there. */
static void ring_punch(struct lane *lane, uint64_t at,
                       const struct shm_retained *r) {
  uint8_t *ring = lane->inbox + at;
  uint64_t size = lane->options.ring, from = r->from, to = r->to;
  if (from < to)
    madvise(ring, from, MADV_REMOVE);
  if (from <= to)
    madvise(ring + to, size - to, MADV_REMOVE);
  else
    madvise(ring + to, from - to, MADV_REMOVE);
}

/* Nobody reads what is in the rings. */
void rings_close(struct lane *lane) {
  for (int i = 0; lane->inbox && i < RINGS; i++)
    ring_punch(lane, (uint64_t)i * lane->options.ring, &lane->retained[i]);
  if (lane->peer_inbox && lane->punched && lane->head.forsaken)
    madvise(lane->peer_inbox, RINGS * lane->peer_ring, MADV_REMOVE);
  share_back(lane->options.share, SHARE_FILLED, lane->filled);
}
