/* SPDX-License-Identifier: Apache-2.0
 *
 * frames_test.c - frames as a stranger would send them: which are refused, and
 * that each has one encoding.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "samples.h"

/* A frame with one 32-bit word set to a value. */
static int patched(const struct frame *frame, size_t at, uint32_t value) {
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  struct frame got;
  uint32_t length = wire_encode(frame, bytes);
  memcpy(bytes + at, &value, sizeof value);
  return wire_frame(bytes, length, &got);
}

static void unsound_frames_are_refused(void **state) {
  (void)state;
  struct frame frame = sample(FRAME_HELLO);
  assert_true(patched(&frame, 4, FRAME_HELLO) > 0);
  assert_int_equal(patched(&frame, 0, FRAME_BODY + 1), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, 0, UINT32_MAX), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, 0, 0), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, 4, 0), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, 4, FRAME_TYPES), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, 4, FRAME_WAKE), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, 4, 1 << 16 | FRAME_HELLO), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, FRAME_HEAD, 0), PERIGEE_PROTOCOL);
  frame = sample(FRAME_TERMS);
  size_t transports = FRAME_HEAD + offsetof(struct terms, transports);
  assert_int_equal(patched(&frame, transports, TRANSPORTS_MAX + 1),
                   PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, transports, UINT32_MAX), PERIGEE_PROTOCOL);
}

/* A hello of these versions whose body has these bytes. */
static int versions(uint32_t min, uint32_t max, uint32_t body,
                    struct frame *got) {
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  struct frame frame = sample(FRAME_HELLO);
  frame.hello.version_min = min;
  frame.hello.version_max = max;
  memset(bytes, 0xff, sizeof bytes);
  wire_encode(&frame, bytes);
  memcpy(bytes, &body, sizeof body);
  return wire_frame(bytes, sizeof bytes, got);
}

static void hellos_of_other_versions_tell_which(void **state) {
  (void)state;
  struct frame got;
  uint32_t own = sizeof(struct hello);
  uint32_t bodies[] = {HELLO_VERSIONS, HELLO_VERSIONS + 1, own - 8, own,
                       own + 8,        FRAME_BODY};
  for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
    assert_true(versions(7, 9, bodies[i], &got) > 0);
    assert_true(wire_foreign(&got.hello));
    assert_int_equal(got.hello.version_min, 7);
    assert_int_equal(got.hello.version_max, 9);
    assert_int_equal(got.hello.nonce, 0); /* whatever that may mean there */
    if (bodies[i] != own)
      assert_int_equal(versions(1, 9, bodies[i], &got), PERIGEE_PROTOCOL);
  }
  assert_int_equal(versions(7, 9, HELLO_VERSIONS - 1, &got), PERIGEE_PROTOCOL);
  assert_int_equal(versions(7, 9, FRAME_BODY + 1, &got), PERIGEE_PROTOCOL);
}

static void attachments_have_no_spare_bytes(void **state) {
  (void)state;
  struct frame frame = sample(FRAME_ATTACH);
  size_t zero = FRAME_HEAD + offsetof(struct attach, zero);
  assert_true(patched(&frame, zero, 0) > 0);
  assert_int_equal(patched(&frame, zero, 1), PERIGEE_PROTOCOL);
}

static void moves_go_to_a_port(void **state) {
  (void)state;
  struct frame frame = sample(FRAME_MOVE);
  size_t port = FRAME_HEAD + offsetof(struct move, port);
  assert_true(patched(&frame, port, 65535) > 0);
  assert_int_equal(patched(&frame, port, 65536), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, port + 4, 1), PERIGEE_PROTOCOL);
}

static void endless_texts_are_refused(void **state) {
  (void)state;
  struct frame frame = sample(FRAME_TERMS);
  memset(frame.terms.transport[1], 'x', TRANSPORT_NAME);
  assert_int_equal(patched(&frame, 4, FRAME_TERMS), PERIGEE_PROTOCOL);
  frame = sample(FRAME_TERMS);
  memset(frame.terms.name, 'x', TERMS_NAME);
  assert_int_equal(patched(&frame, 4, FRAME_TERMS), PERIGEE_PROTOCOL);
  frame = sample(FRAME_REFUSE);
  memset(frame.refuse.text, 'x', REFUSE_TEXT);
  assert_int_equal(patched(&frame, 4, FRAME_REFUSE), PERIGEE_PROTOCOL);
  frame = sample(FRAME_LOOKUP);
  memset(frame.lookup.name, 'x', sizeof frame.lookup.name);
  assert_int_equal(patched(&frame, 4, FRAME_LOOKUP), PERIGEE_PROTOCOL);
}

static void offers_are_limited(void **state) {
  (void)state;
  struct frame frame = sample(FRAME_OFFER);
  assert_true(patched(&frame, 4, FRAME_OFFER) > 0);
  assert_int_equal(patched(&frame, FRAME_HEAD, OFFER_FDS + 1),
                   PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, 0, 7), PERIGEE_PROTOCOL);
}

/* Of an additional lane: its number, its word, descriptors, status, length. */
static void words_of_lanes_are_checked(void **state) {
  (void)state;
  struct frame frame = sample(FRAME_EXTRA);
  uint32_t head = 1 | EXTRA_WORD_OFFER << 8;
  assert_true(patched(&frame, FRAME_HEAD, head) > 0);
  assert_true(patched(&frame, FRAME_HEAD, head | OFFER_FDS << 16) > 0);
  assert_true(patched(&frame, FRAME_HEAD,
                      1 | EXTRA_WORD_LANE << 8 | EXTRA_FDS << 16) > 0);
  const uint32_t wrong[] = {head - 1,
                            head | (OFFER_FDS + 1) << 16,
                            1 | EXTRA_WORDS << 8,
                            1,
                            1 | EXTRA_WORD_LANE << 8 | (EXTRA_FDS + 1) << 16,
                            1 | EXTRA_WORD_LOST << 8};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_int_equal(patched(&frame, FRAME_HEAD, wrong[i]), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, FRAME_HEAD + 4, 1), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, FRAME_HEAD + 4, UINT32_MAX),
                   PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, 0, 7), PERIGEE_PROTOCOL);
}

/* ---- Keys of regions -------------------------------------------------------- */

static void adds_key(struct found *f, uint32_t lane, uint32_t fds,
                     uint32_t length) {
  struct found_key *k = &f->key[f->keys++];
  k->lane = lane;
  k->key.fd_count = fds;
  k->key.length = length;
  memset(k->key.bytes, (int)(1 + lane), length);
  f->fds += (uint16_t)fds;
}

/* Encodes and decodes the frame, which must stay the same; returns the
 * length of its body. */
static uint32_t goes_as(const struct frame *frame) {
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  struct frame got;
  uint32_t length = wire_encode(frame, bytes);
  assert_int_equal(wire_frame(bytes, length, &got), length);
  assert_int_equal(wire_fds(&got), frame->found.fds);
  assert_int_equal(got.found.keys, frame->found.keys);
  for (uint32_t i = 0; i < got.found.keys; i++) {
    const struct found_key *k = &got.found.key[i], *as = &frame->found.key[i];
    assert_int_equal(k->lane, as->lane);
    assert_int_equal(k->key.fd_count, as->key.fd_count);
    assert_int_equal(k->key.length, as->key.length);
    assert_memory_equal(k->key.bytes, as->key.bytes, k->key.length);
  }
  return length - FRAME_HEAD;
}

static void keys_of_lanes_arrive(void **state) {
  (void)state;
  struct frame f = sample(FRAME_FOUND);
  assert_int_equal(goes_as(&f), 40);
  adds_key(&f.found, 0, 1, 0); /* as older builds tell of a descriptor */
  assert_int_equal(goes_as(&f), 40);
  adds_key(&f.found, 1, 0, KEY_MAX);
  assert_int_equal(goes_as(&f), 40 + 4 + 4 + KEY_MAX);
  adds_key(&f.found, 2, 3, 1);
  adds_key(&f.found, 255, 0, KEY_MAX);
  assert_int_equal(goes_as(&f), 40 + 4 * 4 + 1 + 2 * KEY_MAX);
}

/* Two keys: 40 bytes, lane 0 with 16 bytes, lane 3 with a descriptor and 8. */
static struct frame two_keys(void) {
  struct frame f = sample(FRAME_FOUND);
  adds_key(&f.found, 0, 0, 16);
  adds_key(&f.found, 3, 1, 8);
  return f;
}

/* The same, with 16 bits of its body set to a value. */
static int keys_patched(size_t at, uint16_t value) {
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  struct frame f = two_keys(), got;
  uint32_t length = wire_encode(&f, bytes);
  memcpy(bytes + FRAME_HEAD + at, &value, sizeof value);
  return wire_frame(bytes, length, &got);
}

static void keys_that_do_not_add_up_are_refused(void **state) {
  enum { FDS = 36, KEYS = 38, FIRST = 40, SECOND = 40 + 4 + 16 };
  (void)state;
  assert_true(keys_patched(FDS, 1) > 0);
  const struct {
    size_t at;
    uint16_t value;
  } wrong[] = {
      {FDS, 0},
      {FDS, 2},
      {FDS, KEY_FDS + 1},
      {FDS, UINT16_MAX},
      {KEYS, 0},
      {KEYS, 1},
      {KEYS, 3},
      {KEYS, FOUND_KEYS + 1},
      {KEYS, UINT16_MAX},
      {FIRST, 3},                  /* the second's lane */
      {FIRST, 4},                  /* one behind it */
      {FIRST, (KEY_FDS + 1) << 8}, /* descriptors */
      {FIRST + 2, 15},
      {FIRST + 2, KEY_MAX + 1},
      {FIRST + 2, UINT16_MAX},
      {SECOND + 2, 7},
      {SECOND + 2, 9},
      {SECOND, 2 << 8 | 3},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_int_equal(keys_patched(wrong[i].at, wrong[i].value),
                     PERIGEE_PROTOCOL);
}

/* Each frame has exactly one encoding. */
static void a_key_that_need_not_be_written_is_not(void **state) {
  (void)state;
  struct frame f = sample(FRAME_FOUND), got;
  uint8_t bytes[FRAME_HEAD + FRAME_BODY], key[4] = {0, 1, 0, 0};
  adds_key(&f.found, 0, 1, 0);
  uint32_t length = wire_encode(&f, bytes), longer = 44;
  assert_true(wire_frame(bytes, length, &got) > 0);
  memcpy(bytes, &longer, sizeof longer);
  memcpy(bytes + length, key, sizeof key);
  assert_int_equal(wire_frame(bytes, length + 4, &got), PERIGEE_PROTOCOL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(unsound_frames_are_refused),
      cmocka_unit_test(hellos_of_other_versions_tell_which),
      cmocka_unit_test(keys_of_lanes_arrive),
      cmocka_unit_test(keys_that_do_not_add_up_are_refused),
      cmocka_unit_test(a_key_that_need_not_be_written_is_not),
      cmocka_unit_test(attachments_have_no_spare_bytes),
      cmocka_unit_test(moves_go_to_a_port),
      cmocka_unit_test(endless_texts_are_refused),
      cmocka_unit_test(offers_are_limited),
      cmocka_unit_test(words_of_lanes_are_checked),
  };
  return cmocka_run_group_tests_name("frames", tests, NULL, NULL);
}
