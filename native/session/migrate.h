/* SPDX-License-Identifier: Apache-2.0
 *
 * migrate.h - finds out that a peer is on the same host, and moves sessions to
 * another socket.
 *
 * Proof. If the peer's address leads back to this host (here.c), the connection
 * was made by a process here, which may still be a proxy for another host. So
 * an engine that speaks TCP also has a socket with a random abstract name, told
 * in its TERMS: a process that can connect to that name shares a network
 * namespace with the engine. The name alone would prove nothing, as everybody
 * who was told knows it. The kernel tells the process that owns it, which is
 * then watched (peer.c). From then on the end of that process tells of the
 * peer's death, and silence means nothing.
 *
 * Moving. A session dialed at one address may be better off at another:
 *
 *   dialed over TCP, for any transport or for shared memory, by a peer of the
 *   same user and host: to a Unix socket, and so to shared memory; after the
 *   proofs of the secret
 *   dialed at a Unix socket, for "tcp": to TCP over loopback
 *
 * The listening side makes a ticket, valid once and for hello_timeout, and says
 * MOVE in place of OFFER. Tickets are limited; if none is free, the peer with
 * the fewest takes one from the peer with the most. The dialer closes the
 * connection, dials the new address and shows the ticket in its HELLO. The
 * listeners for that are made when first needed, accept holders of tickets
 * only, and live as long as the engine. The session keeps the address that was
 * dialed first. If it cannot move, that address is dialed once more, and there
 * it stays.
 */
#ifndef MIGRATE_H
#define MIGRATE_H

#include "sessions.h"

extern const struct machine migration_machine; /* migrate.c */

/* Fill in the fields of HELLO and TERMS that are about moving. */
void migrate_hello(const struct perigee_session *, struct hello *);
void migrate_terms(struct perigee_session *, struct terms *);
/* Shared memory may be asked for over TCP if the session would move for it. */
bool migrate_willing(const struct perigee_session *session);
/* Returns PERIGEE_OK if the sender of this HELLO may come in here, else a
 * status and the reason. */
int migrate_admits(struct perigee_session *, const struct hello *,
                   char reason[REASON]);
/* Finds out from the peer's TERMS whether it is on this host. */
void migrate_met(struct perigee_session *, const struct terms *);
/* Takes the step to agreed if the session may move. Both sides compute the same
 * answer. */
void migrate_agree(struct perigee_session *, const struct terms *dialer,
                   const struct terms *dialed);
/* Takes the step back if a move was agreed: the session stays where it is. */
void migrate_stays(struct perigee_session *session);
/* Sends MOVE; false if it cannot. */
bool migrate_call(struct perigee_session *session);
/* Called when the peer has sent MOVE. */
int migrate_called(struct perigee_session *, const struct move *);
/* Called when a session ends before it was open. Returns true if it had moved
 * and now goes back to the address that was dialed first. */
bool migrate_returns(struct perigee_session *session, int status);
void migrate_close(struct perigee_engine *engine);

#endif
