/* SPDX-License-Identifier: Apache-2.0
 *
 * seal_evp.h - AES-256-GCM by OpenSSL, for chunks from SEAL_LONG bytes on: the
 * same bytes as libsodium's, two to five times faster (figures in seal.h), but
 * with a higher cost to begin. OpenSSL keeps the key in memory of its own,
 * which it wipes but does not lock. So the context is made when the first long
 * chunk comes, for streams that carry payloads, and not for handshakes.
 */
#ifndef SEAL_EVP_H
#define SEAL_EVP_H

#include <stdbool.h>
#include <stdint.h>

enum { SEAL_LONG = 1024 };

/* One chunk. `clear` is authenticated, not enciphered. */
struct seal_job {
  const uint8_t *nonce, *clear;
  uint32_t clear_length;
  const uint8_t *from; /* length bytes */
  uint8_t *to;         /* may be from; otherwise the two must not overlap */
  uint32_t length;
};

/* *context is NULL at first, and is used for one direction only. False if
 * OpenSSL cannot do it; the caller then uses libsodium. */
bool evp_seal(void **context, const uint8_t *key, const struct seal_job *job,
              uint8_t *tag);
/* As evp_seal; *good tells whether the chunk is authentic. If it is not, the
 * bytes at `to` are zeroed; until then they are unauthenticated. */
bool evp_open(void **context, const uint8_t *key, const struct seal_job *job,
              const uint8_t *tag, bool *good);
void evp_end(void *context); /* wipes it */

#endif
