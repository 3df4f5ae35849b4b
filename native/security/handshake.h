/* SPDX-License-Identifier: Apache-2.0
 *
 * handshake.h - two unauthenticated peers prove to each other that they have
 * the same secret, and agree on keys that nobody else has. These are functions
 * of bytes; wireup/wireup.c and peer.c carry the bytes.
 *
 *   words    = transcript of one side: H(words so far, next frame), of HELLO,
 *              PROOF, TERMS, OFFER and READY
 *   mixed    = H(X25519 of both ephemeral keys, both transcripts after HELLO)
 *   root     = PRF(secret's key, mixed)
 *   proof    = PRF(root, role)        the listening side's comes first
 *   hello    = PRF(root, direction)   seals every frame after a side's PROOF
 *   session  = PRF(root, both transcripts, complete)
 *   stream 0 = PRF(session, 0, direction)
 *   streams  = PRF(session): authenticates ATTACH, seals further streams
 *
 * Each HELLO has a fresh challenge and a fresh public key, so a proof is good
 * for one connection (no replay), for one role (no reflection) and for what
 * both sides said. The frames after the proofs are sealed, so changing one ends
 * the handshake; as they are also in the transcripts, an attacker who found a
 * way around that would get two sides with different session keys. Private keys
 * are wiped as soon as the root is made, the root when the session's key is
 * made, and that key when stream 0 has its keys: a secret that leaks later
 * opens no earlier session. Without a secret all this holds, except that the
 * peer is not identified.
 */
#ifndef HANDSHAKE_H
#define HANDSHAKE_H

#include "secret.h"

enum { HANDSHAKE_KEY = 32, HANDSHAKE_MAC = 32, HANDSHAKE_CHALLENGE = 32 };
enum { HANDSHAKE_ALIAS = 16 };

/* Lies in a vault. */
struct handshake {
  uint8_t private_key[HANDSHAKE_KEY]; /* until keys are agreed */
  uint8_t words[2][HANDSHAKE_KEY];    /* transcripts: dialer's, listener's */
  uint8_t mixed[HANDSHAKE_KEY];       /* once keys are agreed */
  uint8_t root[HANDSHAKE_KEY];
  bool dialer;
};

/* Makes a challenge and a key pair for one HELLO; random as in perigee_options.
 * PERIGEE_OK, or PERIGEE_SYSTEM without randomness. */
int handshake_begin(struct handshake *handshake, bool dialer,
                    int (*random)(void *context, void *bytes, uint64_t length),
                    void *context, uint8_t challenge[HANDSHAKE_CHALLENGE],
                    uint8_t public_key[HANDSHAKE_KEY]);
/* Add a frame, as it was encoded, to the transcript of this side or of the
 * peer. The first frame is the HELLO; a HELLO that is sent again replaces
 * everything before it. */
void handshake_hello(struct handshake *, bool by_dialer, const void *frame,
                     uint32_t length);
void handshake_word(struct handshake *, bool by_dialer, const void *frame,
                    uint32_t length);
/* Agrees on keys, after both HELLOs, with the peer's public key.
 * PERIGEE_PROTOCOL if that key is one of those that give the same shared secret
 * for every private key. */
int handshake_agree(struct handshake *handshake, const struct secret *secret,
                    const uint8_t public_key[HANDSHAKE_KEY]);
/* prove makes the own proof. proven checks the peer's, in constant time; bare
 * tells whether it would be right for a peer without a secret. */
void handshake_prove(const struct handshake *handshake,
                     uint8_t proof[HANDSHAKE_MAC]);
bool handshake_proven(const struct handshake *handshake,
                      const uint8_t proof[HANDSHAKE_MAC]);
bool handshake_bare(const struct handshake *handshake,
                    const uint8_t proof[HANDSHAKE_MAC]);
/* Makes the key by which a side seals the frames after its proof. */
void handshake_seal_words(const struct handshake *, bool by_dialer,
                          uint8_t seal[HANDSHAKE_KEY]);
/* Makes the session's key, after both READYs, and wipes the rest. */
void handshake_end(struct handshake *handshake, uint8_t key[HANDSHAKE_KEY]);
/* Wipes it: the session has ended before it was open. */
void handshake_forget(struct handshake *handshake);
/* Derives a ticket's key from an engine's own key (migrate.c). */
void handshake_ticket(const uint8_t key[HANDSHAKE_KEY], uint64_t ticket,
                      uint8_t of_ticket[HANDSHAKE_KEY]);
/* Derives the alias that the engine has with the peer at an address: another
 * alias for each address. */
void handshake_alias(const uint8_t key[HANDSHAKE_KEY], const void *whom,
                     size_t length, uint8_t alias[HANDSHAKE_ALIAS]);

/* Derives the key that seals stream 0 in one direction from a session's key. */
void handshake_seal(const uint8_t key[HANDSHAKE_KEY], uint32_t index,
                    bool by_dialer, uint8_t seal[HANDSHAKE_KEY]);
/* handshake_further replaces the session's key by that of further streams, from
 * which the first cannot be computed. Each index may be attached once: its
 * sealing keys must not be used twice. */
void handshake_further(uint8_t key[HANDSHAKE_KEY]);
void handshake_attach(const uint8_t key[HANDSHAKE_KEY], uint32_t index,
                      uint8_t mac[HANDSHAKE_MAC]);
bool handshake_attached(const uint8_t key[HANDSHAKE_KEY], uint32_t index,
                        const uint8_t mac[HANDSHAKE_MAC]);

#endif
