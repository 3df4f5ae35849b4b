/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule.c - which sessions a poll looks at: the hot ones. Many sessions idle
 * while few work; idle ones are parked, and cost a poll nothing.
 *
 *   state    event                                        becomes
 *   out      it opened                                    hot
 *   hot      unused for PARK_AFTER, and nothing to poll
 *            for after its lane was armed                 parked
 *   parked   one of its descriptors has an event, or
 *            its lane asks for a poll                     hot
 *   parked   an operation begins, moves, or waits for
 *            room                                         hot
 *   any      it ended                                     out
 *
 * A parked session is in the state of every session of a sleeping engine
 * (wait.c): its lane is armed, so the peer wakes this side by a frame on the
 * session's socket for whatever it does. What the lane itself waits for comes
 * by a watched descriptor, or by hot_activate. The wake-up is seen at the next
 * look at the sockets.
 *
 * No wake-up is lost. To park a session: arm its lane (a fenced store), then
 * poll it, then take it off the list, without a look at the sockets in between.
 * What the peer did before it could see the lane armed is found by that poll,
 * because of the two fences (arm; wanted, or session_sure), and the session
 * stays hot. For what it does later the peer sends a frame. That is read after
 * the session left the list, and anything that is read from a session's socket
 * makes it hot. The peer sends one frame for each arming, so the lane is armed
 * again each time. The poll counts only if it looked at everything: a session
 * whose requests are not read now, for lack of room or because one before them
 * is still landing or not started, stays hot. spec/model/park.pml is a model of
 * this.
 *
 * Frames alone (a keepalive, a late wake-up) do not count as use: the next poll
 * that finds nothing parks the session again. The session that was used last
 * stays hot, so that a single session never waits for a look at the sockets.
 */
#include "core/hot.h"
#include "core/lane_list.h"
#include "core/lock.h"
#include "polling.h"
#include "session/sessions.h"

/* ns. The first record after that may wait for a look at the sockets. */
static const int64_t PARK_AFTER = 20 * 1000000;

/* Is nothing in progress that needs polls? */
static bool rests(struct perigee_session *s) {
  if (s->state != PERIGEE_SESSION_OPEN || !session_rests(s))
    return false;
  const struct perigee_transport *t = lane_table(s->lane);
  return t->rests && t->rests(s->lane) && lanes_rest(s);
}

static void arm(struct perigee_session *s) {
  lane_sleep(s->lane)->arm(s->lane);
  lanes_arm(s);
}

static void disarm(struct perigee_session *s) {
  lane_sleep(s->lane)->disarm(s->lane);
  lanes_disarm(s);
}

/* Was no other hot session used later? Of several used at the same time, the
 * one that is left last counts. */
static bool is_last(const struct perigee_session *s) {
  const struct node *n, *head = &s->engine->hot;
  for (n = head->next; n != head; n = n->next) {
    const struct perigee_session *other =
        CONTAINER(n, struct perigee_session, polled.node);
    if (other != s && other->polled.used >= s->polled.used)
      return false;
  }
  return true;
}

/* The second look releases what the first one has read, so there must be no
 * event that still has to be given and may point there. */
static __attribute__((noinline, cold)) void park(struct perigee_session *s) {
  struct perigee_engine *engine = s->engine;
  if (engine->ready_count > 0 || !rests(s) || is_last(s))
    return;
  arm(s);
  uint64_t before = engine->progress;
  session_poll(s);
  if (engine->progress == before && rests(s)) {
    hot_park(s);
  } else if (!engine->armed && s->state == PERIGEE_SESSION_OPEN) {
    disarm(s);
  }
}

void schedule_poll(struct perigee_engine *engine) {
  struct node *n, *head = &engine->hot;
  for (n = head->next; n != head && engine_room(engine); n = engine->turn) {
    struct perigee_session *s =
        CONTAINER(n, struct perigee_session, polled.node);
    engine->turn = n->next;
    session_poll(s);
    if (UNLIKELY(engine->now - s->polled.used > PARK_AFTER))
      park(s);
  }
  engine->turn = NULL;
  if (n != head && head->next->next != head)
    list_append(head, list_pop(head)); /* the next poll begins with another */
}

void schedule_arm(struct perigee_engine *engine) {
  struct node *n, *head = &engine->hot;
  for (n = head->next; n != head; n = n->next) {
    struct perigee_session *s =
        CONTAINER(n, struct perigee_session, polled.node);
    if (s->lane)
      arm(s);
  }
}

/* Disarms the hot sessions; parked ones stay armed. */
void schedule_disarm(struct perigee_engine *engine) {
  struct node *n, *head = &engine->hot;
  for (n = head->next; n != head; n = n->next) {
    struct perigee_session *s =
        CONTAINER(n, struct perigee_session, polled.node);
    if (s->lane)
      disarm(s);
  }
}
