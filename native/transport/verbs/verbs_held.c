/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_held.c - memory of the peer's that we may reach, as it tells us by
 * notes. Nothing that it says is more than a number to be checked: a wrong key
 * or range fails at the peer's own device.
 */
#include "verbs_keys.h"

#include <stdlib.h>
#include <string.h>

static struct held *held_make(struct lane *lane, uint32_t id) {
  if (!lane->held)
    lane->held = calloc(IDS / PAGE, sizeof *lane->held);
  if (!lane->held)
    return NULL;
  struct held **page = &lane->held[id / PAGE];
  if (!*page)
    *page = calloc(PAGE, sizeof **page);
  return *page ? &(*page)[id % PAGE] : NULL;
}

static bool plausible(const struct note *note) {
  return note->operation < IDS && note->value != 0 && note->length != 0 &&
         note->length <= HELD_MOST && note->base <= UINT64_MAX - note->length;
}

static void heard_grant(struct lane *lane, const struct note *note) {
  if (!plausible(note)) {
    lane_break(lane, PERIGEE_PROTOCOL, "the peer granted impossible memory");
    return;
  }
  struct held *held = held_make(lane, note->operation);
  if (!held) {
    lane_break(lane, PERIGEE_NO_MEMORY, "no memory for the peer's grants");
    return;
  }
  *held = (struct held){
      .generation = note->value, .base = note->base, .length = note->length};
  memcpy(held->rkey, note->rkey, sizeof held->rkey);
}

/* Also of what we were never told: it was taken back before it was open. */
static void heard_revoke(struct lane *lane, const struct note *note) {
  struct held *held =
      note->operation < IDS ? held_make(lane, note->operation) : NULL;
  if (!held || held->generation > note->value)
    return;
  held->generation = note->value;
  held->revoked = true;
}

void grant_heard(struct lane *lane, const struct note *note) {
  if (note->kind == NOTE_GRANT)
    heard_grant(lane, note);
  else
    heard_revoke(lane, note);
}

const struct held *held_find(const struct lane *lane, uint32_t id) {
  if (id >= IDS || !lane->held || !lane->held[id / PAGE])
    return NULL;
  const struct held *held = &lane->held[id / PAGE][id % PAGE];
  return held->generation != 0 ? held : NULL;
}

void held_close(struct lane *lane) {
  for (uint32_t i = 0; lane->held && i < IDS / PAGE; i++)
    free(lane->held[i]);
  free(lane->held);
  lane->held = NULL;
}
