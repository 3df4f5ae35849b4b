/* SPDX-License-Identifier: Apache-2.0
 *
 * ring_fuzz.c - a ring that the peer has filled with any words, and a peer that
 * claims to have consumed anything. Records must lie inside the ring and come
 * to an end, and no room may be given twice.
 *
 * decoder: native/base/ring.c
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/ring.h"
#include "perigee.h"

enum { RING = 4096, LARGEST = RING / RING_SHARE / RING_UNIT };

static void require(bool holds) {
  if (!holds)
    abort();
}

/* Random words would hardly ever form records. So each two bytes of input
 * give a place in the ring, and the units in the word there. */
static uint8_t *ring_of(const uint8_t *data, size_t size) {
  uint8_t *bytes = aligned_alloc(RING_UNIT, RING);
  require(bytes != NULL);
  memset(bytes, 0xff, RING);
  for (; size >= 2; data += 2, size -= 2) {
    uint64_t at = data[0] % (RING / RING_UNIT) * RING_UNIT;
    uint64_t word = ring_word(0, at, data[1] % (LARGEST + 2));
    memcpy(bytes + at, &word, sizeof word);
  }
  return bytes;
}

/* A word fits only one position, so a ring gives at most one lap of records. */
static void consume(uint8_t *bytes) {
  _Atomic uint64_t consumed = 0;
  struct ring_in ring;
  ring_open(&ring, bytes, RING, 0, &consumed);
  const uint8_t *record;
  uint64_t length;
  int status, count = 0;
  while ((status = ring_peek(&ring, &record, &length)) == 1) {
    require(record >= bytes && length > 0 && length <= RING / RING_SHARE);
    require((uint64_t)(record - bytes) <= RING - length);
    require(++count <= RING / RING_UNIT);
    ring_release(&ring);
    require(consumed <= ring.tail);
  }
  require(status == 0 || status == PERIGEE_PROTOCOL);
}

/* Each word of the data is a length to send and the peer's next claim. */
static void produce(uint8_t *bytes, const uint8_t *data, size_t size) {
  _Atomic uint64_t consumed = 0;
  struct ring_out ring = {.bytes = bytes, .consumed = &consumed, .size = RING};
  for (uint16_t word; size >= 2; data += 2, size -= 2) {
    memcpy(&word, data, 2);
    uint64_t length = 1 + word % (RING / RING_SHARE + 8);
    uint8_t *room = ring_reserve(&ring, length);
    if (room) {
      require(room >= bytes && room + length <= bytes + RING);
      memset(room, 0xa5, length);
      ring_publish(&ring, length);
    }
    require(ring.head - ring.known <= RING);
    consumed = word & 1 ? ring.head : (uint64_t)word << 5;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t *bytes = ring_of(data, size);
  consume(bytes);
  produce(bytes, data, size);
  free(bytes);
  return 0;
}
