/* SPDX-License-Identifier: Apache-2.0
 *
 * items.c - the items of one-sided transfers: checks of both sides, and items
 * with lists.
 *
 * Pairs of places are made by bytes. So an item with lists becomes moves, one
 * for each remote place: the bytes of the item's local payload from one number
 * to another. The local payload runs on through all moves of its item. Moves to
 * places of one region that follow each other may be moved as one, where this
 * side reaches the region by the CPU.
 */
#include "items.h"

#include <stdlib.h>
#include <string.h>

#include "core/lanes.h"
#include "core/lock.h"

/* ---- Checks ------------------------------------------------------------- */

/* A remote payload's base is an offset if no CPU reaches the memory. */
static uint8_t *item_base(const struct window *window, uint64_t offset) {
  return (uint8_t *)((uintptr_t)window->pointer + offset);
}

static inline __attribute__((always_inline)) int
remote_payload(struct perigee_session *s, int operation,
               const struct perigee_slice *slice, struct payload *p) {
  struct perigee_remote *remote = slice->remote;
  if (UNLIKELY(!remote))
    return fail_missing(s->engine, "remote region of a transfer");
  if (UNLIKELY(slice_is_list(slice)))
    return ITEM_LISTED;
  int right = operation == PERIGEE_OP_READ ? PERIGEE_READ : PERIGEE_WRITE;
  if (remote->session != s)
    return fail(s->engine, PERIGEE_INVALID,
                "region \"%s\" is of another session", remote->name);
  if (!(remote->window.access & right))
    return fail(s->engine, PERIGEE_DENIED, "the peer does not let us %s \"%s\"",
                right == PERIGEE_READ ? "read" : "write", remote->name);
  if (shape_total(slice->length, slice->count) == UINT64_MAX ||
      !shape_fits(remote->window.length, slice->offset, slice->length,
                  slice->count, slice->stride))
    return fail(s->engine, PERIGEE_RANGE,
                "a slice lies outside of \"%s\" (%llu bytes)", remote->name,
                (unsigned long long)remote->window.length);
  *p = (struct payload){.memory = &memory_host,
                        .base = item_base(&remote->window, slice->offset),
                        .block = slice->length,
                        .count = slice->count,
                        .stride = slice->stride,
                        .total = slice->length * slice->count};
  return PERIGEE_OK;
}

int item_remote(struct perigee_session *s, int operation,
                const struct perigee_slice *slice, struct payload *p) {
  return remote_payload(s, operation, slice, p);
}

static inline int item_local(struct perigee_session *s,
                             const struct perigee_slice *slice,
                             struct payload *local) {
  return slice->region && slice_is_list(slice)
             ? ITEM_LISTED
             : slice_payload(s->engine, slice, local);
}

int item_check(struct perigee_session *s, int operation,
               const struct perigee_transfer *item, struct payload *remote,
               struct payload *local) {
  int status = remote_payload(s, operation, &item->remote, remote);
  if (status == PERIGEE_OK)
    status = item_local(s, &item->local, local);
  if (status == PERIGEE_OK && remote->total != local->total)
    status = fail(s->engine, PERIGEE_INVALID,
                  "from and to differ in length: %llu and %llu",
                  (unsigned long long)local->total,
                  (unsigned long long)remote->total);
  return status;
}

int items_check(struct perigee_session *s, int operation,
                const struct perigee_transfer *list, uint32_t count) {
  struct payload remote = {.memory = &memory_host}, local = remote;
  for (uint32_t i = 0; i < count; i++) {
    int status = item_check(s, operation, &list[i], &remote, &local);
    if (status < 0)
      return status;
  }
  return PERIGEE_OK;
}

/* ---- Remote places --------------------------------------------------------- */

/* Fails with the number of the place before the sentence that was told. */
static int place_refuse(struct perigee_session *s, uint32_t number,
                        int status) {
  char why[REASON];
  if (status == ITEM_LISTED)
    return fail(s->engine, PERIGEE_INVALID, "slice %u of a list is a list",
                number);
  strncpy(why, fail_detail(s->engine), sizeof why - 1);
  why[sizeof why - 1] = 0;
  return fail(s->engine, status, "slice %u of a list: %s", number, why);
}

/* Does the place go on where the one before it ends? */
static bool place_follows(const struct perigee_transfer *before,
                          const struct perigee_slice *place) {
  const struct perigee_slice *b = &before->remote;
  return b->remote == place->remote && b->count == 1 && place->count == 1 &&
         b->offset + b->length == place->offset;
}

/* Adds the move of a remote place, or lengthens the one before. first: the first
 * move of the item. */
static void moves_add(struct moves *m, const struct perigee_slice *place,
                      const struct payload *remote, const struct spread *local,
                      uint32_t first, uint32_t number) {
  struct place_move *move = &m->move[m->count];
  uint64_t begin = m->count > first ? move[-1].end : 0;
  if (remote->total == 0)
    return;
  if (m->count > first && place_follows(&m->list[m->count - 1], place)) {
    struct perigee_slice *before = &m->list[m->count - 1].remote;
    before->length = before->stride = before->length + remote->total;
    m->remote[m->count - 1].block += remote->total;
    m->remote[m->count - 1].stride += remote->total;
    move[-1].end += remote->total;
    return;
  }
  *move = (struct place_move){.local = local,
                              .begin = begin,
                              .end = begin + remote->total,
                              .number = number};
  m->list[m->count].remote = *place;
  m->remote[m->count++] = (struct extent){.base = remote->base,
                                          .block = remote->block,
                                          .count = remote->count,
                                          .stride = remote->stride,
                                          .begin = begin};
}

static int moves_add_places(struct perigee_session *s, int operation,
                            struct moves *m, const struct perigee_slice *places,
                            uint32_t n, bool listed,
                            const struct spread *local) {
  uint32_t first = m->count;
  struct payload remote = {.memory = &memory_host};
  for (uint32_t i = 0; i < n; i++) {
    int status = item_remote(s, operation, &places[i], &remote);
    if (status < 0)
      return listed ? place_refuse(s, i + 1, status) : status;
    if (listed && operation != PERIGEE_OP_READ && places[i].count > 1 &&
        places[i].stride < places[i].length)
      return fail(s->engine, PERIGEE_INVALID,
                  "the blocks of slice %u of a list overlap, and bytes are "
                  "written there",
                  i + 1);
    moves_add(m, &places[i], &remote, local, first, i + 1);
  }
  return PERIGEE_OK;
}

/* ---- Overlaps of remote places --------------------------------------------- */

/* Regions count as lying far from each other. The peer chooses their slots, and
 * uses those of closed ones again. */
static uint8_t *place_base(const struct perigee_slice *place) {
  uint64_t number = place->remote->number;
  return (uint8_t *)(uintptr_t)(number * 2 * PAYLOAD_MAX + place->offset);
}

/* Looks whether places of the item that begins with that move overlap. */
static int moves_check_overlaps(struct perigee_session *s,
                                const struct moves *m, uint32_t first) {
  uint32_t n = m->count - first;
  struct extent *places =
      spares_take(&s->engine->spares, (n + 1) * sizeof *places);
  const struct extent *pair[2];
  if (!places)
    return PERIGEE_NO_MEMORY;
  for (uint32_t i = 0; i < n; i++) {
    places[i] = m->remote[first + i];
    places[i].base = place_base(&m->list[first + i].remote);
  }
  int found = extents_overlapping(s->engine, places, n, pair);
  uint64_t a = found == 1 ? (uint64_t)(pair[0] - places) : 0;
  uint64_t b = found == 1 ? (uint64_t)(pair[1] - places) : 0;
  spares_give(places);
  if (found != 1)
    return found;
  return fail(s->engine, PERIGEE_INVALID,
              "slices %u and %u of a list overlap, and bytes are written there",
              m->move[first + (a < b ? a : b)].number,
              m->move[first + (a < b ? b : a)].number);
}

/* ---- Local bytes ------------------------------------------------------------ */

/* Names the local bytes of a move by a slice, if one does. */
static bool move_slice(const struct place_move *move,
                       struct perigee_slice *slice) {
  struct payload p = move->local->payload;
  uint64_t length = move->end - move->begin;
  p.done = move->begin;
  if (p.extents)
    p = payload_extent(&p);
  struct perigee_region *region =
      CONTAINER(p.area, struct perigee_region, area);
  uint64_t offset = (uint64_t)(p.base - region->pointer);
  *slice = (struct perigee_slice){{region}, 0, length, 1, length};
  if (length > p.total - p.done)
    return false;
  if (p.count == 1)
    slice->offset = offset + p.done;
  else if (p.done % p.block == 0 && length % p.block == 0)
    *slice = (struct perigee_slice){{region},
                                    offset + p.done / p.block * p.stride,
                                    p.block,
                                    length / p.block,
                                    p.stride};
  else
    return false;
  return true;
}

/* What moves_add could not know: the local bytes of each move, and how far its
 * region goes. */
static void moves_finish_item(struct moves *m, uint32_t first) {
  for (uint32_t i = m->count; i-- > first;) {
    bool more = i + 1 < m->count &&
                m->list[i + 1].remote.remote == m->list[i].remote.remote;
    m->move[i].last = more ? m->move[i + 1].last : i;
    m->move[i].plain = move_slice(&m->move[i], &m->list[i].local);
  }
}

/* ---- Making ---------------------------------------------------------------- */

static int item_spread(struct perigee_session *s, int operation,
                       const struct perigee_slice *slice, struct spread **out) {
  struct payload p;
  struct perigee_slice list = *slice;
  if (!slice->region)
    return fail_missing(s->engine, "region of a slice");
  if (!slice_is_list(slice)) {
    int status = slice_payload(s->engine, slice, &p);
    if (status < 0)
      return status;
    list = perigee_list(slice, 1);
  }
  return spread_make(s->engine, &list, operation == PERIGEE_OP_READ, out);
}

/* Returns the places of an item's remote side, or NULL and a status. */
static const struct perigee_slice *item_places(struct perigee_session *s,
                                               const struct perigee_slice *side,
                                               uint32_t *n, int *status) {
  *n = 1;
  *status = PERIGEE_OK;
  if (side->remote && slice_is_list(side))
    return list_slices(s->engine, side, n, status);
  return side;
}

/* Adds the moves of an item with these remote places. The spread of its local
 * memory goes over to the moves. */
static int moves_add_sides(struct perigee_session *s, int operation,
                           struct moves *m, struct spread *local,
                           const struct perigee_slice *places, uint32_t n,
                           bool listed) {
  uint32_t first = m->count;
  local->next = m->spreads;
  m->spreads = local;
  int status = moves_add_places(s, operation, m, places, n, listed, local);
  if (status < 0)
    return status;
  uint64_t total = m->count > first ? m->move[m->count - 1].end : 0;
  if (total != local->payload.total)
    return fail(s->engine, PERIGEE_INVALID,
                "from and to differ in length: %llu and %llu",
                (unsigned long long)local->payload.total,
                (unsigned long long)total);
  moves_finish_item(m, first);
  return operation == PERIGEE_OP_READ || n == 1
             ? PERIGEE_OK
             : moves_check_overlaps(s, m, first);
}

static int moves_add_item(struct perigee_session *s, int operation,
                          struct moves *m,
                          const struct perigee_transfer *item) {
  struct spread *local = NULL;
  uint32_t n;
  int status;
  const struct perigee_slice *places =
      item_places(s, &item->remote, &n, &status);
  if (places)
    status = item_spread(s, operation, &item->local, &local);
  return status < 0 ? status
                    : moves_add_sides(s, operation, m, local, places, n,
                                      places != &item->remote);
}

/* Counts the remote places, or returns a status. */
static int64_t items_count_places(struct perigee_session *s,
                                  const struct perigee_transfer *list,
                                  uint32_t count) {
  int64_t all = 0;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t n;
    int status;
    if (!item_places(s, &list[i].remote, &n, &status))
      return status;
    all += n;
  }
  return all > UINT32_MAX ? PERIGEE_TOO_LARGE : all;
}

/* One block for all, which is kept for the next transfer or, if it is long, given
 * back to the system as one. */
static struct moves *moves_take(struct perigee_engine *engine,
                                uint64_t places) {
  struct moves *m =
      spares_take(&engine->spares,
                  sizeof *m + places * (sizeof *m->move + sizeof *m->remote +
                                        sizeof *m->list));
  if (!m)
    return NULL;
  *m = (struct moves){.move = (struct place_move *)(void *)(m + 1)};
  m->remote = (struct extent *)(void *)(m->move + places);
  m->list = (struct perigee_transfer *)(void *)(m->remote + places);
  return m;
}

/* Of all regions of local memory: uses them (1), or not any more (-1). */
static void moves_hold(struct moves *m, int by) {
  for (struct spread *s = m->spreads; s; s = s->next)
    for (uint32_t i = 0; i < spread_regions(s); i++)
      CONTAINER(s->extents[i].area, struct perigee_region, area)->users +=
          (uint32_t)by;
}

static void moves_keep_remotes(struct moves *m) {
  for (uint32_t i = 0; i < m->count; i++)
    remote_use(m->list[i].remote.remote);
}

static void moves_drop_remotes(struct moves *m) {
  for (uint32_t i = 0; i < m->count; i++)
    remote_drop(m->list[i].remote.remote);
}

static void moves_keep_handles(struct moves *m) {
  for (struct spread *s = m->spreads; s; s = s->next)
    for (uint32_t i = 0; i < spread_regions(s); i++)
      region_keep(CONTAINER(s->extents[i].area, struct perigee_region, area));
}

static void moves_drop_handles(struct moves *m) {
  for (struct spread *s = m->spreads; s; s = s->next)
    for (uint32_t i = 0; i < spread_regions(s); i++)
      region_drop(CONTAINER(s->extents[i].area, struct perigee_region, area));
}

/* Ends the making: a spread was made with its memory in use. */
static int moves_made(struct moves *m, int status, struct moves **out) {
  moves_keep_handles(m);
  moves_keep_remotes(m);
  moves_unuse(m);
  if (status < 0)
    moves_free(m);
  else
    *out = m;
  return status;
}

int moves_make(struct perigee_session *s, int operation,
               const struct perigee_transfer *list, uint32_t count,
               struct moves **out) {
  int status = PERIGEE_OK;
  int64_t places = items_count_places(s, list, count);
  if (places < 0)
    return (int)places;
  struct moves *m = moves_take(s->engine, (uint64_t)places);
  if (!m)
    return PERIGEE_NO_MEMORY;
  for (uint32_t i = 0; i < count && status == PERIGEE_OK; i++)
    status = moves_add_item(s, operation, m, &list[i]);
  return moves_made(m, status, out);
}

/* ---- Some of the blocks ------------------------------------------------------- */

/* Looks what the slices of a side have in common; false if not enough. */
static bool blocks_look(struct numbered *b, int side) {
  const struct perigee_slice *s = b->side[side].slices;
  uint32_t n = b->side[side].count;
  uint64_t step = n > 1 ? s[1].offset - s[0].offset : 0;
  b->side[side].length = s[0].length;
  b->side[side].most = s[0].count;
  for (uint32_t i = 1; i < n; i++) {
    if (s[i].length != s[0].length)
      return false;
    if (s[i].count < b->side[side].most)
      b->side[side].most = s[i].count;
    if (s[i].region != s[0].region || s[i].stride != s[0].stride ||
        s[i].offset - s[i - 1].offset != step)
      step = 0;
  }
  b->side[side].step = step >= s[0].length && step <= PAYLOAD_MAX ? step : 0;
  return s[0].length > 0;
}

struct numbered *blocks_make(const struct perigee_transfer *item) {
  const struct perigee_slice *sides[SIDES] = {&item->local, &item->remote};
  uint32_t count[SIDES];
  for (int i = 0; i < SIDES; i++) {
    bool list = slice_is_list(sides[i]);
    count[i] = list ? (uint32_t)(sides[i]->count - PERIGEE_LIST) : 1;
    if (list)
      sides[i] = sides[i]->list;
  }
  struct numbered *b = calloc(1, sizeof *b + (count[LOCAL] + count[REMOTE]) *
                                                 sizeof b->slices[0]);
  if (!b)
    return NULL;
  for (int i = 0; i < SIDES; i++) {
    struct perigee_slice *own = b->slices + (i == REMOTE ? count[LOCAL] : 0);
    memcpy(own, sides[i], count[i] * sizeof *own);
    b->side[i].slices = own;
    b->side[i].count = count[i];
  }
  if (blocks_look(b, LOCAL) && blocks_look(b, REMOTE))
    return b;
  free(b);
  return NULL;
}

/* Names the block of that number of a slice. */
static struct perigee_slice block_of(const struct perigee_slice *slice,
                                     uint32_t number) {
  return (struct perigee_slice){{slice->region},
                                slice->offset + number * slice->stride,
                                slice->length,
                                1,
                                slice->length};
}

/* Returns how many slices name n blocks of each slice of a side. Blocks of one
 * number that lie at one distance from each other take a single one. */
static uint64_t blocks_room(const struct numbered *b, int side, uint32_t n,
                            bool by_number) {
  bool one = by_number && b->side[side].step > 0;
  return (uint64_t)n * (one ? 1 : b->side[side].count);
}

/* Names the blocks of one number of all slices of a side. Returns how many
 * slices that takes: one, if they lie at one distance from each other. */
static uint32_t blocks_of_number(const struct numbered *b, int side,
                                 uint32_t number, struct perigee_slice *out) {
  uint32_t count = b->side[side].count;
  out[0] = block_of(b->side[side].slices, number);
  if (b->side[side].step > 0) {
    out[0].count = count;
    out[0].stride = b->side[side].step;
    return 1;
  }
  for (uint32_t i = 1; i < count; i++)
    out[i] = block_of(&b->side[side].slices[i], number);
  return count;
}

/* Names the blocks of one side: number by number, or slice by slice. */
static uint32_t blocks_name(const struct numbered *b, int side,
                            const uint32_t *numbers, uint32_t n, bool by_number,
                            struct perigee_slice *out) {
  uint32_t named = 0;
  for (uint32_t i = 0; by_number && i < n; i++)
    named += blocks_of_number(b, side, numbers[i], out + named);
  for (uint32_t s = 0; !by_number && s < b->side[side].count; s++)
    for (uint32_t i = 0; i < n; i++)
      out[named++] = block_of(&b->side[side].slices[s], numbers[i]);
  return named;
}

static int blocks_check(struct perigee_session *s, const struct numbered *b,
                        const uint32_t *const numbers[SIDES], uint32_t n) {
  enum { BLOCKS_MOST = 1 << 20 };
  static const char *const names[SIDES] = {"local", "remote"};
  if (n < 1 || n > PERIGEE_LIST_MOST)
    return fail(s->engine, PERIGEE_INVALID,
                "1 to %d numbers of blocks are posted, not %u",
                PERIGEE_LIST_MOST, n);
  for (int side = 0; side < SIDES; side++) {
    if (!numbers[side])
      return fail_missing(s->engine, "list of numbers");
    if ((uint64_t)n * b->side[side].count > BLOCKS_MOST)
      return fail(s->engine, PERIGEE_TOO_LARGE,
                  "%u numbers of blocks in %u slices are more than %d blocks",
                  n, b->side[side].count, BLOCKS_MOST);
    for (uint32_t i = 0; i < n; i++)
      if (numbers[side][i] >= b->side[side].most)
        return fail(s->engine, PERIGEE_INVALID,
                    "number %u of the %s blocks is %u, of %llu that there are",
                    i + 1, names[side], numbers[side][i],
                    (unsigned long long)b->side[side].most);
  }
  return PERIGEE_OK;
}

/* Makes the moves of blocks that are named by slices. */
static int moves_of_named(struct perigee_session *s, int operation,
                          const struct perigee_slice *local, uint32_t locals,
                          const struct perigee_slice *remote, uint32_t remotes,
                          struct moves **out) {
  struct spread *spread;
  struct moves *m = moves_take(s->engine, remotes);
  if (!m)
    return PERIGEE_NO_MEMORY;
  int status = spread_of_slices(s->engine, local, locals,
                                operation == PERIGEE_OP_READ, &spread);
  if (status == PERIGEE_OK)
    status = moves_add_sides(s, operation, m, spread, remote, remotes, true);
  return moves_made(m, status, out);
}

int moves_of_blocks(struct perigee_session *s, int operation,
                    const struct numbered *b,
                    const uint32_t *const numbers[SIDES], uint32_t n,
                    struct moves **out) {
  int status = blocks_check(s, b, numbers, n);
  if (status < 0)
    return status;
  bool by_number = b->side[LOCAL].count == b->side[REMOTE].count &&
                   b->side[LOCAL].length == b->side[REMOTE].length;
  uint64_t room = blocks_room(b, LOCAL, n, by_number) +
                  blocks_room(b, REMOTE, n, by_number);
  struct perigee_slice *local =
      spares_take(&s->engine->spares, room * sizeof *local);
  if (!local)
    return PERIGEE_NO_MEMORY;
  uint32_t locals = blocks_name(b, LOCAL, numbers[LOCAL], n, by_number, local);
  struct perigee_slice *remote = local + locals;
  uint32_t remotes =
      blocks_name(b, REMOTE, numbers[REMOTE], n, by_number, remote);
  status = moves_of_named(s, operation, local, locals, remote, remotes, out);
  spares_give(local);
  return status;
}

/* ---- Their life ------------------------------------------------------------- */

void moves_use(struct moves *m) {
  moves_hold(m, 1);
}

void moves_unuse(struct moves *m) {
  moves_hold(m, -1);
}

bool moves_are_stale(const struct moves *m) {
  for (const struct spread *s = m->spreads; s; s = s->next)
    for (uint32_t i = 0; i < spread_regions(s); i++)
      if (CONTAINER(s->extents[i].area, struct perigee_region, area)->closed)
        return true;
  return false;
}

void moves_leave(struct moves *m, struct operation *op) {
  moves_drop_handles(m);
  while (m->spreads) {
    struct spread *s = m->spreads;
    m->spreads = s->next;
    spread_give(op, s);
  }
}

void moves_free(struct moves *m) {
  moves_drop_handles(m);
  moves_drop_remotes(m);
  while (m->spreads) {
    struct spread *s = m->spreads;
    m->spreads = s->next;
    spares_give(s);
  }
  spares_give(m);
}

/* ---- Payloads ---------------------------------------------------------------- */

int move_payloads(struct perigee_session *s, int operation,
                  const struct moves *m, uint32_t i, struct payload *remote,
                  struct payload *local) {
  const struct place_move *move = &m->move[i];
  *local = move->local->payload;
  local->done = move->begin;
  local->total = move->end;
  return item_remote(s, operation, &m->list[i].remote, remote);
}

void move_widen(const struct moves *m, uint32_t i, struct payload *remote,
                struct payload *local) {
  const struct place_move *move = &m->move[i], *last = &m->move[move->last];
  if (last == move)
    return;
  local->total = last->end;
  *remote = (struct payload){.memory = &memory_host,
                             .base = m->remote[i].base,
                             .block = (last->end - move->begin) /
                                      (move->last - i + 1),
                             .count = move->last - i + 1,
                             .total = last->end,
                             .done = move->begin,
                             .extents = &m->remote[i]};
}
