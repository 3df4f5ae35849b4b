/* SPDX-License-Identifier: Apache-2.0
 *
 * handshake_test.c - two sides and an attacker between them: a handshake proves
 * that the peer has the secret. No one else passes, and no proof is valid twice
 * or for another handshake.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "perigee.h"
#include "security/handshake.h"

enum { DIALER, ACCEPTOR }; /* side[0] dials */

/* What is sent: as much of a HELLO as is needed here. */
struct words {
  uint8_t challenge[HANDSHAKE_CHALLENGE], public_key[HANDSHAKE_KEY];
  uint64_t rest;
};

struct side {
  struct handshake handshake;
  struct secret secret;
  struct words words;
  uint8_t proof[HANDSHAKE_MAC], key[HANDSHAKE_KEY];
};

static uint64_t dice = 1;

static int dream(void *context, void *bytes, uint64_t length) {
  uint8_t *at = bytes;
  (void)context;
  for (uint64_t i = 0; i < length; i++) {
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    at[i] = (uint8_t)(dice >> 56);
  }
  return 0;
}

static int no_dream(void *context, void *bytes, uint64_t length) {
  (void)context, (void)bytes, (void)length;
  return PERIGEE_SYSTEM;
}

static struct secret secret_of(const char *text, const char *scope) {
  struct secret secret;
  char reason[256];
  assert_int_equal(secret_load(text, scope, &secret, reason, sizeof reason), 0);
  return secret;
}

static void begin(struct side side[2], const char *one, const char *other) {
  const char *texts[2] = {one, other};
  for (int i = 0; i < 2; i++) {
    struct side *s = &side[i];
    s->secret = secret_of(texts[i], "cluster");
    s->words.rest = 7;
    assert_int_equal(handshake_begin(&s->handshake, i == DIALER, dream, NULL,
                                     s->words.challenge, s->words.public_key),
                     PERIGEE_OK);
    handshake_hello(&s->handshake, i == DIALER, &s->words, sizeof s->words);
  }
}

static int agree(struct side *s, const struct words *heard) {
  handshake_hello(&s->handshake, !s->handshake.dialer, heard, sizeof *heard);
  int status = handshake_agree(&s->handshake, &s->secret, heard->public_key);
  handshake_prove(&s->handshake, s->proof);
  return status;
}

static void meet(struct side side[2]) {
  assert_int_equal(agree(&side[0], &side[1].words), PERIGEE_OK);
  assert_int_equal(agree(&side[1], &side[0].words), PERIGEE_OK);
}

/* Whether each side accepts the other's proof. */
static int trusts(const struct side side[2]) {
  return handshake_proven(&side[0].handshake, side[1].proof) +
         handshake_proven(&side[1].handshake, side[0].proof);
}

static const char one[] = "correct horse battery staple";
static const char other[] = "correct horse battery stable";

static void who_has_the_secret_is_known(void **state) {
  (void)state;
  struct side side[2];
  begin(side, one, one);
  meet(side);
  assert_int_equal(trusts(side), 2);
  handshake_end(&side[0].handshake, side[0].key);
  handshake_end(&side[1].handshake, side[1].key);
  assert_memory_equal(side[0].key, side[1].key, HANDSHAKE_KEY);
}

static void who_has_none_is_known_to_have_none(void **state) {
  (void)state;
  struct side side[2];
  begin(side, "", "");
  meet(side);
  assert_int_equal(trusts(side), 2);
}

static void another_secret_is_not_trusted(void **state) {
  (void)state;
  struct side side[2];
  begin(side, one, other);
  meet(side);
  assert_int_equal(trusts(side), 0);
  begin(side, one, "");
  meet(side);
  assert_int_equal(trusts(side), 0);
}

static void another_scope_is_not_trusted(void **state) {
  (void)state;
  struct side side[2];
  begin(side, one, one);
  side[1].secret = secret_of(one, "playground");
  meet(side);
  assert_int_equal(trusts(side), 0);
}

/* A peer without the secret repeats what the dialer said in another session. */
static void what_was_said_before_is_not_trusted(void **state) {
  (void)state;
  struct side before[2], now[2];
  begin(before, one, one);
  meet(before);
  begin(now, one, one);
  assert_int_equal(agree(&now[1], &before[0].words), PERIGEE_OK);
  assert_false(handshake_proven(&now[1].handshake, before[0].proof));
}

/* Such a peer sends an acceptor's own frames back to it, and then its own
 * proof. */
static void ones_own_proof_is_not_trusted(void **state) {
  (void)state;
  struct side side[2];
  begin(side, one, one);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(agree(&side[i], &side[i].words), PERIGEE_OK);
    assert_false(handshake_proven(&side[i].handshake, side[i].proof));
  }
}

static void two_dialers_do_not_trust_each_other(void **state) {
  (void)state;
  struct side side[2];
  begin(side, one, one);
  side[1].handshake.dialer = true;
  meet(side);
  assert_int_equal(trusts(side), 0);
}

static void words_that_were_changed_are_not_trusted(void **state) {
  (void)state;
  for (size_t bit = 0; bit < 8 * sizeof(struct words); bit += 5) {
    struct side side[2];
    begin(side, one, one);
    struct words changed = side[0].words;
    ((uint8_t *)&changed)[bit / 8] ^= (uint8_t)(1 << bit % 8);
    agree(&side[1], &changed);
    agree(&side[0], &side[1].words);
    assert_int_equal(trusts(side), 0);
  }
}

static void proofs_that_were_changed_are_not_trusted(void **state) {
  (void)state;
  struct side side[2];
  begin(side, one, one);
  meet(side);
  for (int bit = 0; bit < 8 * HANDSHAKE_MAC; bit++) {
    side[0].proof[bit / 8] ^= (uint8_t)(1 << bit % 8);
    assert_false(handshake_proven(&side[1].handshake, side[0].proof));
    side[0].proof[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
  assert_true(handshake_proven(&side[1].handshake, side[0].proof));
}

/* Points of low order: with them the shared key would be zero. */
static void keys_that_agree_with_any_are_refused(void **state) {
  (void)state;
  static const uint8_t weak[][HANDSHAKE_KEY] = {
      {0},
      {1},
      {0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3,
       0xfa, 0xf1, 0x9f, 0xc4, 0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32,
       0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49, 0xb8, 0x00},
      {0xec, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
       0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
       0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}};
  for (size_t i = 0; i < sizeof weak / sizeof *weak; i++) {
    struct side side[2];
    begin(side, one, one);
    memcpy(side[0].words.public_key, weak[i], HANDSHAKE_KEY);
    assert_int_equal(agree(&side[1], &side[0].words), PERIGEE_PROTOCOL);
  }
}

/* The session's key depends on what both sides drew, not only on the secret:
 * a later thief of the secret cannot compute it from a recording. */
static void sessions_have_keys_of_their_own(void **state) {
  (void)state;
  struct side first[2], second[2];
  begin(first, one, one);
  begin(second, one, one);
  meet(first);
  meet(second);
  handshake_end(&first[0].handshake, first[0].key);
  handshake_end(&second[0].handshake, second[0].key);
  assert_memory_not_equal(first[0].key, second[0].key, HANDSHAKE_KEY);
  assert_memory_not_equal(first[0].words.public_key, second[0].words.public_key,
                          HANDSHAKE_KEY);
}

static bool blank(const void *bytes, size_t length) {
  const uint8_t *at = bytes;
  for (size_t i = 0; i < length; i++)
    if (at[i])
      return false;
  return true;
}

static void nothing_is_kept_for_longer_than_needed(void **state) {
  (void)state;
  struct side side[2];
  begin(side, one, one);
  assert_false(blank(side[0].handshake.private_key, HANDSHAKE_KEY));
  meet(side);
  assert_true(blank(side[0].handshake.private_key, HANDSHAKE_KEY));
  handshake_end(&side[0].handshake, side[0].key);
  assert_true(blank(&side[0].handshake, sizeof side[0].handshake));
  handshake_forget(&side[1].handshake);
  assert_true(blank(&side[1].handshake, sizeof side[1].handshake));
}

static void nothing_is_said_without_randomness(void **state) {
  (void)state;
  struct side side;
  assert_int_equal(handshake_begin(&side.handshake, true, no_dream, NULL,
                                   side.words.challenge, side.words.public_key),
                   PERIGEE_SYSTEM);
}

/* ---- What follows the proofs ---------------------------------------------- */

static void say_to(struct side *s, bool by_dialer, const char *word) {
  handshake_word(&s->handshake, by_dialer, word, (uint32_t)strlen(word));
}

/* Whether both have the same key, after these frames of the dialer's. */
static bool agree_on(const char *said, const char *heard) {
  struct side side[2];
  begin(side, one, one);
  meet(side);
  for (int i = 0; i < 2; i++)
    say_to(&side[i], false, "an offer");
  say_to(&side[DIALER], true, said);
  say_to(&side[ACCEPTOR], true, heard);
  for (int i = 0; i < 2; i++)
    handshake_end(&side[i].handshake, side[i].key);
  return memcmp(side[0].key, side[1].key, HANDSHAKE_KEY) == 0;
}

static void every_word_is_in_the_sessions_key(void **state) {
  (void)state;
  assert_true(agree_on("ring 65536", "ring 65536"));
  assert_false(agree_on("ring 65536", "ring 65537"));
  assert_false(agree_on("ring 65536", ""));
}

static void as_is_who_said_them_and_when(void **state) {
  (void)state;
  struct side a[2], b[2];
  dice = 1;
  begin(a, one, one);
  dice = 1;
  begin(b, one, one);
  meet(a);
  meet(b);
  say_to(&a[0], true, "one"), say_to(&a[0], true, "two");
  say_to(&b[0], true, "two"), say_to(&b[0], true, "one");
  say_to(&a[1], true, "one");
  say_to(&b[1], false, "one");
  for (int i = 0; i < 2; i++) {
    handshake_end(&a[i].handshake, a[i].key);
    handshake_end(&b[i].handshake, b[i].key);
    assert_memory_not_equal(a[i].key, b[i].key, HANDSHAKE_KEY);
  }
}

static void a_hello_that_is_said_again_takes_the_firsts_place(void **state) {
  (void)state;
  struct side side[2];
  begin(side, one, one);
  side[DIALER].words.rest = 8; /* a cookie */
  handshake_hello(&side[DIALER].handshake, true, &side[DIALER].words,
                  sizeof side[DIALER].words);
  meet(side);
  assert_int_equal(trusts(side), 2);
}

static void each_side_seals_its_words_by_a_key_of_its_own(void **state) {
  (void)state;
  struct side side[2];
  uint8_t key[2][2][HANDSHAKE_KEY];
  begin(side, one, one);
  meet(side);
  for (int i = 0; i < 2; i++)
    for (int by = 0; by < 2; by++)
      handshake_seal_words(&side[i].handshake, by, key[i][by]);
  assert_memory_equal(key[0], key[1], sizeof key[0]);
  assert_memory_not_equal(key[0][0], key[0][1], HANDSHAKE_KEY);
}

/* A side that dials a listener without a secret can report that. */
static void who_has_no_secret_is_told_from_who_has_another(void **state) {
  (void)state;
  struct side side[2];
  begin(side, one, "");
  meet(side);
  assert_true(handshake_bare(&side[0].handshake, side[1].proof));
  begin(side, one, other);
  meet(side);
  assert_false(handshake_bare(&side[0].handshake, side[1].proof));
}

/* The keys of further streams do not reveal the first one's, nor the
 * reverse. */
static void further_streams_have_another_key(void **state) {
  (void)state;
  uint8_t key[HANDSHAKE_KEY] = {1}, first[HANDSHAKE_KEY], now[HANDSHAKE_KEY];
  handshake_seal(key, 0, true, first);
  handshake_further(key);
  handshake_seal(key, 0, true, now);
  assert_memory_not_equal(first, now, HANDSHAKE_KEY);
}

static void tickets_have_keys_of_their_own(void **state) {
  (void)state;
  uint8_t key[HANDSHAKE_KEY] = {1}, a[HANDSHAKE_KEY], b[HANDSHAKE_KEY];
  handshake_ticket(key, 7, a);
  handshake_ticket(key, 8, b);
  assert_memory_not_equal(a, b, HANDSHAKE_KEY);
}

static void streams_are_attached_by_number(void **state) {
  (void)state;
  uint8_t key[HANDSHAKE_KEY] = {1}, another[HANDSHAKE_KEY] = {2};
  uint8_t mac[HANDSHAKE_MAC];
  handshake_attach(key, 3, mac);
  assert_true(handshake_attached(key, 3, mac));
  assert_false(handshake_attached(key, 2, mac));
  assert_false(handshake_attached(another, 3, mac));
  mac[31] ^= 1;
  assert_false(handshake_attached(key, 3, mac));
}

static void each_stream_and_direction_is_sealed_by_its_own(void **state) {
  (void)state;
  enum { STREAMS = 16 };
  uint8_t key[HANDSHAKE_KEY] = {1}, seals[3 * STREAMS][HANDSHAKE_KEY];
  for (uint32_t i = 0; i < STREAMS; i++) {
    handshake_seal(key, i, true, seals[3 * i]);
    handshake_seal(key, i, false, seals[3 * i + 1]);
    handshake_attach(key, i, seals[3 * i + 2]);
  }
  for (int i = 0; i < 3 * STREAMS; i++)
    for (int k = 0; k < i; k++)
      assert_memory_not_equal(seals[i], seals[k], HANDSHAKE_KEY);
}

static int setup(void **state) {
  (void)state;
  return secret_library() ? 0 : -1;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(who_has_the_secret_is_known),
      cmocka_unit_test(who_has_none_is_known_to_have_none),
      cmocka_unit_test(another_secret_is_not_trusted),
      cmocka_unit_test(another_scope_is_not_trusted),
      cmocka_unit_test(what_was_said_before_is_not_trusted),
      cmocka_unit_test(ones_own_proof_is_not_trusted),
      cmocka_unit_test(two_dialers_do_not_trust_each_other),
      cmocka_unit_test(words_that_were_changed_are_not_trusted),
      cmocka_unit_test(proofs_that_were_changed_are_not_trusted),
      cmocka_unit_test(keys_that_agree_with_any_are_refused),
      cmocka_unit_test(sessions_have_keys_of_their_own),
      cmocka_unit_test(nothing_is_kept_for_longer_than_needed),
      cmocka_unit_test(nothing_is_said_without_randomness),
      cmocka_unit_test(every_word_is_in_the_sessions_key),
      cmocka_unit_test(as_is_who_said_them_and_when),
      cmocka_unit_test(a_hello_that_is_said_again_takes_the_firsts_place),
      cmocka_unit_test(each_side_seals_its_words_by_a_key_of_its_own),
      cmocka_unit_test(who_has_no_secret_is_told_from_who_has_another),
      cmocka_unit_test(further_streams_have_another_key),
      cmocka_unit_test(tickets_have_keys_of_their_own),
      cmocka_unit_test(streams_are_attached_by_number),
      cmocka_unit_test(each_stream_and_direction_is_sealed_by_its_own),
  };
  return cmocka_run_group_tests_name("handshake", tests, setup, NULL);
}
