/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_regions.c - regions: the owner exports them, the peer attaches them, and
 * either side's copies into them take no part of the other.
 *
 * The key of a region is its memfd, without any bytes: slot, generation, length
 * and rights are in the window. The memfd is mapped if its size is sealed and
 * the region fits in it, with no more rights than the window has.
 *
 * Fence. A side that copies in a peer's region stores `inside`, fences, and
 * loads the region's generation. An owner that closes the region stores the
 * generation, fences, and loads `inside`. So the copier sees that the region is
 * closed, or the owner sees that the peer is inside (spec/model/region.pml).
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "host/adopted.h"
#include "shm.h"

/* ---- The owner ---------------------------------------------------------- */

int shm_export(struct lane *lane, const struct grant *grant,
               struct region_key *key) {
  if (grant->file < 0 || grant->slot >= SHM_REGIONS)
    return PERIGEE_UNSUPPORTED;
  atomic_store_explicit(&lane->own->regions[grant->slot], grant->generation,
                        memory_order_release);
  key->length = 0;
  key->fds[0] = grant->file;
  key->fd_count = 1;
  return PERIGEE_OK;
}

void shm_revoke(struct lane *lane, uint32_t slot) {
  atomic_store_explicit(&lane->own->regions[slot], 0, memory_order_release);
}

bool shm_inside(struct lane *lane, uint32_t slot) {
  atomic_thread_fence(memory_order_seq_cst);
  return lane->peer && atomic_load_explicit(&lane->peer->inside,
                                            memory_order_acquire) == slot + 1;
}

/* ---- The peer ----------------------------------------------------------- */

/* The number of bytes mapped for a window. */
static uint64_t *mapped_of(struct window *window) {
  return (uint64_t *)(void *)window->own;
}
_Static_assert(sizeof(uint64_t) <= WINDOW_OWN, "there is room for it");

/* Mapping fails so if the owner sealed the region against the rights that the
 * window claims, which is PROTOCOL. */
static int refused(void) {
  return errno == EPERM || errno == EACCES ? PERIGEE_PROTOCOL
                                           : PERIGEE_NO_MEMORY;
}

int shm_attach(struct lane *lane, struct window *window,
               const struct region_key *key) {
  uint64_t length;
  int rights = PROT_READ | (window->access & PERIGEE_WRITE ? PROT_WRITE : 0);
  if (key->length != 0 || key->fd_count != 1 || window->slot >= SHM_REGIONS ||
      !adopted_memory(key->fds[0], SHM_SIZE_SEALS, &length) ||
      length < window->length || length == 0)
    return PERIGEE_PROTOCOL;
  if (!share_take(lane->options.share, SHARE_MAPPED, length))
    return PERIGEE_NO_MEMORY;
  void *mapped = shm_map(key->fds[0], length, rights);
  if (!mapped) {
    share_back(lane->options.share, SHARE_MAPPED, length);
    return refused();
  }
  window->pointer = mapped;
  *mapped_of(window) = length;
  return PERIGEE_OK;
}

void shm_detach(struct lane *lane, struct window *window) {
  munmap(window->pointer, *mapped_of(window));
  share_back(lane->options.share, SHARE_MAPPED, *mapped_of(window));
  window->pointer = NULL;
}

int64_t shm_copy(struct lane *lane, const struct window *window,
                 struct payload *remote, struct payload *local, uint64_t limit,
                 bool write) {
  atomic_store_explicit(&lane->own->inside, window->slot + 1,
                        memory_order_relaxed);
  atomic_thread_fence(memory_order_seq_cst);
  int64_t moved = PERIGEE_STALE;
  if (limit > SHM_QUANTUM)
    limit = SHM_QUANTUM;
  if (atomic_load_explicit(&lane->peer->regions[window->slot],
                           memory_order_acquire) == window->generation)
    moved = (int64_t)(write ? payload_copy(remote, local, limit)
                            : payload_copy(local, remote, limit));
  atomic_store_explicit(&lane->own->inside, 0, memory_order_release);
  return moved;
}
