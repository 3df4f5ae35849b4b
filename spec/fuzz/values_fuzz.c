/* SPDX-License-Identifier: Apache-2.0
 *
 * values_fuzz.c - any bytes as typed data that a C program reads. Bytes that
 * the scanner accepts are read to their end and, written again, are accepted
 * data of the same values. Bytes that it refuses end in an error, and whatever
 * is written of them is accepted data, or an error.
 *
 * decoder: native/agent/values.c
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "perigee.h"

/* ---- Reading ------------------------------------------------------------- */

static void within(const struct perigee_decoder *d,
                   const struct perigee_value *v) {
  const uint8_t *string = (const uint8_t *)v->string;
  require(v->kind <= PERIGEE_VALUE_SLICE);
  require(d->at <= d->length);
  if (v->kind == PERIGEE_VALUE_STRING) {
    require(string >= d->data && v->length <= d->length);
    require(string + v->length == d->data + d->at);
  }
}

/* Bytes that nobody has scanned end, too, and are not read behind. */
static void walk(struct perigee_decoder d, bool accepted) {
  struct perigee_value v;
  uint64_t items = 0, slices = 0;
  int status;
  while ((status = perigee_decode(&d, &v)) == 1) {
    within(&d, &v);
    slices += v.kind == PERIGEE_VALUE_SLICE;
    require(++items <= d.length);
  }
  require(status == (accepted ? 0 : status == 0 ? 0 : PERIGEE_PROTOCOL));
  require(status < 0 || slices == (d.place != 0));
}

/* Finds a key by walking: the same as perigee_decode_field. */
static int look(struct perigee_decoder *d, const struct perigee_value *table,
                const char *key, struct perigee_value *v) {
  for (uint64_t i = 0; i < table->length; i++) {
    require(perigee_decode(d, v) == 1);
    require(perigee_decode_skip(d, v) == PERIGEE_OK);
  }
  for (uint64_t i = 0; i < table->pairs; i++) {
    require(perigee_decode(d, v) == 1);
    bool found = v->kind == PERIGEE_VALUE_STRING && v->length == strlen(key) &&
                 memcmp(v->string, key, v->length) == 0;
    require(perigee_decode_skip(d, v) == PERIGEE_OK);
    require(perigee_decode(d, v) == 1);
    if (found)
      return 1;
    require(perigee_decode_skip(d, v) == PERIGEE_OK);
  }
  return PERIGEE_NOT_FOUND;
}

static void fields(struct perigee_decoder d,
                   const struct perigee_value *table) {
  static const char *const keys[] = {"", "k", "name"};
  for (int i = 0; i < 3; i++) {
    struct perigee_decoder one = d, other = d;
    struct perigee_value a, b;
    int status = perigee_decode_field(&one, table, keys[i], &a);
    require(status == look(&other, table, keys[i], &b));
    require(one.at == other.at && one.owed == other.owed);
  }
}

/* Passes over whole values, and looks for fields of those that are tables. */
static void skim(struct perigee_decoder d, int values) {
  struct perigee_value v;
  int count = 0;
  while (perigee_decode(&d, &v) == 1) {
    count++;
    if (v.kind == PERIGEE_VALUE_TABLE)
      fields(d, &v);
    require(perigee_decode_skip(&d, &v) == PERIGEE_OK);
    require(d.owed == 0);
  }
  require(d.status == PERIGEE_OK && count == values);
}

/* ---- Writing what was read ----------------------------------------------- */

static bool same(const struct perigee_value *a, const struct perigee_value *b) {
  if (a->kind != b->kind || a->length != b->length ||
      a->from_zero != b->from_zero)
    return a->kind == b->kind && a->kind == PERIGEE_VALUE_TABLE &&
           a->length == 0 && b->length == 0 && a->pairs == b->pairs;
  if (a->kind == PERIGEE_VALUE_STRING)
    return memcmp(a->string, b->string, a->length) == 0;
  return a->uint64 == b->uint64;
}

static void alike(struct perigee_decoder a, struct perigee_decoder b) {
  struct perigee_value of_a, of_b;
  int status;
  while ((status = perigee_decode(&a, &of_a)) == 1) {
    require(perigee_decode(&b, &of_b) == 1);
    require(same(&of_a, &of_b));
  }
  require(status == 0 && perigee_decode(&b, &of_b) == 0);
}

/* Returns the encoder after its end. */
static struct perigee_encoder copied(struct perigee_decoder d, uint8_t *to,
                                     uint64_t capacity) {
  struct perigee_encoder e;
  struct perigee_value v;
  perigee_encode_begin(&e, to, capacity);
  while (perigee_decode(&d, &v) == 1)
    perigee_encode_value(&e, &v);
  perigee_encode_end(&e);
  return e;
}

static void again(const struct perigee_decoder *d, int values) {
  uint64_t room = 2 * d->length + 16;
  uint8_t *bytes = malloc(room), *twice = malloc(room);
  struct perigee_encoder e = copied(*d, bytes, room);
  require(e.status == PERIGEE_OK && e.values == (uint32_t)values);
  require(perigee_typed_scan(bytes, e.length) == values);
  struct perigee_decoder read;
  require(perigee_decode_begin(&read, bytes, e.length) == PERIGEE_OK);
  alike(*d, read);
  struct perigee_encoder same_again = copied(read, twice, room);
  require(same_again.length == e.length);
  require(memcmp(bytes, twice, e.length) == 0);
  free(twice);
  free(bytes);
}

/* Too small a room is not written behind, and the need is counted. */
static void narrow(const struct perigee_decoder *d, uint8_t part) {
  uint64_t capacity = d->length * part / 256;
  uint8_t *bytes = malloc(capacity ? capacity : 1);
  struct perigee_encoder e = copied(*d, bytes, capacity);
  uint64_t length = copied(*d, NULL, 0).length;
  require(e.length == length);
  require(e.status == (length > capacity ? PERIGEE_TOO_LARGE : PERIGEE_OK));
  free(bytes);
}

/* Values of data that the scanner refuses are encoded as far as they go. Only
 * data that it accepts come out. */
static void anything(const struct perigee_decoder *d) {
  uint64_t room = 2 * d->length + 16;
  uint8_t *bytes = malloc(room);
  struct perigee_encoder e = copied(*d, bytes, room);
  if (e.status == PERIGEE_OK)
    require(perigee_typed_scan(bytes, e.length) == (int)e.values);
  else
    require(e.status == PERIGEE_INVALID || e.status == PERIGEE_TOO_LARGE);
  free(bytes);
}

/* ---- As the head of an event --------------------------------------------- */

static void as_event(const uint8_t *data, uint64_t length, int values) {
  struct perigee_event e = {.kind = PERIGEE_EVENT_REQUEST,
                            .flags = PERIGEE_TYPED | PERIGEE_SLICE,
                            .pointer = data,
                            .length = length,
                            .slice = 9};
  struct perigee_decoder d;
  int status = perigee_decode_event(&d, &e);
  require(status == PERIGEE_OK || status == PERIGEE_PROTOCOL);
  if (status < 0)
    return;
  require(d.length < length && d.place >= 1);
  require(values < 0 || d.place < (uint32_t)values);
  walk(d, false);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  int values = perigee_typed_scan(data, size);
  struct perigee_decoder d = {.data = data, .length = size}, begun;
  require(perigee_decode_begin(&begun, data, size) ==
          (values < 0 ? values : PERIGEE_OK));
  walk(d, values >= 0);
  as_event(data, size, values);
  anything(&d);
  if (values < 0)
    return 0;
  skim(begun, values);
  again(&begun, values);
  if (size > 0)
    narrow(&begun, data[size - 1]);
  return 0;
}
