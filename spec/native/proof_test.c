/* SPDX-License-Identifier: Apache-2.0
 *
 * proof_test.c - who is let in over TCP: who has the secret, for the scope. Who
 * has another, none, or only what was heard of others, who changes what is
 * said on the way or leaves something out, gets a refusal and nothing else, and
 * the listener's program hears of it. The transport is the specs' own.
 */
#include "between.h"
#include "door.h"

#include <string.h>
#include <unistd.h>

static const char words[] = "correct horse battery staple";
static const char others[] = "correct horse battery stable";

static void dial_fails(struct pair *p, int status, const char *word) {
  int op = perigee_connect(p->engine[0], p->address, "inproc", 5000 * MS);
  struct perigee_event e = ended(p, 0, op, status);
  if (!e.pointer)
    e.pointer = (const uint8_t *)perigee_detail(p->engine[0]);
  if (!strstr((const char *)e.pointer, word))
    fail_msg("%s", (const char *)e.pointer);
}

/* ---- Secrets ------------------------------------------------------------ */

static void who_has_the_secret_is_let_in(void **state) {
  (void)state;
  struct pair p;
  open_with(&p, words, words);
  pair_dial(&p, p.session);
  friend_served(&p);
  pair_close(&p);
  open_with(&p, "", "");
  pair_dial(&p, p.session);
  friend_served(&p);
  pair_close(&p);
}

static void who_has_another_is_not(void **state) {
  (void)state;
  struct pair p;
  open_with(&p, others, words);
  dial_fails(&p, PERIGEE_DENIED, "the secret, or the scope, is another");
  told(&p, PERIGEE_DENIED, "the secret, or the scope, is another");
  pair_drop(&p);
}

static void who_has_it_for_another_scope_is_not(void **state) {
  (void)state;
  struct pair p;
  open_with(&p, words, words);
  perigee_engine_close(p.engine[0]);
  open_side(&p, 0, words, "playground");
  dial_fails(&p, PERIGEE_DENIED, "the secret, or the scope, is another");
  told(&p, PERIGEE_DENIED, "the secret, or the scope, is another");
  pair_drop(&p);
}

static void who_has_none_is_told_so(void **state) {
  (void)state;
  struct pair p;
  open_with(&p, "", words);
  dial_fails(&p, PERIGEE_DENIED, "who listens has a secret and who dials");
  told(&p, PERIGEE_DENIED, "who listens has a secret and who dials has none");
  pair_drop(&p);
  open_with(&p, words, "");
  dial_fails(&p, PERIGEE_DENIED, "who dials has a secret and who listens");
  told(&p, PERIGEE_DENIED, "who dials has a secret and who listens has none");
  pair_drop(&p);
}

/* ---- Who stands between ------------------------------------------------- */

static struct between b;

/* The end of a dial by way of the one between. */
static int dial_by(struct pair *p) {
  int op = perigee_connect(p->engine[0], b.address, "inproc", 5000 * MS);
  struct perigee_event e = until(p, 0, PERIGEE_EVENT_CONNECTED);
  assert_int_equal(e.operation, op);
  return e.status;
}

static void what_was_heard_before_lets_nobody_in(void **state) {
  (void)state;
  struct pair p;
  struct heard h;
  open_with(&p, words, words);
  between_open(&b, port_of(&p));
  assert_int_equal(dial_by(&p), PERIGEE_OK);
  until(&p, 1, PERIGEE_EVENT_ACCEPTED);
  int fd = knock(&p);
  say(fd, b.link[0].said[0], b.link[0].length[0], NULL, 0);
  hear(&p, fd, &h, HEARD);
  if (h.count > 0) /* what is left unread may cut off the rest */
    assert_int_equal(h.frame[0].type, FRAME_HELLO);
  assert_true(h.count <= 2);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REFUSED);
  assert_int_equal(e.status, PERIGEE_DENIED);
  close(fd);
  pair_drop(&p);
  between_close(&b);
}

static void ones_own_words_let_nobody_in(void **state) {
  (void)state;
  struct pair p;
  open_with(&p, words, words);
  between_open(&b, 0);
  assert_int_equal(dial_by(&p), PERIGEE_DENIED);
  pair_drop(&p);
  between_close(&b);
}

static void who_changes_hello_is_found_out(void **state) {
  (void)state;
  static const size_t at[] = {
      offsetof(struct hello, nonce), offsetof(struct hello, challenge),
      offsetof(struct hello, public_key), offsetof(struct hello, cookie)};
  struct pair p;
  open_with(&p, words, words);
  for (size_t i = 0; i < 2 * sizeof at / sizeof *at; i++) {
    between_open(&b, port_of(&p));
    b.flip[i % 2] = 8 * (FRAME_HEAD + at[i / 2]) + 2 * (at[i / 2] % 3);
    int status = dial_by(&p);
    if (status != PERIGEE_DENIED && status != PERIGEE_UNSUPPORTED)
      fail_msg("byte %zu of side %zu: %d", at[i / 2], i % 2, status);
    between_close(&b);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REFUSED);
    assert_true(e.status == PERIGEE_DENIED || e.status == PERIGEE_UNSUPPORTED);
  }
  pair_drop(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(who_has_the_secret_is_let_in),
      cmocka_unit_test(who_has_another_is_not),
      cmocka_unit_test(who_has_it_for_another_scope_is_not),
      cmocka_unit_test(who_has_none_is_told_so),
      cmocka_unit_test(what_was_heard_before_lets_nobody_in),
      cmocka_unit_test(ones_own_words_let_nobody_in),
      cmocka_unit_test(who_changes_hello_is_found_out),
  };
  return cmocka_run_group_tests_name("proof", tests, NULL, NULL);
}
