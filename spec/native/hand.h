/* SPDX-License-Identifier: Apache-2.0
 *
 * hand.h - a peer over TCP that is played by hand: it says hello as it should,
 * or not, and then whatever its player likes. Its socket is one end of a pair,
 * whose other end an engine of this process has as if it had been accepted (or
 * dialed).
 */
#ifndef HAND_H
#define HAND_H

#include "core/engine.h"
#include "security/seal.h"

struct hand {
  struct seal out;               /* of the lane's stream 0 */
  struct seal words[2];          /* of frames after the proofs: in, out */
  struct perigee_engine *engine; /* of the other side, */
  struct perigee_session *session;
  uint32_t id; /* and its session, as long as that lives */
  int fd;
  bool dials; /* this side does */
  struct handshake shake;
  struct hello heard;
  uint64_t features;          /* that it says it has */
  struct terms wants;         /* what it says in its TERMS */
  uint8_t key[HANDSHAKE_KEY]; /* of the lane's further streams */
  bool sealed;
  struct wire wire;
};

/* Somebody is there; nobody has said a word. */
void hand_come(struct hand *hand, struct perigee_engine *engine, bool dials);
/* A poll in which the engine looks at its sockets. */
int hand_poll(struct hand *hand, struct perigee_event *events, int capacity);
/* Bytes, as far as the socket takes them: how many. */
size_t hand_say(struct hand *hand, const void *bytes, size_t length);
void hand_frame(struct hand *hand, const struct frame *frame);
/* The same, and it is part of the session's key. */
void hand_word(struct hand *hand, const struct frame *frame);
/* The next frame that the engine has said; false: there is none. */
bool hand_hears(struct hand *hand, struct frame *frame);
/* As it should be, with a fresh key; and said. */
void hand_hello(struct hand *hand, struct frame *hello);
void hand_says_hello(struct hand *hand, const struct frame *hello);
/* After both have: the proof, as somebody with that secret would make it. */
bool hand_proof(struct hand *hand, const struct secret *secret,
                struct frame *proof);
/* As somebody of this host, of that name and alias, who wants memory: up to the
 * place that it is sent on to; false: it was not. */
bool hand_moves(struct hand *hand, const struct secret *secret,
                const uint8_t name[HELLO_LOCAL], uint64_t alias);
/* An engine, to be closed, that a hand may say to be: its name. */
struct perigee_engine *hand_named(uint8_t name[HELLO_LOCAL]);
/* Up to both proofs; false: it was refused. */
bool hand_proves(struct hand *hand, const struct secret *secret);
/* All of it, as it should be, but for its own READY; false: it was refused. */
bool hand_joins(struct hand *hand, const struct secret *secret);
/* And that: the session is open. */
bool hand_open(struct hand *hand, const struct secret *secret);
/* Bytes of the lane's stream 0, sealed if the session is. */
void hand_lane(struct hand *hand, const void *bytes, uint32_t length);
/* Nobody reads what the engine sends: bytes dropped. */
size_t hand_drop(struct hand *hand);
/* Hangs up. */
void hand_close(struct hand *hand);

#endif
