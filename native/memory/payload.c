/* SPDX-License-Identifier: Apache-2.0
 *
 * payload.c - walking over user memory, and copying it.
 */
#include "base/least.h"
#include "memory.h"

#include <stdbool.h>
#include <string.h>

/* ---- Payloads ------------------------------------------------------------ */

void payload_bytes(struct payload *p, const void *bytes, uint64_t length) {
  *p = (struct payload){.memory = &memory_host,
                        .base = (uint8_t *)(uintptr_t)bytes,
                        .block = length,
                        .count = 1,
                        .stride = length,
                        .total = length};
}

/* ---- Extents -------------------------------------------------------------- */

static bool extent_has(const struct extent *extents, uint64_t count, uint64_t i,
                       uint64_t at) {
  return extents[i].begin <= at &&
         (i + 1 == count || extents[i + 1].begin > at);
}

/* Extents are mostly as long as each other, so the first look is at the one that
 * has the byte then. */
uint64_t extent_number(const struct extent *extents, uint64_t count,
                       uint64_t at) {
  uint64_t low = 0, high = count;
  uint64_t mean = count > 1 ? extents[count - 1].begin / (count - 1) : 0;
  uint64_t likely = mean > 0 ? least(at / mean, count - 1) : 0;
  if (extent_has(extents, count, likely, at))
    return likely;
  while (high - low > 1) {
    uint64_t middle = low + (high - low) / 2;
    if (extents[middle].begin <= at)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* Returns the extent with byte `at`. */
static const struct extent *extent_with(const struct payload *p, uint64_t at) {
  return &p->extents[extent_number(p->extents, p->count, at)];
}

/* The extent as a payload, at the payload's byte `at`. It ends where the payload
 * does, which may be before the last extent is over. */
static struct payload extent_alone(const struct payload *p,
                                   const struct extent *e, uint64_t at) {
  uint64_t total = e->block * e->count;
  return (struct payload){.memory = p->memory,
                          .area = e->area,
                          .base = e->base,
                          .block = e->block,
                          .count = e->count,
                          .stride = e->stride,
                          .total = least(total, p->total - e->begin),
                          .done = at - e->begin};
}

static struct payload payload_extent_at(const struct payload *p, uint64_t at) {
  return extent_alone(p, extent_with(p, at), at);
}

struct payload payload_extent(const struct payload *p) {
  return payload_extent_at(p, p->done);
}

struct area *payload_area(const struct payload *p, uint64_t at, uint64_t *end) {
  *end = p->total;
  if (p->area || !p->extents || at >= p->total)
    return p->area;
  const struct extent *e = extent_with(p, at);
  *end = least(p->total, e->begin + e->block * e->count);
  return e->area;
}

/* A position in a payload that may have extents, and the shape that is there. */
struct cursor {
  const struct payload *of;
  const struct extent *extent;
  struct payload here;
};

static void cursor_set(struct cursor *c, const struct payload *p, uint64_t at) {
  c->of = p;
  c->extent = p->extents ? extent_with(p, at) : NULL;
  if (c->extent) {
    c->here = extent_alone(p, c->extent, at);
  } else {
    c->here = *p;
    c->here.done = at;
  }
}

static uint64_t cursor_left(const struct cursor *c) {
  return c->here.total - c->here.done;
}

/* Goes on by n bytes, which are not more than are left here; there are bytes
 * behind them. */
static void cursor_forward(struct cursor *c, uint64_t n) {
  c->here.done += n;
  if (!c->extent || cursor_left(c) > 0)
    return;
  c->extent++;
  c->here = extent_alone(c->of, c->extent, c->extent->begin);
}

/* ---- Runs ----------------------------------------------------------------- */

static inline uint8_t *payload_run_at(const struct payload *p, uint64_t at,
                                      uint64_t *length);

/* Of what is not one piece, or has ended. */
static __attribute__((noinline)) uint8_t *
payload_run_apart(const struct payload *p, uint64_t at, uint64_t *length) {
  if (at >= p->total) {
    *length = 0;
    return p->base;
  }
  if (p->extents) {
    struct payload here = payload_extent_at(p, at);
    return payload_run_at(&here, here.done, length);
  }
  uint64_t block = at / p->block, within = at % p->block;
  *length = least(p->block - within, p->total - at);
  return p->base + block * p->stride + within;
}

static inline uint8_t *payload_run_at(const struct payload *p, uint64_t at,
                                      uint64_t *length) {
  if (p->count != 1 || at >= p->total)
    return payload_run_apart(p, at, length);
  *length = p->total - at;
  return p->base + at;
}

uint8_t *payload_run(const struct payload *p, uint64_t *length) {
  return payload_run_at(p, p->done, length);
}

/* ---- By the CPU ----------------------------------------------------------- */

/* A place in a payload: the bytes left in its block, and the gap to the next,
 * which is less than 0 where blocks overlap. */
struct place {
  uint8_t *at;
  uint64_t left, block;
  int64_t gap;
};

static struct place payload_place(const struct payload *p, uint64_t at) {
  uint64_t left;
  uint8_t *run = payload_run_at(p, at, &left);
  uint64_t stride = p->count > 1 ? p->stride : p->block; /* else it is any */
  return (struct place){run, left, p->block, (int64_t)(stride - p->block)};
}

static bool place_at_block(const struct place *p, uint64_t n) {
  return p->left == n && p->block == n;
}

/* Returns the number of whole blocks of n bytes ahead, and their distance
 * (*step). */
static uint64_t place_ahead(const struct place *p, uint64_t n, uint64_t rest,
                            uint64_t *step) {
  bool blocks = place_at_block(p, n);
  *step = blocks ? n + (uint64_t)p->gap : n;
  return (blocks || rest < p->left ? rest : p->left) / n;
}

/* Copies blocks; those of a cache line here, as a call would cost as much. Long
 * ones go by the bundle, if there is one. */
static void payload_copy_blocks(uint8_t *to, uint64_t to_step,
                                const uint8_t *from, uint64_t from_step,
                                uint64_t n, uint64_t count,
                                struct bundle *bundle) {
  if (n == 64)
    for (; count > 0; count--, to += to_step, from += from_step)
      __builtin_memcpy(to, from, 64);
  else if (bundle && n >= STREAM_LEAST)
    for (; count > 0; count--, to += to_step, from += from_step)
      bundle_add(bundle, to, from, n);
  else
    for (; count > 0; count--, to += to_step, from += from_step)
      copy_any(to, from, n);
}

/* Moves the place past count blocks of n bytes. */
static void place_forward(struct place *p, uint64_t n, uint64_t step,
                          uint64_t count) {
  p->at += step * count;
  if (place_at_block(p, n))
    return;
  p->left -= n * count;
  if (p->left == 0) {
    p->at += p->gap;
    p->left = p->block;
  }
}

/* Returns the bytes of rest that were not copied: 0 with checked shapes. */
static uint64_t payload_copy_shapes(const struct payload *to,
                                    const struct payload *from, uint64_t rest,
                                    struct bundle *bundle) {
  struct place a = payload_place(to, to->done),
               b = payload_place(from, from->done);
  while (rest > 0) {
    uint64_t n = least(least(a.left, b.left), rest), a_step, b_step;
    if (n == 0)
      break;
    uint64_t k = place_ahead(&a, n, rest, &a_step);
    k = least(k, place_ahead(&b, n, rest, &b_step));
    payload_copy_blocks(a.at, a_step, b.at, b_step, n, k, bundle);
    rest -= n * k;
    if (rest == 0)
      break;
    place_forward(&a, n, a_step, k);
    place_forward(&b, n, b_step, k);
  }
  return rest;
}

/* The same where a side has extents: one shape after another. */
static uint64_t payload_copy_extents(struct payload *to,
                                     const struct payload *from, uint64_t rest,
                                     struct bundle *bundle) {
  struct cursor a, b;
  cursor_set(&a, to, to->done);
  cursor_set(&b, from, from->done);
  while (rest > 0) {
    uint64_t n = least(rest, least(cursor_left(&a), cursor_left(&b)));
    if (n == 0)
      break;
    if (a.here.count == 1 && b.here.count == 1 && bundle && n >= STREAM_LEAST)
      bundle_add(bundle, a.here.base + a.here.done, b.here.base + b.here.done,
                 n);
    else if (a.here.count == 1 && b.here.count == 1)
      bulk_copy(a.here.base + a.here.done, b.here.base + b.here.done, n,
                to->total, &to->way);
    else if (payload_copy_shapes(&a.here, &b.here, n, bundle) > 0)
      break;
    rest -= n;
    if (rest == 0)
      break;
    cursor_forward(&a, n);
    cursor_forward(&b, n);
  }
  return rest;
}

/* Copies what is not one piece on both sides. */
static __attribute__((noinline)) uint64_t
payload_copy_apart(struct payload *to, const struct payload *from,
                   uint64_t rest) {
  struct bundle blocks, *bundle = NULL;
  if (to->total >= bulk_vast || to->vast) {
    bundle = &blocks;
    bundle_begin(bundle);
  }
  rest = to->extents || from->extents
             ? payload_copy_extents(to, from, rest, bundle)
             : payload_copy_shapes(to, from, rest, bundle);
  if (bundle)
    bundle_end(bundle);
  return rest;
}

uint64_t payload_copy(struct payload *to, struct payload *from,
                      uint64_t limit) {
  uint64_t rest =
      least(limit, least(to->total - to->done, from->total - from->done));
  if (rest == 0)
    return 0;
  if (to->done % BULK_TRY == 0)
    to->way = BULK_UNKNOWN;
  if (to->count == 1 && from->count == 1)
    bulk_copy(to->base + to->done, from->base + from->done, rest, to->total,
              &to->way);
  else
    rest -= payload_copy_apart(to, from, rest);
  to->done += rest;
  from->done += rest;
  return rest;
}

/* ---- On the memory's own time -------------------------------------------- */

/* Makes the largest copy possible of at most rest bytes ahead. It first ends a
 * block that was begun; whole blocks follow. So many blocks take three copies
 * at most, whatever the shape of either side. */
static uint64_t copies_cut(const struct place *to, const struct place *from,
                           uint64_t rest, struct memory_copy *copy) {
  bool inside = !copy->to_memory->direct && !copy->from_memory->direct;
  uint64_t n = least(least(to->left, from->left), rest);
  if (n == 0)
    return 0;
  uint64_t k = place_ahead(to, n, rest, &copy->to_stride);
  uint64_t l = place_ahead(from, n, rest, &copy->from_stride);
  copy->to = to->at;
  copy->from = from->at;
  copy->block = n;
  copy->count = least(least(k, l), inside ? COPY_BLOCKS : k);
  return copy->block * copy->count;
}

/* Returns how many bytes the kind takes in one copy from or to there. Only what
 * is in one piece can be more than usual. */
static uint64_t copies_most(const struct memory_context *by,
                            const struct cursor *host, uint64_t on,
                            const uint8_t *at) {
  uint64_t end;
  struct area *area = payload_area(host->of, host->of->done + on, &end);
  return area && area->pins && host->here.count == 1 && by->kind->copies->most
             ? by->kind->copies->most(by, area, at)
             : COPY_PIECE;
}

uint64_t payload_copy_ahead(const struct payload *to,
                            const struct payload *from, uint64_t on,
                            uint64_t limit, struct memory_copy *copy) {
  struct cursor a, b;
  cursor_set(&a, to, to->done + on);
  cursor_set(&b, from, from->done + on);
  limit = least(limit, least(cursor_left(&a), cursor_left(&b)));
  struct place to_place = payload_place(&a.here, a.here.done),
               from_place = payload_place(&b.here, b.here.done);
  copy->to_memory = to->memory;
  copy->from_memory = from->memory;
  limit = least(limit, to->memory->direct
                           ? copies_most(from->memory, &a, on, to_place.at)
                       : from->memory->direct
                           ? copies_most(to->memory, &b, on, from_place.at)
                           : COPY_LONG);
  return copies_cut(&to_place, &from_place, limit, copy);
}

/* Asks for one copy of at most limit bytes, `on` bytes past the positions.
 * Returns its bytes, 0 (no more now) or a status. */
static int64_t copies_ask_one(struct copies *c, const struct payload *to,
                              const struct payload *from, uint64_t on,
                              uint64_t limit) {
  struct memory_copy copy;
  uint64_t length = payload_copy_ahead(to, from, on, limit, &copy);
  if (length == 0)
    return 0;
  copy.waited_for = c->waited_for;
  const struct memory_context *by =
      to->memory->direct ? from->memory : to->memory;
  struct copy_ticket *t = &c->tickets[(c->first + c->count) % COPIES_MOST];
  int status = by->kind->copies->copy(by, &copy, &t->ticket);
  c->again = status == PERIGEE_AGAIN;
  if (status < 0)
    return c->again ? 0 : status;
  t->by = by;
  t->length = length;
  c->count++;
  c->asked += length;
  return (int64_t)length;
}

/* Asks for those of the next limit bytes that were not asked for yet. */
static void copies_ask(struct payload *p, const struct payload *to,
                       const struct payload *from, uint64_t limit) {
  struct copies *c = p->copies;
  int64_t n = 1;
  while (n > 0 && c->count < COPIES_MOST && c->asked - p->done < limit) {
    uint64_t on = c->asked - p->done;
    n = copies_ask_one(c, to, from, on, limit - on);
  }
  if (n < 0)
    c->status = (int)n;
}

/* Takes back the first copy if it has ended: returns its bytes, 0 or a
 * status. */
static int64_t copies_take_first(struct copies *c) {
  const struct copy_ticket *t = &c->tickets[c->first];
  int state = t->by->kind->copies->finished(t->by, t->ticket);
  if (state == 0)
    return 0;
  c->first = (uint8_t)((c->first + 1) % COPIES_MOST);
  c->count--;
  return state < 0 ? state : (int64_t)t->length;
}

/* Returns the bytes that have arrived, in order, or the status of a failed
 * copy. */
static int64_t copies_collect(struct copies *c) {
  uint64_t moved = 0;
  int64_t n = 1;
  while (c->count > 0 && c->status == 0 && (n = copies_take_first(c)) > 0)
    moved += (uint64_t)n;
  if (n < 0)
    c->status = (int)n;
  return moved > 0 ? (int64_t)moved : c->status;
}

static int64_t payload_move_async(struct payload *to, struct payload *from,
                                  uint64_t limit) {
  struct payload *p = to->memory->direct ? from : to;
  limit = least(limit, least(to->total - to->done, from->total - from->done));
  if (limit == 0)
    return 0;
  if (!p->copies) /* its owner did not set them */
    return PERIGEE_INVALID;
  if (p->copies->status == 0)
    copies_ask(p, to, from, limit);
  int64_t moved = copies_collect(p->copies);
  if (moved > 0) {
    to->done += (uint64_t)moved;
    from->done += (uint64_t)moved;
  }
  return moved;
}

bool payload_quiet(struct payload *p) {
  struct copies *c = p->copies;
  if (!c)
    return true;
  c->again = false;
  while (c->count > 0 && copies_take_first(c) != 0)
    ;
  return c->count == 0;
}

/* ---- Both ------------------------------------------------------------------ */

int64_t payload_move(struct payload *to, struct payload *from, uint64_t limit) {
  if (to->memory->direct && from->memory->direct)
    return (int64_t)payload_copy(to, from, limit);
  if (!to->memory->direct && !from->memory->direct &&
      to->memory->kind != from->memory->kind)
    return PERIGEE_UNSUPPORTED;
  return payload_move_async(to, from, limit);
}

/* Returns whether the CPU can move the bytes as one piece, the common case. */
static inline bool payload_in_one_piece(const struct payload *p,
                                        uint64_t length) {
  return p->memory->direct && p->count == 1 && length > 0 &&
         length <= p->total - p->done;
}

int64_t payload_put(struct payload *p, const uint8_t *from, uint64_t length) {
  struct payload bytes;
  if (payload_in_one_piece(p, length)) {
    copy_any(p->base + p->done, from, length);
    p->done += length;
    return (int64_t)length;
  }
  payload_bytes(&bytes, from, length);
  return payload_move(p, &bytes, length);
}

int64_t payload_stream(struct payload *p, uint8_t *to, uint64_t length) {
  if (length < STREAM_LEAST || !payload_in_one_piece(p, length))
    return payload_take(p, to, length);
  bulk_stream(to, p->base + p->done, length);
  p->done += length;
  return (int64_t)length;
}

int64_t payload_take(struct payload *p, uint8_t *to, uint64_t length) {
  struct payload bytes;
  if (payload_in_one_piece(p, length)) {
    copy_any(to, p->base + p->done, length);
    p->done += length;
    return (int64_t)length;
  }
  payload_bytes(&bytes, to, length);
  return payload_move(&bytes, p, length);
}
