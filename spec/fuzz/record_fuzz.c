/* SPDX-License-Identifier: Apache-2.0
 *
 * record_fuzz.c - any bytes as a record of a ring. The decoded record must lie
 * inside the bytes, keep the limits of record.h, and encode to a record that
 * decodes to the same.
 *
 * decoder: native/base/record.c
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/record.h"
#include "perigee.h"

static void require(bool holds) {
  if (!holds)
    abort();
}

static bool is_inside(const uint8_t *part, uint64_t length, const uint8_t *data,
                      size_t size) {
  return part >= data && length <= size &&
         (size_t)(part - data) <= size - length;
}

static bool has_inline_slice(const struct record *record) {
  return (record->flags & (RECORD_SLICE | RECORD_SLICE_BULK)) == RECORD_SLICE;
}

static void promised(const struct record *record, const uint8_t *data,
                     size_t size) {
  require(record->kind > 0 && record->kind < RECORD_KINDS);
  require((record->flags & ~RECORD_FLAGS) == 0);
  require(record->head_length <= PAYLOAD_MAX);
  require(record->slice_length <= PAYLOAD_MAX);
  require(record->capacity <= PAYLOAD_MAX);
  if (!(record->flags & RECORD_HEAD_BULK))
    require(is_inside(record->head, record->head_length, data, size));
  if (has_inline_slice(record))
    require(is_inside(record->slice, record->slice_length, data, size));
  if (record->trace)
    require(is_inside(record->trace, RECORD_TRACE_PAYLOAD, data, size));
}

static bool same(const struct record *a, const struct record *b) {
  if (a->kind != b->kind || a->flags != b->flags || a->codec != b->codec ||
      a->method != b->method || a->operation != b->operation ||
      a->status != b->status || a->generation != b->generation ||
      a->remaining != b->remaining || a->code != b->code ||
      a->capacity != b->capacity || a->head_length != b->head_length ||
      a->slice_length != b->slice_length)
    return false;
  if (!(a->flags & RECORD_HEAD_BULK) &&
      memcmp(a->head, b->head, a->head_length) != 0)
    return false;
  if (has_inline_slice(a) && memcmp(a->slice, b->slice, a->slice_length) != 0)
    return false;
  if ((a->flags & RECORD_HEAD_BULK) &&
      memcmp(&a->head_source, &b->head_source, RECORD_SOURCE) != 0)
    return false;
  if (!a->trace != !b->trace ||
      (a->trace && memcmp(a->trace, b->trace, RECORD_TRACE_PAYLOAD) != 0))
    return false;
  return !(a->flags & RECORD_SLICE_BULK) ||
         memcmp(&a->slice_source, &b->slice_source, RECORD_SOURCE) == 0;
}

static void encodes(const struct record *record) {
  uint64_t more = record->trace ? RECORD_TRACED : 0;
  uint64_t size = record_size(record) + more;
  uint8_t *bytes = calloc(1, size);
  struct perigee_trace trace;
  struct record again;
  require(bytes != NULL);
  uint8_t *head = record_head(record, bytes + more);
  uint8_t *slice = record_slice(record, bytes + more);
  if (record->trace)
    record_encode_traced(record, bytes,
                         memcpy(&trace, record->trace, sizeof trace));
  else
    record_encode(record, bytes);
  if (head)
    memcpy(head, record->head, record->head_length);
  if (slice && record->slice)
    memcpy(slice, record->slice, record->slice_length);
  require(record_decode(bytes, size, &again) == PERIGEE_OK);
  require(same(record, &again));
  free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct record record;
  int status = record_decode(data, size, &record);
  require(status == PERIGEE_OK || status == PERIGEE_PROTOCOL ||
          status == PERIGEE_UNSUPPORTED);
  if (status == PERIGEE_OK) {
    promised(&record, data, size);
    encodes(&record);
  }
  return 0;
}
