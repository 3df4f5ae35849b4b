/* SPDX-License-Identifier: Apache-2.0
 *
 * trace.h - trace contexts (W3C): which trace a call belongs to, and from which
 * span it was made. Own calls have a copy of what their message names; served
 * ones have what came with the request, until they are over.
 */
#ifndef TRACE_H
#define TRACE_H

#include "operations.h"

/* Of a message that names one: may it go with a call of the session? Else a
 * status, and a sentence is kept. */
int trace_check(struct perigee_session *session,
                const struct perigee_message *message);
/* Of an own operation whose message names one. */
void trace_keep(struct operation *op);
/* What came with a request: RECORD_TRACE_PAYLOAD bytes of the ring. */
void trace_arrived(struct operation *op, const uint8_t *bytes);

#endif
