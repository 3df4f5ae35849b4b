/* SPDX-License-Identifier: Apache-2.0
 *
 * calls.h - the kinds of operations: what sessions and the engine need of them.
 *
 * The path of a small call. perigee_call takes an operation, and marks it live
 * in a word that the peer can read. It writes header, arguments and, last, the
 * record's first word into the peer's ring. Then it looks whether the peer
 * sleeps. The next poll looks again, behind a fence, for a peer that fell
 * asleep at that moment. The peer's poll finds the word, copies and checks the
 * header, and gives REQUEST. Raw bytes are read in the ring. Typed ones are
 * copied and scanned first (typed.h), in portions if they are long.
 * perigee_reply does the same in the other direction.
 *
 * The time of such a call is that of cache lines which move between two cores,
 * not that of instructions. No line with an index moves, because a record's
 * first word tells by itself that the record is there (ring.h). A record's
 * first line is written last and at once (outgoing_put_head), because the peer
 * polls it and may take it away between two stores. Nobody reads the line of
 * the next record while it is about to be written (wait.c). A wait pauses twice
 * between two polls, because the more often a line is polled, the more often it
 * moves. A poll looks at the rings of a session without a call (lane.h): two
 * loads and comparisons if there is nothing else to do.
 */
#ifndef CALLS_H
#define CALLS_H

#include "base/machine.h"
#include "operation/operations.h"

/* ---- call_begin.c, call.c: own requests and their replies --------------- */
extern const struct machine call_machine;
void call_reply(struct perigee_session *, const struct record *);
void call_stop(struct operation *op, int status);
/* Does its event come yet? It asks for no landing from then on. */
bool call_join(struct operation *op);
/* Is the call not answered yet? Is it not among the first so many requests that
 * were sent? */
bool call_pending(const struct operation *op);
/* Is the program asked for a landing of its reply, which it has not named? */
bool call_asks(const struct operation *op);
bool call_beyond(const struct operation *op, uint64_t sent);
/* Has a region's owner read or write one item of a transfer, its parent. local:
 * NULL, or the local memory in place of the item's, which goes with the call. */
int call_access(struct perigee_session *, bool write,
                const struct perigee_transfer *item, struct spread *local,
                struct operation *parent);

/* ---- served.c, serve.c: the peer's requests ----------------------------- */
extern const struct machine served_machine;
int serve_record(struct perigee_session *, const struct record *);
/* With a progress thread: frees the operations that were kept as the program
 * could still read their memory. */
void served_late(struct perigee_engine *engine);
/* Is it a call that the program still has to reply to? */
bool served_survives(const struct operation *op);
/* Counts a call whose caller is gone, if it is to be shown to the program or was,
 * and ends its span. */
void served_count_lost(struct operation *op);

/* ---- messages.c --------------------------------------------------------- */
/* Frees some of the waiting messages that their senders gave up. */
void messages_sweep(struct perigee_engine *engine);
/* Returns how many more immediates the session may queue. */
uint64_t immediates_room(const struct perigee_session *session);
void immediates_free(struct perigee_session *session);

#endif
