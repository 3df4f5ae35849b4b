/* SPDX-License-Identifier: Apache-2.0
 *
 * seal_fuzz.c - any bytes as a sealed stream. Only unchanged sealed bytes open,
 * in their order; anything else is refused, and nothing is written beyond a
 * chunk's largest content.
 *
 * decoder: native/security/seal.c
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "perigee.h"
#include "security/seal.h"
#include "security/secret.h"

static const uint8_t key[SEAL_KEY] = {7};
static struct seal out, in;
static uint8_t chunk[SEAL_CHUNK_MOST], plain[SEAL_MOST];

static void require(bool holds) {
  if (!holds)
    abort();
}

/* With each cipher, and with or without encryption. */
static void begin(int way) {
  struct seal *const both[] = {&out, &in};
  for (int i = 0; i < 2; i++) {
    seal_end(both[i]);
    seal_begin(both[i], key, way / 2);
    if (way % 2)
      seal_bare(both[i]);
  }
}

/* Opens any bytes: as many as they claim to be, or fewer. */
static void any(const uint8_t *data, size_t size) {
  if (size < SEAL_HEAD)
    return;
  int length = seal_chunk(data);
  require(length == PERIGEE_PROTOCOL ||
          (length >= (int)SEAL_CHUNK(1) && length <= (int)SEAL_CHUNK_MOST));
  if (length > 0 && (size_t)length <= size)
    require(seal_open(&in, plain, data, (uint32_t)length) == PERIGEE_PROTOCOL);
  require(seal_open(&in, plain, data, (uint32_t)size) == PERIGEE_PROTOCOL);
}

/* Opens sealed bytes of which one is changed; 0 changes nothing. */
static void changed(const uint8_t *data, size_t size) {
  if (size < 4 || size - 3 > SEAL_MOST)
    return;
  uint32_t n = (uint32_t)size - 3,
           at = (data[0] | data[1] << 8) % SEAL_CHUNK(n);
  require(seal_close(&out, chunk, data + 3, n) == SEAL_CHUNK(n));
  chunk[at] ^= data[2];
  int got = seal_open(&in, plain, chunk, SEAL_CHUNK(n));
  if (data[2]) {
    require(got == PERIGEE_PROTOCOL);
    return;
  }
  require(got == (int)n && memcmp(plain, data + 3, n) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  require(secret_library());
  for (int way = 0; way < 2 * (1 + seal_has_aes()); way++) {
    begin(way);
    any(data, size);
    begin(way);
    changed(data, size);
  }
  return 0;
}
