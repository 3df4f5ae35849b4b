/* SPDX-License-Identifier: Apache-2.0
 *
 * hand.h - a TCP peer that a test plays by hand. It says hello, correctly or
 * not, and then whatever the test sends. Its socket is one end of a socket
 * pair; an engine of this process has the other end as if it had been accepted
 * (or dialed).
 */
#ifndef HAND_H
#define HAND_H

#include "core/engine.h"
#include "security/seal.h"

struct hand {
  struct seal out;      /* of the lane's stream 0 */
  struct seal words[2]; /* of frames after the proofs: [0] in, [1] out */
  struct perigee_engine *engine; /* the other side */
  struct perigee_session *session;
  uint32_t id; /* of session, which is NULL once it has ended */
  int fd;
  bool dials; /* this side dials */
  struct handshake shake;
  struct hello heard;
  uint64_t features;          /* that this side claims in TERMS */
  uint32_t dead_after;        /* ms, the same; 0: a minute */
  struct terms wants;         /* the TERMS that this side sends */
  uint8_t key[HANDSHAKE_KEY]; /* of the lane's further streams */
  bool sealed;
  struct wire wire;
};

/* Connects; this side has sent nothing yet. */
void hand_come(struct hand *hand, struct perigee_engine *engine, bool dials);
/* Polls the engine once; it looks at its sockets. */
int hand_poll(struct hand *hand, struct perigee_event *events, int capacity);
/* Sends bytes, as far as the socket takes them; returns how many it took. */
size_t hand_say(struct hand *hand, const void *bytes, size_t length);
void hand_frame(struct hand *hand, const struct frame *frame);
/* Sends a frame that becomes part of the session's key. */
void hand_word(struct hand *hand, const struct frame *frame);
/* The next frame from the engine; false if there is none. */
bool hand_hears(struct hand *hand, struct frame *frame);
/* Prepares a correct hello with a fresh key; the second function sends it. */
void hand_hello(struct hand *hand, struct frame *hello);
void hand_says_hello(struct hand *hand, const struct frame *hello);
/* After both hellos: the proof that a holder of this secret would send. */
bool hand_proof(struct hand *hand, const struct secret *secret,
                struct frame *proof);
/* Acts as a peer of this host with that name and alias that asks for shared
 * memory. Goes on until the engine sends MOVE; false if it does not. */
bool hand_moves(struct hand *hand, const struct secret *secret,
                const uint8_t name[HELLO_LOCAL], uint64_t alias);
/* An engine whose name a hand may claim; the caller closes it. */
struct perigee_engine *hand_named(uint8_t name[HELLO_LOCAL]);
/* Goes on until both sides have sent proofs; false if refused. */
bool hand_proves(struct hand *hand, const struct secret *secret);
/* Does the whole handshake except for its own READY; false if refused. */
bool hand_joins(struct hand *hand, const struct secret *secret);
/* Does the whole handshake: the session is open. */
bool hand_open(struct hand *hand, const struct secret *secret);
/* Sends bytes of the lane's stream 0, sealed if the session is. */
void hand_lane(struct hand *hand, const void *bytes, uint32_t length);
/* Discards what the engine has sent; returns how many bytes. */
size_t hand_drop(struct hand *hand);
/* Closes the socket. */
void hand_close(struct hand *hand);

#endif
