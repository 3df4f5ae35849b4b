/* SPDX-License-Identifier: Apache-2.0
 *
 * spread.c - lists of slices: from the list that a program names to a payload
 * with extents, which its operation keeps until it has ended.
 *
 * All of a list is checked while it is submitted, before anything moves; what is
 * wrong is told with the slice's number, from 1. Slices that are empty leave no
 * extent, and those that follow each other in memory share one.
 *
 * Places that bytes are written to may not overlap. Most lists are told to be
 * free of that in one pass, as their slices lie in order. Else they are sorted:
 * by addresses; and if slices lie between each other's blocks, by where the
 * blocks lie within their common stride. Only what these orders do not settle is
 * compared pair by pair.
 */

#include "base/least.h"
#include "core/region.h"
#include "operations.h"

/* ---- Overlaps ------------------------------------------------------------- */

static uint64_t extent_first(const struct extent *e) {
  return (uintptr_t)e->base;
}

static uint64_t extent_end(const struct extent *e) {
  return extent_first(e) + (e->count - 1) * e->stride + e->block;
}

static int64_t floor_divide(int64_t a, int64_t by) {
  return a / by - (a % by < 0);
}

/* Does a block of one begin before a block of the other ends, and end behind
 * where that begins? The blocks of both lie `stride` bytes apart, and the second
 * extent begins d bytes behind the first: the bytes between a block of the first
 * and one of the second are d + t * stride, for some t. */
static bool extents_meet(const struct extent *a, const struct extent *b,
                         uint64_t stride) {
  int64_t d = (int64_t)(extent_first(b) - extent_first(a));
  int64_t s = (int64_t)stride;
  int64_t from = floor_divide(-(int64_t)b->block - d, s) + 1;
  int64_t to = -floor_divide(d - (int64_t)a->block, s) - 1;
  int64_t least_t = 1 - (int64_t)a->count, most_t = (int64_t)b->count - 1;
  return (from > least_t ? from : least_t) <= (to < most_t ? to : most_t);
}

/* Of blocks at different distances that lie between each other, it is not found
 * out: they count as overlapping. */
static bool extents_overlap(const struct extent *a, const struct extent *b) {
  if (extent_end(a) <= extent_first(b) || extent_end(b) <= extent_first(a))
    return false;
  if (a->count == 1 && b->count == 1)
    return true;
  if (a->count > 1 && b->count > 1 && a->stride != b->stride)
    return true;
  return extents_meet(a, b, a->count > 1 ? a->stride : b->stride);
}

/* An extent and what it is sorted by. */
struct rank {
  uint64_t key;
  const struct extent *extent;
};

/* Moves the rank at that place of a heap of n down to where it belongs. */
static void ranks_sift(struct rank *ranks, uint32_t at, uint32_t n) {
  struct rank moved = ranks[at];
  for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
    child += child + 1 < n && ranks[child + 1].key > ranks[child].key;
    if (ranks[child].key <= moved.key)
      break;
    ranks[at] = ranks[child];
  }
  ranks[at] = moved;
}

/* A heap sort: qsort allocates. */
static void ranks_order(struct rank *ranks, uint32_t n) {
  for (uint32_t i = n / 2; i-- > 0;)
    ranks_sift(ranks, i, n);
  while (n-- > 1) {
    struct rank most = ranks[0];
    ranks[0] = ranks[n];
    ranks[n] = most;
    ranks_sift(ranks, 0, n);
  }
}

static void ranks_sort(struct rank *ranks, const struct extent *e,
                       uint32_t count, uint64_t stride) {
  for (uint32_t i = 0; i < count; i++) {
    uint64_t first = extent_first(&e[i]);
    ranks[i] = (struct rank){stride ? first % stride : first, &e[i]};
  }
  ranks_order(ranks, count);
}

static bool extents_ascend(const struct extent *e, uint32_t count) {
  for (uint32_t i = 1; i < count; i++)
    if (extent_first(&e[i]) < extent_end(&e[i - 1]))
      return false;
  return true;
}

/* Does each one end before the next one begins? */
static bool ranks_are_apart(const struct rank *ranks, uint32_t count) {
  for (uint32_t i = 1; i < count; i++)
    if (ranks[i].key < extent_end(ranks[i - 1].extent))
      return false;
  return true;
}

/* Returns the stride of all that have more than one block; 0: they have several,
 * or one of them has a block that is longer. */
static uint64_t extents_stride(const struct extent *e, uint32_t count) {
  uint64_t stride = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (e[i].count > 1 && stride && e[i].stride != stride)
      return 0;
    if (e[i].count > 1)
      stride = e[i].stride;
  }
  for (uint32_t i = 0; i < count; i++)
    if (e[i].block > stride)
      return 0;
  return stride;
}

/* The same within the stride, which goes round. */
static bool ranks_are_apart_within(const struct rank *ranks, uint32_t count,
                                   uint64_t stride) {
  for (uint32_t i = 1; i < count; i++)
    if (ranks[i].key < ranks[i - 1].key + ranks[i - 1].extent->block)
      return false;
  const struct rank *last = &ranks[count - 1];
  return last->key + last->extent->block <= ranks[0].key + stride;
}

/* Finds two that overlap, of ranks by address. */
static bool ranks_overlap(const struct rank *ranks, uint32_t count,
                          const struct extent *pair[2]) {
  for (uint32_t i = 0; i < count; i++) {
    uint64_t end = extent_end(ranks[i].extent);
    for (uint32_t j = i + 1; j < count && ranks[j].key < end; j++)
      if (extents_overlap(ranks[i].extent, ranks[j].extent)) {
        pair[0] = ranks[i].extent;
        pair[1] = ranks[j].extent;
        return true;
      }
  }
  return false;
}

int extents_overlapping(struct perigee_engine *engine, const struct extent *e,
                        uint32_t count, const struct extent *pair[2]) {
  if (count < 2 || extents_ascend(e, count))
    return 0;
  struct rank *ranks = spares_take(&engine->spares, count * sizeof *ranks);
  if (!ranks)
    return PERIGEE_NO_MEMORY;
  ranks_sort(ranks, e, count, 0);
  bool apart = ranks_are_apart(ranks, count);
  uint64_t stride = apart ? 0 : extents_stride(e, count);
  if (stride) {
    ranks_sort(ranks, e, count, stride);
    apart = ranks_are_apart_within(ranks, count, stride);
    if (!apart)
      ranks_sort(ranks, e, count, 0);
  }
  bool found = !apart && ranks_overlap(ranks, count, pair);
  spares_give(ranks);
  return found;
}

/* ---- Checks --------------------------------------------------------------- */

static struct extent extent_of(const struct perigee_slice *s) {
  struct extent e = {.base = s->region->pointer + s->offset,
                     .block = s->length,
                     .count = s->count,
                     .stride = s->stride,
                     .area = &s->region->area};
  if (e.count == 1 || e.stride == e.block) {
    e.block = e.stride = s->length * s->count;
    e.count = 1;
  }
  return e;
}

/* The number of the first slice of the list that overlaps the extent, and has
 * bytes of the other one; several slices may share an extent. */
static uint32_t list_number(const struct perigee_slice *list,
                            const struct extent *of, const struct extent *e) {
  uint64_t bytes = 0;
  for (uint32_t i = 0;; i++) {
    struct extent own = extent_of(&list[i]);
    bytes += own.block * own.count;
    if (bytes > of->begin && own.block > 0 && extents_overlap(&own, e))
      return i + 1;
  }
}

static int list_refuse_overlap(struct perigee_engine *engine,
                               const struct perigee_slice *list,
                               const struct extent *pair[2]) {
  uint32_t a = list_number(list, pair[0], pair[1]);
  uint32_t b = list_number(list, pair[1], pair[0]);
  return fail(engine, PERIGEE_INVALID,
              "slices %u and %u of a list overlap, and bytes are written there",
              a < b ? a : b, a < b ? b : a);
}

static int entry_check(struct perigee_engine *engine,
                       const struct perigee_slice *list, uint32_t i,
                       bool written) {
  const struct perigee_slice *s = &list[i];
  const struct perigee_region *r = s->region;
  if (slice_is_list(s))
    return fail(engine, PERIGEE_INVALID, "slice %u of a list is a list", i + 1);
  if (!r)
    return fail(engine, PERIGEE_INVALID,
                "slice %u of a list has no region: it is NULL", i + 1);
  if (r->closed)
    return fail(engine, PERIGEE_STALE,
                "slice %u of a list: the local region was closed", i + 1);
  if (!region_valid(r))
    return fail(engine, PERIGEE_STALE, "slice %u of a list: %s", i + 1,
                REGION_INVALID);
  if (r->memory != list[0].region->memory)
    return fail(
        engine, PERIGEE_INVALID,
        "slice %u of a list is in memory of kind \"%s\", device %u, and "
        "slice 1 of \"%s\", device %u",
        i + 1, r->memory->kind->name, r->memory->device,
        list[0].region->memory->kind->name, list[0].region->memory->device);
  if (shape_total(s->length, s->count) == UINT64_MAX ||
      !shape_fits(r->length, s->offset, s->length, s->count, s->stride))
    return fail(engine, PERIGEE_RANGE,
                "slice %u of a list lies outside of its region of %llu bytes",
                i + 1, (unsigned long long)r->length);
  if (written && s->count > 1 && s->stride < s->length)
    return fail(engine, PERIGEE_INVALID,
                "the blocks of slice %u of a list overlap, and bytes are "
                "written there",
                i + 1);
  return PERIGEE_OK;
}

/* ---- Making --------------------------------------------------------------- */

/* Does the extent go on where the one before it ends? */
static bool extent_follows(const struct extent *before,
                           const struct extent *e) {
  return before->count == 1 && e->count == 1 && before->area == e->area &&
         before->base + before->block == e->base;
}

static void spread_add(struct spread *s, const struct perigee_slice *slice) {
  struct extent e = extent_of(slice);
  uint64_t total = e.block * e.count;
  if (total == 0)
    return;
  e.begin = s->payload.total;
  s->payload.total += total;
  struct extent *before = s->count ? &s->extents[s->count - 1] : NULL;
  if (before && extent_follows(before, &e))
    before->block = before->stride = before->block + total;
  else
    s->extents[s->count++] = e;
}

/* Describes the payload by its extents, or by the only one. */
static void spread_describe(struct spread *s) {
  struct payload *p = &s->payload;
  const struct extent *first = s->extents;
  uint64_t blocks = 0;
  p->base = s->count ? first->base : NULL;
  p->area = s->count ? first->area : NULL;
  p->block = p->stride = p->total;
  p->count = 1;
  if (s->count == 1) {
    p->block = first->block;
    p->count = first->count;
    p->stride = first->stride;
  }
  if (s->count < 2)
    return;
  for (uint32_t i = 0; i < s->count; i++) {
    blocks += s->extents[i].count;
    if (s->extents[i].area != first->area)
      p->area = NULL;
  }
  p->block = p->total / blocks;
  p->stride = 0;
  p->count = s->count;
  p->extents = s->extents;
}

static int spread_fill(struct perigee_engine *engine, struct spread *s,
                       const struct perigee_slice *list, uint32_t n,
                       bool written) {
  const struct extent *pair[2];
  for (uint32_t i = 0; i < n; i++) {
    int status = entry_check(engine, list, i, written);
    if (status < 0)
      return status;
    spread_add(s, &list[i]);
    if (s->payload.total > PAYLOAD_MAX)
      return fail(engine, PERIGEE_TOO_LARGE,
                  "a list of more than 2^40 bytes: slice %u passes that",
                  i + 1);
  }
  int overlaps =
      written ? extents_overlapping(engine, s->extents, s->count, pair) : 0;
  return overlaps == 1 ? list_refuse_overlap(engine, list, pair) : overlaps;
}

static void spread_use(struct spread *s, uint32_t by) {
  for (uint32_t i = 0; i < spread_regions(s); i++)
    CONTAINER(s->extents[i].area, struct perigee_region, area)->users += by;
}

const struct perigee_slice *list_slices(struct perigee_engine *engine,
                                        const struct perigee_slice *list,
                                        uint32_t *n, int *status) {
  uint64_t count = list->count - PERIGEE_LIST;
  *status = PERIGEE_OK;
  if (count < 1 || count > PERIGEE_LIST_MOST)
    *status =
        fail(engine, PERIGEE_INVALID, "a list has 1 to %d slices, not %llu",
             PERIGEE_LIST_MOST, (unsigned long long)count);
  else if (!list->list)
    *status = fail_missing(engine, "list of slices");
  *n = (uint32_t)count;
  return *status < 0 ? NULL : list->list;
}

int spread_make(struct perigee_engine *engine, const struct perigee_slice *list,
                bool written, struct spread **out) {
  uint32_t n;
  int status;
  const struct perigee_slice *slices = list_slices(engine, list, &n, &status);
  return slices ? spread_of_slices(engine, slices, n, written, out) : status;
}

int spread_of_slices(struct perigee_engine *engine,
                     const struct perigee_slice *slices, uint32_t n,
                     bool written, struct spread **out) {
  struct spread *s =
      spares_take(&engine->spares, sizeof *s + n * sizeof s->extents[0]);
  if (!s)
    return PERIGEE_NO_MEMORY;
  *s = (struct spread){.written = written};
  int status = spread_fill(engine, s, slices, n, written);
  if (status < 0) {
    spares_give(s);
    return status;
  }
  s->payload.memory = slices[0].region->memory;
  spread_describe(s);
  spread_use(s, 1);
  *out = s;
  return PERIGEE_OK;
}

void spread_free(struct spread *s) {
  spread_use(s, (uint32_t)-1);
  spares_give(s);
}

/* ---- A part of one --------------------------------------------------------- */

static void spread_add_cut(struct spread *s, struct extent e, uint64_t block,
                           uint64_t count, uint64_t skip) {
  if (block == 0 || count == 0)
    return;
  e.base += skip;
  e.block = block;
  e.count = count;
  e.stride = count > 1 ? e.stride : block;
  e.begin = s->payload.total;
  s->payload.total += block * count;
  s->extents[s->count++] = e;
}

/* Adds n bytes of an extent, from its byte `at` on: the end of a block that was
 * begun, whole blocks, and the begin of another. */
static void spread_add_part(struct spread *s, const struct extent *e,
                            uint64_t at, uint64_t n) {
  uint64_t within = at % e->block, base = at / e->block * e->stride;
  uint64_t head = within ? least(e->block - within, n) : 0;
  spread_add_cut(s, *e, head, 1, base + within);
  if (head > 0)
    base += e->stride;
  uint64_t whole = (n - head) / e->block, rest = (n - head) % e->block;
  spread_add_cut(s, *e, e->block, whole, base);
  spread_add_cut(s, *e, rest, 1, base + whole * e->stride);
}

/* A transfer may have as many parts as extents. So each part takes the room and
 * the time of its own extents only. */
int spread_cut(struct perigee_engine *engine, const struct spread *from,
               uint64_t begin, uint64_t end, bool written,
               struct spread **out) {
  enum { PIECES = 3 };
  uint64_t first_one = extent_number(from->extents, from->count, begin);
  uint64_t last_one = extent_number(from->extents, from->count, end - 1);
  uint64_t most = PIECES * (last_one - first_one + 1);
  struct spread *s =
      spares_take(&engine->spares, sizeof *s + most * sizeof s->extents[0]);
  if (!s)
    return PERIGEE_NO_MEMORY;
  *s = (struct spread){.written = written};
  for (uint64_t i = first_one; i <= last_one; i++) {
    const struct extent *e = &from->extents[i];
    uint64_t first = greatest(begin, e->begin);
    uint64_t last = least(end, e->begin + e->block * e->count);
    if (first < last)
      spread_add_part(s, e, first - e->begin, last - first);
  }
  s->payload.memory = from->payload.memory;
  spread_describe(s);
  spread_use(s, 1);
  *out = s;
  return PERIGEE_OK;
}

/* ---- Those of an operation ------------------------------------------------ */

void spread_give(struct operation *op, struct spread *s) {
  s->next = op->spreads;
  op->spreads = s;
  op->has_more = true;
}

int spread_keep(struct operation *op, const struct perigee_slice *list,
                bool written) {
  struct spread *s = NULL;
  if (spread_of(op, written))
    return PERIGEE_OK;
  int status = spread_make(op->engine, list, written, &s);
  if (s)
    spread_give(op, s);
  return status;
}

const struct spread *spread_of(const struct operation *op, bool written) {
  const struct spread *s = op->spreads;
  while (s && s->written != written)
    s = s->next;
  return s;
}

__attribute__((noinline)) void spreads_free(struct operation *op) {
  while (op->spreads) {
    struct spread *s = op->spreads;
    op->spreads = s->next;
    spread_free(s);
  }
}
