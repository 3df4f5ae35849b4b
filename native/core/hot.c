/* SPDX-License-Identifier: Apache-2.0
 *
 * hot.c - the list of the sessions that polls look at. schedule.c describes
 * when a session enters and leaves it.
 */
#include "hot.h"

#include "lane_list.h"

void hot_enter(struct perigee_session *s) {
  s->polled.used = s->engine->now;
  if (s->polled.node.next)
    return;
  list_append(&s->engine->hot, &s->polled.node);
  s->engine->hot_count++;
}

/* Moves the position of schedule_poll's loop, if it is at this session. */
static void take_out(struct perigee_session *s) {
  struct perigee_engine *engine = s->engine;
  if (!s->polled.node.next)
    return;
  if (engine->turn == &s->polled.node)
    engine->turn = s->polled.node.next;
  list_remove(&s->polled.node);
  engine->hot_count--;
}

void hot_leave(struct perigee_session *s) {
  take_out(s);
  s->engine->parked -= s->polled.parked;
  s->polled.parked = false;
}

void hot_activate(struct perigee_session *s) {
  struct perigee_engine *engine = s->engine;
  if (!s->polled.parked)
    return;
  s->polled.parked = false;
  engine->parked--;
  list_append(&engine->hot, &s->polled.node);
  engine->hot_count++;
  if (engine->armed)
    return;
  lane_sleep(s->lane)->disarm(s->lane);
  lanes_disarm(s);
}

void hot_park(struct perigee_session *s) {
  take_out(s);
  s->polled.parked = true;
  s->engine->parked++;
}
