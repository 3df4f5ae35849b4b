/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_lane_distant_test.c - two halves of the lane "cuda" of a session that takes
 * no descriptors: what they tell each other before memory goes, and a half whose
 * peer says what it likes. Tests are skipped unless PERIGEE_CUDA_LIBRARY names
 * the fake, as make check-gpu does.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "halves.h"

enum { FAST = 20, SLOW = 5000, SLOT = 3 };

static const struct transport_access *const *access_of =
    &transport_cuda_distant.access;

/* Memory of the peer that it grants, and our window of it. */
struct scene {
  struct halves h;
  struct area there;
  struct window w;
};

static void scene_open(struct scene *s, long slow) {
  halves_open_distant(&s->h, slow);
  area_new(s->h.peer, &s->there, AREA);
  s->w = peer_grants(&s->h, &s->there, SLOT);
}

static void peer_revokes(const struct scene *s) {
  (*access_of)->revoke(s->h.peer->lane, SLOT);
}

static bool ours_is_inside(const struct scene *s) {
  return (*access_of)->inside(s->h.peer->lane, SLOT);
}

static bool polls(const struct half *h) {
  return transport_cuda_distant.poll(h->lane);
}

static bool rests(const struct half *h) {
  return transport_cuda_distant.rests(h->lane);
}

static void scene_close(struct scene *s) {
  if (ours_is_inside(s))
    peer_revokes(s);
  halves_talk(&s->h);
  assert_false(ours_is_inside(s));
  area_end(s->h.peer, &s->there);
  halves_close(&s->h);
}

/* What the half has said last is this word, of that memory. */
static struct word said_word(struct half *h, uint32_t word) {
  struct said s = half_said(h);
  assert_int_equal(s.word.word, word);
  assert_int_equal(s.fd, -1);
  return s.word;
}

/* ---- Among honest halves ------------------------------------------------- */

static void memory_is_imported_once(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s, FAST);
  uint64_t imports = fake_counts("cuMemImportFromShareableHandle");
  area_fill(&s.h.here, 7);
  assert_int_equal(ours_write(&s.h, &s.w), 1);
  assert_int_equal(ours_write(&s.h, &s.w), 1);
  area_same(&s.there, 0, AREA, 7);
  assert_int_equal(fake_counts("cuMemImportFromShareableHandle"), imports + 1);
  scene_close(&s);
}

/* The owner may free it when it has heard CLOSED, and not before. */
static void memory_is_closed_before_it_goes(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s, FAST);
  assert_int_equal(ours_write(&s.h, &s.w), 1);
  uint64_t unmapped = fake_counts("cuMemUnmap");
  peer_revokes(&s);
  struct word gone = said_word(s.h.peer, GONE);
  assert_true(ours_is_inside(&s));
  assert_false((*access_of)->forget(s.h.peer->lane, &s.there));
  assert_int_equal(half_hears(s.h.ours, &gone, -1), 0);
  assert_int_equal(fake_counts("cuMemUnmap"), unmapped + 1);
  assert_int_equal(ours_write(&s.h, &s.w), PERIGEE_UNSUPPORTED);
  struct word closed = said_word(s.h.ours, CLOSED);
  assert_true(ours_is_inside(&s));
  assert_int_equal(half_hears(s.h.peer, &closed, -1), 0);
  assert_false(ours_is_inside(&s));
  assert_true((*access_of)->forget(s.h.peer->lane, &s.there));
  scene_close(&s);
}

static void a_copy_under_way_ends_first(void **state) {
  (void)state;
  struct scene s;
  struct job job = {0}, next = {0};
  scene_open(&s, SLOW);
  struct payload local = area_payload(&s.h.here);
  assert_int_equal(ours_post(&s.h, &job, &s.w, 0, local, true), 1);
  transport_cuda_distant.jobs->flush(s.h.ours->lane);
  peer_revokes(&s);
  struct word gone = said_word(s.h.peer, GONE);
  assert_int_equal(half_hears(s.h.ours, &gone, -1), 0);
  assert_int_equal(s.h.ours->said_count, 0);
  assert_int_equal(ours_post(&s.h, &next, &s.w, 0, local, true),
                   PERIGEE_UNSUPPORTED);
  ours_await(&s.h, &job);
  assert_int_equal(job.status, 0);
  assert_int_equal(s.h.ours->said_count, 1);
  scene_close(&s);
}

/* An item of a transfer that was under way finds it gone. */
static void a_later_item_is_stale(void **state) {
  (void)state;
  struct scene s;
  struct job job = {0};
  scene_open(&s, FAST);
  struct payload local = area_payload(&s.h.here);
  struct payload remote = payload_of(NULL, NULL, AREA);
  peer_revokes(&s);
  halves_talk(&s.h);
  assert_int_equal(transport_cuda_distant.jobs->post(s.h.ours->lane, &job, &s.w,
                                                     &remote, &local, true),
                   PERIGEE_STALE);
  assert_int_equal(job.pending, 0);
  scene_close(&s);
}

static void a_number_is_of_one_memory_at_a_time(void **state) {
  (void)state;
  struct scene s;
  struct area next;
  scene_open(&s, FAST);
  area_new(s.h.peer, &next, AREA);
  peer_revokes(&s);
  struct word gone = said_word(s.h.peer, GONE);
  struct window w = peer_grants(&s.h, &next, SLOT + 1);
  assert_int_not_equal(memcmp(w.own, &gone.id, sizeof gone.id), 0);
  assert_int_equal(half_hears(s.h.ours, &gone, -1), 0);
  halves_talk(&s.h);
  assert_int_equal(ours_write(&s.h, &w), 1);
  (*access_of)->revoke(s.h.peer->lane, SLOT + 1);
  halves_talk(&s.h);
  /* The number is used again, and the old window is of nothing. */
  w = peer_grants(&s.h, &s.there, SLOT);
  assert_memory_equal(w.own, &gone.id, sizeof gone.id);
  assert_int_equal(ours_write(&s.h, &w), 1);
  assert_int_equal(ours_write(&s.h, &s.w), PERIGEE_UNSUPPORTED);
  area_end(s.h.peer, &next);
  scene_close(&s);
}

/* Each poll tries again. */
static void a_full_session_delays_both_words(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s, FAST);
  assert_int_equal(ours_write(&s.h, &s.w), 1);
  s.h.peer->full = true;
  peer_revokes(&s);
  assert_false(polls(s.h.peer));
  assert_false(rests(s.h.peer));
  assert_true(ours_is_inside(&s));
  s.h.peer->full = false;
  assert_true(polls(s.h.peer));
  assert_true(rests(s.h.peer));
  assert_false(polls(s.h.peer));
  struct word gone = said_word(s.h.peer, GONE);
  s.h.ours->full = true;
  assert_int_equal(half_hears(s.h.ours, &gone, -1), 0);
  assert_false(polls(s.h.ours));
  assert_false(rests(s.h.ours));
  s.h.ours->full = false;
  assert_true(polls(s.h.ours));
  assert_true(rests(s.h.ours));
  assert_int_equal(s.h.ours->said_count, 1);
  scene_close(&s);
}

/* Whatever the peer has still to say. */
static void the_end_of_the_lane_is_the_last_word(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s, FAST);
  assert_int_equal(ours_write(&s.h, &s.w), 1);
  s.h.peer->full = true;
  peer_revokes(&s);
  uint64_t unmapped = fake_counts("cuMemUnmap");
  transport_cuda_distant.cut(s.h.ours->lane);
  assert_int_equal(fake_counts("cuMemUnmap"), unmapped + 1);
  assert_int_equal(ours_write(&s.h, &s.w), PERIGEE_UNSUPPORTED);
  transport_cuda_distant.cut(s.h.peer->lane);
  assert_true((*access_of)->forget(s.h.peer->lane, &s.there));
  area_end(s.h.peer, &s.there);
  halves_close(&s.h);
}

/* Both know why nothing is opened. */
static void an_owner_without_a_channel_says_so(void **state) {
  (void)state;
  struct halves h;
  struct area there;
  struct region_key key;
  halves_open_distant(&h, FAST);
  fake_set("channel=0");
  area_new(h.peer, &there, AREA);
  struct grant grant = {SLOT, 1, &there, there.rights, -1};
  assert_int_equal((*access_of)->export(h.peer->lane, &grant, &key),
                   PERIGEE_UNSUPPORTED);
  halves_talk(&h);
  assert_non_null(strstr(transport_cuda_distant.trouble(h.peer->lane),
                         "CUDA_ERROR_NOT_PERMITTED"));
  assert_non_null(strstr(transport_cuda_distant.trouble(h.ours->lane),
                         "the peer has no fabric handle"));
  area_end(h.peer, &there);
  halves_close(&h);
}

/* ---- Lies ---------------------------------------------------------------- */

static struct word word_of(const struct scene *s, uint32_t word) {
  struct reach at;
  memcpy(&at, s->w.own, sizeof at);
  return (struct word){.word = word, .id = at.id, .serial = at.serial};
}

/* The word of an honest peer for memory that ours does not know yet. */
static struct word word_sound(struct scene *s) {
  uint32_t id;
  halves_open_distant(&s->h, FAST);
  area_new(s->h.peer, &s->there, AREA);
  assert_int_equal(exported_tell(s->h.peer->lane, &s->there, &id), 0);
  return said_word(s->h.peer, MEMORY);
}

static void sound_close(struct scene *s) {
  transport_cuda_distant.cut(s->h.peer->lane);
  area_end(s->h.peer, &s->there);
  halves_close(&s->h);
}

static void words_that_are_not_of_such_a_session(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s, FAST);
  const uint32_t words[] = {0, BOARD, OPENED, ASK, CLOSED + 1, UINT32_MAX};
  for (int i = 0; i < 6; i++) {
    struct word w = word_of(&s, words[i]);
    assert_int_equal(half_hears(s.h.ours, &w, -1), PERIGEE_PROTOCOL);
  }
  assert_int_equal(ours_write(&s.h, &s.w), 1);
  scene_close(&s);
}

static void refuses_with_descriptor(struct scene *s, const struct word *w) {
  int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  assert_int_equal(half_hears(s->h.ours, w, fd), PERIGEE_PROTOCOL);
  assert_true(fcntl(fd, F_GETFD) < 0);
}

static void words_with_descriptors(void **state) {
  (void)state;
  struct scene s;
  struct word w = word_sound(&s);
  refuses_with_descriptor(&s, &w);
  for (uint32_t word = BOARD; word <= CLOSED; word++) {
    w.word = word;
    refuses_with_descriptor(&s, &w);
  }
  sound_close(&s);
}

/* It would have the owner free what is open. */
static void closed_that_nobody_waits_for(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s, FAST);
  struct word closed = word_of(&s, CLOSED);
  assert_int_equal(half_hears(s.h.peer, &closed, -1), PERIGEE_PROTOCOL);
  peer_revokes(&s);
  closed.serial++;
  assert_int_equal(half_hears(s.h.peer, &closed, -1), PERIGEE_PROTOCOL);
  closed.serial--;
  const uint32_t ids[] = {closed.id + 1, LINK_MEMORIES, UINT32_MAX};
  for (int i = 0; i < 3; i++) {
    struct word other = closed;
    other.id = ids[i];
    assert_int_equal(half_hears(s.h.peer, &other, -1), PERIGEE_PROTOCOL);
  }
  assert_true(ours_is_inside(&s));
  halves_talk(&s.h);
  assert_int_equal(half_hears(s.h.peer, &closed, -1), PERIGEE_PROTOCOL);
  scene_close(&s);
}

static void numbers_that_are_not_closed_yet(void **state) {
  (void)state;
  struct scene s;
  struct word memory = word_sound(&s), gone = memory;
  gone.word = GONE;
  assert_int_equal(half_hears(s.h.ours, &gone, -1), PERIGEE_PROTOCOL);
  assert_int_equal(half_hears(s.h.ours, &memory, -1), 0);
  assert_int_equal(half_hears(s.h.ours, &memory, -1), PERIGEE_PROTOCOL);
  s.h.ours->full = true;
  assert_int_equal(half_hears(s.h.ours, &gone, -1), 0);
  assert_int_equal(half_hears(s.h.ours, &memory, -1), PERIGEE_PROTOCOL);
  assert_int_equal(half_hears(s.h.ours, &gone, -1), PERIGEE_PROTOCOL);
  s.h.ours->full = false;
  assert_true(polls(s.h.ours));
  assert_int_equal(half_hears(s.h.ours, &memory, -1), 0);
  sound_close(&s);
}

/* Ours knows the memory and cannot use it. */
static void is_not_opened(struct scene *s, const struct word *w) {
  struct region_key key = {.length = sizeof w->id};
  struct window window = {.slot = SLOT,
                          .access = PERIGEE_READ | PERIGEE_WRITE,
                          .generation = 1,
                          .length = w->length};
  memcpy(key.bytes, &w->id, sizeof w->id);
  assert_int_equal(half_hears(s->h.ours, w, -1), 0);
  assert_int_equal((*access_of)->attach(s->h.ours->lane, &window, &key), 0);
  assert_int_equal(ours_move(&s->h, &window, 0, area_payload(&s->h.here), true),
                   PERIGEE_UNSUPPORTED);
  const char *why = transport_cuda_distant.trouble(s->h.ours->lane);
  assert_true(strstr(why, "not opened") || strstr(why, "cannot be opened"));
}

/* The size stands behind the kind of key, the handle at the end. */
static void handles_and_sizes_that_are_forged(void **state) {
  (void)state;
  struct scene s;
  const uint64_t vast = UINT64_C(1) << 40;
  struct word sound = word_sound(&s), w[5];
  uint64_t reserved = fake_counts("cuMemAddressReserve");
  uint64_t freed = fake_counts("cuMemAddressFree");
  for (int i = 0; i < 5; i++) {
    w[i] = sound;
    w[i].id = (uint32_t)i;
  }
  w[0].key[w[0].key_length - 60] ^= 1;
  memset(w[1].key + w[1].key_length - 64, 0, 64);
  w[2].length = vast;
  memcpy(w[2].key + 8, &vast, sizeof vast);
  w[3].length = vast;
  w[4].key[0] = 1; /* as if it came with a descriptor */
  for (int i = 0; i < 5; i++)
    is_not_opened(&s, &w[i]);
  assert_int_equal(fake_counts("cuMemAddressReserve") - reserved,
                   fake_counts("cuMemAddressFree") - freed);
  sound_close(&s);
}

static void a_handle_of_freed_memory(void **state) {
  (void)state;
  struct scene s;
  struct word w = word_sound(&s);
  transport_cuda_distant.cut(s.h.peer->lane);
  area_end(s.h.peer, &s.there);
  is_not_opened(&s, &w);
  halves_close(&s.h);
}

/* What a peer tells of counts, though it has no descriptors. */
static void more_memory_than_the_peers_share(void **state) {
  enum { MOST = 4, TOLD = 6 };
  (void)state;
  struct scene s;
  struct word w = word_sound(&s);
  const uint64_t *used = &s.h.ours->share->used[SHARE_DESCRIPTORS];
  s.h.ours->shares.quota[SHARE_DESCRIPTORS] =
      (struct quota){.limit = MOST, .least = MOST, .factor = 64};
  for (w.id = 0; w.id < TOLD; w.id++)
    assert_int_equal(half_hears(s.h.ours, &w, -1), 0);
  assert_in_range(*used, 1, MOST);
  for (w.id = 0; w.id < TOLD; w.id++) {
    struct word gone = {.word = GONE, .id = w.id, .serial = w.serial};
    assert_int_equal(half_hears(s.h.ours, &gone, -1), 0);
    said_word(s.h.ours, CLOSED);
  }
  assert_int_equal(*used, 0);
  sound_close(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_is_imported_once),
      cmocka_unit_test(memory_is_closed_before_it_goes),
      cmocka_unit_test(a_copy_under_way_ends_first),
      cmocka_unit_test(a_later_item_is_stale),
      cmocka_unit_test(a_number_is_of_one_memory_at_a_time),
      cmocka_unit_test(a_full_session_delays_both_words),
      cmocka_unit_test(the_end_of_the_lane_is_the_last_word),
      cmocka_unit_test(an_owner_without_a_channel_says_so),
      cmocka_unit_test(words_that_are_not_of_such_a_session),
      cmocka_unit_test(words_with_descriptors),
      cmocka_unit_test(closed_that_nobody_waits_for),
      cmocka_unit_test(numbers_that_are_not_closed_yet),
      cmocka_unit_test(handles_and_sizes_that_are_forged),
      cmocka_unit_test(a_handle_of_freed_memory),
      cmocka_unit_test(more_memory_than_the_peers_share),
  };
  return cmocka_run_group_tests_name("cuda_lane_distant", tests, NULL, NULL);
}
