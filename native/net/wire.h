/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.h - frames on a session's socket: u32 length of the body, u16 type, u16
 * zero, body. Little-endian, fixed layouts; descriptors travel with the first
 * byte of the frame that announces them.
 *
 *   HELLO   versions, nonces and keys, to anybody; over TCP who dialed first.
 *           The only frame, with ATTACH, that a stranger may send
 *   RETRY   over TCP, instead of HELLO: say yours again, with this cookie
 *   PROOF   over TCP, after both HELLOs: of the secret; who was dialed first
 *   TERMS   what a side is and wants, to a peer that is known
 *   OFFER   the transport's half (descriptors); after the peer's TERMS
 *   READY   the peer's half is in place; u32 pull follows
 *   REFUSE  status and reason; the session ends
 *   WAKE    the peer sleeps and there is something for it
 *   LOOKUP  which region has this name?
 *   FOUND   that one, with a key for each lane that reaches it (see below)
 *   BYE     closed in order
 *   LANE    from one half of the transport to the other, with a descriptor or
 *           none; after OFFER
 *   ATTACH  instead of HELLO: this connection is one more stream of a session
 *   PING    nothing, so that something is heard
 *   MOVE    instead of OFFER: dial there, with a ticket (migrate.h)
 *
 * FOUND: what stands in struct found up to `keys`; then, for each key, u8 lane,
 * u8 descriptors, u16 length and so many bytes; lanes in order, each once. All
 * the descriptors come with the frame, in order. A key of the first lane that has
 * no bytes, where there is no other, is not written: its descriptors, or keys,
 * tell that it is there.
 *
 * HELLO begins in every version with magic and versions. Where no version is
 * common to both sides, nothing else of it is looked at.
 *
 * Over TCP every frame that a side says after its PROOF is one chunk (seal.h),
 * in every mode, until the lane takes the socket; where it takes none, always.
 */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "security/handshake.h"
#include "security/seal.h"
#include "transport/transport.h"

enum frame_type {
  FRAME_HELLO = 1,
  FRAME_OFFER,
  FRAME_READY,
  FRAME_REFUSE,
  FRAME_WAKE,
  FRAME_LOOKUP,
  FRAME_FOUND,
  FRAME_BYE,
  FRAME_LANE,
  FRAME_PROOF,
  FRAME_ATTACH,
  FRAME_PING,
  FRAME_MOVE,
  FRAME_TERMS,
  FRAME_RETRY,
  FRAME_TYPES
};

enum { FRAME_HEAD = 8, FRAME_BODY = 1280, WIRE_FDS = 4, WIRE_OUT = 64 << 10 };
enum { WIRE_ROOM = SEAL_CHUNK(FRAME_HEAD + FRAME_BODY) };
enum { TRANSPORT_NAME = 16, TRANSPORTS_MAX = 8, REFUSE_TEXT = 240 };
/* Bytes: of the name for peers on this host; of magic and versions. */
enum { HELLO_LOCAL = 16, HELLO_VERSIONS = 16, COOKIE = 16 };
enum { REGION_NAME = 255, FOUND_KEYS = 4 }; /* a lane's at most once */
enum { TERMS_NAME = 72 }; /* PERIGEE_NAME_MAX and a zero, and more */
enum { PROTOCOL_MIN = 4, PROTOCOL_MAX = 4 };
#define HELLO_MAGIC UINT64_C(0x3165656769726570) /* "perigee1" */

struct hello {
  uint64_t magic;
  uint32_t version_min, version_max;
  uint64_t nonce;
  uint64_t ticket; /* whose key is the secret here; 0: none */
  /* Over TCP; else zeros. */
  uint8_t challenge[HANDSHAKE_CHALLENGE], public_key[HANDSHAKE_KEY];
  uint8_t cookie[COOKIE]; /* of RETRY, if there was one (cookie.c) */
};

enum terms_flags {
  TERMS_ENCRYPT = 1, /* this side wants all to be sealed, */
  TERMS_AUTH = 2,    /* or all to have MACs, */
  TERMS_STRICT = 4,  /* and no session without (not by default); */
  TERMS_AES = 8,     /* it has AES in hardware, */
  TERMS_STAYS = 16   /* and wants no MOVE */
};

struct terms {
  uint64_t epoch, features; /* bits of features.h */
  uint64_t ring, eager, message, typed;
  uint64_t probe[2]; /* over Unix: to be found in the peer's memory; over TCP:
                        who dialed is one agent by this (migrate.c), or 0 */
  uint32_t operations, transports;
  char transport[TRANSPORTS_MAX][TRANSPORT_NAME];
  uint8_t local[HELLO_LOCAL]; /* by what it can be found if on the same host */
  uint32_t user, flags;
  uint32_t dead_after, zero; /* ms: silent for so long is lost to this side */
  char name[TERMS_NAME];     /* that it goes by, or "" */
};

struct retry {
  uint8_t cookie[COOKIE];
};

struct attach {
  uint64_t session; /* the nonce of the HELLO of who was dialed */
  uint32_t index, zero;
  uint8_t mac[HANDSHAKE_MAC];
};

struct move {
  uint64_t ticket;
  uint8_t key[SECRET_KEY]; /* what is proven there */
  uint32_t port, zero;     /* of loopback; 0: the Unix socket of HELLO's name */
};

struct refuse {
  int32_t status;
  char text[REFUSE_TEXT];
};

struct lookup {
  uint32_t operation, generation;
  char name[REGION_NAME + 1];
};

struct found_key {
  uint32_t lane;         /* by its place among those of the session */
  struct region_key key; /* without its descriptors, but for their number */
};

struct found {
  uint32_t operation, generation;
  int32_t status;
  uint32_t slot;
  uint64_t region, length; /* region: its generation */
  uint32_t access;
  uint16_t fds, keys; /* descriptors of all keys; how many of these there are */
  struct found_key key[FOUND_KEYS];
};

/* A frame as decoded: texts end in 0, counts fit. */
struct frame {
  uint16_t type;
  union {
    struct hello hello;
    struct terms terms;
    struct retry retry;
    struct offer offer; /* without its descriptors */
    uint32_t pull;
    struct refuse refuse;
    struct lookup lookup;
    struct found found;
    uint8_t proof[HANDSHAKE_MAC];
    struct attach attach;
    struct move move;
    struct {
      uint16_t length, fds;
      uint8_t bytes[LANE_FRAME_MAX];
    } lane;
  };
};

/* What has come and was not decoded yet. */
struct wire {
  uint8_t bytes[WIRE_ROOM];
  uint32_t length;
  int fds[WIRE_FDS];
  uint32_t fd_count;
  uint8_t *out; /* what waits to go: WIRE_OUT bytes, or NULL while none does */
  uint32_t out_from, out_end;
  bool corked; /* what is posted waits, to go at once */
  struct seal *seal_in,
      *seal_out; /* somebody else's; NULL: frames as they are */
  int sender; /* pid of who sent what was read last; 0: it was not asked for */
  uint64_t sent, received; /* bytes that were posted, and read, so far */
};

/* The bytes of the first frame: their number, 0 if it is not all there, or
 * PERIGEE_PROTOCOL. */
int wire_frame(const uint8_t *bytes, uint32_t length, struct frame *frame);
/* Encodes: the number of bytes, at most FRAME_HEAD + FRAME_BODY. */
uint32_t wire_encode(const struct frame *frame, uint8_t *bytes);
/* The same for the body of FOUND (found.c). */
bool found_decode(const uint8_t *body, uint32_t length, struct found *found);
uint32_t found_encode(const struct found *found, uint8_t *body);
/* Has it no protocol version in common with this side? Then it was read no
 * further than its versions. */
bool wire_foreign(const struct hello *hello);
/* Does a frame of this kind bring descriptors? */
uint32_t wire_fds(const struct frame *frame);

/* Non-blocking. Sends a frame whole: 0, PERIGEE_AGAIN if the socket is full,
 * PERIGEE_NO_MEMORY if the system has none for it, or for its descriptors,
 * PERIGEE_PEER_LOST. */
int wire_send(int socket, const struct frame *frame, const int *fds,
              uint32_t fd_count);
/* The same, without descriptors, where a socket (TCP) may take a part: what it
 * does not take waits in the wire, in order. PERIGEE_AGAIN: too much does. */
int wire_post(int socket, struct wire *wire, const struct frame *frame);
/* Sends on what waits: 0, also if some still does, or PERIGEE_PEER_LOST; corked
 * no more. */
int wire_flush(int socket, struct wire *wire);
static inline bool wire_waits(const struct wire *wire) {
  return wire->out != NULL;
}
/* Reads once: bytes read, 0 at the end, PERIGEE_AGAIN, PERIGEE_PEER_LOST,
 * PERIGEE_PROTOCOL (more descriptors than there may be), or PERIGEE_NO_MEMORY
 * (some that came are lost, as this process may have no more). */
int wire_read(int socket, struct wire *wire);
/* The next frame that was read: 1, 0, or a status. */
int wire_next(struct wire *wire, struct frame *frame);
/* Takes one received descriptor, in order, or -1. */
int wire_take_fd(struct wire *wire);
void wire_close(struct wire *wire);

#endif
