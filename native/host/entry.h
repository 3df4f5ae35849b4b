/* SPDX-License-Identifier: Apache-2.0
 *
 * entry.h - what holders of names tell of themselves.
 */
#ifndef PERIGEE_HOST_ENTRY_H
#define PERIGEE_HOST_ENTRY_H

/* Locks the file of a name that was just taken for those who ask, and forgets
 * what a dead owner told. */
int entry_begin(int descriptor);

#endif
