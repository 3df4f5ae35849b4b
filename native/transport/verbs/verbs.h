/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs.h - shared by the files of the RDMA transport.
 *
 *   verbs.c           set-up of a lane: offer, join, cut; events; the table
 *   verbs_payload.c   payloads of calls, at both sides
 *   verbs_transfer.c  one-sided transfers; copies between the two sides
 *   verbs_keys.c      memory of ours: registered, and granted to the peer
 *   verbs_ring.c      records, notes, credits, marks; completions; memory of
 *                     the peer; sessions without a socket
 *   verbs_pair.c      queue pairs: posting, completing, breaking, rebuilding
 *   verbs_rail.c      ports in use, and their queues
 *
 * Each of them uses those below it. verbs_rail.h, verbs_pair.h and verbs_ring.h
 * have the types of rails, pairs and rings, with what these files do for
 * others.
 *
 * Ownership. The engine has one fabric; a fabric has one rail for each port
 * that it uses. A session has one lane. Its pair 0 (control) carries records
 * and notes, each of them one RDMA write with immediate into the receiver's
 * inbox; the other pairs carry bytes. Only control pairs receive: from the
 * shared receive queue of rail 0, which always has an entry for each record and
 * note that may be in transit, so that no receiver is ever not ready (RNR).
 *
 * The mark of an operation is a word of its owner (fabric->marks). The peer
 * reads it by RDMA after the operation's bytes, on the same pair, where reads
 * are done in order: bytes that were read before a live mark belong to the
 * operation.
 */
#ifndef VERBS_H
#define VERBS_H

#include "base/blocks.h"
#include "verbs_pair.h"
#include "verbs_ring.h"

enum { OPERATIONS = 65536 };
enum { CHUNK = 4 << 20 }; /* bytes of an arena or the pool registered at once */
enum { STAGE_SLOT = 256 << 10, STAGE_SLOTS = 4 };
enum { STAGE = STAGE_SLOT * STAGE_SLOTS };
/* The place of a payload (verbs_payload.c). */
enum source_kind { SOURCE_REGION = 5, SOURCE_ARENA = 6 };
enum { OFFSET_BITS = 40 };

/* A grant: memory of ours that the peer may reach. */
struct granted {
  uint64_t generation; /* 0: the id is free */
  struct ibv_mw *mw[PAIRS];
  struct lane *lane;
  uint32_t id;
  struct keys *keys;            /* of the area; NULL: not open */
  struct granted *next, **link; /* in the list of these keys */
  uint64_t offset, length;
  struct shared *shared; /* where windows cannot be had */
  int rights;
  uint32_t rkey[PAIRS];
  struct job job;          /* binds its windows */
  uint32_t bound;          /* pairs on which that was posted, in order */
  struct granted *waiting; /* in fabric->opening */
  bool opening;            /* the peer is not told yet */
  bool by_note;            /* it will be by a note, not by a region's key */
  uint64_t refused;        /* generation that could not be opened */
  int64_t until;           /* when that is tried again */
};
struct remote_key {
  uint64_t generation; /* 0: the peer has not told of it yet */
  uint64_t base, length;
  uint32_t rkey[PAIRS];
  bool revoked;
};

struct lane {
  struct lane_head head;
  struct lane_options options;
  struct fabric *fabric;
  struct lane *next; /* in fabric->lanes */
  struct pair pairs[PAIRS];
  uint32_t pair_count;
  int status;          /* negative: the lane is broken */
  char reason[REASON]; /* why it is */
  bool joined, cut;
  bool
      keyed; /* the peer reads keys of regions; else notes tell of these, too */

  /* One mapping holds the inbox (notes, requests, replies), the outbox (of the
   * sizes of the peer's inbox) and marks that were read. The peer may write to
   * the inbox only. */
  uint8_t *inbox, *outbox;
  uint64_t inbox_length, outbox_length;
  struct ibv_mr *inbox_mr, *outbox_mr[RAILS];
  struct ibv_mw *inbox_mw;
  uint32_t inbox_key, peer_inbox_key;
  uint64_t peer_inbox;
  uint64_t peer_ring;
  struct outflow out[FLOWS];
  struct inflow in[FLOWS];
  uint32_t sent, sent_known; /* records sent; of them freed by the peer */
  uint32_t taken;            /* records of the peer that were peeked */
  uint32_t taken_freed, taken_told; /* of them freed; told to the peer */
  uint32_t notes, notes_known;      /* notes sent; of them freed by the peer */
  uint32_t heard, heard_told;

  struct frames *frames; /* NULL: the session has a socket */
  bool met;              /* something of the peer has arrived */
  enum probe probe;
  uint32_t keepalive_posted; /* posts of control at the last keepalive */
  bool bye_posted;           /* the last message was posted, by this job: */
  struct job last;

  struct note *waiting; /* notes that wait for room, in order */
  uint32_t waiting_count, waiting_room;

  uint64_t peer_marks; /* address */
  uint32_t peer_marks_key[RAILS];
  uint32_t peer_operations;
  uint8_t *words;  /* one mapping of the next three arrays */
  uint32_t *ended; /* by the peer's operation: last generation that ended */
  uint64_t (*staged)[2]; /* by the peer's operation and part: tagged bytes */
  uint64_t (*acked)[2];  /* by our operation and part: tagged bytes */

  struct granted **granted; /* pages of 64, by id */
  struct remote_key **remote_keys;
  struct area arena; /* of loans and staging blocks */
  struct blocks blocks;
  uint32_t turn;          /* the pair whose turn it is */
  uint64_t posts, resets; /* counters for describe() */
};

/* Entries of a page of lane->granted and remote_keys. */
enum { ID_PAGE = 64 };
_Static_assert(IDS % ID_PAGE == 0, "whole pages");
/* Most bytes under one id: offsets in a source's address have 40 bits. */
#define GRANT_MOST (UINT64_C(1) << 40)

/* The key of a region whose windows are bound; of one whose windows are not, it
 * is without bytes, and NOTE_GRANT follows. rkey: by pair. */
struct verbs_key {
  uint64_t base;
  uint32_t rkey[PAIRS], zero;
};
_Static_assert(sizeof(struct verbs_key) <= KEY_MAX, "it fits");

/* ---- verbs_ring.c: memory of the peer ------------------------------------ */
/* A note tells of it; the lane is broken if it says what cannot be. */
void grant_heard(struct lane *lane, const struct note *note);
/* Returns the peer's memory with that id, or NULL if the peer never told of
 * it. */
const struct remote_key *remote_key_find(const struct lane *lane, uint32_t id);
int verbs_attach(struct lane *, struct window *, const struct region_key *);
void remote_keys_close(struct lane *lane);

/* ---- verbs_keys.c ------------------------------------------------------- */
/* Returns the lkey for a local buffer, and how many bytes from pointer on it is
 * valid for. PERIGEE_UNSUPPORTED: this memory cannot be registered;
 * PERIGEE_NO_MEMORY: it cannot now. rail->fabric->detail says why. */
int keys_local(struct rail *rail, struct area *area, const uint8_t *pointer,
               uint32_t *lkey, uint64_t *run);
/* Can the area be registered? Registers what it has to, to find out. */
bool keys_reach(struct lane *lane, struct area *area);
bool verbs_forget(struct fabric *, struct area *, uint64_t offset,
                  uint64_t length);
void keys_close(struct fabric *fabric);
/* Makes length bytes from the offset on reachable for the peer under an id, on
 * every pair. The peer is told when all windows are bound, behind what the
 * pairs do now. access: enum perigee_access. 0 or a status. */
int grant_open(struct lane *lane, uint32_t id, uint64_t generation,
               struct area *area, uint64_t offset, uint64_t length, int access);
bool grant_is(const struct lane *lane, uint32_t id, uint64_t generation);
void grants_close(struct lane *lane);
/* As rails_poll, and goes on with grants that are being opened. */
bool verbs_turn(struct fabric *fabric);
int verbs_export(struct lane *, const struct grant *, struct region_key *);
void verbs_revoke(struct lane *lane, uint32_t slot);
bool verbs_inside(struct lane *lane, uint32_t slot);
/* Returns the id of the lane's grant to read the whole area, opened on first
 * use; or a status, and then the bytes have to be staged. */
int keys_payload_id(struct lane *lane, struct area *area);
/* The inbox; if the device has windows, only the control pair can reach it. */
int inbox_open(struct lane *lane);
int inbox_bind(struct lane *lane);
void inbox_close(struct lane *lane);

/* ---- verbs_transfer.c --------------------------------------------------- */
/* Posts copies from the walks' positions on, as far as the pairs have room, as
 * part of the job: on `pair`, or, if that is NULL, on the pairs in turn. The
 * base of the remote walk is an offset into the remote key's memory. The caller
 * flushes. Returns bytes, 0 or a status. */
int64_t lane_move(struct lane *lane, struct job *job,
                  const struct remote_key *key, struct payload *remote,
                  struct payload *local, bool write, struct pair *pair,
                  uint64_t limit);
bool verbs_reaches(struct lane *, const struct window *,
                   const struct payload *local);
int verbs_transfer(struct lane *, struct job *, const struct window *,
                   struct payload *remote, struct payload *local, bool write);
void verbs_flush(struct lane *lane);
bool verbs_quiesce(struct lane *lane, struct job *job);

/* ---- verbs_payload.c ---------------------------------------------------- */
int verbs_loan(struct lane *, uint64_t, uint8_t **, struct source *);
void verbs_unloan(struct lane *, const struct source *);
bool verbs_loaned(struct lane *, const uint8_t *, uint64_t, struct source *);
const uint8_t *verbs_view(struct lane *, const struct source *);
int verbs_expose(struct lane *, struct exposure *, struct payload *);
int64_t verbs_feed(struct lane *, struct exposure *);
void verbs_conceal(struct lane *, struct exposure *);
int64_t verbs_fetch(struct lane *, struct fetch *);
bool verbs_fetch_end(struct lane *, struct fetch *);

#endif
