/* SPDX-License-Identifier: Apache-2.0
 *
 * lanes.h - a session's lane, for operations.
 */
#ifndef LANES_H
#define LANES_H

#include "engine.h"

/* Has it broken? A status and why, or PERIGEE_OK. */
int lane_state(const struct perigee_session *session, const char **reason);
/* Why there was no memory over its transport of late, or "". */
const char *lane_trouble(const struct perigee_session *session);
/* May an operation begin? Else its status, and a sentence is kept. */
bool session_open_for(struct perigee_session *session, int *status);
/* PERIGEE_OK; or UNSUPPORTED, and a sentence on the feature that is missing. */
int session_needs(struct perigee_session *session, uint64_t feature);
/* Wakes the peer, if it sleeps and wants to be woken. */
void session_wake(struct perigee_session *session);

#endif
