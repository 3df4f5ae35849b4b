/* SPDX-License-Identifier: Apache-2.0
 *
 * typed.c - walks over LuaJIT string.buffer data that a peer sent, before
 * LuaJIT's own decoder sees it. That decoder recurses as deep as the bytes say,
 * allocates tables by counts that it has not checked, and makes pointers of
 * what it finds; data that passes here holds every item that its counts
 * promise. Nor does that decoder limit what it allocates: a table of one byte
 * takes 72, and number keys can be chosen to fall into one hash chain; data
 * that passes takes memory and time in proportion to its bytes (typed.h). The
 * walk can stop after any item and continue later.
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
 * Tags and counts are numbers of 1, 2 or 5 bytes. All other tags are refused:
 * pointers, complex numbers, dictionary words and metatables.
 */
#include "typed.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "perigee.h"

/* ---- Costs --------------------------------------------------------------- */

/* A model of LuaJIT 2.1's heap and hash tables (GC64), as far as the bytes
 * determine it. Sizes are those of lj_obj.h, hashes those of lj_tab.c.
 * typed_scan_spec.lua compares both with the LuaJIT that runs it. */

/* INTERNED: a string's part of the table of all strings. That table belongs to
 * the Lua state and has room, or doubles; a new string's part is then 8 to 16.
 * Counting that in full would refuse lists of pairs of a number and a short
 * text, which are common. */
enum { TABLE = 64, SLOT = 8, NODE = 24, TEXT = 24, INTERNED = 6 };
enum { SHORT = 32 }; /* strings below this length are remembered */

/* Bytes of a boxed integer, and of a result in a table that grows. */
enum { INT64_MEMORY = 24, RESULT_MEMORY = 32 };

/* LuaJIT keeps equal strings once, and honest payloads repeat them: keys of
 * records, names of states. The last short string of each hash is remembered
 * and costs nothing when it comes again. A string that was forgotten is counted
 * again, so the sum is never too small. */
enum { STRINGS = 512 };
struct strings {
  struct {
    const uint8_t *at;
    uint64_t length;
  } seen[STRINGS];
};

/* Returns the hash nodes of a table with so many pairs: a power of two. */
static uint64_t table_nodes(uint32_t pairs) {
  return pairs < 2 ? 2 * pairs : UINT64_C(2) << (31 - __builtin_clz(pairs - 1));
}

static uint64_t table_memory(uint64_t slots, uint32_t pairs) {
  return TABLE + slots * SLOT + table_nodes(pairs) * NODE;
}

static uint32_t string_four(const uint8_t *at) {
  uint32_t value;
  memcpy(&value, at, 4);
  return value;
}

/* Any hash will do: a peer whose strings collide pays for each of them. */
static uint32_t string_place(const uint8_t *at, uint64_t length) {
  uint32_t first = at[0], last = at[length - 1];
  if (length >= 4) {
    first = string_four(at);
    last = string_four(at + length - 4);
  }
  uint32_t mixed = first * 0x9e3779b1 ^ (last + (uint32_t)length) * 0x85ebca77;
  return (mixed >> 16) % STRINGS;
}

static uint64_t string_memory(struct strings *strings, const uint8_t *at,
                              uint64_t length) {
  uint64_t memory = TEXT + ((length + 4) & ~UINT64_C(3)) + INTERNED;
  if (length == 0)
    return 0;
  if (length > SHORT)
    return memory;
  uint32_t i = string_place(at, length);
  const uint8_t *seen = strings->seen[i].at;
  if (seen && strings->seen[i].length == length && !memcmp(seen, at, length))
    return 0;
  strings->seen[i].at = at;
  strings->seen[i].length = length;
  return memory;
}

/* ---- Chains ------------------------------------------------------------- */

/* LuaJIT puts a key into the node that its hash selects. Keys with the same
 * node form a chain through free nodes, and a key whose own node is taken by
 * such a chain moves that entry away. So the first key of a node passes at most
 * the longest chain, and each further key those before it. Numbers are hashed
 * without a seed, so a peer can choose them all for one chain. (Strings are
 * not: their hash is seeded, and LuaJIT rehashes its strings when too many
 * share a chain.) */
struct chains {
  uint16_t *keys; /* of each node; NULL: not counted */
  uint32_t mask, longest;
  uint64_t places, steps;
};
enum { CHAINS_LEAST = 32 }; /* chains of smaller tables are not counted */

static uint32_t chains_rotated(uint32_t value, int bits) {
  return value << bits | value >> (32 - bits);
}

/* lj_tab.c: hashnum. */
static uint32_t chains_hash(double key) {
  uint64_t bits;
  key += 0.0; /* no -0 */
  memcpy(&bits, &key, 8);
  uint32_t low = (uint32_t)bits, high = (uint32_t)(bits >> 32) << 1;
  low ^= high;
  high = chains_rotated(high, 14);
  low -= high;
  high = chains_rotated(high, 5);
  high ^= low;
  return high - chains_rotated(low, 13);
}

/* Begins a table with so many pairs: PERIGEE_OK or PERIGEE_NO_MEMORY. */
static int chains_begin(struct chains *chains, uint32_t pairs) {
  *chains = (struct chains){.mask = (uint32_t)table_nodes(pairs) - 1};
  chains->keys = calloc(table_nodes(pairs), sizeof *chains->keys);
  return chains->keys ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

/* Returns false if a chain is too long to be counted. */
static bool chains_add(struct chains *chains, double key) {
  uint16_t *keys = &chains->keys[chains_hash(key) & chains->mask];
  if (*keys == UINT16_MAX)
    return false;
  chains->places += *keys == 0;
  chains->steps += *keys;
  if (++*keys > chains->longest)
    chains->longest = *keys;
  return true;
}

/* Returns an upper bound of the nodes that all keys pass. */
static uint64_t chains_steps(const struct chains *chains) {
  uint64_t steps = chains->steps;
  steps += chains->places * (chains->longest - 1);
  return steps;
}

static void chains_end(struct chains *chains) {
  free(chains->keys);
  chains->keys = NULL;
}

/* ---- Scanning ------------------------------------------------------------ */

/* The role of an item in its table. */
enum role { ELEMENT, KEY, VALUE };

/* A table that is not complete: `left` items (keys and values alike) are still
 * to come, the last `pairs` of which belong to pairs. */
struct level {
  uint64_t left, pairs;
  struct chains chains;
};

struct typed_scan {
  const uint8_t *data;
  uint64_t at, length;
  uint64_t stop; /* the walk pauses here */
  uint64_t owed; /* items that counts have promised and that have not come */
  uint32_t depth;
  int status;  /* why it fails */
  int values;  /* values at the top level so far */
  bool counts; /* whether memory is counted */
  bool over;   /* the walk has ended */
  struct typed_costs costs;
  struct level levels[TYPED_DEPTH];
  struct strings strings;
};

/* Keeps rare cases out of the code for small calls with few numbers and
 * texts. */
#define SELDOM __attribute__((noinline))
/* Inlined into both walks: at once, and in portions. */
#define ALWAYS static inline __attribute__((always_inline))

static bool typed_fails(struct typed_scan *scan, int status) {
  scan->status = status;
  return false;
}

static bool typed_has(const struct typed_scan *scan, uint64_t bytes) {
  return bytes <= scan->length - scan->at;
}

static bool typed_skip(struct typed_scan *scan, uint64_t bytes) {
  if (!typed_has(scan, bytes))
    return false;
  scan->at += bytes;
  return true;
}

/* One byte for 0 to 0xdf; two from 0xe0 on; 0xff and four bytes from 0x1fe0
 * on. */
static bool typed_number(struct typed_scan *scan, uint32_t *value) {
  if (!typed_skip(scan, 1))
    return false;
  const uint8_t *bytes = scan->data + scan->at;
  *value = bytes[-1];
  if (*value < 0xe0)
    return true;
  if (*value < 0xff) {
    if (!typed_skip(scan, 1))
      return false;
    *value = ((*value & 0x1f) << 8) + bytes[0] + 0xe0;
    return true;
  }
  if (!typed_has(scan, 4))
    return false;
  memcpy(value, bytes, 4);
  scan->at += 4;
  return *value >= 0x1fe0;
}

static bool typed_count(struct typed_scan *scan, bool present,
                        uint32_t *value) {
  *value = 0;
  return !present ||
         (typed_number(scan, value) && *value > 0 && *value <= TYPED_COUNT);
}

static SELDOM bool typed_table(struct typed_scan *scan, uint32_t shape) {
  uint32_t slots, pairs;
  if (scan->depth == TYPED_DEPTH || !typed_count(scan, shape >= 2, &slots) ||
      !typed_count(scan, shape & 1, &pairs))
    return false;
  struct level *level = &scan->levels[scan->depth++];
  level->pairs = 2 * (uint64_t)pairs;
  level->left = level->pairs + slots - (shape >= 4);
  level->chains.keys = NULL;
  scan->owed += level->left;
  if (scan->counts)
    scan->costs.memory += table_memory(slots, pairs);
  return typed_has(scan, scan->owed);
}

static bool typed_text(struct typed_scan *scan, uint32_t length) {
  const uint8_t *at = scan->data + scan->at;
  if (!typed_skip(scan, length))
    return false;
  if (scan->counts)
    scan->costs.memory += string_memory(&scan->strings, at, length);
  return true;
}

/* Counts a number as key of the innermost table; NaN cannot be a key. */
static SELDOM bool typed_number_key(struct typed_scan *scan, double value) {
  struct level *level = &scan->levels[scan->depth - 1];
  if (value != value)
    return false;
  if (level->pairs <= 2 * CHAINS_LEAST)
    return true;
  if (!level->chains.keys &&
      chains_begin(&level->chains, (uint32_t)(level->pairs / 2)) < 0)
    return typed_fails(scan, PERIGEE_NO_MEMORY);
  return chains_add(&level->chains, value) ||
         typed_fails(scan, PERIGEE_TOO_LARGE);
}

static bool typed_real(struct typed_scan *scan, bool key) {
  double value;
  if (!typed_has(scan, 8))
    return false;
  memcpy(&value, scan->data + scan->at, 8);
  return (!key || typed_number_key(scan, value)) && typed_skip(scan, 8);
}

static bool typed_whole(struct typed_scan *scan, bool key) {
  int32_t value;
  if (!typed_has(scan, 4))
    return false;
  memcpy(&value, scan->data + scan->at, 4);
  return (!key || typed_number_key(scan, value)) && typed_skip(scan, 4);
}

static bool typed_boxed(struct typed_scan *scan) {
  if (scan->counts)
    scan->costs.memory += INT64_MEMORY;
  return typed_skip(scan, 8);
}

/* Skips the nils and booleans that follow one of them in a list: nothing brings
 * more items for its bytes. */
static SELDOM bool typed_flags(struct typed_scan *scan) {
  if (scan->depth == 0)
    return true;
  struct level *level = &scan->levels[scan->depth - 1];
  uint64_t most = level->left - level->pairs, n = 0;
  const uint8_t *at = scan->data + scan->at;
  if (most > scan->stop - scan->at)
    most = scan->stop - scan->at;
  while (n < most && at[n] <= TYPED_TRUE)
    n++;
  scan->at += n;
  scan->owed -= n;
  level->left -= n;
  return true;
}

/* Refuses nil in pairs: it cannot be a key, and as a value nobody sends it; its
 * node would be taken by a key of another chain, which joins the two chains. */
ALWAYS bool typed_item(struct typed_scan *scan, enum role role) {
  uint32_t tag;
  if (!typed_number(scan, &tag))
    return false;
  if (tag >= TYPED_STRING)
    return typed_text(scan, tag - TYPED_STRING);
  if (tag >= TYPED_TABLE && tag < TYPED_TABLE_END)
    return typed_table(scan, tag - TYPED_TABLE);
  switch (tag) {
  case TYPED_NIL:
  case TYPED_FALSE:
  case TYPED_TRUE:
    return role == ELEMENT ? typed_flags(scan) : tag != TYPED_NIL;
  case TYPED_INT:
    return typed_whole(scan, role == KEY);
  case TYPED_NUMBER:
    return typed_real(scan, role == KEY);
  case TYPED_INT64:
  case TYPED_UINT64:
    return typed_boxed(scan);
  default:
    return false;
  }
}

/* Counts the next item as received and returns its role. */
static enum role typed_next(struct typed_scan *scan) {
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

static SELDOM void typed_leave(struct typed_scan *scan) {
  struct chains *chains = &scan->levels[--scan->depth].chains;
  if (!chains->keys)
    return;
  scan->costs.steps += chains_steps(chains);
  chains_end(chains);
}

/* Walks to the end, or with `rests` at most to scan->stop. True at the end. */
ALWAYS bool typed_walk(struct typed_scan *scan, bool rests) {
  while (scan->at < scan->length || scan->depth > 0) {
    if (rests && scan->at >= scan->stop && scan->at < scan->length)
      return false;
    scan->values += scan->depth == 0;
    if (!typed_item(scan, typed_next(scan))) {
      scan->values = scan->status;
      return true;
    }
    while (scan->depth > 0 && scan->levels[scan->depth - 1].left == 0)
      typed_leave(scan);
  }
  return true;
}

static bool typed_affordable(const struct typed_scan *scan) {
  const struct typed_costs *costs = &scan->costs;
  if (scan->length <= TYPED_CHEAP)
    return true;
  return costs->values <= TYPED_VALUES &&
         costs->memory <= typed_memory(scan->length) &&
         costs->steps <= typed_steps(scan->length);
}

/* ---- At once, and in portions ------------------------------------------- */

static void typed_begin(struct typed_scan *scan, const uint8_t *data,
                        uint64_t length) {
  scan->data = data;
  scan->at = scan->owed = 0;
  scan->length = scan->stop = length;
  scan->depth = 0;
  scan->status = PERIGEE_PROTOCOL;
  scan->values = 0;
  scan->costs.memory = scan->costs.steps = 0;
  scan->over = false;
  scan->counts = length > TYPED_FEW;
  if (scan->counts)
    memset(&scan->strings, 0, sizeof scan->strings);
}

static void typed_forget(struct typed_scan *scan) {
  while (scan->depth > 0)
    typed_leave(scan);
}

ALWAYS int typed_verdict(struct typed_scan *scan, struct typed_costs *costs) {
  typed_forget(scan);
  scan->costs.values = scan->values;
  if (scan->counts && scan->values > 0)
    scan->costs.memory += (uint64_t)scan->values * RESULT_MEMORY;
  if (costs)
    *costs = scan->costs;
  if (scan->values < 0 || typed_affordable(scan))
    return scan->values;
  return PERIGEE_TOO_LARGE;
}

int typed_scan(const uint8_t *data, uint64_t length,
               struct typed_costs *costs) {
  struct typed_scan scan;
  if (length > INT32_MAX)
    return PERIGEE_PROTOCOL;
  typed_begin(&scan, data, length);
  typed_walk(&scan, false);
  return typed_verdict(&scan, costs);
}

struct typed_scan *typed_scan_begin(const uint8_t *data, uint64_t length) {
  struct typed_scan *scan = malloc(sizeof *scan);
  if (!scan)
    return NULL;
  typed_begin(scan, data, length);
  scan->stop = 0;
  if (length > INT32_MAX) /* too long for LuaJIT: nothing is walked */
    scan->length = 0, scan->values = PERIGEE_PROTOCOL;
  return scan;
}

uint64_t typed_scan_step(struct typed_scan *scan, uint64_t bytes) {
  uint64_t before = scan->at, left = scan->length - scan->at;
  scan->stop = before + (bytes < left ? bytes : left);
  scan->over = typed_walk(scan, true);
  return scan->at - before;
}

bool typed_scan_over(const struct typed_scan *scan) {
  return scan->over;
}

int typed_scan_end(struct typed_scan *scan, struct typed_costs *costs) {
  int status = typed_verdict(scan, costs);
  free(scan);
  return status;
}

int perigee_typed_scan(const uint8_t *data, uint64_t length) {
  if (!data && length > 0)
    return PERIGEE_INVALID;
  return typed_scan(data, length, NULL);
}
