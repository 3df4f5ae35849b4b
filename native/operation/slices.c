/* SPDX-License-Identifier: Apache-2.0
 *
 * slices.c - from the slice of a local region that a program names to a payload.
 */
#include "core/lock.h"
#include "operations.h"

int slice_payload(struct perigee_engine *engine,
                  const struct perigee_slice *slice, struct payload *p) {
  struct perigee_region *region = slice->region;
  if (UNLIKELY(!region))
    return fail_missing(engine, "region of a slice");
  if (region->closed)
    return fail(engine, PERIGEE_STALE, "the local region was closed");
  if (!region_has(region, slice) &&
      (!shape_fits(region->length, slice->offset, slice->length, slice->count,
                   slice->stride) ||
       shape_total(slice->length, slice->count) == UINT64_MAX))
    return fail(engine, PERIGEE_RANGE,
                "a slice lies outside of its region of %llu bytes",
                (unsigned long long)region->length);
  *p = (struct payload){.memory = region->memory,
                        .area = &region->area,
                        .base = region->pointer + slice->offset,
                        .block = slice->length,
                        .count = slice->count,
                        .stride = slice->stride,
                        .total = slice->length * slice->count};
  if (p->count > 1 && p->stride == p->block) { /* is contiguous */
    p->block = p->stride = p->total;
    p->count = 1;
  }
  return PERIGEE_OK;
}
