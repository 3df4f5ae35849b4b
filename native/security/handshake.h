/* SPDX-License-Identifier: Apache-2.0
 *
 * handshake.h - how two strangers prove to each other that they have the same
 * secret, and agree on keys that nobody else has. Functions of bytes only;
 * wireup.c and proof.c carry the bytes.
 *
 *   words    = for each side: H(words so far, next frame), of HELLO, PROOF,
 *              TERMS, OFFER and READY
 *   mixed    = H(X25519 of both ephemeral keys, both sides' words: the HELLOs)
 *   root     = PRF(secret's key, mixed)
 *   proof    = PRF(root, role)        by who listens first
 *   hello    = PRF(root, direction)   seals every frame after a side's proof
 *   session  = PRF(root, both sides' words: all of them)
 *   stream 0 = PRF(session, 0, direction)
 *   streams  = PRF(session): ATTACH and what further streams are sealed by
 *
 * A HELLO has a fresh challenge and a fresh public key, so a proof is good for
 * one connection (replay), for one role (reflection), and for what both said.
 * What follows the proofs is sealed, so who changes it ends the handshake; and
 * it is in the session's key, so who found a way around that would have two
 * sides that cannot read each other. Private keys are wiped as soon as the root
 * is made, the root when the session's key is, and that when stream 0 has its
 * keys: who learns the secret later can open no session of before. Without a
 * secret all this holds but for who the peer is.
 */
#ifndef HANDSHAKE_H
#define HANDSHAKE_H

#include "secret.h"

enum { HANDSHAKE_KEY = 32, HANDSHAKE_MAC = 32, HANDSHAKE_CHALLENGE = 32 };
enum { HANDSHAKE_ALIAS = 16 };

/* Kept in a vault. */
struct handshake {
  uint8_t private_key[HANDSHAKE_KEY]; /* until agreed */
  uint8_t words[2][HANDSHAKE_KEY];    /* of the dialer, of who was dialed */
  uint8_t mixed[HANDSHAKE_KEY];       /* once agreed */
  uint8_t root[HANDSHAKE_KEY];
  bool dialer;
};

/* A challenge and a key pair for one HELLO; random as in perigee_options.
 * PERIGEE_OK, or PERIGEE_SYSTEM if there was no randomness. */
int handshake_begin(struct handshake *handshake, bool dialer,
                    int (*random)(void *context, void *bytes, uint64_t length),
                    void *context, uint8_t challenge[HANDSHAKE_CHALLENGE],
                    uint8_t public_key[HANDSHAKE_KEY]);
/* A frame as it was encoded, by this side or by the peer. Of a side the first is
 * its HELLO; one that is said again takes the place of all before. */
void handshake_hello(struct handshake *, bool by_dialer, const void *frame,
                     uint32_t length);
void handshake_word(struct handshake *, bool by_dialer, const void *frame,
                    uint32_t length);
/* After both HELLOs, with the public key of the peer's. PERIGEE_PROTOCOL if that
 * key is one of those that give the same shared secret whatever ours is. */
int handshake_agree(struct handshake *handshake, const struct secret *secret,
                    const uint8_t public_key[HANDSHAKE_KEY]);
/* The own proof; is it the peer's, in constant time; and would it be if it had
 * no secret? */
void handshake_prove(const struct handshake *handshake,
                     uint8_t proof[HANDSHAKE_MAC]);
bool handshake_proven(const struct handshake *handshake,
                      const uint8_t proof[HANDSHAKE_MAC]);
bool handshake_bare(const struct handshake *handshake,
                    const uint8_t proof[HANDSHAKE_MAC]);
/* By which a side seals the frames that follow its proof. */
void handshake_seal_words(const struct handshake *, bool by_dialer,
                          uint8_t seal[HANDSHAKE_KEY]);
/* After both READYs: gives the key of the session, and wipes the rest. */
void handshake_end(struct handshake *handshake, uint8_t key[HANDSHAKE_KEY]);
/* Wipes it: the session is over, or will never be. */
void handshake_forget(struct handshake *handshake);
/* Of an engine's own key: that of a ticket (migrate.h). */
void handshake_ticket(const uint8_t key[HANDSHAKE_KEY], uint64_t ticket,
                      uint8_t of_ticket[HANDSHAKE_KEY]);
/* And by what it goes where it dials: another for each address. */
void handshake_alias(const uint8_t key[HANDSHAKE_KEY], const void *whom,
                     size_t length, uint8_t alias[HANDSHAKE_ALIAS]);

/* Of a session's key: that by which stream 0 is sealed in one direction. */
void handshake_seal(const uint8_t key[HANDSHAKE_KEY], uint32_t index,
                    bool by_dialer, uint8_t seal[HANDSHAKE_KEY]);
/* Then it becomes the key of further streams, of which nobody finds the other.
 * An index may be attached once, else its sealing keys would be used twice. */
void handshake_further(uint8_t key[HANDSHAKE_KEY]);
void handshake_attach(const uint8_t key[HANDSHAKE_KEY], uint32_t index,
                      uint8_t mac[HANDSHAKE_MAC]);
bool handshake_attached(const uint8_t key[HANDSHAKE_KEY], uint32_t index,
                        const uint8_t mac[HANDSHAKE_MAC]);

#endif
