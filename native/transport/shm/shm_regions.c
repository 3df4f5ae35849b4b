/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_regions.c - regions: the owner exports them, the peer attaches them, and
 * copies into them and out of them by one side need no help of the other.
 *
 * The key of a region is its memfd, without any bytes: slot, generation, length
 * and rights are in the window. Only memory/host.c knows how such memory is
 * made, checked and mapped.
 *
 * Fence. A side that copies in a peer's region stores `inside`, fences, and
 * loads the region's generation. An owner that closes the region stores the
 * generation, fences, and loads `inside`. So the copier sees that the region is
 * closed, or the owner sees that the peer is inside (spec/model/region.pml).
 *
 * A session that ends takes its rights along: a region may be closed after
 * that, and the peer may not have heard of either.
 *
 * Bytes that are read have to be there (shm_there.c). The bits of a region's
 * pages are kept, so that a read of what was read before needs no call; bytes
 * that are not there are read by a call, from the region's file, which is kept
 * until all of it was seen. Only the owner of a region that its peers may write
 * could punch holes later, where a peer that writes makes pages anyway. The same
 * holds for what a device reads in place (shm_there).
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/adopted.h"
#include "shm.h"

/* Bytes of one read by a call, and of one look. */
enum { BOUNCE = 16 << 10, STRETCH = 128 << 10 };
/* A shorter write is not worth a trial of the distance, nor a fence. */
enum { WRITE_LEAST = 16 << 10 };

/* ---- The owner ----------------------------------------------------------- */

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

/* ---- The peer ------------------------------------------------------------ */

/* The pages of a region that were seen. */
struct sight {
  struct node node; /* in lane->sights */
  int file;         /* or -1 */
  uint32_t known;
  uint64_t pages;
  uint64_t ahead; /* bytes from the first on, that shm_there found there */
  uint64_t bits[];
};

static struct sight *sight_of(const struct window *window) {
  struct sight *s;
  memcpy(&s, window->own, sizeof s);
  return s;
}

static void sight_close_file(struct lane *lane, struct sight *s) {
  if (s->file < 0)
    return;
  adopted_close(s->file);
  s->file = -1;
  share_back(lane->options.share, SHARE_DESCRIPTORS, 1);
}

/* Can a region be seen to be there at once? Then its file is not needed. */
static bool sight_is_whole(const struct window *window, struct sight *s) {
  uint32_t looks = THERE_LOOKS;
  return there_range(window->pointer, s->bits, 0, window->length, &looks,
                     &s->known) == THERE;
}

static bool sight_open(struct lane *lane, struct window *window, int fd) {
  uint64_t pages = (window->length + SHM_PAGE - 1) / SHM_PAGE;
  struct sight *s = calloc(1, sizeof *s + (pages + 63) / 64 * 8);
  if (!s)
    return false;
  s->pages = pages;
  s->file = -1;
  if (window->access & PERIGEE_READ && !sight_is_whole(window, s) &&
      arena_may_keep(lane, fd))
    s->file = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (s->file >= 0 && lane->options.share)
    share_add(lane->options.share, SHARE_DESCRIPTORS, 1);
  list_append(&lane->sights, &s->node);
  memcpy(window->own, &s, sizeof s);
  return true;
}

static void sight_close(struct lane *lane, struct window *window) {
  struct sight *s = sight_of(window);
  if (!s)
    return;
  sight_close_file(lane, s);
  list_remove(&s->node);
  free(s);
  memset(window->own, 0, sizeof s);
}

void shm_regions_forked(struct lane *lane) {
  struct node *n, *head = &lane->sights;
  for (n = head->next; n != head; n = n->next) {
    struct sight *s = CONTAINER(n, struct sight, node);
    if (s->file >= 0)
      close(s->file);
    s->file = -1;
  }
}

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
  if (status < 0)
    return status;
  if (there_word(lane, word) &&
      share_take(lane->options.share, SHARE_MAPPED, window->length)) {
    if (sight_open(lane, window, key->fds[0]))
      return PERIGEE_OK;
    share_back(lane->options.share, SHARE_MAPPED, window->length);
  }
  memory_host_kind.sharing->leave(&memory_host, window->pointer, window->length,
                                  none);
  window->pointer = NULL;
  return PERIGEE_NO_MEMORY;
}

void shm_detach(struct lane *lane, struct window *window) {
  sight_close(lane, window);
  memory_host_kind.sharing->leave(&memory_host, window->pointer, window->length,
                                  NULL);
  share_back(lane->options.share, SHARE_MAPPED, window->length);
  window->pointer = NULL;
}

/* The reason why it is not granted any more. */
static int region_refusal(const struct lane *lane) {
  return atomic_load_explicit(&lane->peer->over, memory_order_relaxed)
             ? PERIGEE_PEER_LOST
             : PERIGEE_STALE;
}

static __attribute__((noinline)) int64_t
region_read_by_call(struct lane *lane, const struct sight *s, uint64_t at,
                    uint64_t n, struct payload *remote, struct payload *local) {
  uint8_t bytes[BOUNCE];
  ssize_t got = s->file < 0
                    ? -1
                    : pread(s->file, bytes, least(n, sizeof bytes), (off_t)at);
  if (got <= 0)
    return arena_not_there(lane);
  remote->done += (uint64_t)got;
  return payload_put(local, bytes, (uint64_t)got);
}

/* Moves some of the bytes that are not known to be there. */
static int64_t region_read_unseen(struct lane *lane,
                                  const struct window *window,
                                  struct payload *remote, struct payload *local,
                                  uint64_t limit) {
  struct sight *s = sight_of(window);
  uint64_t n;
  const uint8_t *from = payload_run(remote, &n);
  uint64_t at = (uint64_t)(from - window->pointer);
  uint32_t looks = UINT32_MAX;
  n = least(least(n, limit), STRETCH);
  if (there_range(window->pointer, s->bits, at, at + n, &looks, &s->known) !=
      THERE)
    return region_read_by_call(lane, s, at, n, remote, local);
  if (s->known == s->pages)
    sight_close_file(lane, s);
  return (int64_t)payload_copy(local, remote, n);
}

/* Is all of the next `limit` bytes known to be there? They are not none. */
static bool region_is_seen(const struct window *window,
                           const struct payload *remote, uint64_t limit) {
  const struct sight *s = sight_of(window);
  uint64_t from = (uint64_t)(remote->base - window->pointer), to = from;
  uint64_t end = least(remote->done + limit, remote->total) - 1;
  if (remote->count == 1) {
    from += remote->done;
    to += end + 1;
  } else {
    from += remote->done / remote->block * remote->stride;
    to += end / remote->block * remote->stride + remote->block;
  }
  return there_known(s->bits, from, to) || there_all(s->bits, from, to);
}

/* Returns how many of the next bytes of one shape are known to be there. What
 * lies between its blocks may never have been looked at. */
static uint64_t shape_seen(const struct window *window,
                           const struct payload *remote, uint64_t limit) {
  struct payload walk = *remote;
  uint64_t seen = 0, n;
  limit = least(limit, walk.total - walk.done);
  if (region_is_seen(window, &walk, limit))
    return limit;
  for (; seen < limit; seen += n, walk.done += n) {
    uint64_t at = (uint64_t)(payload_run(&walk, &n) - window->pointer);
    n = least(n, limit - seen);
    if (!there_all(sight_of(window)->bits, at, at + n))
      break;
  }
  return seen;
}

/* The same of a payload that may have extents; limit is not more than it has. */
static uint64_t region_seen(const struct window *window,
                            const struct payload *remote, uint64_t limit) {
  struct payload walk = *remote;
  uint64_t seen = 0;
  if (!walk.extents)
    return shape_seen(window, remote, limit);
  while (seen < limit) {
    struct payload here = payload_extent(&walk);
    uint64_t want = least(limit - seen, here.total - here.done);
    uint64_t n = shape_seen(window, &here, want);
    seen += n;
    walk.done += n;
    if (n < want)
      break;
  }
  return seen;
}

static __attribute__((noinline)) int64_t
region_read(struct lane *lane, const struct window *window,
            struct payload *remote, struct payload *local, uint64_t limit) {
  if (limit == 0 || remote->done == remote->total ||
      (!remote->extents && region_is_seen(window, remote, limit)))
    return (int64_t)payload_copy(local, remote, limit);
  uint64_t moved = 0, seen;
  limit = least(limit, remote->total - remote->done);
  while (moved < limit) {
    seen = region_seen(window, remote, limit - moved);
    int64_t n = seen > 0 ? (int64_t)payload_copy(local, remote, seen)
                         : region_read_unseen(lane, window, remote, local,
                                              limit - moved);
    if (n < 0)
      return n;
    moved += (uint64_t)n;
  }
  return (int64_t)moved;
}

/* Do the bytes of the write go past the caches? They do if the owner's core is
 * far, as it has read what was there before, mostly. A long piece finds out by
 * itself (BULK_LEAST). */
static bool write_is_far(struct lane *lane, const struct payload *remote) {
  struct shm_distance *d = &lane->writes;
  uint64_t n;
  if (remote->count == 1 && remote->total >= BULK_LEAST)
    return false;
  if (remote->done > 0)
    return d->far;
  uint8_t *at = payload_run(remote, &n), *word = at + -(uintptr_t)at % 8;
  if (n < 16 || !distance_begin(d))
    distance_pass(d, 1);
  else
    distance_try_line(lane, d, word);
  return d->far;
}

static __attribute__((noinline)) int64_t
region_write_long(struct lane *lane, struct payload *remote,
                  struct payload *local, uint64_t limit) {
  bool far = write_is_far(lane, remote);
  if (!far || remote->count > 1) {
    remote->vast |= far;
    return (int64_t)payload_copy(remote, local, limit);
  }
  uint64_t n = least(limit, remote->total - remote->done);
  int64_t moved = payload_stream(local, remote->base + remote->done, n);
  if (moved > 0)
    remote->done += (uint64_t)moved;
  return moved;
}

static inline int64_t region_write(struct lane *lane, struct payload *remote,
                                   struct payload *local, uint64_t limit) {
  return remote->total < WRITE_LEAST
             ? (int64_t)payload_copy(remote, local, limit)
             : region_write_long(lane, remote, local, limit);
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
    moved = write ? region_write(lane, remote, local, limit)
                  : region_read(lane, window, remote, local, limit);
  else
    moved = region_refusal(lane);
  atomic_store_explicit(&lane->own->inside, 0, memory_order_release);
  return moved;
}

/* A read of some bytes looks at as many more, until the whole region is known:
 * so what is read in place costs a little more while it is new. */
static void sight_look_ahead(const struct window *window, struct sight *s,
                             uint64_t bytes, uint32_t looks) {
  uint64_t end = least(window->length, s->ahead + (bytes | (STRETCH - 1)) + 1);
  if (s->known < s->pages && there_range(window->pointer, s->bits, s->ahead,
                                         end, &looks, &s->known) == THERE)
    s->ahead = end;
}

/* What a device reads in place has to be there, as what the CPU reads. What lies
 * between the blocks counts, too. */
int shm_there(struct lane *lane, const struct window *window,
              const struct payload *remote, bool *whole) {
  struct sight *s = sight_of(window);
  uint64_t from = (uint64_t)(remote->base - window->pointer);
  uint64_t bytes = (remote->count - 1) * remote->stride + remote->block;
  uint32_t looks = THERE_LOOKS;
  enum there there = there_range(window->pointer, s->bits, from, from + bytes,
                                 &looks, &s->known);
  if (there == THERE)
    sight_look_ahead(window, s, bytes, looks);
  *whole = s->known == s->pages;
  if (*whole)
    sight_close_file(lane, s);
  return there == THERE ? 1 : there == THERE_LATER ? PERIGEE_AGAIN : 0;
}
