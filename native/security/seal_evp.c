/* SPDX-License-Identifier: Apache-2.0
 *
 * seal_evp.c - looks the cipher up once in a process, in a library context of
 * its own: the program's configuration of OpenSSL (openssl.cnf, engines, FIPS)
 * neither affects it nor is affected by it.
 */
#include "seal_evp.h"

#include <openssl/evp.h>
#include <string.h>
#include <threads.h>

#include "seal.h"

static once_flag once = ONCE_FLAG_INIT;
static EVP_CIPHER *cipher; /* NULL: there is none */

static void look_up(void) {
  OSSL_LIB_CTX *library = OSSL_LIB_CTX_new();
  cipher = library ? EVP_CIPHER_fetch(library, "AES-256-GCM", NULL) : NULL;
}

static EVP_CIPHER_CTX *begin(const uint8_t *key, int way) {
  call_once(&once, look_up);
  EVP_CIPHER_CTX *c = cipher ? EVP_CIPHER_CTX_new() : NULL;
  if (c && EVP_CipherInit_ex(c, cipher, NULL, key, NULL, way) == 1)
    return c;
  EVP_CIPHER_CTX_free(c);
  return NULL;
}

static EVP_CIPHER_CTX *context_of(void **context, const uint8_t *key, int way) {
  if (!*context)
    *context = begin(key, way);
  return *context;
}

static bool pass(EVP_CIPHER_CTX *c, const struct seal_job *j) {
  int n;
  return EVP_CipherUpdate(c, NULL, &n, j->clear, (int)j->clear_length) == 1 &&
         (j->length == 0 ||
          EVP_CipherUpdate(c, j->to, &n, j->from, (int)j->length) == 1);
}

bool evp_seal(void **context, const uint8_t *key, const struct seal_job *j,
              uint8_t *tag) {
  EVP_CIPHER_CTX *c = context_of(context, key, 1);
  int n;
  uint8_t none[SEAL_TAG];
  return c && EVP_CipherInit_ex(c, NULL, NULL, NULL, j->nonce, 1) == 1 &&
         pass(c, j) && EVP_CipherFinal_ex(c, none, &n) == 1 &&
         EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG, tag) == 1;
}

bool evp_open(void **context, const uint8_t *key, const struct seal_job *j,
              const uint8_t *tag, bool *good) {
  EVP_CIPHER_CTX *c = context_of(context, key, 0);
  int n;
  uint8_t none[SEAL_TAG], told[SEAL_TAG];
  memcpy(told, tag, SEAL_TAG); /* which OpenSSL takes as not const */
  if (!c || EVP_CipherInit_ex(c, NULL, NULL, NULL, j->nonce, 0) != 1 ||
      EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, SEAL_TAG, told) != 1)
    return false;
  *good = pass(c, j) && EVP_CipherFinal_ex(c, none, &n) == 1;
  if (!*good && j->length > 0)
    memset(j->to, 0, j->length);
  return true;
}

void evp_end(void *context) {
  EVP_CIPHER_CTX_free(context);
}
