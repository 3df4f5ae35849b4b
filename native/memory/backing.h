/* SPDX-License-Identifier: Apache-2.0
 *
 * backing.h - what memory there could be.
 */
#ifndef BACKING_H
#define BACKING_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes, of the machine and of our control group. */
uint64_t backing_most(void);
/* Could there be so much? */
bool backing_possible(uint64_t length);
/* Has it all there now; false: there is not as much. */
bool backing_populate(uint8_t *memory, uint64_t length);

#endif
