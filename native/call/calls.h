/* SPDX-License-Identifier: Apache-2.0
 *
 * calls.h - the kinds of operations, as sessions and the engine see them.
 */
#ifndef CALLS_H
#define CALLS_H

#include "base/machine.h"
#include "operations.h"

/* ---- call.c: own records and their replies -------------------------------- */
extern const struct machine call_machine;
void call_flush(struct perigee_session *session);
void call_reply(struct perigee_session *, const struct record *);
void call_step(struct operation *op);
void call_stop(struct operation *op, int status);
int call_access(struct perigee_session *, bool write,
                const struct perigee_transfer *item, struct operation *parent);
/* Into the request ring if there is room: true. */
bool publish_imm(struct perigee_session *session, uint64_t immediate);

/* ---- serve.c: those of the peer ------------------------------------------- */
extern const struct machine served_machine;
extern const struct operation_class served_class;
int serve_record(struct perigee_session *, const struct record *);
void serve_flush(struct perigee_session *session);
void serve_step(struct operation *op);
void serve_lost(struct operation *op);
/* Answers a READ, WRITE or SEND, or refuses any. */
void serve_answer(struct operation *op, int status);
int serve_fetch(struct operation *op, const struct payload *into);
/* With a thread: of a call that the program was shown, and may still look into.
 * keeps: then it is free later, and late is that. */
bool served_shown(const struct operation *op);
bool served_keeps(struct operation *op);
void served_late(struct perigee_engine *engine);
/* Is it a call that the program still has to answer? */
bool serve_survives(const struct operation *op);
void serve_abort(struct operation *op, int status); /* a SEND under way */

/* ---- message.c ------------------------------------------------------------ */
void message_arrived(struct operation *served);
int immediate_arrived(struct perigee_session *, uint64_t immediate);
void message_match(struct perigee_session *session);
/* Some of those that wait: that their senders gave up. */
void messages_sweep(struct perigee_engine *engine);
/* How many more may come, of a session that keeps some? */
uint64_t immediates_room(const struct perigee_session *session);
void immediates_free(struct perigee_session *session);
void message_done(struct operation *served, int status);

/* ---- transfer.c ----------------------------------------------------------- */
extern const struct machine transfer_machine;
void transfer_submit(struct operation *op, int64_t timeout);
void transfer_step(struct operation *op);
void transfer_published(struct operation *op);
void transfer_stop(struct operation *op, int status);
void transfer_child(struct operation *parent, int status);
void transfer_given(struct operation *op);

#endif
