/* SPDX-License-Identifier: Apache-2.0
 *
 * signals.h - what the engine needs of signals.c besides the public part.
 */
#ifndef SIGNALS_H
#define SIGNALS_H

/* To be polled while sleeping: readable from a signal being noted until
 * perigee_signals_noted has told of it, so that none is missed that comes
 * just before the sleep, or in another thread. -1 outside of begin and end
 * (poll skips it). Never to be read or closed by the caller. */
int signals_descriptor(void);

#endif
