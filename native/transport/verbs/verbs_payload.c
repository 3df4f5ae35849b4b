/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_payload.c - payloads of calls, at their owner and at their receiver.
 *
 * The receiver always pulls, by RDMA reads. It reads registered memory of the
 * owner (a region) or blocks of the owner's arena: a loan, or a staging block
 * that the owner fills while the receiver empties it.
 *
 * A region that peers may read is granted as a whole, and stays so. Of another
 * one the peer gets the payload alone, by memory windows, until the operation
 * ends. Windows cost system calls, so a payload that is short is staged, as is
 * one with gaps and one on a device without windows.
 *
 *   SOURCE_REGION  address: id << OFFSET_BITS | offset; the payload's own shape
 *   SOURCE_ARENA   address: offset in the arena; block: bytes, count 1;
 *                  stride: bytes that are staged already
 *
 * A staged payload that fits into STAGE bytes has a block of its own. A longer
 * one reuses a block of STAGE_SLOTS slots: STAGED tells how far the owner has
 * filled them, TAKEN how far they may be filled again.
 *
 * Bytes that were read count if the operation was live after the last of them:
 * on each pair that carried some, a mark is read behind them. The last byte is
 * not reported until then. Memory that others can see, or that cannot be
 * registered, gets its bytes from a bounce block of our own arena: one half is
 * read into while the other is emptied, each filling followed by a mark of its
 * own. A payload in staging slots that are reused is read over one pair, which
 * completes in order.
 */
#include "verbs.h"

enum { ARENA_GENERATION = 1 };

/* Shorter blocks are copied together, not read one by one. */
enum { SCATTERED = 4 << 10 };

/* ---- Loans --------------------------------------------------------------- */

/* Grants the peer the chunks that contain these bytes of our arena. */
static int arena_open_chunks(struct lane *lane, uint64_t offset,
                             uint64_t length) {
  uint64_t last = (offset + length - 1) / CHUNK;
  for (uint64_t i = offset / CHUNK; i <= last; i++) {
    uint32_t id = ID_ARENA + (uint32_t)i;
    if (grant_is(lane, id, ARENA_GENERATION))
      continue;
    uint64_t at = i * CHUNK;
    int status =
        grant_open(lane, id, ARENA_GENERATION, &lane->arena, at,
                   least(CHUNK, lane->arena.length - at), PERIGEE_READ);
    if (status < 0)
      return status;
  }
  return PERIGEE_OK;
}

/* Returns the offset of a block that the peer may read, or a status. */
static int64_t arena_take_block(struct lane *lane, uint64_t length) {
  int64_t offset = blocks_take(&lane->blocks, length);
  if (offset < 0)
    return offset;
  int status = arena_open_chunks(lane, (uint64_t)offset, length);
  if (status < 0) {
    blocks_give(&lane->blocks, (uint64_t)offset);
    return status;
  }
  return offset;
}

static struct source arena_source(uint64_t offset, uint64_t length,
                                  uint64_t staged) {
  return (struct source){.kind = SOURCE_ARENA,
                         .address = offset,
                         .block = length,
                         .count = 1,
                         .stride = staged};
}

/* Are these bytes in the lane's arena? */
static bool lane_lends(const struct lane *lane, const uint8_t *pointer,
                       uint64_t length) {
  uint64_t offset =
      (uint64_t)((uintptr_t)pointer - (uintptr_t)lane->arena.base);
  return offset < lane->arena.length && length <= lane->arena.length - offset;
}

int verbs_loan(struct lane *lane, uint64_t length, uint8_t **pointer,
               struct source *source) {
  int64_t offset = arena_take_block(lane, length ? length : 1);
  if (offset < 0)
    return (int)offset;
  *pointer = lane->arena.base + offset;
  *source = arena_source((uint64_t)offset, length, length);
  return PERIGEE_OK;
}

void verbs_unloan(struct lane *lane, const struct source *source, bool seen) {
  (void)seen;
  blocks_give(&lane->blocks, source->address);
}

bool verbs_loaned(struct lane *lane, const uint8_t *pointer, uint64_t length,
                  struct source *source) {
  if (length == 0 || !lane_lends(lane, pointer, length))
    return false;
  uint64_t offset = (uint64_t)(pointer - lane->arena.base);
  *source = arena_source(offset, length, length);
  return arena_open_chunks(lane, offset, length) == PERIGEE_OK;
}

/* The peer's memory is never visible here: it has to be fetched. */
const uint8_t *verbs_view(struct lane *lane, const struct source *source,
                          uint16_t operation, uint32_t generation) {
  (void)lane, (void)source, (void)operation, (void)generation;
  return NULL;
}

/* ---- The owner's side ---------------------------------------------------- */

/* The private part of an exposure. */
struct exposed {
  uint64_t block; /* staging block's offset in the arena, plus one; 0: none */
  uint64_t generation; /* of a grant of these bytes alone; 0: there is none */
  uint32_t id;         /* of that grant */
};

_Static_assert(sizeof(struct exposed) <= EXPOSURE_OWN, "there is room for it");

static struct exposed *exposed_of(struct exposure *e) {
  return (struct exposed *)(void *)e->own;
}

/* offset: within what was granted under the id. */
static struct source region_source(const struct payload *p, int id,
                                   uint64_t offset) {
  return (struct source){.kind = SOURCE_REGION,
                         .address = (uint64_t)id << OFFSET_BITS | offset,
                         .block = p->block,
                         .count = p->count,
                         .stride = p->stride};
}

/* Exposes a region in place that peers may read, if that can be; false
 * otherwise. */
static bool exposure_of_region(struct lane *lane, struct exposure *e,
                               const struct payload *p) {
  if (!p->area || !p->area->readable ||
      p->extents || /* a source tells of one shape */
      (p->count > 1 && p->block < SCATTERED && p->memory->direct))
    return false;
  uint64_t offset = (uint64_t)(p->base - p->area->base);
  int id = keys_payload_id(lane, p->area);
  if (id < 0 || offset >> OFFSET_BITS)
    return false;
  e->source = region_source(p, id, offset);
  return true;
}

/* Exposes these bytes alone of a region, if that can be. */
static bool exposure_of_bytes(struct lane *lane, struct exposure *e,
                              const struct payload *p) {
  struct exposed *own = exposed_of(e);
  if (!p->area || p->extents || (p->count > 1 && p->stride != p->block))
    return false;
  int id = grant_payload(lane, p->area, (uint64_t)(p->base - p->area->base),
                         p->total, &own->generation);
  if (id < 0) {
    own->generation = 0;
    return false;
  }
  own->id = (uint32_t)id;
  e->source = region_source(p, id, 0);
  return true;
}

/* Memory that the CPU may touch is staged by one slot at once, so that the
 * record tells of it; the rest is fed later. */
static int exposure_stage(struct lane *lane, struct exposure *e,
                          struct payload *p) {
  int64_t offset = arena_take_block(lane, least(p->total, STAGE));
  if (offset < 0)
    return offset == PERIGEE_AGAIN ? PERIGEE_NO_MEMORY : (int)offset;
  if (p->memory->direct)
    e->fed = (uint64_t)payload_take(p, lane->arena.base + offset,
                                    least(p->total, STAGE_SLOT));
  exposed_of(e)->block = (uint64_t)offset + 1;
  e->payload = p;
  e->source = arena_source((uint64_t)offset, p->total, e->fed);
  return PERIGEE_OK;
}

int verbs_expose(struct lane *lane, struct exposure *e, struct payload *p) {
  *exposed_of(e) = (struct exposed){0};
  e->payload = NULL;
  e->fed = 0;
  if (exposure_of_region(lane, e, p) ||
      (p->total > STAGE_SLOT && exposure_of_bytes(lane, e, p)))
    return PERIGEE_OK;
  int status = exposure_stage(lane, e, p);
  return status < 0 && exposure_of_bytes(lane, e, p) ? PERIGEE_OK : status;
}

/* Returns how many bytes may be staged in slots that were emptied. */
static uint64_t exposure_stage_room(const struct lane *lane,
                                    const struct exposure *e) {
  uint64_t taken = untagged(lane->acked[e->operation][e->part], e->generation);
  return STAGE - (e->fed - (taken <= e->fed ? taken : 0));
}

/* Bytes that may be staged now. The CPU fills one slot, which the receiver reads
 * while the next is filled; memory that copies on its own time is asked for all
 * that there is room for. */
static uint64_t exposure_stage_next(const struct lane *lane,
                                    const struct exposure *e) {
  uint64_t total = e->payload->total, left = total - e->fed;
  uint64_t room = total > STAGE ? exposure_stage_room(lane, e) : left;
  if (!e->payload->memory->direct)
    return least(least(left, room), STAGE - e->fed % STAGE);
  uint64_t n = least(left, STAGE_SLOT - e->fed % STAGE_SLOT);
  return n <= room ? n : 0;
}

int64_t verbs_feed(struct lane *lane, struct exposure *e) {
  struct payload *p = e->payload;
  if (!p || e->fed == p->total)
    return 0;
  uint64_t n = exposure_stage_next(lane, e);
  if (n == 0)
    return 0;
  uint8_t *block = lane->arena.base + exposed_of(e)->block - 1;
  int64_t moved = payload_take(p, block + e->fed % STAGE, n);
  if (moved <= 0)
    return moved;
  uint64_t before = e->fed;
  e->fed += (uint64_t)moved;
  uint64_t whole =
      e->fed == p->total ? p->total : e->fed / STAGE_SLOT * STAGE_SLOT;
  if (whole > before)
    note_bytes(lane, NOTE_STAGED, e->operation, e->part, e->generation, whole);
  return moved;
}

/* A peer that still reads the block reads bytes that were sent to it as well,
 * of another operation, and finds the mark gone. */
void verbs_conceal(struct lane *lane, struct exposure *e) {
  struct exposed *own = exposed_of(e);
  if (own->block)
    blocks_give(&lane->blocks, own->block - 1);
  grant_payload_end(lane, own->id, own->generation);
  *own = (struct exposed){0};
  e->payload = NULL;
}

/* ---- What may be read ---------------------------------------------------- */

/* Most bytes in progress; bytes under one completion. */
enum { UNDER_WAY = 4 << 20, PIECE = 1 << 20 };
enum { BOUNCE = 256 << 10, BOUNCE_LEAST = 4 << 10 };

/* The private part of a fetch. The two halves of the bounce block alternate. */
struct reading {
  struct job job;
  uint8_t *bounce;
  uint64_t half, ends[2];  /* bytes of a half; position where each half ends */
  uint64_t put;            /* bytes copied on from the half */
  uint32_t asked, emptied; /* halves read into so far; emptied so far */
  uint32_t marked;         /* how many marks were asked for, behind bytes */
};

_Static_assert(sizeof(struct reading) <= FETCH_OWN, "there is room for it");

static struct reading *reading_of(const struct fetch *f) {
  return (struct reading *)(void *)f->own;
}

static uint32_t source_region_id(const struct source *s) {
  return (uint32_t)(s->address >> OFFSET_BITS);
}

/* Is what the record says of the payload possible? */
static bool source_is_sound(const struct lane *lane, const struct fetch *f) {
  const struct source *s = &f->source;
  if (f->operation >= lane->peer_operations || f->part > 1)
    return false;
  if (s->kind == SOURCE_REGION)
    return source_region_id(s) >= ID_PAYLOAD &&
           source_region_id(s) < ID_ARENA &&
           shape_total(s->block, s->count) == f->total;
  return s->kind == SOURCE_ARENA && s->count == 1 && s->block == f->total &&
         s->stride <= f->total &&
         s->address <= (uint64_t)(IDS - ID_ARENA) * CHUNK;
}

/* Is it staged in slots that are reused? */
static bool fetch_goes_round(const struct fetch *f) {
  const struct source *s = &f->source;
  return s->kind == SOURCE_ARENA && s->stride < f->total && f->total > STAGE;
}

static int fetch_remote_key(const struct lane *lane, uint32_t id,
                            const struct remote_key **key) {
  if (id >= IDS)
    return PERIGEE_PROTOCOL;
  *key = remote_key_find(lane, id);
  /* Otherwise the grant is on its way: the owner keeps it for the operation. */
  return *key && !(*key)->revoked;
}

/* Returns how many bytes are in the peer's arena by now. */
static uint64_t fetch_staged_bytes(const struct lane *lane,
                                   const struct fetch *f) {
  uint64_t told = untagged(lane->staged[f->operation][f->part], f->generation);
  if (f->source.stride == f->total)
    return f->total;
  return told > f->source.stride ? told : f->source.stride;
}

static int fetch_next_in_arena(const struct lane *lane, const struct fetch *f,
                               const struct remote_key **key,
                               struct payload *walk) {
  uint64_t from = reading_of(f)->job.posted, to = fetch_staged_bytes(lane, f);
  uint64_t at = f->source.address + from;
  if (to > f->total)
    return PERIGEE_PROTOCOL;
  if (to <= from)
    return 0;
  uint64_t n = to - from;
  if (fetch_goes_round(f)) {
    at = f->source.address + from % STAGE;
    n = least(n, STAGE_SLOT - from % STAGE_SLOT);
  }
  n = least(n, CHUNK - at % CHUNK);
  payload_bytes(walk, (const void *)(uintptr_t)(at % CHUNK), n);
  uint64_t id = ID_ARENA + at / CHUNK;
  return fetch_remote_key(lane, id < IDS ? (uint32_t)id : IDS, key);
}

/* Makes a walk over the bytes to be read next. Returns 1, 0 (none now) or a
 * status. */
static int fetch_next_bytes(const struct lane *lane, const struct fetch *f,
                            const struct remote_key **key,
                            struct payload *walk) {
  const struct source *s = &f->source;
  if (reading_of(f)->job.posted == f->total)
    return 0;
  if (s->kind == SOURCE_ARENA)
    return fetch_next_in_arena(lane, f, key, walk);
  uint64_t offset = s->address & ((UINT64_C(1) << OFFSET_BITS) - 1);
  *walk = (struct payload){.base = (uint8_t *)(uintptr_t)offset,
                           .block = s->block,
                           .count = s->count,
                           .stride = s->stride,
                           .total = f->total,
                           .done = reading_of(f)->job.posted};
  return fetch_remote_key(lane, source_region_id(s), key);
}

/* ---- Reading ------------------------------------------------------------- */

/* Returns the pair that carries all of it, or NULL: all data pairs do. */
static struct pair *fetch_only_pair(struct lane *lane, const struct fetch *f) {
  if (f->total >= 2 * lane->fabric->options.stripe && !reading_of(f)->bounce &&
      !fetch_goes_round(f) && lane->pair_count > 2)
    return NULL;
  return &lane->pairs[1 + f->operation % (lane->pair_count - 1)];
}

/* Posts reads of at most that many bytes; returns their number, 0 or a
 * status. */
static int64_t fetch_read_some(struct lane *lane, struct fetch *f,
                               struct payload *into, uint64_t most) {
  struct pair *pair = fetch_only_pair(lane, f);
  uint64_t got = 0;
  int64_t n = 1;
  while (n > 0 && got < most) {
    const struct remote_key *key;
    struct payload walk;
    n = fetch_next_bytes(lane, f, &key, &walk);
    if (n > 0)
      n = lane_move(lane, &reading_of(f)->job, key, &walk, into, false, pair,
                    most - got);
    if (n > 0)
      got += (uint64_t)n;
  }
  return got > 0 ? (int64_t)got : n;
}

/* Reads the mark behind all bytes; false without room. */
static bool fetch_read_marks(struct lane *lane, struct fetch *f) {
  struct pair *pair = fetch_only_pair(lane, f);
  uint32_t first = pair ? pair->index : 1;
  uint32_t end = pair ? pair->index + 1 : lane->pair_count;
  for (uint32_t i = first; i < end; i++)
    if (pair_room(&lane->pairs[i]) == 0)
      return false;
  for (uint32_t i = first; i < end; i++)
    pair_mark(&lane->pairs[i], &reading_of(f)->job);
  return true;
}

/* Tells the owner of slots of which all bytes have been taken. */
static void fetch_tell_taken(struct lane *lane, const struct fetch *f,
                             uint64_t bytes) {
  uint64_t slots = bytes / STAGE_SLOT;
  if (fetch_goes_round(f) && bytes < f->total && slots != f->done / STAGE_SLOT)
    note_bytes(lane, NOTE_TAKEN, f->operation, f->part, f->generation,
               slots * STAGE_SLOT);
}

/* ---- By way of a bounce block -------------------------------------------- */

/* A payload that fits into half of a bounce block is read in one piece. */
static int bounce_open(struct lane *lane, struct fetch *f) {
  uint64_t size = f->total <= BOUNCE ? f->total : 2 * BOUNCE;
  int64_t offset = blocks_take(&lane->blocks, size);
  while (offset == PERIGEE_AGAIN && size > BOUNCE_LEAST) {
    size /= 4;
    offset = blocks_take(&lane->blocks, size);
  }
  if (offset < 0)
    return PERIGEE_NO_MEMORY;
  reading_of(f)->bounce = lane->arena.base + offset;
  reading_of(f)->half = size >= f->total ? size : size / 2;
  reading_of(f)->put = 0;
  return 0;
}

static uint32_t bounce_halves(const struct fetch *f) {
  return reading_of(f)->half < f->total ? 2 : 1;
}

static uint8_t *bounce_half_at(const struct fetch *f, uint32_t count) {
  return reading_of(f)->bounce + count % bounce_halves(f) * reading_of(f)->half;
}

/* Reads into one half while the other is emptied; a mark is read behind each
 * filling. 0 or a status. */
static int bounce_ask(struct lane *lane, struct fetch *f) {
  const struct job *job = &reading_of(f)->job;
  struct payload half;
  int64_t n = 1;
  while (n > 0 &&
         reading_of(f)->asked - reading_of(f)->emptied < bounce_halves(f) &&
         job->posted < f->total) {
    if (reading_of(f)->marked != reading_of(f)->asked)
      break;
    payload_bytes(&half, bounce_half_at(f, reading_of(f)->asked),
                  reading_of(f)->half);
    half.area = &lane->arena;
    n = fetch_read_some(lane, f, &half, reading_of(f)->half);
    if (n > 0)
      reading_of(f)->ends[reading_of(f)->asked++ % 2] = job->posted;
    if (n > 0 && fetch_read_marks(lane, f))
      reading_of(f)->marked++;
  }
  if (reading_of(f)->marked != reading_of(f)->asked &&
      fetch_read_marks(lane, f))
    reading_of(f)->marked++;
  verbs_flush(lane);
  return n < 0 && reading_of(f)->asked == reading_of(f)->emptied ? (int)n : 0;
}

/* Takes bytes from the half that was asked for first, once its mark was
 * read. */
static int64_t verbs_fetch_bounced(struct lane *lane, struct fetch *f) {
  int status = bounce_ask(lane, f);
  if (status < 0 || reading_of(f)->job.marks == reading_of(f)->emptied)
    return status;
  uint64_t end = reading_of(f)->ends[reading_of(f)->emptied % 2];
  int64_t moved = payload_put(
      f->into, bounce_half_at(f, reading_of(f)->emptied) + reading_of(f)->put,
      end - f->done);
  if (moved <= 0)
    return moved;
  fetch_tell_taken(lane, f, f->done + (uint64_t)moved);
  reading_of(f)->put += (uint64_t)moved;
  f->done += (uint64_t)moved;
  if (f->done == end) {
    reading_of(f)->emptied++;
    reading_of(f)->put = 0;
  }
  return moved;
}

/* Uses a bounce block from now on. */
static int64_t fetch_begin_bounce(struct lane *lane, struct fetch *f) {
  int status = bounce_open(lane, f);
  return status < 0 ? status : verbs_fetch_bounced(lane, f);
}

/* ---- Straight to its place ----------------------------------------------- */

/* Keeps the pair busy without flooding it. The caller flushes the last piece,
 * with the marks behind it. 0 or a status. */
static int64_t fetch_read_ahead(struct lane *lane, struct fetch *f) {
  const struct job *job = &reading_of(f)->job;
  uint64_t piece = fetch_goes_round(f) ? STAGE_SLOT : PIECE;
  int64_t n = 1;
  while (n > 0 && job->posted - job->done < UNDER_WAY) {
    n = fetch_read_some(lane, f, f->into, piece);
    if (job->posted < f->total)
      verbs_flush(lane);
  }
  return n < 0 ? n : 0;
}

/* Reports the bytes that came, but not the last one before its marks. */
static int64_t fetch_progress(struct lane *lane, struct fetch *f) {
  const struct job *job = &reading_of(f)->job;
  bool all = reading_of(f)->marked && job->pending == 0;
  uint64_t before = f->done;
  uint64_t now = all ? f->total : least(job->done, f->total - 1);
  if (job->status < 0)
    return job->status;
  if (now <= before)
    return 0;
  fetch_tell_taken(lane, f, now);
  f->done = now;
  return (int64_t)(now - before);
}

/* First reads, then, with `marked` set, reads the marks behind all bytes. The
 * rest is bounced once nothing is in progress, if memory turns out not to be
 * registrable; the marks after that stand for all bytes. */
static int64_t fetch_straight(struct lane *lane, struct fetch *f) {
  struct job *job = &reading_of(f)->job;
  if (!reading_of(f)->marked) {
    int64_t n = fetch_read_ahead(lane, f);
    bool stuck = n == PERIGEE_UNSUPPORTED || n == PERIGEE_NO_MEMORY;
    if (n < 0 && !stuck)
      return n;
    if (stuck && job->pending == 0 && job->done == f->done)
      return fetch_begin_bounce(lane, f);
    if (job->posted == f->total) {
      reading_of(f)->marked += fetch_read_marks(lane, f);
      verbs_flush(lane);
    }
  }
  return fetch_progress(lane, f);
}

static void fetch_start(struct lane *lane, struct fetch *f) {
  reading_of(f)->job.operation = f->operation;
  reading_of(f)->job.generation = f->generation;
  /* The landing of a head may be a loan of our own. */
  if (!f->into->area && f->into->count == 1 &&
      lane_lends(lane, f->into->base, f->total))
    f->into->area = &lane->arena;
}

int64_t verbs_fetch(struct lane *lane, struct fetch *f) {
  if (reading_of(f)->job.status < 0)
    return reading_of(f)->job.status;
  if (!source_is_sound(lane, f))
    return PERIGEE_PROTOCOL;
  if (reading_of(f)->job.generation == 0)
    fetch_start(lane, f);
  if (reading_of(f)->bounce)
    return verbs_fetch_bounced(lane, f);
  if (f->careful || !(f->into->area || f->into->extents))
    return fetch_begin_bounce(lane, f);
  return fetch_straight(lane, f);
}

bool verbs_fetch_end(struct lane *lane, struct fetch *f) {
  if (!verbs_quiesce(lane, &reading_of(f)->job) || !payload_quiet(f->into))
    return false;
  if (reading_of(f)->bounce)
    blocks_give(&lane->blocks,
                (uint64_t)(reading_of(f)->bounce - lane->arena.base));
  reading_of(f)->bounce = NULL;
  return true;
}
