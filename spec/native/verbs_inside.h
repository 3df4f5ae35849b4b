/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_inside.h - what tests do to an RDMA session behind its back.
 */
#ifndef VERBS_INSIDE_H
#define VERBS_INSIDE_H

#include "perigee.h"

/* Why no session over RDMA can be here, or NULL. */
const char *no_device(void);

/* Queue pairs of the session, the first of them for control. */
int pairs_of(const struct perigee_session *session);
/* Moves one to the error state, as a fault of the device would. False: it is
 * not connected now. */
bool pair_to_error(struct perigee_session *session, int pair);
/* How often a pair was reset. */
uint64_t resets_of(const struct perigee_session *session);

/* Makes each key that the session holds for the region's memory a wrong one,
 * or each right again. */
void keys_spoil(struct perigee_session *session,
                const struct perigee_remote *remote);

/* What a peer is told whose NIC has another link layer than that of the
 * session: a status, and why. */
enum { REASON_TEXT = 240 };
int joined_over_other_links(struct perigee_session *session,
                            char reason[REASON_TEXT]);

#endif
