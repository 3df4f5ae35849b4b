/* SPDX-License-Identifier: Apache-2.0
 *
 * backing.h - how much memory there could be.
 */
#ifndef BACKING_H
#define BACKING_H

#include <stdbool.h>
#include <stdint.h>

/* Returns the bytes that the machine and our control group allow. */
uint64_t backing_most(void);
/* Could there be so many bytes? */
bool backing_possible(uint64_t length);
/* Populates the memory now; false: there is not enough. */
bool backing_populate(uint8_t *memory, uint64_t length);

#endif
