/* SPDX-License-Identifier: Apache-2.0
 *
 * session.h - a session: what there is between this engine and one of another
 * process. It owns its lane, its descriptors and its remotes; the engine owns it.
 */
#ifndef SESSION_H
#define SESSION_H

#include "base/shares.h"
#include "net/address.h"
#include "net/wire.h"
#include "operation.h"
#include "region.h"
#include "watch.h"

enum { STREAMS_MAX = 16 };

/* Of a hello: what is known of the peer (wireup.c). */
enum wireup_step { WIREUP_NEW, WIREUP_MET, WIREUP_PROVEN, WIREUP_KNOWN };

/* A loan under way: begin was called, commit or abort was not (loan.h). */
struct loan {
  bool open, marked;
  int served;
  uint8_t *pointer;
  uint64_t length;
  uint64_t lent;        /* bytes that a block counts for, of a request */
  struct stage *stage;  /* NULL: it is a block, */
  struct source source; /* this one */
};

/* What a session does for those below it, operations and strangers. tell: says a
 * frame, send: the same, or the session ends (false); await_room: what could not
 * go is tried again once its socket has room; turn: it goes on after it waited
 * for its turn. */
struct upward {
  int (*tell)(struct perigee_session *, const struct frame *, const int *fds,
              uint32_t fd_count);
  bool (*send)(struct perigee_session *, const struct frame *, const int *fds,
               uint32_t fd_count);
  void (*await_room)(struct perigee_session *);
  void (*end)(struct perigee_session *, int status, const char *reason);
  void (*turn)(struct perigee_session *);
};

/* The next record of a ring, that waits for a word on the session's socket. */
struct deferred {
  const uint8_t *bytes; /* NULL: there is none */
  uint64_t length;
  uint64_t until; /* bytes received by which the word has come */
};

struct perigee_session {
  struct node node;      /* in engine->sessions */
  struct node unauth;    /* in engine->unauth, and whence it came; */
  struct origin *origin; /* NULL: it is none */
  bool waits_turn;       /* before what has come is read on (unauth.h) */
  uint8_t tries;         /* to be let in by a listener that is crowded */
  struct node turn;      /* in engine->hot, unless it is parked (schedule.c) */
  bool parked;
  int64_t used; /* when an operation last began, or moved a payload */
  struct perigee_engine *engine;
  const struct upward *up;
  uint32_t id;
  uint8_t state; /* enum perigee_session_state */
  bool dialed, freed, hangup;
  bool never_announced; /* it has ended before the program heard of it */
  uint8_t step;         /* of hello: enum wireup_step */
  bool ready_said, joined;
  bool tcp;           /* its socket is one: the peer has to prove who it is, */
  struct keys *keys;  /* and these come of it */
  bool intact;        /* what it carries cannot be changed unseen, */
  bool sealed, aes;   /* nor seen; by hardware's AES */
  bool beyond;        /* loopback: the default is to seal */
  uint32_t own_flags; /* what its TERMS said of that */
  bool retried;       /* the peer asked for this cookie */
  uint8_t cookie[COOKIE];
  /* What its own HELLO says, to be said again. */
  uint8_t challenge[HANDSHAKE_CHALLENGE], public_key[HANDSHAKE_KEY];
  uint64_t ticket;   /* 0, or it was moved here: by which ticket */
  bool alone, calls; /* without a socket; the side of it that speaks first */
  bool spoken;       /* frames go through the lane */
  bool attached;     /* more sockets were dialed for it, */
  struct attaching *attaching[STREAMS_MAX]; /* and these are on their way */
  union socket_address peer_address; /* of the socket that the lane has */
  uint32_t peer_length;
  bool here;            /* its address is of this host (shares.h), */
  bool same_host;       /* and more (migrate.h): its socket tells its end */
  int64_t heard_at;     /* when something of the peer came last, and how many */
  uint64_t heard, said; /* bytes it was by then; bytes sent at the last look */
  bool silent;          /* nothing was to be said at the last look */
  bool peer_exited;     /* its process has ended: these are its last words */
  struct node news;     /* accepted: in engine->news; lost: in engine->losses */
  struct watcher on_socket, on_lane, on_process, on_lookup;
  int fd, pidfd, peer_pid;
  bool
      by_number; /* its pidfd is only of who has the pid now: it is the peer's */
  uint64_t before; /* if that says anything after these bytes (peer.c) */
  int status;
  bool devices;         /* of verbs are here, and may be used */
  bool ticketed;        /* its listener takes in holders of tickets only */
  bool moves, stays;    /* to another socket; and not (migrate.h); */
  bool sent_on;         /* it was told to, and is no stranger any more */
  char why[REASON];     /* it is carried by what it is, for people */
  bool waits;           /* something waits until the socket has room */
  const char *unhanded; /* why its lane's descriptors wait (handing.c) */
  struct dial *dial;    /* dial.c: while it looks for the peer over TCP */
  char reason[256];
  char told[256];             /* the same, as it was when it was asked for */
  char address[ADDRESS_TEXT]; /* dialed, or that of the listener */
  char peer[ADDRESS_TEXT];    /* of TCP: the other end */
  char wanted[TRANSPORT_NAME];
  char expected[TERMS_NAME]; /* the name that the peer has to go by, or "" */
  struct hello hello;        /* the peer's, */
  struct terms terms;        /* once it is known */
  uint64_t features;         /* that both sides have (features.h) */
  uint32_t version;
  char carrier[REASON];        /* a line on the lane, for people; */
  char considered[2 * REASON]; /* a line on each of the others */
  char security[REASON];       /* and on who can read and change it */
  uint64_t eager;              /* as both allow */
  uint64_t nonce, probe[2];
  struct perigee_session *next_nonce; /* in engine->by_nonce */
  const struct perigee_transport *transport;
  struct lane *lane;
  struct node operations;
  struct node backlog[RINGS]; /* wait for room, in order */
  struct node recvs, recv_imms, sends;
  struct node replied;  /* replies that wait for their caller's mark, */
  struct node lender;   /* then in engine->lenders */
  struct node keeper;   /* in engine->trim.keepers */
  struct node granted;  /* in engine->granted, if told of a region, ever */
  uint64_t *immediates; /* not yet received, a ring of 2^n */
  uint32_t imm_first, imm_count, imm_room;
  struct share *share;    /* NULL until its peer is known */
  uint64_t descriptors;   /* that its share counts, but for those of its lane */
  uint32_t untaken;       /* replies that wait to be looked at, and */
  uint64_t untaken_bytes; /* their bytes */
  struct operation *arriving; /* a request that later ones may not overtake */
  struct deferred deferred[RINGS];
  bool looked; /* in this poll, at its socket, for such a word */
  struct loan loans[RINGS];
  struct perigee_remote *remotes;
  struct perigee_prepared *prepared;
  struct operation *connect;
  struct timer timer; /* of hello; without a socket all its life */
  struct wire wire;
  uint32_t *seen; /* with faults: of each operation of the peer the last */
  struct perigee_counters counters;
};

#endif
