/* SPDX-License-Identifier: Apache-2.0
 *
 * signals.h - what the engine needs of signals.c beside the public part.
 */
#ifndef SIGNALS_H
#define SIGNALS_H

#include <poll.h>
#include <sys/epoll.h>
#include <time.h>

/* poll(2) that misses no signal. Between perigee_signals_begin and end it fails
 * with EINTR for a signal that came before or during the sleep, until
 * perigee_signals_noted has told of it. timeout NULL: no limit. */
int signals_poll(struct pollfd *descriptors, nfds_t count,
                 const struct timespec *timeout);
/* The same for what one epoll descriptor has, as epoll_wait(2). */
int signals_epoll(int epoll, struct epoll_event *events, int most,
                  const struct timespec *timeout);
/* As signals_epoll, but a signal that came before does not end it. */
int signals_epoll_on(int epoll, struct epoll_event *events, int most,
                     const struct timespec *timeout);

#endif
