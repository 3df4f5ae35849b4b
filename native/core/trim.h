/* SPDX-License-Identifier: Apache-2.0
 *
 * trim.h - gives memory that is not used any more back to the system.
 */
#ifndef TRIM_H
#define TRIM_H

#include "engine.h"

__attribute__((cold)) void
trim_begin(struct perigee_engine *engine);       /* there may be some */
void trim_ended(struct perigee_engine *engine);  /* a session has ended */
void trim_sleeps(struct perigee_engine *engine); /* it is about to sleep */
/* keeps: the session's lane keeps memory for later. forget: the lane is freed,
 * or replaced by another. */
void trim_keeps(struct perigee_session *session);
void trim_forget(struct perigee_session *session);

#endif
