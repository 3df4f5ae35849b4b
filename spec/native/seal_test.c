/* SPDX-License-Identifier: Apache-2.0
 *
 * seal_test.c - chunks of a sealed stream, with both ciphers: a chunk opens
 * once and in order; it does not open if any bit is changed, or if it is cut,
 * omitted, repeated or moved.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sodium.h>

#include "perigee.h"
#include "security/seal.h"
#include "security/secret.h"

static const uint8_t key[SEAL_KEY] = {1, 2, 3};
static struct seal out, in;
static uint8_t plain[SEAL_MOST], opened[SEAL_MOST];
static uint8_t chunk[SEAL_CHUNK_MOST], second[SEAL_CHUNK_MOST];

struct way {
  bool aes, bare;
};

static bool is_bare(void **state) {
  return ((const struct way *)*state)->bare;
}

static int setup(void **state) {
  const struct way *way = *state;
  bool aes = way->aes;
  if (!secret_library())
    return -1;
  for (uint32_t i = 0; i < SEAL_MOST; i++)
    plain[i] = (uint8_t)(i * 7 + 1);
  if (aes && !seal_has_aes())
    return 0;
  seal_begin(&out, key, aes);
  seal_begin(&in, key, aes);
  if (way->bare) {
    seal_bare(&out);
    seal_bare(&in);
  }
  return 0;
}

static int teardown(void **state) {
  (void)state;
  seal_end(&out);
  seal_end(&in);
  return 0;
}

static void must_have(void **state) {
  if (((const struct way *)*state)->aes && !seal_has_aes())
    skip();
}

static void closed(uint32_t length) {
  assert_int_equal(seal_close(&out, chunk, plain, length), SEAL_CHUNK(length));
  assert_int_equal(seal_chunk(chunk), SEAL_CHUNK(length));
}

static int open_it(const uint8_t *from, uint32_t length) {
  memset(opened, 0xaa, sizeof opened);
  return seal_open(&in, opened, from, length);
}

static void opens(uint32_t length) {
  assert_int_equal(open_it(chunk, SEAL_CHUNK(length)), length);
  assert_memory_equal(opened, plain, length);
}

/* The content is not visible in the chunk. */
static void does_not_open(const uint8_t *from, uint32_t length) {
  uint64_t before = in.counter;
  assert_int_equal(open_it(from, length), PERIGEE_PROTOCOL);
  assert_memory_not_equal(opened, plain, 8);
  in.counter = before;
}

static void chunks_of_any_length_open(void **state) {
  must_have(state);
  static const uint32_t lengths[] = {1,         2,
                                     15,        16,
                                     17,        31,
                                     24,        64,
                                     1000,      SEAL_LONG - 1,
                                     SEAL_LONG, SEAL_LONG + 1,
                                     4096,      SEAL_MOST - 1,
                                     SEAL_MOST};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    closed(lengths[i]);
    opens(lengths[i]);
  }
}

static void they_open_where_they_lie(void **state) {
  must_have(state);
  memcpy(chunk + SEAL_HEAD, plain, 5000);
  seal_close(&out, chunk, chunk + SEAL_HEAD, 5000);
  assert_int_equal(memcmp(chunk + SEAL_HEAD, plain, 5000) == 0, is_bare(state));
  assert_int_equal(seal_open(&in, chunk + SEAL_HEAD, chunk, SEAL_CHUNK(5000)),
                   5000);
  assert_memory_equal(chunk + SEAL_HEAD, plain, 5000);
}

static void equal_bytes_do_not_look_equal(void **state) {
  must_have(state);
  closed(64);
  memcpy(second, chunk, SEAL_CHUNK(64));
  closed(64);
  assert_memory_not_equal(chunk, second, SEAL_CHUNK(64));
  if (is_bare(state))
    return; /* but for their tags */
  assert_memory_not_equal(chunk + SEAL_HEAD, second + SEAL_HEAD, 64);
  assert_memory_not_equal(chunk + SEAL_HEAD, plain, 16);
}

static void flips(uint32_t length) {
  closed(length);
  for (uint32_t bit = 0; bit < 8 * SEAL_CHUNK(length); bit++) {
    chunk[bit / 8] ^= (uint8_t)(1 << bit % 8);
    does_not_open(chunk, SEAL_CHUNK(length));
    chunk[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
  opens(length);
}

static void no_bit_may_change(void **state) {
  must_have(state);
  flips(100);
  flips(SEAL_LONG);
}

/* Whichever side makes the chunks: a peer may have only one of the two
 * libraries, or another threshold for "long". */
static void both_libraries_make_the_same_chunks(void **state) {
  must_have(state);
  static const uint8_t nonce[crypto_aead_aes256gcm_NPUBBYTES];
  bool bare = is_bare(state);
  uint64_t length = bare ? 0 : SEAL_MOST;
  if (!((const struct way *)*state)->aes)
    return; /* there it is one library */
  closed(SEAL_MOST);
  assert_non_null(out.evp);
  memcpy(second, chunk, sizeof second);
  crypto_aead_aes256gcm_encrypt_detached(
      second + SEAL_HEAD, second + SEAL_HEAD + SEAL_MOST, NULL, plain, length,
      second, SEAL_HEAD + SEAL_MOST - length, NULL, nonce, key);
  assert_memory_equal(chunk, second, sizeof chunk);
}

static void nothing_may_be_cut_off_or_added(void **state) {
  must_have(state);
  closed(100);
  for (uint32_t n = 0; n < SEAL_CHUNK(100); n++) {
    uint32_t said = n > SEAL_CHUNK(0) ? n - SEAL_CHUNK(0) : 100;
    memcpy(second, chunk, sizeof second);
    does_not_open(second, n); /* as it came, and with a length that fits */
    memcpy(second, &said, SEAL_HEAD);
    does_not_open(second, n);
  }
  does_not_open(chunk, SEAL_CHUNK(101));
  opens(100);
}

static void the_order_is_kept(void **state) {
  must_have(state);
  closed(100);
  memcpy(second, chunk, sizeof second);
  closed(100);
  does_not_open(chunk, SEAL_CHUNK(100)); /* one was left out, */
  memcpy(chunk, second, sizeof chunk);
  opens(100);
  does_not_open(chunk, SEAL_CHUNK(100)); /* repeated, */
  seal_close(&out, second, plain, 100);
  does_not_open(second, SEAL_CHUNK(100)); /* moved. */
}

static void other_keys_open_nothing(void **state) {
  must_have(state);
  static const uint8_t another[SEAL_KEY] = {1, 2, 4};
  static const uint32_t lengths[] = {100, SEAL_MOST};
  for (int i = 0; i < 2; i++) {
    closed(lengths[i]);
    seal_end(&in);
    seal_begin(&in, another, out.aes);
    if (is_bare(state))
      seal_bare(&in);
    does_not_open(chunk, SEAL_CHUNK(lengths[i]));
  }
}

static void lengths_are_limited(void **state) {
  must_have(state);
  static const uint32_t bad[] = {0, SEAL_MOST + 1, 0x7fffffff, 0xfffffff0,
                                 0xffffffff};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    memcpy(chunk, &bad[i], SEAL_HEAD);
    assert_int_equal(seal_chunk(chunk), PERIGEE_PROTOCOL);
    does_not_open(chunk, SEAL_CHUNK(100));
  }
}

static void keys_are_replaced_in_time(void **state) {
  must_have(state);
  out.counter = in.counter = SEAL_KEY_CHUNKS - 2;
  for (int i = 0; i < 5; i++) {
    uint32_t length = i % 2 ? SEAL_MOST : 100; /* the new key is for both */
    closed(length);
    opens(length);
    assert_int_equal(memcmp(out.key, key, SEAL_KEY) != 0, i >= 2);
  }
  assert_int_equal(out.counter, SEAL_KEY_CHUNKS + 3);
  assert_memory_equal(out.key, in.key, SEAL_KEY);
}

static void the_ends_leave_nothing(void **state) {
  must_have(state);
  static const struct seal blank;
  closed(SEAL_MOST);
  seal_end(&out);
  assert_memory_equal(&out, &blank, sizeof blank);
}

int main(void) {
  static struct way hard = {.aes = true}, soft = {.aes = false},
                    hard_bare = {true, true}, soft_bare = {false, true};
#define test(name)                                                             \
  {#name " (AES)", name, setup, teardown, &hard},                              \
      {#name " (ChaCha20)", name, setup, teardown, &soft},                     \
      {#name " (AES, bare)", name, setup, teardown, &hard_bare}, {             \
#name " (Poly1305, bare)", name, setup, teardown, &soft_bare               \
  }
  const struct CMUnitTest tests[] = {
      test(chunks_of_any_length_open),
      test(they_open_where_they_lie),
      test(equal_bytes_do_not_look_equal),
      test(no_bit_may_change),
      test(nothing_may_be_cut_off_or_added),
      test(the_order_is_kept),
      test(other_keys_open_nothing),
      test(lengths_are_limited),
      test(both_libraries_make_the_same_chunks),
      test(keys_are_replaced_in_time),
      test(the_ends_leave_nothing),
  };
  return cmocka_run_group_tests_name("seal", tests, NULL, NULL);
}
