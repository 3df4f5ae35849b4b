/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs.h - what the files of the RDMA transport share.
 *
 *   verbs.c           a lane's set-up: offer, join, cut; the table
 *   verbs_rail.c      a port in use: its context and events
 *   verbs_queues.c    completion and receive queues; what completes
 *   verbs_pair.c      a queue pair: made, connected, unmade
 *   verbs_post.c      posting and retiring
 *   verbs_recover.c      breaking, fencing, rebuilding
 *   verbs_ring.c      records, notes, credits, marks
 *   verbs_alone.c     what lanes of sessions without a socket do besides
 *   verbs_register.c  memory regions by kind of memory; the inbox
 *   verbs_keys.c      registered areas
 *   verbs_grants.c    memory of ours that the peer may reach
 *   verbs_rights.c    and by which keys
 *   verbs_remote.c      memory of the peer's
 *   verbs_payload.c   payloads of calls: lent, exposed, staged
 *   verbs_fetch.c     and fetched
 *   verbs_transfer.c  one-sided transfers
 *
 * Who owns what. The engine has one fabric; a fabric one rail for each port
 * that it uses. A session has one lane: pair 0 (control) carries records and
 * notes, each one RDMA write with immediate into the receiver's inbox; the
 * others carry bytes. Only the control pairs receive: from the shared receive
 * queue of rail 0, which always has an entry for each record and note that may
 * be under way, so that no receiver is ever found not ready.
 *
 * A pair's life:
 *   fresh    made, its half is told to the peer
 *   up       connected; posts
 *   resetting  it broke, or had to be fenced, and was reset: nothing of it
 *            touches memory; the peer was told, what was under way waits in
 *            its slots to be posted again
 *   down     for good: the lane is broken, or cut
 * fresh -> up (join), up -> resetting (fence, break, the peer's reset),
 * resetting -> up (the peer's half came), any -> down. Control never resets:
 * when it breaks, the lane is broken; but for a probe that nobody heard.
 *
 * The mark of an operation is a word of its owner (fabric->marks) that the
 * peer reads by RDMA after the operation's bytes, on the same pair, where reads
 * are done in order: what was read before a live mark was the operation's.
 */
#ifndef VERBS_H
#define VERBS_H

#include <infiniband/verbs.h>
#include <stdatomic.h>

#include "base/blocks.h"
#include "base/ring.h"
#include "devices/devices.h"
#include "transport/transport.h"

enum { RAILS = 4, PAIRS = 9, SGES = 4 }; /* pairs: control and at most 8 */
enum { QUEUES = 32 };
enum { OPERATIONS = 65536, UNIT = 64 };
/* Records and notes that one side may have under way; the last notes are kept
 * for credits, and so nobody waits for credits that cannot come. */
enum { RECORDS = 192, NOTES = 64, NOTES_KEPT = 16, NOTE = 128 };
enum { SEGMENT = 1 << 20 }; /* most bytes of one work request */
/* Names of granted memory: regions as windows, regions as payloads, arena. */
enum { ID_REGION = 0, ID_PAYLOAD = 4096, ID_ARENA = 8192, IDS = 65536 };
enum { CHUNK = 4 << 20 }; /* of arenas and pool: registered at once */
enum { STAGE_SLOT = 256 << 10, STAGE_SLOTS = 4 };
enum { STAGE = STAGE_SLOT * STAGE_SLOTS };
/* Where a payload is: verbs_payload.c. */
enum source_kind { SOURCE_REGION = 5, SOURCE_ARENA = 6 };
enum { OFFSET_BITS = 40 };

struct pair;

/* ---- Rails -------------------------------------------------------------- */

struct queues {
  struct rail *rail;
  struct ibv_cq *cq;
  uint32_t cq_size, cq_used;   /* what may be completed at once, at most */
  struct ibv_srq *srq;         /* of rail 0 */
  uint32_t srq_size, srq_used; /* entries: at most; for lanes, and to spare */
  uint32_t srq_owed;           /* to post again */
  uint32_t unacked;            /* channel events */
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
  struct queues queues[QUEUES]; /* one, until it is full */
  uint32_t queue_count;
  struct ibv_mr *marks;
  struct pair *by_number[256]; /* chains of pairs, by queue pair number */
  bool windows;                /* memory windows of type 2 */
  int removal;                 /* inotify of /dev/infiniband, or -1 */
  bool failed;
  char reason[REASON]; /* of failed */
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
  struct keys *keys;                  /* all of this fabric's */
  struct granted *opening;            /* grants that wait for their windows */
  uint64_t registered, registrations; /* bytes now; how often, ever */
  char detail[REASON]; /* why memory could not be registered, the last time, */
  int64_t detail_at;   /* and when that was */
  uint64_t found;      /* polls of a queue that found something */
  uint64_t numbered[(ID_ARENA - ID_PAYLOAD) / 64]; /* payload ids in use, */
  uint32_t number;                                 /* where to look next, */
  uint64_t generation;                             /* and the last given */
};

/* ---- Pairs -------------------------------------------------------------- */

enum pair_state { PAIR_FRESH, PAIR_UP, PAIR_RESETTING, PAIR_DOWN };

/* A work request that was posted, or waits for its pair to be up again. */
struct slot {
  struct job *job; /* NULL: a record or note, or nobody cares any more */
  uint64_t remote, bytes;
  uint32_t rkey, immediate;
  uint8_t opcode, sges; /* enum ibv_wr_opcode */
  bool inlined, signaled;
  bool mark;  /* reads the mark of job->operation into pair->seen */
  int status; /* the peer's device refused it, and the job is not told yet */
  union {
    struct ibv_sge sge[SGES];
    struct { /* IBV_WR_BIND_MW; address, length and key as of the others */
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
  uint32_t epoch; /* how often it was reset; with salt, which no two */
  uint32_t salt;  /* pairs share, in the ids of its work requests */
  uint32_t psn;   /* of our sending */
  uint32_t peer_number, peer_psn;
  union ibv_gid peer_gid;
  uint16_t peer_lid;
  enum ibv_mtu mtu;
  bool connected; /* while resetting: our half is in place */
  bool doubted;   /* the peer was silent, and the pair was made anew since */
  uint32_t depth; /* slots, a power of two */
  uint32_t filled, posted, retired; /* counts of slots: retired <= posted
                                       <= filled <= retired + depth */
  uint32_t unsignaled; /* posted since the last that was signaled */
  uint32_t inline_max;
  struct slot *slots;
  volatile uint32_t *seen; /* registered: marks as read, by slot */
  uint32_t seen_key;
};

/* ---- Lanes -------------------------------------------------------------- */

enum flow {
  FLOW_REQUEST = RING_REQUEST,
  FLOW_REPLY = RING_REPLY,
  FLOW_NOTE,
  FLOWS,
  FLOW_PROBE = FLOWS, /* nothing but the immediate */
  FLOW_SHIFT = 30     /* of an immediate */
};

/* A ring of the peer that we write into, by way of a registered mirror. */
struct outflow {
  uint8_t *bytes;
  uint64_t remote, size;
  uint64_t head, known; /* next position to write; freed by the peer */
  uint64_t at;          /* what was reserved last */
};

/* A ring that the peer writes into. What has arrived stands in units. */
struct inflow {
  const uint8_t *bytes;
  uint64_t size;
  uint64_t arrived, tail; /* positions after what came, and was peeked; */
  uint64_t freed, told;   /* given back, and as the peer knows it */
  uint32_t units[RECORDS];
  uint32_t first, count; /* arrived and not peeked */
};

/* Memory of ours that the peer may reach, and memory of the peer's. */
struct granted {
  uint64_t generation; /* 0: none */
  struct ibv_mw *mw[PAIRS];
  struct lane *lane;
  uint32_t id;
  struct keys *keys;            /* of the area, in whose list it is; or NULL */
  struct granted *next, **link; /* there */
  uint64_t offset, length;
  struct shared *shared; /* where windows cannot be had */
  int rights;
  uint32_t rkey[PAIRS];
  struct job job;          /* the binds of its windows, */
  uint32_t bound;          /* on so many pairs so far, in order */
  struct granted *waiting; /* in fabric->opening */
  bool opening;            /* the peer is not told yet, */
  bool by_note;            /* and will be by a note, not by a region's key */
  uint64_t refused;        /* generation that could not be opened, */
  int64_t until;           /* and is not tried again before then */
};
struct remote_key {
  uint64_t generation; /* 0: not told of yet */
  uint64_t base, length;
  uint32_t rkey[PAIRS];
  bool revoked;
};

enum note_kind {
  NOTE_CREDIT = 1, /* nothing but the word that all bring */
  NOTE_ENDED,      /* operation, generation: its mark is gone */
  NOTE_STAGED,     /* operation, generation, part: value bytes are staged */
  NOTE_TAKEN,      /* operation, generation, part: value bytes were taken */
  NOTE_GRANT,      /* id in operation, value generation, base, length, rkeys;
                      of regions: that were not bound when the key was made */
  NOTE_REVOKE,     /* id in operation, value generation */
  NOTE_FRAME       /* the next bytes of the peer's frames, part of them */
};

struct note {
  uint64_t word; /* credits; each record begins with one too */
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

/* A call at a peer that may not have joined. */
enum probe { PROBE_NONE, PROBE_OUT, PROBE_FAILED, PROBE_RESTS };

/* Bytes of frames that came, by notes. */
struct frames {
  uint32_t first, count; /* notes */
  uint32_t taken;        /* bytes of the first */
  uint8_t length[NOTES];
  uint8_t bytes[NOTES][FRAME_PART];
};

struct lane {
  struct lane_head head;
  struct lane_options options;
  struct fabric *fabric;
  struct lane *next; /* in fabric->lanes */
  struct pair pairs[PAIRS];
  uint32_t pair_count;
  int status;          /* negative: broken, */
  char reason[REASON]; /* and why */
  bool joined, cut;
  bool
      keyed; /* the peer reads keys of regions; else notes tell of these, too */

  /* One mapping: inbox (notes, requests, replies), outbox of the peer's
   * sizes, marks as seen. The peer may write to the inbox only. */
  uint8_t *inbox, *outbox;
  uint64_t inbox_length, outbox_length;
  struct ibv_mr *inbox_mr, *outbox_mr[RAILS];
  struct ibv_mw *inbox_mw;
  uint32_t inbox_key, peer_inbox_key;
  uint64_t peer_inbox;
  uint64_t peer_ring;
  struct outflow out[FLOWS];
  struct inflow in[FLOWS];
  uint32_t sent, sent_known;        /* records: ever, freed by the peer */
  uint32_t taken;                   /* records of the peer: ever peeked, */
  uint32_t taken_freed, taken_told; /* given back, and as it knows */
  uint32_t notes, notes_known;      /* the same of notes */
  uint32_t heard, heard_told;

  struct frames *frames; /* NULL: there is a socket */
  bool met;              /* something came of the peer */
  enum probe probe;
  uint32_t keepalive_posted; /* what control had posted at the last keepalive */
  bool bye_posted;           /* the last word was posted, as: */
  struct job last;

  struct note *waiting; /* notes without room, in order */
  uint32_t waiting_count, waiting_room;

  uint64_t peer_marks; /* address */
  uint32_t peer_marks_key[RAILS];
  uint32_t peer_operations;
  uint8_t *words;  /* one mapping of the three that follow */
  uint32_t *ended; /* by the peer's operation: last generation that ended */
  uint64_t (*staged)[2]; /* by the peer's operation and part: tagged bytes */
  uint64_t (*acked)[2];  /* by our operation and part: tagged bytes */

  struct granted **granted; /* pages of 64, by id */
  struct remote_key **remote_keys;
  struct area arena; /* loans and staging blocks */
  struct blocks blocks;
  uint32_t turn;          /* of the pairs, for whose turn it is */
  uint64_t posts, resets; /* counted, for describe() */
};

/* ---- verbs_rail.c ------------------------------------------------------- */
int rails_start(const struct fabric_options *options, struct fabric **fabric,
                char reason[REASON]);
void rails_stop(struct fabric *fabric);
/* Takes in what has completed; turn goes on with what waited for it, too. */
bool rails_poll(struct fabric *fabric);
bool rails_turn(struct fabric *fabric);
int rails_descriptors(struct fabric *fabric, int *fds, int capacity);
void rails_ready(struct fabric *fabric);
const char *rails_dead(const struct fabric *fabric, bool *used);
void rails_arm(struct fabric *fabric);

/* ---- verbs_queues.c ----------------------------------------------------- */
/* One more of the rail's: 0 or an errno. */
int queues_open(struct rail *rail);
void queues_close(struct queues *queues);
/* Takes in what has completed. */
bool queues_turn(struct queues *queues);
/* Queues with room for that many more, or PERIGEE_NO_MEMORY. */
int rail_reserve(struct rail *rail, uint32_t completions, uint32_t receives,
                 struct queues **queues, char reason[REASON]);
void queues_unreserve(struct queues *queues, uint32_t completions,
                      uint32_t receives);

/* ---- verbs_pair.c ------------------------------------------------------- */
int pair_make(struct pair *pair, struct lane *lane, struct rail *rail,
              char reason[REASON]);
/* To the peer's half, as its peer_ fields say. */
int pair_connect(struct pair *pair, char reason[REASON]);
void pair_unmake(struct pair *pair);
/* After a reset, as its fields say. False: the lane is broken. */
bool pair_reconnect(struct pair *pair);
/* A first sequence number: random, 24 bits. */
uint32_t pair_psn(void);
/* Takes it out of those that are found by number. */
void pair_unlink(struct pair *pair);
struct pair *pair_by_number(const struct rail *rail, uint32_t number);

/* ---- verbs_post.c ------------------------------------------------------- */
static inline struct slot *pair_slot_at(const struct pair *p, uint32_t count) {
  return &p->slots[count & (p->depth - 1)];
}
/* Slots that may still be filled. */
uint32_t pair_room(const struct pair *pair);
/* The next slot, zeroed; there has to be room. Counted in its job when it is
 * filled (job->pending). */
struct slot *pair_slot(struct pair *pair, struct job *job);
/* A read of the mark of job->operation; the job is cancelled if it is gone. */
void pair_mark(struct pair *pair, struct job *job);
/* Binds a window under a key that nobody knows yet, as part of the job. A reset
 * cancels it. There has to be room. */
void pair_bind(struct pair *pair, struct job *job, struct ibv_mw *mw,
               struct ibv_mr *mr, uint64_t address, uint64_t length, int rights,
               uint32_t rkey);
/* Waits a moment for what the control pair does for the job, and breaks the
 * lane rather than to wait longer. */
void lane_await(struct lane *lane, const struct job *job);
/* Posts what was filled, as one chain, the last signaled. With a pair that is
 * not up it waits until it is. */
void pair_post(struct pair *pair);
/* A completion of the pair. */
void pair_completed(struct pair *pair, const struct ibv_wc *wc);
/* The slot is out of the hardware's hands. */
void pair_settle(struct pair *pair, uint32_t at, int status);

/* ---- verbs_recover.c ------------------------------------------------------- */
/* Fence: from the return on nothing of the pair touches memory. The slots of
 * `but` are dropped, all others are posted again. */
void pair_reset(struct pair *pair, const struct job *but);
int pair_heard(struct lane *lane, const void *bytes, uint32_t length, int fd);
/* For good; every job on it ends with the status. */
void pair_down(struct pair *pair, int status);
/* Connects a pair anew to the same peer, with the first sequence numbers of
 * both; what was posted is forgotten. False: the lane is broken. */
bool pair_renew(struct pair *pair);
void lane_break(struct lane *lane, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- verbs_ring.c ------------------------------------------------------- */
int ring_set_up(struct lane *lane); /* own half: inbox */
int ring_join(struct lane *lane);   /* peer's sizes are known: outbox */
void ring_close(struct lane *lane);
uint8_t *verbs_reserve(struct lane *, enum ring, uint64_t length);
void verbs_publish(struct lane *, enum ring, uint64_t length);
int verbs_peek(struct lane *, enum ring, const uint8_t **, uint64_t *length);
bool verbs_release(struct lane *lane);
void verbs_mark(struct lane *, uint16_t operation, uint32_t generation);
void verbs_ended(struct lane *, uint16_t operation, uint32_t generation);
bool verbs_live(struct lane *, uint16_t operation, uint32_t generation);
/* An immediate came on the control pair. */
void ring_arrived(struct lane *lane, uint32_t immediate);
/* Sends it now, or when there is room. */
void note_send(struct lane *lane, const struct note *note);
/* NOTE_STAGED or NOTE_TAKEN. */
void note_bytes(struct lane *lane, enum note_kind kind, uint32_t operation,
                uint8_t part, uint32_t generation, uint64_t bytes);
/* Sends those that wait, as far as there is room: false if some still wait. */
bool notes_flush(struct lane *lane);
/* Does nothing wait to be told to the peer? */
bool ring_rests(const struct lane *lane);
/* What was told of bytes staged or taken, if it is of that generation. */
static inline uint64_t tagged(uint32_t generation, uint64_t bytes) {
  return (uint64_t)generation << 40 | (bytes & ((UINT64_C(1) << 40) - 1));
}
static inline uint64_t untagged(uint64_t word, uint32_t generation) {
  bool fits = word >> 40 == (generation & 0xffffff);
  return fits ? word & ((UINT64_C(1) << 40) - 1) : 0;
}

/* ---- verbs_alone.c ------------------------------------------------------ */
int alone_open(struct lane *lane);
/* A note with bytes of a frame. */
void alone_heard(struct lane *lane, const struct note *note);
int verbs_say(struct lane *lane, const uint8_t *bytes, uint32_t length);
uint32_t verbs_hear(struct lane *lane, uint8_t *bytes, uint32_t room);
bool verbs_drained(struct lane *lane);
void verbs_probe(struct lane *lane);
bool verbs_met(const struct lane *lane);
void verbs_keepalive(struct lane *lane);

/* ---- verbs_keys.c ------------------------------------------------------- */
/* What a local buffer needs: the key, and the bytes from pointer on that it is
 * good for. PERIGEE_UNSUPPORTED: this memory cannot be registered;
 * PERIGEE_NO_MEMORY: not now. lane: told why in rail->fabric's detail. */
int keys_local(struct rail *rail, struct area *area, const uint8_t *pointer,
               uint32_t *lkey, uint64_t *run);
/* Could it be? Registers what it has to in order to know. */
bool keys_reach(struct lane *lane, struct area *area);
bool verbs_forget(struct fabric *, struct area *, uint64_t offset,
                  uint64_t length);
void keys_close(struct fabric *fabric);
/* Makes length bytes from base on reachable for the peer under an id, on every
 * pair, and tells it: later, once windows are bound, behind what the pairs do
 * now. Rights: enum perigee_access. 0 or a status. */
int grant_open(struct lane *lane, uint32_t id, uint64_t generation,
               struct area *area, uint64_t offset, uint64_t length, int access);
/* Takes it back: nothing of the peer reaches it from the return on. */
void grant_shut(struct lane *lane, uint32_t id);
bool grant_is(const struct lane *lane, uint32_t id, uint64_t generation);
/* Goes on with those that are being opened. */
void grants_turn(struct fabric *fabric);
void grants_close(struct lane *lane);
void grant_heard(struct lane *lane, const struct note *note);
/* The peer's memory of that id: NULL if it was never told of. */
const struct remote_key *remote_key_find(const struct lane *lane, uint32_t id);
int verbs_export(struct lane *, const struct grant *, struct region_key *);
void verbs_revoke(struct lane *lane, uint32_t slot);
bool verbs_inside(struct lane *lane, uint32_t slot);
int verbs_attach(struct lane *, struct window *, const struct region_key *);
/* The id of the lane's grant to read all of the area, opened on first use; or
 * a status: the bytes have to be staged. */
int keys_payload_id(struct lane *lane, struct area *area);
/* The inbox: reachable by the control pair only, where windows can be had. */
int inbox_open(struct lane *lane);
int inbox_bind(struct lane *lane);

/* ---- verbs_payload.c ---------------------------------------------------- */
int verbs_loan(struct lane *, uint64_t, uint8_t **, struct source *);
void verbs_unloan(struct lane *, const struct source *);
bool verbs_loaned(struct lane *, const uint8_t *, uint64_t, struct source *);
const uint8_t *verbs_view(struct lane *, const struct source *);
int verbs_expose(struct lane *, struct exposure *, struct payload *);
int64_t verbs_feed(struct lane *, struct exposure *);
void verbs_conceal(struct lane *, struct exposure *);
/* Do these bytes lie in the lane's arena? */
bool lane_lends(const struct lane *lane, const uint8_t *pointer,
                uint64_t length);

/* ---- verbs_fetch.c ------------------------------------------------------ */
int64_t verbs_fetch(struct lane *, struct fetch *);
bool verbs_fetch_end(struct lane *, struct fetch *);

/* ---- verbs_transfer.c --------------------------------------------------- */
/* Bytes from the walks' positions on, as far as there is room on pairs: posted
 * as part of the job, on the pair (NULL: whose turn it is, and several). The
 * remote walk's base is an offset into what is held. Flushed by the caller.
 * Bytes, 0 or a status. */
int64_t lane_move(struct lane *lane, struct job *job,
                  const struct remote_key *key, struct payload *remote,
                  struct payload *local, bool write, struct pair *pair,
                  uint64_t limit);
bool verbs_reaches(struct lane *, const struct window *,
                   const struct payload *local);
int verbs_transfer(struct lane *, struct job *, const struct window *,
                   struct payload *remote, struct payload *local, bool write);
void verbs_flush(struct lane *lane);
/* Resets what data pairs have of the job under way. */
void lane_fence(struct lane *lane, const struct job *job);
bool verbs_quiesce(struct lane *lane, struct job *job);

#endif
