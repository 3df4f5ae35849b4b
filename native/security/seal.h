/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.h - authenticated encryption of one direction of a byte stream, in
 * chunks: u32 length of the content, little-endian, then the content
 * enciphered, then the tag. The length is authenticated and the number of the
 * chunk is the nonce, so a chunk that is changed, left out, repeated or moved
 * does not open. Nothing here tells that the end of the stream was cut off; the
 * session's BYE does.
 *
 * The cipher is AES-256-GCM where both sides have AES in hardware
 * (seal_has_aes, told in TERMS), else ChaCha20-Poly1305. One core of an AMD
 * EPYC (Zen 4), libsodium 1.0.18, in GB/s and, for the shortest, ns:
 *
 *   bytes of a chunk       64 B     1 KiB   4 KiB  16 KiB  64 KiB
 *   AES          seal    191 ns     1.66    1.82    1.84    1.85
 *                open    157 ns     1.52    1.62    1.64    1.64
 *   ChaCha20     seal    329 ns     1.14    1.41    1.48    1.51
 *                open    308 ns     1.13    1.42    1.48    1.50
 *
 * With AES, chunks from 1 KiB on are sealed by OpenSSL (seal.c), with the
 * same result. One core of an Intel Xeon (VAES), OpenSSL 3.0.19, which does not
 * use VAES, the best of many turns; 1 KiB, 4 KiB, 16 KiB in GB/s:
 *
 *                libsodium            OpenSSL
 *   seal     1.77  1.92  1.96     2.25  3.78  4.53
 *   open     1.51  1.62  1.64     2.34  3.85  4.57
 *   MAC      4.63  5.22  5.37     3.71  7.92  11.2
 *
 * OpenSSL 4.0.3, which uses it, sealed 16 KiB at 7.6 on a busy core.
 *
 * Bare chunks (a MAC only) on an Intel Xeon (AVX-512), ns for the shortest,
 * then GB/s: AES 44 ns, 4.54, 5.12, 5.17, 5.28; ChaCha20-Poly1305 255 ns, 1.89,
 * 2.83, 3.12, 3.26; keyed BLAKE2b at most 0.84. There AES enciphers at 1.8 to
 * 1.94.
 *
 * A chunk holds at most 16 KiB, as larger ones gain nothing: with short chunks
 * the receiver begins sooner, and both sides work within the first cache.
 */
#ifndef SEAL_H
#define SEAL_H

#include <stdbool.h>
#include <stdint.h>

/* SEAL_LONG: with AES, chunks of so many bytes are sealed by OpenSSL. */
enum { SEAL_LONG = 1024 };
enum { SEAL_KEY = 32, SEAL_HEAD = 4, SEAL_TAG = 16, SEAL_MOST = 16 << 10 };
/* The size of a chunk with that much content, and the largest. */
#define SEAL_CHUNK(length) (SEAL_HEAD + (length) + SEAL_TAG)
enum { SEAL_CHUNK_MOST = SEAL_CHUNK(SEAL_MOST) };
/* Both sides replace the key by one derived from it after so many chunks (64
 * GiB if they are full): far below AES-GCM's limit for one key. */
#define SEAL_KEY_CHUNKS (UINT64_C(1) << 22)

struct seal {
  _Alignas(16) uint8_t expanded[512]; /* AES: the key's schedule */
  uint8_t key[SEAL_KEY];
  uint64_t counter; /* chunks so far */
  void *evp;        /* context of OpenSSL, or NULL */
  bool aes, bare;
};

/* Has this machine AES in hardware? */
bool seal_has_aes(void);
/* A key must be used for one direction of one stream, once. seal_end releases
 * what seal_begin has made. */
void seal_begin(struct seal *seal, const uint8_t key[SEAL_KEY], bool aes);
/* Makes chunks bare: the content is not enciphered, and the tag is a MAC of the
 * whole chunk. The key must not be one that enciphers. */
void seal_bare(struct seal *seal);
/* Seals 1 to SEAL_MOST bytes and returns the size of the chunk. plain may be
 * chunk + SEAL_HEAD (in place); otherwise the two must not overlap. */
uint32_t seal_close(struct seal *seal, uint8_t *chunk, const uint8_t *plain,
                    uint32_t length);
/* Returns the size of the chunk that begins with these SEAL_HEAD bytes, or
 * PERIGEE_PROTOCOL if no chunk begins so. */
int seal_chunk(const uint8_t *chunk);
/* Opens one whole chunk of length bytes and returns the size of its content,
 * now at plain (which may be chunk + SEAL_HEAD: in place). PERIGEE_PROTOCOL if
 * it was not sealed by the peer: the bytes at plain are then zeroed or
 * unchanged, and the stream cannot go on. Bytes at plain may be unauthenticated
 * until the function returns. */
int seal_open(struct seal *seal, uint8_t *plain, const uint8_t *chunk,
              uint32_t length);
void seal_end(struct seal *seal); /* wipes it */

#endif
