/* SPDX-License-Identifier: Apache-2.0
 *
 * loan.h - memory that is lent to the program, to be filled with a request or a
 * reply, and room: the blocks that the peer reads in place. The state of a loan
 * in progress is struct loan in session.h.
 *
 *   up to the eager limit   a stage: private memory of the engine, from which
 *                           commit copies the content into the ring; or room in
 *                           the ring, where the lane lends it (groups.h): commit
 *                           copies nothing, unless another record came first
 *                           or waits, or the call is traced
 *   beyond                  a block of the lane, which the peer reads in place
 *
 * A program that writes beyond its loan harms nobody else. Right behind a loan
 * is a mark, which is checked when the loan ends (PERIGEE_RANGE); only blocks
 * that are full to the last byte have no room for one. Behind a stage is 1 MiB
 * that nobody uses, behind room in the ring are 16 KiB that have no record yet and
 * then the session's ring, behind a block are blocks of the same session, and
 * behind all are pages that fault (backing.h).
 *
 * A call that lent its request and ends early is orphaned (call.c). Its loan
 * stays lent until the peer's late reply, or the peer's end, tells that nobody
 * reads it any more.
 */
#ifndef LOAN_H
#define LOAN_H

#include "operations.h"

/* Loans from this size on are lent again right after they came back, while
 * they are in the shared cache. Shorter ones are used in rotation, so that
 * a writer need not fetch each line back from the cache of the core that
 * has just read it (measured: two blocks in turn win by half at 1 MiB, one
 * block at 16 MiB). */
enum { LOAN_WARM = 4 << 20 };

/* The engine keeps one for each loan that was ever open at the same time. */
struct stage {
  struct stage *next;
  uint8_t *bytes;
};

/* Is it sent as bytes of a record? */
static inline bool loan_is_short(const struct loan *loan) {
  return loan->stage || loan->in_ring;
}
/* Lends capacity bytes: 0, TOO_LARGE, NO_MEMORY, INVALID (one is open). */
int loan_begin(struct perigee_session *session, enum ring ring,
               uint64_t capacity, struct perigee_loan *out);
/* The same for a reply, in room that was taken for it. The loan owns the room
 * from then on. 0 or INVALID. */
int loan_begin_in(struct perigee_session *session, uint64_t capacity,
                  const struct room *room, struct perigee_loan *out);
/* Is a loan open, and may length bytes of it be sent? 0, INVALID; or RANGE, and
 * then the loan was given back. */
int loan_check(struct perigee_session *session, enum ring ring,
               uint64_t length);
/* Has a loan that is room in the ring go on in a stage, to which so many bytes are
 * copied: 0 or NO_MEMORY. */
int loan_leave_ring(struct perigee_session *session, enum ring ring,
                    uint64_t length);
/* Closes the loan: its content has been copied, or belongs to an operation. */
void loan_close(struct perigee_session *session, enum ring ring);
/* Gives the loan back, if one is open: 0 or RANGE. */
int loan_abort(struct perigee_session *session, enum ring ring);
/* Gives back all loans of a session that is freed. */
void loans_end(struct perigee_session *session);
/* Frees the stages of an engine that is closed. */
void stages_free(struct perigee_engine *engine);

/* ---- Room: blocks that peers read in place ------------------------------ */
/* May an own request expose so many more bytes? */
bool room_stages(const struct operation *op, uint64_t bytes);
/* Looks, at each tick, which replies were read: at some of them, or at all. */
void room_sweep(struct perigee_engine *engine, bool all);
/* The reply refers to memory of ours; it is kept until the caller has read
 * it. */
void room_keep_reply(struct operation *op);
/* Takes back memory of replies that were read, after a reply was sent. */
void room_look(struct perigee_session *session);
/* Takes room for the head, if it has to be pulled into a block (from the
 * source), and for the reply, if it may need a block; what is not used is given
 * back by room_give. Returns 1, PERIGEE_AGAIN if the request has to wait, or a
 * status. */
int room_take(struct operation *op, const struct source *source);
void room_give(struct operation *op);
/* Returns where a raw head that the peer has lent by its operation of that number
 * and generation can be read, from now until the operation is free or
 * operation_unview is called. NULL: it has to be fetched. */
const uint8_t *room_view(struct operation *op, const struct source *source,
                         uint16_t operation, uint32_t generation);
/* await steps the request at each poll, and sets its timer for as long as it
 * may wait; waited stops that timer. */
void room_await(struct operation *op);
void room_waited(struct operation *op);

#endif
