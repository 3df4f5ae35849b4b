/* SPDX-License-Identifier: Apache-2.0
 *
 * backing.h - how much memory can be allocated.
 */
#ifndef BACKING_H
#define BACKING_H

#include <stdbool.h>
#include <stdint.h>

/* Returns the bytes that the machine and this process's control group allow. */
uint64_t backing_most(void);
/* Returns whether the machine and the control group could have that many
 * bytes. */
bool backing_possible(uint64_t length);
/* Populates the memory now; returns false if there is not enough. */
bool backing_populate(uint8_t *memory, uint64_t length);

#endif
