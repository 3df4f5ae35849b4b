/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_rights.c - the keys by which a peer reaches what it was granted.
 *
 * If the device has memory windows, there is one for each pair of the lane: no
 * other session's pair can use its key, and its rights are those of the grant.
 * Otherwise the range is registered once more, with the rights; then anybody
 * who learns the key and is connected to this process can use it, as long as
 * any session has a grant of the range.
 */
#include "verbs_keys.h"

#include <errno.h>
#include <stdlib.h>

/* ---- Rights without windows --------------------------------------------- */

static struct shared *shared_take(struct keys *keys, uint64_t offset,
                                  uint64_t length, int rights) {
  struct shared *shared = keys->shared;
  while (shared && (shared->offset != offset || shared->length != length ||
                    shared->rights != rights))
    shared = shared->next;
  if (!shared) {
    shared = calloc(1, sizeof *shared);
    if (!shared)
      return NULL;
    *shared = (struct shared){keys->shared, offset, length, rights, 0, {0}};
    keys->shared = shared;
  }
  shared->users++;
  return shared;
}

static void shared_give(struct keys *keys, struct shared *shared) {
  if (--shared->users > 0)
    return;
  for (uint32_t i = 0; i < RAILS; i++)
    keys_deregister(keys->fabric, &shared->mr[i]);
  struct shared **link = &keys->shared;
  while (*link != shared)
    link = &(*link)->next;
  *link = shared->next;
  free(shared);
}

static int shared_key(struct granted *granted, struct rail *rail, int rights,
                      uint32_t *rkey) {
  struct keys *keys = granted->keys;
  if (!granted->shared)
    granted->shared =
        shared_take(keys, granted->offset, granted->length, rights);
  if (!granted->shared)
    return PERIGEE_NO_MEMORY;
  struct ibv_mr **mr = &granted->shared->mr[rail->index];
  /* The remote right to write requires the local one. */
  if (rights & IBV_ACCESS_REMOTE_WRITE)
    rights |= IBV_ACCESS_LOCAL_WRITE;
  if (!*mr)
    *mr = keys_register(rail, keys->area->memory,
                        keys->area->base + granted->offset, granted->length,
                        rights);
  if (!*mr)
    return keys_status(errno);
  *rkey = (*mr)->rkey;
  return PERIGEE_OK;
}

/* ---- Windows ------------------------------------------------------------ */

static int window_make(struct granted *granted, struct pair *pair,
                       struct ibv_mw **mw) {
  if (*mw)
    ibv_dealloc_mw(*mw);
  *mw = ibv_alloc_mw(pair->rail->pd, IBV_MW_TYPE_2);
  if (!*mw)
    return keys_status(errno);
  granted->rkey[pair->index] = ibv_inc_rkey((*mw)->rkey);
  return PERIGEE_OK;
}

/* Returns the key for a pair: valid at once, or that of a window to be
 * bound. */
static int pair_key(struct granted *granted, uint32_t at) {
  struct pair *pair = &granted->lane->pairs[at];
  struct rail *rail = pair->rail;
  struct keys *keys = granted->keys;
  uint32_t *rkey = &granted->rkey[at];
  if (!rail->windows)
    return shared_key(granted, rail, granted->rights, rkey);
  struct part *part;
  int status = keys_part(keys, rail, granted->offset, &part);
  if (status < 0)
    return status;
  if (!part->bindable)
    return shared_key(granted, rail, granted->rights, rkey);
  /* A window is within one memory region. */
  uint64_t end = granted->offset + granted->length;
  if (end > keys_part_end(keys, granted->offset))
    return PERIGEE_UNSUPPORTED;
  return window_make(granted, pair, &granted->mw[at]);
}

/* The control pair carries no bytes if there are data pairs. */
static uint32_t first_pair(const struct lane *lane) {
  return lane->pair_count > 1;
}

int rights_make(struct granted *granted) {
  const struct lane *lane = granted->lane;
  int status = PERIGEE_OK;
  for (uint32_t i = first_pair(lane); i < lane->pair_count && status >= 0; i++)
    status = pair_key(granted, i);
  granted->bound = first_pair(lane);
  return status;
}

bool rights_bind(struct granted *granted) {
  struct lane *lane = granted->lane;
  const struct keys *keys = granted->keys;
  for (; granted->bound < lane->pair_count; granted->bound++) {
    struct pair *pair = &lane->pairs[granted->bound];
    struct ibv_mw *mw = granted->mw[granted->bound];
    if (!mw)
      continue;
    if (pair->state != PAIR_UP || pair_room(pair) == 0)
      return false;
    uint64_t part = granted->offset / keys->size * lane->fabric->rail_count;
    pair_bind(pair, &granted->job, mw, keys->parts[part + pair->rail->index].mr,
              (uintptr_t)keys->area->base + granted->offset, granted->length,
              granted->rights, granted->rkey[granted->bound]);
  }
  return true;
}

void rights_free(struct granted *granted) {
  for (uint32_t i = 0; i < PAIRS; i++)
    if (granted->mw[i])
      ibv_dealloc_mw(granted->mw[i]);
  if (granted->shared)
    shared_give(granted->keys, granted->shared);
}
