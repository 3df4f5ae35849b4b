/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_test.c - frames over a real socket pair: in pieces, with descriptors,
 * sealed. frames_test.c has what is no sound frame.
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

#include "samples.h"

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
  struct frame frame = sample(FRAME_HELLO), arrived;
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
  struct frame frame = sample(FRAME_HELLO);
  int status;
  while ((status = wire_send(theirs, &frame, NULL, 0)) == PERIGEE_OK)
    ;
  assert_int_equal(status, PERIGEE_AGAIN);
  close(ours);
  assert_int_equal(wire_send(theirs, &frame, NULL, 0), PERIGEE_PEER_LOST);
}

/* Numbered frames that a socket takes in parts, or has no room for, arrive whole
 * and in order. */
static void goes_in_order(struct wire *out) {
  struct frame frame = sample(FRAME_ATTACH), arrived;
  uint32_t said = 0, heard = 0;
  int status;
  for (int turn = 0; turn < 50; turn++) {
    frame.attach.index = said;
    while ((status = wire_post(theirs, out, &frame)) == PERIGEE_OK)
      frame.attach.index = ++said;
    assert_int_equal(status, PERIGEE_AGAIN);
    assert_true(wire_waits(out));
    for (int i = 0; i < 20 && wire_read(ours, &wire) > 0; i++)
      while (wire_next(&wire, &arrived) > 0)
        assert_int_equal(arrived.attach.index, heard++);
    assert_int_equal(wire_flush(theirs, out), PERIGEE_OK);
  }
  while (heard < said) {
    assert_int_equal(wire_flush(theirs, out), PERIGEE_OK);
    assert_true(wire_read(ours, &wire) > 0);
    while ((status = wire_next(&wire, &arrived)) > 0)
      assert_int_equal(arrived.attach.index, heard++);
    assert_int_equal(status, 0);
  }
  assert_false(wire_waits(out));
  close(ours);
  assert_int_equal(wire_post(theirs, out, &frame), PERIGEE_PEER_LOST);
  wire_close(out);
}

static void what_waits_goes_in_order(void **state) {
  (void)state;
  struct wire out = {0};
  goes_in_order(&out);
}

static void end_of_file_is_zero(void **state) {
  (void)state;
  shutdown(theirs, SHUT_WR);
  assert_int_equal(wire_read(ours, &wire), 0);
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

static void what_waits_sealed_goes_in_order(void **state) {
  (void)state;
  seal_wires();
  goes_in_order(&sealed);
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
      test(sealed_frames_arrive),
      test(what_waits_sealed_goes_in_order),
      test(what_is_not_sealed_is_heard_no_more),
      test(a_chunk_is_one_frame),
      test(what_is_posted_in_answer_goes_by_one_send),
  };
  return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
