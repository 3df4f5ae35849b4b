/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_grants.c - grants: memory of ours that a peer may reach by itself. A
 * grant has an id, a generation, and keys (verbs_rights.c).
 *
 *   none     open    opening   keys are made, windows are being bound
 *   none     open    refused   no keys could be made: retried after a second
 *   opening  bound   granted   on all pairs: the peer is told
 *   opening  reset   opening   a pair was reset: new windows are made
 *   opening, granted
 *            shut    none      windows are freed, the peer is told
 *
 * A window is bound in the order of its pair, behind bulk data that is there
 * already. Only the peer waits for that; it knows that the grant will come.
 *
 * Freeing a window, like deregistering, returns only when the device does not
 * use it any more: it is a fence. A peer that was not told yet, and uses the
 * key, breaks its own pair, which is then rebuilt.
 */
#include "verbs_keys.h"

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

/* ---- Grants ------------------------------------------------------------- */

static void granted_link(struct granted *granted) {
  struct keys *keys = granted->keys;
  granted->next = keys->grants;
  granted->link = &keys->grants;
  if (granted->next)
    granted->next->link = &granted->next;
  keys->grants = granted;
}

static void opening_unlink(struct granted *granted) {
  struct granted **link = &granted->lane->fabric->opening;
  while (*link && *link != granted)
    link = &(*link)->waiting;
  if (*link)
    *link = granted->waiting;
  granted->opening = false;
}

/* Stops binding, on the pairs that would do it later. */
static void stop_binding(struct granted *granted) {
  opening_unlink(granted);
  lane_fence(granted->lane, &granted->job);
  if (granted->job.pending > 0)
    lane_await(granted->lane, &granted->job);
}

static void granted_free(struct granted *granted) {
  if (granted->opening)
    stop_binding(granted);
  rights_free(granted);
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

static int granted_begin(struct lane *lane, uint32_t id, struct area *area,
                         uint64_t offset, uint64_t length,
                         struct granted **out) {
  if (id >= IDS || length == 0 || length > GRANT_MOST ||
      offset > area->length || length > area->length - offset)
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

static void tell_granted(const struct granted *granted) {
  struct note note = {.kind = NOTE_GRANT,
                      .operation = granted->id,
                      .value = granted->generation,
                      .base = (uintptr_t)granted->keys->area->base +
                              granted->offset,
                      .length = granted->length};
  memcpy(note.rkey, granted->rkey, sizeof note.rkey);
  note_send(granted->lane, &note);
}

/* A reset has cancelled the binding: it is begun again. */
static void open_again(struct granted *granted) {
  bool refused = granted->job.status != PERIGEE_CANCELLED;
  granted->job = (struct job){0};
  if (refused || rights_make(granted) < 0)
    lane_break(granted->lane, PERIGEE_NO_MEMORY,
               "%s does not bind a memory window",
               granted->lane->pairs[0].rail->port.device);
}

/* Continues to open a grant; false while it has to wait. */
static bool go_on(struct granted *granted) {
  struct job *job = &granted->job;
  if (granted->lane->status < 0 || granted->lane->cut) {
    opening_unlink(granted);
    return true;
  }
  if (job->pending == 0 && job->status < 0)
    open_again(granted);
  if (!rights_bind(granted) || job->pending > 0 || job->status < 0)
    return false;
  opening_unlink(granted);
  if (granted->by_note)
    tell_granted(granted);
  return true;
}

void grants_turn(struct fabric *fabric) {
  for (struct granted *g = fabric->opening, *next; g; g = next) {
    next = g->waiting;
    go_on(g);
  }
}

static void refuse(struct granted *granted, uint64_t generation) {
  struct fabric *fabric = granted->lane->fabric;
  granted_free(granted);
  granted->refused = generation;
  granted->until = keys_now(fabric) + REFUSED;
}

static int granted_open(struct granted *granted, uint64_t generation,
                        int access) {
  struct fabric *fabric = granted->lane->fabric;
  granted->rights = (access & PERIGEE_READ ? IBV_ACCESS_REMOTE_READ : 0) |
                    (access & PERIGEE_WRITE ? IBV_ACCESS_REMOTE_WRITE : 0);
  int status = rights_make(granted);
  if (status < 0) {
    refuse(granted, generation);
    return status;
  }
  granted->generation = generation;
  granted->opening = true;
  granted->waiting = fabric->opening;
  fabric->opening = granted;
  granted->by_note = granted->id >= ID_PAYLOAD || !granted->lane->keyed;
  go_on(granted);
  granted->by_note = true; /* it is not bound yet */
  return PERIGEE_OK;
}

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
    return PERIGEE_NO_MEMORY;
  int status = granted_begin(lane, id, area, offset, length, &granted);
  return status < 0 ? status : granted_open(granted, generation, access);
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
  remote_keys_close(lane);
  if (lane->inbox_mw)
    ibv_dealloc_mw(lane->inbox_mw);
  lane->inbox_mw = NULL;
  keys_deregister(lane->fabric, &lane->inbox_mr);
}

/* ---- Regions and payloads ----------------------------------------------- */

/* Of what is bound. */
static void key_write(const struct granted *granted, struct region_key *key) {
  struct verbs_key said = {.base = (uintptr_t)granted->keys->area->base};
  memcpy(said.rkey, granted->rkey, sizeof said.rkey);
  memcpy(key->bytes, &said, sizeof said);
  key->length = sizeof said;
}

int verbs_export(struct lane *lane, const struct grant *grant,
                 struct region_key *key) {
  uint32_t id = ID_REGION + grant->slot;
  if (grant->slot >= ID_PAYLOAD - ID_REGION ||
      (grant->access & (PERIGEE_READ | PERIGEE_WRITE)) == 0)
    return PERIGEE_UNSUPPORTED;
  int status = grant_open(lane, id, grant->generation, grant->area, 0,
                          grant->area->length, grant->access);
  if (status < 0)
    return status;
  const struct granted *granted = granted_find(lane, id);
  key->length = key->fd_count = 0;
  if (lane->keyed && !granted->opening)
    key_write(granted, key);
  return PERIGEE_OK;
}

void verbs_revoke(struct lane *lane, uint32_t slot) {
  if (slot < ID_PAYLOAD - ID_REGION)
    grant_shut(lane, ID_REGION + slot);
}

bool verbs_inside(struct lane *lane, uint32_t slot) {
  (void)lane, (void)slot;
  return false;
}

/* Returns the next free id. So an id that was freed is not reused for long. */
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
