/* SPDX-License-Identifier: Apache-2.0
 *
 * lists_test.c - lists of slices: payloads with extents beside a copy byte by
 * byte, and which lists are refused.
 */
#include <stdlib.h>
#include <string.h>

#include "kinds.h"
#include "operation/operations.h"
#include "support_inside.h"

enum { SIZE = 16 * KIB, MOST = 40, ROUNDS = 600 };

/* ---- Random lists ----------------------------------------------------------- */

/* A list within one region, and the offset of each of its bytes. */
struct random_list {
  struct perigee_slice slices[MOST];
  uint32_t count;
  uint32_t at[MOST * SIZE], total;
  uint8_t uses[SIZE]; /* how often each byte is named */
};

static struct perigee_slice random_slice(struct perigee_region *r,
                                         uint32_t stride) {
  uint32_t count = any_below(3) ? 1 : 1 + any_below(12);
  uint32_t block = any_below(count > 1 && stride ? stride : 200) + (count > 1);
  uint32_t step = stride ? stride : block + any_below(100);
  while (count > 1 && (count - 1) * step + block > SIZE)
    count--;
  uint32_t span = (count - 1) * step + block;
  return (struct perigee_slice){
      {r}, any_below(SIZE - span + 1), block, count, step};
}

static bool list_meets(const struct random_list *l,
                       const struct perigee_slice *s) {
  for (uint64_t i = 0; i < s->count; i++)
    for (uint64_t j = 0; j < s->length; j++)
      if (l->uses[s->offset + i * s->stride + j])
        return true;
  return false;
}

static void list_add(struct random_list *l, const struct perigee_slice *s) {
  l->slices[l->count++] = *s;
  for (uint64_t i = 0; i < s->count; i++)
    for (uint64_t j = 0; j < s->length; j++) {
      uint32_t at = (uint32_t)(s->offset + i * s->stride + j);
      l->at[l->total++] = at;
      l->uses[at]++;
    }
}

/* stride: of all slices with several blocks; 0: each has its own. apart: without
 * overlaps. */
static void list_fill(struct random_list *l, struct perigee_region *r,
                      uint32_t stride, bool apart) {
  uint32_t wanted = 1 + any_below(MOST);
  memset(l, 0, sizeof *l);
  for (int tries = 0; tries < 200 && l->count < wanted; tries++) {
    struct perigee_slice s = random_slice(r, stride);
    if (l->count > 0 && any_below(4) == 0) /* right behind the one before */
      s.offset =
          l->slices[l->count - 1].offset + l->slices[l->count - 1].length;
    if (s.offset + (s.count - 1) * s.stride + s.length <= SIZE &&
        !(apart && list_meets(l, &s)))
      list_add(l, &s);
  }
  if (l->count == 0)
    list_add(l, &(struct perigee_slice){{r}, 0, 1, 1, 1});
}

static struct spread *spread(struct perigee_engine *engine,
                             const struct random_list *l, bool written) {
  struct spread *s = NULL;
  struct perigee_slice list = perigee_list(l->slices, l->count);
  assert_int_equal(spread_make(engine, &list, written, &s), 0);
  assert_int_equal(s->payload.total, l->total);
  return s;
}

/* ---- Payloads ---------------------------------------------------------------- */

struct sides {
  struct perigee_region *from, *to;
  struct random_list out, in;
  uint8_t *before, want[SIZE], got[SIZE], source[SIZE];
  struct copies copies[2];
};

static void sides_fill(struct sides *s) {
  uint8_t *bytes = pattern(SIZE, (uint8_t)any_below(200));
  uint8_t *other = pattern(SIZE, (uint8_t)any_below(200));
  memcpy(s->source, bytes, SIZE);
  memcpy(s->want, other, SIZE);
  fill(s->from, 0, bytes, SIZE);
  fill(s->to, 0, other, SIZE);
  free(bytes);
  free(other);
}

/* Moves n bytes from byte `first` on, in steps of any length. */
static void sides_move(struct sides *s, struct payload to, struct payload from,
                       uint64_t first, uint64_t n) {
  s->copies[0] = s->copies[1] = (struct copies){.asked = first};
  to.copies = &s->copies[0];
  from.copies = &s->copies[1];
  to.done = from.done = first;
  to.total = first + n;
  while (to.done < to.total) {
    uint64_t most = 1 + any_below(3 * KIB);
    if (payload_busy(&to) || payload_busy(&from))
      most = n; /* the next call names again what is under way */
    assert_true(payload_move(&to, &from, most) >= 0);
  }
  assert_true(payload_quiet(&to) && payload_quiet(&from));
}

static void sides_round(struct perigee_engine *engine, struct sides *s) {
  list_fill(&s->out, s->from, any_below(2) ? 256 : 0, false);
  list_fill(&s->in, s->to, 256, true);
  sides_fill(s);
  struct spread *out = spread(engine, &s->out, false);
  struct spread *in = spread(engine, &s->in, true);
  uint64_t both = s->out.total < s->in.total ? s->out.total : s->in.total;
  uint64_t first = both ? any_below((uint32_t)both) : 0;
  uint64_t n = both ? any_below((uint32_t)(both - first)) + 1 : 0;
  for (uint64_t i = first; i < first + n; i++)
    s->want[s->in.at[i]] = s->source[s->out.at[i]];
  sides_move(s, in->payload, out->payload, first, n);
  same(s->to, 0, s->want, SIZE);
  spread_free(out);
  spread_free(in);
}

static void rounds(struct perigee_engine *engine, const char *from,
                   const char *to) {
  struct sides *s = calloc(1, sizeof *s);
  any_seed = 7;
  assert_int_equal(perigee_region_alloc(engine, NULL, SIZE, 0, from, &s->from),
                   0);
  assert_int_equal(perigee_region_alloc(engine, NULL, SIZE, 0, to, &s->to), 0);
  for (int i = 0; i < ROUNDS; i++)
    sides_round(engine, s);
  region_end(s->from);
  region_end(s->to);
  free(s);
}

static void host_memory_is_moved_as_byte_by_byte(void **state) {
  rounds(*state, "host", "host");
}

static void other_memory_is_moved_so_too(void **state) {
  rounds(*state, "opaque", "host");
  rounds(*state, "host", "opaque");
  rounds(*state, "twin:0", "twin:1");
}

/* 20 MiB, in blocks at odd addresses, to a shape or to a list. */
static void large_ones_are_moved_so_too(void **state) {
  enum { BLOCKS = 4000, BLOCK = 5001, STRIDE = 6007, ALL = BLOCKS * STRIDE };
  struct perigee_engine *engine = *state;
  struct perigee_region *from, *to;
  struct spread *s;
  uint8_t *bytes = pattern(ALL, 77), *want = calloc(1, ALL);
  struct perigee_slice list[BLOCKS];
  assert_int_equal(perigee_region_alloc(engine, NULL, ALL, 0, NULL, &from), 0);
  assert_int_equal(perigee_region_alloc(engine, NULL, ALL, 0, NULL, &to), 0);
  fill(from, 0, bytes, ALL);
  for (uint64_t i = 0; i < BLOCKS; i++) {
    uint64_t at = (BLOCKS - 1 - i) * STRIDE + i % 3;
    list[i] = (struct perigee_slice){{to}, at, BLOCK, 1, BLOCK};
    memcpy(want + at, bytes + i * STRIDE, BLOCK);
  }
  struct perigee_slice all = perigee_list(list, BLOCKS);
  assert_int_equal(spread_make(engine, &all, true, &s), 0);
  struct payload in = s->payload, out = {.memory = &memory_host,
                                         .base = perigee_region_pointer(from),
                                         .block = BLOCK,
                                         .count = BLOCKS,
                                         .stride = STRIDE,
                                         .total = BLOCKS * BLOCK};
  while (in.done < in.total)
    assert_true(payload_copy(&in, &out, 3 * MIB + 77) > 0);
  same(to, 0, want, ALL);
  /* and back, by shapes alone */
  struct payload back = out;
  in.done = back.done = 0;
  fill_byte(from, 0);
  while (in.done < in.total)
    assert_true(payload_copy(&back, &in, 3 * MIB + 77) > 0);
  for (uint64_t i = 0; i < BLOCKS; i++)
    same(from, i * STRIDE, bytes + i * STRIDE, BLOCK);
  spread_free(s);
  free(bytes);
  free(want);
  region_end(from);
  region_end(to);
}

/* ---- What is refused ---------------------------------------------------------- */

static bool list_overlaps(const struct random_list *l) {
  bool any = false;
  for (uint32_t i = 0; i < SIZE; i++)
    any |= l->uses[i] > 1;
  return any;
}

/* With one stride the answer is exact; with several, an overlap is never
 * missed. */
static void overlaps_are_found(void **state) {
  struct perigee_engine *engine = *state;
  struct perigee_region *r;
  struct random_list *l = malloc(sizeof *l);
  int found = 0, none = 0;
  any_seed = 3;
  assert_int_equal(perigee_region_alloc(engine, NULL, SIZE, 0, NULL, &r), 0);
  for (int i = 0; i < 10 * ROUNDS; i++) {
    uint32_t stride = any_below(3) ? 1 + any_below(1000) : 0;
    list_fill(l, r, stride, any_below(2));
    struct spread *s = NULL;
    struct perigee_slice list = perigee_list(l->slices, l->count);
    int status = spread_make(engine, &list, true, &s);
    bool overlaps = list_overlaps(l);
    if (stride)
      assert_int_equal(status, overlaps ? PERIGEE_INVALID : 0);
    else if (overlaps)
      assert_int_equal(status, PERIGEE_INVALID);
    found += status < 0;
    none += status == 0;
    if (s)
      spread_free(s);
    if (status < 0)
      assert_non_null(strstr(perigee_detail(engine), "overlap"));
  }
  assert_true(found > ROUNDS && none > ROUNDS);
  free(l);
  region_end(r);
}

static void refused(struct perigee_engine *engine,
                    const struct perigee_slice *slices, uint64_t n, int status,
                    const char *why) {
  struct perigee_slice list = perigee_list(slices, n);
  struct spread *s = NULL;
  assert_int_equal(spread_make(engine, &list, true, &s), status);
  assert_null(s);
  if (!strstr(perigee_detail(engine), why))
    fail_msg("\"%s\" does not say \"%s\"", perigee_detail(engine), why);
}

static void what_is_wrong_is_told_by_number(void **state) {
  struct perigee_engine *engine = *state;
  struct perigee_region *r, *other;
  assert_int_equal(perigee_region_alloc(engine, NULL, SIZE, 0, NULL, &r), 0);
  assert_int_equal(
      perigee_region_alloc(engine, NULL, SIZE, 0, "opaque", &other), 0);
  struct perigee_slice good = {{r}, 0, 10, 1, 10};
  struct perigee_slice s[3] = {good, {{r}, 10, 10, 1, 10}, {{r}, 30, 9, 1, 9}};
  refused(engine, s, 0, PERIGEE_INVALID, "1 to 4096 slices, not 0");
  refused(engine, s, 4097, PERIGEE_INVALID, "not 4097");
  refused(engine, NULL, 2, PERIGEE_INVALID, "NULL");
  s[2].region = other;
  refused(engine, s, 3, PERIGEE_INVALID, "slice 3 of a list is in memory of");
  s[2] = (struct perigee_slice){{r}, SIZE - 5, 6, 1, 6};
  refused(engine, s, 3, PERIGEE_RANGE, "slice 3 of a list lies outside");
  s[2] = (struct perigee_slice){{r}, 0, UINT64_MAX, 3, 1};
  refused(engine, s, 3, PERIGEE_RANGE, "slice 3");
  s[2].region = NULL;
  refused(engine, s, 3, PERIGEE_INVALID, "slice 3 of a list has no region");
  s[2] = perigee_list(s, 2);
  refused(engine, s, 3, PERIGEE_INVALID, "slice 3 of a list is a list");
  s[2] = (struct perigee_slice){{r}, 19, 2, 1, 2};
  refused(engine, s, 3, PERIGEE_INVALID, "slices 2 and 3 of a list overlap");
  s[2] = (struct perigee_slice){{r}, 100, 8, 3, 4};
  refused(engine, s, 3, PERIGEE_INVALID, "the blocks of slice 3");
  assert_int_equal(r->users, 0);
  region_end(other);
  region_end(r);
}

static void a_list_of_too_many_bytes_is_refused(void **state) {
  enum { PARTS_OF = 3 };
  struct perigee_engine *engine = *state;
  static uint8_t here; /* no byte is touched */
  struct perigee_region *r;
  const uint64_t large = UINT64_C(1) << 39;
  assert_int_equal(
      perigee_region_register(engine, NULL, &here, large, 0, NULL, &r), 0);
  struct perigee_slice s[PARTS_OF];
  for (int i = 0; i < PARTS_OF; i++)
    s[i] = (struct perigee_slice){{r}, 0, large, 1, large};
  refused(engine, s, PARTS_OF, PERIGEE_TOO_LARGE, "slice 3");
  region_end(r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      WITH_ENGINE(host_memory_is_moved_as_byte_by_byte),
      WITH_ENGINE(other_memory_is_moved_so_too),
      WITH_ENGINE(large_ones_are_moved_so_too),
      WITH_ENGINE(overlaps_are_found),
      WITH_ENGINE(what_is_wrong_is_told_by_number),
      WITH_ENGINE(a_list_of_too_many_bytes_is_refused),
  };
  return cmocka_run_group_tests_name("lists", tests, NULL, NULL);
}
