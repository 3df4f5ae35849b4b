/* SPDX-License-Identifier: Apache-2.0
 *
 * bulk.h - copies between memory that the CPU may touch.
 */
#ifndef BULK_H
#define BULK_H

#include <stdint.h>
#include <string.h>

/* Payloads from BULK_LEAST bytes on are copied past the caches if that is the
 * faster way, which is tried anew after each BULK_TRY bytes; pieces shorter than
 * BULK_PIECE are not. */
enum { BULK_LEAST = 512 << 10, BULK_TRY = 1 << 20, BULK_PIECE = 64 << 10 };
enum bulk_way { BULK_UNKNOWN, BULK_CACHED, BULK_STREAMED };

/* Copies n bytes, at least 64, past the caches: as bulk_copy, a later release
 * store publishes them. */
void bulk_stream(uint8_t *to, const uint8_t *from, uint64_t n);

/* For at least BULK_PIECE bytes of BULK_LEAST or more. */
void bulk_copy_large(uint8_t *to, const uint8_t *from, uint64_t n,
                     uint64_t total, uint8_t *way);

/* Copies n bytes, which are all or a part of total, as memcpy does: a later
 * release store publishes them, whatever stores it took. way is what was found
 * out by the pieces before. */
static inline void bulk_copy(uint8_t *to, const uint8_t *from, uint64_t n,
                             uint64_t total, uint8_t *way) {
  if (__builtin_expect(n < BULK_PIECE || total < BULK_LEAST, 1))
    memcpy(to, from, n);
  else
    bulk_copy_large(to, from, n, total, way);
}

#endif
