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
 * Each of them uses those below it.
 *
 * Ownership. The engine has one fabric; a fabric has one rail for each port
 * that it uses. A session has one lane. Its pair 0 (control) carries records
 * and notes, each of them one RDMA write with immediate into the receiver's
 * inbox; the other pairs carry bytes. Only control pairs receive. Each has a
 * receive queue of its own, so that a peer that floods it takes nothing from
 * others: with an entry for each record and note that may be in transit, so that
 * no receiver is ever not ready (RNR).
 *
 * The mark of an operation is a word of its owner (fabric->marks). The peer
 * reads it by RDMA after the operation's bytes, on the same pair, where reads
 * are done in order: bytes that were read before a live mark belong to the
 * operation.
 *
 * Fence. A transfer that is given up while the device works for it ends when
 * its completion comes, or after 2 ms, when its pair is reset
 * (verbs_transfer.c, verbs_pair.c).
 *
 * Limits. An immediate is published when its data has completed, one round trip
 * later than a device could. The receiver reads payloads; their owner never
 * writes them. Nothing was run on a real NIC, on InfiniBand, or with memory of
 * a GPU.
 */
#ifndef VERBS_H
#define VERBS_H

#include <infiniband/verbs.h>
#include <stdatomic.h>

#include "base/blocks.h"
#include "base/ring.h"
#include "devices/devices.h"
#include "transport/transport.h"

/* ---- Rails --------------------------------------------------------------- */

/* What all lanes of an engine share: the fabric, its rails (ports in use) and
 * their queues. */

/* Pairs: control, and 1 to 8 for bytes. Control is never reset, so that bytes
 * there could not be fenced: this side would have to wait for its peer. */
enum { RAILS = 4, PAIRS = 9, PAIRS_LEAST = 2 };
enum { QUEUES = 32 };
/* Ids of granted memory: regions as windows, regions as payloads, the arena. */
enum { ID_REGION = 0, ID_PAYLOAD = 4096, ID_ARENA = 8192, IDS = 65536 };

struct pair;

struct queues {
  struct rail *rail;
  struct ibv_cq *cq;
  uint32_t cq_size, cq_used; /* capacity; completions that are reserved */
  uint32_t unacked;          /* channel events not acknowledged yet */
  bool armed;
};

struct rail {
  struct fabric *fabric;
  uint32_t index;
  struct rdma_port port;
  struct ibv_context *context;
  struct ibv_device_attr attr;
  struct ibv_port_attr state;
  union ibv_gid gid;
  struct ibv_pd *pd;
  struct ibv_comp_channel *channel;
  struct queues queues[QUEUES]; /* a further one when the last is full */
  uint32_t queue_count;
  struct ibv_mr *marks;
  struct pair *by_number[256]; /* chains of pairs, by queue pair number */
  bool windows;                /* memory windows of type 2 */
  int removal;                 /* inotify of /dev/infiniband, or -1 */
  bool failed;
  char reason[REASON]; /* why the rail has failed */
};

struct fabric {
  struct rdma_options options;
  const struct verbs_library *lib;
  struct fabric_options engine;
  struct rail rails[RAILS];
  uint32_t rail_count;
  _Atomic uint32_t *marks; /* by operation: its generation, or 0 */
  struct lane *lanes;
  uint32_t pairs_made;
  struct keys *keys;                  /* list of all keys of this fabric */
  struct granted *opening;            /* grants that wait for their windows */
  uint64_t registered, registrations; /* bytes now; number, ever */
  char detail[REASON]; /* why memory could not be registered, the last time */
  int64_t detail_at;   /* when that was */
  uint64_t found;      /* polls of a queue that found something */
  uint64_t numbered[(ID_ARENA - ID_PAYLOAD) / 64]; /* payload ids in use */
  uint32_t number;                                 /* where to look next */
  uint64_t generation;                             /* the last one given */
};

/* The id of receives. */
#define RECEIVE_ID UINT64_MAX

int rails_start(const struct fabric_options *options, struct fabric **fabric,
                char reason[REASON]);
void rails_stop(struct fabric *fabric);
/* Asks each port for its state and address, which may have changed. */
int rails_look(struct fabric *fabric, char reason[REASON]);
int rails_descriptors(struct fabric *fabric, int *fds, int capacity);
void rails_arm(struct fabric *fabric);
/* In a forked child: closes its copies of the descriptors. */
void rails_forked(struct fabric *fabric);
/* Is the node of the rail's device still there? */
bool rail_has_node(const struct rail *rail);
/* Returns queues with room for that many more, or PERIGEE_NO_MEMORY. */
int rail_reserve(struct rail *rail, uint32_t completions,
                 struct queues **queues, char reason[REASON]);
void queues_unreserve(struct queues *queues, uint32_t completions);

/* ---- Pairs --------------------------------------------------------------- */

/* Queue pairs of a lane, and what is posted on them.
 *
 * States of a pair:
 *   fresh      made; its half is told to the peer
 *   up         connected; posts
 *   resetting  it broke or had to be fenced, and was reset: it touches no
 *              memory any more; the peer was told, and what was in progress
 *              waits in its slots to be posted again
 *   down       for good: the lane is broken, or cut
 * fresh -> up (join), up -> resetting (fence, break, the peer's reset),
 * resetting -> up (the peer's half came), any -> down. A control pair is never
 * reset: when it breaks, the lane is broken, unless it broke by a probe that
 * nobody received. */

enum { SGES = 4 };
enum { SEGMENT = 1 << 20 }; /* most bytes of one work request */

enum pair_state { PAIR_FRESH, PAIR_UP, PAIR_RESETTING, PAIR_DOWN };

/* A work request that is posted, or waits for its pair to be up again. */
struct slot {
  struct job *job; /* NULL: a record or note, or its job was dropped */
  uint64_t remote, bytes;
  uint32_t rkey, immediate;
  uint8_t opcode, sges; /* enum ibv_wr_opcode */
  bool inlined, signaled;
  bool mark;  /* reads the mark of job->operation into pair->seen */
  int status; /* the peer's device refused it; the job is not told yet */
  union {
    struct ibv_sge sge[SGES];
    struct { /* IBV_WR_BIND_MW; address, length and key as for others */
      struct ibv_mw *mw;
      struct ibv_mr *mr;
      int rights;
    } bind;
  };
};

struct pair {
  struct lane *lane;
  struct rail *rail;
  struct pair *next; /* in rail->by_number */
  struct queues *queues;
  struct ibv_qp *qp;
  uint32_t index, number;
  uint8_t state;
  uint32_t epoch; /* number of resets; part of the ids of work requests */
  uint32_t salt;  /* differs for each pair; part of these ids, too */
  uint32_t psn;   /* our first sequence number for sending */
  uint32_t peer_number, peer_psn;
  union ibv_gid peer_gid;
  uint16_t peer_lid;
  enum ibv_mtu mtu;
  bool connected; /* while resetting: our half is connected */
  bool doubted;   /* the peer was silent, and the pair was rebuilt since */
  uint32_t depth; /* slots, a power of two */
  uint32_t filled, posted, retired; /* counts of slots: retired <= posted
                                       <= filled <= retired + depth */
  uint32_t unsignaled; /* slots posted since the last signaled one */
  uint32_t owed;       /* used receives that are to be posted again */
  uint32_t inline_max;
  struct slot *slots;
  volatile uint32_t *seen; /* registered: the marks that were read, by slot */
  uint32_t seen_key;
};

int pair_make(struct pair *pair, struct lane *lane, struct rail *rail,
              char reason[REASON]);
/* Connects to the peer's half, which the peer_ fields describe. */
int pair_connect(struct pair *pair, char reason[REASON]);
void pair_unmake(struct pair *pair);
struct pair *pair_by_number(const struct rail *rail, uint32_t number);

/* ---- Posting ------------------------------------------------------------ */
/* Returns how many slots may still be filled. */
uint32_t pair_room(const struct pair *pair);
/* Returns the next slot, zeroed, and counts it in job->pending; there must be
 * room. */
struct slot *pair_slot(struct pair *pair, struct job *job);
/* Reads the mark of job->operation; the job is cancelled if the mark is
 * gone. */
void pair_mark(struct pair *pair, struct job *job);
/* Binds a window under a key that nobody knows yet, as part of the job; a reset
 * cancels it. There must be room. */
void pair_bind(struct pair *pair, struct job *job, struct ibv_mw *mw,
               struct ibv_mr *mr, uint64_t address, uint64_t length, int rights,
               uint32_t rkey);
/* Posts the filled slots as one chain, the last one signaled. If the pair is
 * not up, they are posted when it is. */
void pair_post(struct pair *pair);
/* Handles a completion of the pair; and that of a receive. */
void pair_completed(struct pair *pair, const struct ibv_wc *wc);
void pair_received(struct pair *pair);

/* ---- Pairs that break --------------------------------------------------- */
/* A fence: from the return on nothing of the pair touches memory. The slots of
 * the job `but` are dropped, all others are posted again. */
void pair_reset(struct pair *pair, const struct job *but);
/* Resets the data pairs on which the job has slots. */
void lane_fence(struct lane *lane, const struct job *job);
int pair_heard(struct lane *lane, const void *bytes, uint32_t length, int fd);
/* Ends the pair for good; every job on it ends with the status. */
void pair_down(struct pair *pair, int status);
/* Rebuilds a pair to the same peer with the first sequence numbers of both
 * sides; what was posted is dropped. False: the lane is broken. */
bool pair_renew(struct pair *pair);
void lane_break(struct lane *lane, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- Rings --------------------------------------------------------------- */

/* Records and notes: the rings of a lane, and the bytes of session frames, which
 * travel in notes where there is no socket. */

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

/* ---- Lanes --------------------------------------------------------------- */

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
  bool numbered;           /* its id is given back with it */
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
/* Opens a grant to read these bytes only, by memory windows. Returns its id, or
 * a status where windows cannot be had. */
int grant_payload(struct lane *lane, struct area *area, uint64_t offset,
                  uint64_t length, uint64_t *generation);
void grant_payload_end(struct lane *lane, uint32_t id, uint64_t generation);
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
void verbs_unloan(struct lane *, const struct source *, bool seen);
bool verbs_loaned(struct lane *, const uint8_t *, uint64_t, struct source *);
const uint8_t *verbs_view(struct lane *, const struct source *,
                          uint16_t operation, uint32_t generation);
int verbs_expose(struct lane *, struct exposure *, struct payload *);
int64_t verbs_feed(struct lane *, struct exposure *);
void verbs_conceal(struct lane *, struct exposure *);
int64_t verbs_fetch(struct lane *, struct fetch *);
bool verbs_fetch_end(struct lane *, struct fetch *);

#endif
