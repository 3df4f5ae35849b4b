/* SPDX-License-Identifier: Apache-2.0
 *
 * offers_test.c - strangers that say a correct hello and then send descriptors
 * of the wrong kind, too many or too few of them, or frames out of turn.
 */
#include "raw_peer.h"
#include "transport/shm/shm.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int memory(uint64_t length, unsigned flags, int seals) {
  int fd = memfd_create("stranger", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
  if (fd < 0)
    return -1;
  if (ftruncate(fd, (off_t)length) != 0 ||
      (seals && fcntl(fd, F_ADD_SEALS, seals) != 0)) {
    close(fd);
    return -1;
  }
  return fd;
}

static int plain_file(uint64_t length) {
  char path[] = "/tmp/perigee-stranger-XXXXXX";
  int fd = mkostemp(path, O_CLOEXEC);
  unlink(path);
  assert_int_equal(ftruncate(fd, (off_t)length), 0);
  return fd;
}

enum { RING = 65536, OUTBOX = sizeof(struct outbox), ARENA = 8 << 20 };
enum { SIZE_SEALS = F_SEAL_SHRINK | F_SEAL_GROW };

/* Sends an offer with these descriptors; the sender is cut off. */
static void offer(struct pair *p, uint64_t ring, uint64_t arena, const int *fds,
                  uint32_t count, uint32_t said) {
  uint64_t words[3] = {ring, arena, 0};
  struct frame f = {.type = FRAME_OFFER};
  f.offer.length = sizeof words;
  f.offer.fd_count = said;
  memcpy(f.offer.bytes, words, sizeof words);
  int fd = visit(p);
  say_hello(fd);
  say_frame(fd, &f, fds, count);
  f.type = FRAME_READY;
  f.pull = 1;
  say_frame(fd, &f, NULL, 0);
  until_cut(p, fd);
}

static void memory_that_is_not_as_said_is_refused(void **state) {
  (void)state;
  struct pair p;
  open_for_raw_peers(&p);
  int all = SIZE_SEALS | F_SEAL_FUTURE_WRITE;
  int in = memory(2 * RING, 0, SIZE_SEALS), out = memory(OUTBOX, 0, all);
  int unsealed = memory(2 * RING, 0, 0), half = memory(RING, 0, SIZE_SEALS);
  int writable = memory(OUTBOX, 0, SIZE_SEALS);
  int growable = memory(OUTBOX, 0, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE);
  int small = memory(OUTBOX - 4096, 0, all), large = memory(ARENA, 0, all);
  int file = plain_file(2 * RING), file_out = plain_file(OUTBOX);
  int huge = memory(2 << 20, MFD_HUGETLB, SIZE_SEALS);
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  int pipes[2], before = descriptors();
  assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
  const int wrong[][2] = {{unsealed, out}, {half, out}, {in, writable},
                          {in, growable},  {file, out}, {in, file_out},
                          {null, out},     {in, null},  {pipes[0], pipes[1]},
                          {out, in},       {in, in},    {in, small},
                          {in, large}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    offer(&p, RING, ARENA, wrong[i], 2, 2);
  const int good[2] = {in, out}, many[6] = {in, out, in, out, in, out};
  static const uint64_t sizes[][2] = {{0, ARENA},          {RING, 0},
                                      {RING + 64, ARENA},  {4096, ARENA},
                                      {UINT64_MAX, ARENA}, {RING, UINT64_MAX},
                                      {1ull << 63, ARENA}, {RING, 1ull << 62}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    offer(&p, sizes[i][0], sizes[i][1], good, 2, 2);
  offer(&p, RING, ARENA, good, 0, 2);
  offer(&p, RING, ARENA, good, 1, 2);
  offer(&p, RING, ARENA, good, 1, 1);
  offer(&p, RING, ARENA, good, 2, 0);
  offer(&p, RING, ARENA, many, 3, 2);
  offer(&p, RING, ARENA, many, 6, 2);
  offer(&p, RING, ARENA, many, 6, 4);
  offer(&p, RING, ARENA, many, 4, UINT32_MAX);
  if (huge >= 0) {
    const int pair[2] = {huge, out};
    offer(&p, 1 << 20, ARENA, pair, 2, 2);
    close(huge);
  }
  close(pipes[0]);
  close(pipes[1]);
  quiet(&p, 3); /* what has ended is buried */
  assert_int_equal(descriptors() + (huge >= 0), before);
  const int done[] = {in,   out,      unsealed, half,  writable, growable,
                      file, file_out, null,     small, large};
  for (size_t i = 0; i < sizeof done / sizeof *done; i++)
    close(done[i]);
  close_to_raw_peers(&p);
}

/* Frames out of turn, and descriptors with frames that may have none. */
static void frames_out_of_turn(void **state) {
  (void)state;
  struct pair p;
  open_for_raw_peers(&p);
  int null = open("/dev/null", O_RDWR | O_CLOEXEC), nulls[4];
  for (int i = 0; i < 4; i++)
    nulls[i] = null;
  for (int type = 1; type < FRAME_TYPES; type++)
    for (int turn = 0; turn < 3; turn++) {
      struct frame f = {.type = (uint16_t)type};
      if (type == FRAME_HELLO)
        f = good_hello();
      if (type == FRAME_REFUSE)
        f.refuse.status = -1000;
      int fd = visit(&p);
      if (turn > 0)
        say_hello(fd);
      say_frame(fd, &f, nulls, turn == 2 ? 4 : 0);
      say_frame(fd, &f, NULL, 0);
      until_cut(&p, fd);
    }
  close(null);
  close_to_raw_peers(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_that_is_not_as_said_is_refused),
      cmocka_unit_test(frames_out_of_turn),
  };
  return cmocka_run_group_tests_name("offers", tests, NULL, NULL);
}
