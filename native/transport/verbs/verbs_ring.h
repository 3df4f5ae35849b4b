/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_ring.h - records and notes: the rings of a lane, and the bytes of
 * session frames, which travel in notes where there is no socket.
 */
#ifndef VERBS_RING_H
#define VERBS_RING_H

#include "base/ring.h"
#include "verbs_rail.h"

/* Records and notes that one side may have in transit. The last notes are
 * reserved for credits, so that nobody waits for credits that cannot be
 * sent. */
enum { RECORDS = 192, NOTES = 64, NOTES_KEPT = 16, NOTE = 128 };
enum { UNIT = 64 };

enum flow {
  FLOW_REQUEST = RING_REQUEST,
  FLOW_REPLY = RING_REPLY,
  FLOW_NOTE,
  FLOWS,
  FLOW_PROBE = FLOWS, /* the immediate alone */
  FLOW_SHIFT = 30     /* position of the flow in an immediate */
};

/* A ring of the peer, written through a registered mirror. */
struct outflow {
  uint8_t *bytes;
  uint64_t remote, size;
  uint64_t head, known; /* next position to write; freed by the peer */
  uint64_t at;          /* position of what was reserved last */
};

/* A ring that the peer writes. `units` has the sizes of records that
 * arrived. */
struct inflow {
  const uint8_t *bytes;
  uint64_t size;
  uint64_t arrived, tail; /* positions behind what arrived; was peeked */
  uint64_t freed, told; /* position up to which it is free; told to the peer */
  uint32_t units[RECORDS];
  uint32_t first, count; /* records that arrived and were not peeked */
};

enum note_kind {
  NOTE_CREDIT = 1, /* only the word that every note has */
  NOTE_ENDED,      /* operation, generation: its mark is gone */
  NOTE_STAGED,     /* operation, generation, part: value bytes are staged */
  NOTE_TAKEN,      /* operation, generation, part: value bytes were taken */
  NOTE_GRANT,  /* id in operation, generation in value, base, length, rkeys; of
                  regions that were not bound when their key was made */
  NOTE_REVOKE, /* id in operation, generation in value */
  NOTE_FRAME   /* the next bytes of session frames; their number in part */
};

struct note {
  uint64_t word; /* credits; each record begins with such a word, too */
  uint8_t kind, part;
  uint16_t reserved;
  uint32_t operation, generation, pad;
  union {
    struct {
      uint64_t value, base, length;
      uint32_t rkey[PAIRS];
    };
    uint8_t bytes[NOTE - 24];
  };
};
_Static_assert(sizeof(struct note) <= NOTE, "a note fits into its unit");

enum { FRAME_PART = sizeof(((struct note *)0)->bytes) };

/* State of a probe, to a peer that may not have joined yet. */
enum probe { PROBE_NONE, PROBE_OUT, PROBE_FAILED, PROBE_RESTS };

/* Bytes of session frames that arrived in notes. */
struct frames {
  uint32_t first, count; /* notes */
  uint32_t taken;        /* bytes taken of the first note */
  uint8_t length[NOTES];
  uint8_t bytes[NOTES][FRAME_PART];
};

int ring_set_up(struct lane *lane); /* this side's half: the inbox */
int ring_join(struct lane *lane);   /* with the peer's sizes: the outbox */
void ring_close(struct lane *lane);
uint8_t *verbs_reserve(struct lane *, enum ring, uint64_t length);
void verbs_publish(struct lane *, enum ring, uint64_t length);
int verbs_peek(struct lane *, enum ring, const uint8_t **, uint64_t *length);
bool verbs_release(struct lane *lane);
void verbs_mark(struct lane *, uint16_t operation, uint32_t generation);
void verbs_ended(struct lane *, uint16_t operation, uint32_t generation);
bool verbs_live(struct lane *, uint16_t operation, uint32_t generation);
/* Sends a note now, or when there is room. */
void note_send(struct lane *lane, const struct note *note);
/* Sends NOTE_STAGED or NOTE_TAKEN. */
void note_bytes(struct lane *lane, enum note_kind kind, uint32_t operation,
                uint8_t part, uint32_t generation, uint64_t bytes);
/* True if nothing waits to be told to the peer. */
bool ring_rests(const struct lane *lane);
/* A count of bytes with its generation, and the count if the generation
 * fits. */
static inline uint64_t tagged(uint32_t generation, uint64_t bytes) {
  return (uint64_t)generation << 40 | (bytes & ((UINT64_C(1) << 40) - 1));
}
static inline uint64_t untagged(uint64_t word, uint32_t generation) {
  bool fits = word >> 40 == (generation & 0xffffff);
  return fits ? word & ((UINT64_C(1) << 40) - 1) : 0;
}

/* Handles completions of all rails. */
bool rails_poll(struct fabric *fabric);
/* Waits, for a bounded time, for what the control pair does for the job; then
 * breaks the lane. */
void lane_await(struct lane *lane, const struct job *job);

/* ---- Sessions without a socket ------------------------------------------ */
int alone_open(struct lane *lane);
int verbs_say(struct lane *lane, const uint8_t *bytes, uint32_t length);
uint32_t verbs_hear(struct lane *lane, uint8_t *bytes, uint32_t room);
bool verbs_drained(struct lane *lane);
void verbs_probe(struct lane *lane);
bool verbs_met(const struct lane *lane);
void verbs_keepalive(struct lane *lane);

#endif
