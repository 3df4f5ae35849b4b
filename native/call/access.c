/* SPDX-License-Identifier: Apache-2.0
 *
 * access.c - one-sided access that the owner of a region does for the peer: to
 * registered memory, to regions that the peer may only write, to memory that no
 * CPU can touch. Slot, generation, rights and bounds are checked before any
 * byte moves.
 */
#include <string.h>

#include "served.h"

/* ---- Access by the owner ------------------------------------------------- */

static int access_payload(struct operation *op, const struct access *a,
                          struct payload *p) {
  struct perigee_region *region =
      region_by_slot(op->engine, a->slot, a->generation);
  int right = op->record == RECORD_READ ? PERIGEE_READ : PERIGEE_WRITE;
  if (!region)
    return PERIGEE_STALE;
  if (!(region->access & right))
    return PERIGEE_DENIED;
  if (shape_total(a->block, a->count) == UINT64_MAX ||
      !shape_fits(region->length, a->offset, a->block, a->count, a->stride))
    return PERIGEE_RANGE;
  op->region = region;
  *p = (struct payload){.memory = region->memory,
                        .area = &region->area,
                        .base = region->pointer + a->offset,
                        .block = a->block,
                        .count = a->count,
                        .stride = a->stride,
                        .total = a->block * a->count};
  return PERIGEE_OK;
}

static void serve_read(struct operation *op, const struct access *a) {
  struct perigee_message m = {
      .slice = {{op->region}, a->offset, a->block, a->count, a->stride}};
  step(op, SERVE);
  operation_ref(op, op->region);
  served_answer(op, &m);
}

void served_access(struct operation *op, const struct record *r) {
  struct access a;
  struct payload p;
  if (r->head_length != sizeof a || !r->head) {
    serve_answer(op, PERIGEE_PROTOCOL);
    return;
  }
  memcpy(&a, r->head, sizeof a);
  /* A write that ended before it was served must not be done any more. */
  int status =
      served_wanted(op) ? access_payload(op, &a, &p) : PERIGEE_CANCELLED;
  if (status == PERIGEE_OK && op->record == RECORD_WRITE &&
      p.total != op->rest.length)
    status = PERIGEE_RANGE;
  if (status < 0) {
    serve_answer(op, status);
  } else if (op->record == RECORD_READ) {
    serve_read(op, &a);
  } else {
    operation_ref(op, op->region);
    status = serve_fetch(op, &p);
    if (status < 0)
      serve_answer(op, status);
  }
}
