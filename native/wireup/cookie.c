/* SPDX-License-Identifier: Apache-2.0
 *
 * cookie.c - while a listener is crowded, a dialer has to show a cookie before
 * this side computes anything for it: a MAC over its address and its HELLO,
 * which a RETRY gave to it a moment ago. Nothing is kept for the dialer but its
 * socket.
 *
 * TCP has proven the address already. The cookie proves that the dialer stays
 * to read an answer and says HELLO once more. A flood of HELLOs from dialers
 * that leave, or never read, costs two hashes each and no elliptic curve (some
 * 100 us).
 */
#include <sodium.h>
#include <string.h>

#include "session/unauth.h"
#include "wireup.h"

enum { COOKIE_KEY = 32 };
/* A cookie is valid in the period in which it was made, and in the next. */
static const int64_t PERIOD = INT64_C(10000000000); /* ns */

_Static_assert(crypto_kdf_KEYBYTES == COOKIE_KEY,
               "keys of periods are derived");
_Static_assert(crypto_generichash_BYTES_MIN <= COOKIE, "a cookie is a hash");

static const uint8_t *key_of(struct perigee_engine *engine) {
  const struct perigee_options *o = &engine->options;
  uint8_t *key = engine->cookie_key;
  if (key)
    return key;
  key = vault_take(&engine->vault, COOKIE_KEY);
  if (key && o->random(o->context, key, COOKIE_KEY) != 0) {
    vault_give(&engine->vault, key, COOKIE_KEY);
    key = NULL;
  }
  return engine->cookie_key = key;
}

static uint64_t period_of(const struct perigee_engine *engine) {
  return (uint64_t)(engine->now / PERIOD);
}

static void add(crypto_generichash_state *state, const void *bytes,
                size_t length) {
  crypto_generichash_update(state, bytes, length);
}

/* Hashes the fields; all have a fixed length but the address, which is last. */
static bool make(struct perigee_session *s, const struct hello *h,
                 uint64_t period, uint8_t cookie[COOKIE]) {
  uint8_t key[COOKIE_KEY];
  crypto_generichash_state state;
  const uint8_t *root = key_of(s->engine);
  if (!root)
    return false;
  crypto_kdf_derive_from_key(key, sizeof key, period, "pgcookie", root);
  crypto_generichash_init(&state, key, sizeof key, COOKIE);
  add(&state, &h->nonce, sizeof h->nonce);
  add(&state, h->challenge, sizeof h->challenge);
  add(&state, h->public_key, sizeof h->public_key);
  add(&state, s->peer.address, strlen(s->peer.address));
  crypto_generichash_final(&state, cookie, COOKIE);
  sodium_memzero(key, sizeof key);
  return true;
}

bool cookie_make(struct perigee_session *s, const struct hello *h,
                 uint8_t cookie[COOKIE]) {
  return make(s, h, period_of(s->engine), cookie);
}

bool cookie_shown(struct perigee_session *s, const struct hello *h) {
  uint8_t right[COOKIE];
  uint64_t period = period_of(s->engine);
  for (uint64_t back = 0; back < 2; back++)
    if (make(s, h, period - back, right) &&
        sodium_memcmp(right, h->cookie, COOKIE) == 0)
      return true;
  return false;
}
