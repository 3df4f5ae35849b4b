/* SPDX-License-Identifier: Apache-2.0
 *
 * token.c - random texts that open a door, and what is kept of them. They have
 * 256 random bits, so a plain hash needs no salt and no stretching.
 */
#include "control/control.h"
#include "perigee.h"

#include <sodium.h>

enum { SECRET = 32, HASH = 32 };

int perigee_token_make(char text[44]) {
  unsigned char secret[SECRET];
  if (sodium_init() < 0)
    return PERIGEE_SYSTEM;
  randombytes_buf(secret, sizeof secret);
  sodium_bin2base64(text, 44, secret, sizeof secret,
                    sodium_base64_VARIANT_URLSAFE_NO_PADDING);
  sodium_memzero(secret, sizeof secret);
  return PERIGEE_OK;
}

int perigee_token_hash(char hash[65], const char *text, uint64_t length) {
  unsigned char made[HASH];
  if (sodium_init() < 0)
    return PERIGEE_SYSTEM;
  crypto_generichash(made, sizeof made, (const unsigned char *)text, length,
                     NULL, 0);
  sodium_bin2hex(hash, 65, made, sizeof made);
  return PERIGEE_OK;
}
