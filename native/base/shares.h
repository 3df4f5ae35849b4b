/* SPDX-License-Identifier: Apache-2.0
 *
 * shares.h - who holds how much of what an engine has: the accounts of each
 * session, of all sessions of one peer, and of the engine, in a tree of three
 * levels. What is held is counted in one place, where it is taken, and taken
 * off in one, where it is given back.
 *
 * A peer may hold `factor` times what nobody holds, less a reserve: so one that
 * is alone has factor / (factor + 1) of nearly everything, and each that comes
 * finds something free: the thresholds by which switches share one memory among
 * their ports. Or it may hold `least`; but of the reserve nobody takes more than
 * a part of what is left, so that however many peers there are, who comes next
 * finds some. Who has much gives back what can be taken from it (messages_sweep).
 *
 * Who is one peer, of those that are known:
 *   over a Unix socket   a process, by the kernel's word, also once its session
 *                        has moved to loopback. All who may come are
 *                        of one user there, honest or not, so the user would be
 *                        one peer with those that it is to be kept from.
 *   over TCP             an address (of IPv6: its network of 64 bits);
 *   from this host       the agent, as all here have the same addresses, and
 *                        take whichever they like: by an alias that it has with
 *                        this side alone, so that nobody else can take it
 *                        (migrate.c). It is the peer's word: who changes it is
 *                        a newcomer each time, and such share what others have
 *                        left. Of those that were dialed each session.
 *   without a socket     each session.
 */
#ifndef SHARES_H
#define SHARES_H

#include <stdbool.h>
#include <stdint.h>

#include "list.h"
#include "perigee.h"

enum share_kind {
  SHARE_OPERATIONS,  /* of the engine's table: what peers ask of us, */
  SHARE_KEPT,        /* and own ones that are over, but for their loans */
  SHARE_POOLED,      /* bytes for what arrives */
  SHARE_EXPOSED,     /* bytes of ours kept until the peer has looked at them: of
                        answers, and of room for them; */
  SHARE_LENT,        /* of own requests, until it has answered (room.c) */
  SHARE_MAPPED,      /* bytes of address space, of the peer's memory */
  SHARE_SEGMENTS,    /* of memory that is mapped: the peer's, and our own */
  SHARE_DESCRIPTORS, /* sockets and the like, of sessions */
  SHARE_SESSIONS,
  SHARES
};

struct quota {
  uint64_t limit, reserve, least, factor;
  uint8_t part; /* `least` is no more than what is left >> part, and one */
};

struct shares;
struct share {
  uint64_t used[SHARES];
  struct share *parent; /* a session's: its peer's; that one's: the engine's */
  struct shares *all;
  struct node node;        /* of a peer's: among others with its hash */
  uint64_t key[2];         /* of a peer's: who it is */
  uint32_t index;          /* of a session's: by which pooled blocks name it */
  uint64_t unread_replies; /* of a peer's: bytes of replies that it left lie, */
  uint64_t reply_size;     /* and of one of late: what a request may cost */
  uint32_t members; /* of a peer's: sessions; of a session's: 1, or it is over
                       and lives on for blocks that the program still has */
};

enum { SHARE_BUCKETS = 256 };

struct shares {
  struct share engine;
  struct quota quota[SHARES];
  uint32_t own;     /* operations of this side, at most; and of all, while */
  uint32_t easy;    /* nobody has to look closely who has how many */
  uint64_t refused; /* times that somebody was, for what it held */
  uint32_t peer_count;
  struct node peers[SHARE_BUCKETS];
  struct share **by_index; /* 0 is the engine's own */
  uint32_t *spare, spares, count, room;
};

/* May a session hold n more? */
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

/* Is there any, beside what is kept for newcomers? */
static inline bool share_spare(const struct share *s, enum share_kind kind) {
  const struct quota *q = &s->all->quota[kind];
  return s->all->engine.used[kind] + q->reserve < q->limit;
}

/* Have others than newcomers taken of the reserve, so that a quarter is gone? */
static inline bool shares_short(const struct shares *all,
                                enum share_kind kind) {
  const struct quota *q = &all->quota[kind];
  return all->engine.used[kind] + q->reserve - q->reserve / 4 > q->limit;
}

/* Does a peer hold as much as half of what peers do on average? At least half of
 * all that is held is held by such. */
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

/* Takes them, if it may. NULL: nobody counts. */
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

/* Of a lane's blocks: bytes. */
static inline uint64_t shares_half(const struct perigee_options *o) {
  return o->pool / 2;
}

/* Fills in the quotas by an engine's options. */
int shares_open(struct shares *all, const struct perigee_options *options);
void shares_close(struct shares *all);
/* A session's share, of its peer's; key: who that is, the same for all sessions
 * of one peer. NULL: there is no memory. */
struct share *share_join(struct shares *all, const uint64_t key[2]);
/* The session has ended: it holds nothing, but for blocks that name it. */
void share_leave(struct share *share);
/* Of a block that names a share: gives n bytes of the pool back. */
void shares_unpool(struct shares *all, uint32_t index, uint64_t n);
/* What a session may hold at most now, as things are. */
uint64_t share_most(const struct share *session, enum share_kind kind);

#endif
