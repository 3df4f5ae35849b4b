/* SPDX-License-Identifier: Apache-2.0
 *
 * endpoints_test.c - sessions without a socket, over the specs' own transport:
 * the two texts, which side is first, what is sent, and how they end.
 */
#include <stdio.h>
#include <string.h>

#include "net/wire.h"
#include "support.h"

static const struct variant inproc = {"inproc, host", "inproc", "host", 1,
                                      NULL};

/* faults: what goes wrong with what side 1 receives. */
static void two_engines_with(struct pair *p, const char *faults) {
  struct perigee_options o;
  *p = (struct pair){.variant = &inproc};
  variant_options(&inproc, &o);
  o.hellos = 1;
  o.hello_timeout = 1 * MS;
  for (int i = 0; i < 2; i++) {
    o.faults = i == 1 ? faults : NULL;
    assert_int_equal(perigee_engine_open(&o, &p->engine[i]), 0);
  }
}

static void two_engines(struct pair *p) {
  two_engines_with(p, NULL);
}

static struct perigee_endpoint *endpoint(struct pair *p, int side) {
  struct perigee_endpoint *e = NULL;
  assert_int_equal(perigee_endpoint_open(p->engine[side], "inproc", &e), 0);
  return e;
}

static uint64_t nonce(const struct perigee_endpoint *e) {
  struct hello hello;
  struct terms terms;
  struct offer offer;
  assert_int_equal(info_read(perigee_endpoint_info(e), &hello, &terms, &offer),
                   0);
  return hello.nonce;
}

/* Makes endpoints of both sides, of which that of side 0 speaks first, or
 * not. */
static void ends_of(struct pair *p, bool calls, struct perigee_endpoint *e[2]) {
  for (;;) {
    for (int i = 0; i < 2; i++)
      e[i] = endpoint(p, i);
    if ((nonce(e[0]) < nonce(e[1])) == calls)
      return;
    for (int i = 0; i < 2; i++)
      perigee_endpoint_close(e[i]);
  }
}

static int meet(struct perigee_endpoint *e, const struct perigee_endpoint *to,
                int64_t timeout) {
  return perigee_endpoint_connect(e, perigee_endpoint_info(to), timeout);
}

static void opened(struct pair *p, int side, int op) {
  struct perigee_event e = ended(p, side, op, 0);
  assert_int_equal(e.kind, PERIGEE_EVENT_CONNECTED);
  p->session[side] = perigee_session(p->engine[side], e.session);
  assert_non_null(p->session[side]);
}

static void idle(struct pair *p, int64_t time) {
  for (int64_t end = clock_now() + time; clock_now() < end;)
    quiet(p, 100);
}

/* Side 0 connects first, side 1 later. */
static void connected(struct pair *p, bool calls, int64_t pause) {
  struct perigee_endpoint *e[2];
  ends_of(p, calls, e);
  int first = meet(e[0], e[1], 5000 * MS);
  assert_true(first >= 0);
  idle(p, pause);
  int second = meet(e[1], e[0], 5000 * MS);
  assert_true(second >= 0);
  opened(p, 0, first);
  opened(p, 1, second);
  for (int i = 0; i < 2; i++)
    perigee_endpoint_close(e[i]);
}

static void works(struct pair *p) {
  static const char hello[] = "hello";
  struct perigee_region *there =
      region_of(p, 1, "kv", 100000, PERIGEE_READ | PERIGEE_WRITE);
  struct perigee_region *here = region_of(p, 0, NULL, 100000, PERIGEE_LOCAL);
  struct perigee_remote *remote = look_up(p, "kv");
  fill_byte(here, 7);
  struct perigee_transfer t = {
      .local = all_of(here, 100000),
      .remote = {
          .remote = remote, .length = 100000, .count = 1, .stride = 100000}};
  int op = perigee_transfer(p->session[0], PERIGEE_OP_WRITE, &t, 1, 0, -1);
  finish(p, op, 0);
  all_byte(there, 7);
  struct perigee_message m = {
      .head = hello, .length = sizeof hello, .timeout = -1};
  op = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_memory_equal(e.pointer, hello, sizeof hello);
  assert_int_equal(perigee_reply(p->engine[1], e.operation, &m), 0);
  ended(p, 0, op, 0);
  region_end(here);
  region_end(there);
}

static void whoever_is_first_they_become_a_session(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) {
    struct pair p;
    struct perigee_session_info info;
    two_engines(&p);
    connected(&p, i & 1, i & 2 ? 60 * MS : 0);
    works(&p);
    perigee_session_describe(p.session[0], &info, sizeof info);
    assert_string_equal(info.address, "endpoint");
    assert_string_equal(info.transport, "inproc");
    assert_int_equal(info.pid, 0);
    pair_close(&p);
  }
}

static void closing_is_told(void **state) {
  (void)state;
  struct pair p;
  struct perigee_session_info info;
  two_engines(&p);
  for (int i = 0; i < 4; i++) {
    connected(&p, i & 1, 0);
    if (i & 2)
      works(&p);
    perigee_session_close(p.session[0]);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_LOST);
    assert_int_equal(e.status, PERIGEE_PEER_LOST);
    perigee_session_describe(p.session[1], &info, sizeof info);
    assert_string_equal(info.reason, "the peer closed the session");
    until(&p, 0, PERIGEE_EVENT_LOST);
    for (int side = 0; side < 2; side++)
      perigee_session_free(p.session[side]);
  }
  pair_drop(&p);
}

static void faults_reach_them_as_other_sessions(void **state) {
  (void)state;
  struct pair p;
  struct perigee_message m = {.head = "x", .length = 1, .timeout = -1};
  two_engines_with(&p, "cut=1");
  connected(&p, true, 0);
  assert_true(perigee_call(p.session[0], &m) >= 0);
  until(&p, 1, PERIGEE_EVENT_LOST);
  pair_drop(&p);
}

static void a_peer_that_is_gone_is_noticed(void **state) {
  (void)state;
  struct pair p;
  two_engines(&p);
  connected(&p, true, 0);
  struct perigee_region *here = region_of(&p, 0, NULL, 64, PERIGEE_LOCAL);
  struct perigee_slice slice = all_of(here, 64);
  int op = perigee_recv(p.session[0], &slice, -1);
  perigee_engine_close(p.engine[1]);
  p.engine[1] = NULL;
  ended(&p, 0, op, PERIGEE_PEER_LOST);
  until(&p, 0, PERIGEE_EVENT_LOST);
  pair_drop(&p);
}

static void a_peer_that_never_comes_is_a_timeout(void **state) {
  (void)state;
  struct pair p;
  struct perigee_endpoint *e[2];
  two_engines(&p);
  for (int i = 0; i < 2; i++) {
    ends_of(&p, i, e);
    int op = meet(e[0], e[1], 30 * MS);
    ended(&p, 0, op, PERIGEE_TIMEOUT);
    assert_int_equal(meet(e[0], e[1], -1), PERIGEE_INVALID);
    perigee_endpoint_close(e[0]);
  }
  quiet(&p, 2);
  assert_int_equal(perigee_counters(p.engine[0], NULL)->sessions, 0);
  assert_int_equal(perigee_counters(p.engine[0], NULL)->operations, 0);
  pair_drop(&p);
}

/* A cancelled connect leaves nothing behind either. */
static void a_connect_can_be_cancelled(void **state) {
  (void)state;
  struct pair p;
  struct perigee_endpoint *e[2];
  two_engines(&p);
  ends_of(&p, true, e);
  int op = meet(e[0], e[1], -1);
  perigee_endpoint_close(e[0]);
  quiet(&p, 10);
  perigee_cancel(p.engine[0], op);
  ended(&p, 0, op, PERIGEE_CANCELLED);
  quiet(&p, 2);
  assert_int_equal(perigee_counters(p.engine[0], NULL)->sessions, 0);
  pair_drop(&p);
}

/* ---- Texts -------------------------------------------------------------- */

static void texts_that_are_none_do_no_harm(void **state) {
  (void)state;
  struct pair p;
  struct perigee_endpoint *e[2];
  char text[2 * INFO_TEXT];
  two_engines(&p);
  ends_of(&p, true, e);
  const char *good = perigee_endpoint_info(e[1]);
  size_t length = strlen(good);
  assert_true(length < 4096);
  assert_int_equal(strspn(good, "perigee-endpoint:0123456789abcdef"), length);
  for (size_t i = 0; i < length; i++) {
    snprintf(text, sizeof text, "%.*s", (int)i, good);
    assert_int_equal(perigee_endpoint_connect(e[0], text, -1),
                     PERIGEE_PROTOCOL);
    for (int bit = 0; bit < 8; bit++) {
      memcpy(text, good, length + 1);
      text[i] = (char)(text[i] ^ 1 << bit);
      assert_int_equal(perigee_endpoint_connect(e[0], text, -1),
                       PERIGEE_PROTOCOL);
    }
  }
  snprintf(text, sizeof text, "%s%s", good, good);
  assert_int_equal(perigee_endpoint_connect(e[0], text, -1), PERIGEE_PROTOCOL);
  assert_int_equal(meet(e[0], e[0], -1), PERIGEE_PROTOCOL);
  snprintf(text, sizeof text, "\t %s \r\n", good);
  int op = perigee_endpoint_connect(e[0], text, 5000 * MS);
  int other = meet(e[1], e[0], 5000 * MS);
  opened(&p, 0, op);
  opened(&p, 1, other);
  works(&p);
  pair_close(&p);
}

/* An endpoint of another version, or with nothing in common: both sides are
 * told why. */
static void hellos_that_do_not_fit_end_the_endpoint(void **state) {
  (void)state;
  static const int status[] = {PERIGEE_VERSION, PERIGEE_UNSUPPORTED,
                               PERIGEE_UNSUPPORTED};
  struct pair p;
  char text[INFO_TEXT];
  two_engines(&p);
  for (int i = 0; i < 3; i++) {
    struct hello hello;
    struct terms terms;
    struct offer offer;
    struct perigee_endpoint *e[2];
    ends_of(&p, true, e);
    info_read(perigee_endpoint_info(e[1]), &hello, &terms, &offer);
    if (i == 0)
      hello.version_min = hello.version_max = PROTOCOL_MAX + 1;
    else if (i == 1)
      memcpy(terms.transport[0], "pigeon", 7);
    else
      terms.ring = 64;
    info_write(&hello, &terms, &offer, text);
    int op = perigee_endpoint_connect(e[0], text, -1);
    assert_true(op >= 0);
    ended(&p, 0, op, status[i]);
    perigee_endpoint_close(e[0]);
  }
  pair_drop(&p);
}

static void transports_that_need_a_socket_are_refused(void **state) {
  (void)state;
  struct pair p;
  struct perigee_endpoint *e;
  two_engines(&p);
  assert_int_equal(perigee_endpoint_open(p.engine[0], "shm", &e),
                   PERIGEE_UNSUPPORTED);
  assert_int_equal(perigee_endpoint_open(p.engine[0], "pigeon", &e),
                   PERIGEE_UNSUPPORTED);
  assert_int_equal(perigee_endpoint_open(p.engine[0], NULL, &e), 0);
  for (int i = 0; i < 3; i++)
    endpoint(&p, 1);
  pair_drop(&p); /* frees the endpoints that are left, too */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(whoever_is_first_they_become_a_session),
      cmocka_unit_test(closing_is_told),
      cmocka_unit_test(faults_reach_them_as_other_sessions),
      cmocka_unit_test(a_peer_that_is_gone_is_noticed),
      cmocka_unit_test(a_peer_that_never_comes_is_a_timeout),
      cmocka_unit_test(a_connect_can_be_cancelled),
      cmocka_unit_test(texts_that_are_none_do_no_harm),
      cmocka_unit_test(hellos_that_do_not_fit_end_the_endpoint),
      cmocka_unit_test(transports_that_need_a_socket_are_refused),
  };
  return cmocka_run_group_tests_name("endpoints", tests, NULL, NULL);
}
