/* SPDX-License-Identifier: Apache-2.0
 *
 * typed_costs.h - LuaJIT's heap and hash tables, as far as their sizes and
 * order follow from the bytes: what strings and tables take, and which keys
 * share a chain.
 */
#ifndef PERIGEE_TYPED_COSTS_H
#define PERIGEE_TYPED_COSTS_H

#include <stdbool.h>
#include <stdint.h>

/* ---- Memory ------------------------------------------------------------- */

/* A boxed integer; a value handed out, in a table that grows. */
enum { INT64_MEMORY = 24, RESULT_MEMORY = 32 };

uint64_t table_memory(uint64_t slots, uint32_t pairs);

/* Equal strings are one in LuaJIT, and honest payloads repeat them: keys of
 * records, names of states. Of short ones the last of each hash is remembered,
 * and what is found again costs nothing. What is forgotten is counted anew:
 * never too little. */
enum { STRINGS = 512 };
struct strings {
  struct {
    const uint8_t *at;
    uint64_t length;
  } seen[STRINGS];
};
uint64_t string_memory(struct strings *, const uint8_t *at, uint64_t length);

/* ---- Chains ------------------------------------------------------------- */

/* LuaJIT puts a key where its hash says; keys with one place make a chain, in
 * nodes that are free elsewhere, and whoever has its place there moves such a
 * node away. So the first key of a place passes at most the longest chain, and
 * each further one those before it. Numbers are hashed without a seed: a peer
 * can choose them all for one chain. (Strings are not: their place is a random
 * number that they got when they were made; and where too many share a chain
 * among all strings, LuaJIT hashes them anew, with a seed.) */
struct chains {
  uint16_t *keys; /* of each place; NULL: not counted */
  uint32_t mask, longest;
  uint64_t places, steps;
};
enum { CHAINS_LEAST = 32 }; /* tables of more pairs are counted */

/* For a table with so many pairs: PERIGEE_OK or PERIGEE_NO_MEMORY. */
int chains_begin(struct chains *, uint32_t pairs);
/* False: too many to be counted. */
bool chains_add(struct chains *, double key);
/* How many nodes are passed, at most. */
uint64_t chains_steps(const struct chains *);
void chains_end(struct chains *);

#endif
