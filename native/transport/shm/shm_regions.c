/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_regions.c - regions: the owner exports them, the peer attaches them, and
 * either side's copies into them take no part of the other.
 *
 * The key of a region is its memfd, without any bytes: slot, generation, length
 * and rights are in the window. How such memory is made, checked and mapped is
 * known in memory/host.c alone.
 *
 * Fence. A side that copies in a peer's region stores `inside`, fences, and
 * loads the region's generation. An owner that closes the region stores the
 * generation, fences, and loads `inside`. So the copier sees that the region is
 * closed, or the owner sees that the peer is inside (spec/model/region.pml).
 *
 * A session that ends takes its rights along: a region may be closed after
 * that, and the peer may not have heard of either.
 */
#include <string.h>

#include "shm.h"

/* ---- The owner ---------------------------------------------------------- */

int shm_export(struct lane *lane, const struct grant *grant,
               struct region_key *key) {
  if (grant->file < 0 || grant->slot >= SHM_REGIONS)
    return PERIGEE_UNSUPPORTED;
  atomic_store_explicit(&lane->own->regions[grant->slot], grant->generation,
                        memory_order_release);
  if (lane->exported <= grant->slot)
    lane->exported = grant->slot + 1;
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

/* Ordering: a copier that does not find its generation any more (acquire)
 * because of a store here (release) finds `over`, which was stored before. */
void shm_cut(struct lane *lane) {
  atomic_store_explicit(&lane->own->over, 1, memory_order_relaxed);
  for (uint32_t slot = 0; slot < lane->exported; slot++)
    shm_revoke(lane, slot);
}

/* ---- The peer ----------------------------------------------------------- */

/* The word with the region's generation stays there. */
int shm_attach(struct lane *lane, struct window *window,
               const struct region_key *key) {
  const struct memory_key memory = {.fd_count = 1, .fds = {key->fds[0]}};
  const _Atomic uint64_t *word = lane->peer->regions + window->slot;
  void *none;
  if (key->length != 0 || key->fd_count != 1 || window->slot >= SHM_REGIONS)
    return PERIGEE_PROTOCOL;
  int status =
      memory_host_kind.sharing->adopt(&memory_host, &memory, window->length,
                                      window->access, &window->pointer, &none);
  if (status < 0 ||
      (there_word(lane, word) &&
       share_take(lane->options.share, SHARE_MAPPED, window->length)))
    return status;
  memory_host_kind.sharing->leave(&memory_host, window->pointer, window->length,
                                  none);
  window->pointer = NULL;
  return PERIGEE_NO_MEMORY;
}

void shm_detach(struct lane *lane, struct window *window) {
  memory_host_kind.sharing->leave(&memory_host, window->pointer, window->length,
                                  NULL);
  share_back(lane->options.share, SHARE_MAPPED, window->length);
  window->pointer = NULL;
}

/* Why it is not granted any more. */
static int refusal(const struct lane *lane) {
  return atomic_load_explicit(&lane->peer->over, memory_order_relaxed)
             ? PERIGEE_PEER_LOST
             : PERIGEE_STALE;
}

int64_t shm_copy(struct lane *lane, const struct window *window,
                 struct payload *remote, struct payload *local, uint64_t limit,
                 bool write) {
  atomic_store_explicit(&lane->own->inside, window->slot + 1,
                        memory_order_relaxed);
  atomic_thread_fence(memory_order_seq_cst);
  int64_t moved;
  if (atomic_load_explicit(&lane->peer->regions[window->slot],
                           memory_order_acquire) == window->generation)
    moved = (int64_t)(write ? payload_copy(remote, local, limit)
                            : payload_copy(local, remote, limit));
  else
    moved = refusal(lane);
  atomic_store_explicit(&lane->own->inside, 0, memory_order_release);
  return moved;
}
