/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_rings.c - who pays for the memory of rings. A ring is in a file of its
 * reader's, without a page at first, and whoever writes to a page first makes
 * it: mostly the writer. The page counts as memory of the writer's then, for as
 * long as anybody keeps the file, and the reader decides how large the ring is.
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
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "memory/backing.h"
#include "shm.h"

/* Bytes that are looked at in one go: a word has their bits. */
enum { STEP = 64 * SHM_PAGE };

static uint64_t excess(const struct lane *lane) {
  uint64_t own = lane->options.ring, peers = lane->peer_ring;
  return peers > own ? peers - own : 0;
}

/* The seals are read once no more can be added. */
bool rings_join(struct lane *lane, int fd) {
  bool older = fcntl(fd, F_GET_SEALS) & F_SEAL_SEAL;
  lane->punched = older || excess(lane) == 0;
  if (!older &&
      fcntl(fd, F_ADD_SEALS,
            F_SEAL_SEAL | (lane->punched ? 0 : F_SEAL_FUTURE_WRITE)) != 0)
    return false;
  return lane->punched == !(fcntl(fd, F_GET_SEALS) & F_SEAL_FUTURE_WRITE);
}

static uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

static bool is_there(const uint8_t *pages, uint64_t bytes) {
  uint64_t bits = 0;
  uint32_t looks = STEP / SHM_PAGE, known = 0;
  return there_range(pages, &bits, 0, bytes, &looks, &known) == THERE;
}

/* Of what was swapped out before it was seen, the system is asked for it. */
bool rings_reach(struct lane *lane) {
  uint8_t *end = lane->peer_inbox + RINGS * lane->peer_ring;
  for (uint64_t step; lane->awaited > 0; lane->awaited -= step) {
    step = least(STEP, lane->awaited);
    if (!is_there(end - lane->awaited, step)) {
      madvise(end - lane->awaited, step, MADV_WILLNEED);
      return false;
    }
  }
  if (lane->head.in) /* nothing wraps the table (lane.h) */
    lane->head.out = lane->out;
  return true;
}

static int refuse(char reason[REASON], const char *why) {
  snprintf(reason, REASON, "%s", why);
  return PERIGEE_NO_MEMORY;
}

int rings_fill(struct lane *lane, char reason[REASON]) {
  uint64_t own = lane->options.ring, bytes = RINGS * excess(lane);
  if (own > lane->peer_ring && !backing_populate(lane->inbox, RINGS * own))
    return refuse(reason, "no memory for the rings of the session");
  if (!lane->punched) {
    lane->awaited = RINGS * lane->peer_ring;
    lane->head.out = NULL;
  } else if (bytes > 0) {
    if (!share_take(lane->options.share, SHARE_FILLED, bytes))
      return refuse(reason, "an older build's rings are longer than own ones, "
                            "by more than is left for this peer (option ring)");
    lane->filled = bytes;
  }
  return PERIGEE_OK;
}

/* Has own memory in place of the pages of the inbox between these bytes, with
 * the same in them. Where there is none, the peer may take them. */
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

/* The program may be reading records in place, and the peer takes the pages of
 * its rings away once it knows that this side has left. */
void rings_retain(struct lane *lane) {
  for (int i = 0; i < RINGS; i++) {
    const struct ring_in *ring = &lane->in[i];
    uint64_t at = (uint64_t)i * ring->size, mask = ring->size - 1;
    uint64_t from = ring->released & mask, to = ring->tail & mask;
    if (ring->released == ring->tail)
      continue;
    if (from >= to) {
      ring_retain(lane, at + from, at + ring->size);
      from = 0;
    }
    if (to > from)
      ring_retain(lane, at + from, at + to);
  }
}

/* Nobody reads what is in the rings. */
void rings_close(struct lane *lane) {
  if (lane->inbox)
    madvise(lane->inbox, RINGS * lane->options.ring, MADV_REMOVE);
  if (lane->peer_inbox && lane->punched && lane->head.forsaken)
    madvise(lane->peer_inbox, RINGS * lane->peer_ring, MADV_REMOVE);
  share_back(lane->options.share, SHARE_FILLED, lane->filled);
}
