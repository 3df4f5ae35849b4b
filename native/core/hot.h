/* SPDX-License-Identifier: Apache-2.0
 *
 * hot.h - the sessions that polls look at; others are parked.
 */
#ifndef HOT_H
#define HOT_H

#include "engine.h"

void hot_enter(struct perigee_session *session);
void hot_leave(struct perigee_session *session);
/* Its lane is armed, and there is nothing to poll for. */
void hot_park(struct perigee_session *session);
/* It may have something to poll for: it is hot, if it was parked. */
void hot_activate(struct perigee_session *session);
/* It is in use. */
static inline void hot_use(struct perigee_session *session) {
  session->used = session->engine->now;
  if (session->parked)
    hot_activate(session);
}

#endif
