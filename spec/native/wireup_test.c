/* SPDX-License-Identifier: Apache-2.0
 *
 * wireup_test.c - hellos from a peer that is played by hand (hand.c) and does
 * not follow the protocol.
 */
#include "hand.h"
#include "session/sessions.h"
#include "support.h"

#include <string.h>
#include <sys/ioctl.h>
#include <linux/sockios.h>

enum { POLLS = 4096, PINGS = WIRE_OUT / SEAL_CHUNK(FRAME_HEAD) };

static struct perigee_engine *engine_new(void) {
  struct perigee_engine *engine;
  struct perigee_options o;
  perigee_options_init(&o, sizeof o);
  o.secret = "sixteen letters of secret";
  o.hello_timeout = 60000 * MS;
  assert_int_equal(perigee_engine_open(&o, &engine), 0);
  return engine;
}

/* The number of bytes that the engine has not read yet. */
static int unread(const struct hand *h) {
  int bytes = 0;
  assert_int_equal(ioctl(h->fd, SIOCOUTQ, &bytes), 0);
  return bytes;
}

/* More than the engine reads in one poll. */
static void fill_with_pings(struct hand *h) {
  const struct frame ping = {.type = FRAME_PING};
  h->wire.corked = true;
  for (int i = 0; i < PINGS; i++)
    hand_frame(h, &ping);
  wire_flush(h->fd, &h->wire);
}

static void who_never_stops_talking_does_not_hold_a_poll(void **state) {
  (void)state;
  struct perigee_engine *engine = engine_new();
  struct perigee_event e;
  struct hand h;
  hand_come(&h, engine, true);
  assert_true(hand_joins(&h, engine->secret));
  fill_with_pings(&h);
  hand_poll(&h, &e, 1);
  assert_true(unread(&h) > 0);
  for (int i = 0; i < POLLS && (unread(&h) > 0 || wire_waits(&h.wire)); i++) {
    hand_poll(&h, &e, 1);
    wire_flush(h.fd, &h.wire);
  }
  assert_int_equal(unread(&h), 0);
  assert_int_equal(h.session->state, PERIGEE_SESSION_HELLO);
  hand_word(&h, &(struct frame){.type = FRAME_READY});
  assert_int_equal(hand_poll(&h, &e, 1), 1);
  assert_int_equal(e.kind, PERIGEE_EVENT_ACCEPTED);
  hand_close(&h);
  perigee_engine_close(engine);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(who_never_stops_talking_does_not_hold_a_poll),
  };
  return cmocka_run_group_tests_name("hello", tests, NULL, NULL);
}
