/* SPDX-License-Identifier: Apache-2.0
 *
 * fabrics.h - what a transport shares among all sessions of an engine.
 */
#ifndef FABRICS_H
#define FABRICS_H

#include "engine.h"

/* Returns the engine's fabric of a transport, made if needed; NULL if the
 * transport has none; or a status and a reason. */
int fabric_of(struct perigee_engine *, const struct perigee_transport *,
              struct fabric **fabric, char reason[REASON]);
/* Can the transport's fabric be had? If not, fabric_trouble() tells why, and it
 * is not tried again for a second: a look for devices costs more than an
 * unauthenticated peer may cause. */
bool fabric_usable(struct perigee_engine *, const struct perigee_transport *);
const char *fabric_trouble(const struct perigee_engine *,
                           const struct perigee_transport *);
/* Stops fabrics that are dead and not used any more. */
void fabrics_reap(struct perigee_engine *engine);
void fabrics_turn(struct perigee_engine *engine);
void fabrics_arm(struct perigee_engine *engine);
/* May a range of an area be unmapped? False: a device still uses it. */
bool fabrics_forget(struct perigee_engine *engine, struct area *area,
                    uint64_t offset, uint64_t length);
void fabrics_close(struct perigee_engine *engine);
void fabrics_close_in_child(struct perigee_engine *engine);

#endif
