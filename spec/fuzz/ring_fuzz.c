/* SPDX-License-Identifier: Apache-2.0
 *
 * ring_fuzz.c - a ring that the peer has filled with any words, also in memory
 * to which it may move, and a peer that claims to have consumed anything.
 * Records must lie inside the ring and come to an end, and no room may be given
 * twice.
 *
 * decoder: native/base/ring.c
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/ring.h"
#include "perigee.h"

enum {
  RING = 4096,
  MOST = RING / RING_SHARE + RING_HEAD,
  LARGEST = MOST / RING_UNIT
};

static void require(bool holds) {
  if (!holds)
    abort();
}

/* Random words would hardly ever form records. So each two bytes of input
 * give a place in the ring, or in the other memory, and the units in the word
 * there, or a move. */
static void word_at(uint8_t *place, uint64_t position, uint64_t units) {
  uint64_t words[] = {ring_word(0, position, units),
                      ring_word(0, position, RING_MOVE)};
  if (units > LARGEST + 1)
    words[0] = ring_word(0, position, 0);
  memcpy(place, words, units > LARGEST + 1 ? sizeof words : sizeof *words);
}

static uint8_t *ring_of(const uint8_t *data, size_t size) {
  uint8_t *bytes = aligned_alloc(RING_UNIT, 2 * RING);
  require(bytes != NULL);
  memset(bytes, 0xff, 2 * RING);
  for (; size >= 2; data += 2, size -= 2) {
    uint64_t at = data[0] % (2 * RING / RING_UNIT) * RING_UNIT;
    word_at(bytes + at, at % RING, data[1] % (LARGEST + 3));
  }
  return bytes;
}

/* A word fits only one position, so a ring gives at most one lap of records. */
static void consume(uint8_t *bytes) {
  _Atomic uint64_t consumed = 0;
  struct ring_in ring;
  ring_open(&ring, bytes, RING, 0, &consumed);
  ring.other = bytes + RING;
  ring.other_size = RING;
  const uint8_t *record;
  uint64_t length;
  int status, count = 0;
  while ((status = ring_peek(&ring, &record, &length)) == 1) {
    require(record >= bytes && record < bytes + 2 * RING);
    require(length > 0 && length <= MOST);
    require((uint64_t)(record - bytes) % RING <= RING - length);
    require(++count <= RING / RING_UNIT);
    ring_release(&ring);
    require(consumed <= ring.tail);
  }
  require(status == 0 || status == PERIGEE_PROTOCOL);
}

/* Each word of the data is a length to send and the peer's next claim; some move
 * the ring first. */
static void produce(uint8_t *bytes, const uint8_t *data, size_t size) {
  _Atomic uint64_t consumed = 0;
  struct ring_out ring;
  ring_begin(&ring, bytes, RING, 0, &consumed);
  for (uint16_t word; size >= 2; data += 2, size -= 2) {
    memcpy(&word, data, 2);
    uint64_t length = 1 + word % (MOST + 8);
    if (word % 7 == 0)
      ring_move(&ring, ring.bytes == bytes ? bytes + RING : bytes, RING);
    uint8_t *room = ring_reserve(&ring, length);
    if (room) {
      require(room >= ring.bytes && room + length <= ring.bytes + RING);
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
