/* SPDX-License-Identifier: Apache-2.0
 *
 * typed_costs.h - a model of LuaJIT's heap and hash tables, as far as the bytes
 * determine it: the sizes of strings and tables, and which keys share a chain.
 */
#ifndef PERIGEE_TYPED_COSTS_H
#define PERIGEE_TYPED_COSTS_H

#include <stdbool.h>
#include <stdint.h>

/* ---- Memory ------------------------------------------------------------- */

/* Bytes of a boxed integer, and of a result in a table that grows. */
enum { INT64_MEMORY = 24, RESULT_MEMORY = 32 };

uint64_t table_memory(uint64_t slots, uint32_t pairs);

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
uint64_t string_memory(struct strings *, const uint8_t *at, uint64_t length);

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

/* Begins a table with so many pairs: PERIGEE_OK or PERIGEE_NO_MEMORY. */
int chains_begin(struct chains *, uint32_t pairs);
/* Returns false if a chain is too long to be counted. */
bool chains_add(struct chains *, double key);
/* Returns an upper bound of the nodes that all keys pass. */
uint64_t chains_steps(const struct chains *);
void chains_end(struct chains *);

#endif
