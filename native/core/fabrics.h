/* SPDX-License-Identifier: Apache-2.0
 *
 * fabrics.h - what transports share among all sessions of an engine.
 */
#ifndef FABRICS_H
#define FABRICS_H

#include "engine.h"

/* The engine's fabric of a transport, NULL where it has none; a status and a
 * reason if it cannot be made. */
int fabric_of(struct perigee_engine *, const struct perigee_transport *,
              struct fabric **fabric, char reason[REASON]);
/* Stops those that are dead and not used any more. */
void fabrics_reap(struct perigee_engine *engine);
void fabrics_turn(struct perigee_engine *engine);
void fabrics_arm(struct perigee_engine *engine);
/* May a range of an area go? False: a device uses it. */
bool fabrics_forget(struct perigee_engine *engine, struct area *area,
                    uint64_t offset, uint64_t length);
void fabrics_close(struct perigee_engine *engine);

#endif
