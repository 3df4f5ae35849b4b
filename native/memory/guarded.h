/* SPDX-License-Identifier: Apache-2.0
 *
 * guarded.h - mappings followed by guard pages. Memory that is lent to programs
 * is mapped this way: a program that keeps writing beyond its end gets a fault
 * before it reaches other memory.
 */
#ifndef GUARDED_H
#define GUARDED_H

#include <stdint.h>

/* Maps length bytes for reading and writing: those of fd, shared, or, with fd
 * -1, private zeroed ones. Returns NULL if that fails. A child process does not
 * inherit the mapping. */
void *guarded_map(uint64_t length, int fd);
/* Reserves guarded address space, over which the caller then maps memory. */
void *guarded_reserve(uint64_t length);
void guarded_unmap(void *mapped, uint64_t length);

#endif
