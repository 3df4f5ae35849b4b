/* SPDX-License-Identifier: Apache-2.0
 *
 * turns.c - whose turn it is in a poll. Many sessions idle while few work: one
 * that was found quiet for a while (cold) is looked at only now and then, and
 * at each poll again once it stirs (hot).
 */
#include "core.h"

enum { QUIET_POLLS = 4096, COLD_SHARE = 64 };

void turns_leave(struct perigee_session *s) {
  s->engine->cold_count -= s->cold;
  s->cold = false;
  list_remove(&s->turn);
}

static void turn_to(struct perigee_session *s, bool cold) {
  turns_leave(s);
  s->cold = cold;
  s->engine->cold_count += cold;
  list_append(cold ? &s->engine->cold : &s->engine->hot, &s->turn);
}

void turns_stir(struct perigee_session *s) {
  s->quiet = 0;
  if (s->cold)
    turn_to(s, false);
}

static bool stirs(struct perigee_session *s) {
  uint64_t before = s->engine->progress;
  session_poll(s);
  bool stirred = s->engine->progress != before;
  s->quiet = stirred ? 0 : s->quiet + 1;
  return stirred;
}

static void poll_hot(struct perigee_engine *engine) {
  struct node *n, *next, *head = &engine->hot;
  for (n = head->next; n != head && engine_room(engine); n = next) {
    next = n->next;
    struct perigee_session *s = CONTAINER(n, struct perigee_session, turn);
    if (stirs(s) || s->quiet < QUIET_POLLS || !n->next)
      continue;
    turn_to(s, true);
  }
  if (n != head && head->next->next != head)
    list_append(head, list_pop(head)); /* who came first comes last */
}

void turns_poll(struct perigee_engine *engine, bool all) {
  poll_hot(engine);
  uint32_t turns = all ? engine->cold_count
                       : (engine->cold_count + COLD_SHARE - 1) / COLD_SHARE;
  for (; turns > 0 && engine_room(engine); turns--) {
    struct node *n = list_pop(&engine->cold);
    struct perigee_session *s = CONTAINER(n, struct perigee_session, turn);
    list_append(&engine->cold, n);
    if (stirs(s) && n->next)
      turn_to(s, false);
  }
}
