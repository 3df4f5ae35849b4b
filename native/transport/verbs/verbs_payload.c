/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_payload.c - payloads of calls, at their owner. verbs_fetch.c is the
 * other side.
 *
 * The receiver always pulls, by RDMA reads. It reads registered memory of the
 * owner (a region, granted to the peer as a whole) or blocks of the owner's
 * arena: a loan, or a staging block that the owner fills while the receiver
 * empties it.
 *
 *   SOURCE_REGION  address: id << OFFSET_BITS | offset; the payload's own shape
 *   SOURCE_ARENA   address: offset in the arena; block: bytes, count 1;
 *                  stride: bytes that are staged already
 *
 * A staged payload that fits into STAGE bytes has a block of its own. A longer
 * one reuses a block of STAGE_SLOTS slots: STAGED tells how far the owner has
 * filled them, TAKEN how far they may be filled again.
 */
#include "verbs.h"

enum { ARENA_GENERATION = 1 };
/* Shorter blocks are copied together, not read one by one. */
enum { SCATTERED = 4 << 10 };

static uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* ---- Loans -------------------------------------------------------------- */

/* Grants the peer the chunks that contain these bytes of our arena. */
static int open_chunks(struct lane *lane, uint64_t offset, uint64_t length) {
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
static int64_t take_block(struct lane *lane, uint64_t length) {
  int64_t offset = blocks_take(&lane->blocks, length);
  if (offset < 0)
    return offset;
  int status = open_chunks(lane, (uint64_t)offset, length);
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

bool lane_lends(const struct lane *lane, const uint8_t *pointer,
                uint64_t length) {
  uint64_t offset =
      (uint64_t)((uintptr_t)pointer - (uintptr_t)lane->arena.base);
  return offset < lane->arena.length && length <= lane->arena.length - offset;
}

int verbs_loan(struct lane *lane, uint64_t length, uint8_t **pointer,
               struct source *source) {
  int64_t offset = take_block(lane, length ? length : 1);
  if (offset < 0)
    return (int)offset;
  *pointer = lane->arena.base + offset;
  *source = arena_source((uint64_t)offset, length, length);
  return PERIGEE_OK;
}

void verbs_unloan(struct lane *lane, const struct source *source) {
  blocks_give(&lane->blocks, source->address);
}

bool verbs_loaned(struct lane *lane, const uint8_t *pointer, uint64_t length,
                  struct source *source) {
  if (length == 0 || !lane_lends(lane, pointer, length))
    return false;
  uint64_t offset = (uint64_t)(pointer - lane->arena.base);
  *source = arena_source(offset, length, length);
  return open_chunks(lane, offset, length) == PERIGEE_OK;
}

/* The peer's memory is never visible here: it has to be fetched. */
const uint8_t *verbs_view(struct lane *lane, const struct source *source) {
  (void)lane;
  (void)source;
  return NULL;
}

/* ---- The owner's side --------------------------------------------------- */

/* Exposes a region in place, if that can be; false otherwise. */
static bool expose_region(struct lane *lane, struct exposure *e,
                          const struct payload *p) {
  if (!p->area || (p->count > 1 && p->block < SCATTERED && p->memory->direct))
    return false;
  uint64_t offset = (uint64_t)(p->base - p->area->base);
  int id = keys_payload_id(lane, p->area);
  if (id < 0 || offset >> OFFSET_BITS)
    return false;
  e->source = (struct source){.kind = SOURCE_REGION,
                              .address = (uint64_t)id << OFFSET_BITS | offset,
                              .block = p->block,
                              .count = p->count,
                              .stride = p->stride};
  return true;
}

/* The staging block's offset in the arena, plus one; 0: there is none. */
static uint64_t *block_of(struct exposure *e) {
  return (uint64_t *)(void *)e->own;
}
_Static_assert(sizeof(uint64_t) <= EXPOSURE_OWN, "there is room for it");

/* Memory that the CPU may touch is staged by one slot at once, so that the
 * record tells of it; the rest is fed later. */
static int stage(struct lane *lane, struct exposure *e, struct payload *p) {
  int64_t offset = take_block(lane, least(p->total, STAGE));
  if (offset < 0)
    return offset == PERIGEE_AGAIN ? PERIGEE_NO_MEMORY : (int)offset;
  if (p->memory->direct)
    e->fed = (uint64_t)payload_take(p, lane->arena.base + offset,
                                    least(p->total, STAGE_SLOT));
  *block_of(e) = (uint64_t)offset + 1;
  e->payload = p;
  e->source = arena_source((uint64_t)offset, p->total, e->fed);
  return PERIGEE_OK;
}

int verbs_expose(struct lane *lane, struct exposure *e, struct payload *p) {
  *block_of(e) = 0;
  e->payload = NULL;
  e->fed = 0;
  return expose_region(lane, e, p) ? PERIGEE_OK : stage(lane, e, p);
}

/* Returns how many bytes may be staged in slots that were emptied. */
static uint64_t stage_room(const struct lane *lane, const struct exposure *e) {
  uint64_t taken = untagged(lane->acked[e->operation][e->part], e->generation);
  return STAGE - (e->fed - (taken <= e->fed ? taken : 0));
}

/* Bytes that may be staged now. The CPU fills one slot, which the receiver reads
 * while the next is filled; memory that copies on its own time is asked for all
 * that there is room for. */
static uint64_t stage_next(const struct lane *lane, const struct exposure *e) {
  uint64_t total = e->payload->total, left = total - e->fed;
  uint64_t room = total > STAGE ? stage_room(lane, e) : left;
  if (!e->payload->memory->direct)
    return least(least(left, room), STAGE - e->fed % STAGE);
  uint64_t n = least(left, STAGE_SLOT - e->fed % STAGE_SLOT);
  return n <= room ? n : 0;
}

int64_t verbs_feed(struct lane *lane, struct exposure *e) {
  struct payload *p = e->payload;
  if (!p || e->fed == p->total)
    return 0;
  uint64_t n = stage_next(lane, e);
  if (n == 0)
    return 0;
  uint8_t *block = lane->arena.base + *block_of(e) - 1;
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
  if (*block_of(e))
    blocks_give(&lane->blocks, *block_of(e) - 1);
  *block_of(e) = 0;
  e->payload = NULL;
}
