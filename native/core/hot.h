/* SPDX-License-Identifier: Apache-2.0
 *
 * hot.h - the sessions that polls look at; all others are parked.
 */
#ifndef HOT_H
#define HOT_H

#include "engine.h"

void hot_enter(struct perigee_session *session);
void hot_leave(struct perigee_session *session);
/* Parks it. Its lane must be armed, with nothing to poll for. */
void hot_park(struct perigee_session *session);
/* Makes a parked session hot, as there may be something to poll for. */
void hot_activate(struct perigee_session *session);
/* Notes that the session is in use, and makes it hot. */
static inline void hot_use(struct perigee_session *session) {
  session->polled.used = session->engine->now;
  if (session->polled.parked)
    hot_activate(session);
}

#endif
