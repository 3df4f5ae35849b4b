/* SPDX-License-Identifier: Apache-2.0
 *
 * shares.h - accounting of what an engine's peers hold. The accounts form a
 * tree of three levels: each session, all sessions of one peer, the engine.
 * Each resource is counted in the one place where it is taken and uncounted in
 * the one place where it is given back.
 *
 * A peer may hold `factor` times what is free, less a reserve. So a peer that
 * is alone can have factor / (factor + 1) of nearly everything, and a peer that
 * comes later still finds something free: these are the dynamic thresholds by
 * which switches share one memory among their ports. Besides, every peer may
 * hold `least`; from the reserve, no peer takes more than a part of what is
 * left, so the next peer always finds some, however many there are. A peer with
 * much loses what it can be made to give back (messages_sweep).
 *
 * Which sessions count as one peer, once it is known:
 *   over a Unix socket   one process, which the kernel names; also after
 *                        the session has moved to loopback. The user would
 *                        be too coarse: all who may connect are one user's.
 *   over TCP             one address (of IPv6: one network of 64 bits)
 *   from this host       one agent, as all local processes share the addresses.
 *                        It is known by an alias that it uses with this side
 *                        alone, so nobody else can take it (migrate.c). The
 *                        alias is the peer's claim: who changes it counts as
 *                        a new peer, and new peers share what others have left.
 *                        Sessions that this side dialed count one by one.
 *   without a socket     one session
 *
 * Pooled blocks count by the pages of their length, from when they are promised
 * to when they are given back. The cost of a request is estimated from earlier
 * replies (reply_size), so few requests are read at once from a peer that asks
 * for much. A sixteenth of the table of operations, at least nine, is for
 * peers.
 *
 *   what                  is taken when              beyond the peer's share
 *   operations            a record is read           its requests stay in its
 *                                                    ring
 *   kept operations       one ends with a loan open  a loan to it is refused
 *   pooled bytes          a block is promised; the   no_memory. Fragments that
 *                         unexpected queue grows     no window bounds wait in
 *                                                    their stream; others end
 *                                                    the session
 *   exposed bytes         a reply is left with the   its request waits
 *                         peer, or room is taken     (loan.c), then no_memory
 *   lent bytes            an own request is lent or  a loan is refused; staging
 *                         staged                     waits
 *   unread replies        they are sent              its requests stay in its
 *                                                    ring
 *   address space         its memory is mapped       its session, or its
 *                                                    region, is refused
 *   staging in turn       a payload is the first     the payload is pulled
 *   segments              one is made for it, or     blocks of other segments
 *                         its own is mapped          are lent; its session
 *                                                    ends in no_memory
 *   descriptors           it is authenticated; a     it is refused
 *   and sessions          stream attaches
 *
 * The program's time is bounded in another way: a poll gives requests until they
 * ask for a MiB of long replies, and the next one begins with another session
 * (session_poll.c, poll.c). With
 * PERIGEE_DEBUG the engine aborts if the sums of the levels differ, or if an
 * ended session still holds something.
 */
#ifndef SHARES_H
#define SHARES_H

#include <stdbool.h>
#include <stdint.h>

#include "list.h"
#include "perigee.h"

enum share_kind {
  SHARE_OPERATIONS, /* entries of the engine's table, for peers' requests */
  SHARE_KEPT,       /* entries of own operations that ended with a loan open */
  SHARE_POOLED,     /* bytes of the pool, for payloads that arrive */
  SHARE_EXPOSED,    /* bytes of own replies, and of room for them, that are kept
                        until the peer has read them */
  SHARE_LENT,     /* bytes of own requests, until they are answered (loan.c) */
  SHARE_MAPPED,   /* bytes of address space where the peer's memory is mapped */
  SHARE_SEGMENTS, /* mapped memory segments, the peer's and our own */
  SHARE_FILLED,   /* bytes of the peer's rings made here (shm_there.c) */
  SHARE_STAGED,   /* bytes of memory for staging in turns (shm_stage.c) */
  SHARE_DESCRIPTORS, /* sockets and other descriptors of sessions */
  SHARE_SESSIONS,
  SHARES
};

struct quota {
  uint64_t limit, reserve, least, factor;
  uint8_t part; /* `least` is at most what is left >> part, but at least 1 */
};

struct shares;
struct share {
  uint64_t used[SHARES];
  struct share *parent; /* session -> its peer -> the engine */
  struct shares *all;
  struct node node;        /* peer: in the list of its hash */
  uint64_t key[2];         /* peer: who it is */
  uint32_t index;          /* session: pooled blocks name it by this number */
  uint64_t unread_replies; /* peer: bytes of replies that it has not read */
  uint64_t reply_size; /* peer: bytes of a recent reply, which tells what its
                              requests may cost */
  /* Peer: its sessions; session: 1, or 0 once it has ended and lives on for
   * blocks that the program still has. */
  uint32_t members;
};

enum { SHARE_BUCKETS = 256 };

struct shares {
  struct share engine;
  struct quota quota[SHARES];
  uint32_t own;     /* the most operations of this side */
  uint32_t easy;    /* below so many operations in all, nobody has to check how
                       they are divided */
  uint64_t refused; /* how often a request was refused because of a share */
  uint32_t peer_count;
  struct node peers[SHARE_BUCKETS];
  struct share **by_index; /* 0 stands for the engine itself */
  uint32_t *spare, spares, count, room;
};

/* May the session hold n more? */
static inline bool share_may(const struct share *s, enum share_kind kind,
                             uint64_t n) {
  const struct shares *all = s->all;
  const struct quota *q = &all->quota[kind];
  uint64_t held = all->engine.used[kind] + n, own = s->parent->used[kind] + n;
  if (held > q->limit || held < n)
    return false;
  uint64_t rest = q->limit - held;
  if (own <= q->least && own <= (rest >> q->part) + 1)
    return true;
  return rest > q->reserve && own <= q->factor * (rest - q->reserve);
}

/* Is anything free beyond the reserve for new peers? */
static inline bool share_spare(const struct share *s, enum share_kind kind) {
  const struct quota *q = &s->all->quota[kind];
  return s->all->engine.used[kind] + q->reserve < q->limit;
}

/* Is a quarter of the reserve gone to peers that are not new? */
static inline bool shares_short(const struct shares *all,
                                enum share_kind kind) {
  const struct quota *q = &all->quota[kind];
  return all->engine.used[kind] + q->reserve - q->reserve / 4 > q->limit;
}

/* Does the peer hold at least half of the average of all peers? Such peers hold
 * at least half of all that peers hold. */
static inline bool share_is_usual(const struct share *peer,
                                  enum share_kind kind) {
  const struct shares *all = peer->all;
  return 2 * peer->used[kind] * all->peer_count >= all->engine.used[kind];
}

static inline void share_add(struct share *s, enum share_kind kind,
                             uint64_t n) {
  s->used[kind] += n;
  s->parent->used[kind] += n;
  s->all->engine.used[kind] += n;
}

static inline void share_give(struct share *s, enum share_kind kind,
                              uint64_t n) {
  s->used[kind] -= n;
  s->parent->used[kind] -= n;
  s->all->engine.used[kind] -= n;
}

/* Counts n more for the session, if it may hold them; a NULL share counts
 * nothing and always may. */
static inline bool share_take(struct share *s, enum share_kind kind,
                              uint64_t n) {
  if (!s)
    return true;
  if (!share_may(s, kind, n)) {
    s->all->refused++;
    return false;
  }
  share_add(s, kind, n);
  return true;
}

static inline void share_back(struct share *s, enum share_kind kind,
                              uint64_t n) {
  if (s)
    share_give(s, kind, n);
}

/* Returns how many bytes of blocks a lane may lend. */
static inline uint64_t shares_half(const struct perigee_options *o) {
  return o->pool / 2;
}

/* Computes the quotas from the engine's options. */
int shares_open(struct shares *all, const struct perigee_options *options);
void shares_close(struct shares *all);
/* Returns a new session's share under its peer's, NULL without memory. The key
 * identifies the peer: it is equal for all sessions of one peer. */
struct share *share_join(struct shares *all, const uint64_t key[2]);
/* The session has ended and holds nothing but pooled blocks that name it. */
void share_leave(struct share *share);
/* Uncounts n pooled bytes of a block that names this share. */
void shares_unpool(struct shares *all, uint32_t index, uint64_t n);
/* Returns the most that the session could hold at present. */
uint64_t share_most(const struct share *session, enum share_kind kind);

#endif
