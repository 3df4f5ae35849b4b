/* SPDX-License-Identifier: Apache-2.0
 *
 * fetch.c - payloads of messages: the owner names the memory and where in it
 * the bytes lie, and the receiver copies them from there to where they belong.
 *
 * A destination that others can see gets a byte only after the operation was
 * found live behind the copy of it, so such bytes pass through a block of host
 * memory. So do those for memory that no device copies to: of another kind, or
 * of a device that the peer's memory cannot be opened for. Other destinations are
 * written directly: bytes of an operation that has ended meanwhile are dropped
 * when all have come.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda_lane.h"

/* The address of a place: number of the memory, and offset in it. */
enum { SOURCE_ID = 40 };
static const uint64_t SOURCE_OFFSET = (UINT64_C(1) << SOURCE_ID) - 1;

/* ---- Marks --------------------------------------------------------------- */

static void link_mark(struct lane *lane, uint16_t operation,
                      uint32_t generation) {
  if (lane->own && operation < lane->options.operations)
    atomic_store_explicit(&lane->own->marks[operation], generation,
                          memory_order_release);
}

static bool link_live(struct lane *lane, uint16_t operation,
                      uint32_t generation) {
  return lane->peer && operation < lane->peer_operations &&
         atomic_load_explicit(&lane->peer->marks[operation],
                              memory_order_acquire) == generation;
}

/* ---- The owner ----------------------------------------------------------- */

/* The first lane has what cannot be named, or what the peer has not opened. */
static int link_expose(struct lane *lane, struct exposure *e,
                       struct payload *payload) {
  struct area *area = payload->area;
  uint32_t id;
  if (payload->extents) {
    int status = list_expose(lane, e, payload);
    if (status == PERIGEE_OK)
      link_mark(lane, e->operation, e->generation);
    e->payload = NULL;
    return status;
  }
  if (!area || exported_tell(lane, area, &id) < 0 ||
      !exported_is_open(lane, id))
    return PERIGEE_UNSUPPORTED;
  link_mark(lane, e->operation, e->generation);
  uint64_t offset = (uint64_t)(payload->base - area->base);
  e->source = (struct source){SOURCE_KIND, (uint64_t)id << SOURCE_ID | offset,
                              payload->block, payload->count, payload->stride};
  e->payload = NULL;
  return PERIGEE_OK;
}

static int64_t link_feed(struct lane *lane, struct exposure *exposure) {
  (void)lane, (void)exposure;
  return 0;
}

static void link_conceal(struct lane *lane, struct exposure *exposure) {
  list_conceal(lane, exposure);
}

/* ---- The receiver -------------------------------------------------------- */

enum { BOUNCE = 1 << 20 };

/* A fetch, in its own bytes. */
struct pulling {
  struct job job;
  uint64_t asked;
  enum pulls { UNDECIDED, DIRECTLY, BY_BLOCKS } how;
  uint8_t *bounce;
  uint64_t held, put; /* bytes that the block has, or will; that left it */
  struct listing *list;
};
_Static_assert(sizeof(struct pulling) <= FETCH_OWN, "there is room for it");

static struct pulling *pulling_of(struct fetch *f) {
  return (struct pulling *)(void *)f->own;
}

/* Do the blocks lie within length bytes, and are they `total` in all? */
static bool source_fits(const struct source *s, uint64_t offset,
                        uint64_t length, uint64_t total) {
  uint64_t all, last, end;
  return s->block > 0 && s->count > 0 &&
         !__builtin_mul_overflow(s->block, s->count, &all) && all == total &&
         !__builtin_mul_overflow(s->count - 1, s->stride, &last) &&
         !__builtin_add_overflow(last, s->block, &end) && offset <= length &&
         end <= length - offset;
}

/* Finds the place with byte `at`, and the byte that it begins with. Returns the
 * place's number of bytes. */
static uint64_t source_place(struct fetch *f, uint64_t at, struct source *s,
                             uint64_t *id, uint64_t *begin) {
  struct listing *list = pulling_of(f)->list;
  *begin = 0;
  if (list) {
    *s = listing_at(list, at, id, begin);
    return s->block * s->count;
  }
  *s = f->source;
  *id = s->address >> SOURCE_ID;
  s->address &= SOURCE_OFFSET;
  return f->total;
}

/* Makes the payload of the place with byte `at` of what the source names, from
 * that byte on; NULL: no memory has such bytes. */
static struct imported *source_payload(struct lane *lane, struct fetch *f,
                                       uint64_t at, struct payload *p,
                                       uint64_t *begin) {
  struct source s;
  uint64_t id, total = source_place(f, at, &s, &id, begin);
  struct imported *m = imported_of(lane, (uint32_t)id);
  if (s.kind != SOURCE_KIND || !m ||
      !source_fits(&s, s.address, m->length, total))
    return NULL;
  *p = (struct payload){.base = (uint8_t *)(uintptr_t)s.address,
                        .block = s.block,
                        .count = s.count,
                        .stride = s.stride,
                        .total = total,
                        .done = at - *begin};
  return m;
}

/* Returns the memory as it is opened for its own device, or for another one. */
static const struct opening *source_home(struct lane *lane,
                                         struct imported *m) {
  const struct memory_context *home = imported_home(lane, m);
  return home ? imported_open(lane, m, home) : NULL;
}

/* Returns the memory as it is opened for that destination. A copy from device to
 * device by both names the memory's own. Host memory is reached by any. */
static const struct opening *source_open(struct lane *lane, struct imported *m,
                                         const struct memory_context *into) {
  const struct opening *o;
  if (into->direct)
    return (o = source_home(lane, m)) ? o : imported_opened(m);
  if (!link_is_for(into))
    return NULL;
  if ((o = imported_open(lane, m, into)))
    return o;
  o = source_home(lane, m);
  return o && (int)o->by->device == m->device ? o : NULL;
}

/* Asks for copies of what follows in one place, into that payload. Adds the
 * blocks of the place to *blocks. */
static int pulling_ask_place(struct lane *lane, struct fetch *f,
                             struct payload *into, uint64_t *blocks) {
  struct pulling *p = pulling_of(f);
  struct payload from;
  uint64_t begin;
  struct imported *m = source_payload(lane, f, p->asked, &from, &begin);
  if (!m)
    return PERIGEE_PROTOCOL;
  const struct opening *o = source_open(lane, m, into->memory);
  if (!o)
    return PERIGEE_UNSUPPORTED;
  int status = link_copies(lane, &p->job, m, o, &from, into, false);
  p->asked = begin + from.done;
  *blocks += from.count;
  return status;
}

/* Asks for copies into that payload: 1, 0 (not for all now), or a status. */
static int pulling_ask(struct lane *lane, struct fetch *f,
                       struct payload *into) {
  const struct pulling *p = pulling_of(f);
  uint64_t blocks = 0;
  int status = 1;
  while (status == 1 && p->asked < f->total && into->done < into->total)
    status =
        blocks < LINK_BLOCKS ? pulling_ask_place(lane, f, into, &blocks) : 0;
  link_flush(lane);
  return status;
}

/* Returns the status of a fetch that cannot go on, else what was moved. */
static int64_t pulling_moved(struct lane *lane, struct fetch *f, int status) {
  struct pulling *p = pulling_of(f);
  bool live = link_live(lane, f->operation, f->generation);
  if (p->job.status < 0)
    status = p->job.status;
  return status < 0 ? (live ? status : PERIGEE_CANCELLED) : 0;
}

static int64_t fetch_whole(struct lane *lane, struct fetch *f) {
  struct pulling *p = pulling_of(f);
  struct payload into = *f->into;
  int status = 1;
  into.done = p->asked;
  if (p->asked < f->total)
    status = pulling_ask(lane, f, &into);
  link_look(lane);
  int64_t failed = pulling_moved(lane, f, status);
  if (failed < 0)
    return failed;
  uint64_t moved = p->job.done - f->done;
  f->done = p->job.done;
  payload_seek(f->into, f->done);
  return (int64_t)moved;
}

/* Fills the block once it is empty: 1, 0 (not yet), or a status. */
static int64_t bounce_fill_up(struct lane *lane, struct fetch *f) {
  struct pulling *p = pulling_of(f);
  if (p->put == p->held && p->job.pending == 0) {
    p->put = 0;
    p->held = f->total - f->done < BOUNCE ? f->total - f->done : BOUNCE;
  }
  struct payload block;
  payload_bytes(&block, p->bounce, p->held);
  block.done = p->asked - (f->done - p->put);
  int status = 1;
  if (block.done < block.total)
    status = pulling_ask(lane, f, &block);
  link_look(lane);
  int64_t failed = pulling_moved(lane, f, status);
  if (failed < 0)
    return failed;
  return status == 1 && p->job.pending == 0;
}

static int64_t fetch_by_blocks(struct lane *lane, struct fetch *f) {
  struct pulling *p = pulling_of(f);
  if (!p->bounce) {
    p->bounce = lane->spare ? lane->spare : malloc(BOUNCE);
    lane->spare = NULL;
  }
  if (!p->bounce)
    return PERIGEE_NO_MEMORY;
  int64_t status = bounce_fill_up(lane, f);
  if (status <= 0)
    return status;
  if (!link_live(lane, f->operation, f->generation))
    return PERIGEE_CANCELLED;
  int64_t moved = payload_put(f->into, p->bounce + p->put, p->held - p->put);
  if (moved > 0) {
    p->put += (uint64_t)moved;
    f->done += (uint64_t)moved;
  }
  return moved;
}

/* What does not exist is found out by the first copy. */
static bool fetch_is_far(struct lane *lane, const struct fetch *f,
                         uint64_t id) {
  struct imported *m = imported_of(lane, (uint32_t)id);
  return m && !source_open(lane, m, f->into->memory);
}

static bool fetch_is_far_somewhere(struct lane *lane, struct fetch *f) {
  const struct listing *list = pulling_of(f)->list;
  uint64_t id, last = LINK_MEMORIES;
  bool far = !list && fetch_is_far(lane, f, f->source.address >> SOURCE_ID);
  for (uint32_t i = 0; list && i < listing_count(list) && !far; i++) {
    listing_place(list, i, &id);
    far = id != last && fetch_is_far(lane, f, id);
    last = id;
  }
  return far;
}

static int fetch_begin(struct lane *lane, struct fetch *f) {
  struct pulling *p = pulling_of(f);
  int status = PERIGEE_OK;
  p->job.apart = true; /* one place, or a list whose places do not overlap */
  if (f->source.kind == SOURCE_LIST)
    status = listing_take(lane, &f->source, f->total, &p->list);
  if (status < 0)
    return status;
  p->how = f->careful || fetch_is_far_somewhere(lane, f) ? BY_BLOCKS : DIRECTLY;
  return PERIGEE_OK;
}

static int64_t link_fetch(struct lane *lane, struct fetch *f) {
  const struct pulling *p = pulling_of(f);
  if (lane->over)
    return PERIGEE_PEER_LOST;
  int status = p->how == UNDECIDED ? fetch_begin(lane, f) : PERIGEE_OK;
  if (status < 0)
    return pulling_moved(lane, f, status);
  return p->how == BY_BLOCKS ? fetch_by_blocks(lane, f) : fetch_whole(lane, f);
}

static bool link_fetch_end(struct lane *lane, struct fetch *f) {
  struct pulling *p = pulling_of(f);
  if (!link_quiesce(lane, &p->job) || !payload_quiet(f->into))
    return false;
  if (lane->spare)
    free(p->bounce);
  else
    lane->spare = p->bounce;
  p->bounce = NULL;
  if (p->list)
    listing_give(lane, p->list);
  p->list = NULL;
  return true;
}

const struct transport_payloads link_payloads = {
    .mark = link_mark,
    .live = link_live,
    .expose = link_expose,
    .feed = link_feed,
    .conceal = link_conceal,
    .fetch = link_fetch,
    .fetch_end = link_fetch_end,
};
