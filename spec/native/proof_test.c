/* SPDX-License-Identifier: Apache-2.0
 *
 * proof_test.c - who is let in over TCP: peers with the secret for the scope. A
 * peer with another secret, none, or only recorded frames, and one that changes
 * or omits frames on the way, gets a refusal and nothing else, and the
 * listener's program is told. The transport is the specs' own.
 */
#include "between.h"
#include "door.h"

#include <string.h>
#include <unistd.h>

static const char words[] = "correct horse battery staple";
static const char others[] = "correct horse battery stable";

static void dial_fails(struct pair *p, int status, const char *word) {
  int op = perigee_connect(p->engine[0], p->address, "inproc", 20000 * MS);
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

/* ---- Names -------------------------------------------------------------- */

static int dial_expecting(struct pair *p, const char *address,
                          const char *name) {
  int op = perigee_connect_to(p->engine[0], address, name, NULL, 20000 * MS);
  struct perigee_event e = until(p, 0, PERIGEE_EVENT_CONNECTED);
  assert_int_equal(e.operation, op);
  if (e.status != PERIGEE_OK)
    assert_non_null(strstr((const char *)e.pointer, "was dialled"));
  return e.status;
}

static void who_is_expected_has_to_answer(void **state) {
  (void)state;
  struct pair p;
  open_with(&p, words, words);
  assert_int_equal(dial_expecting(&p, p.address, "worker:0"), PERIGEE_DENIED);
  told(&p, PERIGEE_DENIED, "worker:0 was dialled, and who answers goes by no");
  assert_int_equal(perigee_go_by(p.engine[1], "worker:1"), PERIGEE_OK);
  assert_int_equal(dial_expecting(&p, p.address, "worker:0"), PERIGEE_DENIED);
  told(&p, PERIGEE_DENIED, "worker:0 was dialled, and who answers is worker:1");
  assert_int_equal(dial_expecting(&p, p.address, "worker:1"), PERIGEE_OK);
  assert_int_equal(dial_expecting(&p, p.address, NULL), PERIGEE_OK);
  pair_drop(&p);
}

static void names_are_limited(void **state) {
  (void)state;
  struct pair p;
  char name[PERIGEE_NAME_MAX + 2];
  memset(name, 'x', sizeof name);
  name[PERIGEE_NAME_MAX + 1] = 0;
  open_with(&p, words, words);
  assert_int_equal(perigee_go_by(p.engine[1], name), PERIGEE_INVALID);
  assert_int_equal(perigee_connect_to(p.engine[0], p.address, name, NULL, -1),
                   PERIGEE_INVALID);
  name[PERIGEE_NAME_MAX] = 0;
  assert_int_equal(perigee_go_by(p.engine[1], name), PERIGEE_OK);
  assert_int_equal(dial_expecting(&p, p.address, name), PERIGEE_OK);
  pair_drop(&p);
}

/* ---- Who stands between ------------------------------------------------- */

static struct between b;

/* The end of a dial through the man in the middle. */
static int dial_by(struct pair *p) {
  int op = perigee_connect(p->engine[0], b.address, "inproc", 20000 * MS);
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
  int fd = raw_connect(&p);
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

/* He passes on what one worker says where another was dialed. */
static void nobody_answers_for_another(void **state) {
  (void)state;
  struct pair p;
  open_with(&p, words, words);
  assert_int_equal(perigee_go_by(p.engine[1], "worker:1"), PERIGEE_OK);
  between_open(&b, port_of(&p));
  assert_int_equal(dial_expecting(&p, b.address, "worker:0"), PERIGEE_DENIED);
  assert_int_equal(dial_expecting(&p, b.address, "worker:1"), PERIGEE_OK);
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
      cmocka_unit_test(who_is_expected_has_to_answer),
      cmocka_unit_test(names_are_limited),
      cmocka_unit_test(nobody_answers_for_another),
      cmocka_unit_test(what_was_heard_before_lets_nobody_in),
      cmocka_unit_test(ones_own_words_let_nobody_in),
      cmocka_unit_test(who_changes_hello_is_found_out),
  };
  return cmocka_run_group_tests_name("proof", tests, NULL, NULL);
}
