/* SPDX-License-Identifier: Apache-2.0
 *
 * trim.h - memory that nobody uses any more goes back to the system.
 */
#ifndef TRIM_H
#define TRIM_H

#include "engine.h"

void trim_begin(struct perigee_engine *engine);  /* there is some, perhaps */
void trim_ended(struct perigee_engine *engine);  /* of a session */
void trim_sleeps(struct perigee_engine *engine); /* it is about to */
/* The session's lane keeps some for blocks; it is no more, or another. */
void trim_keeps(struct perigee_session *session);
void trim_forget(struct perigee_session *session);

#endif
