/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_fetch.c - payloads of calls, pulled by their receiver from where
 * verbs_payload.c put them.
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

static struct reading *own(const struct fetch *f) {
  return (struct reading *)(void *)f->own;
}

static uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* ---- What may be read --------------------------------------------------- */

static uint32_t source_id(const struct source *s) {
  return (uint32_t)(s->address >> OFFSET_BITS);
}

/* Is what the record says of the payload possible? */
static bool is_sound(const struct lane *lane, const struct fetch *f) {
  const struct source *s = &f->source;
  if (f->operation >= lane->peer_operations || f->part > 1)
    return false;
  if (s->kind == SOURCE_REGION)
    return source_id(s) >= ID_PAYLOAD && source_id(s) < ID_ARENA &&
           shape_total(s->block, s->count) == f->total;
  return s->kind == SOURCE_ARENA && s->count == 1 && s->block == f->total &&
         s->stride <= f->total &&
         s->address <= (uint64_t)(IDS - ID_ARENA) * CHUNK;
}

/* Is it staged in slots that are reused? */
static bool goes_round(const struct fetch *f) {
  const struct source *s = &f->source;
  return s->kind == SOURCE_ARENA && s->stride < f->total && f->total > STAGE;
}

static int find_remote_key(const struct lane *lane, uint32_t id,
                           const struct remote_key **key) {
  if (id >= IDS)
    return PERIGEE_PROTOCOL;
  *key = remote_key_find(lane, id);
  /* Otherwise the grant is on its way: the owner keeps it for the operation. */
  return *key && !(*key)->revoked;
}

/* Returns how many bytes are in the peer's arena by now. */
static uint64_t staged(const struct lane *lane, const struct fetch *f) {
  uint64_t told = untagged(lane->staged[f->operation][f->part], f->generation);
  if (f->source.stride == f->total)
    return f->total;
  return told > f->source.stride ? told : f->source.stride;
}

static int next_lane_lends(const struct lane *lane, const struct fetch *f,
                           const struct remote_key **key,
                           struct payload *walk) {
  uint64_t from = own(f)->job.posted, to = staged(lane, f);
  uint64_t at = f->source.address + from;
  if (to > f->total)
    return PERIGEE_PROTOCOL;
  if (to <= from)
    return 0;
  uint64_t n = to - from;
  if (goes_round(f)) {
    at = f->source.address + from % STAGE;
    n = least(n, STAGE_SLOT - from % STAGE_SLOT);
  }
  n = least(n, CHUNK - at % CHUNK);
  payload_bytes(walk, (const void *)(uintptr_t)(at % CHUNK), n);
  uint64_t id = ID_ARENA + at / CHUNK;
  return find_remote_key(lane, id < IDS ? (uint32_t)id : IDS, key);
}

/* Makes a walk over the bytes to be read next. Returns 1, 0 (none now) or a
 * status. */
static int next_bytes(const struct lane *lane, const struct fetch *f,
                      const struct remote_key **key, struct payload *walk) {
  const struct source *s = &f->source;
  if (own(f)->job.posted == f->total)
    return 0;
  if (s->kind == SOURCE_ARENA)
    return next_lane_lends(lane, f, key, walk);
  uint64_t offset = s->address & ((UINT64_C(1) << OFFSET_BITS) - 1);
  *walk = (struct payload){.base = (uint8_t *)(uintptr_t)offset,
                           .block = s->block,
                           .count = s->count,
                           .stride = s->stride,
                           .total = f->total,
                           .done = own(f)->job.posted};
  return find_remote_key(lane, source_id(s), key);
}

/* ---- Reading ------------------------------------------------------------ */

/* Returns the pair that carries all of it, or NULL: all data pairs do. */
static struct pair *only_pair(struct lane *lane, const struct fetch *f) {
  if (lane->pair_count == 1)
    return &lane->pairs[0];
  if (f->total >= 2 * lane->fabric->options.stripe && !own(f)->bounce &&
      !goes_round(f) && lane->pair_count > 2)
    return NULL;
  return &lane->pairs[1 + f->operation % (lane->pair_count - 1)];
}

/* Posts reads of at most that many bytes; returns their number, 0 or a
 * status. */
static int64_t read_some(struct lane *lane, struct fetch *f,
                         struct payload *into, uint64_t most) {
  struct pair *pair = only_pair(lane, f);
  uint64_t got = 0;
  int64_t n = 1;
  while (n > 0 && got < most) {
    const struct remote_key *key;
    struct payload walk;
    n = next_bytes(lane, f, &key, &walk);
    if (n > 0)
      n = lane_move(lane, &own(f)->job, key, &walk, into, false, pair,
                    most - got);
    if (n > 0)
      got += (uint64_t)n;
  }
  return got > 0 ? (int64_t)got : n;
}

/* Reads the mark behind all bytes; false without room. */
static bool read_marks(struct lane *lane, struct fetch *f) {
  struct pair *pair = only_pair(lane, f);
  uint32_t first = pair ? pair->index : 1;
  uint32_t end = pair ? pair->index + 1 : lane->pair_count;
  for (uint32_t i = first; i < end; i++)
    if (pair_room(&lane->pairs[i]) == 0)
      return false;
  for (uint32_t i = first; i < end; i++)
    pair_mark(&lane->pairs[i], &own(f)->job);
  return true;
}

/* Tells the owner of slots of which all bytes have been taken. */
static void tell_taken(struct lane *lane, const struct fetch *f,
                       uint64_t bytes) {
  uint64_t slots = bytes / STAGE_SLOT;
  if (goes_round(f) && bytes < f->total && slots != f->done / STAGE_SLOT)
    note_bytes(lane, NOTE_TAKEN, f->operation, f->part, f->generation,
               slots * STAGE_SLOT);
}

/* ---- By way of a bounce block ------------------------------------------- */

/* A payload that fits into half of a bounce block is read in one piece. */
static int take_bounce(struct lane *lane, struct fetch *f) {
  uint64_t size = f->total <= BOUNCE ? f->total : 2 * BOUNCE;
  int64_t offset = blocks_take(&lane->blocks, size);
  while (offset == PERIGEE_AGAIN && size > BOUNCE_LEAST) {
    size /= 4;
    offset = blocks_take(&lane->blocks, size);
  }
  if (offset < 0)
    return PERIGEE_NO_MEMORY;
  own(f)->bounce = lane->arena.base + offset;
  own(f)->half = size >= f->total ? size : size / 2;
  own(f)->put = 0;
  return 0;
}

static uint32_t halves(const struct fetch *f) {
  return own(f)->half < f->total ? 2 : 1;
}

static uint8_t *half_at(const struct fetch *f, uint32_t count) {
  return own(f)->bounce + count % halves(f) * own(f)->half;
}

/* Reads into one half while the other is emptied; a mark is read behind each
 * filling. 0 or a status. */
static int ask(struct lane *lane, struct fetch *f) {
  const struct job *job = &own(f)->job;
  struct payload half;
  int64_t n = 1;
  while (n > 0 && own(f)->asked - own(f)->emptied < halves(f) &&
         job->posted < f->total) {
    if (own(f)->marked != own(f)->asked)
      break;
    payload_bytes(&half, half_at(f, own(f)->asked), own(f)->half);
    half.area = &lane->arena;
    n = read_some(lane, f, &half, own(f)->half);
    if (n > 0)
      own(f)->ends[own(f)->asked++ % 2] = job->posted;
    if (n > 0 && read_marks(lane, f))
      own(f)->marked++;
  }
  if (own(f)->marked != own(f)->asked && read_marks(lane, f))
    own(f)->marked++;
  verbs_flush(lane);
  return n < 0 && own(f)->asked == own(f)->emptied ? (int)n : 0;
}

/* Takes bytes from the half that was asked for first, once its mark was
 * read. */
static int64_t fetch_bounced(struct lane *lane, struct fetch *f) {
  int status = ask(lane, f);
  if (status < 0 || own(f)->job.marks == own(f)->emptied)
    return status;
  uint64_t end = own(f)->ends[own(f)->emptied % 2];
  int64_t moved = payload_put(
      f->into, half_at(f, own(f)->emptied) + own(f)->put, end - f->done);
  if (moved <= 0)
    return moved;
  tell_taken(lane, f, f->done + (uint64_t)moved);
  own(f)->put += (uint64_t)moved;
  f->done += (uint64_t)moved;
  if (f->done == end) {
    own(f)->emptied++;
    own(f)->put = 0;
  }
  return moved;
}

/* Uses a bounce block from now on. */
static int64_t bounce(struct lane *lane, struct fetch *f) {
  int status = take_bounce(lane, f);
  return status < 0 ? status : fetch_bounced(lane, f);
}

/* ---- Straight to its place ---------------------------------------------- */

/* Keeps the pair busy without flooding it. The caller flushes the last piece,
 * with the marks behind it. 0 or a status. */
static int64_t read_ahead(struct lane *lane, struct fetch *f) {
  const struct job *job = &own(f)->job;
  uint64_t piece = goes_round(f) ? STAGE_SLOT : PIECE;
  int64_t n = 1;
  while (n > 0 && job->posted - job->done < UNDER_WAY) {
    n = read_some(lane, f, f->into, piece);
    if (job->posted < f->total)
      verbs_flush(lane);
  }
  return n < 0 ? n : 0;
}

/* Reports the bytes that came, but not the last one before its marks. */
static int64_t progress(struct lane *lane, struct fetch *f) {
  const struct job *job = &own(f)->job;
  bool all = own(f)->marked && job->pending == 0;
  uint64_t before = f->done;
  uint64_t now = all ? f->total : least(job->done, f->total - 1);
  if (job->status < 0)
    return job->status;
  if (now <= before)
    return 0;
  tell_taken(lane, f, now);
  f->done = now;
  return (int64_t)(now - before);
}

/* First reads, then, with `marked` set, reads the marks behind all bytes. If
 * memory turns out not to be registrable, the rest is bounced once nothing is
 * in progress; the marks after that stand for all bytes. */
static int64_t fetch_straight(struct lane *lane, struct fetch *f) {
  struct job *job = &own(f)->job;
  if (!own(f)->marked) {
    int64_t n = read_ahead(lane, f);
    bool stuck = n == PERIGEE_UNSUPPORTED || n == PERIGEE_NO_MEMORY;
    if (n < 0 && !stuck)
      return n;
    if (stuck && job->pending == 0 && job->done == f->done)
      return bounce(lane, f);
    if (job->posted == f->total) {
      own(f)->marked += read_marks(lane, f);
      verbs_flush(lane);
    }
  }
  return progress(lane, f);
}

/* ---- The transport's ---------------------------------------------------- */

static void start(struct lane *lane, struct fetch *f) {
  own(f)->job.operation = f->operation;
  own(f)->job.generation = f->generation;
  /* The landing of a head may be a loan of our own. */
  if (!f->into->area && f->into->count == 1 &&
      lane_lends(lane, f->into->base, f->total))
    f->into->area = &lane->arena;
}

int64_t verbs_fetch(struct lane *lane, struct fetch *f) {
  if (own(f)->job.status < 0)
    return own(f)->job.status;
  if (!is_sound(lane, f))
    return PERIGEE_PROTOCOL;
  if (own(f)->job.generation == 0)
    start(lane, f);
  if (own(f)->bounce)
    return fetch_bounced(lane, f);
  if (f->careful || !f->into->area)
    return bounce(lane, f);
  return fetch_straight(lane, f);
}

bool verbs_fetch_end(struct lane *lane, struct fetch *f) {
  if (!verbs_quiesce(lane, &own(f)->job) || !payload_quiet(f->into))
    return false;
  if (own(f)->bounce)
    blocks_give(&lane->blocks, (uint64_t)(own(f)->bounce - lane->arena.base));
  own(f)->bounce = NULL;
  return true;
}
