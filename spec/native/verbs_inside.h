/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_inside.h - what tests do to an RDMA session behind its back.
 */
#ifndef VERBS_INSIDE_H
#define VERBS_INSIDE_H

#include "perigee.h"

/* The reason why no session over RDMA is possible here, or NULL. */
const char *no_device(void);

enum { REASON_TEXT = 240 };

/* The number of the session's queue pairs; the first is for control. */
int pairs_of(const struct perigee_session *session);
/* Moves a queue pair to the error state, as a fault of the device would.
 * False if it is not connected now. */
bool pair_to_error(struct perigee_session *session, int pair);
/* How often a queue pair was reset. */
uint64_t resets_of(const struct perigee_session *session);

/* Has the session's ports tell that they are down, or what they are again; and
 * forget the addresses that they had. */
void ports_down(struct perigee_session *session, bool down);
void ports_forget_address(struct perigee_session *session);
/* The engine has chosen its port by itself, and would choose another one now. */
void ports_outdone(struct perigee_session *session);
/* Returns a port that is not chosen unless it is named, or NULL. */
const char *port_of_second_choice(void);
/* Can new sessions use the session's ports? A status and a reason. */
int ports_usable(struct perigee_session *session, char reason[REASON_TEXT]);

/* Sends that many notes, without waiting for room that the peer gives, until the
 * session is broken. Does not poll the peer. */
void notes_flood(struct perigee_session *session, int count);

/* How many bytes of regions the session's peer may read now, as payloads. */
uint64_t shown_of(const struct perigee_session *session);

/* Makes all keys that the session holds for the region's memory wrong, or
 * restores them. */
void keys_spoil(struct perigee_session *session,
                const struct perigee_remote *remote);

/* Lets a peer join whose NIC has another link layer than the session's, or that
 * has one queue pair only, or after the device has failed; returns the status and
 * the reason that the peer gets. */
int joined_over_other_links(struct perigee_session *session,
                            char reason[REASON_TEXT]);
int joined_by_one_pair(struct perigee_session *session,
                       char reason[REASON_TEXT]);
int joined_without_device(struct perigee_session *session,
                          char reason[REASON_TEXT]);

/* Grants the peer a region anew: its memory windows are not bound yet. */
void grant_anew(struct perigee_session *session, struct perigee_region *region);
/* Fills the session's socket, of which the peer reads nothing meanwhile. */
void socket_fill(struct perigee_session *session);

#endif
