/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.c - sealing chunks (seal.h). Chunks from SEAL_LONG bytes on are sealed
 * with AES by OpenSSL, with the same bytes as libsodium's, two to five times
 * faster, but with a higher cost to begin. OpenSSL keeps the key in memory of
 * its own, which it wipes but does not lock. So the context is made when the
 * first long chunk comes, for streams that carry payloads, and not for
 * handshakes. The cipher is looked up once in a process, in a library context
 * of its own: the program's configuration of OpenSSL (openssl.cnf, engines,
 * FIPS) neither affects it nor is affected by it.
 */
#include "seal.h"

#include <openssl/evp.h>
#include <sodium.h>
#include <string.h>
#include <threads.h>

#include "perigee.h"

#define AES(name) crypto_aead_aes256gcm_##name
#define CHACHA(name) crypto_aead_chacha20poly1305_ietf_##name

_Static_assert(sizeof(crypto_aead_aes256gcm_state) == 512, "it fits");
_Static_assert((int)SEAL_KEY == AES(KEYBYTES), "both take keys");
_Static_assert((int)SEAL_KEY == CHACHA(KEYBYTES), "of one length,");
_Static_assert((int)SEAL_KEY == crypto_kdf_KEYBYTES, "as does derivation,");
_Static_assert((int)SEAL_TAG == AES(ABYTES), "and make tags");
_Static_assert((int)SEAL_TAG == CHACHA(ABYTES), "of one length,");
_Static_assert(AES(NPUBBYTES) == CHACHA(NPUBBYTES), "by nonces of one length");
_Static_assert(SEAL_HEAD == sizeof(uint32_t), "the length");

enum { NONCE = AES(NPUBBYTES) };

/* ---- AES-256-GCM by OpenSSL ---------------------------------------------- */

/* One chunk. `clear` is authenticated, not enciphered. */
struct seal_job {
  const uint8_t *nonce, *clear;
  uint32_t clear_length;
  const uint8_t *from; /* length bytes */
  uint8_t *to;         /* may be from; otherwise the two must not overlap */
  uint32_t length;
};

static once_flag once = ONCE_FLAG_INIT;
static EVP_CIPHER *cipher; /* NULL: there is none */

static void evp_look_up(void) {
  OSSL_LIB_CTX *library = OSSL_LIB_CTX_new();
  cipher = library ? EVP_CIPHER_fetch(library, "AES-256-GCM", NULL) : NULL;
}

static EVP_CIPHER_CTX *evp_begin(const uint8_t *key, int way) {
  call_once(&once, evp_look_up);
  EVP_CIPHER_CTX *c = cipher ? EVP_CIPHER_CTX_new() : NULL;
  if (c && EVP_CipherInit_ex(c, cipher, NULL, key, NULL, way) == 1)
    return c;
  EVP_CIPHER_CTX_free(c);
  return NULL;
}

static EVP_CIPHER_CTX *evp_context(void **context, const uint8_t *key,
                                   int way) {
  if (!*context)
    *context = evp_begin(key, way);
  return *context;
}

static bool evp_pass(EVP_CIPHER_CTX *c, const struct seal_job *j) {
  int n;
  return EVP_CipherUpdate(c, NULL, &n, j->clear, (int)j->clear_length) == 1 &&
         (j->length == 0 ||
          EVP_CipherUpdate(c, j->to, &n, j->from, (int)j->length) == 1);
}

/* *context is NULL at first, and is used for one direction only. False if
 * OpenSSL cannot do it; the caller then uses libsodium. */
static bool evp_seal(void **context, const uint8_t *key,
                     const struct seal_job *j, uint8_t *tag) {
  EVP_CIPHER_CTX *c = evp_context(context, key, 1);
  int n;
  uint8_t none[SEAL_TAG];
  return c && EVP_CipherInit_ex(c, NULL, NULL, NULL, j->nonce, 1) == 1 &&
         evp_pass(c, j) && EVP_CipherFinal_ex(c, none, &n) == 1 &&
         EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG, tag) == 1;
}

/* As evp_seal; *good tells whether the chunk is authentic. The bytes at `to`
 * are zeroed if it is not; until then they are unauthenticated. */
static bool evp_open(void **context, const uint8_t *key,
                     const struct seal_job *j, const uint8_t *tag, bool *good) {
  EVP_CIPHER_CTX *c = evp_context(context, key, 0);
  int n;
  uint8_t none[SEAL_TAG], told[SEAL_TAG];
  memcpy(told, tag, SEAL_TAG); /* which OpenSSL takes as not const */
  if (!c || EVP_CipherInit_ex(c, NULL, NULL, NULL, j->nonce, 0) != 1 ||
      EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, SEAL_TAG, told) != 1)
    return false;
  *good = evp_pass(c, j) && EVP_CipherFinal_ex(c, none, &n) == 1;
  if (!*good && j->length > 0)
    memset(j->to, 0, j->length);
  return true;
}

static void evp_end(void *context) {
  EVP_CIPHER_CTX_free(context);
}

/* ---- Keys ---------------------------------------------------------------- */

/* Makes the next chunk's nonce, and a new key when the old one was used up. */
static void seal_next(struct seal *s, uint8_t nonce[NONCE]) {
  if (s->counter > 0 && s->counter % SEAL_KEY_CHUNKS == 0) {
    uint64_t counter = s->counter;
    uint8_t key[SEAL_KEY];
    crypto_kdf_derive_from_key(key, sizeof key, counter, "pgrekey", s->key);
    bool bare = s->bare, aes = s->aes;
    seal_end(s);
    seal_begin(s, key, aes);
    sodium_memzero(key, sizeof key);
    s->counter = counter;
    s->bare = bare;
  }
  memset(nonce, 0, NONCE);
  memcpy(nonce, &s->counter, sizeof s->counter);
  s->counter++;
}

bool seal_has_aes(void) {
  return AES(is_available)() == 1;
}

void seal_begin(struct seal *s, const uint8_t key[SEAL_KEY], bool aes) {
  memset(s, 0, sizeof *s);
  s->aes = aes;
  memcpy(s->key, key, SEAL_KEY);
  if (aes)
    AES(beforenm)((void *)s->expanded, key);
}

void seal_bare(struct seal *s) {
  s->bare = true;
}

/* ---- Long chunks, by OpenSSL --------------------------------------------- */

static bool seal_is_long(const struct seal *s, uint32_t length) {
  return s->aes && length >= SEAL_LONG;
}

static struct seal_job seal_job_of(const struct seal *s, const uint8_t *chunk,
                                   uint32_t length,
                                   const uint8_t nonce[NONCE]) {
  struct seal_job job = {
      .nonce = nonce, .clear = chunk, .clear_length = SEAL_HEAD};
  if (s->bare)
    job.clear_length += length;
  else
    job.length = length;
  return job;
}

static bool seal_close_long(struct seal *s, uint8_t *chunk,
                            const uint8_t *plain, uint32_t length,
                            const uint8_t nonce[NONCE]) {
  struct seal_job job = seal_job_of(s, chunk, length, nonce);
  job.from = plain;
  job.to = chunk + SEAL_HEAD;
  return seal_is_long(s, length) &&
         evp_seal(&s->evp, s->key, &job, chunk + SEAL_HEAD + length);
}

static bool seal_open_long(struct seal *s, uint8_t *plain, const uint8_t *chunk,
                           uint32_t length, const uint8_t nonce[NONCE],
                           bool *good) {
  struct seal_job job = seal_job_of(s, chunk, length, nonce);
  job.from = chunk + SEAL_HEAD;
  job.to = plain;
  return seal_is_long(s, length) &&
         evp_open(&s->evp, s->key, &job, chunk + SEAL_HEAD + length, good);
}

/* ---- Bare chunks: authenticated, not enciphered -------------------------- */

static void seal_mark(struct seal *s, uint8_t *chunk, uint32_t length,
                      const uint8_t nonce[NONCE]) {
  uint8_t none, *tag = chunk + SEAL_HEAD + length;
  uint32_t all = SEAL_HEAD + length;
  if (seal_close_long(s, chunk, NULL, length, nonce))
    return;
  if (s->aes)
    AES(encrypt_detached_afternm)
  (&none, tag, NULL, &none, 0, chunk, all, NULL, nonce, (void *)s->expanded);
  else CHACHA(encrypt_detached)(&none, tag, NULL, &none, 0, chunk, all, NULL,
                                nonce, s->key);
}

static int seal_is_marked(struct seal *s, const uint8_t *chunk, uint32_t length,
                          const uint8_t nonce[NONCE]) {
  bool good;
  uint8_t none = 0;
  const uint8_t *tag = chunk + SEAL_HEAD + length;
  uint32_t all = SEAL_HEAD + length;
  if (seal_open_long(s, NULL, chunk, length, nonce, &good))
    return good ? 0 : -1;
  return s->aes
             ? AES(decrypt_detached_afternm)(&none, NULL, &none, 0, tag, chunk,
                                             all, nonce, (void *)s->expanded)
             : CHACHA(decrypt_detached)(&none, NULL, &none, 0, tag, chunk, all,
                                        nonce, s->key);
}

static uint32_t seal_close_bare(struct seal *s, uint8_t *chunk,
                                const uint8_t *plain, uint32_t length,
                                const uint8_t nonce[NONCE]) {
  if (plain != chunk + SEAL_HEAD)
    memcpy(chunk + SEAL_HEAD, plain, length);
  seal_mark(s, chunk, length, nonce);
  return SEAL_CHUNK(length);
}

static int seal_open_bare(struct seal *s, uint8_t *plain, const uint8_t *chunk,
                          uint32_t length, const uint8_t nonce[NONCE]) {
  if (seal_is_marked(s, chunk, length, nonce) != 0)
    return PERIGEE_PROTOCOL;
  if (plain != chunk + SEAL_HEAD)
    memcpy(plain, chunk + SEAL_HEAD, length);
  return (int)length;
}

/* ---- Chunks -------------------------------------------------------------- */

uint32_t seal_close(struct seal *s, uint8_t *chunk, const uint8_t *plain,
                    uint32_t length) {
  uint8_t nonce[NONCE];
  seal_next(s, nonce);
  memcpy(chunk, &length, SEAL_HEAD);
  if (s->bare)
    return seal_close_bare(s, chunk, plain, length, nonce);
  if (seal_close_long(s, chunk, plain, length, nonce))
    return SEAL_CHUNK(length);
  if (s->aes)
    AES(encrypt_afternm)
  (chunk + SEAL_HEAD, NULL, plain, length, chunk, SEAL_HEAD, NULL, nonce,
   (void *)s->expanded);
  else CHACHA(encrypt)(chunk + SEAL_HEAD, NULL, plain, length, chunk, SEAL_HEAD,
                       NULL, nonce, s->key);
  return SEAL_CHUNK(length);
}

int seal_chunk(const uint8_t *chunk) {
  uint32_t length;
  memcpy(&length, chunk, sizeof length);
  if (length == 0 || length > SEAL_MOST)
    return PERIGEE_PROTOCOL;
  return (int)SEAL_CHUNK(length);
}

int seal_open(struct seal *s, uint8_t *plain, const uint8_t *chunk,
              uint32_t length) {
  uint8_t nonce[NONCE];
  bool good;
  if (length < SEAL_CHUNK(1) || seal_chunk(chunk) != (int)length)
    return PERIGEE_PROTOCOL;
  seal_next(s, nonce);
  if (s->bare)
    return seal_open_bare(s, plain, chunk, length - SEAL_CHUNK(0), nonce);
  if (seal_open_long(s, plain, chunk, length - SEAL_CHUNK(0), nonce, &good))
    return good ? (int)(length - SEAL_CHUNK(0)) : PERIGEE_PROTOCOL;
  const uint8_t *sealed = chunk + SEAL_HEAD;
  int bad =
      s->aes
          ? AES(decrypt_afternm)(plain, NULL, NULL, sealed, length - SEAL_HEAD,
                                 chunk, SEAL_HEAD, nonce, (void *)s->expanded)
          : CHACHA(decrypt)(plain, NULL, NULL, sealed, length - SEAL_HEAD,
                            chunk, SEAL_HEAD, nonce, s->key);
  return bad ? PERIGEE_PROTOCOL : (int)(length - SEAL_CHUNK(0));
}

void seal_end(struct seal *s) {
  evp_end(s->evp);
  sodium_memzero(s, sizeof *s);
}
