/* SPDX-License-Identifier: Apache-2.0
 *
 * sealed_test.c - encrypted sessions over TCP, with a man in the middle who
 * records all that passes and changes some of it.
 */
#include "between.h"
#include "door.h"

#include <stdlib.h>
#include <string.h>

#include "security/seal.h"

static const struct variant tcp = {"tcp, host", "tcp", "host", 0, NULL};
static const char words[] = "correct horse battery staple";
static const char asked[] = "what nobody else may know, however it is asked";
static const char answered[] = "what nobody else may know, as it is answered";
enum { BULK = 3 * MIB };

static struct between b;

enum { ALL = PERIGEE_ENCRYPT_ALL, AUTH = PERIGEE_ENCRYPT_AUTH };
enum { OFF = PERIGEE_ENCRYPT_OFF, DEFAULT = PERIGEE_ENCRYPT_DEFAULT };

static void open_sides(struct pair *p, const char *secret, int one, int other,
                       uint32_t streams) {
  int encrypt[2] = {one, other};
  *p = (struct pair){.variant = &tcp};
  for (int i = 0; i < 2; i++) {
    struct perigee_options o;
    variant_options(&tcp, &o);
    o.secret = secret;
    o.encrypt = encrypt[i];
    o.streams = streams;
    assert_int_equal(perigee_engine_open(&o, &p->engine[i]), 0);
  }
  open_port(p);
  between_open(&b, port_of(p));
  memcpy(p->address, b.address, sizeof b.address);
  pair_dial(p, p->session);
}

static void close_sides(struct pair *p) {
  pair_close(p);
  between_close(&b);
}

static const char *security(struct pair *p, int side) {
  struct perigee_session_info info;
  perigee_session_describe(p->session[side], &info, sizeof info);
  return info.security;
}

/* ---- What passes -------------------------------------------------------- */

/* A region filled with one sentence. */
static struct perigee_region *full_of(struct pair *p, int side,
                                      const char *name, const char *text) {
  struct perigee_region *r =
      region_of(p, side, name, BULK, PERIGEE_READ | PERIGEE_WRITE);
  uint8_t *bytes = perigee_region_pointer(r);
  for (size_t i = 0, n = strlen(text); i < BULK; i++)
    bytes[i] = (uint8_t)text[i % n];
  return r;
}

static void call_and_answer(struct pair *p) {
  struct perigee_message m = {
      .head = asked, .length = sizeof asked, .timeout = -1};
  int op = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_memory_equal(e.pointer, asked, sizeof asked);
  m.head = answered;
  m.length = sizeof answered;
  assert_int_equal(perigee_reply(p->engine[1], e.operation, &m), 0);
  e = ended(p, 0, op, 0);
  assert_memory_equal(e.pointer, answered, sizeof answered);
}

static void read_and_write(struct pair *p) {
  struct perigee_region *own = full_of(p, 0, NULL, asked);
  struct perigee_region *theirs = full_of(p, 1, "r", answered);
  struct perigee_transfer t = {.local = all_of(own, BULK)};
  t.remote = (struct perigee_slice){
      .remote = look_up(p, "r"), .length = BULK, .count = 1};
  finish(p, perigee_transfer(p->session[0], PERIGEE_OP_WRITE, &t, 1, 0, -1), 0);
  same(theirs, 0, perigee_region_pointer(own), BULK);
  fill_byte(own, 0);
  finish(p, perigee_transfer(p->session[0], PERIGEE_OP_READ, &t, 1, 0, -1), 0);
  same(own, 0, perigee_region_pointer(theirs), BULK);
  settle(p);
  region_end(own);
  region_end(theirs);
}

static bool overheard(void) {
  return between_heard(&b, 0, asked, sizeof asked - 1) ||
         between_heard(&b, 1, answered, sizeof answered - 1) ||
         between_heard(&b, 1, asked, sizeof asked - 1);
}

static void what_is_sealed_is_not_overheard(void **state) {
  (void)state;
  struct pair p;
  for (uint32_t streams = 1; streams <= 3; streams += 2) {
    open_sides(&p, words, ALL, ALL, streams);
    call_and_answer(&p);
    read_and_write(&p);
    call_and_answer(&p);
    settle(&p);
    assert_false(overheard());
    assert_int_equal(b.links, 1 + streams);
    close_sides(&p);
  }
}

/* The search would find it. */
static void what_is_not_sealed_is_overheard(void **state) {
  (void)state;
  struct pair p;
  open_sides(&p, words, OFF, OFF, 1);
  call_and_answer(&p);
  read_and_write(&p);
  settle(&p);
  assert_true(between_heard(&b, 0, asked, sizeof asked - 1));
  assert_true(between_heard(&b, 1, answered, sizeof answered - 1));
  assert_non_null(strstr(security(&p, 0), "not encrypted"));
  close_sides(&p);
}

static void the_wish_of_one_side_is_enough(void **state) {
  (void)state;
  struct pair p;
  const char *cipher = seal_has_aes() ? "AES-256-GCM" : "ChaCha20-Poly1305";
  for (int i = 0; i < 2; i++) {
    open_sides(&p, words, i ? OFF : ALL, i ? ALL : AUTH, 1);
    call_and_answer(&p);
    settle(&p);
    assert_false(overheard());
    for (int side = 0; side < 2; side++) {
      assert_non_null(
          strstr(security(&p, side), "both sides proved the secret"));
      assert_non_null(strstr(security(&p, side), cipher));
    }
    close_sides(&p);
  }
}

/* With MACs all bytes are visible, and are what the peer sent; one side's
 * wish is enough. */
static void what_has_macs_is_overheard_and_whole(void **state) {
  (void)state;
  struct pair p;
  for (int i = 0; i < 2; i++) {
    open_sides(&p, words, i ? OFF : AUTH, i ? AUTH : DEFAULT, 3);
    call_and_answer(&p);
    read_and_write(&p);
    settle(&p);
    assert_true(between_heard(&b, 0, asked, sizeof asked - 1));
    for (int side = 0; side < 2; side++) {
      struct perigee_session_info info;
      perigee_session_describe(p.session[side], &info, sizeof info);
      assert_true(info.intact && !info.encrypted);
      assert_non_null(strstr(info.security, "each chunk has a MAC"));
      assert_non_null(
          strstr(info.security, side == i ? "asked for here" : "by the peer"));
    }
    close_sides(&p);
  }
}

/* Over loopback; spec/net tests other networks. */
static void by_default_nothing_is_sealed_over_loopback(void **state) {
  (void)state;
  struct pair p;
  open_sides(&p, words, DEFAULT, DEFAULT, 1);
  call_and_answer(&p);
  settle(&p);
  assert_true(overheard());
  assert_non_null(strstr(security(&p, 0), "not encrypted"));
  close_sides(&p);
}

/* An eavesdropper then learns nothing, but the peer's identity is not known. */
static void without_a_secret_it_is_sealed_all_the_same(void **state) {
  (void)state;
  struct pair p;
  open_sides(&p, "", ALL, OFF, 1);
  call_and_answer(&p);
  settle(&p);
  assert_false(overheard());
  assert_non_null(strstr(security(&p, 0), "not authenticated"));
  assert_non_null(strstr(security(&p, 0), "sealed"));
  close_sides(&p);
}

/* ---- What is changed ---------------------------------------------------- */

/* The session ends, and no more bytes are accepted as the peer's. */
static void harmed(int harm, int side, int encrypt) {
  struct pair p;
  struct perigee_event e;
  open_sides(&p, words, encrypt, OFF, 1);
  call_and_answer(&p);
  settle(&p);
  struct perigee_message m = {
      .head = asked, .length = sizeof asked, .timeout = 500 * MS};
  struct perigee_message answer = {.head = answered, .length = sizeof answered};
  b.harm[side] = harm;
  int op = perigee_call(p.session[0], &m);
  bool lost = false;
  for (int64_t end = clock_now() + 60000 * MS; !lost;) {
    poll_both(&p);
    while (taken(&p, 1, &e)) {
      if (e.kind == PERIGEE_EVENT_REQUEST && e.operation >= 0) {
        assert_memory_equal(e.pointer, asked, sizeof asked);
        perigee_reply(p.engine[1], e.operation, &answer);
      }
      lost |= e.kind == PERIGEE_EVENT_LOST;
    }
    while (taken(&p, 0, &e)) {
      if (e.kind == PERIGEE_EVENT_REPLY) {
        assert_int_equal(e.operation, op);
        if (e.status == PERIGEE_OK)
          assert_memory_equal(e.pointer, answered, sizeof answered);
        op = perigee_call(p.session[0], &m); /* until it is noticed */
      }
      lost |= e.kind == PERIGEE_EVENT_LOST;
    }
    assert_true(clock_now() < end);
  }
  pair_drop(&p);
  between_close(&b);
}

static void what_is_changed_ends_the_session(void **state) {
  (void)state;
  for (int side = 0; side < 2; side++)
    harmed(HARM_FLIP, side, ALL), harmed(HARM_FLIP, side, AUTH);
}

enum { DIFFERS = 27 }; /* here asked and answered do */

/* A region may be read while bytes arrive: each byte is the old one or the
 * one that was written. */
static void what_is_changed_is_never_seen(void **state) {
  struct pair p;
  struct perigee_event e;
  (void)state;
  open_sides(&p, words, ALL, OFF, 1);
  struct perigee_region *own = full_of(&p, 0, NULL, asked);
  struct perigee_region *theirs = full_of(&p, 1, "r", answered);
  struct perigee_transfer t = {.local = all_of(own, BULK)};
  t.remote = (struct perigee_slice){
      .remote = look_up(&p, "r"), .length = BULK, .count = 1};
  const volatile uint8_t *seen = perigee_region_pointer(theirs);
  settle(&p);
  perigee_transfer(p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, -1);
  for (int64_t end = clock_now() + 20000 * MS, lost = 0; lost < 2;) {
    poll_both(&p);
    if (seen[DIFFERS] == (uint8_t)asked[DIFFERS]) /* payload is on its way */
      b.harm[0] = HARM_FLIP;
    for (int i = 0; i < 2; i++)
      while (taken(&p, i, &e))
        lost += e.kind == PERIGEE_EVENT_LOST;
    assert_true(clock_now() < end);
  }
  for (size_t i = 0; i < BULK; i++)
    if (seen[i] != (uint8_t)asked[i % (sizeof asked - 1)])
      assert_int_equal(seen[i], (uint8_t)answered[i % (sizeof answered - 1)]);
  pair_drop(&p);
  between_close(&b);
}

static void what_is_repeated_ends_the_session(void **state) {
  (void)state;
  for (int side = 0; side < 2; side++)
    harmed(HARM_REPEAT, side, ALL), harmed(HARM_REPEAT, side, AUTH);
}

static void what_is_left_out_ends_the_session(void **state) {
  (void)state;
  for (int side = 0; side < 2; side++)
    harmed(HARM_DROP, side, ALL), harmed(HARM_DROP, side, AUTH);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_sealed_is_not_overheard),
      cmocka_unit_test(what_is_not_sealed_is_overheard),
      cmocka_unit_test(the_wish_of_one_side_is_enough),
      cmocka_unit_test(what_has_macs_is_overheard_and_whole),
      cmocka_unit_test(by_default_nothing_is_sealed_over_loopback),
      cmocka_unit_test(without_a_secret_it_is_sealed_all_the_same),
      cmocka_unit_test(what_is_changed_ends_the_session),
      cmocka_unit_test(what_is_changed_is_never_seen),
      cmocka_unit_test(what_is_repeated_ends_the_session),
      cmocka_unit_test(what_is_left_out_ends_the_session),
  };
  return cmocka_run_group_tests_name("sealed", tests, NULL, NULL);
}
