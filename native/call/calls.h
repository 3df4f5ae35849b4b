/* SPDX-License-Identifier: Apache-2.0
 *
 * calls.h - the kinds of operations: what sessions and the engine need of them.
 */
#ifndef CALLS_H
#define CALLS_H

#include "base/machine.h"
#include "operation/operations.h"

/* ---- call.c: own requests and their replies ----------------------------- */
extern const struct machine call_machine;
void call_reply(struct perigee_session *, const struct record *);
void call_stop(struct operation *op, int status);
/* Is the call not answered yet? Is it not among the first so many requests that
 * were sent? */
bool call_pending(const struct operation *op);
bool call_beyond(const struct operation *op, uint64_t sent);
/* Has a region's owner read or write one item of a transfer, its parent. */
int call_access(struct perigee_session *, bool write,
                const struct perigee_transfer *item, struct operation *parent);

/* ---- served.c, serve.c: the peer's requests ----------------------------- */
extern const struct machine served_machine;
int serve_record(struct perigee_session *, const struct record *);
/* With a progress thread: frees the operations that were kept as the program
 * could still read their memory. */
void served_late(struct perigee_engine *engine);
/* Is it a call that the program still has to reply to? */
bool served_survives(const struct operation *op);

/* ---- serve.c: messages -------------------------------------------------- */
/* Frees some of the waiting messages that their senders gave up. */
void messages_sweep(struct perigee_engine *engine);
/* Returns how many more immediates the session may queue. */
uint64_t immediates_room(const struct perigee_session *session);
void immediates_free(struct perigee_session *session);

#endif
