/* SPDX-License-Identifier: Apache-2.0
 *
 * transfer_submit.c - what a program submits of one-sided transfers: a list of items, one
 * of them with lists of slices, and prepared transfers, whole or some of their
 * blocks.
 *
 * Most transfers become no operation: short ones within reach are copied here
 * (PERIGEE_INLINE). The others are queued for transfer.c.
 *
 * Bounds and rights of both sides are checked before anything moves. A prepared
 * transfer is checked once and posted many times.
 */
#include <stdlib.h>
#include <string.h>

#include "core/lock.h"
#include "core/pool.h"
#include "transfers.h"

/* Transfers up to this size are copied while they are submitted. */
enum { AT_ONCE = 64 << 10 };

static const struct operation_class *
batch_class(const struct perigee_transfer *list, uint32_t count) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count && bytes < bulk_vast; i++)
    bytes += list[i].local.length * list[i].local.count;
  return bytes < bulk_vast ? &transfer_class : &transfer_vast;
}

/* A batch is checked completely before any item moves. */
static __attribute__((noinline)) int
batch_check(struct perigee_session *s, int operation,
            const struct perigee_transfer *list, uint32_t count,
            const struct operation_class **class) {
  int status = items_check(s, operation, list, count);
  if (status == PERIGEE_OK)
    *class = batch_class(list, count);
  return status;
}

/* Copies short items within reach now and returns their number. A mistake in
 * the first item is returned at once, for the caller to correct. */
static int64_t transfer_at_once(struct perigee_session *s, int operation,
                                const struct perigee_transfer *list,
                                uint32_t count) {
  struct payload remote, local; /* item_check fills them in */
  uint64_t room = AT_ONCE;
  uint32_t i;
  for (i = 0; i < count; i++) {
    int status = item_check(s, operation, &list[i], &remote, &local);
    if (status != PERIGEE_OK)
      return status;
    if (local.total > room || !transfer_immediate(s) ||
        !transfer_reaches(s, &list[i], &local))
      break;
    if (local.total > 0) {
      int64_t n = transfer_copy(s, &list[i], &remote, &local, room, operation);
      if (n < 0)
        return n;
    }
    room -= local.total;
  }
  return i;
}

/* Most transfers are one short piece of memory. Returns PERIGEE_OK, and copies
 * nothing, if the item is anything else, or is wrong. */
static int transfer_piece(struct perigee_session *s, int operation,
                          const struct perigee_transfer *item) {
  if (operation == PERIGEE_OP_WRITE_IMM || item->local.length > AT_ONCE ||
      !transfer_immediate(s) || !item_is_piece(s, operation, item))
    return PERIGEE_OK;
  struct payload remote, local;
  item_piece(item, &remote, &local);
  if (!transfer_reaches(s, item, &local))
    return PERIGEE_OK;
  int64_t n = transfer_copy(s, item, &remote, &local, local.total, operation);
  if (n < 0)
    return (int)n;
  transfer_count(s, operation, item, 1);
  return PERIGEE_INLINE;
}

static int transfer_start(struct perigee_session *s, int operation,
                          const struct perigee_transfer *list, uint32_t count,
                          uint64_t immediate, int64_t timeout,
                          struct perigee_prepared *prepared) {
  const struct operation_class *class = &transfer_class;
  int status =
      count > 1 ? batch_check(s, operation, list, count, &class) : PERIGEE_OK;
  if (status < 0)
    return status;
  int64_t done = transfer_at_once(s, operation, list, count);
  if (done < 0)
    return (int)done;
  bool imm = operation == PERIGEE_OP_WRITE_IMM;
  if (done == count && (!imm || transfer_immediate_out(s, immediate))) {
    transfer_count(s, operation, list, count);
    return PERIGEE_INLINE;
  }
  return transfer_queue(s, class, operation, list, count, immediate, timeout,
                        prepared, (uint32_t)done);
}

static int prepared_make(struct perigee_session *s, int operation,
                         const struct perigee_transfer *list, uint32_t count,
                         struct perigee_prepared **out) {
  struct perigee_prepared *p =
      spares_take(&s->engine->spares, sizeof *p + count * sizeof *list);
  if (!p)
    return PERIGEE_NO_MEMORY;
  *p = (struct perigee_prepared){.session = s,
                                 .operation = (uint8_t)operation,
                                 .count = count,
                                 .posted = -1};
  if (count > 0)
    memcpy(p->list, list, count * sizeof *list);
  *out = p;
  return PERIGEE_OK;
}

/* Makes a prepared transfer of moves, which go with it. */
static int listed_of_moves(struct perigee_session *s, int operation,
                           struct moves *m, bool apart,
                           struct perigee_prepared **out) {
  int status = prepared_make(s, operation, NULL, 0, out);
  if (status < 0) {
    moves_free(m);
    return status;
  }
  (*out)->moves = m;
  (*out)->apart = apart;
  for (uint32_t i = 0; i < m->count; i++)
    (*out)->total += m->move[i].end - m->move[i].begin;
  return PERIGEE_OK;
}

/* Makes a prepared transfer of items with lists. */
static int listed_make(struct perigee_session *s, int operation,
                       const struct perigee_transfer *list, uint32_t count,
                       struct perigee_prepared **out) {
  struct moves *m;
  int status = moves_make(s, operation, list, count, &m);
  return status < 0 ? status
                    : listed_of_moves(s, operation, m, count == 1, out);
}

/* The same to be posted again and again. */
static int listed_prepare(struct perigee_session *s, int operation,
                          const struct perigee_transfer *list, uint32_t count,
                          struct perigee_prepared **out) {
  int status = listed_make(s, operation, list, count, out);
  if (status == PERIGEE_OK && count == 1)
    (*out)->blocks = blocks_make(list);
  return status;
}

/* Copies all moves now, if they are short and within reach: their number, 0 or a
 * status. */
static int64_t listed_at_once(const struct perigee_prepared *p) {
  struct perigee_session *s = p->session;
  const struct moves *m = p->moves;
  struct payload remote, local;
  if (p->total > AT_ONCE || !transfer_immediate(s))
    return 0;
  for (uint32_t i = 0; i < m->count; i++)
    if (!transfer_reaches(s, &m->list[i], &m->move[i].local->payload))
      return 0;
  for (uint32_t i = 0; i < m->count; i = m->move[i].last + 1) {
    int status = move_payloads(s, p->operation, m, i, &remote, &local);
    if (status < 0)
      return status;
    move_widen(m, i, &remote, &local);
    int64_t n =
        transfer_copy(s, &m->list[i], &remote, &local, p->total, p->operation);
    if (n < 0)
      return n;
  }
  return m->count;
}

static int listed_start(struct perigee_prepared *p, int64_t timeout) {
  struct perigee_session *s = p->session;
  struct moves *m = p->moves;
  bool imm = p->operation == PERIGEE_OP_WRITE_IMM;
  int64_t done = listed_at_once(p);
  if (done < 0)
    return (int)done;
  if (done == m->count && (m->count > 0 || !imm) &&
      (!imm || transfer_immediate_out(s, p->immediate))) {
    transfer_count(s, p->operation, m->list, m->count);
    return PERIGEE_INLINE;
  }
  moves_use(m);
  int status =
      transfer_queue(s, &transfer_listed, p->operation, m->list, m->count,
                     p->immediate, timeout, p, (uint32_t)done);
  if (status < 0)
    moves_unuse(m);
  return status;
}

/* Starts what is made for one post. */
static int listed_start_once(struct perigee_prepared *p, uint64_t immediate,
                             int64_t timeout) {
  p->immediate = immediate;
  p->once = true;
  int status = listed_start(p, timeout);
  if (status < 0 || status == PERIGEE_INLINE)
    transfer_free_listed(p);
  return status;
}

static int listed_submit(struct perigee_session *s, int operation,
                         const struct perigee_transfer *list, uint32_t count,
                         uint64_t immediate, int64_t timeout) {
  struct perigee_prepared *p;
  int status = listed_make(s, operation, list, count, &p);
  return status < 0 ? status : listed_start_once(p, immediate, timeout);
}

static int transfer_submit(struct perigee_session *s, int operation,
                           const struct perigee_transfer *list, uint32_t count,
                           uint64_t immediate, int64_t timeout) {
  int status;
  if (!session_open_for(s, &status))
    return status;
  if (operation < PERIGEE_OP_READ || operation > PERIGEE_OP_WRITE_IMM)
    return fail(s->engine, PERIGEE_INVALID, "no operation %d", operation);
  if (UNLIKELY(!list && count > 0))
    return fail_missing(s->engine, "list of transfers");
  if (count == 1 && (status = transfer_piece(s, operation, list)) != PERIGEE_OK)
    return status;
  status = transfer_start(s, operation, list, count, immediate, timeout, NULL);
  return UNLIKELY(status == ITEM_LISTED)
             ? listed_submit(s, operation, list, count, immediate, timeout)
             : status;
}

BESIDE transfer_submit_locked(struct perigee_session *s, int operation,
                              const struct perigee_transfer *list,
                              uint32_t count, uint64_t immediate,
                              int64_t timeout) {
  ENTER(s->engine);
  return transfer_submit(s, operation, list, count, immediate, timeout);
}

int perigee_transfer(struct perigee_session *s, int operation,
                     const struct perigee_transfer *list, uint32_t count,
                     uint64_t immediate, int64_t timeout) {
  return SHARED(s->engine)
             ? transfer_submit_locked(s, operation, list, count, immediate,
                                      timeout)
             : transfer_submit(s, operation, list, count, immediate, timeout);
}

/* ---- Prepared transfers ------------------------------------------------- */

static void prepared_simplify(struct perigee_prepared *p) {
  p->simple = p->count == 1 &&
              transfer_reaches(p->session, &p->list[0], &p->local) &&
              p->local.total <= AT_ONCE && p->local.count == 1 &&
              p->remote.count == 1 && p->operation != PERIGEE_OP_WRITE_IMM &&
              transfer_immediate(p->session);
}

/* Is one of its regions closed? Their handles are kept for this. */
static bool prepared_is_stale(const struct perigee_prepared *p) {
  for (uint32_t i = 0; i < p->count; i++)
    if (p->list[i].local.region->closed)
      return true;
  return p->moves && moves_are_stale(p->moves);
}

static int prepared_refuse_stale(const struct perigee_prepared *p) {
  return fail(p->session->engine, PERIGEE_STALE, "the local region was closed");
}

int perigee_prepare(struct perigee_session *s, int operation,
                    const struct perigee_transfer *list, uint32_t count,
                    uint64_t immediate, struct perigee_prepared **out) {
  ENTER(s->engine);
  int status;
  if (!session_open_for(s, &status))
    return status;
  if (count == 0)
    return fail(s->engine, PERIGEE_INVALID, "nothing to prepare");
  if (!list)
    return fail_missing(s->engine, "list of transfers");
  struct perigee_prepared *p;
  status = items_check(s, operation, list, count);
  if (status == ITEM_LISTED)
    status = listed_prepare(s, operation, list, count, &p);
  else if (status == PERIGEE_OK)
    status = prepared_make(s, operation, list, count, &p);
  if (status != PERIGEE_OK)
    return status;
  p->immediate = immediate;
  for (uint32_t i = 0; i < p->count; i++) {
    region_keep(list[i].local.region);
    remote_use(list[i].remote.remote);
  }
  if (!p->moves) {
    payload_bytes(&p->local, NULL, 0);
    item_check(s, operation, &p->list[0], &p->remote, &p->local);
    prepared_simplify(p);
  }
  p->next = s->operations.prepared;
  s->operations.prepared = p;
  *out = p;
  return PERIGEE_OK;
}

static int prepared_post(struct perigee_prepared *p, int64_t timeout) {
  struct perigee_session *s = p->session;
  int status;
  if (!session_open_for(s, &status))
    return status;
  if (p->simple) {
    if (UNLIKELY(p->list[0].local.region->closed))
      return prepared_refuse_stale(p);
    struct payload remote = p->remote, local = p->local;
    int64_t n = transfer_copy(s, &p->list[0], &remote, &local, local.total,
                              p->operation);
    transfer_count(s, p->operation, p->list, n < 0 ? 0 : 1);
    return n < 0 ? (int)n : PERIGEE_INLINE;
  }
  if (prepared_is_stale(p))
    return prepared_refuse_stale(p);
  if (p->posted >= 0)
    return fail(s->engine, PERIGEE_AGAIN, "it is posted already");
  status = p->moves ? listed_start(p, timeout)
                    : transfer_start(s, p->operation, p->list, p->count,
                                     p->immediate, timeout, p);
  if (status >= 0 && status != PERIGEE_INLINE)
    p->posted = status;
  return status;
}

BESIDE prepared_post_locked(struct perigee_prepared *p, int64_t timeout) {
  ENTER(p->session->engine);
  return prepared_post(p, timeout);
}

int perigee_post(struct perigee_prepared *p, int64_t timeout) {
  return SHARED(p->session->engine) ? prepared_post_locked(p, timeout)
                                    : prepared_post(p, timeout);
}

int perigee_post_blocks(struct perigee_prepared *p, const uint32_t *local,
                        const uint32_t *remote, uint32_t count,
                        int64_t timeout) {
  ENTER(p->session->engine);
  const uint32_t *const numbers[SIDES] = {local, remote};
  struct perigee_session *s = p->session;
  struct perigee_prepared *once;
  struct moves *m;
  int status;
  if (!session_open_for(s, &status))
    return status;
  if (prepared_is_stale(p))
    return prepared_refuse_stale(p);
  if (!p->blocks)
    return fail(s->engine, PERIGEE_INVALID,
                "blocks are posted by numbers of one item with a list, whose "
                "slices have blocks of one length");
  status = moves_of_blocks(s, p->operation, p->blocks, numbers, count, &m);
  if (status == PERIGEE_OK)
    status = listed_of_moves(s, p->operation, m, true, &once);
  return status != PERIGEE_OK ? status
                              : listed_start_once(once, p->immediate, timeout);
}

void perigee_prepared_free(struct perigee_prepared *p) {
  LOOK(p->session->engine);
  struct perigee_prepared **at = &p->session->operations.prepared;
  while (*at && *at != p)
    at = &(*at)->next;
  if (*at)
    *at = p->next;
  for (uint32_t i = 0; i < p->count; i++) {
    region_drop(p->list[i].local.region);
    remote_drop(p->list[i].remote.remote);
  }
  if (p->moves)
    moves_free(p->moves);
  free(p->blocks);
  spares_give(p);
}
