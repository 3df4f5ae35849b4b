/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_records.c - records and credits.
 *
 * The first record that is published after a poll is sent at once; further ones
 * wait for the next poll and are sent together. If there was more than one
 * between the last two polls, none is sent at once. So a window of calls costs
 * one send for each poll, and a single call waits for nothing. A record that is
 * followed by a payload is sent together with it.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tcp.h"

enum { UNIT = 64, WORD = 8 };

static uint32_t charge(uint64_t length) {
  return (uint32_t)((length + UNIT - 1) & ~(uint64_t)(UNIT - 1));
}

/* ---- Out ---------------------------------------------------------------- */

static uint64_t draft_size(const struct lane *lane) {
  return lane->options.ring / 4;
}

static uint8_t *draft_open(const struct lane *lane) {
  void *p = mmap(NULL, draft_size(lane), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

void tcp_drafts_close(struct lane *lane) {
  for (int i = 0; i < RINGS; i++)
    if (lane->out[i].draft)
      munmap(lane->out[i].draft, draft_size(lane));
}

/* Bounds what waits to be sent, however long the peer's rings are. */
static bool is_full(const struct lane *lane) {
  const struct bytes *out = &lane->streams[0]->out;
  return out->end - out->first > TCP_WAITING;
}

static bool has_room(const struct lane *lane, enum ring ring, uint64_t length) {
  const struct outbox_ring *out = &lane->out[ring];
  return lane->stream_count > 0 && !lane->cut && !is_full(lane) &&
         length <= lane->options.ring / 4 &&
         lane->peer_ring - (out->sent - out->consumed) >= charge(length);
}

uint8_t *tcp_reserve(struct lane *lane, enum ring ring, uint64_t length) {
  struct outbox_ring *out = &lane->out[ring];
  if (!has_room(lane, ring, length)) {
    lane->pushing = false; /* that was for a record that comes later */
    return NULL;
  }
  if (!out->draft)
    out->draft = draft_open(lane);
  return out->draft;
}

/* Called for each record. A short request switches the lane to latency mode, in
 * which polls move fewer bytes of payloads, so that the request does not wait
 * long for them. */
static void latency_mode(struct lane *lane, enum ring ring,
                         const uint8_t *record) {
  enum { KIND = 8, FLAGS = 9, BULK = RECORD_HEAD_BULK | RECORD_SLICE_BULK };
  if (ring == RING_REQUEST && record[KIND] != RECORD_READ &&
      !(record[FLAGS] & BULK))
    lane->latency_turns = TCP_LATENCY_TURNS;
}

void tcp_publish(struct lane *lane, enum ring ring, uint64_t length) {
  struct outbox_ring *out = &lane->out[ring];
  struct stream *s = lane->streams[0];
  struct tcp_head head = {
      .length = (uint32_t)length, .type = TCP_RECORD, .which = (uint8_t)ring};
  if (lane->cut || !tcp_put(s, &head, out->draft))
    return;
  out->sent += charge(length);
  latency_mode(lane, ring, out->draft);
  bool at_once = lane->published++ == 0 && !lane->corked && !lane->pushing;
  lane->flush_deferred = lane->pushing;
  lane->pushing = false;
  if (at_once)
    tcp_send(s, TCP_TURN);
}

bool tcp_credited(struct lane *lane, uint8_t which, uint64_t at) {
  if (which > WHICH_EAGER)
    return false;
  bool eager = which == WHICH_EAGER;
  uint64_t sent = eager ? lane->eager_sent : lane->out[which].sent;
  uint64_t *known = eager ? &lane->eager_granted : &lane->out[which].consumed;
  if (at > sent || at < *known)
    return false;
  *known = at;
  return true;
}

/* ---- In ----------------------------------------------------------------- */

/* Records that were not released, with the bytes lost before a wrap, are at
 * most the ring and a quarter of it (the longest record). So there is room
 * for all that the credits allow, and nothing is overwritten that is still
 * in use. */
static bool prepare(struct lane *lane, struct inbox *in) {
  if (in->bytes)
    return true;
  in->size = (uint32_t)(lane->options.ring + lane->options.ring / 4 + UNIT);
  in->bytes = malloc(in->size);
  return in->bytes != NULL;
}

uint8_t *tcp_record_room(struct lane *lane, enum ring ring, uint32_t length) {
  struct inbox *in = &lane->in[ring];
  uint32_t n = charge(length);
  if (length < RECORD_HEADER || length > lane->options.ring / 4 ||
      in->charged - in->released + n > lane->options.ring || !prepare(lane, in))
    return NULL;
  if (in->charged ==
      in->released) /* all are released: begin with the same lines again */
    in->write = in->read = in->wrap = 0;
  if (in->write + n > in->size) {
    in->wrap = in->write;
    in->write = 0;
  }
  return in->bytes + in->write;
}

/* The record's first word, which belongs to the transport, is its length. */
void tcp_record_there(struct lane *lane, enum ring ring, uint32_t length) {
  struct inbox *in = &lane->in[ring];
  uint64_t word = length;
  latency_mode(lane, ring, in->bytes + in->write);
  memcpy(in->bytes + in->write, &word, WORD);
  in->write += charge(length);
  in->charged += charge(length);
}

int tcp_peek(struct lane *lane, enum ring ring, const uint8_t **bytes,
             uint64_t *length) {
  struct inbox *in = &lane->in[ring];
  if (in->taken == in->charged)
    return 0;
  if (in->wrap && in->read == in->wrap)
    in->read = in->wrap = 0;
  *bytes = in->bytes + in->read;
  memcpy(length, *bytes, WORD);
  in->read += charge(*length);
  in->taken += charge(*length);
  return 1;
}

static bool tell(struct lane *lane, uint8_t which, uint64_t at, uint64_t *told,
                 uint64_t share) {
  struct tcp_head head = {.type = TCP_CREDIT, .which = which, .at = at};
  if (at - *told < share || lane->cut || lane->stream_count == 0)
    return false;
  *told = at;
  return tcp_put(lane->streams[0], &head, NULL);
}

bool tcp_release(struct lane *lane) {
  bool told = false;
  for (int i = 0; i < RINGS; i++) {
    struct inbox *in = &lane->in[i];
    in->released = in->taken;
    told |=
        tell(lane, (uint8_t)i, in->released, &in->told, lane->options.ring / 4);
  }
  return told;
}

void tcp_eager_done(struct lane *lane, uint64_t bytes) {
  lane->eager_done += bytes;
  tell(lane, WHICH_EAGER, lane->eager_done, &lane->eager_told, TCP_WINDOW / 4);
}
