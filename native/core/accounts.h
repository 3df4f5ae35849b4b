/* SPDX-License-Identifier: Apache-2.0
 *
 * accounts.h - the share of what an engine has that is a session's (shares.h).
 */
#ifndef ACCOUNTS_H
#define ACCOUNTS_H

#include "engine.h"

/* The session's peer is known: it has a share of its own, and of its peer's,
 * from here until accounts_leave. PERIGEE_NO_MEMORY and why: the peer has too
 * many sessions, or there is no memory. */
int accounts_join(struct perigee_session *session, char *reason, uint64_t size);
void accounts_leave(struct perigee_session *session);
/* Who its peer is: the same for all sessions of one peer. */
void accounts_who(const struct perigee_session *session, uint64_t key[2]);

#endif
