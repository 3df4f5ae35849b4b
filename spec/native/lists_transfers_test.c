/* SPDX-License-Identifier: Apache-2.0
 *
 * lists_transfers_test.c - one-sided transfers between lists of slices: at once,
 * prepared, by the numbers of blocks.
 */
#include <stdlib.h>
#include <string.h>

#include "support.h"
#include "support_inside.h"

enum { MOST = 40, REGIONS = 3, TRANSFERS = 40, NEARBY = 24 * KIB };

struct far {
  struct pair p;
  struct perigee_region *near, *regions[REGIONS];
  struct perigee_remote *remotes[REGIONS];
  uint8_t *bytes[REGIONS], *here; /* what should be there */
};

static void far_open(struct far *f, void *state) {
  static const char *const names[REGIONS] = {"a", "b", "c"};
  pair_open(&f->p, state);
  f->near = region_of(&f->p, 0, NULL, NEARBY, 0);
  f->here = pattern(NEARBY, 1);
  fill(f->near, 0, f->here, NEARBY);
  for (int i = 0; i < REGIONS; i++) {
    f->regions[i] =
        region_of(&f->p, 1, names[i], NEARBY, PERIGEE_READ | PERIGEE_WRITE);
    f->bytes[i] = pattern(NEARBY, (uint8_t)(3 + i));
    fill(f->regions[i], 0, f->bytes[i], NEARBY);
    f->remotes[i] = look_up(&f->p, names[i]);
  }
}

static void far_close(struct far *f) {
  settle(&f->p);
  for (int i = 0; i < REGIONS; i++) {
    same(f->regions[i], 0, f->bytes[i], NEARBY);
    free(f->bytes[i]);
    region_end(f->regions[i]);
  }
  same(f->near, 0, f->here, NEARBY);
  assert_int_equal(f->near->users, 0);
  free(f->here);
  region_end(f->near);
  pair_close(&f->p);
}

/* One side of a random transfer: slices, and where each byte should be. */
struct side_list {
  struct perigee_slice slices[MOST];
  uint32_t count, total;
  uint8_t *at[NEARBY];
};

/* Adds slices of at most room bytes together; one after another in memory, with
 * gaps, so that none overlap. */
static void side_fill(struct side_list *s, struct far *f, bool remote,
                      uint32_t room) {
  uint32_t used[REGIONS] = {0};
  memset(s, 0, sizeof *s);
  while (s->total < room && s->count < MOST) {
    uint32_t r = remote ? any_below(REGIONS) : 0, left = room - s->total;
    uint32_t count = any_below(3) ? 1 : 1 + any_below(5);
    uint32_t block = any_below(s->count + 1 == MOST ? 8192 : 900) + 1;
    if (s->count + 1 == MOST || block * count > left) {
      count = 1;
      block = s->count + 1 == MOST || block > left ? left : block;
    }
    uint32_t stride = block + any_below(10);
    uint32_t span = (count - 1) * stride + block;
    if (used[r] + span > NEARBY)
      return;
    struct perigee_slice *slice = &s->slices[s->count++];
    *slice = (struct perigee_slice){{NULL}, used[r], block, count, stride};
    uint8_t *base = remote ? f->bytes[r] : f->here;
    if (remote)
      slice->remote = f->remotes[r];
    else
      slice->region = f->near;
    for (uint32_t i = 0; i < count; i++)
      for (uint32_t j = 0; j < block; j++)
        s->at[s->total++] = base + used[r] + i * stride + j;
    used[r] += span + any_below(3) * any_below(40);
  }
}

/* Both sides have the same bytes: the longer one is made anew. */
static void sides_agree(struct far *f, struct side_list *local,
                        struct side_list *remote, uint32_t room) {
  uint32_t again = any_seed;
  side_fill(local, f, false, room);
  side_fill(remote, f, true, room);
  while (local->total != remote->total) {
    room = local->total < remote->total ? local->total : remote->total;
    any_seed = again;
    side_fill(local, f, false, room);
    side_fill(remote, f, true, room);
  }
}

static struct perigee_slice side_slice(const struct side_list *s) {
  return s->count == 1 && any_below(2) ? s->slices[0]
                                       : perigee_list(s->slices, s->count);
}

static void side_copy(struct side_list *to, struct side_list *from) {
  for (uint32_t i = 0; i < to->total; i++)
    *to->at[i] = *from->at[i];
}

static void transfers_are_paired_by_bytes(void **state) {
  struct far f;
  struct side_list *s = calloc(2, sizeof *s);
  far_open(&f, *state);
  any_seed = 11;
  for (int i = 0; i < TRANSFERS; i++) {
    sides_agree(&f, &s[0], &s[1], 1 + any_below(i % 2 ? 20000 : 3000));
    bool write = any_below(2);
    struct perigee_transfer t = {.local = side_slice(&s[0]),
                                 .remote = side_slice(&s[1])};
    int op = perigee_transfer(f.p.session[0],
                              write ? PERIGEE_OP_WRITE : PERIGEE_OP_READ, &t, 1,
                              0, -1);
    side_copy(&s[write], &s[!write]);
    memset(s[0].slices, 0xee, sizeof s[0].slices);
    memset(s[1].slices, 0xee, sizeof s[1].slices);
    finish_moved(&f.p, op, s[0].total);
  }
  far_close(&f);
  free(s);
}

static void prepared_ones_are_posted_again(void **state) {
  struct far f;
  struct side_list *s = calloc(2, sizeof *s);
  struct perigee_prepared *prepared;
  far_open(&f, *state);
  any_seed = 12;
  sides_agree(&f, &s[0], &s[1], 5000);
  struct perigee_transfer t = {.local = perigee_list(s[0].slices, s[0].count),
                               .remote = perigee_list(s[1].slices, s[1].count)};
  assert_int_equal(
      perigee_prepare(f.p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, &prepared),
      0);
  memset(s[0].slices, 0xee, sizeof s[0].slices);
  memset(s[1].slices, 0xee, sizeof s[1].slices);
  for (int i = 0; i < 5; i++) {
    memset(f.here, 'a' + i, NEARBY);
    fill(f.near, 0, f.here, NEARBY);
    assert_int_equal(f.near->users, 0);
    finish_moved(&f.p, perigee_post(prepared, -1), s[0].total);
    side_copy(&s[1], &s[0]);
  }
  perigee_prepared_free(prepared);
  far_close(&f);
  free(s);
}

/* Of 5 slices with 8 blocks on each side, some blocks by number. */
static void blocks_are_posted_by_number(void **state) {
  enum { SLICES = 5, BLOCK_OF = 40, STEP = 1000, EACH = 8 };
  static const uint32_t from[] = {6, 1, 3}, to[] = {0, 1, 7}, twice[] = {2, 2};
  static const uint32_t beyond[] = {0, EACH};
  struct far f;
  struct perigee_slice near[SLICES], there[SLICES];
  struct perigee_prepared *prepared;
  far_open(&f, *state);
  for (uint64_t i = 0; i < SLICES; i++) {
    near[i] =
        (struct perigee_slice){{f.near}, i * STEP, BLOCK_OF, EACH, BLOCK_OF};
    there[i] = (struct perigee_slice){{NULL}, i * i * 700, BLOCK_OF, EACH, 60};
    there[i].remote = f.remotes[i % 2];
  }
  struct perigee_transfer t = {.local = perigee_list(near, SLICES),
                               .remote = perigee_list(there, SLICES)};
  assert_int_equal(
      perigee_prepare(f.p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, &prepared),
      0);
  for (int round = 0; round < 2; round++)
    finish(&f.p, perigee_post_blocks(prepared, from, to, 3, -1), 0);
  for (uint64_t i = 0; i < SLICES; i++)
    for (int j = 0; j < 3; j++)
      memcpy(f.bytes[i % 2] + there[i].offset + to[j] * 60,
             f.here + i * STEP + from[j] * BLOCK_OF, BLOCK_OF);
  assert_int_equal(perigee_post_blocks(prepared, from, twice, 2, -1),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_post_blocks(prepared, from, beyond, 2, -1),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_post_blocks(prepared, from, to, 0, -1),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_post_blocks(prepared, from, NULL, 1, -1),
                   PERIGEE_INVALID);
  finish(&f.p, perigee_post_blocks(prepared, twice, to, 2, -1), 0);
  for (uint64_t i = 0; i < SLICES; i++)
    for (int j = 0; j < 2; j++)
      memcpy(f.bytes[i % 2] + there[i].offset + to[j] * 60,
             f.here + i * STEP + 2 * BLOCK_OF, BLOCK_OF);
  assert_int_equal(f.near->users, 0);
  perigee_prepared_free(prepared);
  far_close(&f);
}

/* Ended at any time, or with the session, a transfer gives all back. */
static void transfers_may_end_at_any_time(void **state) {
  for (int polls = 0; polls < 12; polls++) {
    struct far f;
    struct side_list *s = calloc(2, sizeof *s);
    far_open(&f, *state);
    any_seed = 13;
    sides_agree(&f, &s[0], &s[1], 20000);
    struct perigee_transfer t = {.local = perigee_list(s[0].slices, s[0].count),
                                 .remote =
                                     perigee_list(s[1].slices, s[1].count)};
    int op = perigee_transfer(f.p.session[0], PERIGEE_OP_READ, &t, 1, 0, -1);
    for (int i = 0; i < polls; i++) {
      poll_side(&f.p, 0);
      poll_side(&f.p, 1);
    }
    if (op != PERIGEE_INLINE && polls % 2)
      perigee_cancel(f.p.engine[0], op);
    if (polls % 3 == 0) {
      perigee_session_free(f.p.session[0]);
      f.p.session[0] = NULL;
    }
    for (int i = 0; i < 200 && f.near->users > 0; i++) {
      struct perigee_event e[8];
      perigee_poll(f.p.engine[0], e, 8);
      perigee_poll(f.p.engine[1], e, 8);
    }
    assert_int_equal(f.near->users, 0);
    for (int i = 0; i < REGIONS; i++)
      free(f.bytes[i]);
    free(f.here);
    free(s);
    pair_drop(&f.p);
  }
}

/* Memory that peers only write is written by its owner, who gets the places of
 * one move: at its ends, these are more than the list has. */
static void a_move_has_more_places_than_its_list(void **state) {
  enum { SLICES = PERIGEE_LIST_MOST, BLOCKS = SLICES + 2, STEP = 4400 };
  const uint64_t each = 4200, total = each * BLOCKS, end = KIB + total;
  struct pair p;
  pair_open(&p, *state);
  struct perigee_region *near = region_of(&p, 0, NULL, STEP * BLOCKS, 0);
  struct perigee_region *far =
      region_of(&p, 1, "far", end + KIB, PERIGEE_WRITE);
  struct perigee_remote *remote = look_up(&p, "far");
  struct perigee_slice *list = calloc(SLICES, sizeof *list);
  struct perigee_slice ends[] = {{{NULL}, 0, 50, 1, 50},
                                 {{NULL}, KIB, total - 100, 1, total - 100},
                                 {{NULL}, end, 50, 1, 50}};
  uint8_t *bytes = pattern(STEP * BLOCKS, 23), *want = malloc(total);
  fill(near, 0, bytes, STEP * BLOCKS);
  for (uint64_t i = 0, at = 0; i < SLICES; at += list[i++].count) {
    uint64_t count = i == 0 || i + 1 == SLICES ? 2 : 1;
    list[i] = (struct perigee_slice){{near}, STEP * at, each, count, STEP};
  }
  for (uint64_t i = 0; i < BLOCKS; i++)
    memcpy(want + i * each, bytes + i * STEP, each);
  for (int i = 0; i < 3; i++)
    ends[i].remote = remote;
  struct perigee_transfer t = {perigee_list(list, SLICES),
                               perigee_list(ends, 3)};
  finish(&p, perigee_transfer(p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, -1), 0);
  same(far, 0, want, 50);
  same(far, KIB, want + 50, total - 100);
  same(far, end, want + total - 50, 50);
  free(bytes);
  free(want);
  free(list);
  settle(&p);
  region_end(near);
  region_end(far);
  pair_close(&p);
}

static void bad_transfers_move_nothing(void **state) {
  struct far f;
  far_open(&f, *state);
  struct perigee_slice local[2] = {{{f.near}, 0, 16, 1, 16},
                                   {{f.near}, 16, 16, 1, 16}};
  struct perigee_slice remote[2] = {{{NULL}, 0, 16, 1, 16},
                                    {{NULL}, NEARBY - 8, 16, 1, 16}};
  remote[0].remote = remote[1].remote = f.remotes[0];
  struct perigee_transfer t = {perigee_list(local, 2), perigee_list(remote, 2)};
  struct perigee_session *s = f.p.session[0];
  assert_int_equal(perigee_transfer(s, PERIGEE_OP_WRITE, &t, 1, 0, -1),
                   PERIGEE_RANGE);
  assert_non_null(strstr(perigee_detail(f.p.engine[0]), "slice 2 of a list"));
  remote[1].offset = 10;
  assert_int_equal(perigee_transfer(s, PERIGEE_OP_WRITE, &t, 1, 0, -1),
                   PERIGEE_INVALID);
  assert_non_null(strstr(perigee_detail(f.p.engine[0]), "slices 1 and 2"));
  remote[1].offset = 100;
  remote[1].length = 17;
  assert_int_equal(perigee_transfer(s, PERIGEE_OP_WRITE, &t, 1, 0, -1),
                   PERIGEE_INVALID);
  local[1].offset = 8;
  remote[1].length = 16;
  assert_int_equal(perigee_transfer(s, PERIGEE_OP_READ, &t, 1, 0, -1),
                   PERIGEE_INVALID);
  remote[1] = perigee_list(local, 1);
  local[1].offset = 16;
  assert_int_equal(perigee_transfer(s, PERIGEE_OP_READ, &t, 1, 0, -1),
                   PERIGEE_INVALID);
  t.remote = perigee_list(remote, 0);
  assert_int_equal(perigee_transfer(s, PERIGEE_OP_READ, &t, 1, 0, -1),
                   PERIGEE_INVALID);
  far_close(&f);
}

int main(void) {
  const struct CMUnitTest alone[] = {
      OVER(variant_default, a_move_has_more_places_than_its_list),
  };
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(transfers_are_paired_by_bytes),
      cmocka_unit_test(prepared_ones_are_posted_again),
      cmocka_unit_test(blocks_are_posted_by_number),
      cmocka_unit_test(transfers_may_end_at_any_time),
      cmocka_unit_test(bad_transfers_move_nothing),
  };
  int failed =
      cmocka_run_group_tests_name("lists of transfers", alone, NULL, NULL);
  return failed + RUN_MATRIX("lists of transfers", tests);
}
