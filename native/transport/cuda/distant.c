/* SPDX-License-Identifier: Apache-2.0
 *
 * distant.c - the lane "cuda" of a session whose socket takes no descriptors: of
 * one over TCP or RDMA, between two hosts of one NVLink domain or on one host.
 *
 * The key of memory is bytes alone (memory_sharing.share_bytes). There are no
 * boards, so words tell what boards would. They are frames of the session, and are
 * sealed if those are. No word comes soon enough to tell whether an operation is
 * live, so the lane has one-sided access only: payloads of calls and messages go
 * by the first lane.
 *
 *   exported  event                                  becomes
 *   free      a region is exported                   told: MEMORY
 *   told      the region is revoked                  gone: GONE
 *   told      that, but the session takes no word    revoked; each poll tries
 *   revoked   a poll has said GONE                   gone
 *   gone      CLOSED                                 free
 *   any       the lane has ended                     free
 *
 *   imported  event                                  becomes
 *   unknown   MEMORY                                 known, or refused if the
 *                                                    peer's share is used
 *   known     it is used by a device                 known; opened at first
 *   known     GONE, no copy is under way             unknown: CLOSED
 *   known     GONE, copies are under way             going: no more are begun
 *   going     its last copy has ended                unknown: CLOSED
 *   known     that, but the session takes no word    owes; each poll tries
 *   owes      a poll has said CLOSED                 unknown
 *
 * So a region's memory is revoked first, then the peer says that it has closed
 * it, and then the memory goes. The end of the lane is the last word: from then
 * on the owner waits for nobody. By its documentation the driver keeps the memory
 * for a peer that has it open still. So a peer that does not close it keeps its
 * pages, and may read and write them; nobody else sees them any more.
 *
 * Ordering. A peer that hears GONE begins no copy. One that was begun before may
 * end later, and the owner's close waits for CLOSED (inside).
 *
 * REFUSED tells that the owner has memory that it would share and has no such key
 * of it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_lane.h"
#include "host/adopted.h"
#include "memory/cuda/driver.h"

static const char *const distant_kinds[] = {link_kind, NULL};

/* ---- Words --------------------------------------------------------------- */

/* False: the session takes none now. A peer that is lost needs none. */
static bool distant_says(struct lane *lane, uint32_t word, uint32_t id,
                         uint64_t serial) {
  int status = link_say(lane, word, id, serial);
  return status == PERIGEE_OK || status == PERIGEE_PEER_LOST;
}

static bool distant_says_gone(struct lane *lane, uint32_t id) {
  struct exported *e = &lane->exported[id];
  if (!distant_says(lane, GONE, id, e->serial))
    return false;
  e->state = EXPORTED_GONE;
  return true;
}

static bool distant_says_closed(struct lane *lane, struct imported *m) {
  if (!distant_says(lane, CLOSED, m->id, m->serial))
    return false;
  lane->imported[m->id] = NULL;
  free(m);
  return true;
}

void distant_closed(struct lane *lane, struct imported *m) {
  if (distant_says_closed(lane, m))
    return;
  m->state = IMPORTED_OWES;
  lane->owed++;
}

static bool distant_owes_gone(const struct lane *lane, uint32_t id) {
  return lane->exported && lane->exported[id].state == EXPORTED_REVOKED;
}

static bool distant_owes_closed(const struct lane *lane, uint32_t id) {
  return lane->imported && lane->imported[id] &&
         lane->imported[id]->state == IMPORTED_OWES;
}

static bool distant_poll(struct lane *lane) {
  uint32_t before = lane->owed;
  for (uint32_t id = 0; lane->owed > 0 && id < LINK_MEMORIES; id++) {
    if (distant_owes_gone(lane, id))
      lane->owed -= distant_says_gone(lane, id);
    if (distant_owes_closed(lane, id))
      lane->owed -= distant_says_closed(lane, lane->imported[id]);
  }
  return lane->owed < before;
}

static int distant_heard_closed(struct lane *lane, const struct word *word) {
  struct exported *e = lane->exported && word->id < LINK_MEMORIES
                           ? &lane->exported[word->id]
                           : NULL;
  if (!e || e->state != EXPORTED_GONE || e->serial != word->serial)
    return PERIGEE_PROTOCOL;
  *e = (struct exported){.state = EXPORTED_FREE};
  return PERIGEE_OK;
}

static int distant_heard_refused(struct lane *lane) {
  snprintf(lane->why, sizeof lane->why,
           "the peer has no fabric handle of its memory, and tells why itself");
  return PERIGEE_OK;
}

static int distant_heard(struct lane *lane, const void *bytes, uint32_t length,
                         int fd) {
  struct word word = {0};
  if (length == sizeof word && !lane->over && fd < 0)
    memcpy(&word, bytes, sizeof word);
  if (fd >= 0)
    adopted_close(fd);
  switch (word.word) {
  case MEMORY:
    return imported_learn(lane, &word, NULL, 0);
  case GONE:
    return imported_heard(lane, &word);
  case CLOSED:
    return distant_heard_closed(lane, &word);
  case REFUSED:
    return distant_heard_refused(lane);
  default:
    return PERIGEE_PROTOCOL;
  }
}

/* ---- Regions ------------------------------------------------------------- */

static int distant_tell(struct lane *lane, struct area *area, uint32_t *id) {
  const char *(*why)(const struct memory_context *) = area->memory->kind->why;
  int status = exported_tell(lane, area, id);
  if (status != PERIGEE_UNSUPPORTED || !area->shared || *id == LINK_MEMORIES)
    return status;
  snprintf(lane->why, sizeof lane->why, "memory is not opened by the peer: %s",
           why ? why(area->memory) : "");
  link_say(lane, REFUSED, 0, 0);
  return status;
}

static int distant_export(struct lane *lane, const struct grant *grant,
                          struct region_key *key) {
  uint32_t id;
  if (grant->slot >= LINK_REGIONS)
    return PERIGEE_UNSUPPORTED;
  int status = distant_tell(lane, grant->area, &id);
  if (status < 0)
    return status;
  lane->exported[id].slot = grant->slot;
  memcpy(key->bytes, &id, sizeof id);
  key->length = sizeof id;
  key->fd_count = 0;
  return PERIGEE_OK;
}

/* Returns the number of the memory of that region, or LINK_MEMORIES. */
static uint32_t distant_place(const struct lane *lane, uint32_t slot) {
  uint32_t id = 0;
  if (!lane->exported)
    return LINK_MEMORIES;
  while (id < LINK_MEMORIES &&
         !(lane->exported[id].area && lane->exported[id].slot == slot))
    id++;
  return id;
}

static void distant_revoke(struct lane *lane, uint32_t slot) {
  uint32_t id = distant_place(lane, slot);
  if (id == LINK_MEMORIES || lane->exported[id].state != EXPORTED_TOLD)
    return;
  lane->exported[id].state = EXPORTED_REVOKED;
  lane->owed += !distant_says_gone(lane, id);
}

static bool distant_inside(struct lane *lane, uint32_t slot) {
  return distant_place(lane, slot) < LINK_MEMORIES;
}

/* It was revoked before, as each region that was exported is. */
static bool distant_forget(struct lane *lane, const struct area *area) {
  uint32_t id = lane->exported ? exported_place(lane, area) : LINK_MEMORIES;
  if (id == LINK_MEMORIES || !lane->exported[id].area)
    return true;
  if (lane->over)
    lane->exported[id] = (struct exported){.state = EXPORTED_FREE};
  return lane->over;
}

static const struct transport_access distant_access = {
    .export = distant_export,
    .revoke = distant_revoke,
    .inside = distant_inside,
    .attach = link_attach,
    .forget = distant_forget,
};

/* ---- The lane ------------------------------------------------------------ */

static int distant_open(const struct lane_options *options, struct lane **out,
                        struct offer *offer, char reason[REASON]) {
  int status = link_begin(options, out, offer, reason);
  if (status < 0)
    return status;
  lane_by(*out, &transport_cuda_distant);
  (*out)->distant = true;
  return PERIGEE_OK;
}

static const struct transport_additional distant_additional = {
    .memories = distant_kinds,
    .least = 1,
    .could = cuda_driver_could_fabric,
    .note = "who opens memory may do everything there; what is copied is "
            "neither encrypted nor has MACs",
    .needs = "it needs a Unix socket between the two processes, or channels of "
             "IMEX (/dev/nvidia-caps-imex-channels)"};

const struct perigee_transport transport_cuda_distant = {
    .name = "cuda",
    .access = &distant_access,
    .jobs = &link_jobs,
    .additional = &distant_additional,
    .open = distant_open,
    .join = link_join,
    .close = link_close,
    .heard = distant_heard,
    .poll = distant_poll,
    .rests = link_rests,
    .trouble = link_trouble,
    .cut = link_cut,
    .forked = link_forked,
};
