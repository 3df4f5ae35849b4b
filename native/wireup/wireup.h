/* SPDX-License-Identifier: Apache-2.0
 *
 * wireup.h - the handshake that opens a session: for the engine, which gives
 * wireup_class to its sessions, and for sessions that get the peer's HELLO and
 * OFFER in another way (endpoint.c).
 */
#ifndef WIREUP_H
#define WIREUP_H

#include "session/sessions.h"

extern const struct machine wireup_machine;
extern const struct wireup_class wireup_class;

/* Fill in what this side says. */
void hello_own(struct perigee_session *session, struct hello *hello);
void terms_own(struct perigee_session *session, struct terms *terms);
/* common, fits and joins check the peer's HELLO, TERMS and OFFER; false: the
 * session has ended. ready opens the session. */
bool wireup_common(struct perigee_session *, const struct hello *);
bool wireup_fits(struct perigee_session *session, const struct terms *terms);
bool wireup_joins(struct perigee_session *session, const struct offer *offer);
void wireup_ready(struct perigee_session *session);

#endif
