/* SPDX-License-Identifier: Apache-2.0
 *
 * standard.h - the standard descriptors. A program may be started without some of
 * 0, 1 and 2 (`<&- >&-`). Files and sockets that are opened then get these
 * numbers, and what the program prints goes into them.
 */
#ifndef STANDARD_H
#define STANDARD_H

/* Opens /dev/null in the place of those that are closed. */
void standard_fill(void);

#endif
