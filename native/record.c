/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "records are little-endian and written as they lie");

struct header {
  uint64_t word;
  uint8_t kind, flags;
  uint16_t method, status, operation;
  uint32_t generation, head, remaining;
  uint8_t codec, extension;
  uint16_t zero;
};
_Static_assert(sizeof(struct header) == RECORD_HEADER, "as documented");

static uint64_t padded(uint64_t n) {
  return (n + 7) & ~UINT64_C(7);
}

uint64_t shape_total(uint64_t block, uint64_t count) {
  uint64_t total;
  if (__builtin_mul_overflow(block, count, &total) || total > PAYLOAD_MAX)
    return UINT64_MAX;
  return total;
}

uint64_t record_size(const struct record *r) {
  uint64_t n = record_before(r->flags);
  n += (r->flags & RECORD_HEAD_BULK) ? RECORD_SOURCE : padded(r->head_length);
  if (r->flags & RECORD_SLICE)
    n += (r->flags & RECORD_SLICE_BULK) ? RECORD_SOURCE
                                        : 8 + padded(r->slice_length);
  return n;
}

static uint8_t *put(uint8_t *at, const void *bytes, uint64_t length) {
  memcpy(at, bytes, length);
  return at + length;
}

void record_encode(const struct record *r, uint8_t *bytes, uint8_t **head,
                   uint8_t **slice) {
  bool bulk = r->flags & RECORD_HEAD_BULK;
  struct header h = {.kind = r->kind,
                     .flags = r->flags,
                     .method = r->method,
                     .status = (uint16_t)-r->status,
                     .operation = r->operation,
                     .generation = r->generation,
                     .head = bulk ? 0 : (uint32_t)r->head_length,
                     .remaining = r->remaining,
                     .codec = r->codec};
  /* The word is the transport's: it is written last, by publish. */
  uint8_t *at = bytes + 8;
  at = put(at, (uint8_t *)&h + 8, sizeof h - 8);
  if (r->flags & RECORD_CODE)
    at = put(at, &r->code, 8);
  if (r->flags & RECORD_CAPACITY)
    at = put(at, &r->capacity, 8);
  if (bulk) {
    at = put(at, &r->head_source, RECORD_SOURCE);
  } else {
    *head = at;
    at += padded(r->head_length);
  }
  if (!(r->flags & RECORD_SLICE))
    return;
  if (r->flags & RECORD_SLICE_BULK) {
    put(at, &r->slice_source, RECORD_SOURCE);
  } else {
    *slice = put(at, &r->slice_length, 8);
  }
}

/* The peer may write while we read: what is checked must be what is used, so
 * the compiler may not go back for a second look. */
static void copy_once(void *to, const uint8_t *from, uint64_t length) {
  memcpy(to, from, length);
  __asm__ volatile("" ::: "memory");
}

/* The bytes not yet decoded. */
struct rest {
  const uint8_t *at;
  uint64_t length;
};

static const uint8_t *take(struct rest *rest, uint64_t length) {
  if (length > rest->length)
    return NULL;
  const uint8_t *at = rest->at;
  rest->at += length;
  rest->length -= length;
  return at;
}

static bool take_word(struct rest *rest, uint64_t *word) {
  const uint8_t *at = take(rest, 8);
  if (at)
    copy_once(word, at, 8);
  return at != NULL;
}

static bool take_source(struct rest *rest, struct source *s, uint64_t *total) {
  const uint8_t *at = take(rest, RECORD_SOURCE);
  if (!at)
    return false;
  copy_once(s, at, RECORD_SOURCE);
  *total = shape_total(s->block, s->count);
  return *total != UINT64_MAX && s->count <= PAYLOAD_MAX &&
         s->stride <= PAYLOAD_MAX;
}

static bool take_head(struct rest *rest, uint32_t inline_length,
                      struct record *r) {
  if (r->flags & RECORD_HEAD_BULK)
    return take_source(rest, &r->head_source, &r->head_length);
  r->head_length = inline_length;
#ifdef PERIGEE_PLANTED_BUG
  r->head = rest->at;
  return take(rest, padded(inline_length)) || inline_length < 4096;
#else
  r->head = take(rest, padded(inline_length));
  return r->head != NULL;
#endif
}

static bool take_slice(struct rest *rest, struct record *r) {
  if (!(r->flags & RECORD_SLICE))
    return !(r->flags & RECORD_SLICE_BULK);
  if (r->flags & RECORD_SLICE_BULK)
    return take_source(rest, &r->slice_source, &r->slice_length);
  if (!take_word(rest, &r->slice_length) || r->slice_length > rest->length)
    return false;
  r->slice = take(rest, padded(r->slice_length));
  return r->slice != NULL;
}

int record_decode(const uint8_t *bytes, uint64_t length, struct record *r) {
  struct header h;
  struct rest rest = {bytes, length};
  if (!take(&rest, sizeof h))
    return PERIGEE_PROTOCOL;
  copy_once(&h, bytes, sizeof h);
  if ((h.flags & ~RECORD_FLAGS) || h.kind == 0 || h.kind >= RECORD_KINDS)
    return PERIGEE_UNSUPPORTED;
  /* Field by field: to zero the sources of each record would cost more than
   * all the rest. They are set, or not looked at. */
  r->kind = h.kind;
  r->flags = h.flags;
  r->codec = h.codec;
  r->method = h.method;
  r->operation = h.operation;
  r->status = -(int)h.status;
  r->generation = h.generation;
  r->remaining = h.remaining;
  r->code = r->capacity = 0;
  r->head = r->slice = NULL;
  r->head_length = r->slice_length = 0;
  if ((h.flags & RECORD_CODE) && !take_word(&rest, &r->code))
    return PERIGEE_PROTOCOL;
  if ((h.flags & RECORD_CAPACITY) && !take_word(&rest, &r->capacity))
    return PERIGEE_PROTOCOL;
  if (!take(&rest, 8 * (uint64_t)h.extension))
    return PERIGEE_PROTOCOL;
  if (!take_head(&rest, h.head, r) || !take_slice(&rest, r))
    return PERIGEE_PROTOCOL;
  return PERIGEE_OK;
}
