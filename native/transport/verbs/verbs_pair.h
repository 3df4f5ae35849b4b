/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_pair.h - queue pairs of a lane, and what is posted on them.
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
 * nobody received.
 */
#ifndef VERBS_PAIR_H
#define VERBS_PAIR_H

#include "verbs_rail.h"

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
/* Handles a completion of the pair. */
void pair_completed(struct pair *pair, const struct ibv_wc *wc);

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

#endif
