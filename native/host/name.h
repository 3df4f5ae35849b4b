/* SPDX-License-Identifier: Apache-2.0
 *
 * name.h - which names there are, and what protects texts that may be cut off.
 */
#ifndef NAME_H
#define NAME_H

#include <stdbool.h>
#include <stdint.h>

/* Has it 1 to 64 letters, digits and . _ : - without a leading dot? So are the
 * names of agents, scopes and kinds. */
bool name_is_valid(const char *name);

/* A checksum of an entry's data, with their length: FNV-1a. */
uint64_t entry_sum(const uint8_t *data, uint64_t length);

#endif
