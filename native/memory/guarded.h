/* SPDX-License-Identifier: Apache-2.0
 *
 * guarded.h - mappings followed by guard pages that fault. Memory that is lent
 * to programs is mapped so: a program that writes on and on beyond the end is
 * stopped by a fault before it reaches somebody else's memory.
 */
#ifndef GUARDED_H
#define GUARDED_H

#include <stdint.h>

/* Maps length bytes to read and write: of fd, shared; or, with fd -1,
 * private and zeroed. NULL if that fails. A child process does not inherit
 * the mapping. */
void *guarded_map(uint64_t length, int fd);
/* Reserves address space in the same way, to be mapped over. */
void *guarded_reserve(uint64_t length);
void guarded_unmap(void *mapped, uint64_t length);

#endif
