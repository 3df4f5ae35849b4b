/* SPDX-License-Identifier: Apache-2.0
 *
 * handshake.h - how two strangers prove to each other that they have the same
 * secret, and agree on keys that nobody else has. Functions of bytes only;
 * hello.c and proof.c carry the bytes.
 *
 *   key      = H(secret's key; X25519 of both ephemeral keys, H(dialer's HELLO),
 *                H(acceptor's HELLO))
 *   proof    = PRF(key, role)        by the dialer first
 *   session  = PRF(key, "session")
 *   ATTACH   = PRF(session, index of the stream)
 *   sealing  = PRF(session, index of the stream, direction)
 *
 * A HELLO has a fresh challenge and a fresh public key, so a proof is good for
 * one connection (replay), for one role (reflection), and for what both said
 * (a HELLO that was changed on the way). Private keys are wiped as soon as the
 * key is made: who learns the secret later can open no session of before.
 * Without a secret all this holds but for who the peer is.
 */
#ifndef HANDSHAKE_H
#define HANDSHAKE_H

#include "secret.h"

enum { HANDSHAKE_KEY = 32, HANDSHAKE_MAC = 32, HANDSHAKE_CHALLENGE = 32 };

struct handshake {
  uint8_t private_key[HANDSHAKE_KEY]; /* until agreed */
  uint8_t own[HANDSHAKE_KEY];         /* the hash of the own HELLO */
  uint8_t key[HANDSHAKE_KEY];         /* once agreed */
  bool dialer;
};

/* A challenge and a key pair for one HELLO; random as in perigee_options.
 * PERIGEE_OK, or PERIGEE_SYSTEM if there was no randomness. */
int handshake_begin(struct handshake *handshake, bool dialer,
                    int (*random)(void *context, void *bytes, uint64_t length),
                    void *context, uint8_t challenge[HANDSHAKE_CHALLENGE],
                    uint8_t public_key[HANDSHAKE_KEY]);
/* The own HELLO as it was encoded. */
void handshake_said(struct handshake *handshake, const void *hello,
                    uint32_t length);
/* The peer's, and the public key in it. PERIGEE_PROTOCOL if that key is one of
 * those that give the same shared secret whatever ours is. */
int handshake_agree(struct handshake *handshake, const struct secret *secret,
                    const void *hello, uint32_t length,
                    const uint8_t public_key[HANDSHAKE_KEY]);
/* The own proof; and is it the peer's? In constant time. */
void handshake_prove(const struct handshake *handshake,
                     uint8_t proof[HANDSHAKE_MAC]);
bool handshake_proven(const struct handshake *handshake,
                      const uint8_t proof[HANDSHAKE_MAC]);
/* Gives the key of the session, and wipes the rest. */
void handshake_end(struct handshake *handshake, uint8_t key[HANDSHAKE_KEY]);
/* Wipes both: the session is over, or will never be. */
void handshake_forget(struct handshake *handshake, uint8_t key[HANDSHAKE_KEY]);

/* Of a session's key. An index may be attached once in a session, else its
 * sealing keys would be used twice. */
void handshake_attach(const uint8_t key[HANDSHAKE_KEY], uint32_t index,
                      uint8_t mac[HANDSHAKE_MAC]);
bool handshake_attached(const uint8_t key[HANDSHAKE_KEY], uint32_t index,
                        const uint8_t mac[HANDSHAKE_MAC]);
/* The key by which a stream is sealed in one direction. */
void handshake_seal(const uint8_t key[HANDSHAKE_KEY], uint32_t index,
                    bool by_dialer, uint8_t seal[HANDSHAKE_KEY]);

#endif
