/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "records are little-endian and written as they lie");

uint64_t shape_total(uint64_t block, uint64_t count) {
  uint64_t total;
  if (__builtin_mul_overflow(block, count, &total) || total > PAYLOAD_MAX)
    return UINT64_MAX;
  return total;
}

uint8_t *record_head(const struct record *r, uint8_t *bytes) {
  return (r->flags & RECORD_HEAD_BULK) ? NULL : bytes + record_before(r->flags);
}

static uint64_t record_head_room(const struct record *r) {
  return (r->flags & RECORD_HEAD_BULK) ? RECORD_SOURCE
                                       : record_padded(r->head_length);
}

uint64_t record_size(const struct record *r) {
  uint64_t n = record_before(r->flags) + record_head_room(r);
  if (r->flags & RECORD_SLICE)
    n += (r->flags & RECORD_SLICE_BULK) ? RECORD_SOURCE
                                        : 8 + record_padded(r->slice_length);
  return n;
}

/* Returns where the slice's length or its source stands. */
static uint8_t *record_slice_part(const struct record *r, uint8_t *bytes) {
  return bytes + record_before(r->flags) + record_head_room(r);
}

uint8_t *record_slice(const struct record *r, uint8_t *bytes) {
  bool here = (r->flags & (RECORD_SLICE | RECORD_SLICE_BULK)) == RECORD_SLICE;
  return here ? record_slice_part(r, bytes) + sizeof r->slice_length : NULL;
}

static void record_put_slice(const struct record *r, uint8_t *at) {
  if (r->flags & RECORD_SLICE_BULK)
    memcpy(at, &r->slice_source, RECORD_SOURCE);
  else
    memcpy(at, &r->slice_length, sizeof r->slice_length);
}

static inline void record_put_parts(const struct record *r, uint8_t *bytes) {
  if (r->flags & RECORD_SLICE)
    record_put_slice(r, record_slice_part(r, bytes));
  if (r->flags & RECORD_HEAD_BULK)
    memcpy(bytes + record_before(r->flags), &r->head_source, RECORD_SOURCE);
}

void record_encode(const struct record *r, uint8_t *bytes) {
  record_put_parts(r, bytes);
  record_encode_words(r, bytes);
}

void record_encode_traced(const struct record *r, uint8_t *bytes,
                          const struct perigee_trace *trace) {
  uint8_t *at = bytes + record_before(r->flags);
  record_put_parts(r, bytes + RECORD_TRACED);
  record_word(at + RECORD_TRACED - 8, 0);
  memcpy(at + RECORD_EXTENSION, trace, sizeof *trace);
  at[0] = RECORD_TRACE;
  at[1] = at[3] = 0;
  at[2] = RECORD_TRACED / 8;
  record_encode_behind(r, bytes, RECORD_TRACED);
}

void record_encode_lent(const struct record *r, uint8_t *bytes) {
  uint64_t before = record_before(r->flags), pad = RECORD_LENT - before;
  record_word(bytes + before, RECORD_PAD | pad / 8 << 16);
  record_encode_behind(r, bytes, pad);
}

/* As record_once(). */
static void copy_once(void *to, const uint8_t *from, uint64_t length) {
  memcpy(to, from, length);
  __asm__ volatile("" ::: "memory");
}

/* The bytes that are not decoded yet. */
struct rest {
  const uint8_t *at;
  uint64_t length;
};

static const uint8_t *record_take(struct rest *rest, uint64_t length) {
  if (length > rest->length)
    return NULL;
  const uint8_t *at = rest->at;
  rest->at += length;
  rest->length -= length;
  return at;
}

/* Reads the extensions. The length of their area is a multiple of 8. */
static bool record_take_extensions(struct rest *all, uint64_t length,
                                   struct record *r) {
  struct rest rest = {record_take(all, length), length};
  while (rest.at && rest.length > 0) {
    const uint8_t *at = rest.at;
    uint64_t word = record_once(at), size = 8 * (word >> 16 & 0xffff);
    if (size == 0 || !record_take(&rest, size))
      return false;
    if ((uint16_t)word != RECORD_TRACE)
      continue;
    if (r->trace || size < RECORD_TRACED)
      return false;
    r->trace = at + RECORD_EXTENSION;
  }
  return rest.at != NULL;
}

static bool record_take_source(struct rest *rest, struct source *s,
                               uint64_t *total) {
  const uint8_t *at = record_take(rest, RECORD_SOURCE);
  if (!at)
    return false;
  copy_once(s, at, RECORD_SOURCE);
  *total = shape_total(s->block, s->count);
  return *total != UINT64_MAX && s->count <= PAYLOAD_MAX &&
         s->stride <= PAYLOAD_MAX;
}

static bool record_take_head(struct rest *rest, uint32_t inline_length,
                             struct record *r) {
  if (r->flags & RECORD_HEAD_BULK)
    return record_take_source(rest, &r->head_source, &r->head_length);
  r->head_length = inline_length;
  r->head = record_take(rest, record_padded(inline_length));
  return r->head != NULL;
}

static bool record_take_slice(struct rest *rest, struct record *r) {
  if (r->flags & RECORD_SLICE_BULK)
    return r->flags & RECORD_SLICE &&
           record_take_source(rest, &r->slice_source, &r->slice_length);
  const uint8_t *at = record_take(rest, 8);
  if (!at)
    return false;
  r->slice_length = record_once(at);
  if (r->slice_length > rest->length)
    return false;
  r->slice = record_take(rest, record_padded(r->slice_length));
  return r->slice != NULL;
}

bool record_take_parts(const uint8_t *at, uint64_t length, uint64_t extensions,
                       uint32_t inline_length, struct record *r) {
  struct rest rest = {at, length};
  if (extensions > 0 && !record_take_extensions(&rest, extensions, r))
    return false;
  bool slice = r->flags & (RECORD_SLICE | RECORD_SLICE_BULK);
  return record_take_head(&rest, inline_length, r) &&
         (!slice || record_take_slice(&rest, r));
}
