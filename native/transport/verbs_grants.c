/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_grants.c - memory of ours that a peer may reach by itself.
 *
 * A grant is an id with a generation. Where the device has windows, there is
 * one for each pair of the lane: no other session's pair can use its key, and
 * its rights are those of the grant. Else the range is registered once more
 * with the rights; then whoever learns the key and is connected to this
 * process can use it, while any session has a grant of the range.
 *
 *   none    open   granted   keys made, windows bound, the peer told
 *   none    open   refused   it failed: not tried again for a second
 *   granted shut   none      windows freed, the peer told
 *
 * Freeing a window, like deregistering, ends only when the device is through
 * with it: a fence. A peer that was not told yet breaks its own pair, which is
 * then rebuilt.
 */
#include "transport/verbs_keys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- Pages by id -------------------------------------------------------- */

static struct granted *granted_find(const struct lane *lane, uint32_t id) {
  if (id >= IDS || !lane->granted || !lane->granted[id / PAGE])
    return NULL;
  return &lane->granted[id / PAGE][id % PAGE];
}

static struct granted *granted_make(struct lane *lane, uint32_t id) {
  if (!lane->granted)
    lane->granted = calloc(IDS / PAGE, sizeof *lane->granted);
  if (!lane->granted)
    return NULL;
  struct granted **page = &lane->granted[id / PAGE];
  if (!*page)
    *page = calloc(PAGE, sizeof **page);
  return *page ? &(*page)[id % PAGE] : NULL;
}

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
  /* Without the right to write here nobody else can have it. */
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

static int window_key(struct granted *granted, struct pair *pair, uint32_t at,
                      struct ibv_mr *mr, int rights, uint32_t *rkey) {
  struct ibv_mw *mw = ibv_alloc_mw(pair->rail->pd, IBV_MW_TYPE_2);
  if (!mw)
    return keys_status(errno);
  granted->mw[at] = mw;
  uint64_t base = (uintptr_t)granted->keys->area->base;
  int status =
      pair_bind(pair, mw, mr, base + granted->offset, granted->length, rights);
  *rkey = mw->rkey;
  return status;
}

static int pair_key(struct granted *granted, uint32_t at, int rights,
                    uint32_t *rkey) {
  struct pair *pair = &granted->lane->pairs[at];
  struct rail *rail = pair->rail;
  struct keys *keys = granted->keys;
  if (!rail->windows)
    return shared_key(granted, rail, rights, rkey);
  struct part *part;
  int status = keys_part(keys, rail, granted->offset, &part);
  if (status < 0)
    return status;
  if (!part->bindable)
    return shared_key(granted, rail, rights, rkey);
  /* A window lies in one memory region. */
  uint64_t end = granted->offset + granted->length;
  if (end > keys_part_end(keys, granted->offset))
    return PERIGEE_UNSUPPORTED;
  return window_key(granted, pair, at, part->mr, rights, rkey);
}

/* ---- Grants ------------------------------------------------------------- */

static void granted_link(struct granted *granted) {
  struct keys *keys = granted->keys;
  granted->next = keys->grants;
  granted->link = &keys->grants;
  if (granted->next)
    granted->next->link = &granted->next;
  keys->grants = granted;
}

static void granted_free(struct granted *granted) {
  for (uint32_t i = 0; i < PAIRS; i++)
    if (granted->mw[i])
      ibv_dealloc_mw(granted->mw[i]);
  if (granted->shared)
    shared_give(granted->keys, granted->shared);
  *granted->link = granted->next;
  if (granted->next)
    granted->next->link = granted->link;
  memset(granted, 0, sizeof *granted);
}

void granted_shut(struct granted *granted) {
  struct lane *lane = granted->lane;
  struct note note = {.kind = NOTE_REVOKE,
                      .operation = granted->id,
                      .value = granted->generation};
  granted_free(granted);
  if (note.value != 0 && lane->status >= 0 && !lane->cut)
    note_send(lane, &note);
}

static int granted_open(struct granted *granted, int access,
                        struct note *note) {
  int rights = (access & PERIGEE_READ ? IBV_ACCESS_REMOTE_READ : 0) |
               (access & PERIGEE_WRITE ? IBV_ACCESS_REMOTE_WRITE : 0);
  const struct lane *lane = granted->lane;
  int status = PERIGEE_OK;
  for (uint32_t i = 0; i < lane->pair_count && status >= 0; i++)
    status = pair_key(granted, i, rights, &note->rkey[i]);
  return status < 0 || lane->status >= 0 ? status : lane->status;
}

static int granted_begin(struct lane *lane, uint32_t id, struct area *area,
                         uint64_t offset, uint64_t length,
                         struct granted **out) {
  if (id >= IDS || length == 0 || length > HELD_MOST || offset > area->length ||
      length > area->length - offset)
    return PERIGEE_UNSUPPORTED;
  struct granted *granted = granted_make(lane, id);
  struct keys *keys = keys_of(lane->fabric, area);
  if (!granted || !keys)
    return PERIGEE_NO_MEMORY;
  *granted = (struct granted){
      .lane = lane, .id = id, .keys = keys, .offset = offset, .length = length};
  granted_link(granted);
  *out = granted;
  return PERIGEE_OK;
}

/* Opening may take in what the hardware has done, and so find the lane broken;
 * but nothing in there opens or shuts a grant. */
int grant_open(struct lane *lane, uint32_t id, uint64_t generation,
               struct area *area, uint64_t offset, uint64_t length,
               int access) {
  if (lane->status < 0 || lane->cut)
    return lane->status < 0 ? lane->status : PERIGEE_CLOSED;
  if (generation == 0)
    return PERIGEE_UNSUPPORTED;
  if (grant_is(lane, id, generation))
    return PERIGEE_OK;
  grant_shut(lane, id);
  struct granted *granted = granted_find(lane, id);
  if (granted && granted->refused == generation &&
      keys_now(lane->fabric) < granted->until)
    return PERIGEE_AGAIN;
  int status = granted_begin(lane, id, area, offset, length, &granted);
  if (status < 0)
    return status;
  struct note note = {.kind = NOTE_GRANT,
                      .operation = id,
                      .value = generation,
                      .base = (uintptr_t)area->base + offset,
                      .length = length};
  status = granted_open(granted, access, &note);
  if (status < 0) {
    granted_free(granted);
    granted->refused = generation;
    granted->until = keys_now(lane->fabric) + REFUSED;
    return status;
  }
  granted->generation = generation;
  note_send(lane, &note);
  return PERIGEE_OK;
}

void grant_shut(struct lane *lane, uint32_t id) {
  struct granted *granted = granted_find(lane, id);
  if (granted && granted->generation != 0)
    granted_shut(granted);
}

bool grant_is(const struct lane *lane, uint32_t id, uint64_t generation) {
  const struct granted *granted = granted_find(lane, id);
  return granted && generation != 0 && granted->generation == generation;
}

static void granted_page_close(struct granted *page) {
  for (uint32_t i = 0; page && i < PAGE; i++)
    if (page[i].keys)
      granted_free(&page[i]);
  free(page);
}

void grants_close(struct lane *lane) {
  for (uint32_t i = 0; lane->granted && i < IDS / PAGE; i++)
    granted_page_close(lane->granted[i]);
  free(lane->granted);
  lane->granted = NULL;
  held_close(lane);
  if (lane->inbox_mw)
    ibv_dealloc_mw(lane->inbox_mw);
  lane->inbox_mw = NULL;
  keys_deregister(lane->fabric, &lane->inbox_mr);
}

/* ---- Regions and payloads ----------------------------------------------- */

bool verbs_grant(struct lane *lane, const struct grant *grant) {
  if (grant->slot >= ID_PAYLOAD - ID_REGION ||
      (grant->access & (PERIGEE_READ | PERIGEE_WRITE)) == 0)
    return false;
  return grant_open(lane, ID_REGION + grant->slot, grant->generation,
                    grant->area, 0, grant->area->length,
                    grant->access) == PERIGEE_OK;
}

void verbs_revoke(struct lane *lane, uint32_t slot) {
  if (slot < ID_PAYLOAD - ID_REGION)
    grant_shut(lane, ID_REGION + slot);
}

bool verbs_inside(struct lane *lane, uint32_t slot) {
  (void)lane, (void)slot;
  return false;
}

/* The next id that is free: one that was freed rests for as long as it can. */
static int payload_number(struct keys *keys) {
  struct fabric *fabric = keys->fabric;
  const uint32_t count = ID_ARENA - ID_PAYLOAD;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t number = fabric->number++ % count;
    uint64_t *word = &fabric->numbered[number / 64];
    uint64_t bit = UINT64_C(1) << number % 64;
    if (*word & bit)
      continue;
    *word |= bit;
    keys->id = ID_PAYLOAD + number;
    keys->generation = ++fabric->generation;
    return PERIGEE_OK;
  }
  return PERIGEE_NO_MEMORY;
}

int keys_payload_id(struct lane *lane, struct area *area) {
  if (area->chunk || area->length == 0)
    return PERIGEE_UNSUPPORTED;
  struct keys *keys = keys_of(lane->fabric, area);
  if (!keys)
    return PERIGEE_NO_MEMORY;
  int status = keys->generation ? PERIGEE_OK : payload_number(keys);
  if (status < 0)
    return status;
  if (!grant_is(lane, keys->id, keys->generation))
    status = grant_open(lane, keys->id, keys->generation, area, 0, area->length,
                        PERIGEE_READ);
  return status < 0 ? status : (int)keys->id;
}
