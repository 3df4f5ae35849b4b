/* SPDX-License-Identifier: Apache-2.0
 *
 * operation.h - an operation, of this side or of the peer's that is served: what
 * it is, what it holds, and what its kind does.
 *
 * Ownership. It belongs to the engine's table, and hangs on its session's list
 * from submission until it is free. A part belongs to its operation.
 */
#ifndef OPERATION_H
#define OPERATION_H

#include "base/list.h"
#include "base/timers.h"
#include "perigee.h"
#include "transport/transport.h"

struct typed_scan;

enum part_place { OUT_HEAD, OUT_SLICE, IN_HEAD, IN_SLICE, PARTS };
enum { REGION_REFS = 3 };

/* A payload of an operation that does not travel in the ring. */
struct part {
  struct payload payload;
  uint8_t *bytes; /* here already, in a pooled block of the part */
  bool fetching;
  uint8_t lane; /* by which it goes (lane_list.h) */
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
  struct node all;   /* in session->operations.all, or engine->orphans */
  struct node queue; /* in ready, moving, or a session's waiting list */
  struct timer timer;
  struct node fresh; /* its timer is still to be started, in engine->fresh */
  int64_t timeout;
  struct perigee_engine *engine;
  const struct operation_class *class;
  struct perigee_session *session; /* NULL once it was freed */
  struct perigee_region
      *region_refs[REGION_REFS]; /* regions that it may be inside of */
  struct source head_loan;       /* if head_lent */
  uint64_t left;                 /* if untaken: bytes */
  uint32_t generation;
  uint16_t index;
  /* What follows, up to the unions, is zero when it is taken. */
  _Alignas(8) uint8_t kind;
  uint8_t state;
  uint8_t event;  /* enum perigee_kind that waits in ready */
  uint8_t flags;  /* of the event */
  uint8_t record; /* enum record_kind */
  bool has_parts, has_region_refs;
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
      struct perigee_trace trace; /* if the message names one */
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
      struct perigee_trace came;     /* if TRACED */
    };
    struct { /* transfer */
      const struct perigee_transfer *list;
      uint32_t count, next, pending;
      uint8_t operation, phase, lane; /* the last: that of its job */
      uint64_t immediate;
      struct payload remote, local;
      struct job job;
      struct perigee_prepared *prepared;
    };
  };
};

#endif
