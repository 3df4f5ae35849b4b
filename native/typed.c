/* SPDX-License-Identifier: Apache-2.0
 *
 * typed.c - a walk over LuaJIT string.buffer data that a peer sent, before
 * LuaJIT's own decoder sees it. That decoder recurses as deep as the bytes
 * say, allocates tables by counts that it has not checked, and makes pointers
 * of what it finds; what passes here holds every item that its counts promise.
 *
 *   tag          what follows
 *   0 1 2        nothing: nil, false, true
 *   6, 7         int32, double
 *   8 + a + h    a table. a = 2 or 4: a count of array slots, from slot 0 or,
 *                with 4, from slot 1 (slot 0 is counted, not sent); h = 1: a
 *                count of pairs. Then the slots, then the pairs.
 *   16, 17       int64, uint64
 *   32 + n       a string of n bytes
 *
 * Tags and counts are numbers of 1, 2 or 5 bytes. All others are refused:
 * pointers, complex numbers, words and metatables of a dictionary.
 */
#include "perigee.h"

#include <string.h>

enum { NIL, FALSE, TRUE, INT = 6, NUM, TAB, TAB_END = TAB + 6 };
enum { INT64 = 16, UINT64, STRING = 32 };
enum { DEPTH = 64, COUNT = 1 << 26 }; /* LuaJIT's tables end there */

/* A table that is not at its end: items (keys and values alike) still to
 * come, of which the last ones are pairs. */
struct level {
  uint64_t left, pairs;
};

struct scan {
  const uint8_t *data;
  uint64_t at, length;
  uint32_t depth;
  struct level levels[DEPTH];
};

static bool has(const struct scan *scan, uint64_t bytes) {
  return bytes <= scan->length - scan->at;
}

static bool skip(struct scan *scan, uint64_t bytes) {
  if (!has(scan, bytes))
    return false;
  scan->at += bytes;
  return true;
}

/* 0 to 0xdf; two bytes from 0xe0; 0xff and four bytes from 0x1fe0. */
static bool number(struct scan *scan, uint32_t *value) {
  if (!skip(scan, 1))
    return false;
  const uint8_t *bytes = scan->data + scan->at;
  *value = bytes[-1];
  if (*value < 0xe0)
    return true;
  if (*value < 0xff) {
    if (!skip(scan, 1))
      return false;
    *value = ((*value & 0x1f) << 8) + bytes[0] + 0xe0;
    return true;
  }
#ifndef PERIGEE_PLANTED_BUG
  if (!has(scan, 4))
    return false;
#endif
  memcpy(value, bytes, 4);
  scan->at += 4;
  return *value >= 0x1fe0;
}

static bool count(struct scan *scan, bool present, uint32_t *value) {
  *value = 0;
  return !present || (number(scan, value) && *value > 0 && *value <= COUNT);
}

static bool table(struct scan *scan, uint32_t shape) {
  uint32_t slots, pairs;
  if (scan->depth == DEPTH || !count(scan, shape >= 2, &slots) ||
      !count(scan, shape & 1, &pairs))
    return false;
  struct level *level = &scan->levels[scan->depth++];
  level->pairs = 2 * (uint64_t)pairs;
  level->left = level->pairs + slots - (shape >= 4);
  return has(scan, level->left);
}

/* NaN cannot be a key. */
static bool real(struct scan *scan, bool key) {
  double value;
  if (!has(scan, 8))
    return false;
  memcpy(&value, scan->data + scan->at, 8);
  return !(key && value != value) && skip(scan, 8);
}

static bool item(struct scan *scan, bool key) {
  uint32_t tag;
  if (!number(scan, &tag))
    return false;
  if (tag >= STRING)
    return skip(scan, tag - STRING);
  if (tag >= TAB && tag < TAB_END)
    return table(scan, tag - TAB);
  switch (tag) {
  case NIL:
    return !key;
  case FALSE:
  case TRUE:
    return true;
  case INT:
    return skip(scan, 4);
  case NUM:
    return real(scan, key);
  case INT64:
  case UINT64:
    return skip(scan, 8);
  default:
    return false;
  }
}

/* Counts the next item as come, and tells whether it is a key. */
static bool next_is_key(struct scan *scan) {
  if (scan->depth == 0)
    return false;
  struct level *level = &scan->levels[scan->depth - 1];
  bool key = level->left <= level->pairs && level->left % 2 == 0;
  level->left--;
  return key;
}

int perigee_typed_scan(const uint8_t *data, uint64_t length) {
  struct scan scan;
  int values = 0;
  if (length > INT32_MAX)
    return PERIGEE_PROTOCOL;
  scan.data = data;
  scan.at = 0;
  scan.length = length;
  scan.depth = 0;
  while (scan.at < length || scan.depth > 0) {
    values += scan.depth == 0;
    if (!item(&scan, next_is_key(&scan)))
      return PERIGEE_PROTOCOL;
    while (scan.depth > 0 && scan.levels[scan.depth - 1].left == 0)
      scan.depth--;
  }
  return values;
}
