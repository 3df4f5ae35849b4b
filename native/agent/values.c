/* SPDX-License-Identifier: Apache-2.0
 *
 * values.c - writes and reads typed values (PERIGEE_TYPED): LuaJIT's
 * string.buffer data, whose grammar is in base/typed.c, as Lua's codec sends
 * them (lua/perigee/typed/codec.lua).
 *
 * A slice is a nil in its place. Its place, counted from 1, is one more value
 * behind all others.
 *
 * The encoder writes what LuaJIT's own encoder writes for the same values. It
 * knows how many items its tables lack, but not which of them are keys. So data
 * with tables are scanned at the end, as a peer's would be. Data without tables
 * need no scan: 250 plain values are within all limits.
 *
 * The decoder walks without a stack. It counts the items that tables have
 * promised and that have not come. No value makes it read beyond the data. Keys
 * and depth are the scanner's to check, which has seen the data before.
 */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"
#include "base/typed.h"
#include "core/lock.h"
#include "perigee.h"

/* ---- Encoder: room, and what is owed ------------------------------------- */

/* perigee_encoder.flags. OVER: it has failed or ended, and takes nothing. */
enum { ENCODER_OVER = 1, ENCODER_TABLES = 2 };

/* The longest data that LuaJIT takes. */
static const uint64_t LONGEST = INT32_MAX;

void perigee_encode_begin(struct perigee_encoder *e, void *bytes,
                          uint64_t capacity) {
  *e = (struct perigee_encoder){.bytes = bytes,
                                .capacity = bytes ? capacity : 0};
}

static void encode_fails(struct perigee_encoder *e, int status,
                         const char *why) {
  if (e->status < 0)
    return;
  e->status = status;
  e->why = why;
  e->flags |= ENCODER_OVER;
}

/* Begins a value, at the top level or of a table. */
static inline bool encode_item(struct perigee_encoder *e) {
  if (UNLIKELY(e->flags & ENCODER_OVER)) {
    encode_fails(e, PERIGEE_INVALID, "it comes after perigee_encode_end");
    return false;
  }
  if (e->owed > 0)
    e->owed--;
  else
    e->values++;
  return true;
}

/* Counts so many bytes, and returns where they go: NULL without room. */
static inline uint8_t *encode_room(struct perigee_encoder *e, uint64_t bytes) {
  uint64_t at = e->length;
  e->length = at + bytes;
  return e->length <= e->capacity ? e->bytes + at : NULL;
}

static void encode_tag(struct perigee_encoder *e, uint8_t tag) {
  uint8_t *to = encode_item(e) ? encode_room(e, 1) : NULL;
  if (to)
    *to = tag;
}

static inline void encode_eight(struct perigee_encoder *e, uint8_t tag,
                                const void *eight) {
  uint8_t *to = encode_item(e) ? encode_room(e, 9) : NULL;
  if (!to)
    return;
  *to = tag;
  memcpy(to + 1, eight, 8);
}

/* Returns how many bytes a tag or a count takes. */
static inline uint64_t encode_size(uint32_t value) {
  return value < TYPED_TWO ? 1 : value < TYPED_FIVE ? 2 : 5;
}

/* Writes a tag or a count, and returns what follows it. */
static inline uint8_t *encode_count(uint8_t *to, uint32_t value) {
  if (value < TYPED_TWO) {
    *to = (uint8_t)value;
    return to + 1;
  }
  if (value < TYPED_FIVE) {
    value -= TYPED_TWO;
    to[0] = (uint8_t)(TYPED_TWO | value >> 8);
    to[1] = (uint8_t)value;
    return to + 2;
  }
  *to = 0xff;
  memcpy(to + 1, &value, 4);
  return to + 5;
}

/* ---- Encoder: values ----------------------------------------------------- */

void perigee_encode_nil(struct perigee_encoder *e) {
  encode_tag(e, TYPED_NIL);
}

void perigee_encode_boolean(struct perigee_encoder *e, bool value) {
  encode_tag(e, value ? TYPED_TRUE : TYPED_FALSE);
}

void perigee_encode_number(struct perigee_encoder *e, double value) {
  encode_eight(e, TYPED_NUMBER, &value);
}

void perigee_encode_int64(struct perigee_encoder *e, int64_t value) {
  encode_eight(e, TYPED_INT64, &value);
}

void perigee_encode_uint64(struct perigee_encoder *e, uint64_t value) {
  encode_eight(e, TYPED_UINT64, &value);
}

void perigee_encode_string(struct perigee_encoder *e, const char *text,
                           uint64_t length) {
  if (!encode_item(e))
    return;
  if (UNLIKELY(!text && length > 0)) {
    encode_fails(e, PERIGEE_INVALID, "a string that is NULL");
    return;
  }
  if (UNLIKELY(length > LONGEST)) {
    encode_fails(e, PERIGEE_TOO_LARGE, "a string of more than 2^31 - 1 bytes");
    return;
  }
  uint32_t tag = TYPED_STRING + (uint32_t)length;
  uint8_t *to = encode_room(e, encode_size(tag) + length);
  if (to && length > 0)
    memcpy(encode_count(to, tag), text, length);
  else if (to)
    *to = TYPED_STRING;
}

void perigee_encode_text(struct perigee_encoder *e, const char *text) {
  if (text)
    perigee_encode_string(e, text, strlen(text));
  else if (encode_item(e))
    encode_fails(e, PERIGEE_INVALID, "a text that is NULL");
}

void perigee_encode_slice(struct perigee_encoder *e) {
  bool inside = e->owed > 0;
  if (!encode_item(e))
    return;
  if (inside || e->place) {
    encode_fails(e, PERIGEE_INVALID,
                 inside ? "a slice in a table" : "a second slice");
    return;
  }
  e->place = e->values;
  uint8_t *to = encode_room(e, 1);
  if (to)
    *to = TYPED_NIL;
}

/* slots: as they are counted on the wire, with slot 0. */
static void encode_shape(struct perigee_encoder *e, uint32_t shape,
                         uint32_t slots, uint32_t pairs) {
  uint64_t bytes = 1 + (slots ? encode_size(slots) : 0);
  uint8_t *to = encode_room(e, bytes + (pairs ? encode_size(pairs) : 0));
  if (!to)
    return;
  *to++ = (uint8_t)(TYPED_TABLE + shape + (pairs ? TYPED_PAIRS : 0));
  if (slots)
    to = encode_count(to, slots);
  if (pairs)
    encode_count(to, pairs);
}

static void encode_table(struct perigee_encoder *e, uint64_t elements,
                         uint64_t pairs, bool from_zero) {
  if (!encode_item(e))
    return;
  if (elements >= TYPED_COUNT || pairs > TYPED_COUNT) {
    encode_fails(e, PERIGEE_TOO_LARGE,
                 "a table of 2^26 elements, or of more pairs");
    return;
  }
  e->flags |= ENCODER_TABLES;
  e->owed += elements + 2 * pairs;
  uint32_t shape = !elements ? 0 : from_zero ? TYPED_SLOTS : TYPED_SLOTS_FROM_1;
  uint32_t slots = (uint32_t)elements + (shape == TYPED_SLOTS_FROM_1);
  encode_shape(e, shape, slots, (uint32_t)pairs);
}

void perigee_encode_table(struct perigee_encoder *e, uint64_t elements,
                          uint64_t pairs) {
  encode_table(e, elements, pairs, false);
}

void perigee_encode_value(struct perigee_encoder *e,
                          const struct perigee_value *v) {
  switch (v->kind) {
  case PERIGEE_VALUE_NIL:
    return perigee_encode_nil(e);
  case PERIGEE_VALUE_BOOLEAN:
    return perigee_encode_boolean(e, v->boolean);
  case PERIGEE_VALUE_NUMBER:
    return perigee_encode_number(e, v->number);
  case PERIGEE_VALUE_INT64:
    return perigee_encode_int64(e, v->int64);
  case PERIGEE_VALUE_UINT64:
    return perigee_encode_uint64(e, v->uint64);
  case PERIGEE_VALUE_STRING:
    return perigee_encode_string(e, v->string, v->length);
  case PERIGEE_VALUE_TABLE:
    return encode_table(e, v->length, v->pairs, v->from_zero);
  case PERIGEE_VALUE_SLICE:
    return perigee_encode_slice(e);
  default:
    if (encode_item(e))
      encode_fails(e, PERIGEE_INVALID, "a value of a kind that there is not");
  }
}

/* ---- Encoder: the end ---------------------------------------------------- */

static void encode_place(struct perigee_encoder *e) {
  double place = e->place;
  if (place > 0)
    encode_eight(e, TYPED_NUMBER, &place);
}

/* Tables may be what no peer takes: the scanner tells. */
static void encode_scan(struct perigee_encoder *e) {
  int status = typed_scan(e->bytes, e->length, NULL);
  if (status == PERIGEE_PROTOCOL)
    encode_fails(e, PERIGEE_INVALID,
                 "a table has a key that is nil or NaN, or a nil in a pair, or "
                 "it is more than 64 tables deep");
  else if (status < 0)
    encode_fails(e, status,
                 status == PERIGEE_TOO_LARGE
                     ? "its tables would take a peer more memory or time than "
                       "a call may (perigee_typed_scan)"
                     : perigee_status_text(status));
}

static void encode_check(struct perigee_encoder *e) {
  if (e->owed > 0)
    encode_fails(e, PERIGEE_INVALID, "its tables lack elements or pairs");
  else if (e->values > TYPED_VALUES)
    encode_fails(e, PERIGEE_TOO_LARGE,
                 "more than 250 values (the place of a slice is one)");
  else if (e->length > LONGEST)
    encode_fails(e, PERIGEE_TOO_LARGE, "more than 2^31 - 1 bytes");
  else if (e->length > e->capacity)
    encode_fails(e, PERIGEE_TOO_LARGE, "its capacity is too small");
  else if (e->flags & ENCODER_TABLES)
    encode_scan(e);
}

int64_t perigee_encode_end(struct perigee_encoder *e) {
  if (!(e->flags & ENCODER_OVER)) {
    if (e->owed == 0)
      encode_place(e);
    encode_check(e);
    e->flags |= ENCODER_OVER;
  }
  if (e->status < 0)
    return detail_fail(e->status, "typed value %u, of %llu bytes so far: %s",
                       e->values, (unsigned long long)e->length, e->why);
  return (int64_t)e->length;
}

/* ---- Decoder: bytes ------------------------------------------------------ */

static int decode_fails(struct perigee_decoder *d, const char *why) {
  d->status = detail_fail(PERIGEE_PROTOCOL, "typed value %u, byte %llu: %s",
                          d->values, (unsigned long long)d->at, why);
  return d->status;
}

static inline uint64_t decode_left(const struct perigee_decoder *d) {
  return d->length - d->at;
}

/* Reads a number of 1, 2 or 5 bytes; false: it is cut off, or longer than it
 * has to be. */
static inline bool decode_count(struct perigee_decoder *d, uint32_t *value) {
  const uint8_t *at = d->data + d->at;
  uint64_t left = decode_left(d);
  if (left < 1)
    return false;
  *value = at[0];
  uint64_t size = *value < TYPED_TWO ? 1 : *value < 0xff ? 2 : 5;
  if (left < size)
    return false;
  d->at += size;
  if (size == 2)
    *value = ((*value & 0x1f) << 8) + at[1] + TYPED_TWO;
  if (size == 5)
    memcpy(value, at + 1, 4);
  return size < 5 || *value >= TYPED_FIVE;
}

/* Copies the next bytes of a value of a fixed size. */
static inline bool decode_bytes(struct perigee_decoder *d, void *to,
                                uint64_t size) {
  if (decode_left(d) < size)
    return false;
  memcpy(to, d->data + d->at, size);
  d->at += size;
  return true;
}

/* ---- Decoder: values ----------------------------------------------------- */

static bool decode_string(struct perigee_decoder *d, uint32_t length,
                          struct perigee_value *v) {
  if (decode_left(d) < length)
    return false;
  v->kind = PERIGEE_VALUE_STRING;
  v->string = (const char *)d->data + d->at;
  v->length = length;
  d->at += length;
  return true;
}

/* A count that is there is at least 1. */
static bool decode_some(struct perigee_decoder *d, bool there,
                        uint32_t *count) {
  *count = 0;
  return !there ||
         (decode_count(d, count) && *count > 0 && *count <= TYPED_COUNT);
}

/* Slot 0, which a table from slot 1 counts, does not come. */
static bool decode_table(struct perigee_decoder *d, uint32_t shape,
                         struct perigee_value *v) {
  uint32_t slots, pairs;
  if (!decode_some(d, shape >= TYPED_SLOTS, &slots) ||
      !decode_some(d, shape & TYPED_PAIRS, &pairs))
    return false;
  v->kind = PERIGEE_VALUE_TABLE;
  v->from_zero = shape >= TYPED_SLOTS && shape < TYPED_SLOTS_FROM_1;
  v->length = slots - (shape >= TYPED_SLOTS_FROM_1);
  v->pairs = pairs;
  d->owed += v->length + 2 * v->pairs;
  return d->owed <= decode_left(d);
}

static inline bool decode_number(struct perigee_decoder *d,
                                 struct perigee_value *v) {
  v->kind = PERIGEE_VALUE_NUMBER;
  return decode_bytes(d, &v->number, 8);
}

static bool decode_int(struct perigee_decoder *d, struct perigee_value *v) {
  int32_t value;
  if (!decode_bytes(d, &value, 4))
    return false;
  v->kind = PERIGEE_VALUE_NUMBER;
  v->number = value;
  return true;
}

static bool decode_seldom(struct perigee_decoder *d, uint32_t tag,
                          struct perigee_value *v) {
  switch (tag) {
  case TYPED_NIL:
    return true;
  case TYPED_FALSE:
  case TYPED_TRUE:
    v->kind = PERIGEE_VALUE_BOOLEAN;
    v->boolean = tag == TYPED_TRUE;
    return true;
  case TYPED_INT:
    return decode_int(d, v);
  case TYPED_INT64:
    v->kind = PERIGEE_VALUE_INT64;
    return decode_bytes(d, &v->int64, 8);
  case TYPED_UINT64:
    v->kind = PERIGEE_VALUE_UINT64;
    return decode_bytes(d, &v->uint64, 8);
  default:
    return false;
  }
}

static inline bool decode_item(struct perigee_decoder *d,
                               struct perigee_value *v) {
  uint32_t tag;
  *v = (struct perigee_value){.kind = PERIGEE_VALUE_NIL};
  if (!decode_count(d, &tag))
    return false;
  if (tag >= TYPED_STRING)
    return decode_string(d, tag - TYPED_STRING, v);
  if (tag == TYPED_NUMBER)
    return decode_number(d, v);
  if (tag >= TYPED_TABLE && tag < TYPED_TABLE_END)
    return decode_table(d, tag - TYPED_TABLE, v);
  return decode_seldom(d, tag, v);
}

/* The value in the slice's place is a nil, so no items of it follow. */
static int decode_slice(struct perigee_decoder *d, struct perigee_value *v) {
  if (v->kind != PERIGEE_VALUE_NIL)
    return decode_fails(d, "it is in the place of the slice");
  v->kind = PERIGEE_VALUE_SLICE;
  v->length = d->slice;
  return 1;
}

int perigee_decode(struct perigee_decoder *d, struct perigee_value *v) {
  if (UNLIKELY(d->status < 0))
    return d->status;
  if (d->owed > 0)
    d->owed--;
  else if (d->at < d->length)
    d->values++;
  else
    return 0;
  if (UNLIKELY(!decode_item(d, v)))
    return decode_fails(d, "it is cut off, or no value");
  return d->values == d->place ? decode_slice(d, v) : 1;
}

/* ---- Decoder: tables ----------------------------------------------------- */

/* Returns how many items are owed behind the table that was given last; false:
 * it cannot be that one. */
static bool decode_behind(struct perigee_decoder *d,
                          const struct perigee_value *table, uint64_t *rest) {
  uint64_t items =
      table->kind == PERIGEE_VALUE_TABLE ? table->length + 2 * table->pairs : 0;
  *rest = d->owed - items;
  return items <= d->owed;
}

static int decode_foreign(struct perigee_decoder *d) {
  d->status = detail_fail(PERIGEE_INVALID,
                          "the table is not the value that was given last");
  return d->status;
}

/* Passes over items until no more than `rest` are owed. */
static int decode_pass(struct perigee_decoder *d, uint64_t rest) {
  struct perigee_value passed;
  int status = PERIGEE_OK;
  while (status >= 0 && d->owed > rest)
    status = perigee_decode(d, &passed);
  return status < 0 ? status : PERIGEE_OK;
}

int perigee_decode_skip(struct perigee_decoder *d,
                        const struct perigee_value *v) {
  uint64_t rest;
  if (d->status < 0)
    return d->status;
  return decode_behind(d, v, &rest) ? decode_pass(d, rest) : decode_foreign(d);
}

static bool decode_is_text(const struct perigee_value *v, const char *text,
                           uint64_t length) {
  return v->kind == PERIGEE_VALUE_STRING && v->length == length &&
         memcmp(v->string, text, length) == 0;
}

/* Looks for the key among the pairs, behind which `rest` items are owed. */
static int decode_pairs(struct perigee_decoder *d, uint64_t rest,
                        const char *key, struct perigee_value *v) {
  uint64_t length = strlen(key);
  int status = PERIGEE_OK;
  while (status >= 0 && d->owed > rest) {
    uint64_t behind = d->owed - 2;
    if ((status = perigee_decode(d, v)) < 0)
      return status;
    if (decode_is_text(v, key, length))
      return perigee_decode(d, v);
    status = decode_pass(d, behind);
  }
  return status < 0 ? status : PERIGEE_NOT_FOUND;
}

int perigee_decode_field(struct perigee_decoder *d,
                         const struct perigee_value *table, const char *key,
                         struct perigee_value *v) {
  uint64_t rest;
  if (d->status < 0)
    return d->status;
  if (table->kind != PERIGEE_VALUE_TABLE)
    return PERIGEE_NOT_FOUND;
  if (!decode_behind(d, table, &rest))
    return decode_foreign(d);
  int status = decode_pass(d, rest + 2 * table->pairs);
  return status < 0 ? status : decode_pairs(d, rest, key, v);
}

/* ---- Decoder: the beginning ---------------------------------------------- */

int perigee_decode_begin(struct perigee_decoder *d, const void *data,
                         uint64_t length) {
  *d = (struct perigee_decoder){.data = data, .length = length};
  int values = perigee_typed_scan(data, length);
  if (values >= 0)
    return PERIGEE_OK;
  d->status =
      detail_fail(values, "%llu bytes of typed data: %s",
                  (unsigned long long)length, perigee_status_text(values));
  return d->status;
}

static bool decode_is_place(const struct perigee_value *v, uint32_t values) {
  return v->kind == PERIGEE_VALUE_NUMBER && v->number >= 1 &&
         v->number < values && v->number == (uint32_t)v->number;
}

/* Finds the last value, which is the slice's place, and ends the data before
 * it. */
static int decode_find_place(struct perigee_decoder *d) {
  struct perigee_decoder walk = *d;
  struct perigee_value value, last = {.kind = PERIGEE_VALUE_NIL};
  uint64_t end = 0, at = 0;
  while (perigee_decode(&walk, &value) == 1) {
    last = value;
    end = at;
    perigee_decode_skip(&walk, &value);
    at = walk.at;
  }
  if (walk.status < 0 || !decode_is_place(&last, walk.values))
    return decode_fails(d, "a slice came, but its place is not the last value");
  d->length = end;
  d->place = (uint32_t)last.number;
  return PERIGEE_OK;
}

static bool decode_has_head(const struct perigee_event *e) {
  return e->kind == PERIGEE_EVENT_REQUEST || e->kind == PERIGEE_EVENT_LANDING ||
         e->kind == PERIGEE_EVENT_REPLY_LANDING ||
         e->kind == PERIGEE_EVENT_REPLY;
}

int perigee_decode_event(struct perigee_decoder *d,
                         const struct perigee_event *e) {
  *d = (struct perigee_decoder){.data = e->pointer, .length = e->length};
  if (!decode_has_head(e))
    return d->status = detail_fail(PERIGEE_INVALID, "an event without values");
  if (e->status < 0)
    return d->status = detail_fail(e->status, "a call that failed (%s)",
                                   perigee_status_name(e->status));
  if (!(e->flags & PERIGEE_TYPED))
    return decode_fails(d, "the data are raw bytes, not typed values");
  d->slice = e->slice;
  return e->flags & PERIGEE_SLICE ? decode_find_place(d) : PERIGEE_OK;
}
