/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_lane_test.c - two halves of the lane "cuda" that keep to its rules:
 * memory that goes while copies are under way, numbers that are used again, what
 * a share allows, how much is asked for at a time, and full sockets.
 * cuda_lane_lies_test.c has a half that does not keep to them. Tests are skipped
 * unless PERIGEE_CUDA_LIBRARY names the fake, as make check-gpu does.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "halves.h"

enum { FAST = 20, SLOW = 5000 };

/* New memory of the peer, which it grants in that slot. */
static struct window window_new(struct halves *h, struct area *area,
                                uint32_t slot) {
  area_new(h->peer, area, AREA);
  return peer_grants(h, area, slot);
}

/* ---- Copies -------------------------------------------------------------- */

static void one_import_and_one_copy_each(void **state) {
  (void)state;
  struct halves h;
  struct area there;
  halves_open(&h, FAST);
  uint64_t imports = fake_counts("cuMemImportFromShareableHandle");
  struct window w = window_new(&h, &there, 3);
  area_fill(&h.here, 7);
  uint64_t copies = fake_counts("cuMemcpyAsync");
  assert_int_equal(ours_write(&h, &w), 1);
  assert_int_equal(fake_counts("cuMemcpyAsync"), copies + 1);
  area_same(&there, 0, AREA, 7);
  area_fill(&there, 9);
  assert_int_equal(ours_move(&h, &w, 0, area_payload(&h.here), false), 1);
  area_same(&h.here, 0, AREA, 9);
  assert_int_equal(fake_counts("cuMemImportFromShareableHandle"), imports + 1);
  area_end(h.peer, &there);
  halves_close(&h);
}

/* The driver is asked once whose memory it is, and not for each copy. */
static void a_copy_asks_nothing_of_devices(void **state) {
  (void)state;
  struct halves h;
  struct area there;
  uint8_t bytes[4096];
  halves_open(&h, FAST);
  struct window w = window_new(&h, &there, 0);
  memset(bytes, 5, sizeof bytes);
  struct payload local = payload_of(NULL, bytes, sizeof bytes);
  uint64_t asked = fake_counts("cuDeviceGetUuid");
  for (uint64_t i = 0; i < 4; i++)
    assert_int_equal(ours_move(&h, &w, i * 4096, local, true), 1);
  assert_int_equal(fake_counts("cuDeviceGetUuid"), asked);
  area_same(&there, 0, sizeof bytes * 4, 5);
  area_end(h.peer, &there);
  halves_close(&h);
}

/* Local memory in pieces of PIECE bytes, of which each has its number. */
enum { ITEMS = 8, PIECE = AREA / ITEMS };
static struct payload piece(struct halves *h, int i) {
  return payload_of(h->here.memory, h->here.base + i * PIECE, PIECE);
}

static void pieces_fill(struct halves *h) {
  for (int i = 0; i < ITEMS; i++) {
    struct area part = h->here;
    part.base += i * PIECE;
    part.length = PIECE;
    area_fill(&part, i + 1);
  }
}

/* Writes each piece to an offset that is i times that many bytes, in one job. */
static void pieces_write(struct halves *h, const struct window *w,
                         uint64_t apart) {
  struct job job = {0};
  for (int i = 0; i < ITEMS; i++)
    assert_int_equal(
        ours_post(h, &job, w, (uint64_t)i * apart, piece(h, i), true), 1);
  transport_cuda.jobs->flush(h->ours->lane);
  ours_await(h, &job);
  assert_int_equal(job.status, 0);
  assert_int_equal(job.done, AREA);
}

/* The driver does the copies of a batch in any order. */
static void items_that_overlap_are_of_several_batches(void **state) {
  (void)state;
  struct halves h;
  struct area there;
  halves_open(&h, FAST);
  pieces_fill(&h);
  struct window w = window_new(&h, &there, 0);
  pieces_write(&h, &w, 4096);
  for (uint64_t i = 0; i < ITEMS; i++)
    area_same(&there, i * 4096, 4096, (int)i + 1);
  area_same(&there, ITEMS * 4096, PIECE - 4096, ITEMS);
  area_end(h.peer, &there);
  halves_close(&h);
}

/* Blocks of the remote side that overlap, in three copies: a batch. */
static void blocks_that_overlap_are_of_no_batch(void **state) {
  (void)state;
  struct halves h;
  struct area there;
  struct job job = {0};
  halves_open(&h, FAST);
  pieces_fill(&h);
  struct window w = window_new(&h, &there, 0);
  for (int i = 0; i < 3; i++) {
    struct payload local = piece(&h, i), remote = local;
    remote.memory = &memory_host;
    remote.base = (uint8_t *)(uintptr_t)((uint64_t)i * PIECE);
    remote.block = PIECE / 8;
    remote.count = 8;
    remote.stride = PIECE / 16;
    assert_int_equal(transport_cuda.jobs->post(h.ours->lane, &job, &w, &remote,
                                               &local, true),
                     1);
  }
  transport_cuda.jobs->flush(h.ours->lane);
  ours_await(&h, &job);
  assert_int_equal(job.done, 3 * PIECE);
  for (uint64_t i = 0; i < 3; i++)
    area_same(&there, i * PIECE, PIECE / 16 * 9, (int)i + 1);
  area_end(h.peer, &there);
  halves_close(&h);
}

/* From the last one to the first, so that none goes on where another ends. */
static void items_that_lie_apart_are_of_one_batch(void **state) {
  (void)state;
  struct halves h;
  struct area there;
  struct job job = {0};
  halves_open(&h, FAST);
  pieces_fill(&h);
  struct window w = window_new(&h, &there, 0);
  uint64_t batches = fake_counts("cuMemcpyBatchAsync");
  for (int i = ITEMS - 1; i >= 0; i--)
    assert_int_equal(
        ours_post(&h, &job, &w, (uint64_t)i * PIECE, piece(&h, i), true), 1);
  transport_cuda.jobs->flush(h.ours->lane);
  ours_await(&h, &job);
  assert_int_equal(fake_counts("cuMemcpyBatchAsync"), batches + 1);
  for (int i = 0; i < ITEMS; i++)
    area_same(&there, (uint64_t)i * PIECE, PIECE, i + 1);
  area_end(h.peer, &there);
  halves_close(&h);
}

/* ---- Payloads ------------------------------------------------------------ */

/* Fetches what the peer exposes into memory of one of our kinds; NULL: the
 * host's. */
static void fetched_into(struct halves *h, struct area *there, const char *kind,
                         bool careful) {
  struct half *ours = h->ours;
  const struct memory_context *before = ours->device;
  struct area into;
  struct copies copies = {0};
  struct fetch f;
  ours->device = kind ? half_device(ours, kind) : &memory_host;
  area_new(ours, &into, AREA);
  struct payload p = area_payload(&into);
  p.copies = kind ? &copies : NULL;
  assert_int_equal(peer_exposes(h, there, &f, &p), 0);
  f.careful = careful;
  assert_int_equal(ours_fetch(h, &f), 1);
  area_same(&into, 0, AREA, 4);
  area_end(ours, &into);
  ours->device = before;
}

/* Memory of the peer that our half has opened for cuda:0. */
static void opened_new(struct halves *h, struct area *there) {
  struct fetch f;
  area_new(h->peer, there, AREA);
  area_fill(there, 4);
  assert_int_equal(peer_exposes(h, there, &f, NULL), PERIGEE_UNSUPPORTED);
}

static void payloads_come_into_memory_of_any_kind(void **state) {
  (void)state;
  struct halves h;
  struct area there;
  halves_open(&h, FAST);
  opened_new(&h, &there);
  for (int careful = 0; careful < 2; careful++) {
    fetched_into(&h, &there, NULL, careful);
    fetched_into(&h, &there, "cuda:0", careful);
    fetched_into(&h, &there, "cuda:1", careful);
    fetched_into(&h, &there, "opaque", careful);
  }
  area_end(h.peer, &there);
  halves_close(&h);
}

/* ---- Lists ---------------------------------------------------------------- */

/* Two regions of the peer, which our half has opened, and places in both: the end
 * of the second one, and blocks of the first one. */
struct listed_areas {
  struct area first, second;
  struct extent places[2];
};
enum { LISTED = 4096 + 3 * 64 };

static void listed_open(struct halves *h, struct listed_areas *l) {
  opened_new(h, &l->first);
  opened_new(h, &l->second);
  area_fill(&l->second, 5);
  l->places[0] = (struct extent){
      l->second.base + AREA - 4096, 4096, 1, 4096, 0, &l->second};
  l->places[1] =
      (struct extent){l->first.base + 32, 64, 3, 1024, 4096, &l->first};
}

static void listed_close(struct halves *h, struct listed_areas *l) {
  area_end(h->peer, &l->first);
  area_end(h->peer, &l->second);
  halves_close(h);
}

static int list_exposes(struct halves *h, const struct listed_areas *l,
                        struct exposure *e) {
  struct payload from = {.memory = l->first.memory,
                         .block = 1024,
                         .count = 2,
                         .total = LISTED,
                         .extents = l->places};
  *e = (struct exposure){.operation = EXPOSED_AS, .generation = 9};
  int status = transport_cuda.payloads->expose(h->peer->lane, e, &from);
  halves_talk(h);
  return status;
}

static void list_fetched(struct halves *h, const struct exposure *e,
                         const char *kind, bool careful) {
  struct half *ours = h->ours;
  const struct memory_context *before = ours->device;
  struct area into;
  struct copies copies = {0};
  ours->device = kind ? half_device(ours, kind) : &memory_host;
  area_new(ours, &into, AREA);
  struct payload p = area_payload(&into);
  p.copies = kind ? &copies : NULL;
  struct fetch f = {.source = e->source,
                    .into = &p,
                    .operation = EXPOSED_AS,
                    .generation = 9,
                    .total = LISTED,
                    .careful = careful};
  assert_int_equal(ours_fetch(h, &f), 1);
  area_same(&into, 0, 4096, 5);
  area_same(&into, 4096, 3 * 64, 4);
  area_end(ours, &into);
  ours->device = before;
}

static void lists_come_into_memory_of_any_kind(void **state) {
  (void)state;
  struct halves h;
  struct listed_areas l;
  struct exposure e;
  halves_open(&h, FAST);
  listed_open(&h, &l);
  assert_int_equal(list_exposes(&h, &l, &e), 0);
  for (int careful = 0; careful < 2; careful++) {
    list_fetched(&h, &e, NULL, careful);
    list_fetched(&h, &e, "cuda:0", careful);
    list_fetched(&h, &e, "cuda:1", careful);
    list_fetched(&h, &e, "opaque", careful);
  }
  transport_cuda.payloads->conceal(h.peer->lane, &e);
  listed_close(&h, &l);
}

/* What has no block, and what the peer takes no list of, is the first lane's. */
static void a_list_has_a_block_until_it_is_concealed(void **state) {
  (void)state;
  struct halves h;
  struct listed_areas l;
  enum { MOST = LINK_LISTS / 4096 };
  static struct exposure e[MOST + 1];
  halves_open(&h, FAST);
  listed_open(&h, &l);
  for (int turn = 0; turn < 2; turn++) {
    for (int i = 0; i < MOST; i++)
      assert_int_equal(list_exposes(&h, &l, &e[i]), 0);
    assert_int_equal(list_exposes(&h, &l, &e[MOST]), PERIGEE_UNSUPPORTED);
    list_fetched(&h, &e[MOST - 1], "cuda:0", false);
    for (int i = 0; i < MOST; i++)
      transport_cuda.payloads->conceal(h.peer->lane, &e[i]);
  }
  h.peer->lane->exported[1].lists = false;
  assert_int_equal(list_exposes(&h, &l, &e[0]), PERIGEE_UNSUPPORTED);
  assert_int_equal(h.peer->lane->lists.live, 0);
  listed_close(&h, &l);
}

/* All are told of at once. */
static void a_list_tells_of_all_its_memories(void **state) {
  (void)state;
  struct halves h;
  struct listed_areas l;
  struct exposure e;
  halves_open(&h, FAST);
  area_new(h.peer, &l.first, AREA);
  area_new(h.peer, &l.second, AREA);
  l.places[0] = (struct extent){l.second.base, 4096, 1, 4096, 0, &l.second};
  l.places[1] = (struct extent){l.first.base, 64, 3, 64, 4096, &l.first};
  uint64_t opened = h.ours->lane->opened;
  assert_int_equal(list_exposes(&h, &l, &e), PERIGEE_UNSUPPORTED);
  assert_int_equal(h.ours->lane->opened, opened + 2);
  assert_int_equal(list_exposes(&h, &l, &e), 0);
  transport_cuda.payloads->conceal(h.peer->lane, &e);
  listed_close(&h, &l);
}

/* It cannot be opened for cuda:1, too, as the share is used. */
static void what_another_device_has_open_is_fetched_by_that(void **state) {
  (void)state;
  struct halves h;
  struct area there;
  halves_open(&h, FAST);
  struct quota *mapped = &h.ours->shares.quota[SHARE_MAPPED];
  *mapped = (struct quota){.limit = AREA * 3 / 2 + LINK_LISTS, .factor = 64};
  h.peer->device = half_device(h.peer, "cuda:1");
  opened_new(&h, &there);
  half_device(h.ours, "cuda:1");
  fetched_into(&h, &there, NULL, false);
  fetched_into(&h, &there, "cuda:1", false);
  area_end(h.peer, &there);
  halves_close(&h);
}

/* ---- Memory that goes ------------------------------------------------------ */

/* The number of memory that goes under copies is used again at once. */
static void numbers_are_used_again_under_copies(void **state) {
  (void)state;
  struct halves h;
  struct area first, second;
  struct job job = {0};
  halves_open(&h, SLOW);
  area_fill(&h.here, 1);
  struct window old = window_new(&h, &first, 0);
  assert_int_equal(ours_post(&h, &job, &old, 0, area_payload(&h.here), true),
                   1);
  transport_cuda.jobs->flush(h.ours->lane);
  transport_cuda.access->revoke(h.peer->lane, 0);
  area_end(h.peer, &first);
  struct window new = window_new(&h, &second, 0);
  assert_memory_equal(old.own, new.own, sizeof(uint32_t)); /* its number */
  assert_int_equal(ours_write(&h, &old), PERIGEE_UNSUPPORTED);
  assert_int_equal(ours_write(&h, &new), 1);
  ours_await(&h, &job);
  assert_int_equal(job.status, 0);
  area_same(&second, 0, AREA, 1);
  area_end(h.peer, &second);
  halves_close(&h);
}

/* A job of two items, in two memories, which go while it is under way. */
static void memories_of_one_job_stay_for_their_copies(void **state) {
  (void)state;
  struct halves h;
  struct area there[2];
  struct job job = {0};
  halves_open(&h, SLOW);
  for (uint32_t i = 0; i < 2; i++) {
    struct window w = window_new(&h, &there[i], i);
    struct payload local = area_payload(&h.here);
    assert_int_equal(ours_post(&h, &job, &w, 0, local, true), 1);
  }
  transport_cuda.jobs->flush(h.ours->lane);
  for (int i = 0; i < 2; i++)
    area_end(h.peer, &there[i]);
  uint64_t left = fake_counts("cuMemUnmap");
  halves_talk(&h);
  ours_await(&h, &job);
  assert_int_equal(job.status, 0);
  assert_int_equal(job.done, 2 * AREA);
  assert_int_equal(fake_counts("cuMemUnmap"), left + 2);
  halves_close(&h);
}

static void
memory_of_the_program_is_held_until_its_copies_have_ended(void **state) {
  (void)state;
  struct halves h;
  struct lent there;
  struct job job = {0};
  halves_open(&h, SLOW);
  area_fill(&h.here, 8);
  lent_new(h.peer, &there);
  struct window w = peer_grants(&h, &there.area, 0);
  assert_int_equal(h.ours->share->used[SHARE_DESCRIPTORS], 3); /* a board's */
  assert_int_equal(ours_post(&h, &job, &w, 0, area_payload(&h.here), true), 1);
  transport_cuda.jobs->flush(h.ours->lane);
  assert_true(lent_is_held(&there));
  assert_true(exported_forget(h.peer->lane, &there.area));
  halves_talk(&h);
  assert_true(lent_is_held(&there));
  ours_await(&h, &job);
  assert_false(lent_is_held(&there));
  assert_int_equal(h.ours->share->used[SHARE_DESCRIPTORS], 1);
  area_same(&there.area, 0, AREA, 8);
  lent_end(h.peer, &there);
  halves_close(&h);
}

static void memory_of_the_program_is_held_until_a_lane_ends(void **state) {
  (void)state;
  struct halves h;
  struct lent there;
  halves_open(&h, FAST);
  lent_new(h.peer, &there);
  struct window w = peer_grants(&h, &there.area, 0);
  assert_int_equal(ours_write(&h, &w), 1);
  assert_true(lent_is_held(&there));
  transport_cuda.cut(h.ours->lane);
  assert_false(lent_is_held(&there));
  lent_end(h.peer, &there);
  halves_close(&h);
}

/* A build from before there were pairs ends the session if it is sent one. */
static void
a_peer_that_takes_no_pairs_is_not_told_of_such_memory(void **state) {
  (void)state;
  struct halves h;
  struct lent there;
  uint32_t id;
  halves_open(&h, FAST);
  h.peer->lane->options.pairs = false;
  lent_new(h.peer, &there);
  assert_int_equal(exported_tell(h.peer->lane, &there.area, &id),
                   PERIGEE_UNSUPPORTED);
  struct said board = half_said(h.peer);
  close(board.fd);
  assert_int_equal(board.word.word, BOARD);
  assert_int_equal(h.peer->said_count, 0);
  assert_non_null(strstr(transport_cuda.trouble(h.peer->lane), "\"pairs\""));
  assert_false(lent_is_held(&there));
  lent_end(h.peer, &there);
  halves_close(&h);
}

static void what_uses_no_device_opens_nothing_until_it_does(void **state) {
  (void)state;
  struct halves h;
  struct area there;
  struct fetch f;
  halves_open_bare(&h);
  area_new(h.peer, &there, AREA);
  uint64_t imports = fake_counts("cuMemImportFromShareableHandle");
  for (int i = 0; i < 5; i++)
    assert_int_equal(peer_exposes(&h, &there, &f, NULL), PERIGEE_UNSUPPORTED);
  assert_int_equal(fake_counts("cuMemImportFromShareableHandle"), imports);
  half_device(h.ours, "cuda:0");
  for (int i = 5; i < 8; i++) /* it asks at the 8th */
    assert_int_equal(peer_exposes(&h, &there, &f, NULL), PERIGEE_UNSUPPORTED);
  assert_int_equal(peer_exposes(&h, &there, &f, NULL), 0);
  assert_int_equal(fake_counts("cuMemImportFromShareableHandle"), imports + 1);
  area_end(h.peer, &there);
  halves_close(&h);
}

/* ---- A full socket -------------------------------------------------------- */

static void a_full_socket_delays_what_is_said(void **state) {
  (void)state;
  struct halves h;
  struct area first, second;
  uint32_t id;
  halves_open(&h, FAST);
  area_new(h.peer, &first, AREA);
  area_new(h.peer, &second, AREA);
  h.peer->full = true;
  assert_true(exported_tell(h.peer->lane, &first, &id) < 0);
  h.peer->full = false;
  peer_grants(&h, &first, 0);
  h.peer->full = true;
  assert_false(exported_forget(h.peer->lane, &first));
  /* Nothing else gets its number. */
  h.peer->full = false;
  assert_int_equal(exported_tell(h.peer->lane, &second, &id), 0);
  assert_int_equal(id, 1);
  assert_true(exported_forget(h.peer->lane, &first));
  halves_talk(&h);
  assert_null(imported_of(h.ours->lane, 0));
  assert_non_null(imported_of(h.ours->lane, 1));
  area_end(h.peer, &first);
  area_end(h.peer, &second);
  halves_close(&h);
}

static void a_full_socket_takes_no_pair(void **state) {
  (void)state;
  struct halves h;
  struct lent lent;
  uint32_t id;
  halves_open(&h, FAST);
  lent_new(h.peer, &lent);
  assert_int_equal(link_board(h.peer->lane), 0);
  h.peer->full = true;
  assert_true(exported_tell(h.peer->lane, &lent.area, &id) < 0);
  h.peer->full = false;
  struct window w = peer_grants(&h, &lent.area, 0);
  assert_int_equal(ours_write(&h, &w), 1);
  lent_end(h.peer, &lent);
  halves_close(&h);
}

/* OPENED was lost, so the owner asks. */
static void a_lost_answer_is_asked_for(void **state) {
  (void)state;
  struct halves h;
  struct area there;
  struct fetch f;
  halves_open(&h, FAST);
  area_new(h.peer, &there, AREA);
  h.ours->full = true;
  assert_int_equal(peer_exposes(&h, &there, &f, NULL), PERIGEE_UNSUPPORTED);
  h.ours->full = false;
  assert_int_equal(peer_exposes(&h, &there, &f, NULL), PERIGEE_UNSUPPORTED);
  assert_int_equal(peer_exposes(&h, &there, &f, NULL), 0);
  area_end(h.peer, &there);
  halves_close(&h);
}

/* ---- Shares -------------------------------------------------------------- */

static void memory_beyond_the_share_is_opened_once_there_is_room(void **state) {
  (void)state;
  struct halves h;
  struct area there;
  halves_open(&h, FAST);
  area_fill(&h.here, 6);
  struct quota *mapped = &h.ours->shares.quota[SHARE_MAPPED], all = *mapped;
  *mapped =
      (struct quota){.limit = AREA + LINK_LISTS, .least = AREA, .factor = 1};
  struct window w = window_new(&h, &there, 0); /* the board has some, too */
  assert_int_equal(ours_write(&h, &w), PERIGEE_UNSUPPORTED);
  assert_non_null(strstr(transport_cuda.trouble(h.ours->lane), "its share"));
  *mapped = all;
  assert_int_equal(ours_write(&h, &w), 1);
  area_same(&there, 0, AREA, 6);
  area_end(h.peer, &there);
  halves_close(&h);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_import_and_one_copy_each),
      cmocka_unit_test(a_copy_asks_nothing_of_devices),
      cmocka_unit_test(items_that_overlap_are_of_several_batches),
      cmocka_unit_test(blocks_that_overlap_are_of_no_batch),
      cmocka_unit_test(items_that_lie_apart_are_of_one_batch),
      cmocka_unit_test(payloads_come_into_memory_of_any_kind),
      cmocka_unit_test(lists_come_into_memory_of_any_kind),
      cmocka_unit_test(a_list_has_a_block_until_it_is_concealed),
      cmocka_unit_test(a_list_tells_of_all_its_memories),
      cmocka_unit_test(what_another_device_has_open_is_fetched_by_that),
      cmocka_unit_test(numbers_are_used_again_under_copies),
      cmocka_unit_test(memories_of_one_job_stay_for_their_copies),
      cmocka_unit_test(
          memory_of_the_program_is_held_until_its_copies_have_ended),
      cmocka_unit_test(memory_of_the_program_is_held_until_a_lane_ends),
      cmocka_unit_test(a_peer_that_takes_no_pairs_is_not_told_of_such_memory),
      cmocka_unit_test(what_uses_no_device_opens_nothing_until_it_does),
      cmocka_unit_test(a_full_socket_delays_what_is_said),
      cmocka_unit_test(a_full_socket_takes_no_pair),
      cmocka_unit_test(a_lost_answer_is_asked_for),
      cmocka_unit_test(memory_beyond_the_share_is_opened_once_there_is_room),
  };
  return cmocka_run_group_tests_name("cuda_lane", tests, NULL, NULL);
}
