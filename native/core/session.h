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

/* ---- The parts of a session ---------------------------------------------
 * Each is written by the file that is named with it, and by those that begin
 * and end sessions (session.c, session_end.c, endpoint.c). */

/* core/hot.c: its place among the sessions that a poll looks at. */
struct session_polled {
  struct node node; /* in engine->hot, unless it is parked */
  int64_t used;     /* when an operation last began, or moved a payload */
  bool parked;
  bool unsure; /* does its peer sleep on what was published? (lanes.h) */
};

/* core/accounts.c, core/trim.c: what it may hold, of what there is. */
struct session_account {
  struct share *share;  /* NULL until its peer is known */
  uint64_t descriptors; /* that its share counts, but for those of its lane */
  struct node keeper;   /* in engine->trim.keepers */
};

/* session.c, call/serve.c: what lies in the rings and is not served yet. */
struct session_inbox {
  bool
      looked; /* in this poll, at its socket, for the word that one waits for */
  struct operation *arriving; /* a request that later ones may not overtake */
  struct deferred deferred[RINGS];
  uint32_t *seen; /* with faults: of each operation of the peer the last */
};

/* call/room.c, call/operation.c: replies that the peer has not taken. */
struct session_replies {
  uint32_t untaken;       /* those that wait to be looked at, and */
  uint64_t untaken_bytes; /* their bytes */
  struct node waiting;    /* those that wait for their caller's mark, */
  struct node lender;     /* then in engine->lenders */
};

/* call/operation.c: its operations. */
struct session_operations {
  struct loan loans[RINGS];
  struct node backlog[RINGS]; /* wait for room, in order */
  struct node all;
  struct operation *connect; /* perigee_connect's, until it is open */
  struct perigee_prepared *prepared;
};

/* call/message.c: receives that are posted, and what waits for one. */
struct session_messages {
  uint32_t imm_first, imm_count, imm_room;
  uint64_t *immediates; /* not yet received, a ring of 2^n */
  struct node recvs, recv_imms, sends;
};

/* socket.c: its socket, and frames on it. */
struct session_socket {
  int fd; /* -1: it has none, or none any more */
  bool hangup;
  bool waits;           /* something waits until the socket has room */
  const char *unhanded; /* why its lane's descriptors wait (handing.c) */
  struct watcher watcher, on_lane;
  struct wire wire;
};

/* attach.c, streams.c: the sockets of a lane that is made of them. */
struct session_streams {
  bool spoken;   /* frames of the session go through the lane */
  bool attached; /* more sockets were dialed for it, */
  struct attaching *attaching[STREAMS_MAX]; /* and these are on their way */
  union socket_address address; /* of the peer, as the lane's socket has it */
  uint32_t address_length;
};

/* liveness.c: is the peer still there? */
struct session_alive {
  int64_t heard_at; /* when something of the peer came last, and how many */
  uint64_t heard;   /* bytes it was by then */
  uint64_t said;    /* bytes sent at the last look */
  bool silent;      /* nothing was to be said at the last look */
  bool peer_exited; /* its process has ended: these are its last words */
};

/* dial.c, listen.c: whom it was told to connect to. */
struct session_target {
  char address[ADDRESS_TEXT];     /* dialed, or that of the listener */
  char transport[TRANSPORT_NAME]; /* that was asked for, or "" */
  char name[TERMS_NAME];          /* that the peer has to go by, or "" */
  uint8_t tries;            /* to be let in by a listener that is crowded */
  struct watcher on_lookup; /* of the name of a host */
};

/* unauth.c: its place among those that a listener does not know yet. */
struct session_admission {
  struct node node;      /* in engine->unauth, and whence it came; */
  struct origin *origin; /* NULL: it is none */
  bool waits;            /* for its turn, before what has come is read on */
};

/* wireup.c: how far the two have got to know each other. */
struct session_handshake {
  uint8_t step; /* enum wireup_step */
  bool ready_said, joined;
  bool active;  /* without a socket: the side that speaks first */
  bool devices; /* of verbs are here, and may be used */
  bool retried; /* the peer asked for this cookie */
  uint8_t cookie[COOKIE];
  uint64_t nonce, probe[2];
};

/* proof.c: over TCP, who the peer is, and who can read what it is told. */
struct session_security {
  struct keys *keys;  /* what comes of the proof */
  bool intact;        /* what it carries cannot be changed unseen, */
  bool sealed, aes;   /* nor seen; by hardware's AES */
  bool beyond;        /* loopback: the default is to seal */
  uint32_t own_flags; /* what its TERMS said of that */
  struct perigee_session *next_nonce; /* in engine->by_nonce */
  /* What its own HELLO says, to be said again. */
  uint8_t challenge[HANDSHAKE_CHALLENGE], public_key[HANDSHAKE_KEY];
};

/* wireup.c, migrate.c: who the peer is, once it is known. */
struct session_peer {
  bool here;         /* its address is of this host (shares.h), */
  bool same_host;    /* and more (migrate.h): its socket tells its end */
  uint32_t version;  /* of the protocol, as both have it; */
  uint64_t features; /* those that both have (features.h), */
  uint64_t eager;    /* and what both allow */
  struct hello hello;
  struct terms terms;
  char address[ADDRESS_TEXT]; /* of TCP: the other end */
};

/* peer.c: over Unix sockets, the peer's process. */
struct session_process {
  int pidfd, pid;
  bool by_number;  /* its pidfd is only of who has the pid now: the peer's, */
  uint64_t before; /* if that says anything after these bytes */
  struct watcher watcher;
};

/* migrate.c: a session that goes on over another socket. */
struct session_migration {
  bool ticketed;     /* its listener takes in holders of tickets only */
  bool moves, stays; /* to another socket; and not; */
  bool sent_on;      /* it was told to, and is no stranger any more */
  uint64_t ticket;   /* 0, or it was moved here: by which ticket */
  char why[REASON];  /* it is carried by what it is, for people */
};

/* lookup.c, core/region.c: memory of the other side, each way. */
struct session_regions {
  struct perigee_remote *remotes;
  struct node granted; /* in engine->granted, if told of a region, ever */
};

/* session_end.c: how it ended. */
struct session_ended {
  int status;
  bool unannounced; /* before the program heard of it */
  char reason[256];
};

/* session.c: what perigee_session_info gave out, until it is asked again. */
struct session_texts {
  char carrier[REASON];        /* a line on the lane, */
  char considered[2 * REASON]; /* a line on each of the others */
  char security[REASON];       /* and on who can read and change it */
  char reason[256];            /* why it ended, or is carried by what it is */
};

/* What each poll and each call reads stands first. */
struct perigee_session {
  struct node node; /* in engine->sessions */
  struct perigee_engine *engine;
  const struct upward *up;
  const struct perigee_transport *transport;
  struct lane *lane; /* the first: lane_list.h has those beside it */
  uint32_t id;
  uint8_t state; /* enum perigee_session_state */
  bool freed;
  bool dialed;  /* by this side */
  bool alone;   /* without a socket */
  bool tcp;     /* its socket is one: the peer has to prove who it is */
  bool attends; /* its polls do more: it has no socket, or several lanes */
  struct session_polled polled;
  struct session_account account;
  struct session_inbox inbox;
  struct session_replies replies;
  struct session_messages messages;
  struct session_operations operations;
  struct perigee_counters counters;
  struct node news;   /* accepted: in engine->news; lost: in engine->losses */
  struct timer timer; /* of hello; without a socket all its life */
  struct session_socket socket;
  struct session_streams streams;
  struct session_alive alive;
  struct dial *dial; /* dial.c: while it looks for the peer over TCP */
  struct session_target target;
  struct session_admission admission;
  struct session_handshake handshake;
  struct session_security security;
  struct session_peer peer;
  struct session_process process;
  struct session_migration migration;
  struct session_regions regions;
  struct session_ended ended;
  struct session_texts texts;
  struct lane_list *lanes; /* NULL: it cannot have more than one */
};

#endif
