/* SPDX-License-Identifier: Apache-2.0
 *
 * lanes.c - a session's lanes, for operations: whether its first lane is well,
 * and waking the peer (lanes.h); the additional lanes, which of them an
 * operation uses, and what happens when one breaks (lanes.h); and the list
 * of the sessions that polls look at (lanes.h). engine/poll.c describes when a
 * session enters and leaves that.
 */
#include "lanes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/wire.h"

/* ---- The first lane ------------------------------------------------------ */

int lane_state(const struct perigee_session *s, const char **reason) {
  const struct perigee_transport *t = s->transport;
  return t->broken ? t->broken(s->lane, reason) : PERIGEE_OK;
}

const char *lane_trouble(const struct perigee_session *s) {
  bool known = s && s->lane && s->transport->trouble;
  return known ? s->transport->trouble(s->lane) : "";
}

/* Nothing is begun over a broken lane: callers that try again at once would get
 * events without end, and never that of the session. */
void session_tell_shut(struct perigee_session *s, int *status) {
  bool open = s->state == PERIGEE_SESSION_OPEN, alive = engine_alive(s->engine);
  const char *reason = "";
  if (open && alive) /* the lane broke; the session's end is not told yet */
    *status = lane_state(s, &reason);
  if (!alive)
    *status = fail(s->engine, PERIGEE_FORKED,
                   "this session belongs to the parent process");
  else if (open)
    fail(s->engine, *status, "the session is ending: %s", reason);
  else if (s->state == PERIGEE_SESSION_ENDED)
    *status = fail(s->engine, s->ended.status, "the session has ended: %s",
                   s->ended.reason);
  else
    *status = fail(s->engine, PERIGEE_AGAIN, "the session is not open yet");
}

int session_needs(struct perigee_session *s, uint64_t feature) {
  const char *name = feature_of(feature)->name;
  if (s->peer.features & feature)
    return PERIGEE_OK;
  if (s->engine->features & feature)
    return fail(s->engine, PERIGEE_UNSUPPORTED,
                "the peer does not have the feature \"%s\"", name);
  return fail(s->engine, PERIGEE_UNSUPPORTED,
              "the feature \"%s\" is turned off here (option features)", name);
}

/* The next poll wakes the peer (session_sure), and comes soon. */
static void session_wake_again(struct perigee_session *s) {
  lane_sleep(s->lane)->unwoken(s->lane);
  s->polled.unsure = true;
  s->engine->poll_soon |= SOON_LOOK;
  hot_activate(s);
}

void session_wake(struct perigee_session *s) {
  if (!lane_sleep(s->lane)->wanted(s->lane))
    return;
  struct frame wake = {.type = FRAME_WAKE};
  s->counters->wakes++;
  /* A full socket wakes its reader anyway; a dead one is noticed by the next
   * look at the sockets. */
  if (s->up->tell(s, &wake, NULL, 0) == PERIGEE_NO_MEMORY)
    session_wake_again(s);
}

int lane_tell(struct perigee_session *s, const struct frame *f) {
  if (s->state == PERIGEE_SESSION_ENDED)
    return PERIGEE_OK;
  int status = s->up->tell(s, f, NULL, 0);
  return status == PERIGEE_PEER_LOST ? PERIGEE_OK : status;
}

_Static_assert((int)FOUND_KEYS == (int)LANES, "a key for each lane");

static struct extra_lane *lanes_extra(const struct perigee_session *s,
                                      uint32_t number) {
  return &s->lanes->extra[number - 1];
}

static uint32_t lanes_count_of(const struct perigee_session *s) {
  return s->lanes ? s->lanes->count : 0;
}

static bool extra_is_usable(const struct extra_lane *x) {
  return x->state == EXTRA_OPEN && !((struct lane_head *)x->lane)->ending;
}

/* ---- Choice -------------------------------------------------------------- */

static bool extra_takes(const struct extra_lane *x, const char *memory,
                        uint64_t length) {
  const struct transport_additional *a = x->transport->additional;
  const char *const *name = a->memories;
  if (length < a->least)
    return false;
  while (*name && strcmp(*name, memory) != 0)
    name++;
  return *name != NULL;
}

uint32_t lanes_for(const struct perigee_session *s, const struct payload *p) {
  for (uint32_t n = 1; n <= lanes_count_of(s); n++) {
    const struct extra_lane *x = lanes_extra(s, n);
    if (extra_is_usable(x) && x->transport->payloads &&
        extra_takes(x, p->memory->kind->name, p->total))
      return n;
  }
  return 0;
}

const struct window *lanes_window(const struct perigee_remote *remote,
                                  uint32_t number) {
  const struct window *window = &remote->extra[number - 1];
  return window->attached || !remote->window.pointer ? window : &remote->window;
}

uint32_t lanes_reach(const struct perigee_session *s,
                     const struct perigee_remote *remote,
                     const struct payload *local) {
  for (uint32_t n = 1; n <= lanes_count_of(s); n++) {
    const struct extra_lane *x = lanes_extra(s, n);
    const struct window *window = lanes_window(remote, n);
    if (window->attached && extra_is_usable(x) && x->transport->jobs &&
        local->total - local->done >= x->transport->additional->least &&
        x->transport->jobs->reaches(x->lane, window, local))
      return n;
  }
  return 0;
}

uint8_t lanes_soon(const struct perigee_session *s, uint32_t number) {
  const struct extra_lane *x = lanes_extra(s, number);
  const struct transport_jobs *jobs = x->transport->jobs;
  return jobs && jobs->only_copies && jobs->only_copies(x->lane) ? SOON_COPIES
                                                                 : SOON_LOOK;
}

void lanes_count(struct perigee_session *s, uint32_t number, bool payload,
                 uint64_t bytes) {
  if (number == 0)
    return;
  struct extra_lane *x = lanes_extra(s, number);
  x->payloads += payload;
  x->transfers += !payload;
  x->bytes += bytes;
}

/* ---- Polls --------------------------------------------------------------- */

static int extra_broken(const struct extra_lane *x, const char **why) {
  *why = "";
  return x->transport->broken ? x->transport->broken(x->lane, why) : PERIGEE_OK;
}

int lanes_status(const struct perigee_session *s, uint32_t number,
                 const char **why) {
  const struct extra_lane *x = lanes_extra(s, number);
  *why = x->why;
  if (x->state == EXTRA_LOST)
    return x->status;
  return x->state == EXTRA_OPEN ? extra_broken(x, why) : PERIGEE_PROTOCOL;
}

const char *lanes_trouble(const struct perigee_session *s) {
  const char *why = "";
  for (uint32_t n = 1; n <= lanes_count_of(s); n++)
    if (lanes_extra(s, n)->state == EXTRA_LOST)
      why = lanes_extra(s, n)->why;
  return why;
}

static void extra_tell_loss(struct perigee_session *s, uint32_t number,
                            int status, const char *why) {
  struct frame f = {.type = FRAME_EXTRA,
                    .extra = {.lane = (uint8_t)number,
                              .word = EXTRA_WORD_LOST,
                              .status = status}};
  f.extra.offer.length = (uint32_t)strnlen(why, REASON);
  memcpy(f.extra.offer.bytes, why, f.extra.offer.length);
  s->up->send(s, &f, NULL, 0);
}

void lanes_lose(struct perigee_session *s, uint32_t number, int status,
                const char *why, bool tell) {
  struct extra_lane *x = lanes_extra(s, number);
  if (x->state == EXTRA_LOST)
    return;
  x->state = EXTRA_LOST;
  x->status = status;
  snprintf(x->why, sizeof x->why, "the lane %s is lost: %s", x->transport->name,
           why);
  s->engine->progress++;
  if (x->lane && x->transport->cut)
    x->transport->cut(x->lane);
  if (tell)
    extra_tell_loss(s, number, status, why);
}

void lanes_poll(struct perigee_session *s) {
  for (uint32_t n = 1; n <= lanes_count_of(s); n++) {
    struct extra_lane *x = lanes_extra(s, n);
    const char *why;
    if (x->state != EXTRA_OPEN)
      continue;
    if (x->transport->poll && x->transport->poll(x->lane))
      s->engine->progress++;
    int status = extra_broken(x, &why);
    if (status < 0)
      lanes_lose(s, n, status, why, true);
    if (s->state != PERIGEE_SESSION_OPEN)
      return;
  }
}

void lanes_arm(struct perigee_session *s) {
  for (uint32_t n = 1; n <= lanes_count_of(s); n++)
    if (lanes_extra(s, n)->lane)
      lane_sleep(lanes_extra(s, n)->lane)->arm(lanes_extra(s, n)->lane);
}

void lanes_disarm(struct perigee_session *s) {
  for (uint32_t n = 1; n <= lanes_count_of(s); n++)
    if (lanes_extra(s, n)->lane)
      lane_sleep(lanes_extra(s, n)->lane)->disarm(lanes_extra(s, n)->lane);
}

bool lanes_rest(const struct perigee_session *s) {
  for (uint32_t n = 1; n <= lanes_count_of(s); n++) {
    const struct extra_lane *x = lanes_extra(s, n);
    if (x->state == EXTRA_OPEN &&
        !(x->transport->rests && x->transport->rests(x->lane)))
      return false;
  }
  return true;
}

/* ---- Regions ------------------------------------------------------------- */

struct lane *lanes_to_export(const struct perigee_session *s, uint32_t number,
                             const struct area *area) {
  const struct extra_lane *x = lanes_extra(s, number);
  bool may = extra_is_usable(x) &&
             extra_takes(x, area->memory->kind->name, UINT64_MAX);
  return may ? x->lane : NULL;
}

struct lane *lanes_to_attach(const struct perigee_session *s, uint32_t number) {
  const struct extra_lane *x = lanes_extra(s, number);
  return extra_is_usable(x) ? x->lane : NULL;
}

static bool extra_has_regions(const struct extra_lane *x) {
  return x->lane && x->transport->access;
}

void lanes_revoke(struct perigee_session *s, uint32_t slot) {
  for (uint32_t n = 1; n <= lanes_count_of(s); n++)
    if (extra_has_regions(lanes_extra(s, n)))
      lanes_extra(s, n)->transport->access->revoke(lanes_extra(s, n)->lane,
                                                   slot);
}

bool lanes_inside(struct perigee_session *s, uint32_t slot) {
  bool inside = false;
  for (uint32_t n = 1; n <= lanes_count_of(s); n++) {
    const struct extra_lane *x = lanes_extra(s, n);
    inside = inside || (extra_has_regions(x) && x->state == EXTRA_OPEN &&
                        x->transport->access->inside(x->lane, slot));
  }
  return inside;
}

bool lanes_forget(struct perigee_engine *engine, const struct area *area) {
  struct node *n, *head = &engine->sessions;
  bool all = true;
  for (n = head->next; n != head; n = n->next) {
    struct perigee_session *s = CONTAINER(n, struct perigee_session, node);
    for (uint32_t i = 1; i <= lanes_count_of(s); i++) {
      const struct extra_lane *x = lanes_extra(s, i);
      if (extra_has_regions(x) && x->transport->access->forget)
        all = x->transport->access->forget(x->lane, area) && all;
    }
  }
  return all;
}

/* ---- Faults -------------------------------------------------------------- */

int lane_inject(struct perigee_engine *engine, struct lane **lane,
                const struct perigee_transport **transport,
                struct offer *offer) {
  if (!engine->faults)
    return PERIGEE_OK;
  const struct perigee_transport *t = faults_join(engine->faults, *lane);
  if (t) {
    *transport = t;
    return PERIGEE_OK;
  }
  for (uint32_t i = 0; i < offer->fd_count; i++)
    close(offer->fds[i]);
  (*transport)->close(*lane);
  *lane = NULL;
  return PERIGEE_NO_MEMORY;
}

/* ---- Ending -------------------------------------------------------------- */

void lanes_cut(struct perigee_session *s) {
  for (uint32_t n = 1; n <= lanes_count_of(s); n++) {
    const struct extra_lane *x = lanes_extra(s, n);
    if (x->lane && x->state != EXTRA_LOST && x->transport->cut)
      x->transport->cut(x->lane);
  }
}

void lanes_forked(struct perigee_session *s) {
  for (uint32_t n = 1; n <= lanes_count_of(s); n++) {
    const struct extra_lane *x = lanes_extra(s, n);
    if (x->lane && x->transport->forked)
      x->transport->forked(x->lane);
  }
}

void lanes_close(struct perigee_session *s) {
  for (uint32_t n = lanes_count_of(s); n > 0; n--)
    if (lanes_extra(s, n)->lane)
      lanes_extra(s, n)->transport->close(lanes_extra(s, n)->lane);
  free(s->lanes);
  s->lanes = NULL;
}

/* ---- Sessions that polls look at ----------------------------------------- */

void hot_enter(struct perigee_session *s) {
  s->polled.used = s->engine->now;
  if (s->polled.node.next)
    return;
  list_append(&s->engine->hot, &s->polled.node);
  s->engine->hot_count++;
}

/* Moves the position of schedule_poll's loop, if it is at this session. */
static void hot_take_out(struct perigee_session *s) {
  struct perigee_engine *engine = s->engine;
  if (!s->polled.node.next)
    return;
  if (engine->turn == &s->polled.node)
    engine->turn = s->polled.node.next;
  list_remove(&s->polled.node);
  engine->hot_count--;
}

void hot_leave(struct perigee_session *s) {
  hot_take_out(s);
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
  hot_take_out(s);
  s->polled.parked = true;
  s->engine->parked++;
}
