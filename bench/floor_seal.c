/* SPDX-License-Identifier: Apache-2.0
 *
 * The floor of encrypted transfers: how fast one thread encrypts SIZE bytes,
 * cut into chunks of 16 KiB (--chunk) as native/security/seal.h does, between
 * touched memory: with libsodium (AES-256-GCM if the processor has it, else
 * ChaCha20-Poly1305), then with OpenSSL (AES-256-GCM). --how sodium or openssl:
 * with that one only. The benches use the faster one as the floor.
 */
#include "floor.h"

#include <openssl/evp.h>
#include <sodium.h>

enum { CHUNK = 16 << 10, TAG = 16, HEAD = 4 };
_Static_assert(TAG == crypto_aead_aes256gcm_ABYTES, "");
_Static_assert(TAG == crypto_aead_chacha20poly1305_ietf_ABYTES, "");

struct cipher {
  crypto_aead_aes256gcm_state state;
  uint8_t key[crypto_aead_aes256gcm_KEYBYTES];
  uint8_t nonce[crypto_aead_aes256gcm_NPUBBYTES];
  EVP_CIPHER_CTX *openssl; /* NULL: libsodium's turn */
  bool aes;
  size_t chunk;
  uint64_t chunks;
};

static void seal_openssl(struct cipher *c, uint8_t *to, const uint8_t *from,
                         uint32_t length) {
  int n;
  if (EVP_EncryptInit_ex(c->openssl, NULL, NULL, NULL, c->nonce) != 1 ||
      EVP_EncryptUpdate(c->openssl, NULL, &n, to, HEAD) != 1 ||
      EVP_EncryptUpdate(c->openssl, to + HEAD, &n, from, (int)length) != 1 ||
      EVP_EncryptFinal_ex(c->openssl, to + HEAD + length, &n) != 1 ||
      EVP_CIPHER_CTX_ctrl(c->openssl, EVP_CTRL_AEAD_GET_TAG, TAG,
                          to + HEAD + length) != 1)
    die("OpenSSL");
}

static void seal(struct cipher *c, uint8_t *to, const uint8_t *from,
                 uint32_t length) {
  memcpy(c->nonce, &c->chunks, sizeof c->chunks);
  c->chunks++;
  memcpy(to, &length, HEAD);
  if (c->openssl)
    seal_openssl(c, to, from, length);
  else if (c->aes)
    crypto_aead_aes256gcm_encrypt_afternm(to + HEAD, NULL, from, length, to,
                                          HEAD, NULL, c->nonce, &c->state);
  else
    crypto_aead_chacha20poly1305_ietf_encrypt(to + HEAD, NULL, from, length, to,
                                              HEAD, NULL, c->nonce, c->key);
}

static double round_one(struct cipher *c, uint8_t *to, uint8_t *from,
                        size_t size) {
  stamp(from, size, c->chunks);
  int64_t begin = now();
  for (size_t at = 0; at < size; at += c->chunk) {
    size_t part = size - at < c->chunk ? size - at : c->chunk;
    seal(c, to, from + at, (uint32_t)part);
  }
  return (double)(now() - begin);
}

static void measure(struct cipher *c, const struct options *options,
                    const char *text, struct samples *samples) {
  size_t size = strtoull(text, NULL, 10);
  uint8_t *from = memory(size, MAP_PRIVATE);
  uint8_t *to = memory(HEAD + c->chunk + TAG, MAP_PRIVATE);
  samples->count = 0;
  int64_t begin = now(), span = (int64_t)(options->seconds * 1e9);
  for (int i = 0; i < 3 || now() - begin < span / 8; i++)
    round_one(c, to, from, size);
  int64_t end = now() + span;
  while (samples->count < 3 || (now() < end && samples->count < SAMPLES))
    samples->ns[samples->count++] = round_one(c, to, from, size);
  report(options,
         c->openssl ? "openssl-aes-256-gcm"
         : c->aes   ? "aes-256-gcm"
                    : "chacha20",
         text, samples);
}

static const char *const hows[] = {"sodium", "openssl"};

static bool wanted(const struct options *options, const char *how) {
  return !options->how || !strcmp(options->how, how);
}

int main(int argc, char **argv) {
  struct options options = options_parse(argc, argv);
  static struct cipher cipher;
  if (sodium_init() < 0)
    die("sodium_init");
  cipher.chunk = options.chunk > 0 ? (size_t)options.chunk : CHUNK;
  cipher.aes = crypto_aead_aes256gcm_is_available();
  crypto_aead_aes256gcm_keygen(cipher.key);
  crypto_aead_aes256gcm_beforenm(&cipher.state, cipher.key);
  pin(options.pins[0]);
  struct samples samples = samples_new();
  EVP_CIPHER_CTX *openssl = EVP_CIPHER_CTX_new();
  if (!openssl || EVP_EncryptInit_ex(openssl, EVP_aes_256_gcm(), NULL,
                                     cipher.key, NULL) != 1)
    die("OpenSSL");
  for (int way = 0; way < 2; way++)
    for (int i = optind; i < argc && wanted(&options, hows[way]); i++) {
      cipher.openssl = way == 0 ? NULL : openssl;
      measure(&cipher, &options, argv[i], &samples);
    }
  EVP_CIPHER_CTX_free(openssl);
  return 0;
}
