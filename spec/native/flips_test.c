/* SPDX-License-Identifier: Apache-2.0
 *
 * flips_test.c - a man in the middle between a dialer and a listener during the
 * handshake. He flips each single bit of what either side sends, and omits,
 * repeats, swaps, reflects and replays whole frames. No session results: the
 * side that gets a changed frame never opens, and the other does not stay open.
 * The test moves the clock, so that no timeout takes real time.
 */
#include "hand.h"
#include "session/sessions.h"
#include "support.h"
#include "transport/tcp/tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DIALER, LISTENER };
enum { HELLO_UNIT, PROOF_UNIT, TERMS_UNIT, OFFER_UNIT, READY_UNIT, UNITS };
enum { HEARD_MOST = 8192, ROUNDS = 12 };

static const uint32_t unit_length[UNITS] = {
    FRAME_HEAD + sizeof(struct hello), FRAME_HEAD + HANDSHAKE_MAC,
    SEAL_CHUNK(FRAME_HEAD + sizeof(struct terms)),
    SEAL_CHUNK(FRAME_HEAD + 8 + sizeof(struct tcp_offer)),
    SEAL_CHUNK(FRAME_HEAD + sizeof(uint32_t))};

static uint32_t start_of(int unit) {
  uint32_t at = 0;
  for (int i = 0; i < unit; i++)
    at += unit_length[i];
  return at;
}

/* One side, as the man in the middle sees it. */
struct side {
  struct perigee_engine *engine;
  uint32_t id;
  int fd;
  bool opened, cut;
  uint8_t said[HEARD_MOST];
  uint32_t length, passed;
};

struct scene {
  struct side side[2];
  const char *secret;
  int encrypt;
};

static int64_t now = 1;

static int64_t clock_of_test(void *context) {
  (void)context;
  return now += 1000;
}

static void engine_new(struct scene *s, int i) {
  struct perigee_options o;
  perigee_options_init(&o, sizeof o);
  o.clock = clock_of_test;
  o.secret = s->secret;
  o.encrypt = s->encrypt;
  assert_int_equal(perigee_engine_open(&o, &s->side[i].engine), 0);
}

static void scene_open(struct scene *s, const char *secret, int encrypt) {
  *s = (struct scene){.secret = secret, .encrypt = encrypt};
  for (int i = 0; i < 2; i++)
    engine_new(s, i);
}

static void scene_close(struct scene *s) {
  for (int i = 0; i < 2; i++)
    perigee_engine_close(s->side[i].engine);
}

/* ---- Two that meet ------------------------------------------------------- */

static void come(struct scene *s, int i) {
  struct side *side = &s->side[i];
  int pair[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair),
                   0);
  struct perigee_session *session = session_new(side->engine, pair[1]);
  session->tcp = true;
  session->dialed = i == DIALER;
  snprintf(session->target.transport, sizeof session->target.transport,
           "tcp"); /* it stays */
  watch_add(side->engine, pair[1], &session->socket.watcher,
            EPOLLIN | EPOLLRDHUP);
  side->id = session->id;
  side->fd = pair[0];
  side->opened = side->cut = false;
  side->length = side->passed = 0;
  session->engine->wireup->begin(session);
}

static void poll_one(struct side *side) {
  struct perigee_event e[4];
  side->engine->sockets_due = true;
  for (int n = perigee_poll(side->engine, e, 4); n-- > 0;)
    side->opened |= e[n].kind == PERIGEE_EVENT_ACCEPTED;
  ssize_t got = recv(side->fd, side->said + side->length,
                     HEARD_MOST - side->length, MSG_DONTWAIT);
  side->length += got > 0 ? (uint32_t)got : 0;
  side->cut |= got == 0;
}

static bool is_open(const struct side *side) {
  const struct perigee_session *s = session_by_id(side->engine, side->id);
  return s && s->state == PERIGEE_SESSION_OPEN;
}

static void part(struct scene *s) {
  for (int i = 0; i < 2; i++) {
    struct side *side = &s->side[i];
    close(side->fd);
    for (int n = 0; n < 4; n++)
      poll_one(side);
    assert_false(is_open(side));
    struct perigee_session *session = session_by_id(side->engine, side->id);
    if (session)
      perigee_session_free(session);
    poll_one(side);
  }
}

/* ---- What is done to their words ------------------------------------------ */

/* The bytes that are passed on from a side, after those of the last call. */
typedef void pass_on(struct scene *s, int from, const void *how);

/* A side that is cut off is cut off from the other side too. */
static void go_on(struct scene *s, pass_on *pass, const void *how) {
  for (int round = 0; round < ROUNDS; round++)
    for (int i = 0; i < 2; i++) {
      poll_one(&s->side[i]);
      pass(s, i, how);
      if (s->side[i].cut)
        shutdown(s->side[!i].fd, SHUT_RDWR);
    }
}

/* Passes on until nothing moves, and until the hello timeout is over. */
static void meet(struct scene *s, pass_on *pass, const void *how) {
  come(s, LISTENER);
  come(s, DIALER);
  go_on(s, pass, how);
  now += s->side[0].engine->options.hello_timeout;
  go_on(s, pass, how);
}

static void send_on(struct scene *s, int from, const void *bytes,
                    uint32_t length) {
  if (length > 0)
    (void)!send(s->side[!from].fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
}

struct flip {
  int side;
  uint32_t bit;
};

static void flipped(struct scene *s, int from, const void *how) {
  const struct flip *f = how;
  struct side *side = &s->side[from];
  uint32_t at = f->bit / 8;
  uint8_t bytes[HEARD_MOST];
  memcpy(bytes, side->said, side->length);
  if (f->side == from && at >= side->passed && at < side->length)
    bytes[at] ^= (uint8_t)(1 << f->bit % 8);
  send_on(s, from, bytes + side->passed, side->length - side->passed);
  side->passed = side->length;
}

/* ---- Bits ------------------------------------------------------------------ */

static const char words[] = "correct horse battery staple";

static void as_it_is(struct scene *s) {
  meet(s, flipped, &(struct flip){.side = -1});
  for (int i = 0; i < 2; i++) {
    assert_true(s->side[i].opened && is_open(&s->side[i]));
    assert_true(s->side[i].length >= start_of(UNITS));
  }
  part(s);
}

/* A side that has read the peer's READY is open. If its own READY was
 * changed, its peer cuts the connection. */
static void no_bit_can_be_changed(const char *secret, int encrypt) {
  struct scene s;
  uint32_t ready = 8 * start_of(READY_UNIT);
  scene_open(&s, secret, encrypt);
  as_it_is(&s);
  for (struct flip f = {.side = 0}; f.side < 2; f.side++)
    for (f.bit = 0; f.bit < 8 * start_of(UNITS); f.bit++) {
      meet(&s, flipped, &f);
      bool late = s.side[f.side].opened && f.bit >= ready;
      if (s.side[!f.side].opened || (s.side[f.side].opened && !late))
        fail_msg("bit %u of side %d", f.bit, f.side);
      if (is_open(&s.side[0]) || is_open(&s.side[1]))
        fail_msg("bit %u of side %d: it stays open", f.bit, f.side);
      part(&s);
    }
  as_it_is(&s);
  scene_close(&s);
}

static void no_bit_can_be_changed_in_the_clear(void **state) {
  (void)state;
  no_bit_can_be_changed(words, 0);
}

static void nor_where_all_is_sealed(void **state) {
  (void)state;
  no_bit_can_be_changed(words, PERIGEE_ENCRYPT_ALL);
}

static void nor_where_it_has_macs(void **state) {
  (void)state;
  no_bit_can_be_changed(words, PERIGEE_ENCRYPT_AUTH);
}

/* A man in the middle who only changes bits is detected even then. */
static void nor_without_a_secret(void **state) {
  (void)state;
  no_bit_can_be_changed("", 0);
}

/* ---- Keys ------------------------------------------------------------------ */

/* The fields of a HELLO that must be fresh, so that no recorded frame and no
 * key found later is valid for another session. */
struct fresh {
  uint64_t nonce;
  uint8_t challenge[HANDSHAKE_CHALLENGE], public_key[HANDSHAKE_KEY];
};

static struct fresh fresh_of(const struct side *side) {
  struct frame f;
  assert_true(wire_frame(side->said, side->length, &f) > 0);
  assert_int_equal(f.type, FRAME_HELLO);
  struct fresh fresh = {.nonce = f.hello.nonce};
  memcpy(fresh.challenge, f.hello.challenge, sizeof fresh.challenge);
  memcpy(fresh.public_key, f.hello.public_key, sizeof fresh.public_key);
  return fresh;
}

static void each_handshake_has_keys_of_its_own(void **state) {
  (void)state;
  enum { MEETINGS = 32, ALL = 2 * MEETINGS };
  struct fresh all[ALL];
  struct scene s;
  scene_open(&s, words, 0);
  for (int i = 0; i < ALL; i += 2) {
    meet(&s, flipped, &(struct flip){.side = -1});
    all[i] = fresh_of(&s.side[0]);
    all[i + 1] = fresh_of(&s.side[1]);
    part(&s);
  }
  for (int i = 0; i < ALL; i++)
    for (int k = 0; k < i; k++) {
      assert_int_not_equal(all[i].nonce, all[k].nonce);
      assert_memory_not_equal(all[i].challenge, all[k].challenge,
                              HANDSHAKE_CHALLENGE);
      assert_memory_not_equal(all[i].public_key, all[k].public_key,
                              HANDSHAKE_KEY);
    }
  scene_close(&s);
}

/* ---- Frames ---------------------------------------------------------------- */

/* The frames of one side in the order in which they are passed on; UNITS
 * ends the list. Those from the PROOF on may be the other side's, or an
 * earlier session's. */
struct plan {
  int side;
  int order[UNITS + 3];
  bool of_other, of_before;
};

static struct scene before;

static const struct side *source_of(const struct scene *s, int from,
                                    const struct plan *p, int unit) {
  static const int first = PROOF_UNIT; /* else it would be another's hello */
  if (p->of_before && unit >= first)
    return &before.side[from];
  return &s->side[p->of_other && unit >= first ? !from : from];
}

static void planned(struct scene *s, int from, const void *how) {
  const struct plan *p = how;
  struct side *side = &s->side[from];
  if (p->side != from) {
    flipped(s, from, &(struct flip){.side = -1});
    return;
  }
  for (;;) { /* counts the frames that pass */
    int unit = p->order[side->passed];
    if (unit == UNITS)
      return;
    const struct side *of = source_of(s, from, p, unit);
    uint32_t at = start_of(unit);
    if (of->length < at + unit_length[unit])
      return;
    send_on(s, from, of->said + at, unit_length[unit]);
    side->passed++;
  }
}

static void no_session_comes_of(struct scene *s, struct plan plan) {
  for (plan.side = 0; plan.side < 2; plan.side++) {
    meet(s, planned, &plan);
    assert_false(s->side[!plan.side].opened);
    assert_false(is_open(&s->side[plan.side]));
    part(s);
  }
}

static void frames_keep_their_order(void **state) {
  (void)state;
  static const struct plan plans[] = {
      {.order = {1, 0, 2, 3, 4, UNITS}},
      {.order = {0, 2, 1, 3, 4, UNITS}},
      {.order = {0, 1, 3, 2, 4, UNITS}},
      {.order = {0, 1, 2, 4, 3, UNITS}},
      {.order = {0, 1, 2, 4, UNITS}},
      {.order = {0, 1, 2, 3, UNITS}},
      {.order = {0, 1, 3, 4, UNITS}},
      {.order = {0, 2, 3, 4, UNITS}},
      {.order = {0, 0, 1, 2, 3, 4, UNITS}},
      {.order = {0, 1, 1, 2, 3, 4, UNITS}},
      {.order = {0, 1, 2, 2, 3, 4, UNITS}},
      {.order = {0, 1, 2, 3, 3, 4, UNITS}},
  };
  struct scene s;
  scene_open(&s, words, 0);
  for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
    no_session_comes_of(&s, plans[i]);
  meet(&s, planned, &(struct plan){.order = {0, 1, 2, 3, 4, UNITS}});
  assert_true(s.side[0].opened && s.side[1].opened);
  part(&s);
  scene_close(&s);
}

static void nobody_is_met_by_his_own_words(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s, words, 0);
  no_session_comes_of(
      &s, (struct plan){.order = {0, 1, 2, 3, 4, UNITS}, .of_other = true});
  scene_close(&s);
}

static void nor_by_those_of_another_time(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s, words, 0);
  meet(&s, flipped, &(struct flip){.side = -1});
  before = s;
  part(&s);
  no_session_comes_of(
      &s, (struct plan){.order = {0, 1, 2, 3, 4, UNITS}, .of_before = true});
  scene_close(&s);
}

/* ---- Refusals ---------------------------------------------------------------- */

/* What the dialer sends to a listener with another secret is not sealed.
 * Changing it may only end the handshake in another way. */
static void a_refusal_that_was_changed_is_none_the_less_one(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s, words, 0);
  perigee_engine_close(s.side[LISTENER].engine);
  s.secret = "correct horse battery stable";
  engine_new(&s, LISTENER);
  uint32_t length = start_of(PROOF_UNIT) + FRAME_HEAD + sizeof(struct refuse);
  for (struct flip f = {.side = DIALER}; f.bit < 8 * length; f.bit++) {
    meet(&s, flipped, &f);
    assert_false(s.side[0].opened || s.side[1].opened);
    part(&s);
  }
  scene_close(&s);
}

/* ---- Streams ----------------------------------------------------------------- */

static uint32_t streams_of(const struct hand *h) {
  return h->session->lane->stream_count;
}

/* Connects and sends this first. */
static void attaches(struct perigee_engine *engine, const void *bytes,
                     uint32_t length) {
  struct perigee_event e;
  struct hand stranger;
  hand_come(&stranger, engine, true);
  hand_say(&stranger, bytes, length);
  hand_poll(&stranger, &e, 1);
  hand_close(&stranger);
  hand_poll(&stranger, &e, 1);
}

static void no_stream_is_attached_by_what_was_changed(void **state) {
  (void)state;
  struct scene s;
  struct hand h;
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  struct frame f = {.type = FRAME_ATTACH, .attach = {.index = 1}};
  scene_open(&s, words, 0);
  struct perigee_engine *engine = s.side[LISTENER].engine;
  hand_come(&h, engine, true);
  assert_true(hand_open(&h, engine->secret));
  f.attach.session = h.heard.nonce;
  handshake_attach(h.key, 1, f.attach.mac);
  uint32_t length = wire_encode(&f, bytes);
  for (uint32_t bit = 0; bit < 8 * length; bit++) {
    bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    attaches(engine, bytes, length);
    bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    assert_int_equal(streams_of(&h), 1);
  }
  attaches(engine, bytes, length);
  assert_int_equal(streams_of(&h), 2);
  hand_close(&h);
  scene_close(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_bit_can_be_changed_in_the_clear),
      cmocka_unit_test(nor_where_all_is_sealed),
      cmocka_unit_test(nor_where_it_has_macs),
      cmocka_unit_test(nor_without_a_secret),
      cmocka_unit_test(each_handshake_has_keys_of_its_own),
      cmocka_unit_test(frames_keep_their_order),
      cmocka_unit_test(nobody_is_met_by_his_own_words),
      cmocka_unit_test(nor_by_those_of_another_time),
      cmocka_unit_test(a_refusal_that_was_changed_is_none_the_less_one),
      cmocka_unit_test(no_stream_is_attached_by_what_was_changed),
  };
  return cmocka_run_group_tests_name("flips", tests, NULL, NULL);
}
