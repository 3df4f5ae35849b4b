/* SPDX-License-Identifier: Apache-2.0
 *
 * ebb.h - memory that nobody uses any more goes back to the system.
 */
#ifndef EBB_H
#define EBB_H

#include "engine.h"

void ebb_begin(struct perigee_engine *engine);  /* there is some, perhaps */
void ebb_ended(struct perigee_engine *engine);  /* of a session */
void ebb_sleeps(struct perigee_engine *engine); /* it is about to */
/* The session's lane keeps some for blocks; it is no more, or another. */
void ebb_keeps(struct perigee_session *session);
void ebb_forget(struct perigee_session *session);

#endif
