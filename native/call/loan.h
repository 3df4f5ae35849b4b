/* SPDX-License-Identifier: Apache-2.0
 *
 * loan.h - memory that is lent to the program, to be filled with a request or
 * a reply (the state of a loan under way is struct loan, session.h).
 *
 *   up to the eager limit   a stage: private memory of the engine's, of which
 *                           commit copies what was filled into the ring
 *   beyond                  a block of the lane's, which the peer sees in place
 *
 * A program that fills more than it was lent harms nobody else. Right behind a
 * loan lies a mark, which is looked at when the loan ends (PERIGEE_RANGE); only
 * blocks that are full to the last byte have no room for one. Behind a stage
 * lie 1 MiB that belong to nothing, behind a block others of the same session,
 * and behind these and those pages that fault (guarded.h).
 */
#ifndef LOAN_H
#define LOAN_H

#include "operations.h"

/* Loans from this size on are taken back at once and lent again while they lie
 * in the shared cache; shorter ones take turns, so that a writer does not
 * have to fetch each line back from the cache of the core that just read it
 * (measured: two blocks in turn win by half at 1 MiB, one at 16 MiB). */
enum { LOAN_WARM = 4 << 20 };

/* Kept by the engine, one for each loan that was ever open at once. */
struct stage {
  struct stage *next;
  uint8_t *bytes;
};

/* Lends capacity bytes: 0, TOO_LARGE, NO_MEMORY, INVALID (one is open). */
int loan_begin(struct perigee_session *session, enum ring ring,
               uint64_t capacity, struct perigee_loan *out);
/* The same for a reply, in room that was taken for it, which is the loan's from
 * here on: 0, INVALID. */
int loan_begin_in(struct perigee_session *session, uint64_t capacity,
                  const struct room *room, struct perigee_loan *out);
/* Such room, by room_lend. */
int loan_room(struct perigee_session *session, uint64_t capacity,
              struct room *room);
/* Is one open of which length bytes may be sent? 0, INVALID; or RANGE, then it
 * was given back. */
int loan_check(struct perigee_session *session, enum ring ring,
               uint64_t length);
/* What it was filled with has been taken over, or copied. */
void loan_close(struct perigee_session *session, enum ring ring);
/* Gives it back, if one is open: 0 or RANGE. */
int loan_abort(struct perigee_session *session, enum ring ring);
/* Of a session that goes. */
void loans_end(struct perigee_session *session);
/* Of an engine that goes. */
void stages_free(struct perigee_engine *engine);

#endif
