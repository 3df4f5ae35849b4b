/* SPDX-License-Identifier: Apache-2.0
 *
 * trace.h - trace contexts (W3C): the trace that a call belongs to, and the
 * span from which it was made. An own call has a copy of what its message
 * names; a served call has what came with the request, until it has ended.
 */
#ifndef TRACE_H
#define TRACE_H

#include "operations.h"

/* May a message that names a trace context be sent by a call of this session?
 * If not, a status and a sentence. */
int trace_check(struct perigee_session *session,
                const struct perigee_message *message);
/* Copies the trace context that the operation's message names. */
void trace_keep(struct operation *op);
/* Copies what came with a request: RECORD_TRACE_PAYLOAD bytes in the ring. */
void trace_arrived(struct operation *op, const uint8_t *bytes);

#endif
