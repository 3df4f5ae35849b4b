/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.h - frames on a session's socket: u32 length of the body, u16 type, u16
 * zero, body. Little-endian, fixed layouts; descriptors travel with the first
 * byte of the frame that announces them.
 *
 *   HELLO   versions, nonces and keys; over TCP the dialer's comes first. HELLO
 *           and ATTACH are all that an unauthenticated peer may send
 *   RETRY   over TCP, in answer to HELLO: send it again, with this cookie
 *   PROOF   over TCP, after both HELLOs: of the secret; the listener's first
 *   TERMS   parameters and wishes of a side, for a peer that is authenticated
 *   OFFER   the transport's half (descriptors); after the peer's TERMS
 *   READY   this side has joined the peer's half; u32 pull follows
 *   REFUSE  status and reason; the session ends
 *   WAKE    wakes a peer that sleeps: there is something for it
 *   LOOKUP  asks for the region with this name
 *   FOUND   the region asked for, with keys for the lanes that reach it (below)
 *   BYE     the sender has closed the session
 *   LANE    message from one half of the transport to the other, with a
 *           descriptor or none; after OFFER
 *   ATTACH  instead of HELLO: this connection is one more stream of a session
 *   PING    keepalive, without content
 *   MOVE    in place of OFFER: dial there, with a ticket (migrate.c)
 *   EXTRA   of an additional lane: its half (descriptors), its loss, or a message
 *           of its transport; where both sides have the feature "lanes"
 *   DRAIN   the sender takes no more calls, or has none under way (drain.c);
 *           where both sides have the feature "drain"
 *
 * FOUND: what stands in struct found up to `keys`; then, for each key, u8 lane,
 * u8 descriptors, u16 length and so many bytes; lanes in order, each once. All
 * the descriptors come with the frame, in order. A key of the first lane that has
 * no bytes, where there is no other, is not written: its descriptors, or keys,
 * tell that it is there.
 *
 * Every version's HELLO begins with magic and versions. The rest of it is not
 * looked at if the two sides have no version in common.
 *
 * Over TCP every frame of a side after its PROOF is one sealed chunk (seal.h),
 * whatever the mode of encryption, until the lane takes over the socket; if the
 * lane does not, always.
 */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stddef.h>
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
  FRAME_EXTRA,
  FRAME_DRAIN,
  FRAME_TYPES
};

enum { FRAME_HEAD = 8, FRAME_BODY = 1280, WIRE_FDS = 4, WIRE_OUT = 64 << 10 };
enum { WIRE_ROOM = SEAL_CHUNK(FRAME_HEAD + FRAME_BODY) };
enum { TRANSPORT_NAME = 16, TRANSPORTS_MAX = 8, REFUSE_TEXT = 240 };
/* Bytes of the name for local peers; of magic and versions; of a cookie. */
enum { HELLO_LOCAL = 16, HELLO_VERSIONS = 16, COOKIE = 16 };
enum { REGION_NAME = 255, FOUND_KEYS = 4 }; /* one for each lane at most */
enum { TERMS_NAME = 72 }; /* holds PERIGEE_NAME_MAX and a zero */
enum { PROTOCOL_MIN = 4, PROTOCOL_MAX = 4 };
#define HELLO_MAGIC UINT64_C(0x3165656769726570) /* "perigee1" */

struct hello {
  uint64_t magic;
  uint32_t version_min, version_max;
  uint64_t nonce;
  uint64_t ticket; /* its key takes the place of the secret; 0: none */
  /* Over TCP; otherwise zeros. */
  uint8_t challenge[HANDSHAKE_CHALLENGE], public_key[HANDSHAKE_KEY];
  uint8_t cookie[COOKIE]; /* from a RETRY, or zeros (wireup.c) */
};

enum terms_flags {
  TERMS_ENCRYPT = 1, /* this side wants everything enciphered */
  TERMS_AUTH = 2,    /* this side wants everything authenticated (MACs) */
  TERMS_STRICT = 4,  /* this side refuses a session without (not the default) */
  TERMS_AES = 8,     /* this side has AES in hardware */
  TERMS_STAYS = 16   /* this side wants no MOVE */
};

struct terms {
  uint64_t epoch, features; /* bits of FEATURE_ */
  uint64_t ring, eager, message, typed;
  union {
    uint64_t
        probe[2]; /* over Unix sockets: random bytes that the peer looks for
                          in this side's memory */
    uint64_t alias[2]; /* over TCP: who the dialer is (migrate.c), or 0 */
  };
  uint32_t operations, transports;
  char transport[TRANSPORTS_MAX][TRANSPORT_NAME];
  uint8_t local[HELLO_LOCAL]; /* name of this side for peers on its host */
  uint32_t user, flags;
  uint32_t dead_after, zero; /* ms of silence after which the peer is lost */
  char name[TERMS_NAME];     /* the agent's name, or "" */
};

struct retry {
  uint8_t cookie[COOKIE];
};

struct attach {
  uint64_t session; /* the nonce of the listener's HELLO */
  uint32_t index, zero;
  uint8_t mac[HANDSHAKE_MAC];
};

struct move {
  uint64_t ticket;
  uint8_t key[SECRET_KEY]; /* the key to prove there */
  uint32_t port, zero; /* on loopback; 0: the Unix socket that TERMS named */
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

/* EXTRA brings one of these of an additional lane (lane_offers.c): this side's
 * half; that it is lost, or that there is no half (with a status, and a text);
 * a message of its transport, with two descriptors only where both sides have the
 * feature "pairs". */
enum { EXTRA_FDS = 2 }; /* that a message has at most */
enum extra_word {
  EXTRA_WORD_OFFER = 1,
  EXTRA_WORD_LOST,
  EXTRA_WORD_LANE,
  EXTRA_WORDS
};

struct extra {
  uint8_t lane, word;
  int32_t status;
  struct offer offer; /* without its descriptors: what follows */
};

enum drain_word { DRAIN_WORD_TAKEN = 1, DRAIN_WORD_QUIET };

struct drain {
  uint32_t word, zero;
  uint64_t taken; /* TAKEN: requests that the sender has read; else 0 */
};

/* A decoded frame: texts are terminated, counts are within bounds. */
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
    struct extra extra;
    struct drain drain;
    struct {
      uint16_t length, fds;
      uint8_t bytes[LANE_FRAME_MAX];
    } lane;
  };
};

/* The state of a socket: bytes that came and were not decoded, and that
 * wait. */
struct wire {
  uint8_t bytes[WIRE_ROOM];
  uint32_t length;
  int fds[WIRE_FDS];
  uint32_t fd_count;
  uint8_t *out; /* WIRE_OUT bytes that wait to be sent, or NULL if none do */
  uint32_t out_from, out_end;
  bool corked; /* frames that are posted wait for wire_flush */
  struct seal *seal_in,
      *seal_out; /* owned by others; NULL: frames go in the clear */
  int sender;    /* pid that sent what was read last; 0: it was not asked for */
  uint64_t sent, received; /* total bytes posted and read */
};

/* Decodes the first frame: returns its size, 0 if it is incomplete, or
 * PERIGEE_PROTOCOL. */
int wire_frame(const uint8_t *bytes, uint32_t length, struct frame *frame);
/* Encodes a frame and returns its size, at most FRAME_HEAD + FRAME_BODY. */
uint32_t wire_encode(const struct frame *frame, uint8_t *bytes);
/* True if the HELLO has no protocol version in common with this side; then only
 * its versions were read. */
bool wire_foreign(const struct hello *hello);
/* Returns how many descriptors come with the frame. */
uint32_t wire_fds(const struct frame *frame);

/* Sends a whole frame without blocking: 0, PERIGEE_AGAIN if the socket is full,
 * PERIGEE_NO_MEMORY if the system has no memory for the frame or its
 * descriptors, PERIGEE_PEER_LOST. */
int wire_send(int socket, const struct frame *frame, const int *fds,
              uint32_t fd_count);
/* The same, without descriptors, for a socket (TCP) that may take a part; the
 * rest waits in the wire, in order. PERIGEE_AGAIN: too much waits already. */
int wire_post(int socket, struct wire *wire, const struct frame *frame);
/* Uncorks and sends what waits: 0 (some may still wait), or
 * PERIGEE_PEER_LOST. */
int wire_flush(int socket, struct wire *wire);
static inline bool wire_waits(const struct wire *wire) {
  return wire->out != NULL;
}
/* Reads once: returns the number of bytes, 0 at the end, PERIGEE_AGAIN,
 * PERIGEE_PEER_LOST, PERIGEE_PROTOCOL (more descriptors than allowed) or
 * PERIGEE_NO_MEMORY (descriptors were lost, as this process may have no
 * more). */
int wire_read(int socket, struct wire *wire);
/* Decodes the next frame that was read: 1, 0 if there is none, or a status. */
int wire_next(struct wire *wire, struct frame *frame);
/* Takes one received descriptor, in order; -1 if there is none. */
int wire_take_fd(struct wire *wire);
void wire_close(struct wire *wire);

/* ---- The text of an endpoint --------------------------------------------- */

/* An endpoint's description, as a text that any channel can carry:
 * "perigee-endpoint:" and, in hexadecimal, u32 version, the frames HELLO, TERMS
 * and OFFER, and a check sum of all that. White space around it is ignored. */

#define INFO_PREFIX "perigee-endpoint:"
enum { INFO_VERSION = 2 };
/* The most bytes of a description, and of its text with the final zero. */
enum {
  INFO_BYTES = 4 + 3 * FRAME_HEAD + sizeof(struct hello) +
               sizeof(struct terms) + 8 + OFFER_MAX
};
enum { INFO_TEXT = sizeof INFO_PREFIX + 2 * (INFO_BYTES + 8) };
_Static_assert(INFO_TEXT <= 4096, "as perigee.h promises");

/* Encodes bytes, with their check sum, as a text. */
void info_text(const uint8_t *bytes, uint32_t length, char text[INFO_TEXT]);
void info_write(const struct hello *, const struct terms *,
                const struct offer *, char text[INFO_TEXT]);
/* PERIGEE_OK, PERIGEE_VERSION, or PERIGEE_PROTOCOL if the text is no
 * description, is truncated, or was changed. An offer that was read has no
 * descriptors. */
int info_read(const char *text, struct hello *, struct terms *, struct offer *);

/* ---- Optional features --------------------------------------------------- */

/* Beyond the protocol version. Each side tells its features in TERMS; those that
 * both have are the session's. Unknown bits are ignored, so a feature may be added
 * without a new version; a bit is never reused for another feature. */
enum {
  FEATURE_TRACE = 1,
  FEATURE_LANES = 2,
  FEATURE_STAGING = 4,
  FEATURE_DRAIN = 8,
  FEATURE_STREAMS = 16,
  FEATURE_PLACES = 32,
  FEATURE_MOVES = 64,
  FEATURE_WINDOWS = 128,
  FEATURE_PAIRS = 256
};

struct feature {
  uint64_t bit;
  const char *name;   /* in options.features, and in messages */
  const char *allows; /* what a peer may send to a side that has it */
};

/* The table ends with a name of NULL. */
extern const struct feature features[];

/* Returns the bit's row, or NULL: this build knows no such bit. */
const struct feature *feature_of(uint64_t bit);
/* Parses options.features: all features but those that the text turns off; all
 * for NULL. PERIGEE_OK, or PERIGEE_INVALID and a sentence. */
int features_parse(const char *text, uint64_t *set, char *reason, size_t size);

#endif
