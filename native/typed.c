/* SPDX-License-Identifier: Apache-2.0
 *
 * typed.c - a walk over LuaJIT string.buffer data that a peer sent, before
 * LuaJIT's own decoder sees it. That decoder recurses as deep as the bytes
 * say, allocates tables by counts that it has not checked, and makes pointers
 * of what it finds; what passes here holds every item that its counts promise.
 * Nor does it look at what comes of them: a table of one byte takes 72, and
 * number keys can be chosen to be all in one chain. So what passes takes memory
 * and time in proportion to its bytes (typed.h).
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
#include "typed.h"

#include <string.h>

#include "typed_costs.h"

enum { NIL, FALSE, TRUE, INT = 6, NUM, TAB, TAB_END = TAB + 6 };
enum { INT64 = 16, UINT64, STRING = 32 };
enum { DEPTH = 64, COUNT = 1 << 26 }; /* LuaJIT's tables end there */

/* What an item is to the table that it is in. */
enum role { ELEMENT, KEY, VALUE };

/* A table that is not at its end: items (keys and values alike) still to
 * come, of which the last ones are pairs. */
struct level {
  uint64_t left, pairs;
  struct chains chains;
};

struct scan {
  const uint8_t *data;
  uint64_t at, length;
  uint64_t owed; /* items that counts have promised */
  uint32_t depth;
  int status;  /* why it failed */
  bool counts; /* memory */
  struct typed_costs costs;
  struct level levels[DEPTH];
  struct strings strings;
};

/* Kept out of the way of the few numbers and texts of a small call. */
#define SELDOM __attribute__((noinline))

static bool fails(struct scan *scan, int status) {
  scan->status = status;
  return false;
}

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

static SELDOM bool table(struct scan *scan, uint32_t shape) {
  uint32_t slots, pairs;
  if (scan->depth == DEPTH || !count(scan, shape >= 2, &slots) ||
      !count(scan, shape & 1, &pairs))
    return false;
  struct level *level = &scan->levels[scan->depth++];
  level->pairs = 2 * (uint64_t)pairs;
  level->left = level->pairs + slots - (shape >= 4);
  level->chains.keys = NULL;
  scan->owed += level->left;
  if (scan->counts)
    scan->costs.memory += table_memory(slots, pairs);
  return has(scan, scan->owed);
}

static bool text(struct scan *scan, uint32_t length) {
  const uint8_t *at = scan->data + scan->at;
  if (!skip(scan, length))
    return false;
  if (scan->counts)
    scan->costs.memory += string_memory(&scan->strings, at, length);
  return true;
}

/* A number as a key of the innermost table; NaN cannot be one. */
static SELDOM bool number_key(struct scan *scan, double value) {
  struct level *level = &scan->levels[scan->depth - 1];
  if (value != value)
    return false;
  if (level->pairs <= 2 * CHAINS_LEAST)
    return true;
  if (!level->chains.keys &&
      chains_begin(&level->chains, (uint32_t)(level->pairs / 2)) < 0)
    return fails(scan, PERIGEE_NO_MEMORY);
  return chains_add(&level->chains, value) || fails(scan, PERIGEE_TOO_LARGE);
}

static bool real(struct scan *scan, bool key) {
  double value;
  if (!has(scan, 8))
    return false;
  memcpy(&value, scan->data + scan->at, 8);
  return (!key || number_key(scan, value)) && skip(scan, 8);
}

static bool whole(struct scan *scan, bool key) {
  int32_t value;
  if (!has(scan, 4))
    return false;
  memcpy(&value, scan->data + scan->at, 4);
  return (!key || number_key(scan, value)) && skip(scan, 4);
}

static bool boxed(struct scan *scan) {
  if (scan->counts)
    scan->costs.memory += INT64_MEMORY;
  return skip(scan, 8);
}

/* No nil in pairs: as a key it cannot be, as a value nobody sends it, and its
 * node would be taken by a key of another chain, which joins the two. */
static bool item(struct scan *scan, enum role role) {
  uint32_t tag;
  if (!number(scan, &tag))
    return false;
  if (tag >= STRING)
    return text(scan, tag - STRING);
  if (tag >= TAB && tag < TAB_END)
    return table(scan, tag - TAB);
  switch (tag) {
  case NIL:
    return role == ELEMENT;
  case FALSE:
  case TRUE:
    return true;
  case INT:
    return whole(scan, role == KEY);
  case NUM:
    return real(scan, role == KEY);
  case INT64:
  case UINT64:
    return boxed(scan);
  default:
    return false;
  }
}

/* Counts the next item as come, and tells what it is. */
static enum role next(struct scan *scan) {
  if (scan->depth == 0)
    return ELEMENT;
  struct level *level = &scan->levels[scan->depth - 1];
  enum role role = level->left > level->pairs ? ELEMENT
                   : level->left % 2 == 0     ? KEY
                                              : VALUE;
  level->left--;
  scan->owed--;
  return role;
}

static SELDOM void leave(struct scan *scan) {
  struct chains *chains = &scan->levels[--scan->depth].chains;
  if (!chains->keys)
    return;
  scan->costs.steps += chains_steps(chains);
  chains_end(chains);
}

/* All of it: how many values. */
static int walk(struct scan *scan) {
  int values = 0;
  while (scan->at < scan->length || scan->depth > 0) {
    values += scan->depth == 0;
    if (!item(scan, next(scan)))
      return scan->status;
    while (scan->depth > 0 && scan->levels[scan->depth - 1].left == 0)
      leave(scan);
  }
  scan->costs.values = values;
  if (scan->counts)
    scan->costs.memory += (uint64_t)values * RESULT_MEMORY;
  return values;
}

static bool affordable(const struct scan *scan) {
  const struct typed_costs *costs = &scan->costs;
  if (scan->length <= TYPED_CHEAP)
    return true;
  return costs->values <= TYPED_VALUES &&
         costs->memory <= typed_memory(scan->length) &&
         costs->steps <= typed_steps(scan->length);
}

int typed_scan(const uint8_t *data, uint64_t length,
               struct typed_costs *costs) {
  struct scan scan;
  if (length > INT32_MAX)
    return PERIGEE_PROTOCOL;
  scan.data = data;
  scan.at = scan.owed = 0;
  scan.length = length;
  scan.depth = 0;
  scan.status = PERIGEE_PROTOCOL;
  scan.costs.values = 0;
  scan.costs.memory = scan.costs.steps = 0;
  scan.counts = length > TYPED_FEW;
  if (scan.counts)
    memset(&scan.strings, 0, sizeof scan.strings);
  int values = walk(&scan);
  while (scan.depth > 0)
    leave(&scan);
  if (costs)
    *costs = scan.costs;
  return values < 0 || affordable(&scan) ? values : PERIGEE_TOO_LARGE;
}

int perigee_typed_scan(const uint8_t *data, uint64_t length) {
  return typed_scan(data, length, NULL);
}
