/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.h - one direction of a byte stream, sealed in chunks: u32 length of what
 * is in it, little-endian, then as many bytes enciphered, then the tag. The
 * length is authenticated too, and the number of the chunk is the nonce, so
 * one that is changed, left out, repeated or moved does not open. That the end
 * was cut off cannot be told here; a session's own BYE tells it.
 *
 * AES-256-GCM where both sides have it in hardware (seal_has_aes, told in
 * HELLO), else ChaCha20-Poly1305. One core of an AMD EPYC (Zen 4), libsodium
 * 1.0.18, in GB/s and, for the shortest, ns:
 *
 *   bytes of a chunk       64 B     1 KiB   4 KiB  16 KiB  64 KiB
 *   AES          seal    191 ns     1.66    1.82    1.84    1.85
 *                open    157 ns     1.52    1.62    1.64    1.64
 *   ChaCha20     seal    329 ns     1.14    1.41    1.48    1.51
 *                open    308 ns     1.13    1.42    1.48    1.50
 *
 * Chunks from 1 KiB on are sealed by OpenSSL (seal_evp.h), where AES is: the
 * same bytes. One core of an Intel Xeon (VAES), OpenSSL 3.0.19, which does not
 * use that, and the best of many turns; 1 KiB, 4 KiB, 16 KiB in GB/s:
 *
 *                libsodium            OpenSSL
 *   seal     1.77  1.92  1.96     2.25  3.78  4.53
 *   open     1.51  1.62  1.64     2.34  3.85  4.57
 *   MAC      4.63  5.22  5.37     3.71  7.92  11.2
 *
 * OpenSSL 4.0.3, which does, sealed 16 KiB at 7.6 on a busy core.
 *
 * Bare, of an Intel Xeon (AVX-512) in ns and GB/s: AES 44 ns, 4.54, 5.12, 5.17,
 * 5.28; ChaCha20-Poly1305 255 ns, 1.89, 2.83, 3.12, 3.26; keyed BLAKE2b at most
 * 0.84. There AES enciphers at 1.8 to 1.94.
 *
 * Nothing is gained beyond 16 KiB, which is the most that a chunk holds: the
 * receiver can begin sooner, and both work within the first cache.
 */
#ifndef SEAL_H
#define SEAL_H

#include <stdbool.h>
#include <stdint.h>

enum { SEAL_KEY = 32, SEAL_HEAD = 4, SEAL_TAG = 16, SEAL_MOST = 16 << 10 };
/* The chunk of length bytes, and the longest. */
#define SEAL_CHUNK(length) (SEAL_HEAD + (length) + SEAL_TAG)
enum { SEAL_CHUNK_MOST = SEAL_CHUNK(SEAL_MOST) };
/* After so many chunks (64 GiB of full ones) a key is replaced by one that is
 * derived from it, by both sides: far below what AES-GCM allows a key. */
#define SEAL_KEY_CHUNKS (UINT64_C(1) << 22)

struct seal {
  _Alignas(16) uint8_t expanded[512]; /* AES: the key's schedule */
  uint8_t key[SEAL_KEY];
  uint64_t counter; /* chunks so far */
  void *evp;        /* seal_evp.h's, or NULL */
  bool aes, bare;
};

/* Has this machine AES in hardware? */
bool seal_has_aes(void);
/* A key is good for one direction of one stream, once. What it begins is ended
 * by seal_end. */
void seal_begin(struct seal *seal, const uint8_t key[SEAL_KEY], bool aes);
/* Its chunks are not enciphered: what is in them goes as it is, and the tag is a
 * MAC of all of it. By another key than any that enciphers. */
void seal_bare(struct seal *seal);
/* Seals 1 to SEAL_MOST bytes: the bytes of the chunk. plain may be chunk +
 * SEAL_HEAD (in place), else the two do not overlap. */
uint32_t seal_close(struct seal *seal, uint8_t *chunk, const uint8_t *plain,
                    uint32_t length);
/* By the first SEAL_HEAD bytes of a chunk: the bytes of all of it, or
 * PERIGEE_PROTOCOL if there is no such chunk. */
int seal_chunk(const uint8_t *chunk);
/* Opens one whole chunk of length bytes: how many were in it, now at plain
 * (chunk + SEAL_HEAD: in place), or PERIGEE_PROTOCOL: it was not sealed so
 * (then what is at plain is zeroed or unchanged, and the stream is over). Until
 * it returns, there may be bytes at plain that nobody vouches for. */
int seal_open(struct seal *seal, uint8_t *plain, const uint8_t *chunk,
              uint32_t length);
void seal_end(struct seal *seal); /* wipes it */

#endif
