/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_lane_lies_test.c - a half of the lane "cuda" whose peer says what it
 * likes: words of no form, numbers and keys of nothing, descriptors that are
 * anything, boards and sources that do not fit. Each ends in PROTOCOL or in a
 * refusal, and nothing of it is left. Tests are skipped unless
 * PERIGEE_CUDA_LIBRARY names the fake, as make check-gpu does.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "halves.h"

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW };

/* Memory of the peer, and the word that would tell ours of it: it was told of the
 * board only. */
struct scene {
  struct halves h;
  struct area there;
  struct word memory;
  int fd;
};

static void scene_open(struct scene *s) {
  halves_open(&s->h, 20);
  area_new(s->h.peer, &s->there, AREA);
  uint32_t id;
  assert_int_equal(exported_tell(s->h.peer->lane, &s->there, &id), 0);
  struct said board = half_said(s->h.peer), memory = half_said(s->h.peer);
  assert_int_equal(half_hears(s->h.ours, &board.word, board.fd), 0);
  s->memory = memory.word;
  s->fd = memory.fd;
}

static void scene_close(struct scene *s) {
  close(s->fd);
  area_end(s->h.peer, &s->there);
  halves_close(&s->h);
}

static int copy_of(int fd) {
  int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  assert_true(copy >= 0);
  return copy;
}

static bool is_closed(int fd) {
  return fcntl(fd, F_GETFD) < 0;
}

/* What ours hears of the word with a copy of the memory's descriptor. */
static int hears(struct scene *s, const struct word *word) {
  return half_hears(s->h.ours, word, copy_of(s->fd));
}

static struct window window_of(const struct scene *s) {
  struct window w = {.slot = 1,
                     .generation = 77,
                     .access = PERIGEE_READ | PERIGEE_WRITE,
                     .length = s->there.length};
  atomic_store(&s->h.peer->lane->own->regions[1], 77);
  struct reach at = {s->memory.id, (uint32_t)s->memory.serial};
  memcpy(w.own, &at, sizeof at);
  return w;
}

/* Is it known, but cannot be used? */
static void is_not_opened(struct scene *s) {
  struct window w = window_of(s);
  assert_int_equal(s->h.ours->said_count, 0); /* no OPENED */
  assert_int_equal(ours_write(&s->h, &w), PERIGEE_UNSUPPORTED);
  assert_non_null(
      strstr(transport_cuda.trouble(s->h.ours->lane), "cannot be opened"));
}

/* ---- Words --------------------------------------------------------------- */

static void words_of_another_length(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  uint8_t bytes[sizeof(struct word) + 1] = {0};
  const uint32_t lengths[] = {0, 1, sizeof(struct word) - 1,
                              sizeof(struct word) + 1};
  memcpy(bytes, &s.memory, sizeof s.memory);
  for (int i = 0; i < 4; i++) {
    int fd = copy_of(s.fd);
    assert_int_equal(
        transport_cuda.heard(s.h.ours->lane, bytes, lengths[i], fd),
        PERIGEE_PROTOCOL);
    assert_true(is_closed(fd));
    assert_int_equal(
        transport_cuda.heard(s.h.ours->lane, bytes, lengths[i], -1),
        PERIGEE_PROTOCOL);
  }
  scene_close(&s);
}

static void words_that_there_are_not(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  const uint32_t words[] = {0, ASK + 1, 1000, UINT32_MAX};
  for (int i = 0; i < 4; i++) {
    struct word w = {.word = words[i]};
    int fd = copy_of(s.fd);
    assert_int_equal(half_hears(s.h.ours, &w, fd), PERIGEE_PROTOCOL);
    assert_true(is_closed(fd));
    assert_int_equal(half_hears(s.h.ours, &w, -1), PERIGEE_PROTOCOL);
  }
  scene_close(&s);
}

/* A descriptor comes with BOARD and MEMORY, and with no other word. */
static void descriptors_of_the_wrong_words(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  assert_int_equal(half_hears(s.h.ours, &s.memory, -1), PERIGEE_PROTOCOL);
  assert_int_equal(hears(&s, &s.memory), 0);
  for (uint32_t word = GONE; word <= ASK; word++) {
    struct word w = {
        .word = word, .id = s.memory.id, .serial = s.memory.serial};
    int fd = copy_of(s.fd);
    assert_int_equal(half_hears(s.h.ours, &w, fd), PERIGEE_PROTOCOL);
    assert_true(is_closed(fd));
  }
  scene_close(&s);
}

static void numbers_of_nothing(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  struct word w = s.memory;
  w.id = LINK_MEMORIES;
  assert_int_equal(hears(&s, &w), PERIGEE_PROTOCOL);
  for (uint32_t word = GONE; word <= ASK; word++) {
    w = (struct word){.word = word, .id = 5};
    assert_int_equal(half_hears(s.h.ours, &w, -1), PERIGEE_PROTOCOL);
    w.id = UINT32_MAX;
    assert_int_equal(half_hears(s.h.ours, &w, -1), PERIGEE_PROTOCOL);
  }
  assert_int_equal(hears(&s, &s.memory), 0);
  assert_int_equal(hears(&s, &s.memory), PERIGEE_PROTOCOL); /* again */
  w = (struct word){GONE, s.memory.id, s.memory.serial + 1, 0, 0, 0, {0}};
  assert_int_equal(half_hears(s.h.ours, &w, -1), PERIGEE_PROTOCOL);
  scene_close(&s);
}

/* It may have been said before GONE was heard. */
static void answers_of_an_old_serial_are_ignored(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  struct word w = {OPENED, s.memory.id, s.memory.serial + 1, 0, 0, 0, {0}};
  assert_int_equal(half_hears(s.h.peer, &w, -1), 0);
  assert_false(exported_is_open(s.h.peer->lane, s.memory.id));
  w.serial = s.memory.serial;
  assert_int_equal(half_hears(s.h.peer, &w, -1), 0);
  assert_true(exported_is_open(s.h.peer->lane, s.memory.id));
  w.id = LINK_MEMORIES;
  assert_int_equal(half_hears(s.h.peer, &w, -1), PERIGEE_PROTOCOL);
  scene_close(&s);
}

static void words_after_the_end(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  transport_cuda.cut(s.h.ours->lane);
  uint64_t imports = fake_counts("cuMemImportFromShareableHandle");
  assert_true(hears(&s, &s.memory) < 0);
  assert_int_equal(fake_counts("cuMemImportFromShareableHandle"), imports);
  for (uint32_t word = BOARD; word <= ASK; word++) {
    struct word w = {
        .word = word, .id = s.memory.id, .serial = s.memory.serial};
    assert_true(half_hears(s.h.ours, &w, -1) < 0);
  }
  assert_int_equal(s.h.ours->said_count, 0);
  scene_close(&s);
}

/* ---- Memory -------------------------------------------------------------- */

static void memory_of_impossible_forms(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  struct word w[8];
  for (int i = 0; i < 8; i++)
    w[i] = s.memory;
  w[0].length = 0;
  w[1].length = (UINT64_C(1) << 40) + 1;
  w[2].length = UINT64_MAX;
  w[3].access = 0;
  w[4].access = PERIGEE_WRITE;
  w[5].access = PERIGEE_READ | 4;
  w[6].key_length = MEMORY_KEY + 1;
  w[7].key_length = UINT32_MAX;
  for (int i = 0; i < 8; i++)
    assert_int_equal(hears(&s, &w[i]), PERIGEE_PROTOCOL);
  scene_close(&s);
}

/* No driver is asked, or it refuses. */
static void keys_are(struct word w, int fd) {
  struct scene s;
  scene_open(&s);
  w.serial = s.memory.serial;
  w.access = s.memory.access;
  assert_int_equal(
      half_hears(s.h.ours, &w, fd >= 0 ? copy_of(fd) : copy_of(s.fd)), 0);
  is_not_opened(&s);
  scene_close(&s);
}

/* The word of an honest peer. */
static struct word word_sound(void) {
  struct scene s;
  scene_open(&s);
  struct word w = s.memory;
  scene_close(&s);
  return w;
}

static void keys_of_other_forms(void **state) {
  (void)state;
  struct word w = word_sound(), bad;
  const uint32_t lengths[] = {0, 1, w.key_length - 1, w.key_length + 1,
                              MEMORY_KEY};
  for (int i = 0; i < 5; i++) {
    bad = w;
    bad.key_length = lengths[i];
    keys_are(bad, -1);
  }
  bad = w;
  bad.key[0]++; /* its version */
  keys_are(bad, -1);
}

/* The size stands behind the version. */
static struct word word_of_size(struct word w, uint64_t length, uint64_t size) {
  w.length = length;
  memcpy(w.key + sizeof size, &size, sizeof size);
  return w;
}

/* Addresses that were reserved are given back. */
static void sizes_of_other_memory(void **state) {
  (void)state;
  const uint64_t vast = UINT64_C(1) << 40;
  struct word w = word_sound();
  uint64_t reserved = fake_counts("cuMemAddressReserve");
  uint64_t freed = fake_counts("cuMemAddressFree");
  keys_are(word_of_size(w, vast, AREA), -1);
  keys_are(word_of_size(w, vast, vast), -1);
  keys_are(word_of_size(w, AREA, vast), -1);
  keys_are(word_of_size(w, AREA, 4 * vast), -1);
  keys_are(word_of_size(w, AREA, 0), -1);
  keys_are(word_of_size(w, AREA, 2 * AREA), -1);
  assert_int_equal(fake_counts("cuMemAddressReserve") - reserved,
                   fake_counts("cuMemAddressFree") - freed);
  keys_are(word_of_size(w, AREA, AREA + 1), -1);
  keys_are(word_of_size(w, AREA / 2, AREA / 2), -1);
}

static void descriptors_of_anything(void **state) {
  (void)state;
  struct word w = word_sound();
  int pipes[2], null = open("/dev/null", O_RDWR | O_CLOEXEC);
  int plain = memfd_create("plain", MFD_CLOEXEC);
  int sealed = memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_int_equal(pipe(pipes), 0);
  assert_int_equal(ftruncate(plain, AREA), 0);
  assert_int_equal(ftruncate(sealed, AREA + 4096), 0);
  assert_int_equal(fcntl(sealed, F_ADD_SEALS, SEALS | F_SEAL_SEAL), 0);
  int fds[] = {pipes[0], pipes[1], null, plain, sealed};
  for (int i = 0; i < 5; i++) {
    keys_are(w, fds[i]);
    close(fds[i]);
  }
}

/* ---- Pairs of descriptors ------------------------------------------------ */

static int hears_pair(struct scene *s, const struct word *word, int *first,
                      int *second) {
  *first = copy_of(s->fd);
  *second = copy_of(s->fd);
  return half_hears_pair(s->h.ours, word, *first, *second);
}

/* A pair comes with MEMORY alone. */
static void pairs_of_the_wrong_words(void **state) {
  (void)state;
  struct scene s;
  int first, second;
  scene_open(&s);
  const uint32_t words[] = {0,       BOARD, GONE,   OPENED,
                            REFUSED, ASK,   CLOSED, UINT32_MAX};
  for (int i = 0; i < 8; i++) {
    struct word w = {
        .word = words[i], .id = s.memory.id, .serial = s.memory.serial};
    assert_int_equal(hears_pair(&s, &w, &first, &second), PERIGEE_PROTOCOL);
    assert_true(is_closed(first) && is_closed(second));
  }
  struct word bad = s.memory;
  bad.length = 0;
  assert_int_equal(hears_pair(&s, &bad, &first, &second), PERIGEE_PROTOCOL);
  assert_true(is_closed(first) && is_closed(second));
  const int fds[] = {copy_of(s.fd), copy_of(s.fd)};
  assert_int_equal(transport_cuda.heard_pair(s.h.ours->lane, &s.memory,
                                             sizeof s.memory - 1, fds),
                   PERIGEE_PROTOCOL);
  assert_true(is_closed(fds[0]) && is_closed(fds[1]));
  transport_cuda.cut(s.h.ours->lane);
  assert_true(hears_pair(&s, &s.memory, &first, &second) < 0);
  assert_true(is_closed(first) && is_closed(second));
  scene_close(&s);
}

static void a_pair_before_there_is_a_board(void **state) {
  (void)state;
  struct scene s;
  int first, second;
  struct word w = {.word = MEMORY, .length = 4096, .access = PERIGEE_READ};
  halves_open(&s.h, 20);
  s.fd = STDIN_FILENO;
  assert_int_equal(hears_pair(&s, &w, &first, &second), PERIGEE_PROTOCOL);
  assert_true(is_closed(first) && is_closed(second));
  halves_close(&s.h);
}

/* What is opened of a key of that way, with these descriptors. The first is the
 * memory's if it is -1; there is no second one if that is -1. */
static void pair_is(uint8_t way, int first, int second, bool opened) {
  struct scene s;
  scene_open(&s);
  s.memory.key[0] = way;
  first = copy_of(first < 0 ? s.fd : first);
  int status =
      second < 0 ? half_hears(s.h.ours, &s.memory, first)
                 : half_hears_pair(s.h.ours, &s.memory, first, copy_of(second));
  assert_int_equal(status, 0);
  assert_int_equal(s.h.ours->share->used[SHARE_DESCRIPTORS],
                   second < 0 ? 2 : 3); /* one is the board's */
  if (opened)
    halves_talk(&s.h);
  else
    is_not_opened(&s);
  scene_close(&s);
}

/* The way of a key stands first. That with two descriptors is 4. */
static void keys_with_other_descriptors_than_theirs(void **state) {
  (void)state;
  int ends[2], null = open("/dev/null", O_RDWR | O_CLOEXEC);
  assert_int_equal(pipe(ends), 0);
  pair_is(4, -1, ends[1], true);
  pair_is(4, -1, null, true); /* only its owner minds */
  pair_is(4, -1, -1, false);
  pair_is(4, ends[0], ends[1], false);
  pair_is(4, null, null, false);
  for (uint8_t way = 0; way <= 5; way++)
    if (way != 4)
      pair_is(way, -1, ends[1], false);
  close(ends[0]);
  close(ends[1]);
  close(null);
}

static void a_pair_beyond_the_share_is_refused(void **state) {
  (void)state;
  struct scene s;
  int first, second;
  scene_open(&s);
  struct quota *q = &s.h.ours->shares.quota[SHARE_DESCRIPTORS], all = *q;
  s.memory.key[0] = 4;
  *q = (struct quota){.limit = 2, .least = 2, .factor = 1}; /* one is left */
  assert_int_equal(hears_pair(&s, &s.memory, &first, &second), 0);
  *q = all;
  assert_true(is_closed(first) && is_closed(second));
  assert_int_equal(half_said(s.h.ours).word.word, REFUSED);
  assert_int_equal(s.h.ours->share->used[SHARE_DESCRIPTORS], 1);
  scene_close(&s);
}

static void memory_of_the_host(void **state) {
  (void)state;
  const struct memory_context *host = &memory_host;
  struct memory_key key;
  uint8_t *at;
  void *handle;
  assert_int_equal(host->kind->allocate(host, AREA, true, &at, &handle), 0);
  assert_int_equal(host->kind->sharing->share(host, at, AREA, handle, 3, &key),
                   0);
  keys_are(word_sound(), key.fds[0]);
  host->kind->release(host, at, AREA, handle);
}

/* Opening takes time, and the peer says how often. */
static void much_memory_at_a_time(void **state) {
  (void)state;
  struct scene s;
  struct area other;
  uint32_t id;
  scene_open(&s);
  struct half *ours = s.h.ours;
  area_new(s.h.peer, &other, AREA);
  assert_int_equal(exported_tell(s.h.peer->lane, &other, &id), 0);
  struct said memory = half_said(s.h.peer);
  assert_int_equal(hears(&s, &s.memory), 0);
  ours->now -= 1000000000;
  assert_int_equal(half_hears(ours, &memory.word, memory.fd), 0);
  assert_int_equal(ours->said_count, 1); /* OPENED, of the first */
  struct word again = {
      .word = ASK, .id = memory.word.id, .serial = memory.word.serial};
  assert_int_equal(half_hears(ours, &again, -1), 0);
  assert_int_equal(ours->said_count, 2);
  halves_talk(&s.h);
  area_end(s.h.peer, &other);
  scene_close(&s);
}

/* The share counts all that is mapped, whatever length is told. */
static void memory_of_which_a_little_is_told(void **state) {
  (void)state;
  struct scene s;
  struct area vast;
  uint32_t id;
  scene_open(&s);
  area_new(s.h.peer, &vast, 64 << 20);
  assert_int_equal(exported_tell(s.h.peer->lane, &vast, &id), 0);
  struct said memory = half_said(s.h.peer);
  memory.word.length = 4096;
  uint64_t before = s.h.ours->share->used[SHARE_MAPPED];
  assert_int_equal(half_hears(s.h.ours, &memory.word, memory.fd), 0);
  assert_int_equal(s.h.ours->share->used[SHARE_MAPPED] - before, 64 << 20);
  area_end(s.h.peer, &vast);
  scene_close(&s);
}

/* A device that this process does not have: any one is tried. */
static void devices_of_nobody(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  s.memory.key[sizeof(uint64_t) * 3] ^= 0xff;
  assert_int_equal(hears(&s, &s.memory), 0);
  struct window w = window_of(&s);
  assert_int_equal(ours_write(&s.h, &w), 1);
  halves_talk(&s.h);
  scene_close(&s);
}

/* ---- Windows ------------------------------------------------------------- */

static void windows_that_grant_more_than_the_memory(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  s.memory.access = PERIGEE_READ;
  assert_int_equal(hears(&s, &s.memory), 0);
  halves_talk(&s.h);
  struct window w = window_of(&s);
  assert_int_equal(ours_write(&s.h, &w), PERIGEE_UNSUPPORTED);
  w.access = PERIGEE_READ;
  w.length++;
  struct payload local = area_payload(&s.h.here);
  assert_int_equal(ours_move(&s.h, &w, 0, local, false), PERIGEE_UNSUPPORTED);
  w.length--;
  assert_int_equal(ours_move(&s.h, &w, 0, local, false), 1);
  scene_close(&s);
}

static void attached(struct scene *s, struct window w, struct region_key key,
                     int status) {
  assert_int_equal(transport_cuda.access->attach(s->h.ours->lane, &w, &key),
                   status);
}

static void keys_of_windows(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  struct window w = window_of(&s), bad = w;
  struct region_key key = {.length = sizeof(uint32_t)}, none = key;
  memcpy(key.bytes, &s.memory.id, sizeof s.memory.id);
  attached(&s, w, key, PERIGEE_PROTOCOL); /* it is not told yet */
  assert_int_equal(hears(&s, &s.memory), 0);
  halves_talk(&s.h);
  attached(&s, w, key, 0);
  memset(none.bytes, 0xff, sizeof none.bytes);
  attached(&s, w, none, PERIGEE_PROTOCOL);
  key.length = 0;
  attached(&s, w, key, PERIGEE_PROTOCOL);
  key.length = KEY_MAX;
  attached(&s, w, key, PERIGEE_PROTOCOL);
  key = (struct region_key){.length = sizeof(uint32_t), .fd_count = 1};
  attached(&s, w, key, PERIGEE_PROTOCOL);
  key.fd_count = 0;
  bad.slot = LINK_REGIONS;
  attached(&s, bad, key, PERIGEE_PROTOCOL);
  bad = w;
  bad.length++;
  attached(&s, bad, key, PERIGEE_PROTOCOL);
  scene_close(&s);
}

/* ---- Boards -------------------------------------------------------------- */

static int board_said(struct scene *s, uint32_t operations, int fd) {
  struct word w = {.word = BOARD, .id = operations};
  return half_hears(s->h.ours, &w, fd);
}

static int board_file(uint64_t length, int seals) {
  int fd = memfd_create("board", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_true(fd >= 0);
  assert_int_equal(ftruncate(fd, (off_t)length), 0);
  assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}

static void boards_that_do_not_fit(void **state) {
  (void)state;
  struct scene s;
  halves_open(&s.h, 20);
  uint64_t length = sizeof(struct board) + 4096;
  int zero = open("/dev/zero", O_RDWR | O_CLOEXEC);
  assert_int_equal(board_said(&s, 16, -1), PERIGEE_PROTOCOL);
  assert_int_equal(board_said(&s, 16, zero), PERIGEE_PROTOCOL);
  assert_int_equal(board_said(&s, 16, board_file(4096, SEALS)),
                   PERIGEE_PROTOCOL);
  assert_int_equal(board_said(&s, 65536, board_file(length, SEALS)),
                   PERIGEE_PROTOCOL);
  assert_int_equal(board_said(&s, 65537, board_file(1 << 20, SEALS)),
                   PERIGEE_PROTOCOL);
  assert_int_equal(board_said(&s, UINT32_MAX, board_file(1 << 20, SEALS)),
                   PERIGEE_PROTOCOL);
  assert_int_equal(board_said(&s, 16, board_file(length, F_SEAL_GROW)),
                   PERIGEE_PROTOCOL);
  assert_int_equal(board_said(&s, 16, board_file(length, SEALS)), 0);
  assert_int_equal(board_said(&s, 16, board_file(length, SEALS)),
                   PERIGEE_PROTOCOL);
  halves_close(&s.h);
}

/* ---- Sources ------------------------------------------------------------- */

static const uint64_t ADDRESS = UINT64_C(1) << 40; /* of memory 1 */

/* What a fetch of that source ends in. */
static int64_t source_is(struct scene *s, struct source source,
                         uint64_t total) {
  static uint8_t bytes[AREA];
  struct payload into = payload_of(NULL, bytes, AREA);
  struct fetch f = {.source = source,
                    .into = &into,
                    .operation = EXPOSED_AS,
                    .generation = 9,
                    .total = total};
  atomic_store(&s->h.peer->lane->own->marks[EXPOSED_AS], 9);
  return ours_fetch(&s->h, &f);
}

static void sources_outside_of_the_memory(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  assert_int_equal(s.memory.id, 0);
  assert_int_equal(hears(&s, &s.memory), 0);
  halves_talk(&s.h);
  const struct {
    struct source source;
    uint64_t total;
  } wrong[] = {
      {{0, 0, 64, 1, 64}, 64},       /* of another kind */
      {{3, 0, 64, 1, 64}, 64},       /* likewise */
      {{1, ADDRESS, 64, 1, 64}, 64}, /* no such memory */
      {{1, ADDRESS * LINK_MEMORIES, 64, 1, 64}, 64},
      {{1, UINT64_MAX, 64, 1, 64}, 64},
      {{1, AREA, 64, 1, 64}, 64}, /* behind its end */
      {{1, AREA - 63, 64, 1, 64}, 64},
      {{1, ADDRESS - 1, 64, 1, 64}, 64},
      {{1, 0, 64, 0, 64}, 64}, /* nothing */
      {{1, 0, 0, 64, 64}, 64},
      {{1, 0, 64, 2, 64}, 64}, /* of another total */
      {{1, 0, 64, 2, UINT64_MAX / 2}, 128},
      {{1, 0, 64, 3, UINT64_MAX / 2 + 1}, 192},
      {{1, 0, UINT64_C(1) << 63, 2, 0}, 64},
      {{1, 0, 64, 2, AREA - 63}, 128},
      {{1, 0, 64, 2, (uint64_t)-64}, 128},
      {{1, 64, 1, AREA, 1}, AREA},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_int_equal(source_is(&s, wrong[i].source, wrong[i].total),
                     PERIGEE_PROTOCOL);
  assert_int_equal(source_is(&s, (struct source){1, AREA - 64, 64, 1, 0}, 64),
                   1);
  scene_close(&s);
}

/* A place, as in lists.c. */
struct place {
  uint64_t id, offset, block, count, stride;
};

/* What a fetch ends in of a list that lies at the begin of the peer's lists. */
static int64_t list_is(struct scene *s, const struct place *places,
                       uint64_t count, uint64_t total) {
  memcpy(board_lists(s->h.peer->lane), places, count * sizeof *places);
  return source_is(s, (struct source){SOURCE_LIST, 0, total, 1, count}, total);
}

static void lists_outside_of_all_lists(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  assert_int_equal(hears(&s, &s.memory), 0);
  halves_talk(&s.h);
  const uint64_t places[][2] = {{0, 0},
                                {0, PERIGEE_LIST_MOST + 1},
                                {0, UINT64_MAX},
                                {0, UINT64_MAX / 40 + 1},
                                {1, 2},
                                {LINK_LISTS, 1},
                                {LINK_LISTS - 40, 2},
                                {UINT64_MAX - 7, 1},
                                {UINT64_C(1) << 63, 1}};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++)
    assert_int_equal(source_is(&s,
                               (struct source){SOURCE_LIST, places[i][0], 64, 1,
                                               places[i][1]},
                               64),
                     PERIGEE_PROTOCOL);
  scene_close(&s);
}

static void lists_of_places_that_there_are_not(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  assert_int_equal(hears(&s, &s.memory), 0);
  halves_talk(&s.h);
  area_fill(&s.there, 4);
  const struct place fine = {0, 128, 32, 1, 32},
                     wrong[] = {
                         {1, 0, 32, 1, 32},
                         {LINK_MEMORIES, 0, 32, 1, 32},
                         {UINT64_C(1) << 32, 0, 32, 1, 32},
                         {0, AREA - 31, 32, 1, 32},
                         {0, UINT64_MAX, 32, 1, 32},
                         {0, 0, 0, 1, 32},
                         {0, 0, 32, 0, 32},
                         {0, 0, 33, 1, 33},
                         {0, 0, 16, 2, AREA},
                         {0, 0, UINT64_C(1) << 63, 2, 0},
                         {0, 0, UINT64_MAX - 31 + 32, 1, 0},
                     };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    for (int first = 0; first < 2; first++) {
      struct place list[2] = {fine, fine};
      list[!first] = wrong[i];
      assert_int_equal(list_is(&s, list, 2, 64), PERIGEE_PROTOCOL);
    }
  struct place list[2] = {fine, fine};
  assert_int_equal(list_is(&s, list, 2, 63), PERIGEE_PROTOCOL);
  assert_int_equal(list_is(&s, list, 2, 64), 1);
  scene_close(&s);
}

/* The block may be another operation's by now. */
static void a_list_whose_operation_is_over_is_no_lie(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  assert_int_equal(hears(&s, &s.memory), 0);
  halves_talk(&s.h);
  struct payload into = area_payload(&s.h.here);
  struct fetch f = {.source = {SOURCE_LIST, 0, 64, 1, 2},
                    .into = &into,
                    .operation = EXPOSED_AS,
                    .generation = 9,
                    .total = 64};
  memset(board_lists(s.h.peer->lane), 0xff, 80);
  assert_int_equal(ours_fetch(&s.h, &f), PERIGEE_CANCELLED);
  atomic_store(&s.h.peer->lane->own->marks[EXPOSED_AS], 9);
  assert_int_equal(ours_fetch(&s.h, &f), PERIGEE_PROTOCOL);
  scene_close(&s);
}

/* A board without lists, as an older peer has it. */
static void lists_of_who_has_none(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  s.h.ours->lane->peer_lists = 0;
  assert_int_equal(hears(&s, &s.memory), 0);
  halves_talk(&s.h);
  assert_int_equal(source_is(&s, (struct source){SOURCE_LIST, 0, 64, 1, 1}, 64),
                   PERIGEE_PROTOCOL);
  scene_close(&s);
}

/* The driver is asked for each byte here, so a step asks for a part of them. */
static void sources_of_very_many_blocks(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  assert_int_equal(hears(&s, &s.memory), 0);
  halves_talk(&s.h);
  area_fill(&s.there, 8);
  struct payload into = area_payload(&s.h.here);
  struct fetch f = {.source = {1, 0, 1, AREA, 0},
                    .into = &into,
                    .operation = EXPOSED_AS,
                    .generation = 9,
                    .total = AREA};
  atomic_store(&s.h.peer->lane->own->marks[EXPOSED_AS], 9);
  uint64_t entries = fake_counts("entries");
  uint64_t copies = fake_counts("cuMemcpyAsync");
  int64_t n = transport_cuda.payloads->fetch(s.h.ours->lane, &f);
  entries = fake_counts("entries") - entries;
  copies = fake_counts("cuMemcpyAsync") - copies;
  assert_true(n >= 0 && n < AREA);
  assert_in_range(entries + copies, 1, 2 * LINK_BLOCKS);
  while (!transport_cuda.payloads->fetch_end(s.h.ours->lane, &f))
    ;
  scene_close(&s);
}

/* Of an operation that there is not, or that is not live. */
static void marks_of_nothing(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  const struct transport_payloads *p = transport_cuda.payloads;
  assert_false(p->live(s.h.ours->lane, 0, 9));
  atomic_store(&s.h.peer->lane->own->marks[3], 9);
  assert_true(p->live(s.h.ours->lane, 3, 9));
  assert_false(p->live(s.h.ours->lane, 3, 8));
  assert_false(p->live(s.h.ours->lane, UINT16_MAX, 9));
  assert_false(p->live(s.h.ours->lane, 16384, 0));
  scene_close(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(words_of_another_length),
      cmocka_unit_test(words_that_there_are_not),
      cmocka_unit_test(descriptors_of_the_wrong_words),
      cmocka_unit_test(numbers_of_nothing),
      cmocka_unit_test(answers_of_an_old_serial_are_ignored),
      cmocka_unit_test(words_after_the_end),
      cmocka_unit_test(memory_of_impossible_forms),
      cmocka_unit_test(keys_of_other_forms),
      cmocka_unit_test(sizes_of_other_memory),
      cmocka_unit_test(descriptors_of_anything),
      cmocka_unit_test(pairs_of_the_wrong_words),
      cmocka_unit_test(a_pair_before_there_is_a_board),
      cmocka_unit_test(keys_with_other_descriptors_than_theirs),
      cmocka_unit_test(a_pair_beyond_the_share_is_refused),
      cmocka_unit_test(memory_of_the_host),
      cmocka_unit_test(much_memory_at_a_time),
      cmocka_unit_test(memory_of_which_a_little_is_told),
      cmocka_unit_test(devices_of_nobody),
      cmocka_unit_test(windows_that_grant_more_than_the_memory),
      cmocka_unit_test(keys_of_windows),
      cmocka_unit_test(boards_that_do_not_fit),
      cmocka_unit_test(sources_outside_of_the_memory),
      cmocka_unit_test(lists_outside_of_all_lists),
      cmocka_unit_test(lists_of_places_that_there_are_not),
      cmocka_unit_test(a_list_whose_operation_is_over_is_no_lie),
      cmocka_unit_test(lists_of_who_has_none),
      cmocka_unit_test(sources_of_very_many_blocks),
      cmocka_unit_test(marks_of_nothing),
  };
  return cmocka_run_group_tests_name("cuda_lane_lies", tests, NULL, NULL);
}
