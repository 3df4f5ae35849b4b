/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_rings.c - who pays for the memory of rings. A ring is in a file of its
 * reader's, without a page at first, and whoever writes to a page first makes
 * it: mostly the writer. The page counts as memory of the writer's then, for as
 * long as anybody keeps the file, and the reader decides how large the ring is.
 *
 *   of the peer's ring            pages are made by
 *   as much as an own ring has    this side, which needs no more for a session
 *                                 than the options sessions and ring say
 *   what is beyond                the peer, before the session opens (fill)
 *
 * Of a build that does not fill its rings, what is beyond counts for the peer's
 * share (SHARE_FILLED); without a share, its ring is full where own ones end.
 *
 * A peer could punch holes where this side has written, which makes the same
 * page again and again, but not more of them. It could keep the file beyond the
 * session, in many sessions one after the other. So this side punches holes
 * itself once the peer has left.
 *
 *   inbox                         this side            so
 *   sealed by an older build      counts, punches
 *   not sealed, as large as own   seals                it can be punched
 *   not sealed, larger            seals against holes  its pages stay
 */
#include <sys/mman.h>

#include "memory/backing.h"
#include "shm.h"

enum { STEP = 64 << 10 };
_Static_assert(STEP <= 64 * SHM_PAGE, "a word has their bits");

static uint64_t excess(const struct lane *lane) {
  uint64_t own = lane->options.ring, peers = lane->peer_ring;
  return peers > own ? peers - own : 0;
}

bool rings_join(struct lane *lane, int fd) {
  int have = fcntl(fd, F_GET_SEALS);
  lane->punched = have & F_SEAL_SEAL || excess(lane) == 0;
  if (have & F_SEAL_SEAL)
    return !(have & F_SEAL_FUTURE_WRITE);
  return fcntl(fd, F_ADD_SEALS,
               F_SEAL_SEAL | (lane->punched ? 0 : F_SEAL_FUTURE_WRITE)) == 0;
}

static uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

static bool is_there(const uint8_t *pages, uint64_t bytes) {
  uint64_t bits = 0; /* of at most 64 pages */
  uint32_t looks = STEP / SHM_PAGE, known = 0;
  return there_range(pages, &bits, 0, bytes, &looks, &known) == THERE;
}

static bool may_fill(struct lane *lane, uint64_t bytes) {
  struct share *share = lane->options.share;
  if (share && !share_may(share, SHARE_FILLED, bytes))
    return false;
  if (share)
    share_add(share, SHARE_FILLED, bytes);
  lane->filled += bytes;
  return true;
}

static uint64_t widen(struct ring_out *ring, void *owner, uint64_t need) {
  struct lane *lane = owner;
  const uint8_t *from = ring->bytes + ring->size - ring->shut;
  uint64_t open = 0, step;
  for (; open < need; open += step) {
    step = least(STEP, ring->shut - open);
    if (!(lane->punched ? may_fill(lane, step) : is_there(from + open, step)))
      break;
  }
  return open;
}

/* Both sides know each other's rings. Makes the pages of own rings that the peer
 * is not to make, and keeps this side from those of the peer's. */
bool rings_fill(struct lane *lane) {
  bool filled = true;
  uint64_t own = lane->options.ring, peers = lane->peer_ring;
  for (int i = 0; i < RINGS; i++) {
    struct ring_out *out = &lane->out[i];
    uint8_t *in = lane->inbox + (uint64_t)i * own;
    out->widen = widen;
    out->owner = lane;
    ring_shut(out, excess(lane));
    if (own > peers)
      filled = filled && backing_populate(in + peers, own - peers);
  }
  return filled;
}

/* Nobody reads what is in the rings. */
void rings_close(struct lane *lane) {
  if (lane->inbox)
    madvise(lane->inbox, RINGS * lane->options.ring, MADV_REMOVE);
  if (lane->peer_inbox && lane->punched && lane->head.forsaken)
    madvise(lane->peer_inbox, RINGS * lane->peer_ring, MADV_REMOVE);
  share_back(lane->options.share, SHARE_FILLED, lane->filled);
}
