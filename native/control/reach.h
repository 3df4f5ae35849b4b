/* SPDX-License-Identifier: Apache-2.0
 *
 * reach.h - from a host's name to a connected socket, without blocking: the
 * name by c-ares, then its addresses side by side, each begun a little after
 * the one before it, or when that one has failed. The first that connects is
 * taken.
 */
#ifndef PERIGEE_CONTROL_REACH_H
#define PERIGEE_CONTROL_REACH_H

#include "control/control.h"

struct reach;

/* Begins. milliseconds: how long the caller will wait, in which each address
 * gets its turn (0: as long as it takes). NULL without memory or a
 * descriptor. */
struct reach *reach_open(const char *host, uint16_t port,
                         uint32_t milliseconds);
/* Goes on. Returns 1, and *descriptor, which is the caller's; 0: waiting; else
 * a status, and *why. */
int reach_step(struct reach *reach, struct perigee_stream_wait *wait,
               int *descriptor, const char **why);
/* The descriptor that it waits for, the same for its whole life. */
int reach_descriptor(const struct reach *reach);
void reach_close(struct reach *reach);

#endif
