/* SPDX-License-Identifier: Apache-2.0
 *
 * hot.c - the list of the sessions that polls look at: schedule.c tells which are
 * in it, and who takes them out.
 */
#include "hot.h"

void hot_enter(struct perigee_session *s) {
  s->used = s->engine->now;
  if (s->turn.next)
    return;
  list_append(&s->engine->hot, &s->turn);
  s->engine->hot_count++;
}

/* The loop of schedule_poll may stand here. */
static void take_out(struct perigee_session *s) {
  struct perigee_engine *engine = s->engine;
  if (!s->turn.next)
    return;
  if (engine->turn == &s->turn)
    engine->turn = s->turn.next;
  list_remove(&s->turn);
  engine->hot_count--;
}

void hot_leave(struct perigee_session *s) {
  take_out(s);
  s->engine->parked -= s->parked;
  s->parked = false;
}

void hot_activate(struct perigee_session *s) {
  struct perigee_engine *engine = s->engine;
  if (!s->parked)
    return;
  s->parked = false;
  engine->parked--;
  list_append(&engine->hot, &s->turn);
  engine->hot_count++;
  if (!engine->armed)
    lane_sleep(s->lane)->disarm(s->lane);
}

void hot_park(struct perigee_session *s) {
  take_out(s);
  s->parked = true;
  s->engine->parked++;
}
