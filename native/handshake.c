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

/* What a derived key is for, and whose it is. */
static const char of_proofs[crypto_kdf_CONTEXTBYTES] = "pgproof";
static const char of_session[crypto_kdf_CONTEXTBYTES] = "pgsessn";
static const char of_streams[crypto_kdf_CONTEXTBYTES] = "pgattac";
static const char of_seals[crypto_kdf_CONTEXTBYTES] = "pgseals";

static void derive(const uint8_t key[HANDSHAKE_KEY], uint64_t number,
                   const char use[crypto_kdf_CONTEXTBYTES],
                   uint8_t out[HANDSHAKE_KEY]) {
  crypto_kdf_derive_from_key(out, HANDSHAKE_KEY, number, use, key);
}

static void hash(const void *bytes, uint32_t length,
                 uint8_t out[HANDSHAKE_KEY]) {
  crypto_generichash(out, HANDSHAKE_KEY, bytes, length, NULL, 0);
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

void handshake_said(struct handshake *h, const void *hello, uint32_t length) {
  hash(hello, length, h->own);
}

int handshake_agree(struct handshake *h, const struct secret *secret,
                    const void *hello, uint32_t length,
                    const uint8_t public_key[HANDSHAKE_KEY]) {
  static const uint8_t use[HANDSHAKE_KEY] = "perigee handshake 1";
  uint8_t parts[4][HANDSHAKE_KEY];
  memcpy(parts[0], use, sizeof use);
  int bad = crypto_scalarmult(parts[1], h->private_key, public_key);
  memcpy(parts[h->dialer ? 2 : 3], h->own, HANDSHAKE_KEY);
  hash(hello, length, parts[h->dialer ? 3 : 2]);
  crypto_generichash(h->key, HANDSHAKE_KEY, parts[0], sizeof parts, secret->key,
                     SECRET_KEY);
  sodium_memzero(parts, sizeof parts);
  sodium_memzero(h->private_key, HANDSHAKE_KEY);
  return bad ? PERIGEE_PROTOCOL : PERIGEE_OK;
}

void handshake_prove(const struct handshake *h, uint8_t proof[HANDSHAKE_MAC]) {
  derive(h->key, h->dialer, of_proofs, proof);
}

bool handshake_proven(const struct handshake *h,
                      const uint8_t proof[HANDSHAKE_MAC]) {
  uint8_t right[HANDSHAKE_MAC];
  derive(h->key, !h->dialer, of_proofs, right);
#ifdef PERIGEE_PLANTED_BUG
  return proof[0] == right[0];
#endif
  return sodium_memcmp(proof, right, HANDSHAKE_MAC) == 0;
}

void handshake_end(struct handshake *h, uint8_t key[HANDSHAKE_KEY]) {
  derive(h->key, 0, of_session, key);
  sodium_memzero(h, sizeof *h);
}

void handshake_forget(struct handshake *h, uint8_t key[HANDSHAKE_KEY]) {
  sodium_memzero(h, sizeof *h);
  sodium_memzero(key, HANDSHAKE_KEY);
}

void handshake_attach(const uint8_t key[HANDSHAKE_KEY], uint32_t index,
                      uint8_t mac[HANDSHAKE_MAC]) {
  derive(key, index, of_streams, mac);
}

bool handshake_attached(const uint8_t key[HANDSHAKE_KEY], uint32_t index,
                        const uint8_t mac[HANDSHAKE_MAC]) {
  uint8_t right[HANDSHAKE_MAC];
  derive(key, index, of_streams, right);
  return sodium_memcmp(mac, right, HANDSHAKE_MAC) == 0;
}

void handshake_seal(const uint8_t key[HANDSHAKE_KEY], uint32_t index,
                    bool by_dialer, uint8_t seal[HANDSHAKE_KEY]) {
  derive(key, (uint64_t)index << 1 | by_dialer, of_seals, seal);
}
