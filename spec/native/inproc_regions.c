/* SPDX-License-Identifier: Apache-2.0
 *
 * inproc_regions.c - regions of the in-process transport: keys, and copies in
 * splinters.
 */
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "inproc.h"

/* The key is the area's file and, as bytes, its length. An additional lane
 * needs neither. */
static int inproc_export(struct lane *lane, const struct grant *grant,
                         struct region_key *key) {
  struct stat st;
  bool mapped = !lane_table(lane)->additional;
  if (mapped && (grant->file < 0 || fstat(grant->file, &st) != 0))
    return PERIGEE_UNSUPPORTED;
  lane->regions[grant->slot] = grant->generation;
  lane->areas[grant->slot] = grant->area;
  key->length = key->fd_count = 0;
  if (!mapped)
    return PERIGEE_OK;
  memcpy(key->bytes, &st.st_size, sizeof st.st_size);
  key->length = sizeof st.st_size;
  key->fds[0] = grant->file;
  key->fd_count = 1;
  return PERIGEE_OK;
}

static int inproc_attach(struct lane *lane, struct window *window,
                         const struct region_key *key) {
  off_t said;
  struct stat st;
  if (lane_table(lane)->additional)
    return key->length + key->fd_count == 0 ? PERIGEE_OK : PERIGEE_PROTOCOL;
  memcpy(&said, key->bytes, sizeof said);
  if (key->length != sizeof said || key->fd_count != 1 ||
      fstat(key->fds[0], &st) != 0 || st.st_size != said ||
      (uint64_t)said < window->length)
    return PERIGEE_PROTOCOL;
  if (!share_take(lane->share, SHARE_MAPPED, (uint64_t)said))
    return PERIGEE_NO_MEMORY;
  int rights = PROT_READ | (window->access & PERIGEE_WRITE ? PROT_WRITE : 0);
  void *p = mmap(NULL, (size_t)said, rights, MAP_SHARED, key->fds[0], 0);
  if (p == MAP_FAILED) {
    share_back(lane->share, SHARE_MAPPED, (uint64_t)said);
    return PERIGEE_NO_MEMORY;
  }
  window->pointer = p;
  memcpy(window->own, &said, sizeof said);
  return PERIGEE_OK;
}

static void inproc_detach(struct lane *lane, struct window *window) {
  off_t mapped;
  if (!window->pointer)
    return;
  memcpy(&mapped, window->own, sizeof mapped);
  munmap(window->pointer, (size_t)mapped);
  share_back(lane->share, SHARE_MAPPED, (uint64_t)mapped);
}

static void inproc_revoke(struct lane *lane, uint32_t slot) {
  lane->regions[slot] = 0;
}

static bool inproc_inside(struct lane *lane, uint32_t slot) {
  const struct task *t = lane->peer ? lane->peer->tasks : NULL;
  while (t && t->slot != slot)
    t = t->next;
  return t != NULL;
}

int inproc_refuses(const struct lane *lane, const struct window *window) {
  if (!lane->peer || lane->peer->over)
    return PERIGEE_PEER_LOST;
  return lane->peer->regions[window->slot] == window->generation
             ? PERIGEE_OK
             : PERIGEE_STALE;
}

static int64_t inproc_copy(struct lane *lane, const struct window *window,
                           struct payload *remote, struct payload *local,
                           uint64_t limit, bool write) {
  uint64_t run;
  int status = inproc_refuses(lane, window);
  if (status < 0)
    return status;
  if (inproc_later(lane))
    return 0;
  uint8_t *at = payload_run(remote, &run);
  uint64_t n = inproc_splinter(lane, limit < run ? limit : run);
  int64_t moved =
      write ? payload_take(local, at, n) : payload_put(local, at, n);
  if (moved > 0)
    remote->done += (uint64_t)moved;
  return moved;
}

const struct transport_access inproc_access = {
    .export = inproc_export,
    .revoke = inproc_revoke,
    .inside = inproc_inside,
    .attach = inproc_attach,
    .detach = inproc_detach,
};

const struct transport_copies inproc_copies = {
    .copy = inproc_copy,
};
