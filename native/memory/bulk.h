/* SPDX-License-Identifier: Apache-2.0
 *
 * bulk.h - copies between memory that the CPU may touch.
 */
#ifndef BULK_H
#define BULK_H

#include <stdint.h>
#include <string.h>

enum { BULK_LEAST = 512 << 10 };

/* Copies n bytes, at least 64, past the caches: as bulk_copy, a later release
 * store publishes them. */
void bulk_stream(uint8_t *to, const uint8_t *from, uint64_t n);

/* For at least BULK_LEAST bytes. */
void bulk_copy_large(uint8_t *to, const uint8_t *from, uint64_t n,
                     uint64_t total);

/* Copies n bytes, which are all or a part of total, as memcpy does: a later
 * release store publishes them, whatever stores it took. */
static inline void bulk_copy(uint8_t *to, const uint8_t *from, uint64_t n,
                             uint64_t total) {
  if (__builtin_expect(n < BULK_LEAST, 1))
    memcpy(to, from, n);
  else
    bulk_copy_large(to, from, n, total);
}

#endif
