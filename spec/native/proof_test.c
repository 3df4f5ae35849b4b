/* SPDX-License-Identifier: Apache-2.0
 *
 * proof_test.c - who is let in over TCP: who has the secret, for the scope. Who
 * has another, none, or only what was heard of others, who changes what is
 * said on the way or leaves something out, gets a refusal and nothing else, and
 * the listener's program hears of it. The transport is the specs' own.
 */
#include "door.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
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

/* Takes the dialer's connection and makes one to the listener. */
struct between {
  int door, fd[2]; /* towards the dialer, the listener */
  char address[64];
  uint8_t said[2][8192]; /* by the dialer, the listener */
  size_t length[2], flip[2];
};

static void stand_between(struct between *b, const struct pair *p) {
  struct sockaddr_in in = loopback(0);
  socklen_t length = sizeof in;
  *b = (struct between){.flip = {SIZE_MAX, SIZE_MAX}};
  b->door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(b->door, (struct sockaddr *)&in, sizeof in), 0);
  assert_int_equal(listen(b->door, 1), 0);
  getsockname(b->door, (struct sockaddr *)&in, &length);
  snprintf(b->address, sizeof b->address, "tcp://127.0.0.1:%d",
           ntohs(in.sin_port));
  b->fd[1] = p ? knock(p) : -1;
}

/* One way, one look; false at the end. */
static bool pass_on(struct between *b, int from) {
  uint8_t *at = b->said[from] + b->length[from];
  ssize_t n =
      recv(b->fd[from], at, sizeof b->said[0] - b->length[from], MSG_DONTWAIT);
  if (n <= 0)
    return n < 0;
  size_t bit = b->flip[from], first = 8 * b->length[from];
  b->length[from] += (size_t)n;
  uint8_t bytes[sizeof b->said[0]];
  memcpy(bytes, at, (size_t)n);
  if (bit >= first && bit < 8 * b->length[from])
    bytes[(bit - first) / 8] ^= (uint8_t)(1 << bit % 8);
  send(b->fd[!from], bytes, (size_t)n, MSG_NOSIGNAL);
  return true;
}

/* The end of a dial by way of the one between. */
static int dial_by(struct pair *p, struct between *b) {
  int op = perigee_connect(p->engine[0], b->address, "inproc", 5000 * MS);
  struct perigee_event e;
  b->fd[0] = accept(b->door, NULL, NULL);
  for (bool on = true; p->kept[0] == 0;) {
    poll_both(p);
    on = on && pass_on(b, 0) && pass_on(b, 1);
  }
  assert_true(taken(p, 0, &e));
  assert_int_equal(e.kind, PERIGEE_EVENT_CONNECTED);
  assert_int_equal(e.operation, op);
  return e.status;
}

static void step_aside(struct between *b) {
  close(b->door);
  for (int i = 0; i < 2; i++)
    if (b->fd[i] >= 0)
      close(b->fd[i]);
}

static void what_was_heard_before_lets_nobody_in(void **state) {
  (void)state;
  struct pair p;
  struct between b;
  struct heard h;
  open_with(&p, words, words);
  stand_between(&b, &p);
  assert_int_equal(dial_by(&p, &b), PERIGEE_OK);
  for (int i = 0; i < 100; i++, usleep(100))
    poll_both(&p);
  until(&p, 1, PERIGEE_EVENT_ACCEPTED);
  int fd = knock(&p);
  say(fd, b.said[0], b.length[0], NULL, 0);
  hear(&p, fd, &h, HEARD);
  assert_int_equal(h.frame[0].type, FRAME_HELLO);
  if (!h.cut || h.count > 1) /* what is left unread may cut off the rest */
    is_refusal(&h.frame[1], PERIGEE_DENIED, "the secret");
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REFUSED);
  assert_int_equal(e.status, PERIGEE_DENIED);
  close(fd);
  step_aside(&b);
  pair_drop(&p);
}

/* Somebody gives a dialer its own words back. */
static void ones_own_words_let_nobody_in(void **state) {
  (void)state;
  struct pair p;
  struct between b;
  open_with(&p, words, words);
  stand_between(&b, NULL);
  int op = perigee_connect(p.engine[0], b.address, "inproc", 5000 * MS);
  b.fd[0] = accept(b.door, NULL, NULL);
  b.fd[1] = dup(b.fd[0]);
  while (p.kept[0] == 0) {
    poll_both(&p);
    uint8_t bytes[4096];
    ssize_t n = recv(b.fd[0], bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0)
      send(b.fd[0], bytes, (size_t)n, MSG_NOSIGNAL);
  }
  ended(&p, 0, op, PERIGEE_DENIED);
  step_aside(&b);
  pair_drop(&p);
}

/* Above all what would take a protection away. */
static void who_changes_hello_is_found_out(void **state) {
  (void)state;
  static const size_t at[] = {
      offsetof(struct hello, epoch),         offsetof(struct hello, features),
      offsetof(struct hello, nonce),         offsetof(struct hello, challenge),
      offsetof(struct hello, public_key),    offsetof(struct hello, local),
      offsetof(struct hello, user),          offsetof(struct hello, flags),
      offsetof(struct hello, probe_address), offsetof(struct hello, operations),
      offsetof(struct hello, message)};
  struct pair p;
  open_with(&p, words, words);
  for (size_t i = 0; i < 2 * sizeof at / sizeof *at; i++) {
    struct between b;
    stand_between(&b, &p);
    b.flip[i % 2] = 8 * (FRAME_HEAD + at[i / 2]) + 2 * (at[i / 2] % 3);
    if (at[i / 2] == offsetof(struct hello, flags))
      b.flip[i % 2] = 8 * (FRAME_HEAD + at[i / 2]); /* HELLO_ENCRYPT */
    int status = dial_by(&p, &b);
    if (status != PERIGEE_DENIED && status != PERIGEE_UNSUPPORTED)
      fail_msg("byte %zu of side %zu: %d", at[i / 2], i % 2, status);
    step_aside(&b);
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
