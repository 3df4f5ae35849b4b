/* SPDX-License-Identifier: Apache-2.0
 *
 * signals.h - what the engine needs of signals.c besides the public part.
 */
#ifndef SIGNALS_H
#define SIGNALS_H

#include <poll.h>
#include <time.h>

/* poll(2) that misses no noted signal: between perigee_signals_begin and end
 * it fails with EINTR for one that came before it slept, as for one that
 * comes while it does, until perigee_signals_noted has told of it. timeout
 * NULL: none. */
int signals_poll(struct pollfd *descriptors, nfds_t count,
                 const struct timespec *timeout);

#endif
