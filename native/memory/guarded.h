/* SPDX-License-Identifier: Apache-2.0
 *
 * guarded.h - mappings behind which pages lie that nobody may touch. Memory
 * that is lent to programs is of such: who writes on and on beyond the end of
 * it is stopped by a fault, before the memory of somebody else begins.
 */
#ifndef GUARDED_H
#define GUARDED_H

#include <stdint.h>

/* length bytes to read and write: of fd, shared; or (-1) private and zeroed.
 * NULL if there are none. A child process after fork has none of it. */
void *guarded_map(uint64_t length, int fd);
/* The same of address space, to be mapped over. */
void *guarded_reserve(uint64_t length);
void guarded_unmap(void *mapped, uint64_t length);

#endif
