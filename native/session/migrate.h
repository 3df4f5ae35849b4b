/* SPDX-License-Identifier: Apache-2.0
 *
 * migrate.h - peers on the same host, and sessions that move.
 *
 * Proof. A peer whose address leads back to this host (here.c) comes from a
 * process here, if only from one that passes on what others say. An engine that
 * speaks TCP has, too, a socket with a random abstract name, which its
 * TERMS tell: who can connect to that name shares a network namespace with it.
 * The name alone would prove nothing, as all know it who were ever told. Whose
 * it is the kernel tells: that process is watched, for its end (peer.c). Then
 * the end of the connection is the truth about the
 * peer's death, and silence says nothing.
 *
 * Moving. A session that was called at one place may be better off at another:
 *
 *   called over TCP, for any transport or shared memory, by a neighbour of the
 *   same user: to a Unix socket, and so to shared memory; after the proofs
 *   called at a Unix socket, for "tcp": to TCP over loopback
 *
 * Who was called makes a ticket, good once and for hello_timeout, and says MOVE
 * in place of OFFER. There are so many; when none is free, who has fewest takes
 * one of who has most. Who called hangs up, dials there and shows the ticket in
 * its HELLO. These listeners are made when they are first needed, take in
 * holders of tickets only, and live as long as the engine. The session keeps the
 * address that was called. If it cannot be had where it moved to, the first
 * address is called once more, and there it stays.
 */
#ifndef MIGRATE_H
#define MIGRATE_H

#include "sessions.h"

/* Fills in what HELLO and TERMS say of this. */
void migrate_hello(const struct perigee_session *, struct hello *);
void migrate_terms(struct perigee_session *, struct terms *);
/* Shared memory may be asked for over TCP, as the session would move for it. */
bool migrate_willing(const struct perigee_session *session);
/* Of the peer's HELLO: may it come in here? PERIGEE_OK, or a status and why. */
int migrate_admits(struct perigee_session *, const struct hello *,
                   char reason[REASON]);
/* Of its TERMS: is it on this host? */
void migrate_met(struct perigee_session *, const struct terms *);
/* Will the session move? Both sides find the same. */
bool migrate_moves(const struct perigee_session *, const struct terms *dialer,
                   const struct terms *dialed);
/* Says MOVE; false: it cannot be done. */
bool migrate_call(struct perigee_session *session);
/* The peer has said MOVE. */
int migrate_called(struct perigee_session *, const struct move *);
/* A session that moved ends before it was open: true if it goes back to where
 * it was dialed first. */
bool migrate_returns(struct perigee_session *session, int status);
void migrate_close(struct perigee_engine *engine);

#endif
