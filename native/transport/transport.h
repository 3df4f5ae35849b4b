/* SPDX-License-Identifier: Apache-2.0
 *
 * transport.h - the tables that a transport fills: perigee_transport, and one
 * for each group of things that it does. A transport carries records, payloads
 * and one-sided copies for one session, in a lane that it makes; it knows
 * nothing of calls. All functions are non-blocking; those that move bytes are
 * steps, repeated by the core's poll until they are done, so that a copy by the
 * CPU and a NIC's work queue look the same.
 *
 * Order: a record is seen after everything that was done on the lane before
 * it was published.
 */
#ifndef PERIGEE_TRANSPORT_H
#define PERIGEE_TRANSPORT_H

#include "base/record.h"
#include "base/shares.h"
#include "memory/memory.h"

enum ring { RING_REQUEST = 0, RING_REPLY = 1, RINGS = 2 };
enum { OFFER_MAX = 1024, OFFER_FDS = 4, LANE_FRAME_MAX = 256 };
enum { REASON = 240 };

struct fabric; /* what all lanes of an engine over one transport share */
struct lane;   /* each transport's own; begins with struct lane_head */
struct fault_lane;
struct transport_records;
struct transport_payloads;
struct transport_sleep;
/* Filled by lane_by(). What each record needs is here, too, so that it is as
 * near as the table itself. */
struct lane_head {
  const struct perigee_transport *transport;
  const struct transport_records *records;
  const struct transport_payloads *payloads;
  const struct transport_sleep *sleep;
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
  void (*activate)(struct perigee_session *session);
  /* From now on the engine does not sleep over a change in what can be read
   * from or written to a descriptor; socket_ready() tells. 0, or not. */
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
  /* Of blocks that are lent: the lane keeps memory that trim may give back. Looks
   * are numbered, and a quarter of a second apart. */
  void (*keeps)(struct perigee_session *session);
  const uint32_t *look;
};

/* What trim has left to do: nothing, something later, some more at once. */
enum trim_left { TRIM_NOTHING, TRIM_SOME, TRIM_MORE };

/* What a side tells the other while a session is set up. */
struct offer {
  uint8_t bytes[OFFER_MAX];
  uint32_t length;
  int fds[OFFER_FDS]; /* of a received offer: owned by whoever holds it */
  uint32_t fd_count;
  bool vouched; /* of a received one: the peer's process said it (peer.c) */
};

/* Bytes for the transport's own use in what follows. */
enum { EXPOSURE_OWN = 16, FETCH_OWN = 112, WINDOW_OWN = 8 };

/* A payload made reachable for the peer under one operation of ours. */
struct exposure {
  struct source source;    /* for the record */
  struct payload *payload; /* what is fed from; NULL: nothing to feed */
  uint16_t operation;
  uint8_t part; /* 0: head, 1: slice */
  uint32_t generation;
  uint64_t fed;       /* bytes staged or sent */
  uint64_t footprint; /* bytes of memory that this takes, if any */
  /* The transport's own, zeros before expose. Bytes, as these alias whatever it
   * has there. */
  _Alignas(8) unsigned char own[EXPOSURE_OWN];
};

/* Copies that a device does for a part or a transfer. All zero: none. */
struct job {
  uint32_t pending;      /* posted, and not completed */
  int status;            /* what went wrong first */
  uint64_t posted, done; /* bytes */
  int64_t quiescing;     /* since when it is to end; 0: it is not */
  uint16_t operation;    /* of the peer, whose mark is read after the bytes, */
  uint32_t generation;   /* or 0: no mark is read */
  uint32_t marks;        /* seen, and live */
};

/* A payload of the peer, on its way to us. */
struct fetch {
  struct source source;
  struct payload *into;
  uint16_t operation; /* the peer's, */
  uint8_t part;
  uint32_t generation; /* under which it is exposed */
  uint64_t total, done;
  bool careful; /* others see the destination: not a byte goes there before the
                   mark was seen live after it was taken */
  int64_t delayed_until; /* by faults: until when */
  /* The transport's own, as in an exposure; zeros before the first step. */
  _Alignas(8) unsigned char own[FETCH_OWN];
};

/* A region of ours, for the peer. */
struct grant {
  uint32_t slot;
  uint64_t generation;
  struct area *area;
  int access; /* enum perigee_access */
  int file;   /* a memfd, of sealed size, that begins with its bytes; or -1 */
};

/* What our lane says of such a region to the peer's, as a packed rkey does in
 * UCX: bytes and descriptors that nobody between the two looks into. */
enum { KEY_MAX = 128, KEY_FDS = 4 };
struct region_key {
  uint8_t bytes[KEY_MAX];
  uint32_t length;
  uint32_t fd_count;
  int fds[KEY_FDS];
};

/* A region of the peer: what the peer has said of it, and what attach made of
 * its key. */
struct window {
  uint32_t slot; /* the peer's region slot */
  int access;
  uint64_t generation;
  uint64_t length;
  uint8_t *pointer; /* NULL: no CPU reaches it */
  bool attached;    /* the lane reaches it by itself */
  /* The transport's own, as in an exposure; zeros before attach. */
  _Alignas(8) unsigned char own[WINDOW_OWN];
};

/* ---- What a transport may do ---------------------------------------------
 *
 * Each group of functions is a table of its own. A transport that does not do
 * what a group is for has NULL in its place, and the core asks for the group,
 * not for its functions: within a group all are there, but for those that say
 * what their absence means. */

/* Fabric: what all lanes of an engine share, such as devices, queues and
 * registered memory. It is made when a session first needs it and stopped with
 * the engine. turn takes in what the hardware has done, at each poll, for all
 * lanes; true if there was anything. descriptors gives at most capacity of
 * them, to be watched; ready is called when one of them is. arm comes before
 * the engine sleeps: what turn does not find from then on, a descriptor tells.
 * dead tells why the fabric can carry nothing more, or NULL: it is stopped as
 * soon as no lane uses it. forget is told that a range of an area is going, and
 * returns false while the device still uses it.
 * Absent: lanes share nothing. */
struct transport_fabric {
  int (*start)(const struct fabric_options *options, struct fabric **fabric,
               char reason[REASON]);
  void (*stop)(struct fabric *fabric);
  bool (*turn)(struct fabric *fabric);
  const char *(*dead)(const struct fabric *fabric, bool *used);
  int (*descriptors)(struct fabric *fabric, int *fds, int capacity);
  void (*ready)(struct fabric *fabric);
  void (*arm)(struct fabric *fabric);
  bool (*forget)(struct fabric *fabric, struct area *area, uint64_t offset,
                 uint64_t length);
};

/* Records: requests and replies, in order, by one ring for each. reserve gives
 * contiguous room in the peer's ring, or NULL (try again after a poll); publish
 * sends at most what was reserved; one reservation a ring at a time. peek gives
 * 1 and the next record that came, 0, or a status. Its bytes stay until release,
 * which gives back all that peek has returned so far, and tells whether the peer
 * heard of room that it may wait for.
 * Absent: the lane cannot be the one that a session begins with. */
struct transport_records {
  uint8_t *(*reserve)(struct lane *lane, enum ring ring, uint64_t length);
  void (*publish)(struct lane *lane, enum ring ring, uint64_t length);
  int (*peek)(struct lane *lane, enum ring ring, const uint8_t **bytes,
              uint64_t *length);
  bool (*release)(struct lane *lane);
};

/* Payloads: what does not fit into a record goes from the owner's memory to the
 * receiver's in steps, as long as the operation that it belongs to is marked.
 *
 * mark tells whether an operation of ours is live, by its generation (0: it is
 * not), in a word that the peer can read at any time, even if this process is
 * stopped; live reads the peer's. What was fetched before live said so was the
 * operation's own. over tells a peer that may wait for a mark to go (NULL:
 * needless, as it looks by itself).
 *
 * The owner: expose makes a payload reachable and fills in the source for the
 * record, or returns PERIGEE_AGAIN while all there is for that is in use; feed is
 * a step; conceal takes the payload back. The receiver: fetch is a step;
 * fetch_end returns false while something may still write to the destination.
 * Steps return the bytes moved, 0 if there is nothing to do now, or a status.
 *
 * pushes: the owner sends, a lent block like all others, and the receiver reads
 * from no memory of the peer's. pulls, after join: may this side read from the
 * peer's private memory? set_peer_pulls: the peer's answer. Both NULL: that makes
 * no difference.
 * Absent: the lane cannot be the one that a session begins with. */
struct transport_payloads {
  bool pushes;
  void (*mark)(struct lane *lane, uint16_t operation, uint32_t generation);
  void (*ended)(struct lane *lane, uint16_t operation, uint32_t generation);
  bool (*live)(struct lane *lane, uint16_t operation, uint32_t generation);
  int (*expose)(struct lane *lane, struct exposure *exposure,
                struct payload *payload);
  int64_t (*feed)(struct lane *lane, struct exposure *exposure);
  void (*conceal)(struct lane *lane, struct exposure *exposure);
  int64_t (*fetch)(struct lane *lane, struct fetch *fetch);
  bool (*fetch_end)(struct lane *lane, struct fetch *fetch);
  bool (*pulls)(const struct lane *lane);
  void (*set_peer_pulls)(struct lane *lane, bool pulls);
};

/* Loans: blocks that one side fills and the peer sees in place. loan lends one,
 * or returns PERIGEE_AGAIN while others are lent or exposed; unloan gives it
 * back. loaned gives the source of bytes that lie inside of one, or false. view
 * tells where a loan of the peer's is seen, or NULL if it has to be fetched.
 * knows: is what such a source lies in known here, or does the frame that tells
 * of it still have to come? (NULL: it is known.)
 * Absent: the lane cannot be the one that a session begins with. */
struct transport_loans {
  int (*loan)(struct lane *lane, uint64_t length, uint8_t **pointer,
              struct source *source);
  void (*unloan)(struct lane *lane, const struct source *source);
  bool (*loaned)(struct lane *lane, const uint8_t *pointer, uint64_t length,
                 struct source *source);
  const uint8_t *(*view)(struct lane *lane, const struct source *source);
  bool (*knows)(struct lane *lane, const struct source *source);
};

/* Kept memory: what a lane keeps for blocks that nobody has now. trim gives back
 * to the system some of what was not used between the last two looks, in a step
 * that is short; bytes tells how much is kept. lane_options.keeps asks for it.
 * Absent: the lane keeps nothing, or never gives it back. */
struct transport_kept {
  enum trim_left (*trim)(struct lane *lane);
  uint64_t (*bytes)(const struct lane *lane);
};

/* Access: one-sided access to regions without help of their owner, by keys.
 *
 * The owner's lane: export opens a region of ours to the peer, with its rights
 * and no more, and writes the key, or gives a status: the peer has to ask for
 * each access. It may be exported again; the key's descriptors stay the
 * owner's. revoke ends that: who copies by such a key from then on gets
 * PERIGEE_STALE, whichever region has the slot. inside, after revoke, tells
 * whether a copy that began before may still be under way.
 *
 * The peer's lane: attach makes a window, of which slot, generation, length and
 * access are filled in, reachable by its key. A key is the peer's word, and each
 * byte and descriptor of it is checked. PERIGEE_PROTOCOL: no lane of this kind
 * writes such a key for such a window; PERIGEE_NO_MEMORY: there is no room for
 * it, here or in the peer's share, where all that attach takes counts. The
 * descriptors are the caller's to close. detach, before the lane is closed, lets
 * go of all that attach took (NULL: that is nothing).
 * Absent: this side reads and writes for the peer, on request. */
struct transport_access {
  int (*export)(struct lane *lane, const struct grant *grant,
                struct region_key *key);
  void (*revoke)(struct lane *lane, uint32_t slot);
  bool (*inside)(struct lane *lane, uint32_t slot);
  int (*attach)(struct lane *lane, struct window *window,
                const struct region_key *key);
  void (*detach)(struct lane *lane, struct window *window);
};

/* Copies: the CPU copies between local memory that it may touch and a window of
 * which remote is a walk. A step returns the bytes moved, at most limit; 0 while
 * one is under way (call again with the same arguments); or a status, such as
 * PERIGEE_STALE. immediate: a step moves all that it is asked for, up to 64 KiB.
 * Absent: windows are reached by jobs, or by the peer on request. */
struct transport_copies {
  bool immediate;
  int64_t (*copy)(struct lane *lane, const struct window *window,
                  struct payload *remote, struct payload *local, uint64_t limit,
                  bool write);
};

/* Jobs: a device copies between local memory and a window. reaches: can it, for
 * this local memory? post returns 1 if all of the item is under way as part of
 * the job, 0 if some of it is (call again), or a status; remote's base is an
 * offset. flush starts what was posted. A job has ended when its pending is 0;
 * quiesce returns true once nothing of it is under way any more: ask again until
 * then, which takes a bounded time.
 * Absent: no device copies. */
struct transport_jobs {
  bool (*reaches)(struct lane *lane, const struct window *window,
                  const struct payload *local);
  int (*post)(struct lane *lane, struct job *job, const struct window *window,
              struct payload *remote, struct payload *local, bool write);
  void (*flush)(struct lane *lane);
  bool (*quiesce)(struct lane *lane, struct job *job);
};

/* Sleeping. From arm on the peer wakes us, over the session's socket, for
 * whatever it does; what it did before, a poll after arm finds. disarm ends
 * that. wanted tells, once for each time that the peer armed, that it has to be
 * woken; it is asked after each thing done for the peer.
 * Absent: whatever the peer does wakes us, by a watched descriptor. */
struct transport_sleep {
  void (*arm)(struct lane *lane);
  void (*disarm)(struct lane *lane);
  bool (*wanted)(struct lane *lane);
};

/* Frames: the lane carries those of the session, instead of a socket of the
 * session's: from take on (sockets), or from the beginning (alone). say sends a
 * frame's bytes to the peer, in order: 0, PERIGEE_AGAIN or PERIGEE_PEER_LOST. hear
 * gives what came of such bytes, at most room. drained returns false while any
 * that were said are under way; nothing is said after it was asked.
 * Absent: the session keeps its socket. */
struct transport_frames {
  int (*say)(struct lane *lane, const uint8_t *bytes, uint32_t length);
  uint32_t (*hear)(struct lane *lane, uint8_t *bytes, uint32_t room);
  bool (*drained)(struct lane *lane);
};

/* Sockets: the lane works over sockets of the session. take: the session's
 * socket is the lane's from here on, with what was read from it already. wants
 * tells how many more sockets to the peer would be of use; attach gives it one,
 * by its number from 1 on. Taken or not, they are the lane's to close. socket_ready:
 * a watched descriptor has changed. traffic: bytes sent and received so far.
 * Goes with frames. Absent: the lane works over something else. */
struct transport_sockets {
  int (*take)(struct lane *lane, int fd, const uint8_t *bytes, uint32_t length);
  uint32_t (*wants)(const struct lane *lane);
  int (*attach)(struct lane *lane, uint32_t number, int fd,
                const uint8_t *bytes, uint32_t length);
  void (*socket_ready)(struct lane *lane);
  void (*traffic)(const struct lane *lane, uint64_t *sent, uint64_t *received);
};

/* Alone: sessions without any socket. Neither side knows when the other has
 * joined: the active side calls probe until met is true, the passive side stays
 * silent until met is. keepalive sends something to the peer, unless something went
 * since the last time; if it cannot be delivered, the lane breaks.
 * Goes with frames. Absent: there has to be a socket. */
struct transport_alone {
  void (*probe)(struct lane *lane);
  bool (*met)(const struct lane *lane);
  void (*keepalive)(struct lane *lane);
};

struct perigee_transport {
  const char *name;
  const struct transport_fabric *fabric;
  const struct transport_records *records;
  const struct transport_payloads *payloads;
  const struct transport_loans *loans;
  const struct transport_kept *kept;
  const struct transport_access *access;
  const struct transport_copies *copies;
  const struct transport_jobs *jobs;
  const struct transport_sleep *sleep;
  const struct transport_frames *frames;
  const struct transport_sockets *sockets;
  const struct transport_alone *alone;

  /* The lane. open makes this side's half and describes it; join takes the
   * peer's half. The descriptors in a received offer are the transport's to keep
   * or close. With a status goes a reason, or "". */
  int (*open)(const struct lane_options *options, struct lane **lane,
              struct offer *offer, char reason[REASON]);
  int (*join)(struct lane *lane, const struct offer *offer,
              char reason[REASON]);
  void (*close)(struct lane *lane);
  /* A frame of the peer's half; the descriptor, or -1, is the lane's. NULL: it
   * sends none. */
  int (*heard)(struct lane *lane, const void *bytes, uint32_t length, int fd);
  /* At each poll of the session, before its records: what was published goes
   * out and what came is taken in; true if anything was. NULL: needless. */
  bool (*poll)(struct lane *lane);
  /* Once armed, may the lane be left alone (no poll, peek or release) until the
   * peer wakes us, a watched descriptor stirs, or the lane asks to be polled by
   * stir()? Not while it has something to do that none of these tells. NULL: it
   * may never. */
  bool (*rests)(struct lane *lane);
  /* Is the lane broken? A status, and why. NULL: it never is. */
  int (*broken)(const struct lane *lane, const char **reason);
  /* Why memory could not be had of late; "": it could. NULL: nobody knows. */
  const char *(*trouble)(const struct lane *lane);
  /* The session has ended: from here on no device touches anybody's memory
   * for it, and every job is over. NULL: none ever does. */
  void (*cut)(struct lane *lane);
  /* A line for people: what carries it, and what it cannot do. NULL: none. */
  void (*describe)(const struct lane *lane, char *text, uint64_t size);
};

extern const struct perigee_transport transport_shm, transport_verbs,
    transport_tcp;

/* Gives a lane its table: its transport's, or what is put around that. */
void lane_by(struct lane *lane, const struct perigee_transport *transport);

static inline const struct perigee_transport *lane_table(struct lane *lane) {
  return ((struct lane_head *)lane)->transport;
}

static inline const struct transport_records *lane_records(struct lane *lane) {
  return ((struct lane_head *)lane)->records;
}

static inline const struct transport_payloads *
lane_payloads(struct lane *lane) {
  return ((struct lane_head *)lane)->payloads;
}

static inline const struct transport_sleep *lane_sleep(struct lane *lane) {
  return ((struct lane_head *)lane)->sleep;
}

/* Are payloads of the peer pulled from where they lie? */
static inline bool lane_pulls(struct lane *lane) {
  const struct transport_payloads *p = lane_payloads(lane);
  return p->pulls ? p->pulls(lane) : !p->pushes;
}

#endif
