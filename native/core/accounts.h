/* SPDX-License-Identifier: Apache-2.0
 *
 * accounts.h - the share of the engine's resources that a session has
 * (shares.h).
 */
#ifndef ACCOUNTS_H
#define ACCOUNTS_H

#include "engine.h"

/* Called when the session's peer is known: gives the session a share of its own
 * below its peer's, until accounts_leave. PERIGEE_NO_MEMORY and why: the peer
 * has too many sessions, or there is no memory. */
int accounts_join(struct perigee_session *session, char *reason, uint64_t size);
void accounts_leave(struct perigee_session *session);
/* Makes the key of the session's peer: equal for all sessions of one peer. */
void accounts_who(const struct perigee_session *session, uint64_t key[2]);

#endif
