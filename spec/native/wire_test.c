/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_test.c - frames over a real socket pair, in pieces, with descriptors,
 * and as a stranger would send them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "net/wire.h"

static int ours, theirs;
static struct wire wire;

static int setup(void **state) {
  (void)state;
  int pair[2];
  memset(&wire, 0, sizeof wire);
  if (!secret_library())
    return -1;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    return -1;
  ours = pair[0];
  theirs = pair[1];
  return 0;
}

static int teardown(void **state) {
  (void)state;
  wire_close(&wire);
  close(ours);
  close(theirs);
  return 0;
}

static int descriptors(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  while (readdir(folder))
    count++;
  closedir(folder);
  return count;
}

static struct frame hello(void) {
  struct frame frame = {.type = FRAME_HELLO};
  frame.hello = (struct hello){.magic = HELLO_MAGIC,
                               .version_min = 1,
                               .version_max = PROTOCOL_MAX,
                               .nonce = 0x1122334455667788,
                               .public_key = {9}};
  return frame;
}

static struct frame terms(void) {
  struct frame frame = {.type = FRAME_TERMS};
  frame.terms = (struct terms){.flags = TERMS_AES,
                               .user = 1000,
                               .epoch = 0x1122334455667788,
                               .ring = 65536,
                               .transports = 2};
  memcpy(frame.terms.transport, "shm\0............tcp", 20);
  return frame;
}

static struct frame sample(int type) {
  struct frame frame = {.type = (uint16_t)type};
  if (type == FRAME_HELLO)
    return hello();
  if (type == FRAME_TERMS)
    return terms();
  if (type == FRAME_OFFER)
    frame.offer.length = 24;
  else if (type == FRAME_REFUSE)
    frame.refuse = (struct refuse){PERIGEE_VERSION, "no version in common"};
  else if (type == FRAME_LOOKUP)
    frame.lookup = (struct lookup){7, 8, "kv"};
  else if (type == FRAME_FOUND)
    frame.found = (struct found){.operation = 7, .length = 4096};
  else if (type == FRAME_PROOF)
    memset(frame.proof, 0x5a, sizeof frame.proof);
  else if (type == FRAME_ATTACH)
    frame.attach = (struct attach){.session = 9, .index = 3, .mac = {1, 2}};
  else if (type == FRAME_EXTRA)
    frame.extra = (struct extra){.lane = 1,
                                 .word = EXTRA_WORD_LANE,
                                 .offer = {.length = 3, .bytes = "lie"}};
  else if (type == FRAME_MOVE)
    frame.move = (struct move){.ticket = 9, .key = {1, 2}, .port = 7471};
  else if (type == FRAME_EXTRA)
    frame.extra = (struct extra){
        .lane = 1, .word = EXTRA_WORD_OFFER, .offer = {.length = 24}};
  return frame;
}

static void every_frame_arrives(void **state) {
  (void)state;
  for (int type = 1; type < FRAME_TYPES; type++) {
    uint8_t sent[FRAME_HEAD + FRAME_BODY], got[FRAME_HEAD + FRAME_BODY];
    struct frame frame = sample(type), arrived;
    assert_int_equal(wire_send(theirs, &frame, NULL, 0), PERIGEE_OK);
    assert_true(wire_read(ours, &wire) > 0);
    assert_int_equal(wire_next(&wire, &arrived), 1);
    assert_int_equal(arrived.type, type);
    uint32_t length = wire_encode(&frame, sent);
    assert_int_equal(wire_encode(&arrived, got), length);
    assert_memory_equal(sent, got, length);
    assert_int_equal(wire_next(&wire, &arrived), 0);
  }
  assert_int_equal(wire_read(ours, &wire), PERIGEE_AGAIN);
}

static void single_bytes_make_frames(void **state) {
  (void)state;
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  struct frame frame = hello(), arrived;
  uint32_t length = wire_encode(&frame, bytes);
  for (uint32_t i = 0; i < length; i++) {
    assert_int_equal(wire_next(&wire, &arrived), 0);
    assert_int_equal(write(theirs, bytes + i, 1), 1);
    assert_int_equal(wire_read(ours, &wire), 1);
  }
  assert_int_equal(wire_next(&wire, &arrived), 1);
  assert_int_equal(arrived.hello.nonce, frame.hello.nonce);
}

static void descriptors_come_in_order(void **state) {
  (void)state;
  int pipes[2], before = descriptors();
  struct frame frame = {.type = FRAME_OFFER}, arrived;
  frame.offer.fd_count = 2;
  assert_int_equal(pipe(pipes), 0);
  assert_int_equal(wire_send(theirs, &frame, pipes, 2), PERIGEE_OK);
  close(pipes[0]);
  close(pipes[1]);
  assert_true(wire_read(ours, &wire) > 0);
  assert_int_equal(wire_next(&wire, &arrived), 1);
  assert_int_equal(wire_fds(&arrived), 2);
  int reader = wire_take_fd(&wire), writer = wire_take_fd(&wire);
  assert_int_equal(fcntl(reader, F_GETFD), FD_CLOEXEC);
  assert_int_equal(write(writer, "x", 1), 1);
  assert_int_equal(wire_take_fd(&wire), -1);
  close(reader);
  close(writer);
  assert_int_equal(descriptors(), before);
}

/* Any number of descriptors from a stranger, with a byte to carry them. */
static void send_many(uint32_t count) {
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int) * 64)];
  } control = {0};
  struct iovec piece = {"x", 1};
  struct msghdr message = {.msg_iov = &piece,
                           .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
  control.head.cmsg_level = SOL_SOCKET;
  control.head.cmsg_type = SCM_RIGHTS;
  control.head.cmsg_len = CMSG_LEN(sizeof(int) * count);
  for (uint32_t i = 0; i < count; i++)
    memcpy(CMSG_DATA(&control.head) + i * sizeof(int), &theirs, sizeof(int));
  assert_int_equal(sendmsg(theirs, &message, 0), 1);
}

static void excess_descriptors_are_closed(void **state) {
  (void)state;
  int before = descriptors();
  send_many(64);
  assert_int_equal(wire_read(ours, &wire), PERIGEE_PROTOCOL);
  wire_close(&wire);
  assert_int_equal(descriptors(), before);
  send_many(WIRE_FDS);
  assert_int_equal(wire_read(ours, &wire), 1);
  send_many(1);
  assert_int_equal(wire_read(ours, &wire), PERIGEE_PROTOCOL);
  wire_close(&wire);
  assert_int_equal(descriptors(), before);
}

static void full_sockets_and_ends_are_told(void **state) {
  (void)state;
  struct frame frame = hello();
  int status;
  while ((status = wire_send(theirs, &frame, NULL, 0)) == PERIGEE_OK)
    ;
  assert_int_equal(status, PERIGEE_AGAIN);
  close(ours);
  assert_int_equal(wire_send(theirs, &frame, NULL, 0), PERIGEE_PEER_LOST);
}

/* Numbered frames that a socket takes in parts arrive whole and in order. */
static void what_waits_goes_in_order(void **state) {
  (void)state;
  struct wire out = {0};
  struct frame frame = sample(FRAME_ATTACH), arrived;
  uint32_t said = 0, heard = 0;
  int status;
  for (int turn = 0; turn < 50; turn++) {
    frame.attach.index = said;
    while ((status = wire_post(theirs, &out, &frame)) == PERIGEE_OK)
      frame.attach.index = ++said;
    assert_int_equal(status, PERIGEE_AGAIN);
    assert_true(wire_waits(&out));
    for (int i = 0; i < 20 && wire_read(ours, &wire) > 0; i++)
      while (wire_next(&wire, &arrived) > 0)
        assert_int_equal(arrived.attach.index, heard++);
    assert_int_equal(wire_flush(theirs, &out), PERIGEE_OK);
  }
  while (heard < said) {
    assert_int_equal(wire_flush(theirs, &out), PERIGEE_OK);
    assert_true(wire_read(ours, &wire) > 0);
    while (wire_next(&wire, &arrived) > 0)
      assert_int_equal(arrived.attach.index, heard++);
  }
  assert_false(wire_waits(&out));
  close(ours);
  assert_int_equal(wire_post(theirs, &out, &frame), PERIGEE_PEER_LOST);
  wire_close(&out);
}

static void end_of_file_is_zero(void **state) {
  (void)state;
  shutdown(theirs, SHUT_WR);
  assert_int_equal(wire_read(ours, &wire), 0);
}

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
  struct frame frame = hello();
  assert_true(patched(&frame, 4, FRAME_HELLO) > 0);
  assert_int_equal(patched(&frame, 0, FRAME_BODY + 1), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, 0, UINT32_MAX), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, 0, 0), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, 4, 0), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, 4, FRAME_TYPES), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, 4, FRAME_WAKE), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, 4, 1 << 16 | FRAME_HELLO), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, FRAME_HEAD, 0), PERIGEE_PROTOCOL);
  frame = terms();
  size_t transports = FRAME_HEAD + offsetof(struct terms, transports);
  assert_int_equal(patched(&frame, transports, TRANSPORTS_MAX + 1),
                   PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, transports, UINT32_MAX), PERIGEE_PROTOCOL);
}

/* A hello of these versions whose body has these bytes. */
static int versions(uint32_t min, uint32_t max, uint32_t body,
                    struct frame *got) {
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  struct frame frame = hello();
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
  struct frame frame = terms();
  memset(frame.terms.transport[1], 'x', TRANSPORT_NAME);
  assert_int_equal(patched(&frame, 4, FRAME_TERMS), PERIGEE_PROTOCOL);
  frame = terms();
  memset(frame.terms.name, 'x', TERMS_NAME);
  assert_int_equal(patched(&frame, 4, FRAME_TERMS), PERIGEE_PROTOCOL);
  frame = sample(FRAME_REFUSE);
  memset(frame.refuse.text, 'x', REFUSE_TEXT);
  assert_int_equal(patched(&frame, 4, FRAME_REFUSE), PERIGEE_PROTOCOL);
  frame = sample(FRAME_LOOKUP);
  memset(frame.lookup.name, 'x', sizeof frame.lookup.name);
  assert_int_equal(patched(&frame, 4, FRAME_LOOKUP), PERIGEE_PROTOCOL);
}

/* Two ends of a wire with sealed frames. */
static struct wire sealed;
static struct seal in, out;

static void seal_wires(void) {
  static const uint8_t key[SEAL_KEY] = {7};
  sealed = (struct wire){.seal_out = &out};
  seal_begin(&out, key, false);
  seal_begin(&in, key, false);
  wire.seal_in = &in;
}

static int heard(struct frame *frame) {
  wire_read(ours, &wire);
  return wire_next(&wire, frame);
}

static void sealed_frames_arrive(void **state) {
  (void)state;
  seal_wires();
  for (int type = 1; type < FRAME_TYPES; type++) {
    struct frame frame = sample(type), arrived;
    uint8_t sent[FRAME_HEAD + FRAME_BODY], got[FRAME_HEAD + FRAME_BODY];
    assert_int_equal(wire_post(theirs, &sealed, &frame), PERIGEE_OK);
    assert_int_equal(heard(&arrived), 1);
    uint32_t length = wire_encode(&frame, sent);
    assert_int_equal(wire_encode(&arrived, got), length);
    assert_memory_equal(sent, got, length);
  }
  seal_end(&in);
}

static void what_is_not_sealed_is_heard_no_more(void **state) {
  (void)state;
  struct frame frame = sample(FRAME_READY), arrived;
  seal_wires();
  for (int i = 0; i < 2; i++) /* a chunk is longer than its frame */
    assert_int_equal(wire_send(theirs, &frame, NULL, 0), PERIGEE_OK);
  assert_int_equal(heard(&arrived), PERIGEE_PROTOCOL);
}

/* Also if it is longer than a frame may be. */
static void a_chunk_is_one_frame(void **state) {
  (void)state;
  struct frame frame = sample(FRAME_READY), arrived;
  uint8_t bytes[2 * WIRE_ROOM] = {0}, chunk[SEAL_CHUNK(2 * WIRE_ROOM)];
  uint32_t once = wire_encode(&frame, bytes);
  const uint32_t lengths[] = {once - 1, 2 * once, once + 1,
                              FRAME_HEAD + FRAME_BODY + 1, 2 * WIRE_ROOM};
  wire_encode(&frame, bytes + once);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    wire_close(&wire);
    seal_wires();
    uint32_t n = seal_close(&out, chunk, bytes, lengths[i]);
    assert_int_equal(write(theirs, chunk, n), n);
    assert_int_equal(heard(&arrived), PERIGEE_PROTOCOL);
    while (wire_read(ours, &(struct wire){.length = 0}) > 0)
      ;
  }
}

static void what_is_posted_in_answer_goes_by_one_send(void **state) {
  (void)state;
  struct frame frame = sample(FRAME_PING), arrived;
  struct wire w = {.corked = true};
  assert_int_equal(wire_post(theirs, &w, &frame), PERIGEE_OK);
  assert_int_equal(wire_post(theirs, &w, &frame), PERIGEE_OK);
  assert_int_equal(wire_read(ours, &wire), PERIGEE_AGAIN);
  assert_int_equal(wire_flush(theirs, &w), PERIGEE_OK);
  assert_int_equal(wire_read(ours, &wire), 2 * FRAME_HEAD);
  assert_int_equal(wire_next(&wire, &arrived), 1);
  assert_false(wire_waits(&w));
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
  const uint32_t wrong[] = {
      head - 1, head | (OFFER_FDS + 1) << 16,       1 | EXTRA_WORDS << 8,
      1,        1 | EXTRA_WORD_LANE << 8 | 1 << 16, 1 | EXTRA_WORD_LOST << 8};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_int_equal(patched(&frame, FRAME_HEAD, wrong[i]), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, FRAME_HEAD + 4, 1), PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, FRAME_HEAD + 4, UINT32_MAX),
                   PERIGEE_PROTOCOL);
  assert_int_equal(patched(&frame, 0, 7), PERIGEE_PROTOCOL);
}

int main(void) {
#define test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
      test(every_frame_arrives),
      test(single_bytes_make_frames),
      test(descriptors_come_in_order),
      test(excess_descriptors_are_closed),
      test(full_sockets_and_ends_are_told),
      test(what_waits_goes_in_order),
      test(end_of_file_is_zero),
      test(unsound_frames_are_refused),
      test(hellos_of_other_versions_tell_which),
      test(keys_of_lanes_arrive),
      test(keys_that_do_not_add_up_are_refused),
      test(a_key_that_need_not_be_written_is_not),
      test(attachments_have_no_spare_bytes),
      test(moves_go_to_a_port),
      test(endless_texts_are_refused),
      test(sealed_frames_arrive),
      test(what_is_not_sealed_is_heard_no_more),
      test(a_chunk_is_one_frame),
      test(what_is_posted_in_answer_goes_by_one_send),
      test(offers_are_limited),
      test(words_of_lanes_are_checked),
  };
  return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
