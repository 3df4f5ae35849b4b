/* SPDX-License-Identifier: Apache-2.0
 *
 * found.c - the body of FOUND, as wire.h describes it. Only the lane that a key
 * is for reads the bytes of the key.
 */
#include <stddef.h>
#include <string.h>

#include "wire.h"

enum { HEAD = offsetof(struct found, key), KEY_HEAD = 4 };
_Static_assert(HEAD == 40, "without keys it is as older builds have it");
_Static_assert(HEAD + FOUND_KEYS * (KEY_HEAD + KEY_MAX) <= FRAME_BODY,
               "an answer with all keys fits in a frame");
_Static_assert((int)KEY_FDS <= (int)WIRE_FDS,
               "and its descriptors in a message");

/* Returns whether the head alone describes the keys. */
static bool is_bare(const struct found *f) {
  return f->keys == 1 && f->key[0].lane == 0 && f->key[0].key.length == 0;
}

static bool decode_bare(struct found *f) {
  if (f->keys > 1)
    return false;
  f->keys = f->keys > 0 || f->fds > 0;
  f->key[0].key.fd_count = f->fds;
  return true;
}

/* Returns the number of bytes of the key, or 0 if it is not valid. */
static uint32_t decode_key(const uint8_t *at, uint32_t left,
                           struct found_key *k) {
  uint16_t length;
  if (left < KEY_HEAD)
    return 0;
  memcpy(&length, at + 2, sizeof length);
  if (length > KEY_MAX || length > left - KEY_HEAD || at[1] > KEY_FDS)
    return 0;
  k->lane = at[0];
  k->key.fd_count = at[1];
  k->key.length = length;
  memcpy(k->key.bytes, at + KEY_HEAD, length);
  return KEY_HEAD + length;
}

static bool decode_keys(const uint8_t *at, uint32_t left, struct found *f) {
  uint32_t used, fds = 0;
  for (uint32_t i = 0; i < f->keys; i++, at += used, left -= used) {
    used = decode_key(at, left, &f->key[i]);
    if (used == 0 || (i > 0 && f->key[i].lane <= f->key[i - 1].lane))
      return false;
    fds += f->key[i].key.fd_count;
  }
  return left == 0 && fds == f->fds && !is_bare(f);
}

bool found_decode(const uint8_t *body, uint32_t length, struct found *f) {
  *f = (struct found){.keys = 0};
  if (length < HEAD)
    return false;
  memcpy(f, body, HEAD);
  if (f->fds > KEY_FDS || f->keys > FOUND_KEYS)
    return false;
  return length > HEAD ? decode_keys(body + HEAD, length - HEAD, f)
                       : decode_bare(f);
}

static uint32_t encode_key(const struct found_key *k, uint8_t *at) {
  const uint32_t bytes = k->key.length;
  const uint16_t length = bytes < KEY_MAX ? (uint16_t)bytes : KEY_MAX;
  at[0] = (uint8_t)k->lane;
  at[1] = (uint8_t)k->key.fd_count;
  memcpy(at + 2, &length, sizeof length);
  memcpy(at + KEY_HEAD, k->key.bytes, length);
  return KEY_HEAD + length;
}

uint32_t found_encode(const struct found *f, uint8_t *body) {
  uint32_t length = HEAD;
  memcpy(body, f, HEAD);
  for (uint32_t i = 0; i < f->keys && i < FOUND_KEYS && !is_bare(f); i++)
    length += encode_key(&f->key[i], body + length);
  return length;
}
