/* SPDX-License-Identifier: Apache-2.0
 *
 * core.h - what the files of the core share: engine, session, operation.
 *
 * Ownership. The engine owns all; a session owns its lane, its descriptors
 * and its remotes; an operation belongs to the engine's table and hangs on
 * its session's list from submission until it is free. A part belongs to its
 * operation. Nothing here is touched by two threads at once (lock.h).
 */
#ifndef CORE_H
#define CORE_H

#include "address.h"
#include "blocks.h"
#include "clock.h"
#include "errors.h"
#include "info.h"
#include "list.h"
#include "machine.h"
#include "perigee.h"
#include "region.h"
#include "shares.h"
#include "spin.h"
#include "timers.h"
#include "transport/fault.h"
#include "transport/transport.h"
#include "vault.h"
#include "watch.h"
#include "wire.h"

enum part_place { OUT_HEAD, OUT_SLICE, IN_HEAD, IN_SLICE, PARTS };
enum { HELD = 3, STREAMS_MAX = 16 };

/* A payload of an operation that does not travel in the ring. */
struct part {
  struct payload payload;
  uint8_t *bytes; /* here already, in a pooled block of the part */
  bool fetching;
  union {
    struct exposure exposure;
    struct fetch fetch;
    struct part *free; /* next in the engine's pool */
  };
};

/* A block of the lane's, to be lent. */
struct room {
  uint8_t *pointer;
  struct source source;
  bool marked; /* there is some behind it for a mark */
};

enum operation_kind {
  OP_CALL = 1,
  OP_READ,
  OP_WRITE,
  OP_SEND,     /* call.c: a record, a reply */
  OP_SERVED,   /* serve.c: somebody else's */
  OP_TRANSFER, /* transfer.c */
  OP_RECV,
  OP_RECV_IMM, /* message.c */
  OP_LOOKUP,
  OP_CONNECT /* lookup.c, dial.c */
};

struct operation;

/* What an operation of a kind does: one constant each, in the file that begins
 * such operations. All but told are there. */
struct operation_class {
  const char *name;
  uint8_t kind;
  uint8_t event; /* enum perigee_kind, of its end; 0: the file says it */
  /* A poll's step of one that is moving. */
  void (*step)(struct operation *op);
  /* Its timer is due. */
  void (*late)(struct operation *op);
  /* It is to end now: timeout, cancelled, session lost. */
  void (*stop)(struct operation *op, int status);
  /* Its last event is handed out; and the program has polled since. */
  void (*told)(struct operation *op);
  void (*given)(struct operation *op);
};

struct operation {
  struct node all;   /* in session->operations, or engine->orphans */
  struct node queue; /* in ready, moving, or a session's waiting list */
  struct timer timer;
  struct node fresh; /* its timer is still to be started, in engine->fresh */
  int64_t timeout;
  struct perigee_engine *engine;
  const struct operation_class *class;
  struct perigee_session *session;   /* NULL once it was freed */
  struct perigee_region *held[HELD]; /* regions that it may be inside of */
  struct source head_loan;           /* if head_lent */
  uint64_t left;                     /* if untaken: bytes */
  uint32_t generation;
  uint16_t index;
  /* What follows, up to the unions, is zero when it is taken. */
  _Alignas(8) uint8_t kind;
  uint8_t state;
  uint8_t event;  /* enum perigee_kind that waits in ready */
  uint8_t flags;  /* of the event */
  uint8_t record; /* enum record_kind */
  bool has_parts, has_held;
  bool quiet_wait; /* it has ended but for a copy that is still under way */
  bool marked;     /* readable as live by the peer */
  bool lent;       /* its request went as a loan that the peer may still see */
  bool replied;    /* the peer has let go of what the request lent */
  bool by_reference; /* its reply was: the peer waits for our mark */
  bool in_place;     /* and is seen where it lies until its event is over */
  bool landed;       /* a landing was asked for */
  bool unseen;       /* the program has not heard of it as a request */
  bool head_lent;    /* a head that came lies in a block of our own arena */
  bool counted;      /* one of its peer's operations (shares.h) */
  bool holds;        /* that, or some of what follows */
  bool scanned;      /* its typed head was looked at */
  bool bulky;        /* its head is not in the ring, but at head_loan */
  bool untaken;      /* its reply waits for the caller to look at it */
  bool roomy;        /* room was taken for its reply; it, and a head that was */
  uint64_t reserved; /* pulled, count for so many bytes until the answer */
  uint64_t exposed;  /* bytes that it counts for, of that kind */
  int status;
  struct part *parts[PARTS];
  /* What the event will say. */
  const uint8_t *pointer;
  uint64_t length, slice, value, code;
  struct typed_scan *scan; /* of a long head, in block, that is looked at */
  uint8_t *block;          /* pooled, for the head; freed with the operation */
  uint8_t *slice_block;    /* pooled, for the slice; POOLED hands it over */
  union {
    struct { /* own */
      struct perigee_message message;
      struct source loan; /* of a lent request */
      struct perigee_slice into;
      struct operation *parent; /* of a READ or WRITE of a batch */
      struct access access;
    };
    struct { /* served */
      uint16_t peer_operation, method;
      uint32_t peer_generation;
      uint64_t capacity;
      int64_t deadline; /* negative: none */
      struct record_rest {
        struct source source;
        uint64_t length;
        bool bulk, present;
      } rest;                        /* the slice that is still to come */
      struct room room;              /* if roomy: for the reply */
      struct perigee_region *region; /* of a READ or WRITE */
      struct perigee_message reply;  /* while it waits for room */
      struct operation *receiver;    /* of a SEND */
    };
    struct { /* transfer */
      const struct perigee_transfer *list;
      uint32_t count, next, pending;
      uint8_t operation, phase;
      uint64_t immediate;
      struct payload remote, local;
      struct job job;
      struct perigee_prepared *prepared;
    };
  };
};

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

/* Loans from this size on are taken back at once and lent again while they lie
 * in the shared cache; shorter ones take turns, so that a writer does not
 * have to fetch each line back from the cache of the core that just read it
 * (measured: two blocks in turn win by half at 1 MiB, one at 16 MiB). */
enum { LOAN_WARM = 4 << 20 };

/* What a message becomes: a record, and the bytes that go into it. These are set
 * where they are looked at: to zero them all would cost more than to send. */
struct outgoing {
  struct record record;
  struct payload head, slice;
  bool access; /* of a one-sided transfer: counted where that began */
};

enum { POOL_CHUNK = 4 << 20 }; /* registered at once, where it has to be */

/* Of a hello: what is known of the peer (hello.c). */
enum hello_step { HELLO_STRANGE, HELLO_MET, HELLO_PROVEN, HELLO_KNOWN };

/* What nobody else may know of a session: in the engine's vault. */
struct keys {
  struct handshake handshake;     /* until the session has its key: */
  uint8_t session[HANDSHAKE_KEY]; /* of the lane's streams (handshake.h) */
  struct secret ticket; /* whose key is the secret where a ticket was shown */
};
_Static_assert(sizeof(struct keys) <= VAULT_SMALL, "a cell has room for them");
_Static_assert(sizeof(struct seal) <= VAULT_LARGE, "and for a seal");

/* What operations do by the session that they belong to, which knows them. */
struct upward {
  int (*tell)(struct perigee_session *, const struct frame *, const int *fds,
              uint32_t fd_count);
  void (*end)(struct perigee_session *, int status, const char *reason);
};

/* The next record of a ring, that waits for a word on the session's socket. */
struct unheard {
  const uint8_t *bytes; /* NULL: there is none */
  uint64_t length;
  uint64_t till; /* bytes received by which the word has come */
};

struct perigee_session {
  struct node node;      /* in engine->sessions */
  struct node stranger;  /* in engine->strangers, and whence it came; */
  struct origin *origin; /* NULL: it is none */
  bool waits_turn;       /* before what has come is read on (strangers.h) */
  uint8_t tries;         /* to be let in by a listener that is crowded */
  struct node turn;      /* in engine->hot, unless it is parked (turns.c) */
  bool parked;
  int64_t used; /* when an operation last began, or moved a payload */
  struct perigee_engine *engine;
  const struct upward *up;
  uint32_t id;
  uint8_t state; /* enum perigee_session_state */
  bool dialed, freed, hangup;
  bool strange; /* it has ended before the program heard of it */
  uint8_t step; /* of hello: enum hello_step */
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
  bool same_host;       /* and more (neighbour.h): its socket tells its end */
  int64_t heard_at;     /* when something of the peer came last, and how many */
  uint64_t heard, said; /* bytes it was by then; bytes sent at the last look */
  bool silent;          /* nothing was to be said at the last look */
  bool bereft;          /* its process has ended: these are its last words */
  struct node news;     /* accepted: in engine->news; lost: in engine->losses */
  struct watcher on_socket, on_lane, on_process, on_lookup;
  int fd, pidfd, peer_pid;
  bool
      by_number; /* its pidfd is only of who has the pid now: it is the peer's */
  uint64_t before; /* if that says anything after these bytes (peer.c) */
  int status;
  bool devices;         /* of verbs are here, and may be used */
  bool ticketed;        /* its listener takes in holders of tickets only */
  bool moves, stays;    /* to another socket; and not (neighbour.h); */
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
  struct node keeper;   /* in engine->ebb.keepers */
  struct node granted;  /* in engine->granted, if told of a region, ever */
  uint64_t *immediates; /* not yet received, a ring of 2^n */
  uint32_t imm_first, imm_count, imm_room;
  struct share *share;    /* NULL until its peer is known */
  uint64_t descriptors;   /* that its share counts, but for those of its lane */
  uint32_t untaken;       /* replies that wait to be looked at, and */
  uint64_t untaken_bytes; /* their bytes */
  struct operation *arriving; /* a request that later ones may not overtake */
  struct unheard unheard[RINGS];
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

struct perigee_listener {
  struct node node;
  struct watcher watcher;
  struct perigee_engine *engine;
  int fd;
  bool tcp, open_to_all; /* reachable from other hosts, without a secret */
  bool file;             /* to be removed */
  bool tickets;          /* for sessions that move (neighbour.h), no others */
  char address[ADDRESS_TEXT];
};

struct perigee_endpoint {
  struct node node; /* in engine->endpoints */
  struct perigee_engine *engine;
  struct perigee_session *session; /* NULL: it was connected */
  uint64_t nonce;
  char info[INFO_TEXT];
};

/* Strangers that were refused, until the program is told. */
struct refusals {
  struct timer timer;
  int64_t every, next; /* ns: between two events; when there may be one */
  uint64_t count;
  int32_t status;
  bool on, due;
  char text[2 * ADDRESS_TEXT + REASON], told[2 * ADDRESS_TEXT + REASON];
};

/* Of memory that goes back to the system (ebb.c). */
struct ebb {
  struct timer timer;
  bool soon;            /* it is due for more of the last look, */
  uint32_t look;        /* by its number, */
  uint32_t left;        /* which so many keepers did not have yet */
  struct node keepers;  /* sessions whose lanes keep memory for blocks */
  uint32_t count;       /* of them */
  uint32_t ended, seen; /* sessions since malloc was asked; at the last look */
  bool trim;            /* it is to be */
};

/* Operations that are handed out first, and free bytes of the pool that stay. */
enum { OPERATIONS_LOW = 1024, POOL_LOW = 1 << 20 };

struct perigee_engine {
  const uint8_t *alive;    /* a page that a child process finds wiped */
  struct progress *thread; /* its own (progress.h); NULL: none, and no lock */
  struct lock *lock;       /* (lock.h) */
  struct perigee_options options;
  struct perigee_event *out; /* of the poll under way */
  int room, filled;
  struct perigee_event stash; /* found by await for somebody else, or a wait */
  bool lone;   /* it is what a wait was for: nothing had come for a while */
  bool shared; /* with a thread: the program has to take it first */
  bool aside;  /* this is the thread's turn */
  bool stashed, armed, woken, sockets_due, keep, copying;
  bool moved;      /* payload, since the clock was read: time has passed */
  bool more_ready; /* than the last look at the sockets took note of */
  uint32_t idle;   /* polls since the clock was read */
  int64_t now, sockets_at;
  uint64_t budget;   /* bytes that this poll may still copy */
  uint64_t asked;    /* by requests that it has read: of long replies */
  uint64_t progress; /* anything at all that happened, counted */
  struct node ready; /* operations with an event */
  uint32_t ready_count;
  struct node late;    /* operations that the program may still look into */
  struct node given;   /* those whose event was given: over at next poll */
  struct node moving;  /* to be stepped at each poll */
  struct node lenders; /* sessions with replies that lie (room.c) */
  struct node fresh;
  struct neighbours *neighbours; /* neighbour.c: NULL until needed */
  struct node sessions, listeners, endpoints, dead;
  struct node granted; /* sessions whose peer may be inside of a region */
  struct node hot;     /* sessions to poll; others are parked (turns.c) */
  struct node *turn;   /* of them the next, in turns_poll */
  uint32_t hot_count, parked;
  struct node news, losses; /* sessions with ACCEPTED, LOST to be told */
  struct perigee_session **by_nonce; /* chains of those called over TCP */
  struct perigee_session **by_id;    /* by id modulo id_slots, a power of two */
  uint32_t id_slots, last_id;
  struct operation *table;
  uint32_t *generations; /* of those beyond table_used, what they had */
  uint32_t table_used, live;
  uint32_t swept;   /* of the table, by messages_sweep */
  struct node free; /* operations */
  struct part *parts;
  struct stage *stages; /* of loan.c, that nobody has */
  uint8_t mark[16];     /* what lies behind loans: random */
  struct timers timers;
  struct regions regions;
  struct shares shares;
  struct blocks pool;
  uint8_t *pool_memory;
  struct area pool_area; /* of all of it, for devices */
  struct {
    const struct perigee_transport *transport;
    struct fabric *fabric;
  } fabrics[TRANSPORTS_MAX]; /* made when they were first needed */
  uint32_t fabric_count;
  struct watcher fabrics_watcher; /* of all their descriptors */
  char no_devices[REASON];  /* why verbs cannot be had, if it was asked; */
  int64_t no_devices_until; /* and till when nobody asks again */
  uint8_t *scratch;         /* copies of typed heads of this poll */
  uint64_t scratch_used;
  struct vault vault;
  struct secret *secret; /* in it, as is the next */
  uint8_t *cookie_key;   /* cookie.c: NULL until needed */
  struct refusals refusals;
  struct ebb ebb;
  int epoll, spare_fd;   /* the other: handing.c */
  struct faults *faults; /* on purpose; NULL: none */
  uint64_t epoch;
  char name[TERMS_NAME]; /* that it goes by, or "" */
  uint32_t hellos;       /* of strangers, under way */
  struct strangers *strangers; /* strangers.c */
  int64_t worked_at; /* when a session had work last */
  struct spin spin;
  char detail[512];
  struct perigee_counters counters; /* its own, and of sessions that ended */
  struct perigee_counters totals;
};

/* A status as a peer told it: one that has a name. */
static inline int status_of_peer(int status) {
  bool known = status <= PERIGEE_OK && status >= PERIGEE_FORKED;
  return known ? status : PERIGEE_PROTOCOL;
}

/* ---- refused.c --------------------------------------------------------- */
/* A stranger was refused: whoever that is ("": unknown), at a listener. */
void refusals_add(struct perigee_engine *, const char *peer,
                  const char *address, int status, const char *reason);
/* Is there an event of them? */
bool refusals_give(struct perigee_engine *, struct perigee_event *);

/* ---- poll.c ------------------------------------------------------------ */
/* keep: what was handed out before stays valid. */
int engine_poll(struct perigee_engine *engine, struct perigee_event *events,
                int capacity, bool keep);
/* What a poll does, by the engine's thread: events wait for the program, and
 * all that it was handed stays valid. Did anything happen? */
bool engine_progress(struct perigee_engine *engine);

/* ---- wait.c ------------------------------------------------------------ */
/* Peers wake us from here on. */
void engine_arm(struct perigee_engine *engine);
/* How long may be slept, at most timeout? */
int64_t engine_nap(struct perigee_engine *engine, int64_t timeout);

/* ---- pool.c ------------------------------------------------------------ */
/* Private blocks for what arrives and nobody named a place for. */
uint8_t *pool_take(struct perigee_session *session, uint64_t length);
void pool_give(struct perigee_engine *engine, uint8_t *block);
/* Gives free blocks back to the system, while more than keep bytes are warm; at
 * most so many, and so many bytes and one block more. True: more are. */
bool pool_shrink(struct perigee_engine *engine, uint64_t keep, int most,
                 uint64_t bytes);
/* ---- ebb.c: memory that nobody uses any more ---------------------------- */
void ebb_begin(struct perigee_engine *engine);  /* there is some, perhaps */
void ebb_ended(struct perigee_engine *engine);  /* of a session */
void ebb_sleeps(struct perigee_engine *engine); /* it is about to */
/* The session's lane keeps some for blocks; it is no more, or another. */
void ebb_keeps(struct perigee_session *session);
void ebb_forget(struct perigee_session *session);
/* Copies into memory that stays until the next poll, or NULL. */
uint8_t *scratch_copy(struct perigee_engine *, const uint8_t *, uint64_t);
struct part *part_take(struct perigee_engine *engine);
void part_give(struct perigee_engine *engine, struct part *part);

/* ---- fabrics.c --------------------------------------------------------- */
/* The engine's fabric of a transport, NULL where it has none; a status and a
 * reason if it cannot be made. */
int fabric_of(struct perigee_engine *, const struct perigee_transport *,
              struct fabric **fabric, char reason[REASON]);
/* Stops those that are dead and not used any more. */
void fabrics_bury(struct perigee_engine *engine);
void fabrics_turn(struct perigee_engine *engine);
void fabrics_doze(struct perigee_engine *engine);
/* May a range of an area go? False: a device uses it. */
bool fabrics_forget(struct perigee_engine *engine, struct area *area,
                    uint64_t offset, uint64_t length);
void fabrics_close(struct perigee_engine *engine);

/* ---- operation.c ------------------------------------------------------- */
struct operation *operation_take(struct perigee_session *,
                                 const struct operation_class *);
/* From now on it may time out. */
void operation_time(struct operation *op, int64_t timeout);
/* Its event: queued for the next room in a poll. */
void operation_event(struct operation *op, int kind);
void operation_move(struct operation *op); /* to be stepped */
/* Out of whatever list it waits in; an event not yet given is withdrawn. */
void operation_unqueue(struct operation *op);
void operation_free(struct operation *op);
void operation_spare(struct operation *op); /* it is nobody's: to be taken */
/* It counts as its peer's: one of its operations, so many exposed bytes; until
 * it is free or its session is. */
void operation_count(struct operation *op);
void operation_expose(struct operation *op, uint64_t bytes);
void operation_unexpose(struct operation *op, uint64_t bytes);
/* The same of what is counted already, by who hands it over. */
void operation_lends(struct operation *op, uint64_t *bytes);
void operation_uncount(struct operation *op);
/* Of own ones: ends it in a timeout, and counts that. */
void operation_late(struct operation *op);
struct operation *operation_find(struct perigee_engine *, int index);
void operation_hold(struct operation *op, struct perigee_region *region);
void operation_unhold(struct operation *op);
/* True when nothing of its parts is under way; then they are gone. */
bool parts_end(struct operation *op);
/* The part is the operation's from here on. */
void part_put(struct operation *op, int place, struct part *part);
int part_expose(struct operation *op, int place, const struct payload *from,
                struct source *source);
/* Steps one part: 1 all there, 0 not yet, or a status. */
int part_step(struct operation *op, int place);
/* Checks a local slice: its payload, or a status. */
int slice_payload(struct perigee_engine *, const struct perigee_slice *,
                  struct payload *);
/* Is there room for one more event of this poll? */
static inline bool engine_room(const struct perigee_engine *engine) {
  return engine->filled + (int)engine->ready_count < engine->room;
}

/* ---- room.c: blocks that peers look into --------------------------------- */
/* As a lane's loan; what callers have let go of is taken back where it has to
 * be. PERIGEE_AGAIN: there is no block now. */
int room_lend(struct perigee_session *session, uint64_t length,
              uint8_t **pointer, struct source *source);
/* May an own request be lent so many bytes? 0, or TOO_LARGE, NO_MEMORY and why.
 * May one take so many for what it exposes, beside what it has? */
int room_lends(struct perigee_session *session, uint64_t length);
bool room_stages(const struct operation *op, uint64_t bytes);
/* Of a lane's blocks: bytes. */
static inline uint64_t room_half(const struct perigee_options *o) {
  return o->pool / 2;
}
/* At each tick: some of those that lie are looked at; or all. */
void room_sweep(struct perigee_engine *engine, bool all);

/* ---- outgoing.c: from a message to a record in a ring ------------------- */
/* Fills in the parts of a record; what does not fit in it is exposed. */
int outgoing_plan(struct operation *op, const struct perigee_message *message,
                  struct outgoing *out);
/* A record of a raw head that travels in it; false: it has to wait for room, or
 * for others that do. */
bool outgoing_bytes(struct perigee_session *session, enum ring ring,
                    const struct record *record, const uint8_t *head);
/* Encodes and publishes; false: no room now. */
bool outgoing_publish(struct perigee_session *session, enum ring ring,
                      struct outgoing *out);
/* Until there is room in the ring. */
void backlog_add(struct operation *op, enum ring ring);

/* ---- incoming.c: from a record to memory --------------------------------- */
/* May a typed payload go on, to the peer or to the program? If not, a status,
 * and engine->detail says what is too much. */
int incoming_typed(struct perigee_engine *, const void *data, uint64_t length);
/* The same of an operation's typed head that has come. What is long has to lie
 * in the operation's block, and is looked at in portions, one a call: 1: it may
 * go on, 0: it is not through yet. */
enum { SCANNED_AT_ONCE = 16 << 10 };
int incoming_scan(struct operation *op);
void incoming_scan_end(struct operation *op);
/* Brings a head or slice to where it goes (payload NULL: a pooled block,
 * *block). 1: it is there, 0: the part at `place` is under way. */
int incoming_bytes(struct operation *op, int place, const uint8_t *bytes,
                   uint64_t length, const struct payload *into,
                   uint8_t **block);
int incoming_bulk(struct operation *op, int place, const struct source *source,
                  uint64_t length, uint16_t peer, uint32_t generation,
                  const struct payload *into, uint8_t **block);

/* ---- call.c: own records and their replies ------------------------------ */
extern const struct machine call_machine;
void call_flush(struct perigee_session *session);
void call_reply(struct perigee_session *, const struct record *);
void call_step(struct operation *op);
void call_stop(struct operation *op, int status);
int call_access(struct perigee_session *, bool write,
                const struct perigee_transfer *item, struct operation *parent);
/* Into the request ring if there is room: true. */
bool publish_imm(struct perigee_session *session, uint64_t immediate);

/* ---- serve.c ----------------------------------------------------------- */
extern const struct machine served_machine;
extern const struct operation_class served_class;
int serve_record(struct perigee_session *, const struct record *);
void serve_flush(struct perigee_session *session);
void serve_step(struct operation *op);
void serve_lost(struct operation *op);
/* Answers a READ, WRITE or SEND, or refuses any. */
void serve_answer(struct operation *op, int status);
int serve_fetch(struct operation *op, const struct payload *into);
/* With a thread: of a call that the program was shown, and may still look into.
 * keeps: then it is free later, and late is that. */
bool served_shown(const struct operation *op);
bool served_keeps(struct operation *op);
void served_late(struct perigee_engine *engine);
/* Is it a call that the program still has to answer? */
bool serve_survives(const struct operation *op);
void serve_abort(struct operation *op, int status); /* a SEND under way */

/* ---- message.c --------------------------------------------------------- */
void message_arrived(struct operation *served);
int immediate_arrived(struct perigee_session *, uint64_t immediate);
void message_match(struct perigee_session *session);
/* Some of those that wait: that their senders gave up. */
void messages_sweep(struct perigee_engine *engine);
/* How many more may come, of a session that keeps some? */
uint64_t immediates_room(const struct perigee_session *session);
void immediates_free(struct perigee_session *session);
void message_done(struct operation *served, int status);

/* ---- transfer.c -------------------------------------------------------- */
extern const struct machine transfer_machine;
void transfer_submit(struct operation *op, int64_t timeout);
void transfer_step(struct operation *op);
void transfer_published(struct operation *op);
void transfer_stop(struct operation *op, int status);
void transfer_child(struct operation *parent, int status);
void transfer_given(struct operation *op);

#include "sessions.h"

#endif
