/* SPDX-License-Identifier: Apache-2.0
 *
 * typed_costs.c - what values take in LuaJIT 2.1 (GC64). Sizes are those of
 * lj_obj.h, hashes those of lj_tab.c. typed_scan_spec.lua compares both with
 * the LuaJIT that runs it.
 */
#include "typed_costs.h"

#include <stdlib.h>
#include <string.h>

#include "perigee.h"

/* INTERNED: a string's part of the table of all strings. That table belongs to
 * the Lua state and has room, or doubles; a new string's part is then 8 to 16.
 * Counting that in full would refuse lists of pairs of a number and a short
 * text, which are common. */
enum { TABLE = 64, SLOT = 8, NODE = 24, TEXT = 24, INTERNED = 6 };
enum { SHORT = 32 }; /* strings below this length are remembered */

/* ---- Memory ------------------------------------------------------------- */

/* Returns the hash nodes of a table with so many pairs: a power of two. */
static uint64_t table_nodes(uint32_t pairs) {
  return pairs < 2 ? 2 * pairs : UINT64_C(2) << (31 - __builtin_clz(pairs - 1));
}

uint64_t table_memory(uint64_t slots, uint32_t pairs) {
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

uint64_t string_memory(struct strings *strings, const uint8_t *at,
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

int chains_begin(struct chains *chains, uint32_t pairs) {
  *chains = (struct chains){.mask = (uint32_t)table_nodes(pairs) - 1};
  chains->keys = calloc(table_nodes(pairs), sizeof *chains->keys);
  return chains->keys ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

bool chains_add(struct chains *chains, double key) {
  uint16_t *keys = &chains->keys[chains_hash(key) & chains->mask];
  if (*keys == UINT16_MAX)
    return false;
  chains->places += *keys == 0;
  chains->steps += *keys;
  if (++*keys > chains->longest)
    chains->longest = *keys;
  return true;
}

uint64_t chains_steps(const struct chains *chains) {
  uint64_t steps = chains->steps;
  steps += chains->places * (chains->longest - 1);
  return steps;
}

void chains_end(struct chains *chains) {
  free(chains->keys);
  chains->keys = NULL;
}
