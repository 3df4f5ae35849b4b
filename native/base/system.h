/* SPDX-License-Identifier: Apache-2.0
 *
 * system.h - what a failed system call means.
 */
#ifndef SYSTEM_H
#define SYSTEM_H

#include <stdbool.h>

#define NO_DESCRIPTORS "there are too few descriptors left (ulimit -n)"

/* Did the call want a descriptor, of which there are none left? */
bool system_scarce(int error);
/* Returns NO_MEMORY where descriptors or memory are used up, else SYSTEM. */
int system_status(int error);
/* Returns a part of a sentence that says what happened. */
const char *system_text(int error);

#endif
