/* SPDX-License-Identifier: Apache-2.0
 *
 * cut.h - files that are mapped, and that somebody may cut short or that find no
 * room on their disk. The kernel tells of both by SIGBUS at the next access,
 * whose default ends the process. Here such a page is replaced by private memory
 * of zeros, and the access goes on. A child made by fork has private memory of
 * zeros in place of all of it.
 */
#ifndef CUT_H
#define CUT_H

#include <stdbool.h>
#include <stdint.h>

/* Guards memory from now on; false: too many are guarded. The process has one
 * handler of SIGBUS for all, which passes on what is not guarded to the handler
 * before it. A program that puts its own in its place has no guard until the next
 * call of this. */
bool cut_guard(void *memory, uint64_t length);
/* To be called before other fork handlers are registered that take locks under
 * which cut_guard is called: a fork then takes these locks first, too. */
void cut_watch_forks(void);
/* It is about to be unmapped. Memory that is not guarded is passed over. */
void cut_forget(const void *memory);

#endif
