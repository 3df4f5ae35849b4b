/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_remote.c - memory of the peer that we may reach, as the peer tells by
 * notes, or by the keys of regions. What it tells is only used as numbers: a
 * wrong key or range fails at the peer's own device.
 *
 * Generations of an id grow. Keys of regions come over the session's socket and
 * may overtake notes, so anything of an older generation than the one known here
 * is dropped.
 */
#include "verbs_keys.h"

#include <stdlib.h>
#include <string.h>

static struct remote_key *remote_key_make(struct lane *lane, uint32_t id) {
  if (!lane->remote_keys)
    lane->remote_keys = calloc(IDS / PAGE, sizeof *lane->remote_keys);
  if (!lane->remote_keys)
    return NULL;
  struct remote_key **page = &lane->remote_keys[id / PAGE];
  if (!*page)
    *page = calloc(PAGE, sizeof **page);
  return *page ? &(*page)[id % PAGE] : NULL;
}

static bool plausible(const struct note *note) {
  return note->operation < IDS && note->value != 0 && note->length != 0 &&
         note->length <= GRANT_MOST && note->base <= UINT64_MAX - note->length;
}

static int remember(struct lane *lane, const struct note *note) {
  struct remote_key *key = remote_key_make(lane, note->operation);
  if (!key)
    return PERIGEE_NO_MEMORY;
  if (key->generation > note->value)
    return PERIGEE_OK;
  *key = (struct remote_key){
      .generation = note->value, .base = note->base, .length = note->length};
  memcpy(key->rkey, note->rkey, sizeof key->rkey);
  return PERIGEE_OK;
}

static void heard_grant(struct lane *lane, const struct note *note) {
  if (!plausible(note))
    lane_break(lane, PERIGEE_PROTOCOL, "the peer granted impossible memory");
  else if (remember(lane, note) < 0)
    lane_break(lane, PERIGEE_NO_MEMORY, "no memory for the peer's grants");
}

/* A key without bytes: a note will come. If one of that generation has come, it
 * was no older than the key, and it may have been revoked since. */
int verbs_attach(struct lane *lane, struct window *window,
                 const struct region_key *key) {
  struct verbs_key said;
  if (window->slot >= ID_PAYLOAD - ID_REGION || key->fd_count != 0 ||
      (key->length != 0 && key->length != sizeof said))
    return PERIGEE_PROTOCOL;
  if (key->length == 0)
    return PERIGEE_OK;
  memcpy(&said, key->bytes, sizeof said);
  struct note note = {.operation = ID_REGION + window->slot,
                      .value = window->generation,
                      .base = said.base,
                      .length = window->length};
  memcpy(note.rkey, said.rkey, sizeof note.rkey);
  if (said.zero != 0 || !plausible(&note))
    return PERIGEE_PROTOCOL;
  const struct remote_key *known = remote_key_find(lane, note.operation);
  if (known && known->generation == note.value)
    return PERIGEE_OK;
  return remember(lane, &note);
}

/* The memory may be unknown here: it was revoked before it was open. */
static void heard_revoke(struct lane *lane, const struct note *note) {
  struct remote_key *key =
      note->operation < IDS ? remote_key_make(lane, note->operation) : NULL;
  if (!key || key->generation > note->value)
    return;
  key->generation = note->value;
  key->revoked = true;
}

void grant_heard(struct lane *lane, const struct note *note) {
  if (note->kind == NOTE_GRANT)
    heard_grant(lane, note);
  else
    heard_revoke(lane, note);
}

const struct remote_key *remote_key_find(const struct lane *lane, uint32_t id) {
  if (id >= IDS || !lane->remote_keys || !lane->remote_keys[id / PAGE])
    return NULL;
  const struct remote_key *key = &lane->remote_keys[id / PAGE][id % PAGE];
  return key->generation != 0 ? key : NULL;
}

void remote_keys_close(struct lane *lane) {
  for (uint32_t i = 0; lane->remote_keys && i < IDS / PAGE; i++)
    free(lane->remote_keys[i]);
  free(lane->remote_keys);
  lane->remote_keys = NULL;
}
