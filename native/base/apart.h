/* SPDX-License-Identifier: Apache-2.0
 *
 * apart.h - fields that are moved one by one. GCC makes one load of fields that
 * stand beside each other and are copied or compared together. If they were
 * stored one by one just before, the processor cannot take them from its stores:
 * the load waits until these are in the cache, and all stores before them, too,
 * perhaps to a record's line that the peer has. What comes behind the load
 * waits with it.
 */
#ifndef APART_H
#define APART_H

#include <stdint.h>

/* The same value, of which GCC does not know where it was. */
static inline uint64_t apart(uint64_t value) {
  __asm__("" : "+r"(value));
  return value;
}

#endif
