/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_alone.c - what a lane does for a session without a socket.
 *
 * Session frames travel as bytes in notes, in order with all other notes. Notes
 * with frames wait here until the session takes their bytes; only then their
 * room is given back to the peer, so there is room for all that can arrive.
 *
 * A probe is an RDMA write with immediate of no bytes, for which no key is
 * checked: the peer's inbox may not be open yet. If no pair is connected at the
 * peer, the probe is lost and the retries run out. The pair is then rebuilt
 * with the sequence numbers that it had, so the next probe has the same number:
 * if the first was delivered and only its acknowledgement was lost, the second
 * is a duplicate, which is acknowledged and has no effect.
 *
 * That is right only as long as nothing of the peer has arrived, as that would
 * arrive again, too. Nothing arrives after the pair's error, as a pair in error
 * receives nothing; but a completion may be found after that of the error. So
 * the pair rests for a while, and is rebuilt only if the queue is then found
 * empty. Once something has arrived, a failure ends the lane as usual.
 *
 * The inbox's window stays bound to its pair when that is rebuilt, as windows
 * of other pairs do when those are fenced.
 */
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

/* WAITING: notes that may wait for room before frames are refused. TURNS: polls
 * in which an empty completion queue must be found. */
enum { WAITING = 4096, TURNS = 64 };

int alone_open(struct lane *lane) {
  lane->frames = calloc(1, sizeof *lane->frames);
  return lane->frames ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

/* ---- Frames ------------------------------------------------------------- */

int verbs_say(struct lane *lane, const uint8_t *bytes, uint32_t length) {
  struct note note = {.kind = NOTE_FRAME};
  if (lane->status < 0 || lane->cut || !lane->joined)
    return PERIGEE_PEER_LOST;
  if (lane->waiting_count >= WAITING)
    return PERIGEE_AGAIN;
  for (uint32_t at = 0; at < length; at += note.part) {
    uint32_t left = length - at;
    note.part = (uint8_t)(left < FRAME_PART ? left : FRAME_PART);
    memcpy(note.bytes, bytes + at, note.part);
    note_send(lane, &note);
  }
  return PERIGEE_OK;
}

void alone_heard(struct lane *lane, const struct note *note) {
  struct frames *f = lane->frames;
  if (!f || f->count == NOTES || note->part > FRAME_PART) {
    lane_break(lane, PERIGEE_PROTOCOL,
               "the peer said more than it was given room for");
    return;
  }
  uint32_t at = (f->first + f->count++) % NOTES;
  f->length[at] = note->part;
  memcpy(f->bytes[at], note->bytes, note->part);
}

uint32_t verbs_hear(struct lane *lane, uint8_t *bytes, uint32_t room) {
  struct frames *f = lane->frames;
  uint32_t done = 0;
  while (f->count > 0 && done < room) {
    uint32_t left = f->length[f->first] - f->taken;
    uint32_t n = left < room - done ? left : room - done;
    memcpy(bytes + done, f->bytes[f->first] + f->taken, n);
    done += n;
    f->taken += n;
    if (n == left) {
      f->first = (f->first + 1) % NOTES;
      f->count--;
      f->taken = 0;
    }
  }
  return done;
}

/* ---- Probes, keepalives, the last message -------------------------------- */

/* Posts a write of no bytes on the control pair. */
static void post_nothing(struct lane *lane, struct job *job, int opcode) {
  struct pair *p = &lane->pairs[0];
  struct slot *slot = pair_slot(p, job);
  slot->opcode = (uint8_t)opcode;
  slot->remote = lane->peer_inbox;
  slot->rkey = lane->peer_inbox_key;
  slot->immediate = (uint32_t)FLOW_PROBE << FLOW_SHIFT;
  pair_post(p);
}

static bool found_empty(struct fabric *fabric) {
  for (int i = 0; i < TURNS; i++)
    if (!rails_poll(fabric))
      return true;
  return false;
}

static void renew(struct lane *lane) {
  if (!found_empty(lane->fabric) || lane->status < 0)
    return;
  if (lane->met)
    lane_break(lane, PERIGEE_PEER_LOST, "the peer was there and is gone");
  else if (pair_renew(&lane->pairs[0]))
    lane->probe = PROBE_NONE;
}

void verbs_probe(struct lane *lane) {
  if (lane->status < 0)
    return;
  if (lane->probe == PROBE_FAILED)
    lane->probe = PROBE_RESTS;
  else if (lane->probe == PROBE_RESTS)
    renew(lane);
  if (lane->probe != PROBE_NONE || lane->status < 0)
    return;
  lane->probe = PROBE_OUT;
  post_nothing(lane, NULL, IBV_WR_RDMA_WRITE_WITH_IMM);
}

bool verbs_met(const struct lane *lane) {
  return lane->met;
}

void verbs_keepalive(struct lane *lane) {
  struct pair *p = &lane->pairs[0];
  if (p->posted == lane->keepalive_posted && pair_room(p) > 0)
    post_nothing(lane, NULL, IBV_WR_RDMA_WRITE);
  lane->keepalive_posted = p->posted;
}

bool verbs_drained(struct lane *lane) {
  if (lane->status < 0 || lane->cut || !lane->joined)
    return true;
  if (!notes_flush(lane) ||
      (!lane->bye_posted && pair_room(&lane->pairs[0]) == 0))
    return false;
  if (!lane->bye_posted)
    post_nothing(lane, &lane->last, IBV_WR_RDMA_WRITE);
  lane->bye_posted = true;
  return lane->last.pending == 0;
}
