/* SPDX-License-Identifier: Apache-2.0
 *
 * lane.h - a transport's half of a session: what it begins with, what it is
 * opened with, and what it tells the peer's half.
 */
#ifndef TRANSPORT_LANE_H
#define TRANSPORT_LANE_H

#include "base/record.h"
#include "base/ring.h"
#include "base/shares.h"
#include "memory/memory.h"

enum ring { RING_REQUEST = 0, RING_REPLY = 1, RINGS = 2 };
enum { OFFER_MAX = 1024, OFFER_FDS = 4, LANE_FRAME_MAX = 256 };
enum { REASON = 240 };

struct fabric; /* what all lanes of an engine over one transport share */
struct lane;   /* defined by each transport; begins with struct lane_head */
struct fault_lane;
struct transport_records;
struct transport_payloads;
struct transport_sleep;
struct contexts;
/* Filled in by lane_by(). It holds what each record needs, to save a step
 * through the table. */
struct lane_head {
  const struct perigee_transport *transport;
  const struct transport_records *records;
  const struct transport_payloads *payloads;
  const struct transport_sleep *sleep;
  const _Atomic uint32_t *armed; /* the peer's word: 0 while it is awake; NULL:
                                    nobody but wanted() tells */
  /* The RINGS rings each way, where the functions of the table's records do
   * nothing but use these: the core then uses them itself. The transport has no
   * poll then, and needs release only once a record was peeked. Set by the
   * transport after lane_by(), which sets NULL, so that a table that wraps it
   * is asked. NULL: only the table's functions tell. */
  struct ring_in *in;
  struct ring_out *out;
  struct fault_lane *faults; /* injected on purpose; NULL: none */
  bool ending;   /* broken, as broken() tells: nothing more is begun */
  bool forsaken; /* set before close: the peer reads nothing any more, or it is
                    not to */
};

/* Options of a new fabric. */
struct fabric_options {
  uint32_t operations;
  struct area *pool; /* private blocks of the engine */
  const char *rdma;  /* perigee_options.rdma */
  int64_t (*clock)(void *context);
  void *context;
};

/* Options of a new lane. */
struct lane_options {
  struct fabric *fabric; /* NULL if the transport has none */
  uint64_t ring, pool;
  uint32_t operations; /* of this side; marks are for indexes below it */
  bool pull;           /* may the peer's memory be read directly? */
  int peer_pid;
  int peer_pidfd; /* the session's; -1: unknown */
  /* probe: what the peer's memory must contain before it is read (zeros: it is
   * not read). probed: what the peer wants to find in ours. */
  uint64_t probe[2], probed[2];
  uint64_t key;        /* random, shared by both sides */
  bool sized;          /* each side tells how large its staging blocks are */
  bool places;         /* each side reads lists of places of private memory */
  bool moves;          /* each side follows rings that move */
  bool windows;        /* each side pulls what a short staging block lacks */
  bool pairs;          /* each side takes words with two descriptors */
  bool alone;          /* no socket: the group "alone" will be used */
  bool dialed;         /* this side dialed the session */
  bool here;           /* its socket is one of TCP within this host */
  uint32_t streams;    /* number of sockets for payloads, if it uses sockets */
  bool heals;          /* both sides give up a socket for payloads that is
                          silent, and attach another in its place */
  int64_t patience;    /* ns for which such a socket may be silent; 0: without
                          an end */
  const uint8_t *seal; /* key of 32 bytes that only the two sides know, to seal
                          everything with; NULL: nothing is sealed */
  bool aes;            /* both sides have AES in hardware */
  struct share *share; /* counts what the peer makes the lane hold */
  bool bare;           /* with seal: MACs only, not enciphered */
  struct vault *vault; /* memory for derived keys */
  /* The session. activate: there is something to poll for. tell: sends a
   * frame of at most LANE_FRAME_MAX bytes to the peer's half of the lane,
   * in order. If the peer does not take it, that is a status, and the lane
   * breaks: the session does not end in the midst of what the lane does. soon:
   * this poll met something to wait for that wakes nobody, so the engine does not
   * sleep for long before the next one. */
  struct perigee_session *session;
  void (*activate)(struct perigee_session *session);
  void (*soon)(struct perigee_session *session);
  /* Has changes of a descriptor end the engine's sleep, and tell
   * socket_ready(). 0, or -1. */
  int (*watch)(struct perigee_session *session, int fd);
  /* Closes a descriptor that the engine may watch. */
  void (*close)(struct perigee_session *session, int fd);
  /* The same, for one that was attached (transport_sockets). */
  void (*detach)(struct perigee_session *session, int fd);
  int (*tell)(struct perigee_session *session, const void *bytes,
              uint32_t length);
  /* Memory that the peer is to map (socket.c). file: returns a fresh memfd, or
   * a status. hand: as tell, with a descriptor or -1; returns 0, and the
   * descriptor is closed; or PERIGEE_AGAIN, and it is still the lane's. later:
   * not now. After PERIGEE_AGAIN both fail at once, until the session is polled
   * again because it may succeed. why: a text. */
  int (*file)(struct perigee_session *session, const char **why);
  int (*hand)(struct perigee_session *session, const void *bytes,
              uint32_t length, int fd, const char **why);
  /* As hand, with two descriptors, which stay the lane's. Of an additional lane
   * whose session has `pairs`. */
  int (*hand_pair)(struct perigee_session *session, const void *bytes,
                   uint32_t length, const int fds[2], const char **why);
  void (*later)(struct perigee_session *session, const char *why);
  /* How much a poll copies (base/budget.h): the most in one go; and that so many
   * bytes were copied other than as the result of a step (groups.h), which is
   * true once the poll has taken its time. spend: a step took as long as a copy of
   * so many bytes more than it has moved; the poll copies less. */
  const uint64_t *piece;
  bool (*overdue)(struct perigee_session *session, uint64_t bytes);
  void (*spend)(struct perigee_session *session, uint64_t bytes);
  const int64_t *now;              /* the engine's clock, as it was last read */
  int64_t (*clock)(void *context); /* reads it */
  void *context;
  struct contexts *memories; /* the engine's, by kind and device */
  /* keeps: tells that the lane keeps memory for later, which trim may give
   * back. *look is the number of the last look; looks are a quarter of a second
   * apart. */
  void (*keeps)(struct perigee_session *session);
  const uint32_t *look;
};

/* Trim has left to do: nothing; something at a later look; more at once. */
enum trim_left { TRIM_NOTHING, TRIM_SOME, TRIM_MORE };

/* A transport's half of a lane, as it is told to the peer. */
struct offer {
  uint8_t bytes[OFFER_MAX];
  uint32_t length;
  int fds[OFFER_FDS]; /* of a received offer: the holder owns them */
  uint32_t fd_count;
  bool vouched; /* of a received one: the peer's process said it (peer.c) */
};

/* ---- What a lane moves --------------------------------------------------- */

/* What a lane moves, as the core and the transport know it both: an
 * exposed payload, a payload that is fetched, a device's job, a region of ours
 * and one of the peer. */

/* Bytes of private areas of transports. */
enum { EXPOSURE_OWN = 24, FETCH_OWN = 112, WINDOW_OWN = 8 };

/* A payload of an operation of ours that the peer can reach. */
struct exposure {
  struct source source;    /* for the record */
  struct payload *payload; /* to be fed from; NULL: nothing to feed */
  uint16_t operation;
  uint8_t part; /* 0: head, 1: slice */
  bool at_once; /* by expose: a feed behind the record mostly moves all of it */
  uint32_t generation;
  uint64_t fed;       /* bytes staged or sent so far */
  uint64_t footprint; /* bytes of memory that the exposure takes */
  /* Private area of the transport, zeroed before expose. It is of characters,
   * which may alias whatever the transport puts there. */
  _Alignas(8) unsigned char own[EXPOSURE_OWN];
};

/* Copies that a device does for a part or a transfer. All zero: none. */
struct job {
  uint32_t pending;      /* work requests posted and not completed */
  int status;            /* the first error */
  uint64_t posted, done; /* bytes */
  int64_t quiescing;     /* when quiesce was first called; 0: never */
  uint16_t operation;    /* of the peer: its mark is read after the bytes */
  uint32_t generation;   /* of that operation; 0: no mark is read */
  uint32_t marks;        /* marks that were read and live */
  bool apart;            /* no two of its items write to the same place */
};

/* A payload of the peer that is being brought here. */
struct fetch {
  struct source source;
  struct payload *into;
  uint16_t operation; /* of the peer */
  uint8_t part;
  uint32_t generation; /* under which it is exposed */
  uint64_t total, done;
  /* Others can see the destination: a byte goes there only after a mark was
   * found live that was read after the byte was. */
  bool careful;
  int64_t delayed_until; /* by fault injection */
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

/* Our lane's word about such a region to the peer's, as a packed rkey is in
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

#endif
