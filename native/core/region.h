/* SPDX-License-Identifier: Apache-2.0
 *
 * region.h - an engine's own regions, and windows to those of peers.
 *
 * A region's slot is used again after the region was closed, with another
 * generation. Generations start at random and only grow, so that a handle of an
 * earlier life never fits. `users` counts operations that may touch the memory;
 * a closed region with users, or with a peer inside, is kept in `closing`.
 * `prepared` counts transfers that name it and may be posted after its close:
 * the handle, without any memory, stays as long as they do.
 *
 * A private region, without a name and without rights for peers, has no slot:
 * no peer can ever ask for it, so as many may be as there is memory.
 *
 * A peer that looks up a region by its name is told length, rights, slot and
 * generation, and for each lane that reaches the region a key. The owner's half
 * of that lane has exported the key, and only the peer's half looks into it
 * (groups.h, Access). Over shared memory a key is the region's memfd, and over
 * RDMA its rkeys. Over TCP there is none: the owner is asked for each access.
 * The keys of a closed region are stale, because each copy compares the
 * generation. Older builds understand that, too: shared memory is told as it
 * always was, and an RDMA lane writes keys only to a peer that reads them.
 *
 * What the peer has mapped stays memory after the owner has closed the region,
 * until the peer detaches its windows. It does so when nothing there uses the
 * region any more: `users` of perigee_remote counts the look-ups that have given
 * it, without those that were closed again (perigee_remote_close), and
 * operations and prepared transfers that name it.
 */
#ifndef REGION_H
#define REGION_H

#include "base/list.h"
#include "net/wire.h"
#include "perigee.h"
#include "transport/transport.h"

enum { REGION_SLOTS = 4096, REGION_PRIVATE = REGION_SLOTS };

struct perigee_region {
  struct node node;  /* in regions->closing */
  struct node among; /* in regions->privates; in no list with a slot */
  struct perigee_engine *engine;
  uint32_t slot; /* or REGION_PRIVATE */
  uint32_t users, prepared;
  uint64_t generation;
  uint64_t length;
  uint8_t *pointer;
  const struct memory_context *memory;
  struct area area; /* the memory, for devices */
  int access;
  int fd; /* the memory's memfd, which peers may map; or -1 */
  bool allocated, admitted, closed, forced, freed;
  uint64_t granted; /* how many sessions were ever told of it */
  char name[REGION_NAME + 1];
};

struct regions {
  struct perigee_region **slots;
  uint32_t limit;
  uint64_t generation, count;
  int64_t small_until; /* allocated memory is made in small pages (ns) */
  struct node privates, closing;
};

struct perigee_remote {
  struct perigee_remote *next;
  struct perigee_session *session;
  uint64_t number;                     /* which of the session's, from 1 */
  struct window window;                /* for the first lane */
  struct window extra[FOUND_KEYS - 1]; /* for the additional lanes */
  struct area area; /* what the first window has mapped, for devices */
  uint64_t users;
  char name[REGION_NAME + 1];
};

static inline struct window *remote_window(struct perigee_remote *remote,
                                           uint32_t lane) {
  return lane == 0 ? &remote->window : &remote->extra[lane - 1];
}

/* The last drop frees it. */
static inline void remote_use(struct perigee_remote *remote) {
  remote->users++;
}
void remote_drop(struct perigee_remote *remote);
/* Detaches its windows, and frees it. NULL: does nothing. It is in no list. */
void remote_free(struct perigee_remote *remote);
/* Frees all of a session, whatever uses them. */
void remotes_free(struct perigee_session *session);

int regions_open(struct perigee_engine *engine);
void regions_close(struct perigee_engine *engine);
void regions_close_in_child(struct perigee_engine *engine);
/* Pages that are made for the regions that are allocated now, or within the
 * next second, are small ones, as a large one has just taken this machine too
 * long (base/budget.h). */
void regions_use_small_pages(struct perigee_engine *engine);
/* Frees closed regions once no peer is inside. */
void regions_sweep(struct perigee_engine *engine);
struct perigee_region *region_by_name(struct perigee_engine *engine,
                                      const char *name);
/* Returns the live region of a slot if the generation fits, else NULL. */
struct perigee_region *region_by_slot(struct perigee_engine *engine,
                                      uint64_t slot, uint64_t generation);
/* Returns whether the region's memory is still what it was when it was
 * registered; the sentence is for when it is not. */
bool region_valid(const struct perigee_region *region);
#define REGION_INVALID "the program has freed the memory of a registered region"
/* A prepared transfer keeps the handle, until each has dropped it. */
void region_keep(struct perigee_region *region);
void region_drop(struct perigee_region *region);
/* Returns whether count blocks lie within length bytes. Safe for any values. */
bool shape_fits(uint64_t length, uint64_t offset, uint64_t block,
                uint64_t count, uint64_t stride);

/* Returns whether the slice is one piece of an open region that the CPU may
 * touch. */
static inline bool region_has(const struct perigee_region *region,
                              const struct perigee_slice *slice) {
  return slice->count == 1 && !region->closed && region->memory->direct &&
         slice->offset <= region->length &&
         slice->length <= region->length - slice->offset;
}

/* Makes the payload of a slice for which region_has() holds. */
static inline void slice_piece(const struct perigee_slice *slice,
                               struct payload *p) {
  struct perigee_region *region = slice->region;
  *p = (struct payload){.memory = region->memory,
                        .area = &region->area,
                        .base = region->pointer + slice->offset,
                        .block = slice->length,
                        .count = 1,
                        .stride = slice->length,
                        .total = slice->length};
}

#endif
