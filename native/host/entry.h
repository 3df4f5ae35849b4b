/* SPDX-License-Identifier: Apache-2.0
 *
 * entry.h - the text that the holder of a name publishes.
 */
#ifndef PERIGEE_HOST_ENTRY_H
#define PERIGEE_HOST_ENTRY_H

/* Locks the file of a name that was just taken, so that readers see that it is
 * held, and removes the text of a dead holder. NAME_TAKEN: a live holder has that
 * lock, who has yielded the name. */
int entry_begin(int descriptor);

#endif
