/* SPDX-License-Identifier: Apache-2.0
 *
 * seal_evp.h - AES-256-GCM by OpenSSL, for chunks from SEAL_LONG bytes on: the
 * same bytes as libsodium's, two to five times faster (seal.h has figures), but
 * dearer to begin with. What it knows of a key lies in OpenSSL's memory, which
 * is wiped when it is given back, but not locked: so it is made when the first
 * long chunk comes, for streams that carry payloads, and not for handshakes.
 */
#ifndef SEAL_EVP_H
#define SEAL_EVP_H

#include <stdbool.h>
#include <stdint.h>

enum { SEAL_LONG = 1024 };

/* Of one chunk. clear goes as it is, and is vouched for. */
struct seal_job {
  const uint8_t *nonce, *clear;
  uint32_t clear_length;
  const uint8_t *from; /* length bytes; to may be from, else the two do not */
  uint8_t *to;         /* overlap */
  uint32_t length;
};

/* context: NULL at first; one way only. False: OpenSSL cannot; the chunk is to
 * be made otherwise. */
bool evp_seal(void **context, const uint8_t *key, const struct seal_job *job,
              uint8_t *tag);
/* As evp_seal; is it what was sealed? If not, what is at to is zeroed; until
 * that is known, others who look there see bytes that nobody vouches for. */
bool evp_open(void **context, const uint8_t *key, const struct seal_job *job,
              const uint8_t *tag, bool *good);
void evp_end(void *context); /* wipes it */

#endif
