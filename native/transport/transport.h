/* SPDX-License-Identifier: Apache-2.0
 *
 * transport.h - the table that every transport fills. A transport carries
 * records, payloads and one-sided copies for one session, in a lane that it
 * makes; it knows nothing of calls. All functions are non-blocking; those
 * that move bytes are steps, repeated by the core's poll until they are done,
 * so that a copy by the CPU and a NIC's work queue look the same.
 *
 * Order: a record is seen after everything that was done on the lane before
 * it was published.
 */
#ifndef PERIGEE_TRANSPORT_H
#define PERIGEE_TRANSPORT_H

#include "base/list.h"
#include "base/record.h"
#include "base/shares.h"
#include "memory/memory.h"

enum ring { RING_REQUEST = 0, RING_REPLY = 1, RINGS = 2 };
enum { OFFER_MAX = 1024, OFFER_FDS = 4, LANE_FRAME_MAX = 256 };
enum { REASON = 240 };

struct fabric; /* what all lanes of an engine over one transport share */
struct lane;   /* each transport's own; begins with struct lane_head */
struct fault_lane;
struct lane_head {
  const struct perigee_transport *transport;
  struct fault_lane *faults; /* that befall it on purpose; mostly NULL */
  bool ending; /* it has broken, as broken() tells: nothing more is begun */
};

/* What a fabric is made with. */
struct fabric_options {
  uint32_t operations;
  struct area *pool; /* private blocks of the engine */
  const char *rdma;  /* perigee_options.rdma */
  int64_t (*clock)(void *context);
  void *context;
};

/* What a lane is made with. */
struct lane_options {
  struct fabric *fabric; /* NULL if the transport has none */
  uint64_t ring, pool;
  uint32_t operations; /* of this side: indexes below it are marked */
  bool pull;           /* may the peer's memory be read directly? */
  int peer_pid;
  int peer_pidfd; /* -1: unknown; the session's */
  /* What the peer's memory has to hold, so that it is pulled from (zeros: it is
   * not); and what it wants to find in ours. */
  uint64_t probe[2], probed[2];
  uint64_t key;        /* random, shared by both sides */
  bool alone;          /* no socket: what follows as "alone" will be used */
  bool dialed;         /* this side did */
  uint32_t streams;    /* sockets for payloads, if it is by sockets */
  const uint8_t *seal; /* 32 bytes that only the two sides know, to seal all
                          that is sent with; NULL: it goes as it is */
  bool aes;            /* by a cipher that both have in hardware */
  struct share *share; /* what the peer makes it hold counts there */
  bool bare;           /* not enciphered: by MACs only */
  struct vault *vault; /* for such keys */
  /* The session, to be told: there is something to poll for; a frame for the
   * peer's half of the lane (LANE_FRAME_MAX bytes at most), in order. */
  struct perigee_session *session;
  void (*stir)(struct perigee_session *session);
  /* From now on the engine does not sleep over a change in what can be read
   * from or written to a descriptor; stirred() tells. 0, or not. */
  int (*watch)(struct perigee_session *session, int fd);
  /* Closes a descriptor that the engine may watch. */
  void (*close)(struct perigee_session *session, int fd);
  void (*tell)(struct perigee_session *session, const void *bytes,
               uint32_t length);
  /* Memory that the peer is to map (handing.c). file: a fresh memfd, or a
   * status. hand: the same as tell, with a descriptor, or -1, of what may be
   * said later: 0, and it is closed; PERIGEE_AGAIN: it did not go, and is still
   * the lane's. later: not now. After either both give PERIGEE_AGAIN at once,
   * until the session is polled as it may be had again. why: a text. */
  int (*file)(struct perigee_session *session, const char **why);
  int (*hand)(struct perigee_session *session, const void *bytes,
              uint32_t length, int fd, const char **why);
  void (*later)(struct perigee_session *session, const char *why);
  const int64_t *now; /* the engine's clock, as it was read last */
  /* Of blocks that are lent: the lane keeps memory that ebb may give back. Looks
   * are numbered, and a quarter of a second apart. */
  void (*keeps)(struct perigee_session *session);
  const uint32_t *look;
};

/* What ebb has left to do: nothing, something later, some more at once. */
enum ebb_left { EBB_NOTHING, EBB_SOME, EBB_MORE };

/* What a side tells the other while a session is set up. */
struct offer {
  uint8_t bytes[OFFER_MAX];
  uint32_t length;
  int fds[OFFER_FDS]; /* of a received offer: owned by whoever holds it */
  uint32_t fd_count;
  bool vouched; /* of a received one: the peer's process said it (peer.c) */
};

/* A payload made reachable for the peer under one operation of ours. */
struct exposure {
  struct source source;    /* for the record */
  struct payload *payload; /* what is fed from; NULL: nothing to feed */
  uint16_t operation;
  uint8_t part; /* 0: head, 1: slice */
  uint32_t generation;
  uint64_t fed;   /* bytes staged */
  uint64_t block; /* the transport's own: a staging block, or 0 */
  uint64_t held;  /* bytes of memory that this takes, if any */
};

/* Copies that a device does for a part or a transfer. All zero: none. */
struct job {
  uint32_t pending;      /* posted, and not completed */
  int status;            /* what went wrong first */
  uint64_t posted, done; /* bytes */
  int64_t ceasing;       /* since when it is to end; 0: it is not */
  uint16_t operation;    /* of the peer, whose mark is read after the bytes, */
  uint32_t generation;   /* or 0: no mark is read */
  uint32_t marks;        /* seen, and live */
};

/* Which bytes of a payload came: all before `first`, and stretches behind it
 * that came before others. */
struct cover {
  uint64_t first;
  struct stretch {
    uint64_t at, end;
  } * ahead;
  uint32_t count, room;
};

/* A payload of the peer, on its way to us. */
struct fetch {
  struct node node; /* the transport's own */
  struct source source;
  struct payload *into;
  uint16_t operation; /* the peer's, */
  uint8_t part;
  uint32_t generation; /* under which it is exposed */
  uint64_t total, done;
  bool careful;    /* others see the destination: not a byte goes there before
                      the mark was seen live after it was taken */
  uint8_t *bounce; /* by way of it, then; and to memory that no CPU touches */
  uint64_t bounced, put; /* bytes in it, and gone on from it */
  uint64_t stashed;      /* bytes that were kept because they came too early */
  struct cover cover;    /* where they come in any order */
  uint32_t marked;       /* how often the mark was asked for, behind bytes */
  /* Where a device fills the bounce block in two halves, by turns. */
  uint64_t half, ends[2];  /* bytes; of the payload, by half: where it ends */
  uint32_t asked, emptied; /* halves: ever read into, ever gone on */
  int64_t held;            /* by faults: until when */
  struct job job;
};

/* A region of the peer, as far as a transport can reach it by itself. */
struct window {
  uint32_t slot; /* the peer's region slot */
  uint64_t generation;
  uint64_t length;
  uint8_t *pointer; /* NULL: no CPU reaches it */
  bool keyed;       /* the peer has granted it to our device */
};

/* A region of ours as peers are told of it. */
struct grant {
  uint32_t slot;
  uint64_t generation;
  struct area *area;
  int access;
};

struct perigee_transport {
  const char *name;
  /* copy moves all that it is asked for, up to 64 KiB, before it returns. */
  bool immediate;
  /* Payloads are sent by their owner: a loan is exposed as all others are. */
  bool pushes;

  /* The fabric of an engine, made when first needed; all NULL: there is none.
   * turn takes in what the hardware has done, at each poll, for all lanes.
   * descriptors: at most capacity, to be watched; ready: one of them is. doze:
   * the engine is about to sleep; what turn does not find now, they tell.
   * forget: a range of an area is going; false: it is in use by the device. */
  int (*start)(const struct fabric_options *options, struct fabric **fabric,
               char reason[REASON]);
  void (*stop)(struct fabric *fabric);
  bool (*turn)(struct fabric *fabric);
  /* NULL, or why it can carry nothing more: it is to be stopped, as soon as it
   * is not used by lanes any more. NULL: that never happens. */
  const char *(*dead)(const struct fabric *fabric, bool *used);
  int (*descriptors)(struct fabric *fabric, int *fds, int capacity);
  void (*ready)(struct fabric *fabric);
  void (*doze)(struct fabric *fabric);
  bool (*forget)(struct fabric *fabric, struct area *area, uint64_t offset,
                 uint64_t length);

  /* Set-up: make this side's half and describe it; take the peer's half. The
   * descriptors in a received offer are the transport's to keep or close. With
   * a status goes a reason, or "". */
  int (*open)(const struct lane_options *options, struct lane **lane,
              struct offer *offer, char reason[REASON]);
  int (*join)(struct lane *lane, const struct offer *offer,
              char reason[REASON]);
  /* A frame of the peer's half; the descriptor, or -1, is the lane's. NULL: it
   * sends none. */
  int (*heard)(struct lane *lane, const void *bytes, uint32_t length, int fd);
  /* Alone: a session without a socket. All NULL: there has to be one.
   * say: a frame's bytes go to the peer, in order; 0, PERIGEE_AGAIN or
   * PERIGEE_PEER_LOST. hear: what came of such bytes, at most room. drained:
   * false while any that were said are under way; they are the last.
   * knock: of the two sides that have joined, nobody knows when, one calls
   * until met, the other keeps still until met. nudge: something goes to the
   * peer, unless something has since the last time; if it cannot be
   * delivered, the lane is broken. */
  int (*say)(struct lane *lane, const uint8_t *bytes, uint32_t length);
  uint32_t (*hear)(struct lane *lane, uint8_t *bytes, uint32_t room);
  bool (*drained)(struct lane *lane);
  void (*knock)(struct lane *lane);
  bool (*met)(const struct lane *lane);
  void (*nudge)(struct lane *lane);
  /* Over sockets. All NULL: over something else. take: the session's socket is
   * the lane's from here on, and what was read from it already; frames go by
   * say and hear. wants: how many more sockets between the two would be of use;
   * attach: one of them, by its number from 1 on. Taken or not, they are the
   * lane's to close. stirred: a watched descriptor has changed. traffic: bytes
   * sent and received so far. */
  int (*take)(struct lane *lane, int fd, const uint8_t *bytes, uint32_t length);
  uint32_t (*wants)(const struct lane *lane);
  int (*attach)(struct lane *lane, uint32_t number, int fd,
                const uint8_t *bytes, uint32_t length);
  void (*stirred)(struct lane *lane);
  void (*traffic)(const struct lane *lane, uint64_t *sent, uint64_t *received);
  /* At each poll of the session, before its records: what was published goes
   * out and what came is taken in; true if anything was. NULL: needless. */
  bool (*poll)(struct lane *lane);
  /* Is the lane broken? A status, and why. NULL: it never is. */
  int (*broken)(const struct lane *lane, const char **reason);
  /* Why memory could not be had of late; "": it could. NULL: nobody knows. */
  const char *(*trouble)(const struct lane *lane);
  /* The session has ended: from here on no device touches anybody's memory
   * for it, and every job is over. NULL: none ever does. */
  void (*cut)(struct lane *lane);
  /* A line for people: what carries it, and what it cannot do. NULL: none. */
  void (*describe)(const struct lane *lane, char *text, uint64_t size);
  /* After join: can payloads of the peer be pulled? And the peer's answer. */
  bool (*pulls)(const struct lane *lane);
  void (*set_peer_pulls)(struct lane *lane, bool pulls);
  void (*close)(struct lane *lane);

  /* Records to the peer: contiguous room or NULL (try after a poll), then
   * publish at most what was reserved. One reservation a ring at a time. */
  uint8_t *(*reserve)(struct lane *lane, enum ring ring, uint64_t length);
  void (*publish)(struct lane *lane, enum ring ring, uint64_t length);
  /* Records from the peer: 1 and the next one, 0, or a status. Its bytes stay
   * until release, which gives back all that peek has returned so far: true if
   * the peer was told of room that it may wait for. */
  int (*peek)(struct lane *lane, enum ring ring, const uint8_t **bytes,
              uint64_t *length);
  bool (*release)(struct lane *lane);

  /* Is an operation of ours (of the peer's) live? The word is readable by the
   * peer at any time, even if this process is stopped. 0: it is not. What was
   * fetched before live said so was the operation's own. over (NULL: needless)
   * tells a peer that may be waiting for an operation's mark to go. */
  void (*mark)(struct lane *lane, uint16_t operation, uint32_t generation);
  void (*over)(struct lane *lane, uint16_t operation, uint32_t generation);
  bool (*live)(struct lane *lane, uint16_t operation, uint32_t generation);

  /* Loans: blocks that the peer sees in place. PERIGEE_AGAIN: there is none
   * now, as others are lent or exposed; of expose, too. */
  int (*loan)(struct lane *lane, uint64_t length, uint8_t **pointer,
              struct source *source);
  void (*unloan)(struct lane *lane, const struct source *source);
  /* The source of bytes inside a loan, or false. */
  bool (*loaned)(struct lane *lane, const uint8_t *pointer, uint64_t length,
                 struct source *source);
  /* Where a peer's loan is seen in place; NULL: it has to be fetched. */
  const uint8_t *(*view)(struct lane *lane, const struct source *source);

  /* Does it know of what such a source lies in, or has it still to hear a frame
   * of the peer's half? NULL: it knows. */
  bool (*knows)(struct lane *lane, const struct source *source);
  /* Gives back to the system some of what is kept for blocks and was not used
   * between the last two looks, in a step that is short. NULL: all is kept. */
  enum ebb_left (*ebb)(struct lane *lane);
  /* Bytes that are kept for blocks, and nobody has. NULL: unknown. */
  uint64_t (*kept)(const struct lane *lane);

  int (*expose)(struct lane *lane, struct exposure *exposure,
                struct payload *payload);
  /* Steps: bytes moved, 0 when there is nothing to do now, or a status. */
  int64_t (*feed)(struct lane *lane, struct exposure *exposure);
  void (*conceal)(struct lane *lane, struct exposure *exposure);
  int64_t (*fetch)(struct lane *lane, struct fetch *fetch);
  /* False while something may still write to the fetch's destination. */
  bool (*fetch_end)(struct lane *lane, struct fetch *fetch);

  /* One-sided access to a peer's region. grant: ours is open to the peer, by
   * its right if there is one (true) or only on request; revoke: it is not any
   * more. inside: may the peer be in it? */
  bool (*grant)(struct lane *lane, const struct grant *grant);
  void (*revoke)(struct lane *lane, uint32_t slot);
  bool (*inside)(struct lane *lane, uint32_t slot);
  /* A step between local memory and the window, of which remote is a walk:
   * bytes moved, at most limit, or a status (PERIGEE_STALE); 0: under way, to
   * be called again with the same arguments. Local is memory
   * that the CPU may touch. */
  int64_t (*copy)(struct lane *lane, const struct window *window,
                  struct payload *remote, struct payload *local, uint64_t limit,
                  bool write);
  /* The same by a device; NULL if copy is the way. reaches: may it, for this
   * local memory? post: 1: all of the item is under way as part of the job, 0:
   * some of it (call again), or a status; the remote payload's base is an
   * offset. flush: what was posted starts. The
   * job has ended when pending is 0. cease: nothing of it is under way any
   * more; ask again until it is so, which takes a bounded time. */
  bool (*reaches)(struct lane *lane, const struct window *window,
                  const struct payload *local);
  int (*post)(struct lane *lane, struct job *job, const struct window *window,
              struct payload *remote, struct payload *local, bool write);
  void (*flush)(struct lane *lane);
  bool (*cease)(struct lane *lane, struct job *job);

  /* Sleeping. From arm on the peer wakes us (over the session's socket) for
   * whatever it does; what it did before, a poll after arm finds. wanted tells,
   * once for each time that the peer armed, that it has to be woken; it is
   * asked after each thing done for the peer. */
  void (*arm)(struct lane *lane);
  void (*disarm)(struct lane *lane);
  bool (*wanted)(struct lane *lane);
  /* Once armed, may the lane be left alone (no poll, peek or release) until the
   * peer wakes us, a watched descriptor stirs, or the lane asks to be polled by
   * stir()? Not while it has something to do that none of these tells. NULL: it
   * may never. */
  bool (*rests)(struct lane *lane);
};

extern const struct perigee_transport transport_shm, transport_verbs,
    transport_tcp;

static inline const struct perigee_transport *lane_table(struct lane *lane) {
  return ((struct lane_head *)lane)->transport;
}

#endif
