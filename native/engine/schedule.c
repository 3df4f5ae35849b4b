/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule.c - whose turn it is in a poll: that of the sessions that are hot. Many
 * sessions idle while few work, and those cost a poll nothing: they are parked.
 *
 *   state    event                                        becomes
 *   out      it opened                                    hot
 *   hot      nothing of it for PARK_AFTER, and nothing
 *            is there once its lane was armed             parked
 *   parked   something came by a descriptor of its, or
 *            its lane asks for a poll                     hot
 *   parked   an operation begins, moves, or waits for
 *            room                                         hot
 *   any      it ended                                     out
 *
 * A parked session is what every session of a sleeping engine is (wait.c): its
 * lane is armed, so the peer wakes us, by a frame on the session's socket, for
 * whatever it does; and what a lane waits for by itself comes by a descriptor
 * that epoll watches, or by hot_activate. Its wake-up is seen at the next look at the
 * sockets.
 *
 * No wake-up is lost. To park: arm (a fenced store), then poll, then leave the
 * list, with no look at the sockets in between. What the peer did before it
 * could see us armed, that poll finds, by the two fences (arm; wanted, or
 * session_sure); the session stays. For what it does later it sends a frame:
 * that is read after the leaving, and whatever is read from a session's socket
 * makes it hot. It sends one frame for each arming, so the lane is armed anew
 * each time. The poll counts only if it looked at all there may be: a session
 * whose requests nobody takes now, for want of room or since one before them has
 * not landed or not started yet, stays hot. spec/model/park.pml has this.
 *
 * Frames alone (a heartbeat, a late wake-up) are no use of a session: it is
 * parked again by the next poll that finds nothing. And the last that was in
 * use stays hot, so that one session alone waits for no look at the sockets.
 */
#include "core/hot.h"
#include "core/lane_list.h"
#include "core/lock.h"
#include "polling.h"
#include "session/sessions.h"

/* ns. The first record after so long may wait for a look at the sockets. */
static const int64_t PARK_AFTER = 20 * 1000000;

/* Is nothing of it under way that only polls bring on? */
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

/* Was none that is hot used later? Of those used at once one is the last that
 * is left. */
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

static __attribute__((noinline, cold)) void park(struct perigee_session *s) {
  struct perigee_engine *engine = s->engine;
  if (!rests(s) || is_last(s))
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
    list_append(head, list_pop(head)); /* who came first comes last */
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

/* Those that are parked stay armed. */
void schedule_disarm(struct perigee_engine *engine) {
  struct node *n, *head = &engine->hot;
  for (n = head->next; n != head; n = n->next) {
    struct perigee_session *s =
        CONTAINER(n, struct perigee_session, polled.node);
    if (s->lane)
      disarm(s);
  }
}
