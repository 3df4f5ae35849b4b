/* SPDX-License-Identifier: Apache-2.0 */
#include "handshake.h"

#include <sodium.h>
#include <string.h>

#include "perigee.h"

#define ONE_LENGTH(name) _Static_assert(HANDSHAKE_KEY == (name), "as all keys")
ONE_LENGTH(crypto_scalarmult_BYTES);
ONE_LENGTH(crypto_scalarmult_SCALARBYTES);
ONE_LENGTH(crypto_kdf_KEYBYTES);
ONE_LENGTH(crypto_generichash_BYTES);
ONE_LENGTH(HANDSHAKE_MAC);

/* The KDF contexts: what a derived key is for. */
static const char of_proofs[crypto_kdf_CONTEXTBYTES] = "pgproof";
static const char of_words[crypto_kdf_CONTEXTBYTES] = "pgwords";
static const char of_streams[crypto_kdf_CONTEXTBYTES] = "pgattac";
static const char of_further[crypto_kdf_CONTEXTBYTES] = "pgfurth";
static const char of_tickets[crypto_kdf_CONTEXTBYTES] = "pgticke";
static const char of_aliases[crypto_kdf_CONTEXTBYTES] = "pgalias";
static const char of_seals[crypto_kdf_CONTEXTBYTES] = "pgseals";

static void handshake_derive(const uint8_t key[HANDSHAKE_KEY], uint64_t number,
                             const char use[crypto_kdf_CONTEXTBYTES],
                             uint8_t out[HANDSHAKE_KEY]) {
  crypto_kdf_derive_from_key(out, HANDSHAKE_KEY, number, use, key);
}

int handshake_begin(struct handshake *h, bool dialer,
                    int (*random)(void *context, void *bytes, uint64_t length),
                    void *context, uint8_t challenge[HANDSHAKE_CHALLENGE],
                    uint8_t public_key[HANDSHAKE_KEY]) {
  *h = (struct handshake){.dialer = dialer};
  if (random(context, h->private_key, HANDSHAKE_KEY) < 0 ||
      random(context, challenge, HANDSHAKE_CHALLENGE) < 0)
    return PERIGEE_SYSTEM;
  crypto_scalarmult_base(public_key, h->private_key);
  return PERIGEE_OK;
}

/* ---- Transcripts --------------------------------------------------------- */

static uint8_t *handshake_words(struct handshake *h, bool by_dialer) {
  return h->words[by_dialer ? 0 : 1];
}

void handshake_word(struct handshake *h, bool by_dialer, const void *frame,
                    uint32_t length) {
  crypto_generichash_state state;
  uint8_t *words = handshake_words(h, by_dialer);
  crypto_generichash_init(&state, NULL, 0, HANDSHAKE_KEY);
  crypto_generichash_update(&state, words, HANDSHAKE_KEY);
  crypto_generichash_update(&state, frame, length);
  crypto_generichash_final(&state, words, HANDSHAKE_KEY);
}

void handshake_hello(struct handshake *h, bool by_dialer, const void *frame,
                     uint32_t length) {
  memset(handshake_words(h, by_dialer), 0, HANDSHAKE_KEY);
  handshake_word(h, by_dialer, frame, length);
}

/* ---- The root ------------------------------------------------------------ */

static void handshake_root(const struct handshake *h,
                           const uint8_t key[SECRET_KEY],
                           uint8_t root[HANDSHAKE_KEY]) {
  crypto_generichash(root, HANDSHAKE_KEY, h->mixed, HANDSHAKE_KEY, key,
                     SECRET_KEY);
}

int handshake_agree(struct handshake *h, const struct secret *secret,
                    const uint8_t public_key[HANDSHAKE_KEY]) {
  static const uint8_t use[HANDSHAKE_KEY] = "perigee handshake 2";
  uint8_t parts[4][HANDSHAKE_KEY];
  memcpy(parts[0], use, sizeof use);
  int bad = crypto_scalarmult(parts[1], h->private_key, public_key);
  memcpy(parts[2], h->words, sizeof h->words);
  crypto_generichash(h->mixed, HANDSHAKE_KEY, parts[0], sizeof parts, NULL, 0);
  handshake_root(h, secret->key, h->root);
  sodium_memzero(parts, sizeof parts);
  sodium_memzero(h->private_key, HANDSHAKE_KEY);
  return bad ? PERIGEE_PROTOCOL : PERIGEE_OK;
}

void handshake_prove(const struct handshake *h, uint8_t proof[HANDSHAKE_MAC]) {
  handshake_derive(h->root, h->dialer, of_proofs, proof);
}

static bool handshake_is_proof(const struct handshake *h,
                               const uint8_t root[HANDSHAKE_KEY],
                               const uint8_t proof[HANDSHAKE_MAC]) {
  uint8_t right[HANDSHAKE_MAC];
  handshake_derive(root, !h->dialer, of_proofs, right);
  return sodium_memcmp(proof, right, HANDSHAKE_MAC) == 0;
}

bool handshake_proven(const struct handshake *h,
                      const uint8_t proof[HANDSHAKE_MAC]) {
  return handshake_is_proof(h, h->root, proof);
}

bool handshake_bare(const struct handshake *h,
                    const uint8_t proof[HANDSHAKE_MAC]) {
  static const uint8_t none[SECRET_KEY];
  uint8_t root[HANDSHAKE_KEY];
  handshake_root(h, none, root);
  return handshake_is_proof(h, root, proof);
}

void handshake_seal_words(const struct handshake *h, bool by_dialer,
                          uint8_t seal[HANDSHAKE_KEY]) {
  handshake_derive(h->root, by_dialer, of_words, seal);
}

/* ---- The session --------------------------------------------------------- */

void handshake_end(struct handshake *h, uint8_t key[HANDSHAKE_KEY]) {
  crypto_generichash(key, HANDSHAKE_KEY, h->words[0], sizeof h->words, h->root,
                     HANDSHAKE_KEY);
  handshake_forget(h);
}

void handshake_forget(struct handshake *h) {
  sodium_memzero(h, sizeof *h);
}

void handshake_ticket(const uint8_t key[HANDSHAKE_KEY], uint64_t ticket,
                      uint8_t of_ticket[HANDSHAKE_KEY]) {
  handshake_derive(key, ticket, of_tickets, of_ticket);
}

void handshake_alias(const uint8_t key[HANDSHAKE_KEY], const void *whom,
                     size_t length, uint8_t alias[HANDSHAKE_ALIAS]) {
  uint8_t of_all[HANDSHAKE_KEY];
  handshake_derive(key, 0, of_aliases, of_all);
  crypto_generichash(alias, HANDSHAKE_ALIAS, whom, length, of_all,
                     HANDSHAKE_KEY);
  sodium_memzero(of_all, sizeof of_all);
}

void handshake_further(uint8_t key[HANDSHAKE_KEY]) {
  uint8_t next[HANDSHAKE_KEY];
  handshake_derive(key, 0, of_further, next);
  memcpy(key, next, HANDSHAKE_KEY);
  sodium_memzero(next, sizeof next);
}

void handshake_attach(const uint8_t key[HANDSHAKE_KEY], uint32_t index,
                      uint8_t mac[HANDSHAKE_MAC]) {
  handshake_derive(key, index, of_streams, mac);
}

bool handshake_attached(const uint8_t key[HANDSHAKE_KEY], uint32_t index,
                        const uint8_t mac[HANDSHAKE_MAC]) {
  uint8_t right[HANDSHAKE_MAC];
  handshake_derive(key, index, of_streams, right);
  return sodium_memcmp(mac, right, HANDSHAKE_MAC) == 0;
}

void handshake_seal(const uint8_t key[HANDSHAKE_KEY], uint32_t index,
                    bool by_dialer, uint8_t seal[HANDSHAKE_KEY]) {
  handshake_derive(key, (uint64_t)index << 1 | by_dialer, of_seals, seal);
}
