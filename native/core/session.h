/* SPDX-License-Identifier: Apache-2.0
 *
 * session.h - a session between this engine and one of another process. It owns
 * its lane, its descriptors and its remotes; the engine owns it.
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

/* Rows of the stats file (stats_file.h), by numbers of methods. */
struct stats_rows {
  struct stats_row *of;
  uint32_t count; /* of numbers */
};

/* The progress of the handshake. The table of this machine is in
 * wireup/wireup.c. */
enum wireup_step {
  WIREUP_NEW,
  WIREUP_RETRIED,
  WIREUP_MET,
  WIREUP_PROVEN,
  WIREUP_KNOWN,
  WIREUP_JOINED,
  WIREUP_READY
};

/* These tell what carries a session's frames (streams.c), and whether it moves
 * to another socket (migrate.c). The tables of these machines are there. */
enum streams_state { STREAMS_SOCKET, STREAMS_LANE, STREAMS_WHOLE };
enum migration_state {
  MIGRATION_NONE,
  MIGRATION_AGREED,
  MIGRATION_SENT_ON,
  MIGRATION_MOVED,
  MIGRATION_RETURNED
};

/* An open loan: begin was called, commit or abort was not (loan.h). */
struct loan {
  bool open, marked;
  int served;
  uint8_t *pointer;
  uint64_t length;
  uint64_t filled; /* bytes of the last one that was committed */
  uint64_t lent;   /* of a request: bytes that its block counts for */
  /* At most one of these two; neither: the loan is a block of the lane. */
  struct stage *stage;
  bool in_ring;         /* it is room in the lane's ring */
  struct source source; /* of that block */
};

/* What a session does for the modules below it (session.c). tell: sends a
 * frame. send: the same; if that fails, the session fails (false). await_room:
 * tries again what could not be sent once its socket has room. end: ends the
 * session. fail: it cannot go on; before it is open it may begin at another
 * address. */
struct upward {
  int (*tell)(struct perigee_session *, const struct frame *, const int *fds,
              uint32_t fd_count);
  bool (*send)(struct perigee_session *, const struct frame *, const int *fds,
               uint32_t fd_count);
  void (*await_room)(struct perigee_session *);
  void (*end)(struct perigee_session *, int status, const char *reason);
  void (*fail)(struct perigee_session *, int status, const char *reason);
};

/* Sessions need this of the handshake; the engine has it (wireup/wireup.h). */
struct wireup_class {
  void (*begin)(struct perigee_session *);
  /* Handles a frame that has come: PERIGEE_OK, or PERIGEE_PROTOCOL. */
  int (*frame)(struct perigee_session *, const struct frame *);
  /* Goes on, as the session's turn has come (session/unauth.c). */
  void (*turn)(struct perigee_session *);
  /* It cannot be opened here: begins it at another address, or ends it. */
  void (*fail)(struct perigee_session *, int status, const char *reason);
};

/* The work of a session without a socket in each poll (wireup/endpoint.c). */
struct alone_class {
  void (*poll)(struct perigee_session *);
};

/* The next record of a ring that waits for a frame on the session's socket. */
struct deferred {
  const uint8_t *bytes; /* NULL: there is none */
  uint64_t length;
  uint64_t until; /* bytes of the socket within which the frame is */
};

/* ---- The parts of a session ---------------------------------------------
 * Each part is written by the files named with it, and by those that begin and
 * end sessions (session.c, wireup/endpoint.c). Each timer is armed and removed
 * by the owner of its part; session_disarm() removes all of them. */

/* core/lanes.c: its place among the sessions that a poll looks at. */
struct session_polled {
  struct node node; /* in engine->hot, unless it is parked */
  int64_t used;     /* when an operation last began, or moved a payload */
  bool parked;
  bool unsure; /* its peer may sleep through what was published (lanes.h) */
};

/* core/accounts.c, core/pool.c: its share of the engine's resources. */
struct session_account {
  struct share *share;  /* NULL until its peer is known */
  uint64_t descriptors; /* counted for it, without those of its lane */
  struct node keeper;   /* in engine->trim.keepers */
};

/* session_poll.c, call/serve.c: records of the rings, not served yet. */
struct session_inbox {
  bool looked; /* its socket was read for a deferred record in this poll */
  bool taken;  /* records were read that are not released yet */
  struct operation *arriving; /* a request that later ones may not overtake */
  struct deferred deferred[RINGS];
  uint32_t *seen; /* with faults: last generation of each peer's operation */
};

/* drain.c, call/call_begin.c, call/call.c, call/serve.c: a side that takes no more
 * calls. */
struct session_drain {
  uint8_t ours, theirs; /* states of drain_machine; 0: takes calls */
  uint64_t sent, read;  /* requests put into the ring, and read */
  uint32_t calls;       /* own ones that have not ended */
};

/* operation/loan.c, operation.c: replies that the peer has not read yet. */
struct session_replies {
  uint32_t untaken;       /* number of these replies */
  uint64_t untaken_bytes; /* their bytes */
  struct node waiting;    /* replies that wait for their caller's mark to go */
  struct node lender;     /* in engine->lenders while there are any */
};

/* operation/operation.c: its operations. */
struct session_operations {
  struct loan loans[RINGS];
  struct node backlog[RINGS]; /* those that wait for room, in order */
  struct node all;
  struct operation *connect; /* perigee_connect's, until it is open */
  struct perigee_prepared *prepared;
};

/* call/serve.c: receives that are posted, and messages without a receive. */
struct session_messages {
  uint32_t imm_first, imm_count, imm_room;
  uint64_t *immediates; /* not received yet; a ring of 2^n */
  /* Of the receives: how many there have been, and the number of the last one
   * that a message came to, or was too long for. */
  uint64_t posted, reached;
  bool matching;
  struct node recvs;    /* without a message, in order */
  struct node landings; /* with one that is on its way, in order */
  struct node recv_imms, sends;
};

/* socket.c: its socket, and the frames on it. */
struct session_socket {
  int fd;               /* -1: it has none, or none any more */
  bool hangup;          /* the peer will send nothing more */
  bool waits;           /* something waits for room in the socket */
  struct timer handing; /* armed: no memory can be handed now */
  const char *unhanded; /* why */
  struct watcher watcher, on_lane;
  struct wire wire;
};

/* streams.c: sockets of a lane that uses sockets. */
struct session_streams {
  uint8_t state;                            /* enum streams_state */
  struct attaching *attaching[STREAMS_MAX]; /* those not connected yet */
  union socket_address address; /* of the peer, to be dialed again */
  uint32_t address_length;
};

/* streams.c: is the peer still there? */
struct session_alive {
  struct timer timer; /* the next look */
  int64_t heard_at;   /* when something was last received from the peer */
  uint64_t heard;     /* bytes received by then */
  uint64_t said;      /* bytes sent by the last look */
  bool silent;        /* no keepalive was due at the last look */
  bool peer_exited;   /* its process has ended; what it sent is still read */
};

/* session.c, listen.c: the target that the program asked for. */
struct session_target {
  char address[ADDRESS_TEXT];     /* that was dialed, or of the listener */
  char transport[TRANSPORT_NAME]; /* that must be used, or "" */
  char name[TERMS_NAME];          /* that the peer must have, or "" */
  uint8_t tries;                  /* dials of a listener that was crowded */
  struct watcher on_lookup;       /* of the look-up of a host's name */
};

/* unauth.c: its place among unauthenticated peers. */
struct session_admission {
  struct node node;      /* in engine->unauth */
  struct origin *origin; /* where it came from; NULL: it is authenticated */
  bool waits;            /* for its turn, before more of it is read */
};

/* wireup/: the state of the handshake. */
struct session_handshake {
  struct timer deadline;
  uint8_t step; /* enum wireup_step */
  bool active;  /* without a socket: this side probes */
  uint8_t cookie[COOKIE];
  uint32_t fabrics; /* over TCP: those that can be had (choice.c) */
  uint64_t nonce, probe[2];
};

/* peer.c: over TCP, authentication and encryption. */
struct session_security {
  struct keys *keys;  /* in the engine's vault */
  bool intact;        /* everything has MACs */
  bool sealed, aes;   /* everything is enciphered; by AES in hardware */
  bool beyond;        /* goes beyond loopback: sealed by default */
  uint32_t own_flags; /* flags of this side's TERMS */
  struct perigee_session *next_nonce; /* in engine->by_nonce */
  /* These are in this side's HELLO, which may have to be sent again. */
  uint8_t challenge[HANDSHAKE_CHALLENGE], public_key[HANDSHAKE_KEY];
};

/* wireup/wireup.c, migrate.c: the peer, once it is known. */
struct session_peer {
  bool here;         /* its address is one of this host (shares.h) */
  bool same_host;    /* proven (migrate.c): the kernel tells its end */
  uint32_t version;  /* of the protocol, which both have */
  uint64_t features; /* that both have (wire.h) */
  uint64_t eager;    /* limit that both allow */
  uint64_t heads[2]; /* the longest head in a ring that it takes: raw; typed */
  struct hello hello;
  struct terms terms;
  char address[ADDRESS_TEXT]; /* over TCP: of the other end */
  char name[TERMS_NAME];      /* told since the handshake (session_named) */
};

/* peer.c: over Unix sockets, the peer's process. */
struct session_process {
  int pidfd, pid;
  bool by_number;  /* the pidfd was opened by the pid, and may be wrong until */
  uint64_t before; /* the process sends something after so many bytes */
  struct watcher watcher;
};

/* migrate.c: a session that moves to another socket. */
struct session_migration {
  uint8_t state;    /* enum migration_state */
  bool ticketed;    /* its listener accepts holders of tickets only */
  uint64_t ticket;  /* the ticket by which it moved here; 0: none */
  char why[REASON]; /* why it moved or stayed, for users */
};

/* lookup.c, core/region.c: regions of the peer, and ours that it may use. */
struct session_regions {
  struct perigee_remote *remotes;
  uint32_t asked;      /* look-ups that were sent and are not answered yet */
  struct node granted; /* in engine->granted once it was told of a region */
};

/* session.c: its end. */
struct session_ended {
  int status;
  bool unannounced; /* it ended before the program heard of it */
  char reason[256];
};

/* session.c: texts of perigee_session_info, valid until its next call. */
struct session_texts {
  char carrier[REASON];        /* a line on the lane */
  char considered[2 * REASON]; /* a line on each other transport */
  char security[REASON];       /* a line on who can read and change it */
  char reason[256];            /* why it ended, or uses this transport */
};

/* A session without a row of the stats file (stats_file.h). */
struct session_other {
  struct node node; /* in engine->stats.others; in none: it has one */
  bool open;        /* it counts as open there */
  struct perigee_counters told; /* what the row of all of them has of it */
};

/* Fields that each poll and each call reads come first. */
struct perigee_session {
  struct node node; /* in engine->sessions */
  struct perigee_engine *engine;
  const struct upward *up;
  const struct perigee_transport *transport;
  struct lane *lane; /* the first: lanes.h has those beside it */
  uint32_t id;
  uint8_t state; /* enum perigee_session_state */
  bool freed;
  bool dialed;  /* by this side */
  bool tcp;     /* its socket is one: the peer has to prove who it is */
  bool attends; /* its polls do more: it has no socket, or several lanes */
  uint8_t not_shm, not_verbs; /* why: enum perigee_stats_why, once it is open */
  struct session_polled polled;
  struct session_account account;
  struct session_drain drain;
  struct session_inbox inbox;
  struct session_replies replies;
  struct session_messages messages;
  struct session_operations operations;
  struct perigee_counters *counters; /* own_counters, or in its row of stats */
  struct node news; /* accepted: in engine->news; lost: in engine->losses */
  struct session_socket socket;
  struct session_streams streams;
  struct session_alive alive;
  const struct alone_class *alone; /* without a socket; NULL: it has one */
  struct timer alone_timer;        /* its probes and keepalives */
  struct dial *dial;               /* dial.c: while it looks for the peer */
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
  struct stats_rows methods; /* rows of the peer's methods, by their numbers */
  struct perigee_counters own_counters;
  struct session_other other; /* without a row of stats */
  struct lane_list *lanes;    /* NULL: it cannot have more than one */
};

#endif
