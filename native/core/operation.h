/* SPDX-License-Identifier: Apache-2.0
 *
 * operation.h - an operation, of this side or of the peer (served): its state,
 * what it owns, and what its kind does.
 *
 * Ownership. Operations belong to the engine's table. From submission until it
 * is free, an operation is in its session's list. A part belongs to its
 * operation.
 */
#ifndef OPERATION_H
#define OPERATION_H

#include "base/list.h"
#include "base/timers.h"
#include "perigee.h"
#include "transport/transport.h"

struct typed_scan;
struct spread; /* operation/operations.h */
struct perigee_stats_operation;

enum part_place { OUT_HEAD, OUT_SLICE, IN_HEAD, IN_SLICE, PARTS };
enum { REGION_REFS = 2 }; /* what is sent from, and what is received into */

/* A payload of an operation that does not travel in the record. */
struct part {
  struct payload payload;
  uint8_t *bytes; /* pooled block of the part, if the bytes are here already */
  bool fetching;
  uint8_t lane;         /* by which it goes (lanes.h) */
  struct copies copies; /* the payload's */
  union {
    struct exposure exposure;
    struct fetch fetch;
    struct part *free; /* next in the engine's pool */
  };
};

/* The part's payload begins as that one. */
static inline void part_begin(struct part *part,
                              const struct payload *payload) {
  part->payload = *payload;
  part->payload.copies = &part->copies;
}

/* A slice, or a raw head, whose landing is not known yet. */
struct record_rest {
  uint64_t length;
  bool bulk, present;
  struct source source; /* if bulk */
};

/* A block of the lane that was taken ahead, to be lent. */
struct room {
  uint8_t *pointer;
  struct source source;
  bool marked; /* there is room behind it for a mark */
};

enum operation_kind {
  OP_CALL = 1,
  OP_READ,
  OP_WRITE,
  OP_SEND,     /* call.c: a record, a reply */
  OP_SERVED,   /* serve.c: the peer's */
  OP_TRANSFER, /* transfer.c */
  OP_RECV,
  OP_RECV_IMM, /* serve.c */
  OP_LOOKUP,
  OP_CONNECT, /* lookup.c, dial.c */
  OP_BATCH    /* batch.c: of calls, whose parent it is */
};

/* A bit of an operation's flags that no event has: its event asks for a landing of
 * its reply (REPLY_LANDING). */
enum { OPERATION_ASKS = 128 };

/* Bits of an operation's `traced`. */
enum trace_bits {
  TRACE_TRAVELS = 1, /* its record carries `trace` */
  TRACE_SPAN = 2     /* it has a span in the stats file (spans.h) */
};

/* The row of a method in the stats file, ready for use; zeros: of all that have
 * none. */
struct stats_row {
  uint32_t what;   /* 2^16 times its number, as `what` of other rows has it */
  uint32_t offset; /* in bytes, from row 0 */
};

struct operation;

/* Calls that were submitted as one (call/batch.c). */
struct call_batch {
  struct perigee_answer *answers; /* the program's; NULL: it hears no more */
  uint64_t bytes;                 /* that calls which ended well have filled */
  uint32_t left; /* calls that have not ended; one more while they are begun */
  int status;    /* of the call that failed first, else PERIGEE_OK */
};

/* What still works for an operation that has ended: nothing; copies or a device,
 * whose end its steps see; others, who call operation_settle at their end. */
enum still { STILL_NOTHING, STILL_STEPS, STILL_OTHERS };

/* What operations of a kind do: one constant for each kind, in the file that
 * begins them. The functions from told on may be NULL. */
struct operation_class {
  const char *name;
  uint8_t kind;
  uint8_t event; /* enum perigee_kind at its end; 0: the file sets it */
  /* Called by polls while it moves. */
  void (*step)(struct operation *op);
  /* Called when its timer is due. */
  void (*late)(struct operation *op);
  /* Called to end it now: timeout, cancelled, session lost. */
  void (*stop)(struct operation *op, int status);
  /* given: its last event was handed out, and the program has polled since.
   * told: its last event is handed out. */
  void (*given)(struct operation *op);
  void (*told)(struct operation *op);
  /* Publishes a record that waits for room in its ring. False: it waits on. */
  bool (*publish)(struct operation *op);
  /* With a progress thread: the program may still read its memory, so it keeps
   * the operation to be freed later? */
  bool (*keeps)(struct operation *op);
  /* A read, write or call that is part of it (its child) has ended. */
  void (*child)(struct operation *op, int status);
  /* It has ended, and its session was freed, so no event tells of it: nothing of
   * the program's is read for it any more. */
  void (*untold)(struct operation *op);
  /* Of operations without a reply record (operation_finish): recall ends what
   * works for one that has ended, still says what works for it all the same, and
   * over gives back what it used, before its event. */
  void (*recall)(struct operation *op);
  enum still (*still)(struct operation *op);
  void (*over)(struct operation *op);
};

/* The fields that a short call uses fill the cache lines from the first on, so
 * that many calls under way use few of them: an own call six, one of the peer's
 * five. */
struct operation {
  _Alignas(64) struct node all; /* in session->operations.all, or orphans */
  struct node queue; /* in ready, moving, or a session's waiting list */
  struct timer timer;
  /* The second line. */
  uint32_t fresh; /* the one before in engine->fresh; 0: it is not there */
  uint32_t generation;
  int64_t timeout; /* negative: none, or it ended before its timer began */
  struct perigee_engine *engine;
  const struct operation_class *class;
  struct perigee_session *session; /* NULL once it was freed */
  /* Its row in the stats file, as its index has it. */
  struct perigee_stats_operation *under_way;
  uint64_t ordinal; /* of an own call that was sent: which of the session's */
  uint16_t index;
  uint32_t nth; /* of a call of a batch: which it is, from 1; of others 0 */
  /* The third. All fields from here to region_refs are zeroed when it is taken.
   * The flags of the first two words are rarely set, so a short call looks at a
   * word in place of each: nobody sets one of them just before (apart.h). */
  union {
    uint64_t rare; /* any of these: the operation is no short one */
    struct {
      bool has_parts;
      bool has_more;   /* fields behind the unions may not be zero (MORE) */
      bool quiet_wait; /* it has ended, but a copy is still in progress */
      bool lent;       /* its request was a loan that the peer may still read */
      bool by_reference; /* its reply refers to memory of the peer, which waits
                            for our mark to go */
      bool in_place;     /* its reply is read in place until its event has
                            ended */
      bool landed;       /* the program was asked for a landing; of an own call:
                            is to be asked, and has not named it */
      uint8_t traced;    /* enum trace_bits */
    };
  };
  union {
    uint64_t rare_served; /* the same of those of the peer */
    struct {
      bool unseen;       /* the program has not got it as a request */
      bool head_lent;    /* its head is in a block of our own arena */
      bool viewed;       /* a head of the peer is read in place (room_view) */
      bool bulky;        /* its head is not in the ring, but at head_loan */
      bool untaken;      /* its reply was not read by the caller yet */
      bool roomy;        /* a block was taken for its reply */
      bool request_lent; /* its reply is in another block than its head, which
                            the program may still read */
    };
  };
  uint8_t kind;
  uint8_t state;
  uint8_t event;        /* enum perigee_kind of the event that waits in ready */
  uint8_t flags;        /* of that event */
  uint8_t record;       /* enum record_kind */
  uint8_t region_count; /* of region_refs */
  bool marked;          /* the peer can read that it is live */
  bool replied;         /* the peer does not use the request's loan any more */
  bool counted; /* it counts as one of its peer's operations (shares.h) */
  bool holds;   /* it counts for its peer, by `counted` or bytes below */
  bool scanned; /* its typed head was scanned */
  struct stats_row row; /* of its method */
  int status;
  int64_t measured; /* when it began, if it is measured */
  int64_t long_at;  /* of a served call that the program has got, until it has
                        answered: from then on its time counts (stats_file.h);
                        0: not so. (A flag among those above would be read with
                        its neighbours: served_sends.) */
  /* Content of the event. The fourth line begins behind the pointer. */
  const uint8_t *pointer;
  uint64_t length, slice, value, code;
  uint8_t *block;       /* pooled, for the head; freed with the operation */
  uint8_t *slice_block; /* pooled, for the slice; the program's if POOLED */
  struct perigee_region *region_refs[REGION_REFS]; /* memory it may touch */
  union {                                          /* the fifth line */
    struct {                                       /* own */
      struct operation *parent; /* of a READ or WRITE of a transfer, and of a
                                   CALL of a batch */
      struct perigee_message message;
      struct source loan; /* the loan, if `lent` */
      struct access access;
      struct perigee_trace trace;  /* if its message named one */
      uint32_t span;               /* with TRACE_SPAN: number of its span */
      struct record_rest offered;  /* if landed: what is to land, a slice if one
                                     is present, else the head */
      uint32_t replier_generation; /* if landed: of the peer's operation */
      uint16_t replier;
    };
    struct { /* served */
      uint16_t peer_operation, method;
      uint32_t peer_generation;
      int64_t deadline;              /* negative: none */
      struct perigee_region *region; /* of a READ or WRITE */
      struct operation *receiver;    /* of a SEND: its receive */
      struct record_rest rest;       /* the slice, until it is brought */
      struct room room;              /* if roomy: the block for the reply */
      struct perigee_message reply;  /* while it waits for room */
      struct perigee_trace came;     /* if TRACED: from the request */
      uint32_t came_span;            /* with TRACE_SPAN: number of its span */
    };
    struct { /* transfer */
      const struct perigee_transfer *list;
      uint32_t count, next, pending;
      uint8_t operation, phase, lane; /* the last: that of its job */
      bool reads_mapped; /* a device reads where a region is mapped */
      uint64_t immediate;
      struct payload remote, local;
      struct job job;
      struct perigee_prepared *prepared;
    };
    struct { /* receive */
      struct payload place;
      uint64_t number;   /* which receive of the session's, from 1 */
      uint32_t arriving; /* index of the message that lands there, plus 1 */
    };
    struct call_batch batch;
  };
  /* MORE: zeroed when it is taken if has_more was set by the use before. Who sets
   * one of these also sets has_more. */
  struct spread *spreads; /* lists of slices whose memory it may touch */
  uint64_t reserved; /* bytes counted until the answer, for that block and the
                        pulled head's */
  uint64_t exposed;  /* bytes that it exposes, counted for its peer */
  struct part *parts[PARTS];
  struct typed_scan *scan; /* of a long head in `block`, in progress */
  /* Up to here. */
  struct source head_loan;    /* if head_lent */
  struct source request_loan; /* if request_lent */
  const uint8_t *view;        /* if viewed: bytes of the peer, .. */
  uint64_t view_length;       /* .. so many of them */
  uint64_t left;              /* if untaken: bytes of the reply */
};

#endif
