/* SPDX-License-Identifier: Apache-2.0
 *
 * backing.h - how much memory can be allocated; mappings with guard pages.
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
/* Populates the memory now; returns false, and errno says why, if there is not
 * enough. */
bool backing_populate(uint8_t *memory, uint64_t length);

enum { HUGE_PAGE = 2 << 20, NODES = 1024 };
/* Puts populated memory in huge pages now, but for what the length leaves beyond
 * them; returns false if more stays in small ones, as what does not begin at a
 * multiple of HUGE_PAGE does. */
bool backing_make_huge(uint8_t *memory, uint64_t length);
/* Has pages that are not there yet come from that NUMA node (below NODES), while
 * it has some; returns false if this process can have none of it. */
bool backing_place(uint8_t *memory, uint64_t length, uint32_t node);

/* ---- Guard pages --------------------------------------------------------- */

/* Mappings followed by guard pages. Memory that is lent to programs
 * is mapped this way: a program that keeps writing beyond its end gets a fault
 * before it reaches other memory. */

/* Maps length bytes for reading and writing: those of fd, shared, or, with fd
 * -1, private zeroed ones. Returns NULL if that fails. A child process does not
 * inherit the mapping. */
void *guarded_map(uint64_t length, int fd);
/* Reserves guarded address space, over which the caller then maps memory. */
void *guarded_reserve(uint64_t length);
void guarded_unmap(void *mapped, uint64_t length);

#endif
