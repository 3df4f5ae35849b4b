/* SPDX-License-Identifier: Apache-2.0
 *
 * intruders_test.c - connections to a port from programs that are no peers:
 * silent, of another protocol, without a proof or with a wrong one.
 * Each gets at most a refusal, and the listener's program is told.
 */
#include "door.h"
#include "session/sessions.h"
#include "support_inside.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char words[] = "correct horse battery staple";

static void the_silent_hear_nothing(void **state) {
  (void)state;
  struct pair p;
  struct heard h;
  open_with(&p, words, words);
  set_hello_timeout(p.engine[1], 100 * MS);
  int fd = raw_connect(&p);
  hear(&p, fd, &h, HEARD);
  assert_int_equal(h.count, 0);
  told(&p, PERIGEE_TIMEOUT, "in time");
  close(fd);
  pair_drop(&p);
}

static void other_protocols_hear_nothing(void **state) {
  (void)state;
  struct pair p;
  struct heard h;
  open_with(&p, words, words);
  int fd = raw_connect(&p);
  say(fd, "GET / HTTP/1.1\r\n\r\n", 18, NULL, 0);
  hear(&p, fd, &h, HEARD);
  assert_int_equal(h.count, 0);
  told(&p, PERIGEE_PROTOCOL, "no Perigee frame");
  close(fd);
  pair_drop(&p);
}

/* Reads as far as possible: the refusal after the listener's proof is
 * sealed, with a key that only holders of the secret have. */
static void heard_no_more(const struct heard *h) {
  assert_int_equal(h->count, 2);
  assert_int_equal(h->frame[0].type, FRAME_HELLO);
  assert_int_equal(h->frame[1].type, FRAME_PROOF);
  assert_true(h->cut);
}

/* Frames that a stranger must not send before it has proven who it is. */
static void who_skips_the_proof_hears_only_that(void **state) {
  (void)state;
  static const int types[] = {FRAME_OFFER,  FRAME_READY, FRAME_WAKE,
                              FRAME_HELLO,  FRAME_TERMS, FRAME_LOOKUP,
                              FRAME_FOUND,  FRAME_LANE,  FRAME_PING,
                              FRAME_ATTACH, FRAME_RETRY, FRAME_MOVE};
  struct pair p;
  struct heard h;
  open_with(&p, words, words);
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    struct frame f = tcp_hello(), g = {.type = (uint16_t)types[i]};
    if (types[i] == FRAME_HELLO)
      g = f;
    int fd = raw_connect(&p);
    say_frame(fd, &f, NULL, 0);
    say_frame(fd, &g, NULL, 0);
    hear(&p, fd, &h, HEARD);
    heard_no_more(&h);
    told(&p, PERIGEE_PROTOCOL, "before it was known");
    close(fd);
  }
  pair_drop(&p);
}

static void who_says_hello_by_something_else_hears_only_that(void **state) {
  (void)state;
  struct pair p;
  struct heard h;
  open_with(&p, words, words);
  for (int type = FRAME_OFFER; type < FRAME_TYPES; type++) {
    struct frame f = {.type = (uint16_t)type};
    if (type == FRAME_REFUSE || type == FRAME_BYE)
      continue; /* the end, as it should be */
    if (type == FRAME_DRAIN)
      f.drain.word = DRAIN_WORD_TAKEN;
    if (type == FRAME_EXTRA)
      f.extra = (struct extra){.lane = 1, .word = EXTRA_WORD_OFFER};
    int fd = raw_connect(&p);
    say_frame(fd, &f, NULL, 0);
    hear(&p, fd, &h, HEARD);
    /* A stream is silent until it belongs to a lane, which does not know
     * this frame. */
    assert_int_equal(h.count, type == FRAME_ATTACH ? 0 : 1);
    if (h.count)
      assert_int_equal(h.frame[0].type, FRAME_REFUSE);
    until(&p, 1, PERIGEE_EVENT_REFUSED);
    close(fd);
  }
  pair_drop(&p);
}

static void a_wrong_proof_is_answered_by_nothing(void **state) {
  (void)state;
  struct pair p;
  struct heard h;
  struct frame f = tcp_hello(), proof = {.type = FRAME_PROOF};
  open_with(&p, words, words);
  int fd = raw_connect(&p);
  say_frame(fd, &f, NULL, 0);
  say_frame(fd, &proof, NULL, 0);
  hear(&p, fd, &h, HEARD);
  heard_no_more(&h);
  told(&p, PERIGEE_DENIED, "the secret, or the scope");
  close(fd);
  pair_drop(&p);
}

static void keys_that_agree_with_any_are_refused(void **state) {
  (void)state;
  struct pair p;
  struct heard h;
  struct frame f = tcp_hello();
  memset(f.hello.public_key, 0, HANDSHAKE_KEY);
  open_with(&p, words, words);
  int fd = raw_connect(&p);
  say_frame(fd, &f, NULL, 0);
  hear(&p, fd, &h, HEARD);
  is_refusal(&h.frame[h.count - 1], PERIGEE_PROTOCOL, "public key");
  told(&p, PERIGEE_PROTOCOL, "public key");
  close(fd);
  pair_drop(&p);
}

/* A stranger that sends everything right gets versions, a nonce and fresh
 * random values: nothing that describes the engine or lets others find it. */
static void strangers_are_told_nothing_else(void **state) {
  (void)state;
  struct pair p;
  struct heard h;
  struct frame f = tcp_hello();
  open_with(&p, words, words);
  int fd = raw_connect(&p);
  say_frame(fd, &f, NULL, 0);
  hear(&p, fd, &h, 2);
  assert_int_equal(h.frame[0].type, FRAME_HELLO);
  assert_int_equal(h.frame[1].type, FRAME_PROOF);
  const struct hello only = {.magic = HELLO_MAGIC,
                             .version_min = PROTOCOL_MIN,
                             .version_max = PROTOCOL_MAX};
  struct hello heard = h.frame[0].hello;
  assert_int_not_equal(heard.nonce, perigee_epoch(p.engine[1]));
  heard.nonce = 0;
  memset(heard.challenge, 0, sizeof heard.challenge);
  memset(heard.public_key, 0, sizeof heard.public_key);
  assert_memory_equal(&heard, &only, sizeof only);
  close(fd);
  pair_drop(&p);
}

/* The same for a listener that has taken another's place: the dialer sends
 * it no proof, so it cannot try secrets. */
static void nor_are_those_who_only_listen(void **state) {
  (void)state;
  struct pair p;
  struct heard h;
  struct sockaddr_in in = loopback(0);
  socklen_t length = sizeof in;
  struct frame f = tcp_hello(), proof = {.type = FRAME_PROOF};
  open_with(&p, words, words);
  int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(door, (struct sockaddr *)&in, sizeof in), 0);
  assert_int_equal(listen(door, 1), 0);
  getsockname(door, (struct sockaddr *)&in, &length);
  snprintf(p.address, sizeof p.address, "tcp://127.0.0.1:%d",
           ntohs(in.sin_port));
  int op = perigee_connect(p.engine[0], p.address, NULL, 20000 * MS);
  int fd = accept(door, NULL, NULL);
  say_frame(fd, &f, NULL, 0);
  say_frame(fd, &proof, NULL, 0);
  hear(&p, fd, &h, HEARD);
  assert_int_equal(h.frame[0].type, FRAME_HELLO);
  assert_int_equal(h.count, 2);
  is_refusal(&h.frame[1], PERIGEE_DENIED, "the secret, or the scope");
  ended(&p, 0, op, PERIGEE_DENIED);
  close(fd);
  close(door);
  pair_drop(&p);
}

static int64_t passed;

/* Time passes only when the engine looks at the clock and the test lets it. */
static int64_t slow(void *context) {
  (void)context;
  return passed += 10000;
}

static void they_are_told_of_now_and_then(void **state) {
  (void)state;
  enum { COMING = 50 };
  struct pair p;
  struct perigee_event e;
  struct perigee_options o;
  open_with(&p, words, words);
  perigee_engine_close(p.engine[1]);
  variant_options(p.variant, &o);
  o.clock = slow;
  assert_int_equal(perigee_engine_open(&o, &p.engine[1]), 0);
  open_port(&p);
  perigee_tell_refused(p.engine[1], 10000 * MS);
  for (int i = 0; i < COMING; i++) {
    int fd = raw_connect(&p);
    say(fd, "\n\n\n\n\n\n\n\n", 8, NULL, 0);
    if (i == 0)
      told(&p, PERIGEE_PROTOCOL, "no Perigee frame");
    until_cut(&p, fd);
  }
  quiet(&p, 200);
  passed += 10000 * MS;
  e = until(&p, 1, PERIGEE_EVENT_REFUSED);
  assert_int_equal(e.code, COMING - 1);
  quiet(&p, 200);
  assert_int_equal(perigee_counters(p.engine[1], NULL)->refused, COMING);
  pair_drop(&p);
}

/* ---- Crowds ------------------------------------------------------------- */

enum { FEW = 4 };

/* Saying hello needs no secret. */
static void a_crowd_that_says_hello_keeps_nobody_out(void **state) {
  (void)state;
  struct pair p;
  struct heard h;
  struct frame f = tcp_hello();
  int fds[FEW];
  open_to(&p, words, FEW);
  for (int i = 0; i < FEW; i++) {
    fds[i] = raw_connect(&p);
    say_frame(fds[i], &f, NULL, 0);
    hear(&p, fds[i], &h, 2);
    assert_int_equal(h.frame[0].type, FRAME_HELLO);
  }
  perigee_tell_refused(p.engine[1], -1);
  pair_dial(&p, p.session);
  friend_served(&p);
  hear(&p, fds[0], &h, HEARD); /* it came first */
  assert_int_equal(perigee_counters(p.engine[1], NULL)->refused, 1);
  for (int i = 0; i < FEW; i++)
    close(fds[i]);
  pair_drop(&p);
}

/* Polls until so many strangers have been let in. */
static void until_in(struct pair *p, uint32_t count) {
  int64_t end = clock_now() + 20000 * MS;
  while (p->engine[1]->hellos < count) {
    quiet(p, 1);
    assert_true(clock_now() < end);
  }
}

/* If many hellos arrive, the next must be repeated with the cookie that the
 * listener sent, from the same address. */
static void a_crowd_has_to_come_back_with_a_cookie(void **state) {
  (void)state;
  enum { CROWD = 20 };
  struct pair p;
  struct heard h;
  struct frame f = tcp_hello();
  int fds[CROWD];
  open_with(&p, words, words);
  for (int i = 0; i < CROWD; i++)
    fds[i] = raw_connect(&p);
  until_in(&p, CROWD);
  for (int again = 0; again < 2; again++) { /* the same frame has no cookie */
    say_frame(fds[0], &f, NULL, 0);
    hear(&p, fds[0], &h, 1);
    assert_int_equal(h.frame[0].type, FRAME_RETRY);
  }
  memcpy(f.hello.cookie, h.frame[0].retry.cookie, COOKIE);
  say_frame(fds[1], &f, NULL, 0); /* with the cookie of another */
  hear(&p, fds[1], &h, 1);
  assert_int_equal(h.frame[0].type, FRAME_RETRY);
  say_frame(fds[0], &f, NULL, 0);
  hear(&p, fds[0], &h, 2);
  assert_int_equal(h.frame[0].type, FRAME_HELLO);
  perigee_tell_refused(p.engine[1], -1);
  pair_dial(&p, p.session); /* and honest peers do */
  friend_served(&p);
  static const uint8_t none[COOKIE];
  assert_memory_not_equal(p.session[0]->handshake.cookie, none, COOKIE);
  for (int i = 0; i < CROWD; i++)
    close(fds[i]);
  pair_drop(&p);
}

/* These are dialed, and say nothing. */
static void those_who_are_dialed_keep_nobody_out(void **state) {
  (void)state;
  struct pair p;
  struct pair silent;
  open_to(&p, words, FEW);
  open_with(&silent, words, words);
  for (int i = 0; i < FEW; i++)
    assert_true(perigee_connect(p.engine[1], silent.address, "inproc",
                                60000 * MS) >= 0);
  quiet(&p, 1000);
  pair_dial(&p, p.session);
  friend_served(&p);
  pair_drop(&p);
  pair_drop(&silent);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_silent_hear_nothing),
      cmocka_unit_test(other_protocols_hear_nothing),
      cmocka_unit_test(who_skips_the_proof_hears_only_that),
      cmocka_unit_test(who_says_hello_by_something_else_hears_only_that),
      cmocka_unit_test(a_wrong_proof_is_answered_by_nothing),
      cmocka_unit_test(keys_that_agree_with_any_are_refused),
      cmocka_unit_test(strangers_are_told_nothing_else),
      cmocka_unit_test(nor_are_those_who_only_listen),
      cmocka_unit_test(a_crowd_has_to_come_back_with_a_cookie),
      cmocka_unit_test(they_are_told_of_now_and_then),
      cmocka_unit_test(a_crowd_that_says_hello_keeps_nobody_out),
      cmocka_unit_test(those_who_are_dialed_keep_nobody_out),
  };
  return cmocka_run_group_tests_name("intruders", tests, NULL, NULL);
}
