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

#include "memory/memory.h"
#include "record.h"

enum ring { RING_REQUEST = 0, RING_REPLY = 1, RINGS = 2 };
enum { OFFER_MAX = 1024, OFFER_FDS = 4 };

struct lane; /* each transport's own; begins with struct lane_head */
struct lane_head {
  const struct perigee_transport *transport;
};

/* What a lane is made with. */
struct lane_options {
  uint64_t ring, pool;
  uint32_t operations; /* of this side: indexes below it are marked */
  bool pull;           /* may the peer's memory be read directly? */
  int peer_pid;
  int peer_pidfd; /* -1: unknown; the session's */
  /* A word of the peer's memory and what it holds, to try pulling with. */
  uint64_t probe_address, probe_value;
  uint64_t key; /* random, shared by both sides */
};

/* What a side tells the other while a session is set up. */
struct offer {
  uint8_t bytes[OFFER_MAX];
  uint32_t length;
  int fds[OFFER_FDS]; /* of a received offer: owned by whoever holds it */
  uint32_t fd_count;
};

/* A payload made reachable for the peer under one operation of ours. */
struct exposure {
  struct source source;    /* for the record */
  struct payload *payload; /* what is fed from; NULL: nothing to feed */
  uint16_t operation;
  uint8_t part; /* 0: head, 1: slice */
  uint32_t generation;
  uint64_t fed;   /* bytes staged */
  uint64_t block; /* staging block + 1, or 0 */
};

/* A payload of the peer, on its way to us. */
struct fetch {
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
  bool started;
};

/* A region of the peer, as far as a transport can reach it by itself. */
struct window {
  uint32_t slot; /* the peer's region slot */
  uint64_t generation;
  uint64_t length;
  uint8_t *pointer; /* NULL: reached by request only */
};

struct perigee_transport {
  const char *name;
  /* copy moves all that it is asked for, up to 64 KiB, before it returns. */
  bool immediate;

  /* Set-up: make this side's half and describe it; take the peer's half. The
   * descriptors in a received offer are the transport's to keep or close. */
  int (*open)(const struct lane_options *options, struct lane **lane,
              struct offer *offer);
  int (*join)(struct lane *lane, const struct offer *offer);
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
   * fetched before peer_mark said "live" was the operation's own. */
  void (*mark)(struct lane *lane, uint16_t operation, uint32_t generation);
  uint32_t (*peer_mark)(struct lane *lane, uint16_t operation);

  /* Loans: blocks that the peer sees in place. */
  int (*loan)(struct lane *lane, uint64_t length, uint8_t **pointer,
              struct source *source);
  void (*unloan)(struct lane *lane, const struct source *source);
  /* The source of bytes inside a loan, or false. */
  bool (*loaned)(struct lane *lane, const uint8_t *pointer, uint64_t length,
                 struct source *source);
  /* Where a peer's loan is seen in place; NULL: it has to be fetched. */
  const uint8_t *(*view)(struct lane *lane, const struct source *source);

  int (*expose)(struct lane *lane, struct exposure *exposure,
                struct payload *payload);
  /* Steps: bytes moved, 0 when there is nothing to do now, or a status. */
  int64_t (*feed)(struct lane *lane, struct exposure *exposure);
  void (*conceal)(struct lane *lane, struct exposure *exposure);
  int64_t (*fetch)(struct lane *lane, struct fetch *fetch);
  /* False while something may still write to the fetch's destination. */
  bool (*fetch_end)(struct lane *lane, struct fetch *fetch);

  /* One-sided access to a peer's region. grant: our region slot is open to the
   * peer under a generation (0: closed). inside: may the peer be in it? */
  void (*grant)(struct lane *lane, uint32_t slot, uint64_t generation);
  bool (*inside)(struct lane *lane, uint32_t slot);
  /* A step between local memory and the window, of which remote is a walk:
   * bytes moved, at most limit, or a status (PERIGEE_STALE); 0: under way, to
   * be called again with the same arguments. Local is memory
   * that the CPU may touch. */
  int64_t (*copy)(struct lane *lane, const struct window *window,
                  struct payload *remote, struct payload *local, uint64_t limit,
                  bool write);

  /* Sleeping. From arm on the peer wakes us (over the session's socket) for
   * whatever it does; what it did before, a poll after arm finds. wanted tells,
   * once for each time that the peer armed, that it has to be woken; it is
   * asked after each thing done for the peer. */
  void (*arm)(struct lane *lane);
  void (*disarm)(struct lane *lane);
  bool (*wanted)(struct lane *lane);
};

extern const struct perigee_transport transport_shm;

static inline const struct perigee_transport *lane_table(struct lane *lane) {
  return ((struct lane_head *)lane)->transport;
}

#endif
